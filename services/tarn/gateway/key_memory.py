"""The idempotency keys that a table remembers, as one gateway knows them (`tarn.core.write_keys`)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Protocol

from tarn.core.errors import UnavailableError
from tarn.core.rejected_rows import RUNS_MAX, Runs
from tarn.core.write_keys import (
    FILE_PREFIX,
    INLINE_MAX,
    WINDOW_S,
    KeyedWrite,
    KeyEntry,
    KeyIndex,
    Remembered,
    Segment,
)

SKEW_S = 60
"""How much the clocks of two gateways may differ, in seconds; objects are kept that much longer."""
SKEW_MS = SKEW_S * 1_000
KEPT_MS = WINDOW_S * 1_000 + SKEW_MS
RUNS_KEPT_MAX = 50_000
"""Runs of rejected rows that are kept of all keys of a table; of further keys they are not known."""
TIDY_MS = 60_000
"""How often keys and segments beyond the window are forgotten; all of them are looked at."""


class KeyFiles(Protocol):
    """Objects of the lake, by location."""

    def find(self, location: str) -> bytes | None:
        """The content of an object; None if the store does not have it.

        Raises:
            UnavailableError: the store does not respond.
        """

    def written_ms(self, location: str) -> int | None:
        """When an object was written, by the store's clock, in milliseconds since the epoch.

        None if the store does not have it, or does not say.

        Raises:
            UnavailableError: the store does not respond.
        """

    def write_new(self, location: str, data: bytes) -> None:
        """Write an object under a name that is used once.

        Raises:
            UnavailableError: the store does not respond.
        """


NONE_REJECTED: Mapping[str, Runs] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """An index in the store that no table names yet.

    Attributes:
        base: the entry that it was made on.
        index: its content.
        fresh: the keys that it adds.
    """

    base: KeyEntry | None
    index: KeyIndex
    fresh: dict[str, Remembered]


class KeyMemory:
    """The keys of one table. Thread-safe; `draft` and `load` use the store, nothing else does.

    Args:
        files: objects of the lake.
        new_name: generates a unique name.
        now_ms: wall-clock time in milliseconds since the epoch.
        inline_max: keys that an index has itself.

    Attributes:
        entry: what the version of the table says whose keys these are; None if it has none.
    """

    def __init__(
        self,
        files: KeyFiles,
        *,
        new_name: Callable[[], str],
        now_ms: Callable[[], int],
        inline_max: int = INLINE_MAX,
    ) -> None:
        self._files = files
        self._new_name = new_name
        self._now_ms = now_ms
        self._inline_max = inline_max
        self._lock = threading.Lock()
        self.entry: KeyEntry | None = None
        self._index = KeyIndex(keys={})
        self._known: dict[str, Remembered] = {}
        self._segments: dict[str, KeyIndex] = {}
        self._drafts: dict[str, Draft] = {}
        self._tidy_ms = 0
        self._runs = 0

    def __len__(self) -> int:
        return len(self._known)

    def find(self, key: str) -> Remembered | None:
        """A key that the table remembers; None if it does not."""
        return self._known.get(key)

    def follow(self, entry: KeyEntry | None) -> bool:
        """Take the keys of a newer version of the table; False if they have to be loaded first."""
        with self._lock:
            if entry == self.entry:
                return True
            draft = self._drafts.get(entry.path) if entry is not None else None
            if draft is None or draft.base != self.entry:
                return False
            self._known.update(draft.fresh)
            self._runs += _runs_in(draft.fresh.values())
            self.entry, self._index = entry, draft.index
            if self._now_ms() >= self._tidy_ms:
                self._tidy()
            return True

    def _tidy(self) -> None:
        """Forget keys and segments that are older than the window. The lock is held."""
        now_ms = self._now_ms()
        oldest_ms = now_ms - KEPT_MS
        self._known = {
            key: _not_ahead(one, now_ms) for key, one in self._known.items() if one.at_ms >= oldest_ms
        }
        self._runs = _runs_in(self._known.values())
        self._index = _without_future(self._index, self._segments, now_ms)
        named = {one.path for one in self._index.segments if one.until_ms >= oldest_ms}
        named |= {one.path for draft in self._drafts.values() for one in draft.index.segments}
        self._segments = {path: one for path, one in self._segments.items() if path in named}
        self._tidy_ms = now_ms + TIDY_MS

    def discard(self, entry: KeyEntry) -> None:
        """Forget a draft: it is committed, or will not be."""
        with self._lock:
            self._drafts.pop(entry.path, None)

    def load(self, entry: KeyEntry | None, *, named_by: str | None = None) -> None:
        """Take the keys of a version of the table, from the store.

        The times in objects are those of the gateways that wrote them, and one of a clock that was ahead is
        too late. The reaper deletes objects by their age in the store, so such a one may be gone.

        Args:
            entry: what the version says; None if it has no keys.
            named_by: location of the manifest list of a snapshot that names the entry, best the oldest one:
                the objects with the keys were written before it.

        Raises:
            UnavailableError: the store does not respond, or lacks an object that is not old enough to be
            gone. CorruptStateError: an object is unreadable.
        """
        now_ms = self._now_ms()
        oldest_ms = now_ms - KEPT_MS
        index, held = KeyIndex(keys={}), {}
        if entry is not None and entry.at_ms >= oldest_ms:
            index = self._read(entry.path, at_ms=entry.at_ms, now_ms=now_ms, named_by=named_by) or index
            gone: set[Segment] = set()
            for one in index.segments:
                if one.until_ms >= oldest_ms:
                    found = self._segments.get(one.path) or self._read(
                        one.path, at_ms=one.until_ms, now_ms=now_ms, named_by=named_by
                    )
                    if found is None:
                        gone.add(one)
                    else:
                        held[one.path] = found
            index = replace(index, segments=tuple(one for one in index.segments if one not in gone))
        known = {
            key: _not_ahead(found, now_ms)
            for part in (*held.values(), index)
            for key, found in part.keys.items()
        }
        with self._lock:
            self.entry, self._segments, self._known = entry, held, _bounded(known)
            self._index = _without_future(index, held, now_ms)
            self._runs = _runs_in(self._known.values())

    def forget_old(self) -> None:
        """Forget keys that are older than the window."""
        with self._lock:
            self._tidy()

    def draft(
        self,
        base: KeyEntry | None,
        root: str,
        writes: Sequence[KeyedWrite],
        rejected: Mapping[str, Runs] = NONE_REJECTED,
    ) -> KeyEntry:
        """Write the objects of a commit with these keys; they are remembered once `follow` sees the entry.

        Args:
            base: the entry that the commit builds on: the current one, or that of a draft.
            root: location of the table.
            writes: the keys.
            rejected: key to the rows that were rejected under it, by index.

        Raises:
            UnavailableError: the store does not respond, or the base is not known any more.
        """
        now_ms = self._now_ms()
        with self._lock:
            on = self._drafts.get(base.path) if base is not None else None
            if on is None and base != self.entry:
                raise UnavailableError(
                    "the table's keys have changed meanwhile; nothing was written, send it again"
                )
            before = on.index if on is not None else self._index
            before = _without_future(before, self._segments, now_ms)
            room = max(0, RUNS_KEPT_MAX - self._runs)
        fresh: dict[str, Remembered] = {}
        for one in writes:
            runs: Runs | None = rejected.get(one.key, ())
            if runs is not None and (len(runs) > RUNS_MAX or len(runs) > room):
                runs = None
            room -= len(runs or ())
            fresh[one.key] = Remembered(digest=one.digest, at_ms=now_ms, rejected=runs)
        keys = {**before.keys, **fresh}
        segments = tuple(one for one in before.segments if one.until_ms >= now_ms - KEPT_MS)
        if len(keys) > self._inline_max:
            segment, path = (
                KeyIndex(keys=keys),
                f"{root}/metadata/{FILE_PREFIX}{self._new_name()}.segment.json",
            )
            self._files.write_new(path, segment.to_json())
            with self._lock:
                self._segments[path] = segment
            segments, keys = (*segments, Segment(path=path, until_ms=now_ms)), {}
        index = KeyIndex(keys=keys, segments=segments)
        entry = KeyEntry(path=f"{root}/metadata/{FILE_PREFIX}{self._new_name()}.json", at_ms=now_ms)
        self._files.write_new(entry.path, index.to_json())
        with self._lock:
            self._drafts[entry.path] = Draft(base=base, index=index, fresh=fresh)
        return entry

    def _read(self, path: str, *, at_ms: int, now_ms: int, named_by: str | None) -> KeyIndex | None:
        """An index or a segment of this time; None if it is gone and nobody needs it.

        Nobody needs one from the future, or one that a snapshot older than the window names. After a restore
        the store has no keys, and manifest lists as old as the restore.
        """
        data = self._files.find(path)
        if data is not None:
            return KeyIndex.from_json(data, path=path)
        if at_ms <= now_ms + SKEW_MS:
            written_ms = self._files.written_ms(named_by) if named_by is not None else None
            if written_ms is None or written_ms >= now_ms - KEPT_MS:
                left_ms = KEPT_MS if written_ms is None else written_ms + KEPT_MS - now_ms
                raise UnavailableError(
                    f"{path} is not in the store: a backup has no keys of repeated writes, so after a "
                    f"restore the table takes rows again in {left_ms // 1_000 + 1} s; otherwise run "
                    "scripts/tarn fsck",
                    location=path,
                )
        return None


def _not_ahead(one: Remembered, now_ms: int) -> Remembered:
    """The key; one from a clock that was ahead counts from now on."""
    return one if one.at_ms <= now_ms + SKEW_MS else replace(one, at_ms=now_ms)


def _without_future(index: KeyIndex, segments: Mapping[str, KeyIndex], now_ms: int) -> KeyIndex:
    """The index with the keys of segments from the future as its own, for the next object.

    A segment is named until its time is older than the window, and the reaper would delete such a one before.
    """
    limit_ms = now_ms + SKEW_MS
    ahead = [one.path for one in index.segments if one.until_ms > limit_ms]
    if not ahead and all(one.at_ms <= limit_ms for one in index.keys.values()):
        return index
    parts = [*(segments[path] for path in ahead if path in segments), index]
    return KeyIndex(
        keys={key: _not_ahead(one, now_ms) for part in parts for key, one in part.keys.items()},
        segments=tuple(one for one in index.segments if one.until_ms <= limit_ms),
    )


def _runs_in(keys: Iterable[Remembered]) -> int:
    return sum(len(one.rejected) for one in keys if one.rejected)


def _bounded(keys: dict[str, Remembered]) -> dict[str, Remembered]:
    """The keys with as many runs as are kept: several gateways may have written more."""
    room = RUNS_KEPT_MAX
    for key, one in keys.items():
        room -= len(one.rejected or ())
        if one.rejected and room < 0:
            keys[key] = replace(one, rejected=None)
    return keys
