"""What a replica remembers of the store, bounded by bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

CACHE_BYTES_MAX = 64 * 1024 * 1024
# Measured on CPython 3.11 for tables with 1 to 2,000 snapshots: the JSON and the objects parsed from it take
# 3.9 to 5.4 times the JSON's length together, most for the smallest.
PARSED_FACTOR = 4
ENTRY_BYTES = 4 * 1024


def held_bytes(json_bytes: int) -> int:
    """Return an estimate of the memory taken by JSON of this length and the objects parsed from it, bytes."""
    return PARSED_FACTOR * json_bytes + ENTRY_BYTES


class Cache:
    """LRU cache of immutable objects, bounded by bytes."""

    def __init__(self, bytes_max: int = CACHE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, tuple[Any, int]] = OrderedDict()

    @property
    def held_bytes(self) -> int:
        """The estimated size of all cached objects, bytes."""
        return self._bytes

    def get(self, key: str) -> Any | None:
        """Return the object, or None; marks it as recently used."""
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                return None
            self._entries.move_to_end(key)
            return found[0]

    def put(self, key: str, value: object, size_bytes: int) -> None:
        """Cache an object; evict the least recently used ones over the limit.

        Args:
            key: the object's key.
            value: the object.
            size_bytes: its estimated size in memory.
        """
        with self._lock:
            old = self._entries.pop(key, None)
            self._bytes += size_bytes - (old[1] if old else 0)
            self._entries[key] = (value, size_bytes)
            while self._bytes > self._bytes_max and len(self._entries) > 1:
                _, (_, dropped) = self._entries.popitem(last=False)
                self._bytes -= dropped

    def drop(self, key: str) -> None:
        """Remove an object from the cache."""
        with self._lock:
            old = self._entries.pop(key, None)
            self._bytes -= old[1] if old else 0
