"""The watermark of a stream: up to which event time its table is expected to be complete. Pure.

Each commit of the stream carries the watermark in its snapshot summary, computed from that of the snapshot
that it builds on: so it survives a restart and goes back with a rollback. It says what is expected, not what
is proven: a record that is later than the rule allows becomes a row like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tarn.core import versioned_json
from tarn.core.completion import time_field
from tarn.core.errors import CorruptStateError, InvalidSpecError
from tarn.core.table_state import TableState, current_schema

PREFIX = "tarn.watermark."
COMPLETE_PREFIX = "tarn.complete-through."
FORMAT = 1
TYPES = ("timestamp", "timestamptz")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTimeRule:
    """How a stream's watermark follows the event times of its rows.

    Attributes:
        column: column of the event time.
        late_us: how much later than a younger one a record of the same partition may come, in microseconds.
        idle_ms: a partition without new event times for so long does not hold the watermark back.
        ahead_us: an event time that is so much later than the clock is not believed, in microseconds.
    """

    column: str
    late_us: int = 0
    idle_ms: int = 60_000
    ahead_us: int = 3_600_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTime:
    """Event times of one partition.

    Attributes:
        latest_us: latest event time so far, in microseconds since the epoch; None before the first.
        active_ms: wall-clock time of the batch with the last one, in milliseconds since the epoch.
    """

    latest_us: int | None
    active_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    """The watermark of a stream, and what the next one is computed from.

    Attributes:
        column: column of the event time.
        at_us: no earlier event time is expected, in microseconds since the epoch; None while unknown.
        partitions: event times by partition of the topic.
    """

    column: str
    at_us: int | None = None
    partitions: Mapping[int, PartitionTime] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Freeze the mapping."""
        object.__setattr__(self, "partitions", MappingProxyType(dict(sorted(self.partitions.items()))))

    def to_json(self) -> str:
        """Compact JSON, as stored in a snapshot summary."""
        partitions = {str(p): [one.latest_us, one.active_ms] for p, one in self.partitions.items()}
        value = {"v": FORMAT, "column": self.column, "at-us": self.at_us, "partitions": partitions}
        return orjson.dumps(value).decode()

    @staticmethod
    def from_json(text: str) -> Watermark:
        """Parse the result of `to_json`.

        Raises:
            CorruptStateError: the text is not of this form.
        """
        try:
            value = versioned_json.read(text, FORMAT)
            return Watermark(
                column=str(value["column"]),
                at_us=_number(value["at-us"]),
                partitions={
                    int(p): PartitionTime(latest_us=_number(latest), active_ms=int(active))
                    for p, (latest, active) in value["partitions"].items()
                },
            )
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise CorruptStateError(
                f"the watermark in the snapshot summary cannot be read ({e!r}): {text[:200]!r}; roll the "
                "table back to a snapshot with a whole one, or remove eventTime from the spec",
                value=text[:200],
            ) from e


def advanced(
    before: Watermark | None,
    rule: EventTimeRule,
    *,
    partitions: frozenset[int],
    latest: Mapping[int, int],
    now_ms: int,
    end_us: Callable[[int], int] | None = None,
) -> Watermark:
    """The watermark after a batch: the lowest mark of partitions that are not idle, never lower than before.

    A partition's mark is its latest event time less the allowed lateness. One that never had an event time
    holds the watermark back until it is idle, at the earliest since the stream's first event time. If all are
    idle, the stream has stopped: the watermark is the end of the table's partition with the latest event
    time, but no later than the clock less the lateness.

    Args:
        before: watermark of the snapshot that the batch builds on; None if it has none. One of another column
            does not count.
        rule: rule of the stream.
        partitions: partitions of the topic.
        latest: partition to the latest event time in the batch, in microseconds since the epoch.
        now_ms: wall-clock time of the batch, in milliseconds since the epoch.
        end_us: from an event time to the end of its partition; None: the watermark of a stream that has
            stopped stays.
    """
    known = before.partitions if before is not None and before.column == rule.column else {}
    if latest and all(one.latest_us is None for one in known.values()):
        # The stream's first event time. What was stated before, without any, says nothing of who is idle.
        known = {
            p: PartitionTime(latest_us=None, active_ms=max(now_ms, one.active_ms)) for p, one in known.items()
        }
    held: dict[int, PartitionTime] = {}
    for p in partitions | known.keys() | latest.keys():
        one = known.get(p, PartitionTime(latest_us=None, active_ms=now_ms))
        if p in latest:
            highest = latest[p] if one.latest_us is None else max(latest[p], one.latest_us)
            one = PartitionTime(latest_us=highest, active_ms=max(now_ms, one.active_ms))
        held[p] = one
    awake = [one.latest_us for one in held.values() if now_ms - one.active_ms <= rule.idle_ms]
    times = [time for time in awake if time is not None]
    found = min(times) - rule.late_us if times and len(times) == len(awake) else None
    ever = [one.latest_us for one in held.values() if one.latest_us is not None]
    if not awake and ever and end_us is not None:
        found = min(end_us(max(ever)), now_ms * 1_000 - rule.late_us)
    at = before.at_us if before is not None and before.column == rule.column else None
    if found is not None:
        at = found if at is None else max(at, found)
    return Watermark(column=rule.column, at_us=at, partitions=held)


def idle(mark: Watermark, rule: EventTimeRule, *, now_ms: int) -> bool:
    """Whether all partitions of the stream are idle."""
    return all(now_ms - one.active_ms > rule.idle_ms for one in mark.partitions.values())


def latest_times(times: pa.ChunkedArray, partitions: pa.Array, *, limit_us: int) -> dict[int, int]:
    """Partition to the latest of these event times that is not beyond the limit.

    Args:
        times: event times, a timestamp column in microseconds.
        partitions: partition of each, as whole numbers.
        limit_us: limit in microseconds since the epoch.
    """
    table = pa.table({"p": partitions, "t": times.cast(pa.int64())})
    found = table.filter(pc.less_equal(table["t"], limit_us)).group_by("p").aggregate([("t", "max")])
    return {row["p"]: row["t_max"] for row in found.to_pylist()}


def complete_through(state: TableState, mark: Watermark) -> int | None:
    """The watermark, floored to the partitions of the table, in microseconds since the epoch.

    Partitions that end there or before are expected to be complete. The finest of several partitions by time
    counts; None if the table is not partitioned by time on the column, or the watermark is unknown.
    """
    found = None if mark.at_us is None else time_field(state, mark.column)
    if mark.at_us is None or found is None:
        return None
    try:
        return found.bounds_us(found.number(mark.at_us))[0]
    except OverflowError:
        return None


def partition_end(state: TableState, column: str) -> Callable[[int], int]:
    """A function from an event time to the end of its partition; to itself if the table has none by time."""
    found = time_field(state, column)

    def end_us(at_us: int) -> int:
        try:
            return at_us if found is None else found.bounds_us(found.number(at_us))[1]
        except OverflowError:
            return at_us

    return end_us


def as_text(at_us: int | None) -> str:
    """ISO 8601 in UTC; empty if None or outside the years 1 to 9999."""
    if at_us is None:
        return ""
    try:
        return (_EPOCH + timedelta(microseconds=at_us)).isoformat().replace("+00:00", "Z")
    except OverflowError:
        return ""


def require_event_time(state: TableState, column: str, *, table: str, what: str = "eventTime.column") -> None:
    """Require that the table has the column, as a timestamp.

    Raises:
        InvalidSpecError: it does not.
    """
    for found in current_schema(state.metadata)["fields"]:
        if found["name"] == column and found["type"] in TYPES:
            return
        if found["name"] == column:
            raise InvalidSpecError(
                f"{what} {column!r} of table {table} is {found['type']}; it must be a timestamp or "
                "timestamptz"
            )
    raise InvalidSpecError(f"{what} {column!r}: table {table} has no such column; name one that it has")


def _number(value: object) -> int | None:
    if value is None or type(value) is int:
        return value
    raise ValueError(f"{value!r} is not a whole number")
