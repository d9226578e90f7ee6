"""Which small files of a stream are merged into one, and when. Pure.

A stream that commits every second adds a file every second, as long as it runs. Files are merged by level:
those of one minute into a file of level 1, sixteen of these into one of level 2, and so on; each row is
written again once per level. Only files that this process added are known here, so nothing is looked for.

What is remembered is bounded in number and in memory. Beyond that the oldest file of the level and partition
that grew longest ago is forgotten: a partition that gets no more rows keeps too few files to be merged.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tarn.core.table_state import WrittenFile

EVERY_S = 60.0
FIRST_LEVEL_MIN = 8
NEXT_LEVEL_MIN = 16
FILES_MAX = 128
BYTES_MAX = 8 * 1024 * 1024
ROWS_MAX = 100_000
FILE_BYTES_MAX = 2 * 1024 * 1024
SORT_BYTES_MAX = 16 << 20
"""Rows as Arrow columns that are merged into one file of a table that sorts them, in bytes."""
LEVELS = 4
REMEMBERED_MAX = 10_000
REMEMBERED_BYTES_MAX = 4 << 20
FILE_MEMORY = 300
"""What a remembered file takes beside its location, in bytes."""
PLACE_MEMORY = 600
"""What a level and partition takes that has a remembered file, in bytes."""

Place = tuple[int, int, tuple[Any, ...]]
"""Level, id of the partition spec, and partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Files of one partition to merge into one.

    Attributes:
        files: the files, oldest first.
        level: their level; the merged file is one level higher.
    """

    files: tuple[WrittenFile, ...]
    level: int

    @property
    def paths(self) -> frozenset[str]:
        """Locations of the files."""
        return frozenset(file.path for file in self.files)


@dataclass(slots=True)
class SmallFiles:
    """The small files that one stream added to its table since the last plan, by level and partition.

    Attributes:
        bytes_max: size of the files that are merged into one, as stored.
    """

    bytes_max: int = BYTES_MAX
    _held: OrderedDict[Place, list[WrittenFile]] = field(default_factory=OrderedDict)
    """The one that grew longest ago first."""
    _count: int = 0
    _memory: int = 0
    _merged_s: float | None = None

    def add(self, files: Sequence[WrittenFile], *, level: int = 0) -> None:
        """Remember committed files that are small enough to be merged; the rest is large enough."""
        for file in files:
            if file.bytes <= FILE_BYTES_MAX and level < LEVELS:
                self._remember((level, file.spec_id, file.partition), file)
                while self._count > REMEMBERED_MAX or self._memory > REMEMBERED_BYTES_MAX:
                    self._forget_oldest()

    def due(self, now_s: float, *, rows_max: int = ROWS_MAX) -> Group | None:
        """The group to merge now, if there is one; a file that is too large to go with the next is forgotten.

        Args:
            now_s: monotonic time in seconds.
            rows_max: rows of the files that are merged into one.
        """
        if self._merged_s is None:
            self._merged_s = now_s
        a_while = now_s - self._merged_s >= EVERY_S
        enough = [item for item in self._held.items() if _enough(len(item[1]), item[0][0], a_while)]
        for (level, _, _), files in sorted(enough, key=lambda item: -item[0][0]):
            group = _oldest(files, self.bytes_max, rows_max)
            if len(group) >= 2:
                return Group(files=group, level=level)
            self.forget(frozenset({files[0].path}))
        return None

    def drop(self, group: Group, *, now_s: float) -> None:
        """Forget the files of a group, whether they were merged or not."""
        self.forget(group.paths)
        if not self._waiting(group.level):
            self._merged_s = now_s

    def forget(self, paths: frozenset[str]) -> None:
        """Forget these files, as they are live no more."""
        for place, files in list(self._held.items()):
            gone = [file for file in files if file.path in paths]
            if gone:
                self._held[place] = [file for file in files if file.path not in paths]
                self._forgot(place, gone)

    def clear(self) -> None:
        """Forget all files."""
        self._held.clear()
        self._count = self._memory = 0

    def _remember(self, place: Place, file: WrittenFile) -> None:
        """Keep of the file what a merge needs, which are not its statistics."""
        files = self._held.setdefault(place, [])
        self._held.move_to_end(place)
        if not files:
            self._memory += PLACE_MEMORY
        kept = WrittenFile(
            path=file.path,
            partition=files[0].partition if files else file.partition,
            spec_id=file.spec_id,
            records=file.records,
            bytes=file.bytes,
            sort_bytes=file.sort_bytes,
        )
        files.append(kept)
        self._count += 1
        self._memory += _memory(kept)

    def _forget_oldest(self) -> None:
        place, files = next(iter(self._held.items()))
        self._forgot(place, [files.pop(0)])

    def _forgot(self, place: Place, gone: Sequence[WrittenFile]) -> None:
        self._count -= len(gone)
        self._memory -= sum(_memory(file) for file in gone)
        if not self._held[place]:
            del self._held[place]
            self._memory -= PLACE_MEMORY

    def _waiting(self, level: int) -> bool:
        """Whether another partition of this level has enough files as well."""
        return any(at == level and len(files) >= FIRST_LEVEL_MIN for (at, _, _), files in self._held.items())


def _enough(number: int, level: int, a_while: bool) -> bool:
    """Whether so many files of a level are merged, a while after the last merge or before."""
    least = NEXT_LEVEL_MIN if level else FIRST_LEVEL_MIN
    return number >= FILES_MAX or (number >= least and (level > 0 or a_while))


def _memory(file: WrittenFile) -> int:
    return FILE_MEMORY + len(file.path)


def _oldest(files: Sequence[WrittenFile], bytes_max: int, rows_max: int) -> tuple[WrittenFile, ...]:
    """The oldest files that fit into one."""
    taken: list[WrittenFile] = []
    size = rows = to_sort = 0
    for file in files[:FILES_MAX]:
        size, rows, to_sort = size + file.bytes, rows + file.records, to_sort + file.sort_bytes
        if size > bytes_max or rows > rows_max or to_sort > SORT_BYTES_MAX:
            break
        taken.append(file)
    return tuple(taken)
