"""What all tables of a gateway may have in their hands at one time, since rows grow when they are decoded."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from tarn.core.errors import UnavailableError

ROOM_BYTES_MAX = 6 << 20
"""Rows as sent; while they are decoded and written to a file they take up to ten times as much memory."""
WAIT_S_MAX = 15.0


class NoRoomError(UnavailableError):
    """No room became free in time; nothing was decoded."""


class Room:
    """A budget of bytes for threads, in order of arrival: each table has one thread, so they take turns.

    Thread-safe.

    Args:
        bytes_max: how much may be held; more than that is held alone.
        wait_s_max: the longest wait, in seconds.
    """

    def __init__(self, bytes_max: int = ROOM_BYTES_MAX, *, wait_s_max: float = WAIT_S_MAX) -> None:
        self._bytes_max = bytes_max
        self._wait_s_max = wait_s_max
        self._changed = threading.Condition()
        self._held = 0
        self._queue: deque[object] = deque()

    @contextmanager
    def hold(self, size_bytes: int) -> Iterator[None]:
        """Wait for room, and have it for the duration of the block.

        Raises:
            NoRoomError: it did not become free in time.
        """
        size = min(size_bytes, self._bytes_max)
        ticket = object()
        with self._changed:
            self._queue.append(ticket)
            try:
                found = self._changed.wait_for(
                    lambda: self._queue[0] is ticket and self._held + size <= self._bytes_max,
                    timeout=self._wait_s_max,
                )
                if not found:
                    raise NoRoomError(
                        f"{self._held} bytes of rows are being decoded and written, at most "
                        f"{self._bytes_max} may; there was no room for {size} more within "
                        f"{self._wait_s_max:g} s. Nothing of them was written, send them again"
                    )
                self._held += size
            finally:
                self._queue.remove(ticket)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._held -= size
                self._changed.notify_all()
