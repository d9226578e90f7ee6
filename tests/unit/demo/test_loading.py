"""A load: what it sends, when it returns, what it says when a layer stands still."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

import pytest

from tarn.cli.ports import Clock
from tarn.core.errors import UnavailableError
from tarn_demo.cli.progress_lines import ProgressLines
from tarn_demo.flights import dataset
from tarn_demo.flights.events import Kind, NoiseRates, Stream
from tarn_demo.flights.pace import Pace
from tarn_demo.flights.resume import ReplayMarker, ReplayPass
from tarn_demo.loading import LayerProgress, Layers, Limits, LoadProgress, load

PARTITIONS = 4
LIMITS = Limits(look_s=2.0, stall_s_max=60.0)


@cache
def _stream() -> Stream:
    flights = dataset.read_flights().slice(0, 500)
    return Stream(flights, dataset.read_reference("airports"), noise=NoiseRates(duplicates=0.1), seed=1)


@dataclass
class Log:
    """A topic that takes everything."""

    ends: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(PARTITIONS), 0))
    marks: dict[int, ReplayMarker | None] = field(default_factory=lambda: dict.fromkeys(range(PARTITIONS)))
    plays: list[ReplayPass] = field(default_factory=list)

    def ensure(self, partitions: int = PARTITIONS) -> int:
        return partitions

    def end_offsets(self) -> dict[int, int]:
        return dict(self.ends)

    def tails(self) -> dict[int, ReplayMarker | None]:
        return dict(self.marks)

    def play(
        self,
        stream: Stream,
        pace: Pace,
        play: ReplayPass,
        *,
        end: int | None = None,
        on_progress: Callable[[int], None] = lambda at: None,
    ) -> int:
        self.plays.append(play)
        for partition in self.ends:
            self.ends[partition] += len(stream) // PARTITIONS
            last = len(stream) - 1
            self.marks[partition] = ReplayMarker(fingerprint=play.fingerprint, round=play.round, index=last)
        on_progress(len(stream))
        return len(stream)


@dataclass
class Lake:
    """Layers that come nearer to the log with every look, up to a layer that is stuck."""

    log: Log
    stuck: str = ""
    looks: int = 0
    has_heard: bool = False
    fails_at: tuple[int, ...] = ()

    def layers(self) -> Layers:
        self.looks += 1
        if self.looks in self.fails_at:
            raise UnavailableError("the store is away")
        found: dict[str, LayerProgress] = {}
        for depth, name in enumerate(("bronze", "silver", "gold"), start=1):
            is_there = self.looks > 2 * depth and self.stuck not in [*found, name]
            rows = _stream().flights if name == "silver" and (is_there or self.has_heard) else 0
            found[name] = LayerProgress(rows=rows, next=self.log.end_offsets() if is_there else {})
        return found

    def event_counts(self) -> Mapping[Kind, int]:
        return _stream().by_kind if self.has_heard else {}


class Seen:
    """A view that remembers."""

    def __init__(self) -> None:
        self.all: list[LoadProgress] = []

    def show(self, progress: LoadProgress) -> None:
        self.all.append(progress)


class Time:
    """A clock that only waits move."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    def clock(self) -> Clock:
        return Clock(now_s=lambda: self.now_s, wait=self.wait)


@pytest.mark.long
def test_an_empty_lake_gets_everything_and_the_load_returns_when_gold_has_it() -> None:
    log, view = Log(), Seen()
    lake = Lake(log)
    done = load(_stream(), log, lake, view, again=False, clock=Time().clock(), limits=LIMITS)
    assert (done.sent, done.complete_before) == (len(_stream()), False)
    assert done.layers["gold"].covers(log.end_offsets())
    assert done.total_s > done.produce_s >= 0
    shares = [p.done for p in view.all]
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)


def test_a_complete_lake_is_left_alone() -> None:
    log = Log()
    first = load(_stream(), log, Lake(log), Seen(), again=False, clock=Time().clock(), limits=LIMITS)
    assert first.sent
    lake = Lake(log, has_heard=True, looks=10)
    done = load(_stream(), log, lake, Seen(), again=False, clock=Time().clock(), limits=LIMITS)
    assert (done.sent, done.complete_before) == (0, True)
    assert len(log.plays) == 1


def test_again_sends_a_second_round() -> None:
    log = Log()
    load(_stream(), log, Lake(log), Seen(), again=False, clock=Time().clock(), limits=LIMITS)
    lake = Lake(log, has_heard=True, looks=10)
    done = load(_stream(), log, lake, Seen(), again=True, clock=Time().clock(), limits=LIMITS)
    assert (done.sent, done.complete_before) == (len(_stream()), True)
    assert [p.round for p in log.plays] == [1, 2]


def test_a_second_play_that_was_stopped_is_gone_on_with_on_a_complete_lake() -> None:
    log = Log()
    load(_stream(), log, Lake(log), Seen(), again=False, clock=Time().clock(), limits=LIMITS)
    print_ = _stream().fingerprint
    log.marks[1] = ReplayMarker(fingerprint=print_, round=2, index=40)
    lake = Lake(log, has_heard=True, looks=10)
    done = load(_stream(), log, lake, Seen(), again=False, clock=Time().clock(), limits=LIMITS)
    assert (done.sent, done.complete_before) == (len(_stream()), True)
    assert log.plays[1:] == [ReplayPass(fingerprint=print_, round=2, next=(0, 41, 0, 0))]


def test_a_topic_that_has_everything_is_only_waited_for() -> None:
    log = Log()
    load(_stream(), log, Lake(log), Seen(), again=False, clock=Time().clock(), limits=LIMITS)
    done = load(_stream(), log, Lake(log), Seen(), again=False, clock=Time().clock(), limits=LIMITS)
    assert (done.sent, done.complete_before) == (0, False)
    assert len(log.plays) == 1


@pytest.mark.parametrize(
    ("stuck", "service"), [("bronze", "ingest"), ("silver", "pipeline"), ("gold", "pipeline")]
)
def test_a_layer_that_stands_still_is_named(stuck: str, service: str) -> None:
    log, time = Log(), Time()
    with pytest.raises(UnavailableError) as told:
        load(_stream(), log, Lake(log, stuck=stuck), Seen(), again=False, clock=time.clock(), limits=LIMITS)
    total = sum(log.end_offsets().values())
    assert told.value.message.startswith(f"{stuck} has stood at 0 of {total:,} offsets for 60 s; ")
    assert f"docker compose logs {service}, then run this again" in told.value.message
    assert 60 < time.now_s < 80


def test_a_store_that_is_away_for_a_while_does_not_end_the_load() -> None:
    log = Log()
    lake = Lake(log, fails_at=(4, 5, 6, 7))
    done = load(_stream(), log, lake, Seen(), again=False, clock=Time().clock(), limits=LIMITS)
    assert done.layers["gold"].covers(log.end_offsets())


def test_a_store_that_stays_away_is_told() -> None:
    log = Log()
    lake = Lake(log, fails_at=tuple(range(4, 1_000)))
    with pytest.raises(UnavailableError, match="nothing could be read for 60 s: the store is away"):
        load(_stream(), log, lake, Seen(), again=False, clock=Time().clock(), limits=LIMITS)


def test_progress_is_a_line_every_five_seconds_with_rates_and_the_time_left() -> None:
    time, told = Time(), list[str]()
    lines = ProgressLines(time.clock(), told.append)

    def progress(sent: int, bronze: int) -> LoadProgress:
        layers = {
            "bronze": LayerProgress(rows=bronze, next={0: bronze}),
            "silver": LayerProgress(),
            "gold": LayerProgress(),
        }
        return LoadProgress(
            phase="playing", sent=sent, messages=1_000_000, begun=0, goal=1_000_000, layers=layers
        )

    lines.show(progress(0, 0))
    time.wait(1)
    lines.show(progress(1, 1))
    time.wait(9)
    lines.show(progress(500_000, 300_000))
    assert told == [
        "   0 s  playing   sent 0 of 1,000,000   bronze 0 rows   silver 0 rows   gold 0 rows",
        "  10 s  playing   sent 500,000 of 1,000,000 (50,000/s)   bronze 300,000 rows (30,000/s)   "
        "silver 0 rows   gold 0 rows   about 40 s left",
    ]
