"""A disk that fills up during a step: reported with the fix; nothing hangs or is half-written."""

from __future__ import annotations

import errno
import sys
from pathlib import Path
from typing import Any

import pytest
from tarn_host import cli, down, shell, up
from tarn_host.console import StopError, no_room
from tarn_host.stack import base, engine, lock, project


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device", "/clone/.tarn/logs/build.log")


def test_up_names_the_full_disk_of_the_clone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(lock, "path_of", lambda here: tmp_path / "lock")
    monkeypatch.setattr(up, "prepare", full)
    assert up.main(["--no-demo"]) == 1
    said = capsys.readouterr().err
    assert "the disk of this clone is full (/clone/.tarn/logs/build.log)" in said
    assert "what runs stays as it is" in said


HERE = project.Project(name="tarn-1", base="b", own_base=True, settings={})


@pytest.fixture
def full_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A state folder whose logs, `stop.log` and `restore.log`, can be opened and have no room."""
    monkeypatch.setattr(project, "STATE_DIR", tmp_path)
    monkeypatch.setattr(project, "LOG_DIR", tmp_path / "logs")
    (tmp_path / "logs").mkdir()
    for name in ("stop.log", "restore.log"):
        (tmp_path / "logs" / name).symlink_to("/dev/full")
    return tmp_path / "logs"


def test_a_step_goes_on_without_its_log(full_log: Path) -> None:
    step = ["sh", "-c", "echo said; exit 3"]
    with pytest.raises(StopError, match=r"(?s)the step failed \(exit code 3\).*    said"):
        shell.logged(step, full_log / "stop.log", timeout_s=30, what="the step", fix="x")
    shell.logged(["true"], full_log / "stop.log", timeout_s=30, what="the step", fix="x")


def test_a_step_goes_on_where_there_is_no_room_for_the_file_of_its_log(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Path, "mkdir", full)
    shell.logged(["true"], tmp_path / "none" / "x.log", timeout_s=30, what="the step", fix="x")


def test_an_error_of_a_log_that_is_no_full_disk_is_not_hidden(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        shell.logged(["true"], tmp_path, timeout_s=30, what="the step", fix="x")


@pytest.fixture
def stopping(monkeypatch: pytest.MonkeyPatch, full_log: Path) -> list[str]:
    """The program that down runs for its engine is `true`; its services' steps are recorded."""
    ran: list[str] = []

    def capture(command: list[str], **_: object) -> shell.Result:
        ran.append(command[1])
        return shell.Result(0, "", "")

    class Stopped(shell.Running):
        def __init__(self, command: list[str], **settings: Any) -> None:
            ran.append(" ".join(command[-2:]))
            super().__init__(["echo", "stopped"], **settings)

    up = engine.Engine(server="27.0", error="", compose="2.30", data_root="/", memory_bytes=None)
    monkeypatch.setattr(engine, "look", lambda: up)
    monkeypatch.setattr(shell, "capture", capture)
    monkeypatch.setattr(shell, "Running", Stopped)
    return ran


@pytest.mark.parametrize("words", [[], ["--purge", "--yes"]], ids=["down", "down --purge"])
@pytest.mark.parametrize("where", ["what the lock says", "the lock's file"])
def test_down_works_on_a_full_disk(
    stopping: list[str], monkeypatch: pytest.MonkeyPatch, where: str, words: list[str]
) -> None:
    if where == "the lock's file":
        monkeypatch.setattr(lock, "path_of", full)
    else:
        monkeypatch.setattr(lock.os, "ftruncate", full)
    assert down.main(words) == 0
    assert ("--volumes" in " ".join(stopping)) is bool(words)


def test_what_a_lock_on_a_full_disk_says_is_no_error_when_it_is_closed(
    monkeypatch: pytest.MonkeyPatch, full_log: Path
) -> None:
    monkeypatch.setattr(lock.os, "ftruncate", full)
    with lock.only_one(HERE):
        assert lock.is_busy(HERE)
    assert not lock.is_busy(HERE)


def test_restore_says_what_to_do_on_a_full_disk(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli.base, "is_there", lambda image: True)
    monkeypatch.setattr(lock, "path_of", full)
    assert cli.main(["restore", "lake.tar"]) == 1
    assert "the disk of this clone is full" in capsys.readouterr().err


def test_any_other_error_of_the_system_is_not_called_a_full_disk() -> None:
    with pytest.raises(OSError, match="Permission denied"):
        no_room(OSError(errno.EACCES, "Permission denied"))


@pytest.mark.long
def test_a_program_whose_log_cannot_be_written_still_ends() -> None:
    """More than a pipe holds: unless it is read, the program blocks."""
    running = shell.Running([sys.executable, "-I", "-c", "print('x' * 99 + '\\n' * 3 * 65536)"], on_line=full)
    assert running.wait(30) == 0


def test_a_step_of_the_base_names_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(base, "LOG", tmp_path / "base.log")
    program = ["sh", "-c", "echo 'tar: base.tar: Cannot write: No space left on device'; exit 2"]
    with pytest.raises(StopError) as caught:
        base._logged(program, 30, "packing the base", "see the log")
    assert "the disk ran full during the build" in caught.value.what
    assert "docker system df" in caught.value.fix
