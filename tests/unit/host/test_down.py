"""Data is removed only after consent on a terminal, or with --yes; a pipe cannot consent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tarn_host import down
from tarn_host.stack import engine, lifecycle, project

UP = engine.Engine(server="27.0", error="", compose="2.30", data_root="/", memory_bytes=None)


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[bool]:
    """For each stop, whether it removed data."""
    done: list[bool] = []
    monkeypatch.setattr(project, "STATE_DIR", tmp_path)
    monkeypatch.setattr(engine, "look", lambda: UP)
    monkeypatch.setattr(lifecycle, "stop", lambda here, purge: done.append(purge))
    return done


def test_a_pipe_is_no_consent(stopped: list[bool], capsys: pytest.CaptureFixture[str]) -> None:
    assert down.main(["--purge"]) == 2
    assert stopped == []
    said = capsys.readouterr().err
    assert "no terminal" in said
    assert "--yes" in said


def test_yes_is(stopped: list[bool]) -> None:
    assert down.main(["--purge", "--yes"]) == 0
    assert stopped == [True]


def test_without_purge_nobody_is_asked(stopped: list[bool]) -> None:
    assert down.main([]) == 0
    assert stopped == [False]


@pytest.mark.parametrize(("answer", "removed"), [("y", [True]), ("n", []), ("", [])])
def test_on_a_terminal_the_answer_counts(
    stopped: list[bool], monkeypatch: pytest.MonkeyPatch, answer: str, removed: list[bool]
) -> None:
    monkeypatch.setattr(down, "is_terminal", lambda: True)
    monkeypatch.setattr("tarn_host.console.is_terminal", lambda: True)
    monkeypatch.setattr("builtins.input", lambda question: answer)
    assert (down.main(["--purge"]) == 0) is bool(removed)
    assert stopped == removed


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ("docker: not found", 0),
        (
            "Cannot connect to the Docker daemon at unix:///run/docker.sock. Is the docker daemon running?",
            0,
        ),
        (
            "failed to connect to the docker API at unix:///run/docker.sock: connect: no such file",
            0,
        ),
        ("failed to connect to the docker API at unix:///run/docker.sock: connect: connection refused", 0),
        ("permission denied while trying to connect to the docker API at unix:///var/run/docker.sock", 1),
        ("docker version: no answer within 20 s", 1),
    ],
)
def test_services_that_cannot_be_seen_are_not_called_stopped(
    stopped: list[bool],
    error: str,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr(engine, "look", lambda: replace(UP, server=None, error=error))
    assert down.main([]) == code
    said = capsys.readouterr()
    assert ("nothing was stopped" in said.err) is bool(code)
    assert ("no engine runs, so no service does" in said.out) is not bool(code)
    assert stopped == []


@pytest.mark.parametrize(
    ("given", "again"),
    [
        ([], "run scripts/down again"),
        (["--engine"], "run scripts/down --engine again"),
        (["--purge", "--yes"], "run scripts/down --purge --yes again"),
    ],
)
def test_who_interrupts_it_is_told_to_repeat_what_was_asked(
    stopped: list[bool],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    given: list[str],
    again: str,
) -> None:
    """An interrupted purge has removed some volumes, and the next scripts/up would keep the others."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(lifecycle, "stop", interrupted)
    assert down.main(given) == 130
    assert again in capsys.readouterr().err
