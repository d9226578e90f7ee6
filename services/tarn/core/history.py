"""Snapshot retention that thins history with age: which snapshots a commit expires. Pure.

The newest snapshots are all kept; older ones ever more sparsely, in the steps of a ladder. A table with one
commit per second keeps about a hundred snapshots however long it runs (invariant I8), one with a commit per
day its last eighty. The rule works on the parsed metadata JSON in one pass. Parent ids are never rewritten: a
reader that needs every snapshot between two others finds the gap and must report it, or says with a tag
where it is: then all that follows stays.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tarn.core.errors import InvalidError

HISTORY_PROPERTY = "tarn.history"
KEPT_PROPERTY = "tarn.snapshots-kept"
KEEP_ALL = "all"
KEPT_MAX = 10_000
DIGITS_MAX = 20
YOUNG_MS = 15 * 60 * 1_000
YOUNG_TIMES_MAX = 4
MAIN = "main"
STAGED_KEY = "wap.id"
READER_TAG_PREFIX = "tarn-reader-"
READER_SNAPSHOTS_MAX = 1_000
"""A reader further behind no longer holds history: each commit writes all snapshots that are kept."""
STEPS_MAX = 6
_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_STEP = re.compile(r"([1-9][0-9]{0,5})([smhd]) for ([1-9][0-9]{0,5})([smhd])")
_EXAMPLE = "40, 30s for 15m, 1h for 1d"

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of the retention ladder.

    Attributes:
        every_ms: time span in milliseconds, of which the oldest snapshot is kept; 1 keeps all snapshots.
        until_ms: age in milliseconds at which the step ends.
        count_max: upper bound on the snapshots kept, whatever the writers' clocks say.
    """

    every_ms: int
    until_ms: int
    count_max: int


def step(every_ms: int, until_ms: int) -> Step:
    """A step that keeps one snapshot per span."""
    return Step(every_ms=every_ms, until_ms=until_ms, count_max=until_ms // every_ms + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """A snapshot retention rule.

    Attributes:
        newest: number of newest snapshots kept regardless of age.
        steps: ladder for older snapshots, youngest step first; none are kept beyond the last step.
        total_min: number of snapshots up to which none is expired; beyond it the oldest are expired first.
        removed_max: maximum number of snapshots that one commit expires.
    """

    newest: int = 40
    steps: tuple[Step, ...] = (step(30_000, YOUNG_MS), step(3_600_000, 86_400_000))
    total_min: int = 80
    removed_max: int = 1_000

    @property
    def count_max(self) -> int:
        """Maximum number of snapshots kept, not counting those that refs need."""
        return max(self.newest + sum(one.count_max for one in self.steps), self.total_min)


def retention_of(properties: Mapping[str, str], default: Retention | None) -> Retention | None:
    """Retention rule of a table's properties, else the default; None keeps everything.

    Raises:
        InvalidError: a property has an invalid value.
    """
    history, kept = properties.get(HISTORY_PROPERTY), properties.get(KEPT_PROPERTY)
    if history is not None and kept is not None:
        raise InvalidError(
            f"{HISTORY_PROPERTY} and {KEPT_PROPERTY} are both set: remove one, both say what history stays"
        )
    if history is not None:
        return None if history == KEEP_ALL else _ladder(history)
    if kept is not None:
        return _newest_kept(kept)
    return default


def _newest_kept(text: str) -> Retention:
    if not _is_count(text):
        raise InvalidError(f"Invalid {KEPT_PROPERTY} {text[:200]!r}: give a number from 1 to {KEPT_MAX}")
    count = int(text)
    young = Step(every_ms=1, until_ms=YOUNG_MS, count_max=(YOUNG_TIMES_MAX - 1) * count)
    return Retention(newest=count, steps=(young,), total_min=count, removed_max=YOUNG_TIMES_MAX * KEPT_MAX)


def _is_count(text: str) -> bool:
    # Python refuses to read a number of thousands of digits.
    return text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX and 1 <= int(text) <= KEPT_MAX


def _ladder(text: str) -> Retention:
    first, *rest = (part.strip() for part in text.split(","))
    steps: list[Step] = []
    good = _is_count(first) and len(rest) <= STEPS_MAX
    for part in rest if good else ():
        found = _STEP.fullmatch(part)
        if found is None:
            good = False
            break
        every_ms, until_ms = (int(found[n]) * _UNIT_MS[found[n + 1]] for n in (1, 3))
        before = steps[-1] if steps else None
        good = good and every_ms <= until_ms
        good = good and (before is None or (before.every_ms < every_ms and before.until_ms < until_ms))
        steps.append(step(every_ms, until_ms) if good else Step(every_ms=1, until_ms=1, count_max=1))
    if not good:
        raise InvalidError(
            f"Invalid {HISTORY_PROPERTY} {text[:200]!r}: give {KEEP_ALL!r}, or how many of the newest "
            f"snapshots stay and at most {STEPS_MAX} growing steps of s, m, h or d, such as {_EXAMPLE!r}"
        )
    retention = Retention(newest=int(first), steps=tuple(steps), total_min=1)
    if retention.count_max > KEPT_MAX:
        raise InvalidError(
            f"Invalid {HISTORY_PROPERTY} {text[:200]!r}: it keeps up to {retention.count_max} snapshots, and "
            f"every commit writes all of them; at most {KEPT_MAX}"
        )
    return retention


def snapshots_to_expire(
    metadata: Mapping[str, Any],
    retention: Retention,
    *,
    now_ms: int,
    keep: frozenset[int] = frozenset(),
    coming: int = 0,
) -> list[int]:
    """Ids of the snapshots that a commit expires, oldest first.

    Never expired are snapshots that a ref points to, ancestors of a branch other than main, snapshots staged
    for an audit (`wap.id`), those from a reader's tag on (`tarn-reader-<name>`, at most 1,000), and those in
    `keep`. Snapshots are in commit order; beyond a gap in the ancestry it is unknown whether one belonged to
    main, so all unreferenced snapshots age alike.

    Args:
        metadata: parsed table metadata.
        retention: retention rule.
        now_ms: wall-clock time in milliseconds since the epoch; a snapshot from the future counts as new.
        keep: ids of further snapshots to keep.
        coming: number of snapshots that the commit is about to add; they count among the newest.
    """
    snapshots = metadata.get("snapshots") or []
    spare = len(snapshots) + coming - retention.total_min
    if spare <= 0:
        return []
    protected = _protected(metadata, snapshots) | keep
    old: list[int] = []
    first: dict[tuple[int, int], int] = {}
    older = snapshots[: max(0, len(snapshots) + coming - retention.newest)]
    for snapshot in reversed(older):
        found, at_ms = snapshot["snapshot-id"], int(snapshot["timestamp-ms"])
        place = _place(retention, at_ms, now_ms)
        if place is not None:
            # Going back in time, the last snapshot seen is the oldest of its span, and is kept.
            beaten = first.get(place)
            first[place] = found
            found = beaten
        if found is not None and found not in protected:
            old.append(found)
    for number, one in enumerate(retention.steps):
        held = [found for (at, _), found in first.items() if at == number]
        old += [found for found in held[one.count_max :] if found not in protected]
    gone = set(old)
    return [s["snapshot-id"] for s in older if s["snapshot-id"] in gone][: min(spare, retention.removed_max)]


def _place(retention: Retention, at_ms: int, now_ms: int) -> tuple[int, int] | None:
    """(step, span within it) of a snapshot's timestamp; None beyond the last step."""
    age_ms = max(0, now_ms - at_ms)
    for number, one in enumerate(retention.steps):
        if age_ms < one.until_ms:
            return number, at_ms // one.every_ms
    return None


def _protected(metadata: Mapping[str, Any], snapshots: list[Json]) -> frozenset[int]:
    refs = metadata.get("refs") or {}
    found = {int(ref["snapshot-id"]) for ref in refs.values()} | _held_by_readers(refs, snapshots)
    found.update(s["snapshot-id"] for s in snapshots if STAGED_KEY in (s.get("summary") or {}))
    branches = [ref for name, ref in refs.items() if name != MAIN and ref.get("type") == "branch"]
    if branches:
        parents = {s["snapshot-id"]: s.get("parent-snapshot-id") for s in snapshots}
        walked: set[int] = set()
        for ref in branches:
            at: int | None = int(ref["snapshot-id"])
            # Each once: branches share ancestors, and a damaged table may have one that is its own.
            while at is not None and at in parents and at not in walked:
                walked.add(at)
                at = parents[at]
        found |= walked
    return frozenset(found)


def _held_by_readers(refs: Mapping[str, Any], snapshots: list[Json]) -> frozenset[int]:
    """Ids of the snapshots from the oldest reader's tag on, of those readers that are not too far behind."""
    tagged = {int(ref["snapshot-id"]) for name, ref in refs.items() if name.startswith(READER_TAG_PREFIX)}
    if not tagged:
        return frozenset()
    near = snapshots[-READER_SNAPSHOTS_MAX:]
    first = next((n for n, snapshot in enumerate(near) if snapshot["snapshot-id"] in tagged), len(near))
    return frozenset(snapshot["snapshot-id"] for snapshot in near[first:])


def may_be_thinned(metadata: Mapping[str, Any], snapshot: Mapping[str, Any]) -> bool:
    """Whether a snapshot missing from the metadata may have been committed and expired since (invariant I4).

    A sequence number belongs to one snapshot: if another snapshot has it, this one was never committed. If no
    snapshot has it, this one may have been expired, unless its successor was committed before it was created.

    Args:
        metadata: parsed table metadata.
        snapshot: the snapshot as sent by its writer, possibly again.
    """
    sequence, at_ms = snapshot.get("sequence-number"), snapshot.get("timestamp-ms")
    if type(sequence) is not int or sequence <= 0 or type(at_ms) is not int:
        return False
    if sequence > int(metadata.get("last-sequence-number") or 0):
        return False
    following: Json | None = None
    for other in metadata.get("snapshots") or []:
        number = int(other.get("sequence-number") or 0)
        if number == sequence:
            return False
        if number > sequence and (following is None or number < following["sequence-number"]):
            following = other
    return following is None or int(following["timestamp-ms"]) + CLOCKS_DIFFER_MS >= at_ms


CLOCKS_DIFFER_MS = 60_000
"""Clock difference allowed between two writers; Iceberg's own libraries allow as much."""
