"""Programs in parallel: all end, none is lost, a late one counts as timed out."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tarn_host import shell
from tarn_host.testing import parallel
from tarn_host.testing.parallel import Ended, Job


def python(name: str, code: str, timeout_s: float = 30.0) -> Job:
    return Job(name=name, command=[sys.executable, "-c", code], timeout_s=timeout_s)


def meets(own: Path, other: Path) -> str:
    """Code that ends only if another program runs at the same time."""
    look = f"pathlib.Path({str(other)!r}).exists()"
    return f"import pathlib, time; pathlib.Path({str(own)!r}).touch()\nwhile not {look}: time.sleep(0.01)"


@pytest.mark.long
def test_lanes_run_side_by_side_and_each_in_its_order(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    ended: list[Ended] = []
    first, second = tmp_path / "first", tmp_path / "second"
    parallel.run(
        [
            [python("a", meets(first, second)), python("b", "raise SystemExit(3)")],
            [python("c", f"print('told')\n{meets(second, first)}")],
        ],
        ended.append,
    )
    assert {e.name: e.code for e in ended} == {"a": 0, "b": 3, "c": 0}
    assert [e.name for e in ended if e.name != "c"] == ["a", "b"]
    assert "c          | told" in capfd.readouterr().out


@pytest.mark.long
def test_one_lane_shows_its_output_as_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    parallel.run([[python("a", "print('told')")]], lambda ended: None)
    assert capfd.readouterr().out == "told\n"


@pytest.fixture(params=[signal.default_int_handler, signal.SIG_IGN], ids=["in front", "in the background"])
def interrupts(request: pytest.FixtureRequest) -> Iterator[None]:
    """SIGINT ignored, as a shell starts a background job."""
    before = signal.signal(signal.SIGINT, request.param)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.long
@pytest.mark.usefixtures("interrupts")
@pytest.mark.parametrize("beside", [[], [python("b", "pass")]], ids=["alone", "beside another"])
def test_a_late_job_is_interrupted_and_counts_as_late(
    beside: list[Job], capfd: pytest.CaptureFixture[str]
) -> None:
    ended: list[Ended] = []
    begin = time.monotonic()
    parallel.run([[Job(name="a", command=["sleep", "600"], timeout_s=0.5)], beside], ended.append)
    assert time.monotonic() - begin < 50
    assert {e.name: e.code for e in ended}["a"] == shell.TIMED_OUT
    assert "sleep 600 was not done within 0.5 s" in capfd.readouterr().out


def test_what_ends_the_run_early_ends_the_programs() -> None:
    begin = time.monotonic()

    def stop(ended: Ended) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        parallel.run([[python("a", "pass")], [Job(name="b", command=["sleep", "600"], timeout_s=99.0)]], stop)
    assert time.monotonic() - begin < 45


@pytest.mark.long
def test_a_job_is_prepared_just_before_it_runs() -> None:
    told: list[str] = []
    jobs = [
        Job(name=name, command=["true"], timeout_s=5.0, first=lambda name=name: told.append(f"first {name}"))
        for name in ("a", "b")
    ]
    parallel.run([jobs], lambda ended: told.append(f"ended {ended.name}"))
    assert told == ["first a", "ended a", "first b", "ended b"]
