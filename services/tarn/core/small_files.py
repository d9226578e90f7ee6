"""Which small files of a stream are merged into one, and when. Pure.

A stream that commits every second adds a file every second, as long as it runs. Files are merged by level:
those of one minute into a file of level 1, sixteen of these into one of level 2, and so on; each row is
written again once per level. Only files that this process added are known here, so nothing is looked for.
"""

from __future__ import annotations

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
LEVELS = 4
REMEMBERED_MAX = 10_000


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
    _held: dict[tuple[int, int, tuple[Any, ...]], list[WrittenFile]] = field(default_factory=dict)
    _count: int = 0
    _merged_s: float | None = None

    def add(self, files: Sequence[WrittenFile], *, level: int = 0) -> None:
        """Remember committed files that are small enough to be merged; the rest is large enough."""
        for file in files:
            if file.bytes <= FILE_BYTES_MAX and level < LEVELS and self._count < REMEMBERED_MAX:
                self._held.setdefault((level, file.spec_id, file.partition), []).append(file)
                self._count += 1

    def due(self, now_s: float, *, rows_max: int = ROWS_MAX) -> Group | None:
        """The group to merge now, if there is one; a file that is too large to go with the next is forgotten.

        Args:
            now_s: monotonic time in seconds.
            rows_max: rows of the files that are merged into one.
        """
        if self._merged_s is None:
            self._merged_s = now_s
        a_while = now_s - self._merged_s >= EVERY_S
        for (level, _, _), files in sorted(self._held.items(), key=lambda item: -item[0][0]):
            enough = NEXT_LEVEL_MIN if level else FIRST_LEVEL_MIN
            if len(files) >= FILES_MAX or (len(files) >= enough and (level or a_while)):
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
        for key, files in list(self._held.items()):
            kept = [file for file in files if file.path not in paths]
            self._count -= len(files) - len(kept)
            if kept:
                self._held[key] = kept
            else:
                del self._held[key]

    def clear(self) -> None:
        """Forget all files."""
        self._held.clear()
        self._count = 0

    def _waiting(self, level: int) -> bool:
        """Whether another partition of this level has enough files as well."""
        return any(at == level and len(files) >= FIRST_LEVEL_MIN for (at, _, _), files in self._held.items())


def _oldest(files: Sequence[WrittenFile], bytes_max: int, rows_max: int) -> tuple[WrittenFile, ...]:
    """The oldest files that fit into one."""
    taken: list[WrittenFile] = []
    size = rows = 0
    for file in files[:FILES_MAX]:
        size, rows = size + file.bytes, rows + file.records
        if size > bytes_max or rows > rows_max:
            break
        taken.append(file)
    return tuple(taken)
