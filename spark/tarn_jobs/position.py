"""How far a table has come, in offsets of the stream that feeds the lake (invariant I13).

Ingest writes its offset map into the snapshot summary of bronze. Silver and gold write, with the very commit
that changes them, the map up to which they hold everything. Snapshots of maintenance in between carry no map
and do not matter: the newest ancestor that carries one counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

PROPERTY = "tarn.position"
FORMAT = 1


class PositionError(Exception):
    """Offsets that contradict each other: going on would lose or double rows. The message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What is needed of a snapshot.

    Attributes:
        id: its id.
        parent: the id of the one before, or None.
        value: the summary's entry that was asked for, or None.
        current: whether the table's main branch points at it.
        tagged: whether the tag that moves with the entry's commits points at it.
        at_us: when it was committed, microseconds since 1970.
    """

    id: int
    parent: int | None
    value: str | None
    current: bool
    tagged: bool = False
    at_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A point in a stream.

    Attributes:
        source: what the offsets belong to: cluster, topic, topic id, and the location of bronze.
        next: per partition the next offset that is not in yet.
    """

    source: tuple[tuple[str, str], ...]
    next: tuple[tuple[int, int], ...]

    def offset(self, partition: int) -> int:
        """The next offset of a partition; 0 for one that was never seen."""
        return dict(self.next).get(partition, 0)

    def covers(self, other: Position) -> bool:
        """Whether everything up to `other` is in."""
        return all(self.offset(p) >= end for p, end in other.next)

    def to_json(self) -> str:
        """The form kept in a snapshot summary."""
        return json.dumps(
            {"v": FORMAT, "source": dict(self.source), "next": {str(p): o for p, o in self.next}},
            separators=(",", ":"),
        )

    @staticmethod
    def from_json(text: str) -> Position:
        """Reads the form of `to_json`.

        Raises:
            PositionError: it is not such a form.
        """
        value = _parse(text)
        return _position(text, value.get("source"), value.get("next"))

    @staticmethod
    def from_offsets(text: str, *, location: str) -> Position:
        """The position that ingest's offset map stands for.

        Args:
            text: `tarn.offsets.<stream>` of a snapshot of the table.
            location: where the table is; another one of the same name is another place.

        Raises:
            PositionError: this version cannot read the map.
        """
        value = _parse(text)
        source = {n: value.get(n) for n in ("cluster", "topic", "topic-id")}
        return _position(text, {**source, "table": location}, value.get("next"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A piece of the stream, half-open in every partition.

    Attributes:
        bounds: partition, first offset, one past the last.
        after: the position once the piece is in.
    """

    bounds: tuple[tuple[int, int, int], ...]
    after: Position

    @property
    def offsets(self) -> int:
        """How many offsets it spans; gaps and dead letters make it hold fewer rows."""
        return sum(end - start for _, start, end in self.bounds)

    def condition(self, trace: str = "_tarn") -> str:
        """The rows of the piece, as a SQL condition that column bounds can prune."""
        parts = [
            f"({trace}.partition = {p} AND {trace}.offset >= {start} AND {trace}.offset < {end})"
            for p, start, end in self.bounds
        ]
        return " OR ".join(parts) or "false"


def newest(snapshots: Iterable[Snapshot]) -> tuple[Snapshot | None, str | None]:
    """The current snapshot, and the value that it or its nearest ancestor carries.

    Where the history was thinned or expired before such an ancestor, the tagged snapshot's value counts, if
    it is older than all known ancestors: ingest moves the tag with each of its commits, so it is the last.

    Raises:
        PositionError: the history is cut, and no tag says what came before: the table may hold rows that
            would be taken for new.
    """
    by_id: dict[int, Snapshot] = {}
    head: Snapshot | None = None
    for s in snapshots:
        by_id[s.id] = s
        head = s if s.current else head
    at = head
    while at is not None:
        if at.value is not None:
            return head, at.value
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


def next_range(done: Position | None, available: Position, *, offsets_max: int) -> Range | None:
    """The next piece to read, about equal shares of what each partition has; None if there is nothing.

    Args:
        done: what was read before; None for nothing.
        available: what there is to read.
        offsets_max: limit on the piece; a partition that has something left gives at least one offset.

    Raises:
        PositionError: the two do not belong to one stream, or what was read is no longer there.
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
    """Returns if `available` continues `done`.

    Raises:
        PositionError: another cluster, topic or table, or offsets that went back.
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
            "gold tables to make them anew from what is there"
        )
    for p, end in done.next:
        if available.offset(p) < end:
            raise PositionError(
                f"bronze went back: partition {p} ends at {available.offset(p)}, silver has read up to "
                f"{end}; was bronze rolled back? Drop the silver and gold tables to make them anew"
            )


def _parse(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict) or value.get("v") != FORMAT:
        raise PositionError(
            f"offsets in a snapshot summary are not of format {FORMAT}, the one this version reads: "
            f"{text[:200]!r}"
        )
    return value


def _position(text: str, source: object, after: object) -> Position:
    try:
        if not isinstance(source, Mapping) or not isinstance(after, Mapping):
            raise TypeError("source and next are objects")
        return Position(
            source=tuple(sorted((str(k), str(v)) for k, v in source.items())),
            next=tuple(sorted((int(p), int(o)) for p, o in after.items())),
        )
    except (TypeError, ValueError) as e:
        raise PositionError(f"offsets in a snapshot summary cannot be read ({e}): {text[:200]!r}") from e
