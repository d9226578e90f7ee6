"""scripts/up and scripts/down as a user runs them: repeated, after a stop, offline, and refused."""

from __future__ import annotations

import os
import re
import socket
import sys
import time

import pytest
from tarn_host.stack import needs

from tests.support.compose import LONG_RUNNING
from tests.support.containers import LogKeeper, artifacts
from tests.support.stack import ENGINE_S, Stack, eventually, read_timings, run

ENGINES = ("pyiceberg", "trino", "spark")


LAYER_ROW = re.compile(r"^((?:bronze|silver|gold)\.\w+) .*? ([\d,]+) .*? \d[\d,]* s ago", re.MULTILINE)
GOLD = {f"gold.delays_by_{name}" for name in ("carrier", "route", "hour", "weather")}


def canary_rows(stack: Stack) -> int:
    answer = stack.script("tarn", "sql", "SELECT count(*) FROM ops.canary", "--csv", timeout_s=240)
    assert answer.code == 0, answer.text[-4_000:]
    return int(next(word for word in reversed(answer.text.split()) if word.isdigit()))


def leftovers(project_name: str) -> list[str]:
    """All of the engine's objects of a project."""
    found = []
    for kind, listing in (
        ("container", ["ps", "-a"]),
        ("network", ["network", "ls"]),
        ("volume", ["volume", "ls"]),
    ):
        command = ["docker", *listing, "-q", "--filter", f"label=com.docker.compose.project={project_name}"]
        found += [f"{kind} {word}" for word in run(command, timeout_s=ENGINE_S).text.split()]
    return found


def test_the_first_up_shows_a_row_read_by_three_engines_and_the_addresses(stack: Stack) -> None:
    assert stack.first_up is not None
    text = stack.first_up.text.lower()
    for engine in ENGINES:
        assert engine in text, f"{engine} did not read the canary"
    for port in stack.ports.values():
        assert f"127.0.0.1:{port}" in text
    times = read_timings(artifacts() / "up.json")
    assert set(times) == {"checks", "engine", "base", "build", "start", "canary", "pipeline"}
    assert all(seconds >= 0 for seconds in times.values())


@pytest.mark.in_turn(3, "a second `scripts/up` builds or restarts something")
def test_up_again_is_harmless_and_builds_nothing(stack: Stack) -> None:
    before = {service: stack.container(service) for service in stack.health()}
    rows = canary_rows(stack)
    again = stack.script("up")
    assert again.code == 0, again.text[-4_000:]
    assert "nothing changed" in again.text
    assert {service: stack.container(service) for service in stack.health()} == before
    assert canary_rows(stack) == rows + 1


@pytest.mark.may_skip("network namespaces are Linux's")
def test_up_works_offline(stack: Stack) -> None:
    """A new network namespace has no route and no name server; the engine's socket is a file."""
    if not sys.platform.startswith("linux"):
        pytest.skip("network namespaces are Linux's")
    unshare = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--net"]
    routes = run([*unshare, "cat", "/proc/net/route"], timeout_s=ENGINE_S)
    assert routes.code == 0, routes.text
    assert routes.text.splitlines()[1:] == [], "the namespace still has a route: this would prove nothing"
    command = [*unshare, "scripts/up", "--pull", "never"]
    answer = run(command, timeout_s=600, env=stack.env)
    assert answer.code == 0, answer.text[-4_000:]
    assert "nothing changed" in answer.text


def bronze_rows(stack: Stack) -> int:
    [(rows,)] = stack.query("SELECT count(*) FROM bronze.flight_events") or [[0]]
    return int(rows)


def replayed(stack: Stack) -> int:
    """Number of messages of the year that the replay had sent at its first progress line."""
    told = eventually(
        lambda: re.findall(r"([\d,]+) of [\d,]+ messages", stack.compose("logs", "replay").text) or None,
        timeout_s=240,
        what=lambda: f"a line of progress of the replay; {stack.compose('logs', 'replay').text[-2_000:]}",
    )
    return int(told[0].replace(",", ""))


@pytest.mark.timeout(1_800)
def test_down_keeps_the_data_and_up_finds_it_and_goes_on_with_the_demo(
    stack: Stack, log_keeper: LogKeeper
) -> None:
    rows = canary_rows(stack)
    own = ("tarn", "demo", "replay", "--again", "--rate", "2000", "--messages", "100")
    sent = stack.script(*own, timeout_s=240)
    assert sent.code == 0, sent.text[-4_000:]
    started = stack.compose("--profile", "demo", "up", "--detach", "--no-deps", "--no-build", "replay")
    assert started.code == 0, started.text
    played, flights = replayed(stack), bronze_rows(stack)
    stack.keep_logs(log_keeper)
    for _ in range(2):
        answer = stack.script("down", timeout_s=300)
        assert answer.code == 0, answer.text[-4_000:]
    assert not [item for item in leftovers(stack.name) if not item.startswith("volume")]
    answer = stack.script("up", env={"TARN_DEMO": "on"})
    assert answer.code == 0, answer.text[-4_000:]
    assert canary_rows(stack) == rows + 1
    held = {name: int(n.replace(",", "")) for name, n in LAYER_ROW.findall(answer.text)}
    assert set(held) == {"bronze.flight_events", "silver.flights", *GOLD}
    assert held["bronze.flight_events"] >= flights
    assert min(held.values()) > 0
    told = answer.text.partition("The three airlines that leave latest")[2].partition("Tarn is up")[0]
    assert len(re.findall(r"^\w.*\d+\.\d\s*$", told, re.MULTILINE)) == 3, told
    assert replayed(stack) > played, "it goes on where the topic ends"
    answer = stack.script(*own, timeout_s=240)
    assert answer.code == 0, answer.text[-4_000:]
    assert "The replay of scripts/up is stopped" in answer.text
    state = stack.inspect("replay")["State"]
    assert (state["Status"], state["ExitCode"]) == ("exited", 0), (
        "a stopped replay ends well, and stays ended"
    )


@pytest.fixture
def other(stack: Stack) -> Stack:
    """A second project of this clone that was never started: a refused `up` must create nothing of it."""
    del stack
    from tests.support.stack import free_ports

    names = ["TARN_PORT_S3", "TARN_PORT_CATALOG", "TARN_PORT_KAFKA", "TARN_PORT_SPARK", "TARN_PORT_SPARK_UI"]
    names += [
        "TARN_PORT_TRINO",
        "TARN_PORT_INGEST",
        "TARN_PORT_GATEWAY",
        "TARN_PORT_JUPYTER",
        "TARN_PORT_STREAM",
    ]
    return Stack(name="tarn-refused-test", ports=free_ports(names))


def refused(stack: Stack, env: dict[str, str], *words: str) -> str:
    """The output of an `up` that must be refused quickly and leave nothing behind."""
    begin = time.monotonic()
    answer = stack.script("up", *words, env=env, timeout_s=120)
    assert answer.code not in (0, 124), answer.text
    assert time.monotonic() - begin < 60
    assert "->" in answer.text, f"no fix is named:\n{answer.text}"
    assert leftovers(stack.name) == []
    return answer.text


def test_a_taken_port_is_refused_with_its_variable_and_holder(other: Stack) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        text = refused(other, {"TARN_PORT_TRINO": str(port)})
    assert f"port {port} on 127.0.0.1 is taken" in text
    assert "TARN_PORT_TRINO=" in text


def test_a_port_of_another_clone_names_its_container(stack: Stack, other: Stack) -> None:
    text = refused(other, {"TARN_PORT_S3": stack.ports["TARN_PORT_S3"]})
    assert f"container {stack.name}-minio-1" in text


def test_everything_missing_is_listed_at_once(other: Stack) -> None:
    env = {"TARN_NEED_DISK_MIB": "999999999", "TARN_NEED_MEMORY_MIB": "888888888", "TARN_PORT_S3": "http"}
    text = refused(other, env)
    assert "needed are 999999999 MiB" in text
    assert "needed are 888888888 MiB" in text
    assert "TARN_PORT_S3=http is no port" in text
    assert "3 things stand in the way" in text


def test_no_engine_is_said_with_where_it_was_looked_for(other: Stack) -> None:
    text = refused(other, {"DOCKER_HOST": "unix:///nowhere/docker.sock"})
    assert "unix:///nowhere/docker.sock" in text
    assert "unset DOCKER_HOST" in text


def test_an_unknown_flag_is_refused(other: Stack) -> None:
    answer = other.script("up", "--nonsense")
    assert answer.code == 2
    assert "--nonsense" in answer.text


def test_the_stated_needs_are_not_larger_than_this_machine_had(stack: Stack) -> None:
    """The stack ran here: its current memory is within what scripts/up requires."""
    ids = [stack.container(service) for service in stack.health()]
    assert len(ids) == len(LONG_RUNNING)
    stats = run(["docker", "stats", "--no-stream", "--format", "{{.MemUsage}}", *ids], timeout_s=ENGINE_S)
    assert stats.code == 0, stats.text
    used_by = re.findall(r"^([\d.]+)([KMG]iB) / ", stats.text, re.MULTILINE)
    assert len(used_by) == len(ids), stats.text
    used = sum(float(number) * {"KiB": 1 / 1024, "MiB": 1, "GiB": 1024}[unit] for number, unit in used_by)
    assert used < needs.memory_mib(), (
        f"{used:.0f} MiB in use, but scripts/up asks for {needs.memory_mib()} MiB only"
    )
