"""Which partitions of a table got rows of a stream and were not announced as complete yet. Pure.

A partition here is one unit of event time: the hour, day, month or year that the table is partitioned by.
Each commit of the stream states the *open* ones in its snapshot summary: those of the snapshot that it builds
on, without those whose event was sent, and with those that its own files are in. So an event that was not
sent before a crash is sent by the next process, a partition that gets a late row is announced again, and a
rollback takes the list back with the rows.

Several readers may commit rows of the stream while one announces. So a row of a partition that was complete
before is *late*: its partition is listed with the sequence number of that snapshot, and an event takes the
partition off the list only if it was sent on a version with that snapshot. A partition that was not complete
needs no number: no version before had it announced.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from itertools import pairwise

import orjson

from tarn.core import versioned_json
from tarn.core.errors import CorruptStateError
from tarn.core.table_state import Json, TableState, WrittenFile, current_part, current_schema

PREFIX = "tarn.open-partitions."
FORMAT = 1
TOPIC_PREFIX = "tarn.complete"
"""Name prefix of the topics that ingest may write events to; it reads none of them by a pattern."""
OPEN_MAX = 1_000
"""Runs of partitions that a stream may have open; beyond it the latest ones are not announced."""
LATE_MAX = 200
"""Runs of partitions with late rows; beyond it the earliest ones count as one, which repeats events."""
UNITS_FINEST_FIRST = ("hour", "day", "month", "year")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_YEARS_US = (-62_135_596_800_000_000, 253_402_300_800_000_000)
"""Start of the year 1 and end of the year 9999, in microseconds since the epoch."""
_SHAPES = {"hour": "-%m-%d-%H", "day": "-%m-%d", "month": "-%m", "year": ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeField:
    """The finest partition field of a table by a column of time.

    Attributes:
        name: name of the partition field.
        unit: its transform: `hour`, `day`, `month` or `year`.
        source_id: id of the column.
        index: its place in the partition values of a file.
        spec_id: id of the partition spec.
    """

    name: str
    unit: str
    source_id: int
    index: int
    spec_id: int

    def bounds_us(self, number: int) -> tuple[int, int]:
        """[start, end) of a partition, in microseconds since the epoch.

        Raises:
            OverflowError: it is outside the years 1 to 9999.
        """
        return _start_us(self.unit, number), _start_us(self.unit, number + 1)

    def number(self, at_us: int) -> int:
        """The partition of a time.

        Raises:
            OverflowError: it is outside the years 1 to 9999.
        """
        at = _EPOCH + timedelta(microseconds=at_us)
        if self.unit == "year":
            return at.year - 1970
        if self.unit == "month":
            return (at.year - 1970) * 12 + at.month - 1
        return (at - _EPOCH) // (timedelta(hours=1) if self.unit == "hour" else timedelta(days=1))

    def text(self, number: int) -> str:
        """The partition as Iceberg shows it, such as `2026-11-21-08` for an hour."""
        start = _EPOCH + timedelta(microseconds=_start_us(self.unit, number))
        return f"{start.year:04}{start.strftime(_SHAPES[self.unit])}"


def time_field(state: TableState, column: str) -> TimeField | None:
    """The finest partition field by the column; None if the table is not partitioned by time on it."""
    fields = {f["name"]: f["id"] for f in current_schema(state.metadata)["fields"]}
    spec = current_part(state.metadata, "partition-specs", "default-spec-id", "spec-id")
    found = {
        str(f["transform"]): TimeField(
            name=str(f["name"]),
            unit=str(f["transform"]),
            source_id=int(f["source-id"]),
            index=index,
            spec_id=int(spec["spec-id"]),
        )
        for index, f in enumerate(spec["fields"])
        if f["source-id"] == fields.get(column, -1)
    }
    return next((found[unit] for unit in UNITS_FINEST_FIRST if unit in found), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Announced:
    """Events that were sent, and that no commit has recorded yet.

    Attributes:
        at: snapshot of a version on which all of them were due; None if there are none.
        unit: unit of the partitions; empty if there are none.
        numbers: partition to the highest sequence number of the version on which its event was sent.
    """

    at: int | None = None
    unit: str = ""
    numbers: Mapping[int, int] = dataclasses.field(default_factory=dict)

    def holding(self, state: TableState, unit: str) -> Mapping[int, int]:
        """The partitions whose events hold for this version of the table, whose partitions have this unit.

        All, or none after a rollback or if the unit is another one.
        """
        holds = self.at is not None and self.numbers and self.unit == unit and state.is_ancestor(self.at)
        return self.numbers if holds else {}


LateRun = tuple[int, int, int]
"""Half-open run of partitions, and the sequence number of the snapshot with the last late row of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenPartitions:
    """Partitions with rows of a stream that are not announced.

    Attributes:
        field: name of the partition field.
        unit: its unit; empty in a list that a former version stated, so it is not compared.
        runs: half-open runs of consecutive partitions, in order.
        late: those of them that got rows after they were complete, in order.
    """

    field: str
    unit: str = dataclasses.field(default="", compare=False)
    runs: tuple[tuple[int, int], ...] = ()
    late: tuple[LateRun, ...] = ()

    def __contains__(self, number: int) -> bool:
        """Whether the partition is open."""
        return any(start <= number < end for start, end in self.runs)

    def numbers(self, below: int) -> Iterator[int]:
        """Yield the open partitions below this one, in order."""
        for start, end in self.runs:
            yield from range(start, min(end, below))

    def late_at(self, number: int) -> int:
        """Sequence number of the snapshot with the last late row of a partition; 0 if it has none."""
        return max((at for start, end, at in self.late if start <= number < end), default=0)

    def after(
        self, *, added: Iterable[int], announced: Mapping[int, int], complete_below: int | None, sequence: int
    ) -> OpenPartitions:
        """The list after a commit.

        Args:
            added: partitions that it adds rows to.
            announced: partitions whose event was sent, to the sequence number of the version it was sent on.
            complete_below: partitions before this one were complete before the commit; None: none was.
            sequence: sequence number of the commit's snapshot.
        """
        single = sorted(set(added))
        gone = {number for number, at in announced.items() if self.late_at(number) <= at}
        runs, late = list(self.runs), list(self.late)
        for number in sorted(gone):
            runs = [part for run in runs for part in _without(run, number)]
            late = [(*part, at) for *run, at in late for part in _without((run[0], run[1]), number)]
        below = [n for n in single if complete_below is not None and n < complete_below]
        late += [(n, n + 1, sequence) for n in below]
        return replace(self, runs=joined([*runs, *((n, n + 1) for n in single)]), late=_joined_late(late))

    def by(self, field: TimeField, unit: str) -> OpenPartitions:
        """The list by another field of the same column: what shares time with an open partition is open.

        Partitions outside the years 1 to 9999, which no event can name, are left out if the unit changes.

        Args:
            field: the other field.
            unit: unit of this list.
        """
        if unit == field.unit:
            return replace(self, field=field.name, unit=unit)
        runs = [found for run in self.runs for found in _converted(run, unit, field)]
        late = [(*found, at) for *run, at in self.late for found in _converted((run[0], run[1]), unit, field)]
        return OpenPartitions(field=field.name, unit=field.unit, runs=joined(runs), late=_joined_late(late))

    def union(self, other: OpenPartitions) -> OpenPartitions:
        """What either of two lists of the same field has open."""
        return replace(
            self,
            runs=joined([*self.runs, *other.runs]),
            late=_joined_late([*self.late, *other.late]),
        )

    def to_json(self) -> str:
        """Compact JSON, as stored in a snapshot summary."""
        value: Json = {"v": FORMAT, "field": self.field, "runs": [list(run) for run in self.runs]}
        if self.unit:
            value["unit"] = self.unit
        if self.late:
            value["late"] = [list(run) for run in self.late]
        return orjson.dumps(value).decode()

    @staticmethod
    def from_json(text: str) -> OpenPartitions:
        """Parse the result of `to_json`.

        Raises:
            CorruptStateError: the text is not of this form.
        """
        try:
            value = versioned_json.read(text, FORMAT)
            runs = tuple((int(start), int(end)) for start, end in value["runs"])
            late = tuple((int(start), int(end), int(at)) for start, end, at in value.get("late", ()))
            unit = str(value.get("unit", ""))
            if unit and unit not in UNITS_FINEST_FIRST:
                raise ValueError(f"unit {unit}")
            return OpenPartitions(field=str(value["field"]), unit=unit, runs=runs, late=late)
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise CorruptStateError(
                f"the open partitions in the snapshot summary cannot be read ({e!r}): {text[:200]!r}; roll "
                "the table back to a snapshot with a whole one, or remove completeTopic from the spec",
                value=text[:200],
            ) from e


def followed(opened: OpenPartitions | None, state: TableState, field: TimeField) -> OpenPartitions:
    """The list by the present field of the table, which somebody may have partitioned otherwise since.

    A partition is open if it shares time with one that was, so an event too many may be sent. Nothing is open
    if there is no list, or it is by another column.
    """
    unit = None if opened is None else _unit(opened, state, field)
    if opened is None or unit is None:
        return OpenPartitions(field=field.name, unit=field.unit)
    return opened.by(field, unit)


def _unit(opened: OpenPartitions, state: TableState, field: TimeField) -> str | None:
    """The unit of a list; None if it is by another column than the field.

    A former version stated none: then it is that of a partition field of the list's name.
    """
    if opened.field == field.name:
        return opened.unit or field.unit
    specs = state.metadata.get("partition-specs") or ()
    named = [f for spec in specs for f in spec["fields"] if f["name"] == opened.field]
    own = [f for f in named if f["source-id"] == field.source_id and f["transform"] in UNITS_FINEST_FIRST]
    if named and not own:
        return None
    return opened.unit or (str(own[-1]["transform"]) if own else None)


def touched(files: Iterable[WrittenFile], field: TimeField) -> frozenset[int]:
    """The partitions that these files are in; rows without an event time are in none."""
    values = (file.partition[field.index] for file in files if file.spec_id == field.spec_id)
    return frozenset(int(value) for value in values if value is not None)


def event(
    state: TableState, field: TimeField, number: int, *, table: str, stream: str, through: str, commit_id: str
) -> tuple[bytes, bytes]:
    """Key and value of the event that a partition is complete.

    Its sequence number is the highest that the table had assigned, which no rollback lowers: a process that
    froze may send an event of an older version last, and consumers can see that.

    Args:
        state: version of the table that was found to have it complete.
        field: partition field.
        number: the partition.
        table: name of the table.
        stream: stream whose rows made it complete.
        through: the time up to which the table is complete, as text.
        commit_id: commit id of the snapshot; empty if another writer made it.
    """
    start_us, end_us = field.bounds_us(number)
    value: Json = {
        "v": FORMAT,
        "table": table,
        "stream": stream,
        "partition": {"field": field.name, "value": field.text(number)},
        "start": _text(start_us),
        "end": _text(end_us),
        "completeThrough": through,
        "snapshotId": state.head_id,
        "sequenceNumber": state.last_sequence,
        "commitId": commit_id,
    }
    return f"{table}/{field.name}={field.text(number)}".encode(), orjson.dumps(value)


def _text(at_us: int) -> str:
    return (_EPOCH + timedelta(microseconds=at_us)).isoformat().replace("+00:00", "Z")


def _start_us(unit: str, number: int) -> int:
    if unit == "hour":
        return number * 3_600_000_000
    if unit == "day":
        return number * 86_400_000_000
    months = number if unit == "month" else number * 12
    try:
        start = datetime(1970 + months // 12, months % 12 + 1, 1, tzinfo=UTC)
    except ValueError as e:
        raise OverflowError(f"{unit} {number} is outside the years 1 to 9999") from e
    return (start - _EPOCH) // timedelta(microseconds=1)


def _converted(run: tuple[int, int], unit: str, field: TimeField) -> list[tuple[int, int]]:
    """The run of the field's partitions that share time with a run of another unit; none beyond the years."""
    start_us, end_us = (_within_years_us(unit, number) for number in run)
    return [(field.number(start_us), field.number(end_us - 1) + 1)] if start_us < end_us else []


def _within_years_us(unit: str, number: int) -> int:
    """The start of a partition, at the nearest end of the years 1 to 9999 if it is outside."""
    try:
        return min(max(_start_us(unit, number), _YEARS_US[0]), _YEARS_US[1])
    except OverflowError:
        return _YEARS_US[number > 0]


def _without(run: tuple[int, int], number: int) -> list[tuple[int, int]]:
    start, end = run
    if not start <= number < end:
        return [run]
    return [part for part in ((start, number), (number + 1, end)) if part[0] < part[1]]


def joined(runs: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The runs in order, without overlaps; at most `OPEN_MAX`."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(runs):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return tuple(found[:OPEN_MAX])


def _joined_late(runs: Sequence[LateRun]) -> tuple[LateRun, ...]:
    """The runs in order, without overlaps, each with the highest number; at most `LATE_MAX`."""
    edges = sorted({edge for start, end, _ in runs for edge in (start, end)})
    begins = sorted(runs, reverse=True)
    covering: list[tuple[int, int]] = []
    found: list[LateRun] = []
    for start, end in pairwise(edges):
        while begins and begins[-1][0] <= start:
            _, last, at = begins.pop()
            heappush(covering, (-at, last))
        while covering and covering[0][1] <= start:
            heappop(covering)
        if not covering:
            continue
        at = -covering[0][0]
        if found and found[-1][1] == start and found[-1][2] == at:
            found[-1] = found[-1][0], end, at
        else:
            found.append((start, end, at))
    many = len(found) - LATE_MAX + 1
    if many > 1:
        # A number that is too high is safe: the partition is announced once more.
        found[:many] = [(found[0][0], found[many - 1][1], max(at for _, _, at in found[:many]))]
    return tuple(found)
