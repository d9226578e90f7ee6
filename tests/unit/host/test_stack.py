"""Parsing of Compose's output."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from tarn_host import shell
from tarn_host.console import StopError
from tarn_host.shell import Result
from tarn_host.stack import lifecycle, project
from tarn_host.stack.lifecycle import (
    Service,
    addresses,
    full_only,
    labelled,
    of_profile,
    parse_ps,
    secrets_written,
    started_last,
    to_start,
)

from tarn.cli.wiring import NOT_IN_SMALL
from tests.support.compose import COMPOSE, SERVICES


def test_parse_ps_reads_what_the_engine_says_of_each_state() -> None:
    rows = {
        "trino": ("running", "Up 3 seconds (health: starting)", "starting", 0),
        "spark": ("running", "Up 5 minutes (unhealthy)", "unhealthy", 0),
        "minio": ("running", "Up About an hour (healthy)", "healthy", 0),
        "replay": ("running", "Up Less than a second", "", 0),
        "kafka": ("paused", "Up 5 minutes (Paused)", "", 0),
        "init": ("exited", "Exited (3) 5 seconds ago", "", 3),
        "ingest": ("restarting", "Restarting (137) 1 second ago", "", 137),
        "catalog": ("created", "Created", "", 0),
    }
    text = "".join(f"{name}\tid-{name}\t{state}\t{status}\n" for name, (state, status, *_) in rows.items())
    assert parse_ps(text) == [
        Service(name=name, container=f"id-{name}", state=state, health=health, exit_code=code)
        for name, (state, _, health, code) in sorted(rows.items())
    ]


def test_several_containers_of_a_service_are_told_apart_by_a_number() -> None:
    text = "catalog\tb\trunning\tUp\nminio\tc\trunning\tUp\ncatalog\ta\texited\tExited (1) 5 seconds ago\n"
    found = [(one.container, label) for one, label in labelled(parse_ps(text))]
    assert found == [("b", "catalog 2 of 2"), ("a", "catalog 1 of 2"), ("c", "minio")]


def test_parse_ps_of_nothing() -> None:
    assert parse_ps("") == []


@pytest.mark.parametrize(
    ("state", "health", "code", "good", "words"),
    [
        ("running", "healthy", 0, True, "healthy"),
        ("running", "", 0, True, "running"),
        ("running", "unhealthy", 0, False, "unhealthy"),
        ("running", "starting", 0, False, "starting"),
        ("exited", "", 0, True, "done"),
        ("exited", "", 137, False, "ended with exit code 137"),
        ("restarting", "", 1, False, "restarting"),
        ("created", "", 0, False, "created"),
    ],
)
def test_what_is_good(state: str, health: str, code: int, good: bool, words: str) -> None:
    service = Service(name="x", container="1", state=state, health=health, exit_code=code)
    assert service.good is good
    assert service.words() == words


def test_addresses_name_the_protocol() -> None:
    config = {
        "services": {
            "kafka": {"ports": [{"target": 9094, "published": "9092", "host_ip": "127.0.0.1"}]},
            "spark": {
                "ports": [{"target": 15002, "published": "15002"}, {"target": 4040, "published": "4040"}]
            },
            "init": {},
        }
    }
    assert [" ".join(row.split()) for row in addresses(config)] == [
        "kafka 127.0.0.1:9092",
        "spark sc://127.0.0.1:15002",
        "spark http://127.0.0.1:4040",
    ]


CONFIG = {
    "services": {
        "init": {},
        "minio": {"depends_on": {"init": {"condition": "service_completed_successfully"}}},
        "trino": {
            "depends_on": {"init": {"condition": "service_completed_successfully"}},
            "labels": {"tarn.profile": "full"},
        },
        "pipeline": {
            "depends_on": {"trino": {"condition": "service_healthy"}},
            "labels": {"tarn.profile": "full", "tarn.start": "last"},
        },
        "cli": {"profiles": ["tools"]},
    },
    "volumes": {},
}


def test_the_small_profile_leaves_out_the_engines_and_what_needs_them() -> None:
    assert to_start(of_profile(CONFIG, "full")) == ["minio", "pipeline", "trino"]
    small = of_profile(CONFIG, "small")
    assert to_start(small) == ["minio"]
    assert small["volumes"] == {}


def test_what_the_small_profile_leaves_out_is_needed_by_nothing_that_stays() -> None:
    left_out = set(full_only(COMPOSE))
    assert left_out >= {"spark", "trino", "jupyter", "pipeline"}
    assert left_out >= NOT_IN_SMALL
    for name, service in SERVICES.items():
        if name not in left_out:
            assert not set(service.get("depends_on") or {}) & left_out, name


def test_written_secrets_are_read_from_inits_log() -> None:
    log = [
        '{"event": "secret written", "consumer": "trino", "file": "catalog_credential", "why": "made"}',
        '{"event": "secret written", "consumer": "trino", "file": "x", "why": "copied from bootstrap"}',
        "not json",
        '{"event": "credentials complete", "written": 2}',
    ]
    assert secrets_written(log) == {"trino": ["catalog_credential (made)", "x (copied from bootstrap)"]}


def test_the_small_profile_stops_the_engines_only_when_the_rest_is_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A failed start leaves running services running."""
    here = project.Project(name="t", base="b", own_base=True, settings={"TARN_PROFILE": "small"}, choices={})
    running = [
        Service(name=n, container=n, state="running", health="healthy", exit_code=0)
        for n in full_only(CONFIG)
    ]
    ran: list[str] = []

    def compose(here: project.Project, words: list[str], timeout_s: float) -> Result:
        ran.append(words[0])
        return Result(0, "", "")

    def fail(*_: object, **__: object) -> None:
        raise StopError("catalog is unhealthy")

    monkeypatch.setattr(lifecycle, "LOG", project.ROOT / "no-such-log")
    monkeypatch.setattr(lifecycle, "services", lambda here: running)
    monkeypatch.setattr(lifecycle, "_compose", compose)
    monkeypatch.setattr(lifecycle, "_up", fail)
    with pytest.raises(StopError, match="catalog is unhealthy"):
        lifecycle.start(here, CONFIG)
    assert ran == ["run"], "init alone ran"
    monkeypatch.setattr(lifecycle, "_up", lambda *_, **__: ran.append("up"))
    lifecycle.start(here, CONFIG)
    assert ran == ["run", "run", "up", "rm"]


class Engine:
    """Fake of the engine and Compose: holds a project's networks and volumes by kind."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, busy: str = "") -> None:
        self.held = {"network": ["n1"], "volume": ["v1", "v2"]}
        self.asked: list[list[str]] = []
        self.busy = busy
        monkeypatch.setattr(lifecycle.shell, "logged", lambda *_, **__: None)
        monkeypatch.setattr(lifecycle.shell, "capture", self.capture)

    def capture(self, command: list[str], *, timeout_s: float) -> Result:
        self.asked.append(command)
        _, kind, verb, *words = command
        if verb == "ls":
            assert words == ["--quiet", "--filter", "label=com.docker.compose.project=tarn-x"]
            return Result(0, "\n".join(self.held[kind]), "")
        (name,) = words
        if name == self.busy:
            return Result(1, "", f"{name} is in use")
        self.held[kind].remove(name)
        return Result(0, name, "")


HERE = project.Project(name="tarn-x", base="b", own_base=False, settings={})


@pytest.mark.parametrize(
    ("purge", "left"),
    [(True, {"network": [], "volume": []}), (False, {"network": [], "volume": ["v1", "v2"]})],
)
def test_what_another_release_left_goes_too_volumes_with_purge_only(
    monkeypatch: pytest.MonkeyPatch, purge: bool, left: dict[str, list[str]]
) -> None:
    engine = Engine(monkeypatch)
    lifecycle.stop(HERE, purge)
    assert engine.held == left


def test_what_cannot_be_removed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    Engine(monkeypatch, busy="v2")
    with pytest.raises(StopError, match=r"the volume v2 of tarn-x is still there: v2 is in use"):
        lifecycle.stop(HERE, purge=True)


def quick(monkeypatch: pytest.MonkeyPatch, found: list[Service]) -> project.Project:
    monkeypatch.setattr(lifecycle, "services", lambda here: found)
    return project.Project(name="t", base="b", own_base=True, settings={}, choices={})


@pytest.mark.long
def test_a_start_that_is_done_is_seen_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    here = quick(monkeypatch, [])
    monkeypatch.setattr(lifecycle, "WATCH_S", 55.0)
    compose = shell.Running([sys.executable, "-c", "import time; time.sleep(0.2)"], on_line=lambda text: None)
    begin = time.monotonic()
    assert lifecycle._watch(here, compose, 60, (), None) == 0
    assert time.monotonic() - begin < 50


def test_what_looks_on_is_asked_only_where_nothing_ran_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it could see a container that this start replaces."""
    asked: list[object] = []
    monkeypatch.setattr(lifecycle, "LOG", project.ROOT / "no-such-log")
    monkeypatch.setattr(lifecycle, "complete_secrets", lambda here, running: None)
    monkeypatch.setattr(lifecycle, "_up", lambda *_, on_look, **__: asked.append(on_look))

    def look(found: object) -> None: ...

    lifecycle.start(quick(monkeypatch, []), CONFIG, look)
    ran = Service(name="minio", container="1", state="running", health="healthy", exit_code=0)
    lifecycle.start(quick(monkeypatch, [ran]), CONFIG, look)
    assert asked == [look, None]


@pytest.mark.parametrize(
    ("health", "tries"), [("healthy", 2), ("unhealthy", 1)], ids=["well again", "stays unhealthy"]
)
def test_a_first_start_forgives_a_service_that_was_unhealthy_for_a_moment(
    monkeypatch: pytest.MonkeyPatch, health: str, tries: int
) -> None:
    """Compose ends with an error if ingest was looked at before the catalog answered, however it is now."""
    found: list[Service] = []
    here = quick(monkeypatch, found)
    tried: list[str] = []

    def compose(*_: object) -> tuple[int, list[str]]:
        tried.append("up")
        found[:] = [Service(name="ingest", container="1", state="running", health=health, exit_code=0)]
        return (1 if len(tried) == 1 else 0), ["container ingest is unhealthy"]

    monkeypatch.setattr(lifecycle, "_compose_up", compose)
    monkeypatch.setattr(lifecycle, "_details", lambda service: [])
    monkeypatch.setattr(lifecycle, "SETTLE_S", 0)
    if health == "healthy":
        lifecycle._up(here, [], hidden=())
    else:
        with pytest.raises(StopError, match="ingest is"):
            lifecycle._up(here, [], hidden=())
    assert len(tried) == tries


class SlowMachine:
    """Fake of a first start: a clock, and Compose, which ends when it sees an unhealthy service.

    Args:
        healthy_s: for each start of services, one after the other, the time until they are healthy.
    """

    UNHEALTHY_S = 243
    """The engine calls a service unhealthy that long after its start."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, healthy_s: Sequence[float], wait_s: str) -> None:
        self.now_s = 0.0
        self.tries = 0
        self._ends_s = [sum(healthy_s[: n + 1]) for n in range(len(healthy_s))]
        self._begins_s = [0.0, *self._ends_s]
        monkeypatch.setenv("TARN_WAIT_S", wait_s)
        monkeypatch.setattr(
            lifecycle, "time", SimpleNamespace(monotonic=lambda: self.now_s, sleep=self.sleep)
        )
        monkeypatch.setattr(lifecycle, "services", lambda here: self.services())
        monkeypatch.setattr(lifecycle, "_compose_up", self.compose_up)
        monkeypatch.setattr(lifecycle, "_details", lambda service: [])

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def services(self) -> list[Service]:
        found = []
        for n, (begin_s, end_s) in enumerate(zip(self._begins_s, self._ends_s, strict=False)):
            if self.now_s <= begin_s:
                break
            sick = "unhealthy" if self.now_s - begin_s >= self.UNHEALTHY_S else "starting"
            health = "healthy" if self.now_s >= end_s else sick
            found.append(Service(name=f"s{n}", container=str(n), state="running", health=health, exit_code=0))
        return found

    def compose_up(self, *_: object) -> tuple[int, list[str]]:
        self.tries += 1
        until_s = self.now_s + lifecycle.wait_timeout_s()
        while self.now_s < until_s:
            self.sleep(1)
            if any(one.health == "unhealthy" for one in self.services()):
                return 1, ["container is unhealthy"]
            if self.now_s >= self._ends_s[-1]:
                return 0, []
        return 1, ["timed out"]


@pytest.mark.parametrize("healthy_s", [[400], [400, 300]], ids=["once", "twice"])
def test_a_slow_machine_may_start_for_as_long_as_it_is_given(
    monkeypatch: pytest.MonkeyPatch, healthy_s: list[float]
) -> None:
    slow = SlowMachine(monkeypatch, healthy_s, "1200")
    lifecycle._up(HERE, [], hidden=())
    assert slow.tries == 1 + len(healthy_s)
    assert slow.now_s < sum(healthy_s) + 10


@pytest.mark.parametrize(("wait_s", "ends_s"), [("", 260), ("300", 260), ("1200", 1200)])
def test_a_service_that_stays_unhealthy_ends_a_start(
    monkeypatch: pytest.MonkeyPatch, wait_s: str, ends_s: float
) -> None:
    slow = SlowMachine(monkeypatch, [9_999], wait_s)
    with pytest.raises(StopError, match="s0 is unhealthy"):
        lifecycle._up(HERE, [], hidden=())
    assert slow.now_s == pytest.approx(ends_s, abs=5)


def test_compose_that_fails_at_once_is_tried_twice_however_long_a_start_may_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = SlowMachine(monkeypatch, [1], "1200")
    tried: list[object] = []

    def refuses(*words: object) -> tuple[int, list[str]]:
        tried.append(words)
        return 1, ["port is already allocated"]

    monkeypatch.setattr(lifecycle, "_compose_up", refuses)
    with pytest.raises(StopError, match="port is already allocated"):
        lifecycle._up(HERE, [], hidden=())
    assert len(tried) == 2
    assert slow.now_s == 0


def test_whom_the_health_check_names_is_shown_with_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ingest that waits for Kafka is unhealthy, but what is wrong is in Kafka's log, and Kafka is healthy."""
    reason = "is the service kafka running and healthy? see docker compose logs kafka"
    found = [
        Service(name=name, container=name, state="running", health=health, exit_code=0)
        for name, health in [("catalog", "healthy"), ("ingest", "unhealthy"), ("kafka", "healthy")]
    ]
    asked: list[str] = []

    def capture(words: list[str], **_: object) -> Result:
        asked.append(" ".join(words))
        if words[1] == "inspect":
            state = {"Health": {"Log": [{"ExitCode": 1, "Output": reason}]}}
            return Result(0, json.dumps(state), "")
        return Result(0, f"a line of {words[-1]}\n", "")

    monkeypatch.setattr(shell, "capture", capture)
    message = str(lifecycle._failure(quick(monkeypatch, found), found, []))
    assert "kafka, which is healthy, is named there:" in message
    assert "a line of kafka" in message
    assert message.count("a line of ingest") == 1
    assert "catalog" not in message
    assert len(asked) == 3


@pytest.mark.parametrize("given", ["1", "true"])
def test_a_setting_to_ignore_orphans_does_not_keep_a_start_from_removing_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: str
) -> None:
    """Compose refuses `--remove-orphans` beside it."""
    docker = tmp_path / "docker"
    docker.write_text('#!/bin/sh\n[ "$1" = ps ] || echo "orphans ignored: $COMPOSE_IGNORE_ORPHANS"\n')
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path), os.environ["PATH"]]))
    monkeypatch.setenv("COMPOSE_IGNORE_ORPHANS", given)
    monkeypatch.setattr(lifecycle, "LOG", tmp_path / "start.log")
    code, said = lifecycle._compose_up(HERE, ["--remove-orphans", "minio"], (), None)
    assert (code, said) == (0, ["orphans ignored: false"])


def test_a_service_that_ran_out_of_memory_is_shown_with_the_variable_of_its_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    front = Service(name="catalog-front", container="1", state="exited", health="", exit_code=137)
    monkeypatch.setattr(shell, "capture", lambda words, **_: Result(0, json.dumps({"OOMKilled": True}), ""))
    assert lifecycle._details(front)[0] == "it ran out of memory: raise TARN_MEM_CATALOG_FRONT in .env"


def test_what_only_asks_the_others_starts_after_the_canary() -> None:
    last = set(started_last(COMPOSE))
    assert last >= {"jupyter", "pipeline"}
    assert last <= set(full_only(COMPOSE)), "the small profile starts nothing after the canary"
    for name, service in SERVICES.items():
        assert not set(service.get("depends_on") or {}) & last, name


def test_a_label_that_no_script_reads_is_a_mistake() -> None:
    known = {("tarn.profile", "full"), ("tarn.start", "last")}
    for name, service in SERVICES.items():
        assert set((service.get("labels") or {}).items()) <= known, name


def test_what_starts_last_is_what_the_labels_say(monkeypatch: pytest.MonkeyPatch) -> None:
    here = quick(monkeypatch, [])
    started: list[tuple[str, ...]] = []
    monkeypatch.setattr(lifecycle, "_up", lambda _, words, **__: started.append(tuple(words)))
    lifecycle.start(here, CONFIG)
    assert lifecycle.start_last(here, CONFIG) == "pipeline healthy"
    assert started == [("--remove-orphans", "minio", "trino"), ("--no-deps", "pipeline")]
