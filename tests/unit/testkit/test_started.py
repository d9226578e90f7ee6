"""A stack of the tests' own, over a clone whose scripts only note how they were called."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tarn_testkit import started
from tarn_testkit.environment import parse_exports
from tarn_testkit.errors import SetupError
from tarn_testkit.started import UP_S, SharedStack, free_ports

SCRIPT = """#!/bin/sh
name=$(basename "$0") home=$(dirname "$0")/..
how="project=$COMPOSE_PROJECT_NAME profile=$TARN_PROFILE demo=$TARN_DEMO port=$TARN_PORT_CATALOG"
echo "$name $* $how" >> "$home/calls"
case "$name" in
  tarn)
    echo "export TARN_CATALOG_URI=http://127.0.0.1:$TARN_PORT_CATALOG"
    echo "export TARN_KAFKA_PASSWORD='a b'" ;;
esac
test ! -e "$home/fail-$name" || { echo "port 1 is taken"; exit 7; }
"""
COMPOSE = 'ports: ["127.0.0.1:${TARN_PORT_CATALOG:-8181}:1", "127.0.0.1:${TARN_PORT_S3:-9000}:2"]\n'


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "clone"
    (home / "scripts").mkdir(parents=True)
    (home / "docker-compose.yml").write_text(COMPOSE)
    for name in ("up", "down", "tarn"):
        (home / "scripts" / name).write_text(SCRIPT)
        (home / "scripts" / name).chmod(0o755)
    tools = tmp_path / "bin"
    tools.mkdir()
    docker = tools / "docker"
    docker.write_text(
        f'#!/bin/sh\necho "docker $*" >> {home}/calls\ntest "$2" != ls || echo tarn/services:tarn-kit-x\n'
    )
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    return home


@pytest.fixture
def session(tmp_path: Path) -> Path:
    folder = tmp_path / "session"
    folder.mkdir()
    return folder


def calls(clone: Path) -> list[str]:
    return (clone / "calls").read_text().splitlines()


def test_it_starts_once_for_all_processes_and_is_removed_with_its_data(clone: Path, session: Path) -> None:
    found = []

    def need() -> None:
        found.append(SharedStack(session, "tarn-kit-x").get(clone, "small"))

    threads = [threading.Thread(target=need) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) == 4
    assert found == found[:1] * 4
    port = found[0].settings["TARN_PORT_CATALOG"]
    assert port != found[0].settings["TARN_PORT_S3"]
    assert found[0].env == {"TARN_CATALOG_URI": f"http://127.0.0.1:{port}", "TARN_KAFKA_PASSWORD": "a b"}
    how = f"project=tarn-kit-x profile=small demo=off port={port}"
    assert calls(clone) == [f"up --yes --no-demo {how}", f"tarn env {how}"]
    secret = session / "env.sh"
    assert secret.stat().st_mode & 0o077 == 0, "it has the keys of the lake"
    assert (session / "stack.json").stat().st_mode & 0o077 == 0
    assert parse_exports(secret.read_text()) == found[0].env
    SharedStack(session, "tarn-kit-x").remove()
    assert calls(clone)[2:] == [
        f"down --purge --yes {how}",
        "docker image ls --filter reference=tarn/*:tarn-kit-x --format {{.Repository}}:{{.Tag}}",
        "docker image rm --no-prune tarn/services:tarn-kit-x",
    ]
    assert not session.exists()


def test_one_that_does_not_start_is_removed_and_not_tried_again(clone: Path, session: Path) -> None:
    (clone / "fail-up").touch()
    for _ in range(2):
        with pytest.raises(
            SetupError, match=r"(?s)scripts/up of .* failed with exit code 7:.*port 1 is taken"
        ):
            SharedStack(session, "tarn-kit-x").get(clone, "full")
    assert [call.split()[0] for call in calls(clone)] == ["up", "down", "docker", "docker"]
    assert SharedStack(session, "tarn-kit-x").seen() is None
    assert "port 1 is taken" in (session / "up.log").read_text()


def test_one_without_its_values_is_removed(clone: Path, session: Path) -> None:
    (clone / "fail-tarn").touch()
    with pytest.raises(SetupError, match=r"scripts/tarn of .* failed with exit code 7"):
        SharedStack(session, "tarn-kit-x").get(clone, "small")
    assert [call.split()[0] for call in calls(clone)][:3] == ["up", "tarn", "down"]


@pytest.mark.long
def test_one_that_is_interrupted_is_ended_with_all_that_it_started_and_removed(
    clone: Path, session: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the middle of scripts/up: what goes on there would start containers after the removal."""
    (clone / "scripts" / "up").write_text(
        f"#!/bin/sh\n(sleep 2; echo late >> {clone}/calls) &\necho up >> {clone}/calls\nwait\n"
    )
    real = subprocess.Popen.communicate

    def interrupted(child: Any, *args: Any, timeout: float | None = None, **kwargs: Any) -> Any:
        if child.args[0].endswith("/up") and timeout == UP_S:
            # The shell makes the file a moment before its first line is in it.
            while not (clone / "calls").exists() or not calls(clone):
                time.sleep(0.01)
            raise KeyboardInterrupt
        return real(child, *args, timeout=timeout, **kwargs)

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        SharedStack(session, "tarn-kit-x").get(clone, "small")
    time.sleep(2.5)
    assert [call.split()[0] for call in calls(clone)] == ["up", "down", "docker", "docker"]


def test_one_whose_process_was_killed_meanwhile_is_removed_at_the_end_of_the_session(
    clone: Path, session: Path
) -> None:
    """As a process of pytest-xdist is, that starts the stack for all when Ctrl-C is pressed."""
    (clone / "scripts" / "up").write_text(f"#!/bin/sh\necho up >> {clone}/calls\nkill -9 $PPID\n")
    code = "import sys; from pathlib import Path; from tarn_testkit.started import SharedStack; "
    code += "SharedStack(Path(sys.argv[1]), 'tarn-kit-x').get(Path(sys.argv[2]), 'small')"
    died = subprocess.run([sys.executable, "-c", code, str(session), str(clone)], check=False, timeout=60)
    assert died.returncode == -signal.SIGKILL
    SharedStack(session, "tarn-kit-x").remove()
    found = calls(clone)
    assert [call.split()[0] for call in found] == ["up", "down", "docker", "docker"]
    assert "project=tarn-kit-x" in found[1]
    assert not session.exists()


def test_one_that_cannot_be_removed_says_how_to(clone: Path, session: Path) -> None:
    (clone / "fail-up").touch()
    (clone / "fail-down").touch()
    with pytest.raises(SetupError, match="scripts/up of"):
        SharedStack(session, "tarn-kit-x").get(clone, "small")
    with pytest.raises(SetupError) as found:
        SharedStack(session, "tarn-kit-x").remove()
    command = f"COMPOSE_PROJECT_NAME=tarn-kit-x {clone}/scripts/down --purge --yes"
    assert str(found.value).endswith(f"The stack is still there; to remove it: {command}")
    assert not session.exists(), "keys of the lake are in it"


def test_a_session_that_started_nothing_removes_nothing(clone: Path, session: Path) -> None:
    SharedStack(session, "tarn-kit-x").remove()
    assert not (clone / "calls").exists()
    assert not session.exists()


def test_ports_are_free_and_different() -> None:
    found = free_ports(str(n) for n in range(20))
    assert len(set(found.values())) == 20
    assert {int(port) in started.PORTS for port in found.values()} == {True}


def test_a_port_that_is_taken_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(["any"]).values()
    monkeypatch.setattr(started, "PORTS", range(int(port), int(port) + 1))
    assert free_ports(["any"]) == {"any": port}
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", int(port)))
        with pytest.raises(SetupError, match=f"every port of 127.0.0.1 from {port} to {port} is taken"):
            free_ports(["any"])


def test_only_exports_are_read() -> None:
    text = "# comment\nexport A=1\nexport B='two words' C=\"3\"\nD=4\necho export E=5\n\n"
    assert parse_exports(text) == {"A": "1", "B": "two words", "C": "3"}
