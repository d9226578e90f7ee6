"""Turns: the writers of one key in this process, one at a time, in order of arrival.

Two writers that build on the same value cost each other a metadata file and a swap. Correctness does not
depend on turns, but nobody proceeds without one: who has to wait too long is refused, and nothing was
changed.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from tarn.core.errors import UnavailableError

WAITING_MAX = 128
WAIT_S_MAX = 60.0


def too_many(what: str, waiting: int) -> UnavailableError:
    """Return the refusal of one more change of `what`, such as "a.b"."""
    return UnavailableError(
        f"{waiting} changes of {what} wait already, and no more may; nothing was changed, try again"
    )


def too_long(what: str, wait_s_max: float) -> UnavailableError:
    """Return the refusal of a change of `what`, such as "a.b", that has waited for its turn."""
    return UnavailableError(
        f"The changes of {what} before this one did not end within {wait_s_max:g} s; nothing was changed, "
        "try again"
    )


class Turns:
    """Turns of threads, by key.

    Args:
        waiting_max: how many threads may wait for one key.
        wait_s_max: how long one waits, seconds.
    """

    def __init__(self, *, waiting_max: int = WAITING_MAX, wait_s_max: float = WAIT_S_MAX) -> None:
        self._waiting_max = waiting_max
        self._wait_s_max = wait_s_max
        self._lock = threading.Lock()
        # Of each key whose turn somebody has: those who wait for it, each behind a lock of its own.
        self._lines: dict[str, deque[threading.Lock]] = {}

    @property
    def held(self) -> frozenset[str]:
        """The keys whose turn somebody has."""
        with self._lock:
            return frozenset(self._lines)

    @contextmanager
    def hold(self, key: str) -> Iterator[None]:
        """Have the turn of a key for the duration of the block; the thread must not have it already.

        Raises:
            UnavailableError: too many threads wait for it, or it did not come in time.
        """
        self._enter(key)
        try:
            yield
        finally:
            self._leave(key)

    def _enter(self, key: str) -> None:
        with self._lock:
            line = self._lines.get(key)
            if line is None:
                self._lines[key] = deque()
                return
            if len(line) >= self._waiting_max:
                raise too_many(key, self._waiting_max)
            mine = threading.Lock()
            mine.acquire()
            line.append(mine)
        try:
            came = mine.acquire(timeout=self._wait_s_max)
        except BaseException:
            if not self._step_out(key, mine):
                self._leave(key)
            raise
        if not came and self._step_out(key, mine):
            raise too_long(key, self._wait_s_max)

    def _step_out(self, key: str, mine: threading.Lock) -> bool:
        """Leave the line; False if the turn has come after all."""
        with self._lock:
            line = self._lines[key]
            waits = mine in line
            if waits:
                line.remove(mine)
            return waits

    def _leave(self, key: str) -> None:
        with self._lock:
            line = self._lines[key]
            if line:
                line.popleft().release()
            else:
                del self._lines[key]
