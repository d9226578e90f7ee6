"""Deep health checks for whoever asks, so that nobody can have a service write again and again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

import anyio.to_thread

DEEP_KEPT_S = 3.0
"""How long the result of a deep check is the answer to everybody, in seconds: anyone may ask for one."""


class Looks(Protocol):
    """Finds what is wrong, as `Health` does."""

    def faults(self, *, deep: bool = False) -> list[str]:
        """Why the gateway cannot work now; empty if it can. With `deep` it blocks."""


class OneDeepLook:
    """Deep checks for whoever asks, without a token: one at a time, its result for all. On the event loop.

    Args:
        looks: finds what is wrong.
        clock: monotonic time in seconds.
    """

    def __init__(self, looks: Looks, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._looks = looks
        self._clock = clock
        self._task: asyncio.Task[list[str]] | None = None
        self._until_s = float("-inf")

    async def faults(self) -> list[str]:
        """What the check under way finds, or the last one if it ended just now."""
        if self._task is None or (self._task.done() and self._clock() >= self._until_s):
            self._task = asyncio.ensure_future(self._look())
        return await asyncio.shield(self._task)

    async def _look(self) -> list[str]:
        try:
            return await anyio.to_thread.run_sync(lambda: self._looks.faults(deep=True))
        finally:
            self._until_s = self._clock() + DEEP_KEPT_S
