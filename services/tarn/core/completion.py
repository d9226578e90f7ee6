"""Which partitions of a table got rows of a stream and were not announced as complete yet. Pure.

A partition here is one unit of event time: the hour, day, month or year that the table is partitioned by.
Each commit of the stream states the *open* ones in its snapshot summary: those of the snapshot that it builds
on, without those whose event was sent, and with those that its own files are in. So an event that was not
sent before a crash is sent by the next process, a partition that gets a late row is announced again, and a
rollback takes the list back with the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import orjson

from tarn.core.errors import CorruptStateError
from tarn.core.table_state import Json, TableState, WrittenFile, current_part, current_schema

PREFIX = "tarn.open-partitions."
FORMAT = 1
TOPIC_PREFIX = "tarn.complete"
"""Name prefix of the topics that ingest may write events to; it reads none of them by a pattern."""
OPEN_MAX = 1_000
"""Runs of partitions that a stream may have open; beyond it the latest ones are not announced."""
UNITS_FINEST_FIRST = ("hour", "day", "month", "year")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SHAPES = {"hour": "-%m-%d-%H", "day": "-%m-%d", "month": "-%m", "year": ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeField:
    """The finest partition field of a table by a column of time.

    Attributes:
        name: name of the partition field.
        unit: its transform: `hour`, `day`, `month` or `year`.
        index: its place in the partition values of a file.
        spec_id: id of the partition spec.
    """

    name: str
    unit: str
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
            name=str(f["name"]), unit=str(f["transform"]), index=index, spec_id=int(spec["spec-id"])
        )
        for index, f in enumerate(spec["fields"])
        if f["source-id"] == fields.get(column, -1)
    }
    return next((found[unit] for unit in UNITS_FINEST_FIRST if unit in found), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenPartitions:
    """Partitions with rows of a stream that are not announced.

    Attributes:
        field: name of the partition field; a list of another field does not count.
        runs: half-open runs of consecutive partitions, in order.
    """

    field: str
    runs: tuple[tuple[int, int], ...] = ()

    def __contains__(self, number: int) -> bool:
        """Whether the partition is open."""
        return any(start <= number < end for start, end in self.runs)

    def numbers(self, below: int) -> Iterator[int]:
        """Yield the open partitions below this one, in order."""
        for start, end in self.runs:
            yield from range(start, min(end, below))

    def after(self, *, added: Iterable[int], announced: frozenset[int]) -> OpenPartitions:
        """The list after a commit that adds rows in some partitions, with others announced before."""
        single = set(added)
        numbers = [(start, end) for start, end in self.runs]
        for gone in sorted(announced):
            numbers = [part for run in numbers for part in _without(run, gone)]
        return OpenPartitions(field=self.field, runs=joined([*numbers, *((n, n + 1) for n in single)]))

    def to_json(self) -> str:
        """Compact JSON, as stored in a snapshot summary."""
        value = {"v": FORMAT, "field": self.field, "runs": [list(run) for run in self.runs]}
        return orjson.dumps(value).decode()

    @staticmethod
    def from_json(text: str) -> OpenPartitions:
        """Parse the result of `to_json`.

        Raises:
            CorruptStateError: the text is not of this form.
        """
        try:
            value = orjson.loads(text)
            if value["v"] != FORMAT:
                raise ValueError(f"format {value['v']}, this version reads {FORMAT}")
            runs = tuple((int(start), int(end)) for start, end in value["runs"])
            return OpenPartitions(field=str(value["field"]), runs=runs)
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise CorruptStateError(
                f"the open partitions in the snapshot summary cannot be read ({e!r}): {text[:200]!r}; roll "
                "the table back to a snapshot with a whole one, or remove completeTopic from the spec",
                value=text[:200],
            ) from e


def touched(files: Iterable[WrittenFile], field: TimeField) -> frozenset[int]:
    """The partitions that these files are in; rows without an event time are in none."""
    values = (file.partition[field.index] for file in files if file.spec_id == field.spec_id)
    return frozenset(int(value) for value in values if value is not None)


def event(
    state: TableState, field: TimeField, number: int, *, table: str, stream: str, through: str, commit_id: str
) -> tuple[bytes, bytes]:
    """Key and value of the event that a partition is complete.

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
