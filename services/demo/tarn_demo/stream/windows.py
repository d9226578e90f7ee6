"""The windows of one partition: a pure function of its log, in the order of its offsets.

The rules (docs/stream.md has them for readers):
- The watermark of a partition is the newest event time in it so far.
- An event counts in all windows that contain its time, unless it is late: more than `lateness_ms` older than
  the watermark. A late event counts nowhere, and is counted as late.
- Departures, arrivals and cancellations do not say their route; the flight's schedule does. Without it they
  wait for it, and whether they are late is judged when it comes.
- An event counts once, however often it was sent.
- A window closes when the watermark is `lateness_ms` past its end. It never changes after that.
- A flight is forgotten `MEMORY_MS` after the hour of its departure; events of forgotten flights are late.
- After messages that are gone from the log, windows are reported again from the first one that they cannot
  have been about: it begins `GONE_MS` after the next event.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tarn.core.errors import CorruptStateError, InvalidSettingError
from tarn_demo.stream.flight_event import FlightEvent, Kind, parse

HOUR_MS = 3_600_000
MEMORY_MS = 48 * HOUR_MS
"""Longer than from the scheduled hour of any flight of the data to its arrival, and `LATENESS_S_MAX` more."""
GONE_MS = 2 * MEMORY_MS
"""The next event may be late itself, and flights whose schedule is gone fly on as long as others."""
WINDOW_S_MIN, WINDOW_S_MAX = 60, 86_400
LATENESS_S_MAX = 43_200
WINDOWS_PER_EVENT_MAX = 96
STATE_VERSION = 2

Route = tuple[str, str]
"""Origin and destination."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How windows are cut, in milliseconds of event time.

    Attributes:
        window_ms: length of a window.
        hop_ms: from the start of one window to that of the next; equal to the length for tumbling windows.
        lateness_ms: how much older than the watermark an event may be.
    """

    window_ms: int
    hop_ms: int
    lateness_ms: int

    @staticmethod
    def of(*, window_s: int, hop_s: int, lateness_s: int) -> Rules:
        """The rules by settings in seconds.

        Raises:
            InvalidSettingError: the window is not a whole number of hops, or of too many.
        """
        if window_s % hop_s or window_s // hop_s > WINDOWS_PER_EVENT_MAX:
            raise InvalidSettingError(
                f"TARN_STREAM_HOP_S is {hop_s} and TARN_STREAM_WINDOW_S {window_s}: the window must be 1 to "
                f"{WINDOWS_PER_EVENT_MAX} whole hops, as 3600 and 10800",
                hop_s=hop_s,
                window_s=window_s,
            )
        return Rules(window_ms=window_s * 1000, hop_ms=hop_s * 1000, lateness_ms=lateness_s * 1000)

    def starts(self, time_ms: int) -> range:
        """The starts of all windows that contain an instant, oldest first."""
        newest = time_ms // self.hop_ms * self.hop_ms
        return range(newest - self.window_ms + self.hop_ms, newest + 1, self.hop_ms)

    def first_open(self, watermark_ms: int) -> int:
        """The start of the oldest window that is open at a watermark."""
        return self.starts(watermark_ms - self.lateness_ms)[0]

    def first_running(self, watermark_ms: int) -> int:
        """The start of the oldest window that ends after a watermark."""
        return self.starts(watermark_ms)[0]


class Sums(NamedTuple):
    """What is known of one route in one window; minutes are whole, so sums are exact.

    Attributes:
        flights: flights with at least one event in the window.
        departures: departures whose delay is known.
        departure_minutes: sum of their delays.
        arrivals: arrivals whose delay is known.
        arrival_minutes: sum of their delays.
        cancelled: cancellations.
    """

    flights: int = 0
    departures: int = 0
    departure_minutes: int = 0
    arrivals: int = 0
    arrival_minutes: int = 0
    cancelled: int = 0

    def plus(self, other: Sums) -> Sums:
        """Both together."""
        return Sums(*(a + b for a, b in zip(self, other, strict=True)))

    @property
    def mean_departure_delay(self) -> float | None:
        """Minutes; None without departures."""
        return self.departure_minutes / self.departures if self.departures else None

    @property
    def mean_arrival_delay(self) -> float | None:
        """Minutes; None without arrivals."""
        return self.arrival_minutes / self.arrivals if self.arrivals else None


Routes = Mapping[Route, Sums]


class Closed(NamedTuple):
    """A window that closed in a partition.

    Attributes:
        start_ms: its start.
        previous_ms: start of the one reported before; None for the first. Windows in between have no events.
        routes: the partition's part of it; empty if it only says that windows up to here are closed.
    """

    start_ms: int
    previous_ms: int | None
    routes: Routes


@dataclass(slots=True)
class Counters:
    """Messages by what became of them, since the beginning of the log.

    Attributes:
        counted: events that count in windows.
        late: events that came too late.
        duplicates: events that had come before.
        refused: messages that are no events.
        unscheduled: events whose flight was forgotten before its schedule came.
    """

    counted: int = 0
    late: int = 0
    duplicates: int = 0
    refused: int = 0
    unscheduled: int = 0

    def as_dict(self) -> dict[str, int]:
        """By name."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class _Flight:
    """What is remembered of a flight: its route, and of each event the time and the delay."""

    hour_ms: int
    route: Route | None = None
    seen: dict[Kind, tuple[int, int | None]] = field(default_factory=dict)
    counted: set[Kind] = field(default_factory=set)


class PartitionWindows:
    """The windows of one partition.

    Args:
        rules: how windows are cut.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self.next_offset = 0
        self.watermark_ms: int | None = None
        self.counters = Counters()
        self._flights: dict[str, _Flight] = {}
        self._windows: dict[int, dict[Route, Sums]] = {}
        self._reported_ms: int | None = None
        self._gone = False
        self.whole_from_ms: int | None = None
        """Windows that begin earlier may lack messages that are gone, and are not reported; None: none."""

    def lose_until(self, offset: int) -> None:
        """Take the message of this offset next, although messages before it were never taken."""
        assert offset > self.next_offset
        self.next_offset, self._gone = offset, True

    def add(self, offset: int, value: bytes | None) -> list[Closed]:
        """Take the next message; returns the windows that it closes, oldest first.

        Args:
            offset: its offset, at least `next_offset`.
            value: its value.
        """
        assert offset >= self.next_offset, f"offset {offset} comes after {self.next_offset - 1}"
        self.next_offset = offset + 1
        event = parse(value)
        if event is None:
            self.counters.refused += 1
            return []
        closed = self._advance(event.time_ms)
        self._take(event)
        return closed

    def window(self, start_ms: int) -> Routes:
        """A window that is not closed, as it is now."""
        return self._windows.get(start_ms, {})

    def _advance(self, time_ms: int) -> list[Closed]:
        """Move the watermark to an event's time, if that is newer; returns what closes."""
        before_ms = self.watermark_ms
        if self._gone:
            self._gone = False
            self.whole_from_ms = GONE_MS + (time_ms if before_ms is None else max(time_ms, before_ms))
        if before_ms is not None and time_ms <= before_ms:
            return []
        self.watermark_ms = time_ms
        until = self._rules.first_open(time_ms)
        if before_ms is not None:
            if time_ms // HOUR_MS > before_ms // HOUR_MS:
                self._forget(time_ms)
            if self._rules.first_open(before_ms) == until:
                return []
        # The first event closes windows as well: a partition with one event holds nothing back.
        starts = sorted(start for start in self._windows if start < until)
        if not starts or starts[-1] < until - self._rules.hop_ms:
            starts.append(until - self._rules.hop_ms)  # no events, but all must know that it is closed
        closed = []
        for start in starts:
            routes = self._windows.pop(start, {})
            if self.whole_from_ms is not None:
                if start < self.whole_from_ms:
                    continue
                # It follows no window that was reported: so the merge notices that some are missing.
                self.whole_from_ms, self._reported_ms = None, start - self._rules.hop_ms
            closed.append(Closed(start, self._reported_ms, routes))
            self._reported_ms = start
        return closed

    def _take(self, event: FlightEvent) -> None:
        assert self.watermark_ms is not None
        if event.hour_ms + MEMORY_MS < self.watermark_ms:
            self.counters.late += 1
            return
        flight = self._flights.setdefault(event.flight, _Flight(event.hour_ms))
        if event.kind in flight.seen:
            self.counters.duplicates += 1
            return
        flight.seen[event.kind] = (event.time_ms, event.delay)
        if event.kind is Kind.SCHEDULED:
            flight.route = event.route
            for kind in sorted(flight.seen):
                if kind is not Kind.SCHEDULED:
                    self._count(flight, kind)
        elif flight.route is not None:
            self._count(flight, event.kind)

    def _count(self, flight: _Flight, kind: Kind) -> None:
        """Count an event of a flight whose route is known, unless it is late."""
        assert self.watermark_ms is not None
        assert flight.route is not None
        time_ms, delay = flight.seen[kind]
        if time_ms < self.watermark_ms - self._rules.lateness_ms:
            self.counters.late += 1
            return
        known = 0 if delay is None else 1
        departed, arrived = kind is Kind.DEPARTED, kind is Kind.ARRIVED
        earlier = [flight.seen[other][0] for other in flight.counted]
        for start in self._rules.starts(time_ms):
            again = any(start <= one < start + self._rules.window_ms for one in earlier)
            routes = self._windows.setdefault(start, {})
            routes[flight.route] = routes.get(flight.route, Sums()).plus(
                Sums(
                    flights=0 if again else 1,
                    departures=known if departed else 0,
                    departure_minutes=(delay or 0) if departed else 0,
                    arrivals=known if arrived else 0,
                    arrival_minutes=(delay or 0) if arrived else 0,
                    cancelled=1 if kind is Kind.CANCELLED else 0,
                )
            )
        flight.counted.add(kind)
        self.counters.counted += 1

    def _forget(self, watermark_ms: int) -> None:
        old = [name for name, one in self._flights.items() if one.hour_ms + MEMORY_MS < watermark_ms]
        for name in old:
            flight = self._flights.pop(name)
            if flight.route is None:
                self.counters.unscheduled += len(flight.seen)

    def to_data(self) -> dict[str, Any]:
        """The whole state, as JSON can hold it."""
        return {
            "version": STATE_VERSION,
            "next": self.next_offset,
            "watermark": self.watermark_ms,
            "reported": self._reported_ms,
            "gone": self._gone,
            "whole_from": self.whole_from_ms,
            "counters": self.counters.as_dict(),
            "flights": {
                name: [
                    one.hour_ms,
                    one.route,
                    [[kind, *seen, kind in one.counted] for kind, seen in one.seen.items()],
                ]
                for name, one in self._flights.items()
            },
            "windows": [[start, routes_to_data(routes)] for start, routes in self._windows.items()],
        }

    @classmethod
    def from_data(cls, rules: Rules, data: Mapping[str, Any]) -> PartitionWindows:
        """The state that `to_data` returned.

        Raises:
            CorruptStateError: it is not one of this version.
        """
        found = cls(rules)
        try:
            if data["version"] != STATE_VERSION:
                raise ValueError(f"version {data['version']!r}")
            found.next_offset, found.watermark_ms = int(data["next"]), data["watermark"]
            found._reported_ms, found.counters = data["reported"], Counters(**data["counters"])
            found._gone, found.whole_from_ms = data["gone"], data["whole_from"]
            for name, (hour_ms, route, seen) in data["flights"].items():
                flight = _Flight(hour_ms, None if route is None else (route[0], route[1]))
                for kind, time_ms, delay, counted in seen:
                    flight.seen[Kind(kind)] = (time_ms, delay)
                    if counted:
                        flight.counted.add(Kind(kind))
                found._flights[name] = flight
            found._windows = {start: routes_from_data(routes) for start, routes in data["windows"]}
        except (KeyError, TypeError, ValueError) as e:
            raise CorruptStateError(f"a state of windows cannot be read: {type(e).__name__}: {e}") from e
        return found


def routes_to_data(routes: Routes) -> list[list[Any]]:
    """Routes as JSON can hold them, in the order of their names."""
    return [[*route, *routes[route]] for route in sorted(routes)]


def routes_from_data(data: list[list[Any]]) -> dict[Route, Sums]:
    """What `routes_to_data` returned."""
    return dict(_routes(data))


def _routes(data: list[list[Any]]) -> Iterator[tuple[Route, Sums]]:
    for origin, destination, *sums in data:
        yield (origin, destination), Sums(*map(int, sums))
