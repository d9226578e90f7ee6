"""Starting and stopping an engine, with a fake daemon: only the one started here is ever stopped."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tarn_host.console import StopError
from tarn_host.stack import engine

from tests.support.stack import eventually

DEBIAN_ROOT = engine.Machine(
    linux=True, root=True, debian=True, has_dockerd=True, systemd=False, docker_host=""
)
DAEMON = """#!/bin/bash
{first}
printf '%s' "$*" > {up}
exec -a dockerd sleep 60
"""
CLIENT = """#!/bin/sh
[ -f {up} ] || {{ echo "Cannot connect to the Docker daemon" >&2; exit 1; }}
case "$1" in
  version) echo 20.10 ;;
  info) echo '{{"DockerRootDir":"/data","MemTotal":1048576}}' ;;
  compose) echo 2.26.1 ;;
esac
"""


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a fake daemon and client first on PATH; started processes are ended afterwards."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TARN_ENGINE_DATA_ROOT", str(tmp_path / "data"))
    monkeypatch.setattr(engine, "RECORD", tmp_path / "engine.json")
    monkeypatch.setattr(engine, "LOG", tmp_path / "engine.log")
    monkeypatch.setattr(engine, "PID_FILE", tmp_path / "docker.pid")
    (tmp_path / "bin").mkdir()
    install(tmp_path, ":")
    yield tmp_path
    if engine.record() is not None:
        engine.stop()


def install(sandbox: Path, first: str) -> None:
    up = str(sandbox / "up")
    for name, text in (
        ("dockerd", DAEMON.format(up=up, first=first)),
        ("docker", CLIENT.format(up=up)),
    ):
        file = sandbox / "bin" / name
        file.write_text(text)
        file.chmod(0o755)


@pytest.mark.long
def test_start_records_the_process_and_stop_ends_it(sandbox: Path) -> None:
    engine.start(DEBIAN_ROOT)
    record = json.loads((sandbox / "engine.json").read_text())
    assert (sandbox / "up").read_text() == f"--data-root {sandbox / 'data'}"
    assert engine.is_mine_alive()
    assert f"pid {record['pid']}" in engine.stop()
    assert not Path(f"/proc/{record['pid']}").exists()
    assert not engine.is_mine_alive()
    assert engine.stop() == "no engine was started from this clone: none is stopped"


def test_a_reused_process_id_is_never_stopped(sandbox: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as stranger:
        try:
            record = {"kind": "dockerd", "pid": stranger.pid, "data_root": "/x", "born": "1"}
            (sandbox / "engine.json").write_text(json.dumps(record))
            assert not engine.is_mine_alive()
            assert "already ended" in engine.stop()
            assert stranger.poll() is None
        finally:
            stranger.kill()


@pytest.mark.long
def test_a_second_daemon_is_never_started(sandbox: Path) -> None:
    with subprocess.Popen([sandbox / "bin" / "dockerd"], stdin=subprocess.DEVNULL) as first:
        try:
            eventually(
                lambda: Path(f"/proc/{first.pid}/cmdline").read_bytes().startswith(b"dockerd"),
                timeout_s=40,
                what="the first daemon runs",
            )
            (sandbox / "docker.pid").write_text(str(first.pid))
            (sandbox / "up").unlink()
            with pytest.raises(StopError, match=f"pid {first.pid}"):
                engine.start(DEBIAN_ROOT)
            assert engine.record() is None
        finally:
            first.kill()


@pytest.mark.long
def test_a_stale_pid_file_does_not_hinder(sandbox: Path) -> None:
    (sandbox / "docker.pid").write_text(str(os.getpid()))
    engine.start(DEBIAN_ROOT)
    assert engine.is_mine_alive()


def test_a_daemon_that_ends_at_once_is_told_with_its_last_words(sandbox: Path) -> None:
    install(sandbox, "echo overlay2: no; exit 3")
    with pytest.raises(StopError, match="overlay2: no") as caught:
        engine.start(DEBIAN_ROOT)
    assert "TARN_ENGINE_DATA_ROOT" in caught.value.fix


def test_an_engine_that_gives_up_says_why_in_its_own_words_and_what_to_do(sandbox: Path) -> None:
    (sandbox / "engine.log").write_text("failed to start daemon: an earlier start, no space left on device\n")
    install(
        sandbox,
        "echo 'failed to start daemon: Devices cgroup isn\\'t mounted'; exit 1".replace("\\'", "'\\''"),
    )
    with pytest.raises(StopError) as caught:
        engine.start(DEBIAN_ROOT)
    assert "ended with exit code 1: failed to start daemon: Devices cgroup isn't mounted" in caught.value.what
    assert "control groups" in caught.value.fix
    assert str(sandbox / "engine.log") in caught.value.fix


def test_nothing_is_started_that_nobody_could_ask(sandbox: Path) -> None:
    with pytest.raises(StopError, match="the program `docker` is not there") as caught:
        engine.start(dataclasses.replace(DEBIAN_ROOT, has_client=False))
    assert "docker-cli" in caught.value.fix
    assert not (sandbox / "up").exists()
