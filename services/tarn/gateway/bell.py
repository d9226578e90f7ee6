"""Calls back on an event loop what waits for answers of other threads, as many as there are by one signal."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class _Waiter:
    """What is called once: when an answer has come, or is late."""

    __slots__ = ("late", "then")

    def __init__(self, then: Callable[[bool], None]) -> None:
        self.then: Callable[[bool], None] | None = then
        self.late: asyncio.TimerHandle | None = None

    def end(self, came: bool) -> None:
        then, self.then = self.then, None
        if self.late is not None:
            self.late.cancel()
        if then is not None:
            then(came)


class Bell:
    """Calls back on one event loop what waits for answers of other threads.

    A commit answers hundreds of writes at one time. A signal to the loop for each of them is a system call
    and a change of threads each; here the first rings, and the loop looks for all.

    Attributes:
        loop: the event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._ended: deque[_Waiter] = deque()
        self._rung = False

    def call(self, answer: Future[Any], wait_s_max: float, then: Callable[[bool], None]) -> None:
        """Call back once, never at once: whether an answer of another thread came in time."""
        waiter = _Waiter(then)
        waiter.late = self.loop.call_later(wait_s_max, waiter.end, False)
        answer.add_done_callback(lambda _: self._ring(waiter))

    async def wait(self, answer: Future[Any], wait_s_max: float) -> bool:
        """Wait for an answer of another thread; False if it did not come in time. It is not cancelled."""
        ended = self.loop.create_future()
        self.call(answer, wait_s_max, lambda came: _end(ended, came))
        return await ended or answer.done()

    def _ring(self, waiter: _Waiter) -> None:
        """Have something called; on any thread.

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
            self._ended.popleft().end(True)


def _end(waiter: asyncio.Future[bool], came: bool) -> None:
    if not waiter.done():
        waiter.set_result(came)
