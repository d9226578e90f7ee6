"""Reading an ingested table as a queue: a reader's position, and which offsets it reads next. Pure.

A position is an offset map, not a snapshot (invariant I13): the rows of the current snapshot that lie between
the position and the table's own offset map are those that the reader has not had, however often their files
were merged, rewritten or moved meanwhile, and however much of the history is gone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

import orjson

from tarn.core import versioned_json
from tarn.core.errors import CorruptStateError, InvalidError, ReaderPlaceError
from tarn.core.offsets import SUMMARY_PREFIX, TAG_PREFIX, OffsetMap, TopicIdentity
from tarn.core.table_state import TableState, marker_property

FORMAT = 1
FOLDER = "readers"
"""Folder below a table's location that holds the positions of its groups."""
_GROUP = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_KEY = re.compile(rf"warehouse/[^/]+(?:/(?!data/|metadata/)[^/]+)+/{FOLDER}/[^/]+\.json")

Place: TypeAlias = tuple[str, int]
"""Topic and partition."""
Range: TypeAlias = tuple[int, int]
"""Half-open range of offsets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A snapshot of which nothing is left to read.

    Attributes:
        snapshot_id: id of the snapshot.
        sequence: its sequence number.
    """

    snapshot_id: int
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderPosition:
    """Everything that a reader has had of a table.

    Attributes:
        table: UUID of the table.
        topics: topic to the next offset per partition; offset 0 where a topic or partition is missing.
        seen: the last snapshot of which nothing was left to read; None if unknown.
    """

    table: str
    topics: Mapping[str, OffsetMap] = field(default_factory=dict)
    seen: Seen | None = None

    def __post_init__(self) -> None:
        """Freeze the mapping."""
        object.__setattr__(self, "topics", MappingProxyType(dict(sorted(self.topics.items()))))

    def to_json(self) -> str:
        """Compact JSON, for whoever keeps the position with the results."""
        topics = [orjson.loads(offsets.to_json()) for offsets in self.topics.values()]
        seen = None if self.seen is None else [self.seen.snapshot_id, self.seen.sequence]
        value = {"v": FORMAT, "table": self.table, "seen": seen, "topics": topics}
        return orjson.dumps(value).decode()

    @staticmethod
    def from_json(text: str | bytes) -> ReaderPosition:
        """Parse the result of `to_json`.

        Raises:
            CorruptStateError: the text is not of this form.
        """
        try:
            value = versioned_json.read(text, FORMAT)
            maps = [OffsetMap.from_json(orjson.dumps(topic).decode()) for topic in value["topics"]]
            seen = None
            if value["seen"] is not None:
                snapshot_id, sequence = value["seen"]
                seen = Seen(snapshot_id=int(snapshot_id), sequence=int(sequence))
            return ReaderPosition(
                table=str(value["table"]),
                topics={offsets.source.topic: offsets for offsets in maps},
                seen=seen,
            )
        except (ValueError, KeyError, TypeError, AttributeError, CorruptStateError) as e:
            shown = str(text[:200])
            raise CorruptStateError(
                f"this is not the position of a reader ({e}): {shown}; give one that a batch had, or another "
                "start",
                value=shown,
            ) from e

    @property
    def next(self) -> dict[Place, int]:
        """Place to the next offset."""
        return {(name, p): offset for name, topic in self.topics.items() for p, offset in topic.next.items()}


def newer_than(position: ReaderPosition, state: TableState) -> int | None:
    """Sequence number up to which the table's files have no row that the reader has not had; None if unknown.

    That is the one of the snapshot that was seen last, if it is in the history of the current one. Otherwise
    the table may have gone back to rows that the snapshot did not have, in files that are older.
    """
    seen = position.seen
    return seen.sequence if seen is not None and state.is_ancestor(seen.snapshot_id) else None


def check_group(name: str) -> str:
    """Validate the name of a group and return it.

    Raises:
        InvalidError: it cannot be part of an object key.
    """
    if _GROUP.fullmatch(name) is None:
        raise InvalidError(
            f"Invalid group {name[:120]!r}: use 1 to 100 letters, digits, '.', '_' or '-', a letter or digit "
            "first",
            group=name,
        )
    return name


def is_reader_key(key: str) -> bool:
    """Whether the object key is that of a group's position."""
    return _KEY.fullmatch(key) is not None


def ends_in(state: TableState, *, table: str) -> dict[str, OffsetMap]:
    """The offset maps of a table's current snapshot, by topic.

    Two streams of one topic (an ingestor that began under a new name, without what lay between) are one map.

    Raises:
        InvalidError: no ingestor has committed to the table, or two topics of one name did: their rows cannot
            be distinguished.
        CorruptStateError: the map is unreadable, or it existed and was lost.
    """
    streams = streams_of(state)
    if not streams:
        raise InvalidError(
            f"no ingestor has written table {table}, so that it has no offsets to read by; subscribe to a "
            "table of an ingestor, once that has committed for the first time",
            table=table,
        )
    ends: dict[str, OffsetMap] = {}
    for stream in streams:
        text = state.newest(SUMMARY_PREFIX + stream, tag=TAG_PREFIX + stream)
        if text is None:
            continue
        found = OffsetMap.from_json(text)
        if not found.next:
            # It has no rows any more: the table was emptied.
            continue
        known = ends.get(found.source.topic)
        if known is not None and known.source != found.source:
            raise InvalidError(
                f"table {table} has rows of two topics named {found.source.topic} (ids "
                f"{known.source.topic_id} and {found.source.topic_id}), which cannot be distinguished; read "
                "it by a query",
                table=table,
            )
        ends[found.source.topic] = _joined(known or found, found)
    return ends


def streams_of(state: TableState) -> list[str]:
    """Names of the streams that ever wrote the table, sorted."""
    suffix = marker_property("")
    marked = {
        key[len(SUMMARY_PREFIX) : -len(suffix)]
        for key in state.properties
        if key.startswith(SUMMARY_PREFIX) and key.endswith(suffix)
    }
    return sorted(marked | {n[len(TAG_PREFIX) :] for n in state.refs if n.startswith(TAG_PREFIX)})


def _joined(one: OffsetMap, other: OffsetMap) -> OffsetMap:
    """Of each partition the later offset; readers of the table need no epochs."""
    partitions = one.next.keys() | other.next.keys()
    after = {p: max(one.next.get(p, 0), other.next.get(p, 0)) for p in partitions}
    return OffsetMap(source=one.source, next=after)


def check_place(
    position: ReaderPosition, ends: Mapping[str, OffsetMap], *, uuid: str, table: str
) -> dict[Place, Range]:
    """Offsets that the reader has not had, by place; places without any are left out.

    Args:
        position: position of the reader.
        ends: offset maps of the table.
        uuid: UUID of the table.
        table: name of the table, for messages.

    Raises:
        ReaderPlaceError: the table does not have this place: it was recreated or rolled back, or a topic was.
    """
    if position.table != uuid:
        raise ReaderPlaceError(
            f"table {table} was recreated: the position is one of table {position.table}, this is {uuid}. "
            "Subscribe again without that position: every row of the new table is new",
            table=table,
        )
    behind = []
    for name, topic in position.topics.items():
        end = ends.get(name)
        if end is not None and end.source != topic.source:
            raise ReaderPlaceError(
                f"topic {name} was recreated: the position in table {table} is one of {_id(topic.source)}, "
                f"its rows are now of {_id(end.source)}. Subscribe with another position",
                table=table,
            )
        for partition, offset in topic.next.items():
            found = end.next.get(partition, 0) if end is not None else 0
            if found < offset:
                behind.append(f"{name}/{partition} was read up to {offset}, the table ends at {found}")
    if behind:
        raise ReaderPlaceError(
            f"table {table} was rolled back behind this reader: {'; '.join(behind[:5])}. If ingest fills it "
            "again, read on once it has; otherwise subscribe with another position",
            table=table,
        )
    had = position.next
    return {
        (name, partition): (had.get((name, partition), 0), end)
        for name, offsets in ends.items()
        for partition, end in offsets.next.items()
        if had.get((name, partition), 0) < end
    }


def _id(source: TopicIdentity) -> str:
    return f"{source.topic_id} in cluster {source.cluster}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSpans:
    """Which offsets a data file may hold.

    Attributes:
        path: location of the file.
        records: number of its rows.
        spans: place to (first, last) offset; both inclusive.
    """

    path: str
    records: int
    spans: Mapping[Place, tuple[int, int]]

    def first(self, place: Place, wanted: Range) -> int | None:
        """The first offset of the range that the file may hold; None if it holds none."""
        span = self.spans.get(place)
        if span is None or span[0] >= wanted[1] or span[1] < wanted[0]:
            return None
        return max(span[0], wanted[0])

    def within(self, wanted: Mapping[Place, Range]) -> bool:
        """Whether the file may hold any of the offsets."""
        return any(place in wanted and self.first(place, wanted[place]) is not None for place in self.spans)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What a reader reads at once.

    Attributes:
        ranges: place to offsets.
        files: files that may hold rows of them; none if the offsets have no rows.
    """

    ranges: Mapping[Place, Range]
    files: Sequence[FileSpans] = ()


def next_window(
    open_: Mapping[Place, Range], files: Iterable[FileSpans], *, rows_max: int, files_max: int
) -> Window:
    """The next offsets to read: of whole files if possible, so that each file is read once.

    No file outside the window holds any of its offsets, and at most `rows_max` rows are in it (or one per
    place). It has more than `files_max` files only if that many hold the same offsets.

    Args:
        open_: offsets that the reader has not had, by place.
        files: files that may hold rows of them.
        rows_max: maximum number of rows.
        files_max: maximum number of files.
    """
    order = sorted(
        (file for file in files if file.within(open_)), key=lambda file: (_distance(file, open_), file.path)
    )
    if not order:
        return Window(ranges=dict(open_))
    count = rows = 0
    for file in order[:files_max]:
        if count and rows + file.records > rows_max:
            break
        count, rows = count + 1, rows + file.records
    ranges = _before(open_, order[count:])
    while not ranges:
        count = min(len(order), 2 * count)
        ranges = _before(open_, order[count:])
    taken = [file for file in order[:count] if file.within(ranges)]
    if sum(file.records for file in taken) > rows_max:
        ranges = _narrowed(ranges, taken, rows_max)
        taken = [file for file in taken if file.within(ranges)]
    return Window(ranges=ranges, files=taken)


def _distance(file: FileSpans, open_: Mapping[Place, Range]) -> int:
    """How far ahead of the reader the file begins, in offsets."""
    starts = ((place, file.first(place, open_[place])) for place in file.spans if place in open_)
    return min(first - open_[place][0] for place, first in starts if first is not None)


def _before(open_: Mapping[Place, Range], later: Sequence[FileSpans]) -> dict[Place, Range]:
    """The part of the offsets that lies before all that the later files hold."""
    ends = {place: end for place, (_, end) in open_.items()}
    for file in later:
        for place in file.spans:
            first = file.first(place, open_[place]) if place in open_ else None
            if first is not None:
                ends[place] = min(ends[place], first)
    return {place: (start, ends[place]) for place, (start, _) in open_.items() if start < ends[place]}


def _narrowed(ranges: Mapping[Place, Range], files: Sequence[FileSpans], rows_max: int) -> dict[Place, Range]:
    """The ranges cut so that they have at most `rows_max` offsets from the first row of each place on."""
    firsts: dict[Place, int] = {}
    for file in files:
        for place in file.spans:
            first = file.first(place, ranges[place]) if place in ranges else None
            if first is not None:
                firsts[place] = min(first, firsts.get(place, first))
    width = max(1, rows_max // max(1, len(firsts)))
    return {
        place: (start, min(end, firsts[place] + width) if place in firsts else end)
        for place, (start, end) in ranges.items()
    }


def advanced(
    position: ReaderPosition,
    ranges: Mapping[Place, Range],
    ends: Mapping[str, OffsetMap],
    *,
    seen: Seen | None,
) -> ReaderPosition:
    """The position after these offsets were read.

    Args:
        position: position before.
        ranges: offsets that were read.
        ends: offset maps of the table.
        seen: the snapshot, if nothing is left to read of it; None to leave what was seen as it was.
    """
    after = position.next | {place: end for place, (_, end) in ranges.items()}
    topics = {
        name: OffsetMap(
            source=offsets.source, next={p: offset for (topic, p), offset in after.items() if topic == name}
        )
        for name, offsets in ends.items()
    }
    return ReaderPosition(table=position.table, topics=topics, seen=position.seen if seen is None else seen)
