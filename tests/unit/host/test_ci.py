"""The hard limit of .ci/run ends the tests and everything that they started."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tarn_host import ci, shell

from tests.support.stack import eventually


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


def test_a_late_run_ends_with_its_children(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    note = tmp_path / "pid"
    begin = time.monotonic()
    code = ci._bounded(["bash", "-c", f"sleep 60 & echo $! > {note}; wait"], timeout_s=1)
    assert code == shell.TIMED_OUT
    assert time.monotonic() - begin < 30
    child = int(note.read_text())
    eventually(lambda: not is_alive(child), timeout_s=10, what="the child has ended")
    assert "not done within 1 s" in capfd.readouterr().out


def test_a_run_in_time_gives_its_own_exit_code() -> None:
    assert ci._bounded(["bash", "-c", "exit 7"], timeout_s=30) == 7


def test_the_limit_is_well_under_ninety_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TARN_CI_LIMIT_S", raising=False)
    assert ci.limit_s() + 2 * ci.GRACE_S < 85 * 60
    monkeypatch.setenv("TARN_CI_LIMIT_S", "5")
    assert ci.limit_s() == 5
