"""Batches of raw records as columns, and when a batch is closed. Record contents are not examined here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from tarn.core.offsets import OffsetRange

T = TypeVar("T")

RECORD_BYTES = 150
"""What a record takes in memory beside its key and value: objects of Python and places in lists."""
FIRST_POLL_RECORDS = 1_000
"""Limit on the first poll of a batch: how large its records are is not known yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRecords:
    """Records of one partition as polled: four columns of equal length, and the range of offsets read.

    Attributes:
        partition: partition of the records.
        offsets: offset of each record, ascending.
        times_ms: Kafka timestamps in milliseconds since the epoch; -1 where there is none.
        keys: keys as sent; None where there is none.
        values: values as sent; None where there is none.
        start: the consumer's position before the poll.
        end: the consumer's position after it. Records lie in [start, end); offsets in the range without a
            record are aborted, compacted or control records.
        epoch: leader epoch of the last record, which none before it exceeds; None if it is unknown.
    """

    partition: int
    offsets: Sequence[int]
    times_ms: Sequence[int]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    start: int
    end: int
    epoch: int | None = None

    def __post_init__(self) -> None:
        """Reject inconsistent columns: a source that produces them would lose or duplicate rows."""
        n = len(self.offsets)
        if not n == len(self.times_ms) == len(self.keys) == len(self.values):
            raise ValueError(f"partition {self.partition}: columns of different lengths")
        if n and not (self.start <= self.offsets[0] and self.offsets[-1] < self.end):
            raise ValueError(
                f"partition {self.partition}: records [{self.offsets[0]}, {self.offsets[-1]}] "
                f"outside the read [{self.start}, {self.end})"
            )


@dataclass(slots=True)
class BatchBuilder:
    """Accumulates polls until a limit is reached. One builder per open batch.

    Attributes:
        records_max: limit on the number of records; one poll alone may exceed it, a second is not added.
        bytes_max: limit on the size in bytes, with the same exception.
        latency_s_max: limit on the age of the first record, in seconds.
        records: number of records added.
        bytes: bytes of their keys and values.
        opened_s: when the first of them was added, in seconds; None before.
        waiting: number of records added since the last `take`.
    """

    records_max: int
    bytes_max: int
    latency_s_max: float
    records: int = 0
    bytes: int = 0
    opened_s: float | None = None
    waiting: int = 0
    _spans: dict[int, tuple[int, int]] = field(default_factory=dict)
    _parts: dict[int, list[RawRecords]] = field(default_factory=dict)

    def add(self, polled: RawRecords, *, now_s: float) -> None:
        """Add a poll; one without records still advances its partition's end.

        Raises:
            ValueError: the poll does not start where the partition's previous one ended.
        """
        start, end = self._spans.get(polled.partition, (polled.start, polled.start))
        if end != polled.start:
            raise ValueError(
                f"partition {polled.partition}: a poll from {polled.start} after one that ended at {end}"
            )
        self._spans[polled.partition] = (start, polled.end)
        if polled.offsets:
            self._parts.setdefault(polled.partition, []).append(polled)
        self.records += len(polled.offsets)
        self.waiting += len(polled.offsets)
        self.bytes += sum(map(len, filter(None, polled.values)))
        self.bytes += sum(map(len, filter(None, polled.keys)))
        if self.opened_s is None and polled.offsets:
            self.opened_s = now_s

    @property
    def held_bytes(self) -> int:
        """What its records take in memory, in bytes; of short ones more than their keys and values."""
        return self.bytes + RECORD_BYTES * self.records

    @property
    def room(self) -> int:
        """Number of further records that fit, if they are as large as those before."""
        left = max(0, self.records_max - self.records)
        if not self.bytes:
            return min(left, FIRST_POLL_RECORDS)
        return min(left, -(-max(0, self.bytes_max - self.bytes) * self.records // self.bytes))

    def wait_s(self, now_s: float) -> float | None:
        """Seconds until the batch must be closed: 0 if it must be now, None while it has no records."""
        if self.opened_s is None:
            return None
        if self.records >= self.records_max or self.bytes >= self.bytes_max:
            return 0.0
        return max(0.0, self.opened_s + self.latency_s_max - now_s)

    def ranges(self) -> tuple[OffsetRange, ...]:
        """Offset range per partition, from first to last position, omitting partitions that did not move."""
        return tuple(
            OffsetRange(partition=p, start=start, end=end)
            for p, (start, end) in sorted(self._spans.items())
            if end > start
        )

    def take(self) -> RawBatch:
        """The records added since the last call, by partition, in offset order; with all ranges so far."""
        parts = [part for _, held in sorted(self._parts.items()) for part in held]
        self._parts, self.waiting = {}, 0
        return RawBatch(
            partitions=_concatenated([p.partition] * len(p.offsets) for p in parts),
            offsets=_concatenated(p.offsets for p in parts),
            times_ms=_concatenated(p.times_ms for p in parts),
            keys=_concatenated(p.keys for p in parts),
            values=_concatenated(p.values for p in parts),
            ranges=self.ranges(),
        )


def _concatenated(parts: Iterable[Sequence[T]]) -> list[T]:
    whole: list[T] = []
    for part in parts:
        whole += part  # as a whole: hardly a nanosecond per record
    return whole


@dataclass(frozen=True, slots=True, kw_only=True)
class RawBatch:
    """Records of a batch: columns of equal length, and the offset ranges that they come from."""

    partitions: list[int]
    offsets: list[int]
    times_ms: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    ranges: tuple[OffsetRange, ...]

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def oldest_ms(self) -> int | None:
        """Time of the oldest record that has one, in milliseconds since the epoch."""
        oldest = min(self.times_ms, default=-1)
        return oldest if oldest >= 0 else min((t for t in self.times_ms if t >= 0), default=None)

    @staticmethod
    def joined(parts: Sequence[RawBatch]) -> RawBatch:
        """The records of parts of one batch, one after the other; the ranges are those of the last part."""
        if len(parts) == 1:
            return parts[0]
        return RawBatch(
            partitions=_concatenated(part.partitions for part in parts),
            offsets=_concatenated(part.offsets for part in parts),
            times_ms=_concatenated(part.times_ms for part in parts),
            keys=_concatenated(part.keys for part in parts),
            values=_concatenated(part.values for part in parts),
            ranges=parts[-1].ranges,
        )

    def part(self, start: int, end: int) -> RawBatch:
        """The records with indexes in [start, end); the ranges remain those of the whole batch."""
        if start == 0 and end == len(self):
            return self
        return RawBatch(
            partitions=self.partitions[start:end],
            offsets=self.offsets[start:end],
            times_ms=self.times_ms[start:end],
            keys=self.keys[start:end],
            values=self.values[start:end],
            ranges=self.ranges,
        )

    def halves(self) -> tuple[tuple[list[int], RawBatch], tuple[list[int], RawBatch]]:
        """The first half of each partition's records, and the rest; each with their indexes in this batch.

        The offset ranges are split where the rest begins. Records of one time are so in one half, wherever
        they are. Of two records or more, both halves have some.
        """
        left, before = {}, 0
        for partition, count in Counter(self.partitions).items():
            left[partition] = (before + count) // 2 - before // 2
            before += count
        first: list[int] = []
        rest: list[int] = []
        cuts: dict[int, int] = {}
        for i, partition in enumerate(self.partitions):
            if left[partition]:
                left[partition] -= 1
                first.append(i)
            else:
                cuts.setdefault(partition, self.offsets[i])
                rest.append(i)
        ranges = [replace(r, end=cuts.get(r.partition, r.end)) for r in self.ranges]
        others = [replace(r, start=cuts.get(r.partition, r.end)) for r in self.ranges]
        return (first, self._picked(first, ranges)), (rest, self._picked(rest, others))

    def _picked(self, indexes: Sequence[int], ranges: Iterable[OffsetRange]) -> RawBatch:
        return RawBatch(
            partitions=[self.partitions[i] for i in indexes],
            offsets=[self.offsets[i] for i in indexes],
            times_ms=[self.times_ms[i] for i in indexes],
            keys=[self.keys[i] for i in indexes],
            values=[self.values[i] for i in indexes],
            ranges=tuple(r for r in ranges if r.end > r.start),
        )
