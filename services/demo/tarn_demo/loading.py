"""Loads a year of flights: plays the events, then waits until every layer of the lake holds them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from tarn.cli.ports import Clock
from tarn.core.errors import TarnError, UnavailableError
from tarn_demo.flights.events import PARTITIONS, Kind, Stream
from tarn_demo.flights.pace import AllAtOnce, Pace
from tarn_demo.flights.producer import ends_in
from tarn_demo.flights.resume import ReplayMarker, ReplayPass, is_begun, is_finished, plan

GOLD_TABLES = ("delays_by_carrier", "delays_by_route", "delays_by_hour", "delays_by_weather")
LAYERS = ("bronze", "silver", "gold")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerProgress:
    """How far a layer or table is; of gold the table that is least far.

    Attributes:
        rows: how many it holds.
        next: per partition the next offset that is not in it yet.
    """

    rows: int = 0
    next: Mapping[int, int] = field(default_factory=dict)

    @property
    def offsets(self) -> int:
        """How many offsets it covers."""
        return sum(self.next.values())

    def covers(self, ends: Mapping[int, int]) -> bool:
        """Whether everything before these offsets is in it."""
        return all(self.next.get(p, 0) >= end for p, end in ends.items())


Layers = Mapping[str, LayerProgress]


class Log(Protocol):
    """The topic."""

    def ensure(self, partitions: int = PARTITIONS) -> int:
        """Create the topic if it is missing; returns how many partitions it has."""

    def end_offsets(self) -> dict[int, int]:
        """Per partition the offset that the next message will get."""

    def tails(self) -> dict[int, ReplayMarker | None]:
        """Per partition the marker of the newest message that has one."""

    def play(
        self,
        stream: Stream,
        pace: Pace,
        play: ReplayPass,
        *,
        end: int | None = None,
        on_progress: Callable[[int], None] = ...,
    ) -> int:
        """Send what the topic lacks of a replay pass; returns how many messages."""


class Lake(Protocol):
    """The tables."""

    def layers(self) -> Layers:
        """How far bronze, silver and gold are; a table that does not exist is empty."""

    def event_counts(self) -> Mapping[Kind, int]:
        """Per kind of event, of how many flights silver holds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadProgress:
    """How far a load is.

    Attributes:
        phase: what is being done.
        sent: messages of the stream that were handed over, those of earlier runs included.
        messages: how many the stream has.
        begun: offsets that the topic held when this load began.
        goal: offsets that every layer is to cover.
        layers: how far the lake is, as seen last.
    """

    phase: str
    sent: int
    messages: int
    begun: int
    goal: int
    layers: Layers

    @property
    def done(self) -> float:
        """The share of the work that is done: playing and three layers weigh the same."""
        work = max(1, self.goal - self.begun)
        behind = [max(0, self.goal - max(self.begun, self.layers[n].offsets)) / work for n in LAYERS]
        return 1.0 - (1.0 - self.sent / self.messages + sum(behind)) / (1 + len(LAYERS))


class ProgressView(Protocol):
    """Shows progress to a person."""

    def show(self, progress: LoadProgress) -> None:
        """Called often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Intervals and limits of a load.

    Attributes:
        look_s: pause between two looks at the tables, seconds.
        stall_s_max: a load whose layers did not move for so long is given up, seconds.
    """

    look_s: float = 2.0
    stall_s_max: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What a load did.

    Attributes:
        sent: messages it sent; 0 if the topic had all of them.
        complete_before: the lake held everything at the beginning.
        produce_s: seconds until everything was acknowledged by Kafka.
        total_s: seconds until gold was complete.
        layers: the lake at the end.
    """

    sent: int
    complete_before: bool
    produce_s: float
    total_s: float
    layers: Layers


def load(
    stream: Stream, log: Log, lake: Lake, view: ProgressView, *, again: bool, clock: Clock, limits: Limits
) -> Loaded:
    """Returns when gold holds the whole stream.

    Args:
        stream: what to play.
        log: the topic.
        lake: the tables.
        view: shows progress.
        again: play the stream once more even if the lake holds everything.
        clock: time.
        limits: how long to wait.

    Raises:
        UnavailableError: something does not answer, or a layer does not move any more.
        DataError: Kafka did not take a message.
    """
    begun_s = clock.now_s()
    before = lake.layers()
    sent, complete = 0, is_complete(stream, lake, before)
    partitions = log.ensure()
    begun = sum(log.end_offsets().values())
    ends = ends_in(stream, partitions)
    play = plan(log.tails(), ends, fingerprint=stream.fingerprint, again=again)
    # A second pass that was interrupted is resumed, although the lake holds all its events.
    if (again or not complete or is_begun(play)) and not is_finished(play, ends):
        goal = begun + len(stream) - play.start
        with _watched(lake, limits) as seen:

            def show(at: int) -> None:
                view.show(_progress("playing", at, stream, begun, goal, seen()))

            sent = log.play(stream, AllAtOnce(), play, on_progress=show)
    produced_s = clock.now_s()
    after = _await(log.end_offsets(), begun, stream, lake, view, clock, limits)
    return Loaded(
        sent=sent,
        complete_before=complete,
        produce_s=produced_s - begun_s,
        total_s=clock.now_s() - begun_s,
        layers=after,
    )


def _progress(phase: str, sent: int, stream: Stream, begun: int, goal: int, layers: Layers) -> LoadProgress:
    return LoadProgress(
        phase=phase, sent=sent, messages=len(stream), begun=min(begun, goal), goal=goal, layers=layers
    )


def is_complete(stream: Stream, lake: Lake, layers: Layers) -> bool:
    """Whether silver holds every event of the stream."""
    return layers["silver"].rows == stream.flights and dict(lake.event_counts()) == dict(stream.by_kind)


def _await(
    ends: Mapping[int, int],
    begun: int,
    stream: Stream,
    lake: Lake,
    view: ProgressView,
    clock: Clock,
    limits: Limits,
) -> Layers:
    moved_s, last, fault = clock.now_s(), None, ""
    while True:
        try:
            layers, fault = lake.layers(), ""
        except UnavailableError as e:  # a store or catalog that restarts is no reason to give up
            layers, fault = last or {}, e.message
        if layers:
            goal = sum(ends.values())
            view.show(_progress("catching up", len(stream), stream, begun, goal, layers))
            if layers["gold"].covers(ends):
                return layers
        if layers != last:
            moved_s, last = clock.now_s(), layers
        if clock.now_s() - moved_s > limits.stall_s_max:
            raise UnavailableError(_stalled(ends, layers, fault, limits))
        clock.wait(limits.look_s)


def _stalled(ends: Mapping[int, int], layers: Layers, fault: str, limits: Limits) -> str:
    if fault:
        return f"nothing could be read for {limits.stall_s_max:.0f} s: {fault}"
    stuck = next(name for name in LAYERS if not layers[name].covers(ends))
    service = "ingest" if stuck == "bronze" else "pipeline"
    return (
        f"{stuck} has stood at {layers[stuck].offsets:,} of {sum(ends.values()):,} offsets for "
        f"{limits.stall_s_max:.0f} s; is the service {service} running and healthy? see docker compose logs "
        f"{service}, then run this again: it goes on where it was"
    )


@contextmanager
def _watched(lake: Lake, limits: Limits) -> Iterator[Callable[[], Layers]]:
    """Watch the lake in the background; yields a function that returns what was seen last."""
    stop, last = threading.Event(), [lake.layers()]

    def look() -> None:
        while not stop.wait(limits.look_s):
            try:
                last[0] = lake.layers()
            except TarnError:
                continue  # for display only; the wait at the end reports a fault

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield lambda: last[0]
    finally:
        stop.set()
        watcher.join(timeout=limits.look_s + 30)
