"""Which events a year of flights makes, in which order, and the bytes of each.

One message is one event. Its key is the flight (time_hour, carrier, flight), which is unique in the data set,
so that all events of a flight are in one partition. Its id says flight and event and is the same in every
run. The same data set, noise rates and seed give the same messages in the same order; only `produced_at`
differs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tarn.core.errors import InvalidSettingError
from tarn_demo.flights import timing

TOPIC = "flight-events"
PARTITIONS = 4
FORMAT = 2
LATE_MS_MAX = 48 * timing.HOUR_MS
DUPLICATE_LAG_MS_MAX = 24 * timing.HOUR_MS


class Kind(IntEnum):
    """What happened to a flight; the order is the order in which one flight's events happen."""

    SCHEDULED = 0
    CANCELLED = 1
    DEPARTED = 2
    ARRIVED = 3


class BrokenMessage(IntEnum):
    """What is wrong with a message that no table can take."""

    NOT_JSON = 10
    CUT_SHORT = 11
    NOT_AN_OBJECT = 12
    WRONG_TYPE = 13
    KEY_IS_NULL = 14
    NO_EVENT_ID = 15
    BAD_TIME = 16
    EMPTY = 17
    UNKNOWN_EVENT = 18


class Message(NamedTuple):
    """One record for Kafka.

    Attributes:
        key: the flight.
        value: the event as JSON (or something broken).
        due_ms: when it is played, in the time of the data (milliseconds since the epoch).
    """

    key: bytes
    value: bytes
    due_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseRates:
    """How much of the stream is duplicated, late or broken, as shares of the number of events (0 to 1).

    Attributes:
        duplicates: events that are sent a second time, up to 24 hours later.
        late: events that are sent up to 48 hours after they happened.
        broken: additional messages that cannot be read as events.
    """

    duplicates: float = 0.0
    late: float = 0.0
    broken: float = 0.0

    def __post_init__(self) -> None:
        """Require shares from 0 to 1."""
        for name, value in (("duplicates", self.duplicates), ("late", self.late), ("broken", self.broken)):
            if not 0.0 <= value <= 1.0:
                raise InvalidSettingError(
                    f"the share of {name} is {value}; give a number from 0 to 1 (0.02 is 2 %)",
                    **{name: value},
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """How many messages a stream holds.

    Attributes:
        events: first copies, late ones included.
        duplicates: second copies of events.
        late: events that are sent hours after they happened.
        broken: messages that cannot be read as events.
    """

    events: int
    duplicates: int
    late: int
    broken: int

    @property
    def messages(self) -> int:
        """What Kafka gets: late ones are events and not counted twice."""
        return self.events + self.duplicates + self.broken


class Stream:
    """The messages of a year in the order in which they are played.

    Args:
        flights: the flights, with the columns of `dataset.read_flights`.
        airports: the airports, for the clocks at the destinations.
        noise: how much is duplicated, late or broken.
        seed: seed of the RNG, the only source of randomness.
    """

    def __init__(self, flights: pa.Table, airports: pa.Table, *, noise: NoiseRates, seed: int) -> None:
        self._flights = _JsonColumns(flights)
        kind, flight, happened = _all_events(flights, airports)
        events = len(kind)
        due = happened.copy()
        to_late, to_double, to_break = (
            np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(3)
        )

        late = _draw(to_late, events, noise.late)
        due[late] += to_late.integers(timing.HOUR_MS, LATE_MS_MAX, len(late))
        doubled = _draw(to_double, events, noise.duplicates)
        doubled_due = due[doubled] + to_double.integers(0, DUPLICATE_LAG_MS_MAX, len(doubled))
        near = _draw(to_break, events, noise.broken)
        wrong = to_break.choice(np.array([b.value for b in BrokenMessage], dtype=np.int64), len(near))

        kind = np.concatenate([kind, kind[doubled], wrong])
        flight = np.concatenate([flight, flight[doubled], flight[near]])
        happened = np.concatenate([happened, happened[doubled], happened[near]])
        due = np.concatenate([due, doubled_due, due[near]])
        order = np.lexsort((flight, kind, due))
        self._kind, self._flight = kind[order].astype(np.int8), flight[order].astype(np.int32)
        self._happened, self._due = happened[order], due[order]
        self.flights = flights.num_rows
        self.by_kind = {k: int(np.count_nonzero(kind[:events] == k.value)) for k in Kind}
        self.fingerprint = _fingerprint(flights, noise, seed)
        self.totals = Totals(events=events, duplicates=len(doubled), late=len(late), broken=len(near))

    def __len__(self) -> int:
        return len(self._kind)

    def index_of(self, due_ms: int) -> int:
        """The first message that is due at or after this time."""
        return int(np.searchsorted(self._due, due_ms, side="left"))

    def due(self, index: int) -> int:
        """When the message is played, in the time of the data (milliseconds)."""
        return int(self._due[index])

    def messages(self, start: int, end: int, *, now: datetime) -> Iterator[Message]:
        """The messages of a range, in order.

        Args:
            start: first message.
            end: one past the last.
            now: the produce time written into them.
        """
        chunk = slice(start, end)
        times = np.datetime_as_string(self._happened[chunk].astype("datetime64[ms]"), unit="s").tolist()
        produced = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        render = self._flights.render
        rows = (self._kind[chunk].tolist(), self._flight[chunk].tolist(), times, self._due[chunk].tolist())
        for kind, flight, time, due in zip(*rows, strict=True):
            key, value = render(kind, flight, time, produced)
            yield Message(key.encode(), value.encode("latin-1"), due)


class _JsonColumns:
    """The columns of the flights, ready to be put together into JSON: strings beat a JSON writer here."""

    def __init__(self, flights: pa.Table) -> None:
        self.hour = _shared(flights["time_hour"].cast(pa.int64()), _second)
        self.carrier = _shared(flights["carrier"])
        self.flight = _shared(flights["flight"])
        self.tailnum = _shared(flights["tailnum"], json.dumps)
        self.origin = _shared(flights["origin"])
        self.dest = _shared(flights["dest"])
        year, month, day = (flights[c].to_numpy().astype(np.int64) for c in ("year", "month", "day"))
        days, row = np.unique(year * 10_000 + month * 100 + day, return_inverse=True)
        dates = [f"{d // 10_000}-{d // 100 % 100:02}-{d % 100:02}" for d in days.tolist()]
        self.date = [dates[i] for i in row.tolist()]
        numbers = ("sched_dep_time", "sched_arr_time", "distance", "dep_time", "dep_delay", "arr_time")
        self.number = {c: _shared(flights[c]) for c in numbers}
        self.nullable = {
            c: _shared(flights[c], lambda v: "null" if v is None else v) for c in ("arr_delay", "air_time")
        }

    def render(self, kind: int, i: int, time: str, produced: str) -> tuple[str, str]:
        """Key and value of one message."""
        hour, carrier, flight, number = self.hour[i], self.carrier[i], self.flight[i], self.number
        key = f"{hour}Z/{carrier}/{flight}"
        if kind >= BrokenMessage.NOT_JSON:
            return key, self._broken(kind, i, key, time, produced)
        head = (
            f'{{"event_id":"{key}/{_NAMES[kind]}","event":"{_NAMES[kind]}","event_time":"{time}Z",'
            f'"produced_at":"{produced}","time_hour":"{hour}Z","carrier":"{carrier}","flight":{flight}'
        )
        if kind == Kind.SCHEDULED:
            return key, (
                f'{head},"date":"{self.date[i]}","sched_dep_time":{number["sched_dep_time"][i]},'
                f'"sched_arr_time":{number["sched_arr_time"][i]},"tailnum":{self.tailnum[i]},'
                f'"origin":"{self.origin[i]}","dest":"{self.dest[i]}","distance":{number["distance"][i]}}}'
            )
        if kind == Kind.DEPARTED:
            return key, f'{head},"dep_time":{number["dep_time"][i]},"dep_delay":{number["dep_delay"][i]}}}'
        if kind == Kind.ARRIVED:
            return key, (
                f'{head},"arr_time":{number["arr_time"][i]},"arr_delay":{self.nullable["arr_delay"][i]},'
                f'"air_time":{self.nullable["air_time"][i]}}}'
            )
        return key, head + "}"

    def _broken(self, kind: int, i: int, key: str, time: str, produced: str) -> str:
        event: dict[str, Any] = {
            "event_id": f"{key}/broken",
            "event": "departed",
            "event_time": f"{time}Z",
            "produced_at": produced,
            "time_hour": f"{self.hour[i]}Z",
            "carrier": self.carrier[i],
            "flight": self.flight[i],
            "dep_time": 1,
            "dep_delay": 9999,
        }
        match kind:
            case BrokenMessage.NOT_JSON:
                return "\xff\xfe not JSON, and not UTF-8 either"
            case BrokenMessage.CUT_SHORT:
                return json.dumps(event)[:-20]
            case BrokenMessage.NOT_AN_OBJECT:
                return json.dumps([event])
            case BrokenMessage.WRONG_TYPE:
                event["flight"] = "four"
            case BrokenMessage.KEY_IS_NULL:
                event["carrier"] = None
            case BrokenMessage.NO_EVENT_ID:
                del event["event_id"]
            case BrokenMessage.BAD_TIME:
                event["event_time"] = "yesterday"
            case BrokenMessage.UNKNOWN_EVENT:
                event["event"] = "teleported"
            case _:
                return ""
        return json.dumps(event)


_NAMES = {k.value: k.name.lower() for k in Kind}


def _fingerprint(flights: pa.Table, noise: NoiseRates, seed: int) -> str:
    """Twelve hex digits that differ where the messages or their order differ."""
    made_from = (FORMAT, flights.num_rows, noise.duplicates, noise.late, noise.broken, seed)
    return hashlib.sha256(json.dumps(made_from).encode()).hexdigest()[:12]


def _all_events(
    flights: pa.Table, airports: pa.Table
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Kind, row of the flight and time of every event."""
    planned = timing.scheduled_departure(flights)
    left = flights["dep_time"].is_valid().to_numpy()
    landed = flights["arr_time"].is_valid().to_numpy()
    rows = np.arange(flights.num_rows, dtype=np.int64)
    parts = [
        (Kind.SCHEDULED, rows, planned - timing.SCHEDULE_LEAD_MS),
        (Kind.CANCELLED, rows[~left], planned[~left]),
        (Kind.DEPARTED, rows[left], timing.departure(flights)[left]),
        (Kind.ARRIVED, rows[landed], timing.arrival(flights, airports)[landed]),
    ]
    kind = np.concatenate([np.full(len(r), k.value, dtype=np.int64) for k, r, _ in parts])
    return kind, np.concatenate([r for _, r, _ in parts]), np.concatenate([t for _, _, t in parts])


def _draw(rng: np.random.Generator, population: int, share: float) -> npt.NDArray[np.int64]:
    """Different indexes, exactly the share of them, in ascending order."""
    drawn = rng.choice(population, size=round(population * share), replace=False, shuffle=False)
    return np.sort(drawn).astype(np.int64)


def _second(at_us: int) -> str:
    return str(np.datetime64(at_us, "us").astype("datetime64[s]"))


def _shared(column: pa.ChunkedArray, turned: Callable[[Any], Any] = lambda value: value) -> list[Any]:
    """The column as Python values, each turned; one object per distinct value: a year's would take 75 MiB."""
    found = column.combine_chunks().dictionary_encode(null_encoding="encode")
    values = [turned(value) for value in found.dictionary.to_pylist()]
    return [values[i] for i in found.indices.to_pylist()]
