"""A running program whose lines are taken slowly: all of them are heard."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tarn_host import shell
from tarn_host.console import StopError


def test_lines_that_are_taken_slowly_are_all_heard_after_the_end() -> None:
    go, heard = threading.Event(), list[str]()

    def slow(text: str) -> None:
        assert go.wait(30)
        heard.append(text)

    running = shell.Running([sys.executable, "-I", "-c", "print('one'); print('two')"], on_line=slow)
    running.process.wait(30)
    running.hear_out(0.1)
    assert heard == [], "it returns after the timeout"
    go.set()
    running.hear_out(30)
    assert heard == ["one", "two"]


def test_a_program_in_a_folder_that_may_not_be_searched_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it is on WSL, where PATH has folders of Windows."""

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "docker")

    monkeypatch.setattr(subprocess, "run", refused)
    assert shell.capture(["docker", "version"], timeout_s=5) == shell.Result(127, "", "docker: not found")
    monkeypatch.setattr(subprocess, "Popen", refused)
    with pytest.raises(StopError, match="making it failed: docker is not there"):
        shell.logged(["docker", "build"], tmp_path / "log", timeout_s=5, what="making it", fix="install it")
