"""A disk that fills up during a step: reported with the fix; nothing hangs or is half-written."""

from __future__ import annotations

import errno
import sys
from pathlib import Path

import pytest
from tarn_host import shell, up
from tarn_host.console import StopError, no_room
from tarn_host.stack import base, lock


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


def test_any_other_error_of_the_system_is_not_called_a_full_disk() -> None:
    with pytest.raises(OSError, match="Permission denied"):
        no_room(OSError(errno.EACCES, "Permission denied"))


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
