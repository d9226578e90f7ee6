"""The chain of offset ranges that makes ingestion exactly-once (invariant I5).

A table's snapshot summary has one offset map per stream: for every partition the next offset that is not in
the table yet. A batch has half-open ranges. Checking a batch against the map of the snapshot that it builds
on is the only fence, and a sufficient one, against lost responses, late requests, duplicate ingestors and
zombies: a range either starts where the map ends, or is covered already, or the batch was read from an
outdated view of the table and is read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import orjson

from tarn.core import versioned_json
from tarn.core.errors import CorruptStateError, SourceChangedError
from tarn.core.outcome import AlreadyCommitted, Rejected

SUMMARY_PREFIX = "tarn.offsets."
TAG_PREFIX = "tarn-offsets-"
RESTATED_PREFIX = "tarn.restated."
"""Of a map that a commit of another stream repeats: the sequence number from which on it holds."""
FORMAT = 1
FORMAT_OF_LISTS = 2
"""Format of a map of more than `PAIRS_MAX` partitions; earlier versions of Tarn read the first one alone."""
PAIRS_MAX = 16
"""Partitions of a map that is written as pairs of partition and offset, each by its name."""
OFFSET_MAX = 2**63 - 1
TRACE_COLUMN = "_tarn"
"""Column of an ingested row that names its message: source, partition, offset and time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicIdentity:
    """Identity of a topic; offsets are meaningful only together with it.

    Attributes:
        cluster: Kafka cluster id.
        topic: topic name.
        topic_id: topic id; a topic recreated under the same name has another.
    """

    cluster: str
    topic: str
    topic_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """Half-open range of offsets; compacted and aborted offsets inside count as covered."""

    partition: int
    start: int
    end: int

    def __post_init__(self) -> None:
        """Reject impossible ranges."""
        if self.partition < 0 or not 0 <= self.start <= self.end:
            raise ValueError(f"not an offset range: partition {self.partition}, [{self.start}, {self.end})")


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetMap:
    """Committed offsets of a stream in a table: per partition the next offset to read.

    Attributes:
        source: topic that the offsets belong to.
        next: partition to next offset; a partition without commits is absent.
        epochs: partition to a leader epoch of Kafka: none of the records before the offset has a later one,
            and it was the leader's when they were read, or an earlier one. A partition is absent if it is
            unknown. Maps with the same offsets are equal, whatever their epochs are.
    """

    source: TopicIdentity
    next: Mapping[int, int] = field(default_factory=dict)
    epochs: Mapping[int, int] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        """Freeze the mappings."""
        object.__setattr__(self, "next", MappingProxyType(dict(sorted(self.next.items()))))
        epochs = {p: self.epochs[p] for p in self.next if p in self.epochs}
        object.__setattr__(self, "epochs", MappingProxyType(epochs))

    def advance(self, ranges: Iterable[OffsetRange], epochs: Mapping[int, int] | None = None) -> OffsetMap:
        """The map after these ranges; other partitions are carried forward.

        Args:
            ranges: offset ranges, at most one per partition.
            epochs: partition to the leader epoch of its range; see `OffsetMap`.

        Raises:
            ValueError: a range does not start where the map ends; call `check_offsets` first.
        """
        after = dict(self.next)
        for r in ranges:
            if after.get(r.partition, r.start) != r.start:
                raise ValueError(f"partition {r.partition}: [{r.start}, {r.end}) after {after[r.partition]}")
            after[r.partition] = r.end
        moved = {r.partition for r in ranges}
        kept = {p: epoch for p, epoch in self.epochs.items() if p not in moved}
        known = {p: epoch for p, epoch in (epochs or {}).items() if p in moved}
        return OffsetMap(source=self.source, next=after, epochs=kept | known)

    def to_json(self) -> str:
        """Compact JSON, as stored in a snapshot summary.

        Each snapshot has the whole map, so that of many partitions is written in less than half the bytes:
        `next` are then lists, each of a partition, its offset, and the offsets of the partitions after it.
        `epochs`, which earlier versions pass over, has the same form; it is one number if all partitions have
        that epoch, as after each start of a broker, and absent if none is known.
        """
        pairs = len(self.next) <= PAIRS_MAX
        value: dict[str, Any] = {
            "v": FORMAT if pairs else FORMAT_OF_LISTS,
            "cluster": self.source.cluster,
            "topic": self.source.topic,
            "topic-id": self.source.topic_id,
            "next": _to_json(self.next, pairs=pairs),
        }
        if self.epochs:
            one = set(self.epochs.values()) if len(self.epochs) == len(self.next) else set()
            value["epochs"] = one.pop() if len(one) == 1 else _to_json(self.epochs, pairs=pairs)
        return orjson.dumps(value).decode()

    @staticmethod
    def from_json(text: str) -> OffsetMap:
        """Parse the result of `to_json`.

        Raises:
            CorruptStateError: the text is not of this form.
        """
        try:
            value = versioned_json.read(text, FORMAT, FORMAT_OF_LISTS)
            source = TopicIdentity(cluster=value["cluster"], topic=value["topic"], topic_id=value["topic-id"])
            after = _of_json(value["next"], pairs=value["v"] == FORMAT)
            epochs = value.get("epochs", {} if value["v"] == FORMAT else [])
            known = (
                dict.fromkeys(after, epochs)
                if isinstance(epochs, int)
                else _of_json(epochs, pairs=value["v"] == FORMAT)
            )
            if not all(0 <= n <= OFFSET_MAX for n in (*after, *after.values(), *known, *known.values())):
                raise ValueError(f"a partition, offset or epoch is negative or above {OFFSET_MAX}")
            if not all(isinstance(part, str) for part in (source.cluster, source.topic, source.topic_id)):
                raise TypeError("cluster, topic and topic-id are texts")
            return OffsetMap(source=source, next=after, epochs=known)
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise CorruptStateError(
                f"the offset map in the snapshot summary cannot be read ({e!r}): {text[:200]!r}; "
                "roll the table back to a snapshot with a whole map",
                value=text[:200],
            ) from e


def _to_json(numbers: Mapping[int, int], *, pairs: bool) -> Any:
    """Numbers by partition, as an object of pairs or as lists."""
    return {str(p): n for p, n in numbers.items()} if pairs else _to_lists(numbers)


def _of_json(value: Any, *, pairs: bool) -> dict[int, int]:
    """What `_to_json` wrote.

    Raises:
        ValueError, TypeError, AttributeError: it is not of that form.
    """
    return {int(p): int(n) for p, n in (value.items() if pairs else _of_lists(value))}


def _to_lists(offsets: Mapping[int, int]) -> list[list[int]]:
    """Offsets by partition, in order, as lists: a partition, its offset, those of the next ones."""
    lists: list[list[int]] = []
    for partition, offset in offsets.items():
        if lists and partition == lists[-1][0] + len(lists[-1]) - 1:
            lists[-1].append(offset)
        else:
            lists.append([partition, offset])
    return lists


def _of_lists(lists: Any) -> list[tuple[int, int]]:
    """The pairs of partition and offset that `_to_lists` wrote.

    Raises:
        ValueError, TypeError: the lists are not of that form.
    """
    if not isinstance(lists, list):
        raise TypeError("next is a list in this format")
    pairs = [(first + n, offset) for first, *offsets in lists for n, offset in enumerate(offsets)]
    if len({partition for partition, _ in pairs}) < len(pairs):
        raise ValueError("a partition has two offsets")
    return pairs


def check_offsets(
    table: OffsetMap | None,
    source: TopicIdentity,
    ranges: tuple[OffsetRange, ...],
    *,
    fresh: frozenset[int] = frozenset(),
    epochs: Mapping[int, int] | None = None,
) -> OffsetMap | AlreadyCommitted | Rejected:
    """Check whether a batch may be committed on a base whose newest offset map is `table`.

    Args:
        table: newest offset map among the base's ancestors.
        source: identity of the topic that the batch was read from.
        ranges: offset ranges of the batch.
        fresh: partitions that were missing from the table's map at planning time; the plan chose their start
            (the log start). Any other partition must be in the map: if it is missing now, a rollback removed
            it together with its earlier rows.
        epochs: partition to the leader epoch of its range; see `OffsetMap`.

    Returns:
        The offset map to commit with the batch; `AlreadyCommitted` if every range is in the table, by an
        earlier attempt or another writer; `Rejected` if the batch was read from an outdated view of the
        table: a gap would lose rows, an overlap would duplicate them.

    Raises:
        SourceChangedError: the map belongs to another topic or cluster; offsets are not comparable.
        ValueError: two ranges have the same partition.
    """
    if len({r.partition for r in ranges}) != len(ranges):
        raise ValueError(f"a batch holds at most one range per partition: {ranges}")
    if table is not None:
        require_same_source(table.source, source)
    known: Mapping[int, int] = table.next if table is not None else {}
    if table is not None and all(known.get(r.partition, -1) >= r.end for r in ranges):
        return AlreadyCommitted()
    for r in ranges:
        found = known.get(r.partition)
        if found == r.start or (found is None and r.partition in fresh):
            continue
        kind = "overlap" if found is not None and found > r.start else "gap"
        ends = f"ends at {found}" if found is not None else "does not know the partition"
        return Rejected(
            reason=f"partition {r.partition}: the batch starts at {r.start}, the table {ends} ({kind})"
        )
    return (table or OffsetMap(source=source)).advance(ranges, epochs)


def require_same_source(table: TopicIdentity, seen: TopicIdentity) -> None:
    """Require that the offsets of the two topics are comparable.

    Raises:
        SourceChangedError: cluster, topic or topic id differ.
    """
    if table == seen:
        return
    names = ("cluster", "topic", "topic_id")
    changes = [
        f"{n} was {getattr(table, n)!r}, is {getattr(seen, n)!r}"
        for n in names
        if getattr(table, n) != getattr(seen, n)
    ]
    raise SourceChangedError(
        f"the source of the stream changed: {'; '.join(changes)}; the table's offsets mean nothing in it. "
        "Give the ingestor a new metadata.name (a new stream) or a new table",
        table=str(table),
        seen=str(seen),
    )


def next_or_start(table: OffsetMap | None, log_starts: Mapping[int, int]) -> dict[int, int]:
    """Start offsets: the table's offset map, or the log start for partitions it lacks."""
    known: Mapping[int, int] = table.next if table is not None else {}
    return {p: known.get(p, start) for p, start in sorted(log_starts.items())}
