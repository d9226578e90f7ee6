"""Wakes tasks of an event loop from other threads, as many as there are by one signal."""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import Future
from typing import Any


class Bell:
    """Wakes the tasks of one event loop whose answers have come.

    A commit answers hundreds of writes at one time. A signal to the loop for each of them is a system call
    and a change of threads each; here the first rings, and the loop looks for all.

    Attributes:
        loop: the event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._ended: deque[asyncio.Future[bool]] = deque()
        self._rung = False

    async def wait(self, answer: Future[Any], wait_s_max: float) -> bool:
        """Wait for an answer of another thread; False if it did not come in time. It is not cancelled."""
        waiter = self.loop.create_future()
        answer.add_done_callback(lambda _: self._ring(waiter))
        late = self.loop.call_later(wait_s_max, _end, waiter, False)
        try:
            return await waiter or answer.done()
        finally:
            late.cancel()

    def _ring(self, waiter: asyncio.Future[bool]) -> None:
        """Have a task woken; on any thread.

        It is in the list before the bell is looked at, and `_look` lifts the bell before it looks at the
        list: so whoever finds the bell rung is seen by the look that is still to come.
        """
        self._ended.append(waiter)
        if not self._rung and not self.loop.is_closed():
            self._rung = True
            self.loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        self._rung = False
        while self._ended:
            _end(self._ended.popleft(), True)


def _end(waiter: asyncio.Future[bool], came: bool) -> None:
    if not waiter.done():
        waiter.set_result(came)
