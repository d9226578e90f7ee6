"""The chain of offset ranges that makes ingestion exactly once (invariant I5).

A table's summary holds one map per stream: for every partition the next offset that is not in the table yet.
A batch carries half-open ranges. Judging a batch against the map of the very snapshot it builds on is the
whole fence against lost replies, late requests, twins and zombies: a range either starts where the map ends,
or is covered already, or the batch was cut from another view of the table and is made again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

import orjson

from tarn.core.errors import CorruptStateError, SourceChangedError

SUMMARY_PREFIX = "tarn.offsets."
TAG_PREFIX = "tarn-offsets-"
FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicIdentity:
    """What was read: offsets mean something only together with this.

    Attributes:
        cluster: the Kafka cluster's id.
        topic: the topic's name.
        topic_id: the id that a topic of the same name, made anew, does not have.
    """

    cluster: str
    topic: str
    topic_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """Half-open: `start` is in, `end` is not. Compacted and aborted offsets inside count as covered."""

    partition: int
    start: int
    end: int

    def __post_init__(self) -> None:
        """Refuses ranges that cannot exist."""
        if self.partition < 0 or not 0 <= self.start <= self.end:
            raise ValueError(f"not an offset range: partition {self.partition}, [{self.start}, {self.end})")


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetMap:
    """Where a stream stands in a table: per partition the next offset to read.

    Attributes:
        source: the topic that the offsets belong to.
        next: partition to next offset; a partition that was never committed is absent.
    """

    source: TopicIdentity
    next: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Freezes the mapping."""
        object.__setattr__(self, "next", MappingProxyType(dict(sorted(self.next.items()))))

    def advance(self, ranges: Iterable[OffsetRange]) -> OffsetMap:
        """The map after these ranges; partitions they do not name are carried forward.

        Raises:
            ValueError: a range does not start where the map ends. Judge first.
        """
        after = dict(self.next)
        for r in ranges:
            if after.get(r.partition, r.start) != r.start:
                raise ValueError(f"partition {r.partition}: [{r.start}, {r.end}) after {after[r.partition]}")
            after[r.partition] = r.end
        return OffsetMap(source=self.source, next=after)

    def to_json(self) -> str:
        """The compact form that stands in a snapshot summary."""
        return orjson.dumps(
            {
                "v": FORMAT,
                "cluster": self.source.cluster,
                "topic": self.source.topic,
                "topic-id": self.source.topic_id,
                "next": {str(p): o for p, o in self.next.items()},
            }
        ).decode()

    @staticmethod
    def from_json(text: str) -> OffsetMap:
        """Reads the form of `to_json`.

        Raises:
            CorruptStateError: it is not such a form.
        """
        try:
            value = orjson.loads(text)
            if value["v"] != FORMAT:
                raise ValueError(f"format {value['v']}, this version reads {FORMAT}")
            source = TopicIdentity(cluster=value["cluster"], topic=value["topic"], topic_id=value["topic-id"])
            after = {int(p): int(o) for p, o in value["next"].items()}
            if any(p < 0 or o < 0 for p, o in after.items()):
                raise ValueError("a negative partition or offset")
            return OffsetMap(source=source, next=after)
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise CorruptStateError(
                f"the offset map in the snapshot summary cannot be read ({e!r}): {text[:200]!r}; "
                "roll the table back to a snapshot with a whole map",
                value=text[:200],
            ) from e


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The batch continues the chain.

    Attributes:
        after: the map to commit with it.
    """

    after: OffsetMap


@dataclass(frozen=True, slots=True, kw_only=True)
class AlreadyDone:
    """Every range is in the table: an earlier attempt, or somebody else, committed it."""

    table: OffsetMap


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetMismatch:
    """The batch was cut from another view of the table: seek to the table's map and read again.

    Attributes:
        partition: of the first range that does not fit.
        expected: where the range starts.
        found: where the table ends; None if it does not know the partition (any more).
        kind: `gap` if rows would be lost, `overlap` if rows would be doubled.
    """

    partition: int
    expected: int
    found: int | None
    kind: Literal["gap", "overlap"]
    table: OffsetMap | None

    @property
    def reason(self) -> str:
        """For people."""
        ends = f"ends at {self.found}" if self.found is not None else "does not know the partition"
        return (
            f"partition {self.partition}: the batch starts at {self.expected}, the table {ends} ({self.kind})"
        )


Verdict = Ready | AlreadyDone | OffsetMismatch


def check_offsets(
    table: OffsetMap | None,
    source: TopicIdentity,
    ranges: tuple[OffsetRange, ...],
    *,
    fresh: frozenset[int] = frozenset(),
) -> Verdict:
    """Whether a batch may be committed on a base whose newest map is `table`.

    Args:
        table: the newest map among the base's ancestors.
        source: what the batch was read from.
        ranges: what was read.
        fresh: partitions that the table did not know when the batch's plan was made. Where they start was the
            planner's business (the start of the log). Any other partition must be in the map: one that is
            not there any more was taken back by a rollback, and its earlier rows with it.

    Raises:
        SourceChangedError: the map belongs to another topic or cluster; offsets cannot be compared.
        ValueError: two ranges of one partition.
    """
    if len({r.partition for r in ranges}) != len(ranges):
        raise ValueError(f"a batch holds at most one range per partition: {ranges}")
    if table is not None:
        require_same_source(table.source, source)
    known: Mapping[int, int] = table.next if table is not None else {}
    if table is not None and all(known.get(r.partition, -1) >= r.end for r in ranges):
        return AlreadyDone(table=table)
    for r in ranges:
        found = known.get(r.partition)
        if found == r.start or (found is None and r.partition in fresh):
            continue
        kind: Literal["gap", "overlap"] = "overlap" if found is not None and found > r.start else "gap"
        return OffsetMismatch(partition=r.partition, expected=r.start, found=found, kind=kind, table=table)
    return Ready(after=(table or OffsetMap(source=source)).advance(ranges))


def require_same_source(table: TopicIdentity, seen: TopicIdentity) -> None:
    """Returns if offsets of one can be compared with the other's.

    Raises:
        SourceChangedError: other cluster, topic or topic id.
    """
    if table == seen:
        return
    names = ("cluster", "topic", "topic_id")
    told = [
        f"{n} was {getattr(table, n)!r}, is {getattr(seen, n)!r}"
        for n in names
        if getattr(table, n) != getattr(seen, n)
    ]
    raise SourceChangedError(
        f"the source of the stream changed: {'; '.join(told)}; the table's offsets mean nothing in it. "
        "Give the ingestor a new metadata.name (a new stream) or a new table",
        table=str(table),
        seen=str(seen),
    )


def next_or_start(table: OffsetMap | None, log_starts: Mapping[int, int]) -> dict[int, int]:
    """Where to read on: the table's map, and the start of the log for partitions that it does not know."""
    known: Mapping[int, int] = table.next if table is not None else {}
    return {p: known.get(p, start) for p, start in sorted(log_starts.items())}
