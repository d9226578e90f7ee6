"""scripts/doctor on a really broken stack: the cause is named, nothing is changed, the fix works."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import tarfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tarn_host.doctor import judge, look
from tarn_host.doctor.facts import Finding
from tarn_host.stack import project

from tests.support.secrets import secret_values
from tests.support.stack import ENGINE_S, LONG_RUNNING, Stack, eventually, free_ports, run

HEAL_S = 120
ADD_TO_VOLUME = ["docker", "run", "--rm", "--interactive", "--network", "none", "--user", "0:0"]


def doctor(stack: Stack, env: dict[str, str] | None = None) -> dict[str, dict[str, Any]]:
    """The doctor's findings on a stack, by code; its exit code must match whether there are any."""
    done = subprocess.run(
        [str(project.ROOT / "scripts/doctor"), "--json"],
        capture_output=True,
        timeout=240,
        env={**os.environ, **stack.env, **(env or {})},
        check=False,
    )
    said = json.loads(done.stdout)
    assert done.returncode == (0 if said["ok"] else 1), done.stderr
    assert said["ok"] == (not said["findings"])
    for finding in said["findings"]:
        assert finding["what"]
        assert finding["fix"]
    return {finding["code"]: finding for finding in said["findings"]}


def await_nothing_wrong(stack: Stack) -> None:
    """Wait until the doctor finds nothing: what a check began while something was wrong may fail later."""
    found: dict[str, dict[str, Any]] = {}

    def nothing() -> bool:
        found.clear()
        found.update(doctor(stack))
        return not found

    eventually(nothing, timeout_s=HEAL_S, what=lambda: f"nothing wrong, the doctor says {found}")


@pytest.fixture
def broken(stack: Stack) -> Iterator[Stack]:
    """The stack, healthy before and after; faults provoked by a test in between are expected."""
    stack.await_healthy()
    with stack.fault():
        yield stack
        stack.await_healthy()


@pytest.fixture
def other() -> Stack:
    """A project that was never started."""
    names = list(project.ports({}, project.COMPOSE_FILE.read_text(encoding="utf-8")))
    return Stack(name="tarn-doctor-test", ports=free_ports(names))


def in_volume(stack: Stack, consumer: str, shell: str, stdin: str = "") -> str:
    """Run shell commands as root in a secret volume, mounted at /s, in Tarn's own image; their output."""
    image = f"tarn/services:{stack.name}"
    command = [*ADD_TO_VOLUME, "--volume", f"{stack.name}_secrets-{consumer}:/s", "--entrypoint", "sh", image]
    done = subprocess.run(
        [*command, "-c", shell], input=stdin.encode(), capture_output=True, timeout=ENGINE_S, check=True
    )
    return done.stdout.decode()


def test_nothing_is_wrong_with_a_stack_that_works(stack: Stack) -> None:
    stack.await_healthy()
    await_nothing_wrong(stack)


def test_a_stopped_service_is_named_and_up_heals_it(broken: Stack) -> None:
    assert broken.compose("stop", "ingest").code == 0
    found = doctor(broken)
    assert "service-stopped" in found, found
    assert found["service-stopped"]["service"] == "ingest"
    assert broken.compose("rm", "--force", "ingest").code == 0
    found = doctor(broken)
    assert "half-up" in found, found
    assert "ingest not there" in found["half-up"]["what"]
    again = broken.script("up", "--no-canary")
    assert again.code == 0, again.text


@pytest.mark.in_turn(4, "a deleted secret is not named, or not made again")
def test_a_deleted_secret_is_named_made_again_and_taken_up(broken: Stack) -> None:
    untouched = {name: broken.inspect(name)["State"]["StartedAt"] for name in ("minio", "kafka", "spark")}
    former = in_volume(broken, "trino", "cat /s/catalog_credential; rm /s/catalog_credential")
    found = doctor(broken)
    assert "secret-missing" in found, found
    assert found["secret-missing"]["what"].endswith(": trino/catalog_credential")
    again = broken.script("up", "--no-canary")
    assert again.code == 0, again.text
    assert "secrets were missing for trino: catalog_credential (made)" in again.text
    assert "starting again with them: catalog, trino" in again.text
    assert in_volume(broken, "trino", "cat /s/catalog_credential") != former
    assert {name: broken.inspect(name)["State"]["StartedAt"] for name in untouched} == untouched
    await_nothing_wrong(broken)


@pytest.mark.in_turn(4, "`scripts/up` takes the secrets of another copy")
def test_a_secret_of_another_copy_is_named_and_up_refuses_and_changes_nothing(broken: Stack) -> None:
    path = "/s/s3_secret_access_key"
    own = in_volume(broken, "ingest", f"cat {path}")
    write = f"rm {path}; cat > {path}; chown 10006:10006 {path}; chmod 400 {path}"
    before = {name: broken.inspect(name)["State"]["StartedAt"] for name in LONG_RUNNING}
    in_volume(broken, "ingest", write, "what another copy of Tarn has there")
    try:
        found = doctor(broken)
        assert "secrets-contradict" in found, found
        assert "secrets-ingest" in found["secrets-contradict"]["what"]
        refused = broken.script("up", "--no-canary", timeout_s=120)
        assert refused.code not in (0, 124), refused.text
        assert "contradict" in refused.text
        assert in_volume(broken, "ingest", f"cat {path}") == "what another copy of Tarn has there"
    finally:
        in_volume(broken, "ingest", write, own)
    assert {name: broken.inspect(name)["State"]["StartedAt"] for name in LONG_RUNNING} == before
    assert broken.compose("up", "--detach", "--no-build", "--no-deps", "init").code == 0
    await_nothing_wrong(broken)


def test_a_limit_that_is_too_low_is_out_of_memory(broken: Stack) -> None:
    identity = broken.container("ingest")
    limit = broken.inspect("ingest")["HostConfig"]["Memory"]

    def set_limit(size: int) -> None:
        words = ["docker", "update", "--memory", str(size), "--memory-swap", str(size), identity]
        assert run(words, timeout_s=ENGINE_S).code == 0

    set_limit(256 * 1024 * 1024)
    try:
        greedy = broken.inside("ingest", "python3", "-c", "x = b'x' * (512 << 20)")
        assert greedy.code == 137, greedy.text
        found = doctor(broken)["oom"]
    finally:
        set_limit(limit)
        run(["docker", "restart", identity], timeout_s=ENGINE_S)
    assert found["service"] == "ingest"
    assert "its limit is 256 MiB" in found["what"]
    assert "TARN_MEM_INGEST" in found["fix"]


def test_a_name_that_cannot_be_resolved_inside_a_container(broken: Stack) -> None:
    network, identity = f"{broken.name}_store", broken.container("ingest")
    assert run(["docker", "network", "disconnect", network, identity], timeout_s=ENGINE_S).code == 0
    try:
        found = doctor(broken)
    finally:
        assert (
            run(
                ["docker", "network", "connect", "--alias", "ingest", network, identity], timeout_s=ENGINE_S
            ).code
            == 0
        )
    assert "ingest cannot resolve the name minio" in found["dns"]["what"]


def test_a_host_clock_two_hours_wrong(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """All checks are real; only this process's clock is moved forward.

    A check that began while the test before this one had cut a network may fail only now: so the doctor may
    be asked again, and nothing but the clock may be left.
    """
    stack.await_healthy()
    right = time.time
    monkeypatch.setattr(look.time, "time", lambda: right() + 7_300)
    for name, value in stack.env.items():
        monkeypatch.setenv(name, value)
    found: list[Finding] = []

    def only_the_clock() -> bool:
        found[:] = judge.judge(look.look(project.load()))[0]
        return "clock" not in [finding.code for finding in found] or len(found) == 1

    with suppress(AssertionError):
        eventually(only_the_clock, timeout_s=HEAL_S, what="nothing wrong but the clock")
    assert [finding.code for finding in found] == ["clock"], found
    assert "this machine's clock is 2.0 h ahead of that of the containers" in found[0].what
    assert "the store's answers" in found[0].what


def test_what_hinders_a_stack_that_was_never_started(other: Stack) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        needs = {"TARN_NEED_DISK_MIB": "999999999", "TARN_NEED_MEMORY_MIB": "888888888"}
        found = doctor(other, {"TARN_PORT_TRINO": str(port), **needs})
    assert set(found) == {"port", "disk", "memory"}
    assert f"port {port} on 127.0.0.1 is taken by" in found["port"]["what"]
    assert "TARN_PORT_TRINO=" in found["port"]["fix"]


def test_no_engine(other: Stack) -> None:
    found = doctor(other, {"DOCKER_HOST": "unix:///nowhere/docker.sock"})
    assert "unix:///nowhere/docker.sock" in found["engine-silent"]["what"]


def test_settings_that_compose_refuses(other: Stack) -> None:
    found = doctor(other, {"TARN_MEM_MINIO": "plenty"})
    assert "plenty" in found["compose-config"]["what"]


def test_a_volume_of_another_copy(other: Stack) -> None:
    name = f"{other.name}_minio-data"
    label = "com.docker.compose.project=tarn-elsewhere"
    assert run(["docker", "volume", "create", "--label", label, name], timeout_s=ENGINE_S).code == 0
    try:
        found = doctor(other)
        assert run(["docker", "volume", "inspect", name], timeout_s=ENGINE_S).code == 0, (
            "the doctor removes nothing"
        )
    finally:
        run(["docker", "volume", "rm", name], timeout_s=ENGINE_S)
    assert name in found["volume-foreign"]["what"]
    assert "tarn-elsewhere" in found["volume-foreign"]["what"]


def all_secrets(stack: Stack) -> set[str]:
    """Every value in every secret volume, read as root."""
    listed = run(
        ["docker", "volume", "ls", "-q", "--filter", f"name={stack.name}_secrets-"], timeout_s=ENGINE_S
    )
    found: set[str] = set()
    for volume in listed.text.split():
        texts = in_volume(stack, volume.rpartition("_secrets-")[2], "for f in /s/*; do cat $f; echo; done")
        for text in texts.splitlines():
            found |= secret_values(text)
    return {value for value in found if len(value) >= 16}


def test_a_bundle_holds_what_a_helper_needs_and_no_secret(stack: Stack, tmp_path: Path) -> None:
    secrets = all_secrets(stack)
    assert len(secrets) > 15
    leak = f"{stack.name}-leak"
    print_all = (
        "import pathlib; [print(p.name, p.read_text()) for p in pathlib.Path('/run/tarn/secrets').iterdir()]"
    )
    told = stack.compose(
        *("run", "--no-deps", "-T", "--name", leak, "--entrypoint", "python", "cli", "-c", print_all)
    )
    path = tmp_path / "bundle.tar.gz"
    try:
        planted = {value for value in secrets if value in told.text}
        assert len(planted) >= 3, "the container's log holds secrets, so that there is something to find"
        answer = stack.script("doctor", "--bundle", str(path), timeout_s=180)
    finally:
        run(["docker", "rm", "--force", leak], timeout_s=ENGINE_S)
    assert path.is_file(), answer.text
    with tarfile.open(path) as archive:
        bodies = {}
        for member in archive:
            file = archive.extractfile(member)
            assert isinstance(file, io.BufferedReader)
            bodies[member.name.removeprefix("tarn-support/")] = file.read().decode()
    manifest = json.loads(bodies["manifest.json"])
    assert manifest["secrets_looked_for_by_value"] is True
    assert manifest["left_out"] == []
    assert manifest["replaced"] >= len(planted)
    assert "[secret]" in bodies[f"logs/{leak}.log"]
    for service in LONG_RUNNING:
        assert f"logs/{stack.name}-{service}-1.log" in bodies
        assert f"{stack.name}-{service}-1" in bodies["inspect.json"]
    assert "TARN_KAFKA_BOOTSTRAP" in bodies["compose-config.yaml"]
    assert json.loads(bodies["doctor.json"])["project"] == stack.name
    for name, body in bodies.items():
        assert [value[:6] for value in secrets if value in body] == [], f"{name} holds secrets"
