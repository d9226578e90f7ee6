"""The hard limit of .ci/run ends the tests and everything that they started."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tarn_host import ci, shell, tiers

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


@pytest.fixture(params=[signal.default_int_handler, signal.SIG_IGN], ids=["in front", "in the background"])
def _interrupts(request: pytest.FixtureRequest) -> Iterator[None]:
    """As a shell starts a job: in the background, SIGINT is ignored."""
    before = signal.signal(signal.SIGINT, request.param)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interrupts")
def test_a_late_tier_is_interrupted_and_counts_as_late(capfd: pytest.CaptureFixture[str]) -> None:
    begin = time.monotonic()
    assert tiers._bounded(["sleep", "60"], 0.5, {}) == shell.TIMED_OUT
    assert time.monotonic() - begin < 30
    assert "not done within 0.5 s" in capfd.readouterr().out


def test_the_limit_is_well_under_ninety_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TARN_CI_LIMIT_S", raising=False)
    assert ci.limit_s() + 2 * ci.GRACE_S < 85 * 60
    monkeypatch.setenv("TARN_CI_LIMIT_S", "5")
    assert ci.limit_s() == 5
