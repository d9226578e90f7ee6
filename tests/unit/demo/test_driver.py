"""The driver heals what heals by itself, tells what needs a person, and never looks more often than asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkException
from structlog.testing import capture_logs

from tarn_demo import driver
from tarn_demo.driver import RACES_MAX, Pace, follow, run_once, write_heartbeat
from tarn_jobs.lake import TableMismatchError
from tarn_jobs.pipeline import Step
from tarn_jobs.position import PositionError


class Stop(threading.Event):
    """An event whose waits take no time and are written down; set after so many of them."""

    def __init__(self, waits_max: int) -> None:
        super().__init__()
        self.waits: list[float | None] = []
        self._waits_max = waits_max

    def wait(self, timeout: float | None = None) -> bool:
        if self.is_set():
            return True
        self.waits.append(timeout)
        if len(self.waits) >= self._waits_max:
            self.set()
        return self.is_set()


@dataclass
class Work:
    """A pipeline whose looks and cycles go by a script."""

    heads: list[str | None] = field(default_factory=list)
    cycles: list[int | Exception] = field(default_factory=list)
    done: list[int] = field(default_factory=list)
    sessions: int = 0
    cleared: list[int] = field(default_factory=list)
    brings: list[int] = field(default_factory=list)
    on_step: Callable[[Step], None] = lambda step: None

    def head(self) -> str | None:
        return self.heads.pop(0) if self.heads else "1"

    def cycle(self) -> int:
        result = self.cycles.pop(0) if self.cycles else 0
        if isinstance(result, Exception):
            raise result
        if self.brings:
            offsets = self.brings.pop(0)
            self.on_step(Step(table="silver.flights", offsets=offsets, seconds=0.1))
            self.on_step(Step(table="gold.delays_by_hour", offsets=offsets, seconds=0.1))
        self.done.append(result)
        return result


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    found = Work()

    @contextmanager
    def session(_remote: str) -> Iterator[object]:
        found.sessions += 1
        yield SimpleNamespace(
            catalog=SimpleNamespace(clearCache=lambda: found.cleared.append(found.sessions))
        )

    def opened(_spark: object, on_step: Callable[[Step], None]) -> Any:
        found.on_step = on_step
        return found

    monkeypatch.setattr(driver, "session", session)
    monkeypatch.setattr(driver, "open_pipeline", opened)
    return found


def _ignore(_step: Step) -> None:
    return None


def test_once_ends_although_the_stream_goes_on(work: Work) -> None:
    work.cycles, work.brings = [5] * 40, [7] * 40
    steps: list[Step] = []
    assert run_once("sc://nowhere", steps.append) == len(steps) == 2
    assert work.done == [5], "what comes meanwhile is the next run's"


def test_once_begins_again_where_another_pipeline_was_faster(work: Work) -> None:
    lost = "org.apache.iceberg.exceptions.ValidationException: Found conflicting files that can contain rows"
    work.cycles, work.brings = [PySparkException(lost), 5], [7]
    assert run_once("sc://nowhere", _ignore) == 2
    assert (work.done, work.sessions) == ([5], 1)
    work.cycles = [PySparkException(lost)] * 40
    with pytest.raises(PySparkException, match="conflicting files"):
        run_once("sc://nowhere", _ignore)
    assert len(work.cycles) == 40 - RACES_MAX, "not without end"


def test_once_repeats_nothing_that_failed_otherwise(work: Work) -> None:
    work.cycles = [PySparkException("No space left on device"), 5]
    with pytest.raises(PySparkException, match="No space left"):
        run_once("sc://nowhere", _ignore)
    assert work.done == []


def test_a_cycle_runs_only_when_bronze_changed(work: Work) -> None:
    work.heads = [None, None, "7", "7", "7", "8"]
    stop = Stop(waits_max=6)
    follow("sc://nowhere", _ignore, Pace(poll_s=3.0, full_check_s=1e9), stop)
    assert len(work.done) == 3, "at the beginning, and when the head became 7 and 8"
    assert stop.waits == [3.0] * 6
    assert work.sessions == 1


def test_what_a_killed_process_left_cached_is_cleared_once_at_the_start(work: Work) -> None:
    """Spark keeps cached rows beyond the session that cached them."""
    work.cycles = [PySparkException("Spark went away"), PySparkException("and again")]
    follow("sc://nowhere", _ignore, Pace(), Stop(waits_max=4))
    assert work.sessions == 3
    assert work.cleared == [1]


def test_once_leaves_the_rows_that_others_have_cached(work: Work) -> None:
    run_once("sc://nowhere", _ignore)
    assert work.cleared == []


def test_each_commit_is_passed_on(work: Work) -> None:
    work.brings = [7]
    steps: list[Step] = []
    follow("sc://nowhere", steps.append, Pace(), Stop(waits_max=1))
    assert [(step.table, step.offsets) for step in steps] == [
        ("silver.flights", 7),
        ("gold.delays_by_hour", 7),
    ]


def test_a_cycle_runs_now_and_then_anyway(work: Work) -> None:
    follow("sc://nowhere", _ignore, Pace(poll_s=3.0, full_check_s=0.0), Stop(waits_max=4))
    assert len(work.done) == 4


def test_after_a_cycle_that_brought_little_there_is_a_rest(work: Work) -> None:
    work.heads = ["1", "2", "3", "4", "4"]
    work.brings = [9_999, 10_000, 0, 7]
    stop = Stop(waits_max=5)
    follow(
        "sc://nowhere",
        _ignore,
        Pace(poll_s=3.0, idle_pause_s=20.0, backlog_offsets=10_000, full_check_s=1e9),
        stop,
    )
    assert stop.waits == [20.0, 0.5, 3.0, 20.0, 3.0]


def test_a_failure_of_spark_opens_a_new_session_after_growing_waits(work: Work) -> None:
    away = PySparkException("connection refused")
    work.cycles = [away, away, away, 5]
    beats: list[str] = []
    stop = Stop(waits_max=4)
    with capture_logs() as logs:
        follow("sc://nowhere", _ignore, Pace(poll_s=9.0), stop, beats.append)
    assert work.done == [5]
    assert work.sessions == 4
    assert stop.waits == [1.0, 2.0, 4.0, 9.0]
    assert [b == "" for b in beats] == [True, True, *[False] * 9, True], "well until the first failure"
    assert [(e["event"], e["log_level"]) for e in logs] == [("spark failed, trying again", "warning")]


@pytest.mark.parametrize("error", [PositionError("bronze went back"), TableMismatchError("other columns")])
def test_what_needs_a_person_is_one_error_and_looked_at_again(work: Work, error: Exception) -> None:
    work.cycles = [error, error, 5]
    beats: list[str] = []
    stop = Stop(waits_max=3)
    with capture_logs() as logs:
        follow("sc://nowhere", _ignore, Pace(poll_s=9.0), stop, beats.append)
    assert work.done == [5]
    assert stop.waits == [30.0, 30.0, 9.0]
    assert beats == ["", "", *[str(error)] * 6, ""], "well again only after a whole look"
    assert [(e["event"], e["log_level"], e["reason"]) for e in logs] == [
        ("pipeline stopped", "error", str(error))
    ]


def test_the_beat_is_whole_at_every_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "beat.json"
    monkeypatch.setattr(driver, "HEARTBEAT_PATH", path)
    write_heartbeat("")
    first = json.loads(path.read_text())
    write_heartbeat("Spark is away")
    second = json.loads(path.read_text())
    assert (first["fault"], second["fault"]) == ("", "Spark is away")
    assert second["at"] >= first["at"]
    assert [p.name for p in tmp_path.iterdir()] == ["beat.json"]
