"""The contents of small files that were written a moment ago and are soon read again, bounded by bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection

BYTES_MAX = 512 * 1024
FILE_BYTES_MAX = 64 * 1024


class RecentFiles:
    """Files that never change, by location; the least recently used ones go first. Not thread-safe.

    Args:
        bytes_max: limit of all contents together, bytes.
        file_bytes_max: a longer file is not kept, bytes.
    """

    def __init__(self, *, bytes_max: int = BYTES_MAX, file_bytes_max: int = FILE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._file_bytes_max = file_bytes_max
        self._files: OrderedDict[str, bytes] = OrderedDict()
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._files)

    def get(self, location: str) -> bytes | None:
        """Return the content of a file, or None; marks it as recently used."""
        data = self._files.get(location)
        if data is not None:
            self._files.move_to_end(location)
        return data

    def keep(self, location: str, data: bytes) -> None:
        """Keep the content of a file; others go if there is no room."""
        if len(data) > self._file_bytes_max:
            return
        self._drop(location)
        self._files[location] = data
        self.held_bytes += len(data)
        while self.held_bytes > self._bytes_max:
            self._drop(next(iter(self._files)))

    def keep_only(self, locations: Collection[str]) -> None:
        """Drop all other files."""
        for location in [kept for kept in self._files if kept not in locations]:
            self._drop(location)

    def _drop(self, location: str) -> None:
        data = self._files.pop(location, None)
        if data is not None:
            self.held_bytes -= len(data)
