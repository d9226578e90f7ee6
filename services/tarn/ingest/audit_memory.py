"""What audits read from files, remembered: files never change, so the next audit reads only new ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import pyarrow as pa
from pyroaring import BitMap64

from tarn.core.audit.accounts import LetterPlace, Origins, Place, Tally
from tarn.core.audit.model import FileEntry
from tarn.core.audit.origins import Letter, OriginReader
from tarn.core.offsets import TopicIdentity
from tarn.ingest.lake_files import KnownRemovals

BYTES_MAX = 8 * 1024 * 1024
"""Size of what is remembered of the files of one table, in bytes; what does not fit is read again."""
OVERHEAD_BYTES = 300
"""Size of an entry beside its bitmaps, roughly."""

T = TypeVar("T")
P = TypeVar("P")

Levels = tuple[bytes, ...]
"""The bitmaps of a tally, serialised: a run of consecutive offsets takes some 30 bytes however long it is."""


@dataclass(frozen=True, slots=True)
class _Rows:
    places: tuple[tuple[Place, Levels], ...]
    untraced: int


@dataclass(frozen=True, slots=True)
class _Letters:
    places: tuple[tuple[LetterPlace, Levels], ...]


@dataclass(slots=True)
class AuditMemory:
    """What was read for one table.

    Attributes:
        without_record: see `LakePorts.without_record`.
        removals: see `LakePorts.known`.
    """

    without_record: dict[tuple[TopicIdentity, int], BitMap64] = field(default_factory=dict)
    removals: KnownRemovals = field(default_factory=KnownRemovals)
    _files: dict[str, _Rows | _Letters] = field(default_factory=dict)
    _seen: set[str] = field(default_factory=set)
    _bytes: int = 0

    @property
    def files(self) -> int:
        """Number of files that are remembered."""
        return len(self._files)

    def get(self, path: str) -> _Rows | _Letters | None:
        """What is remembered of a file; it stays for one more audit."""
        self._seen.add(path)
        return self._files.get(path)

    def put(self, path: str, found: _Rows | _Letters) -> None:
        """Remember a file, if there is room."""
        size = _size(found)
        if self._bytes + size <= BYTES_MAX and path not in self._files:
            self._files[path] = found
            self._bytes += size

    def sweep(self) -> None:
        """Forget the files that were not asked for since the last sweep: they are no longer read."""
        for path in self._files.keys() - self._seen:
            self._bytes -= _size(self._files.pop(path))
        self._seen.clear()


class RememberingOrigins:
    """An `OriginReader` that reads a file once, and rests after each read.

    Args:
        reader: reads the files.
        memory: what was read before.
        rest: called with the seconds that a read took.
        now_s: monotonic time in seconds.
    """

    def __init__(
        self,
        reader: OriginReader,
        memory: AuditMemory,
        *,
        rest: Callable[[float], None],
        now_s: Callable[[], float],
    ) -> None:
        self._reader = reader
        self._memory = memory
        self._rest = rest
        self._now_s = now_s
        self.reads = 0

    def rows(self, file: FileEntry, deleted: BitMap64) -> Origins | None:
        """See `OriginReader.rows`; files with deleted rows are read each time, as deletes come later."""
        known = None if deleted else self._memory.get(file.path)
        if isinstance(known, _Rows):
            return Origins(rows=_tallies(known.places), deleted={}, untraced=known.untraced)
        found = self._paced(lambda: self._reader.rows(file, deleted))
        if found is not None and not deleted:
            self._memory.put(file.path, _Rows(_levels(found.rows), found.untraced))
        return found

    def letters(self, file: FileEntry) -> Mapping[LetterPlace, Tally] | None:
        """See `OriginReader.letters`."""
        known = self._memory.get(file.path)
        if isinstance(known, _Letters):
            return _tallies(known.places)
        found = self._paced(lambda: self._reader.letters(file))
        if found is not None:
            self._memory.put(file.path, _Letters(_levels(found)))
        return found

    def letter(self, file: FileEntry, place: LetterPlace, offset: int) -> Sequence[Letter] | None:
        """See `OriginReader.letter`."""
        return self._paced(lambda: self._reader.letter(file, place, offset))

    def records(self, file: FileEntry, columns: Sequence[str]) -> pa.Table | None:
        """See `OriginReader.records`."""
        return self._paced(lambda: self._reader.records(file, columns))

    def deleted(self, file: FileEntry) -> Mapping[str, BitMap64] | None:
        """See `OriginReader.deleted`."""
        return self._paced(lambda: self._reader.deleted(file))

    def _paced(self, read: Callable[[], T]) -> T:
        began_s = self._now_s()
        found = read()
        self.reads += 1
        self._rest(self._now_s() - began_s)
        return found


def _levels(rows: Mapping[P, Tally]) -> tuple[tuple[P, Levels], ...]:
    return tuple((place, tuple(_packed(level) for level in tally.levels)) for place, tally in rows.items())


def _packed(offsets: BitMap64) -> bytes:
    offsets = offsets.copy()
    offsets.run_optimize()
    return bytes(offsets.serialize())


def _tallies(places: Sequence[tuple[P, Levels]]) -> dict[P, Tally]:
    found: dict[P, Tally] = {}
    for place, levels in places:
        tally = found[place] = Tally()
        for level in levels:
            tally.add(BitMap64.deserialize(level))
    return found


def _size(found: _Rows | _Letters) -> int:
    return OVERHEAD_BYTES + sum(len(level) for _, levels in found.places for level in levels)
