"""The stream position that a table has reached, in Kafka offsets (invariant I13).

Ingest writes its offset map into the snapshot summary of bronze. Silver and gold write, in the same commit as
their rows, the offset map that they are complete up to. Maintenance snapshots carry no map and are skipped:
the newest ancestor that carries one is authoritative.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

PROPERTY = "tarn.position"
FORMAT = 1
REPLACE = "replace"
"""Iceberg's operation of a commit that puts the same rows into other files."""
FORMAT_OF_LISTS = 2
"""Format of ingest's offset map of many partitions: lists of a partition, its offset, and those after it."""


class PositionError(Exception):
    """Contradicting offsets: continuing would lose or duplicate rows. The message names the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The parts of a snapshot that positions need.

    Attributes:
        id: the snapshot id.
        parent: the parent snapshot id, or None.
        value: the requested entry of the summary, or None.
        current: whether the main branch points at it.
        tagged: whether the tag that moves with the entry's commits points at it.
        at_us: commit time, microseconds since the epoch.
        delete_files: the number of delete files of the table at this snapshot.
        operation: what the commit did, as Iceberg names it; None: not known.
    """

    id: int
    parent: int | None
    value: str | None
    current: bool
    tagged: bool = False
    at_us: int = 0
    delete_files: int = 0
    operation: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A point in a stream.

    Attributes:
        source: identity of the stream: cluster, topic, topic id, and the location of bronze, sorted by name.
        next: (partition, next offset to process) pairs, sorted.
        made_from: the snapshot of the table that the rows were made from; None: not known.
    """

    source: tuple[tuple[str, str], ...]
    next: tuple[tuple[int, int], ...]
    made_from: int | None = None

    def offset(self, partition: int) -> int:
        """Return the next offset of a partition; 0 for an unknown one."""
        return dict(self.next).get(partition, 0)

    def covers(self, other: Position) -> bool:
        """Return whether this position includes everything up to `other`."""
        return all(self.offset(p) >= end for p, end in other.next)

    def continues(self, other: Position) -> bool:
        """Return whether this is a position of the same stream, at `other` or after it."""
        return self.source == other.source and self.covers(other)

    def since(self, done: Position | None) -> int:
        """Return the number of offsets from an earlier position of the stream, or its begin, to this one."""
        return sum(end - (done.offset(p) if done is not None else 0) for p, end in self.next)

    def to_json(self) -> str:
        """Return the JSON stored in a snapshot summary: `v`, `source`, `next`, and `made-from` if known."""
        value: dict[str, object] = {
            "v": FORMAT,
            "source": dict(self.source),
            "next": {str(p): o for p, o in self.next},
        }
        if self.made_from is not None:
            value["made-from"] = str(self.made_from)
        return json.dumps(value, separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> Position:
        """Parse the result of `to_json`.

        Raises:
            PositionError: the text is not in this format.
        """
        value = _parse(text)
        return _position(text, value.get("source"), value.get("next"), value.get("made-from"))

    @staticmethod
    def from_offsets(text: str, *, location: str) -> Position:
        """Return the position of ingest's offset map.

        Args:
            text: `tarn.offsets.<stream>` of a snapshot of the table.
            location: the table's location; a table of the same name elsewhere is another source.

        Raises:
            PositionError: this version cannot read the map.
        """
        value = _parse(text, FORMAT_OF_LISTS)
        source = {n: value.get(n) for n in ("cluster", "topic", "topic-id")}
        after = value.get("next")
        if value["v"] == FORMAT_OF_LISTS:
            after = _of_lists(text, after)
        return _position(text, {**source, "table": location}, after)


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A half-open range of offsets in every partition.

    Attributes:
        bounds: (partition, first offset, end offset) triples; the end offset is exclusive.
        after: the position once the range is processed.
    """

    bounds: tuple[tuple[int, int, int], ...]
    after: Position

    @property
    def offsets(self) -> int:
        """The number of offsets; gaps and dead-lettered records make the number of rows smaller."""
        return sum(end - start for _, start, end in self.bounds)

    def condition(self, trace: str = "_tarn") -> str:
        """Return the range's rows as a SQL condition that Iceberg can prune by column bounds.

        Rows of another source have partitions and offsets of their own, which begin at 0 too.
        """
        parts = [
            f"({trace}.partition = {p} AND {trace}.offset >= {start} AND {trace}.offset < {end})"
            for p, start, end in self.bounds
        ]
        if not parts:
            return "false"
        topic = dict(self.after.source)["topic"].replace("\\", "\\\\").replace("'", "\\'")
        return f"{trace}.source = '{topic}' AND ({' OR '.join(parts)})"


def newest(snapshots: Iterable[Snapshot]) -> tuple[Snapshot | None, str | None]:
    """Return the current snapshot, and the value of its nearest ancestor (or itself) that carries one.

    Where the history was expired before such an ancestor, falls back to the tagged snapshot, if it is older
    than all known ancestors: ingest moves the tag with each of its commits, so it is the last one.

    Raises:
        PositionError: the history is incomplete and no tag carries a value, or a snapshot is its own
            ancestor: the table may hold rows that would be processed twice.
    """
    by_id: dict[int, Snapshot] = {}
    head: Snapshot | None = None
    for s in snapshots:
        by_id[s.id] = s
        head = s if s.current else head
    at, seen = head, set[int]()
    while at is not None:
        if at.value is not None:
            return head, at.value
        if at.id in seen:
            raise PositionError(
                f"no position from the current snapshot {head.id if head else None} back to {at.id}, which "
                "is its own ancestor: the history is damaged. Roll the table back to a snapshot that has a "
                "position, or drop it: it is made again"
            )
        seen.add(at.id)
        if at.parent is None:
            break
        if at.parent not in by_id:
            for tagged in by_id.values():
                if tagged.tagged and tagged.value is not None and tagged.at_us < at.at_us:
                    return head, tagged.value
            raise PositionError(
                f"no position from the current snapshot {head.id if head else None} back to {at.id}, and "
                f"what came before is gone from the history ({len(by_id)} snapshots are left); who else "
                "commits to this table? Roll it back to one that has a position, or drop it: it is made again"
            )
        at = by_id[at.parent]
    return head, None


def is_changed(snapshots: Iterable[Snapshot]) -> bool:
    """Return whether commits after the one whose value `newest` returns may have changed rows.

    All may have, except those that only put the rows into other files.
    """
    by_id = {s.id: s for s in snapshots}
    at, seen = next((s for s in by_id.values() if s.current), None), set[int]()
    while at is not None and at.value is None and at.id not in seen:
        if at.operation != REPLACE:
            return True
        seen.add(at.id)
        at = by_id.get(at.parent) if at.parent is not None else None
    return False


def is_followed(snapshots: Iterable[Snapshot], *, after: int, until: int) -> bool:
    """Return whether the commits after one snapshot up to another are known, and none left delete files.

    Args:
        snapshots: the snapshots of a table.
        after: the earlier snapshot.
        until: the later one; false if it is no descendant of `after`.
    """
    line = _line(snapshots, after=after, until=until)
    return line is not None and all(s.delete_files == 0 for s in line)


def descends(snapshots: Iterable[Snapshot], *, after: int, until: int) -> bool:
    """Return whether a snapshot is another one or its known descendant; arguments as for `is_followed`."""
    return _line(snapshots, after=after, until=until) is not None


def _line(snapshots: Iterable[Snapshot], *, after: int, until: int) -> list[Snapshot] | None:
    """Return the snapshots from `until` back to `after`, both included; None if they are not in one line.

    Each once: a damaged table may have one that is its own ancestor.
    """
    by_id = {s.id: s for s in snapshots}
    at, line, seen = by_id.get(until), list[Snapshot](), set[int]()
    while at is not None and at.id not in seen:
        seen.add(at.id)
        line.append(at)
        if at.id == after:
            return line
        at = by_id.get(at.parent) if at.parent is not None else None
    return None


def next_range(done: Position | None, available: Position, *, offsets_max: int) -> Range | None:
    """Return the next range to read, shared among partitions by their backlog; None if there is none.

    Args:
        done: the position already processed; None for nothing.
        available: the position that can be read up to.
        offsets_max: the approximate maximum number of offsets; a partition with a backlog gets at least one.

    Raises:
        PositionError: the two belong to different streams, or processed offsets no longer exist.
    """
    if done is not None:
        require_same_stream(done, available)
    bounds = []
    left = {p: (done.offset(p) if done is not None else 0, end) for p, end in available.next}
    total = sum(end - start for start, end in left.values())
    if total == 0:
        return None
    for p, (start, end) in sorted(left.items()):
        share = max(1, (end - start) * offsets_max // total)
        cut = end if total <= offsets_max else min(end, start + share)
        if cut > start:
            bounds.append((p, start, cut))
    known = dict(done.next) if done is not None else {}
    after = Position(
        source=available.source, next=tuple(sorted({**known, **{p: end for p, _, end in bounds}}.items()))
    )
    return Range(bounds=tuple(bounds), after=after)


def require_same_stream(done: Position, available: Position) -> None:
    """Require that `available` continues `done`.

    Raises:
        PositionError: the cluster, topic or table differs, or offsets went back.
    """
    was, found = dict(done.source), dict(available.source)
    changed = [
        f"{n} was {was.get(n)!r}, is {found.get(n)!r}"
        for n in sorted({*was, *found})
        if was.get(n) != found.get(n)
    ]
    if changed:
        raise PositionError(
            f"bronze is not the one that silver was made from: {'; '.join(changed)}; drop the silver and "
            "gold tables to make them again from what is there"
        )
    for p, end in done.next:
        if available.offset(p) < end:
            raise PositionError(
                f"bronze went back: partition {p} ends at {available.offset(p)}, silver has read up to "
                f"{end}; was bronze rolled back? Drop the silver and gold tables to make them again"
            )


def _parse(text: str, *more: int) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict) or value.get("v") not in (FORMAT, *more):
        raise PositionError(
            f"offsets in a snapshot summary are not of format {' or '.join(map(str, (FORMAT, *more)))}, "
            f"which this version reads: {text[:200]!r}"
        )
    return value


def _of_lists(text: str, lists: Any) -> dict[int, int]:
    try:
        if not isinstance(lists, list):
            raise TypeError("next is a list in this format")
        return {first + n: offset for first, *offsets in lists for n, offset in enumerate(offsets)}
    except (TypeError, ValueError) as e:
        raise PositionError(f"offsets in a snapshot summary cannot be read ({e}): {text[:200]!r}") from e


def _position(text: str, source: object, after: object, made_from: object = None) -> Position:
    try:
        if not isinstance(source, Mapping) or not isinstance(after, Mapping):
            raise TypeError("source and next are objects")
        return Position(
            source=tuple(sorted((str(k), str(v)) for k, v in source.items())),
            next=tuple(sorted((int(p), int(o)) for p, o in after.items())),
            made_from=None if made_from is None else int(str(made_from)),
        )
    except (TypeError, ValueError) as e:
        raise PositionError(f"offsets in a snapshot summary cannot be read ({e}): {text[:200]!r}") from e
