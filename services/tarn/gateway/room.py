"""What all tables of a gateway may have in their hands at one time, since rows grow when they are decoded."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

ROOM_BYTES_MAX = 6 << 20
"""Rows as sent; while they are decoded and written to a file they take up to ten times as much memory."""


class Room:
    """A budget of bytes for threads. Thread-safe.

    Args:
        bytes_max: how much may be held; more than that is held alone.
    """

    def __init__(self, bytes_max: int = ROOM_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._changed = threading.Condition()
        self._held = 0

    @contextmanager
    def hold(self, size_bytes: int) -> Iterator[None]:
        """Wait for room, and have it for the duration of the block."""
        size = min(size_bytes, self._bytes_max)
        with self._changed:
            self._changed.wait_for(lambda: self._held + size <= self._bytes_max)
            self._held += size
        try:
            yield
        finally:
            with self._changed:
                self._held -= size
                self._changed.notify_all()
