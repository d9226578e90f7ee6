"""A batch of raw records in columns, and when it is cut. Nothing here looks into a record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tarn.core.offsets import OffsetRange


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRecords:
    """Records of one partition as they were polled: four columns of one length, and how far the read went.

    Attributes:
        partition: whose records.
        offsets: rising.
        times_ms: the records' Kafka timestamps; -1 where there is none.
        keys, values: as sent; None where there is none.
        start, end: the consumer's position before and after; records lie in [start, end), and offsets in it
            without a record are aborted, compacted or control records.
    """

    partition: int
    offsets: Sequence[int]
    times_ms: Sequence[int]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    start: int
    end: int

    def __post_init__(self) -> None:
        """Refuses columns that do not fit together: a source that breaks this would lose or double rows."""
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
    """Collects polls until a limit is reached. One per open batch.

    Attributes:
        records_max, bytes_max: limits on what is held; a poll may go over by itself, never by a second one.
        latency_s_max: limit on the age of the first record.
    """

    records_max: int
    bytes_max: int
    latency_s_max: float
    records: int = 0
    bytes: int = 0
    opened_s: float | None = None
    _parts: dict[int, list[RawRecords]] = field(default_factory=dict)

    def add(self, polled: RawRecords, *, now_s: float) -> None:
        """Takes what was polled; a part without records still moves its partition's end.

        Raises:
            ValueError: it does not start where the partition's last part ended.
        """
        held = self._parts.setdefault(polled.partition, [])
        if held and held[-1].end != polled.start:
            raise ValueError(
                f"partition {polled.partition}: a poll from {polled.start} "
                f"after one that ended at {held[-1].end}"
            )
        held.append(polled)
        self.records += len(polled.offsets)
        self.bytes += sum(len(v) for v in polled.values if v is not None)
        self.bytes += sum(len(k) for k in polled.keys if k is not None)
        if self.opened_s is None and polled.offsets:
            self.opened_s = now_s

    @property
    def room(self) -> int:
        """How many more records fit."""
        return max(0, self.records_max - self.records)

    def wait_s(self, now_s: float) -> float | None:
        """How long the batch may still stay open: 0 when it must be cut, None while it holds no record."""
        if self.opened_s is None:
            return None
        if self.records >= self.records_max or self.bytes >= self.bytes_max:
            return 0.0
        return max(0.0, self.opened_s + self.latency_s_max - now_s)

    def ranges(self) -> tuple[OffsetRange, ...]:
        """Per partition from the first position to the last; partitions that did not move are left out."""
        return tuple(
            OffsetRange(partition=p, start=parts[0].start, end=parts[-1].end)
            for p, parts in sorted(self._parts.items())
            if parts[-1].end > parts[0].start
        )

    def cut(self) -> RawBatch:
        """What was collected, partition after partition, in offset order."""
        parts = [part for _, held in sorted(self._parts.items()) for part in held if part.offsets]
        return RawBatch(
            partitions=[p.partition for p in parts for _ in p.offsets],
            offsets=[o for p in parts for o in p.offsets],
            times_ms=[t for p in parts for t in p.times_ms],
            keys=[k for p in parts for k in p.keys],
            values=[v for p in parts for v in p.values],
            ranges=self.ranges(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RawBatch:
    """A closed batch: columns of one length, and the ranges they came from."""

    partitions: list[int]
    offsets: list[int]
    times_ms: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    ranges: tuple[OffsetRange, ...]

    def __len__(self) -> int:
        return len(self.offsets)

    def part(self, start: int, end: int) -> RawBatch:
        """The records from index `start` to before `end`; the ranges stay those of the whole batch."""
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
