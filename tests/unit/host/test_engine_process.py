"""Starting and stopping an engine, with a stand-in: only the one started here is ever stopped."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tarn_host import engine
from tarn_host.say import StopError

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
case "$1" in version) echo 20.10 ;; info) printf '/data\\t1048576\\n' ;; compose) echo 2.26.1 ;; esac
"""


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a stand-in daemon and client first on PATH; what was started is ended afterwards."""
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


def test_a_second_daemon_is_never_started(sandbox: Path) -> None:
    with subprocess.Popen([sandbox / "bin" / "dockerd"], stdin=subprocess.DEVNULL) as first:
        try:
            eventually(
                lambda: Path(f"/proc/{first.pid}/cmdline").read_bytes().startswith(b"dockerd"),
                timeout_s=10,
                what="the first daemon runs",
            )
            (sandbox / "docker.pid").write_text(str(first.pid))
            (sandbox / "up").unlink()
            with pytest.raises(StopError, match=f"pid {first.pid}"):
                engine.start(DEBIAN_ROOT)
            assert engine.record() is None
        finally:
            first.kill()


def test_a_stale_pid_file_does_not_hinder(sandbox: Path) -> None:
    (sandbox / "docker.pid").write_text(str(os.getpid()))
    engine.start(DEBIAN_ROOT)
    assert engine.is_mine_alive()


def test_a_daemon_that_ends_at_once_is_told_with_its_last_words(sandbox: Path) -> None:
    install(sandbox, "echo overlay2: no; exit 3")
    with pytest.raises(StopError, match="overlay2: no") as caught:
        engine.start(DEBIAN_ROOT)
    assert "TARN_ENGINE_DATA_ROOT" in caught.value.fix
