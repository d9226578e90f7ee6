"""A budget of memory that the requests of a server share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from tarn.core.errors import UnavailableError


class Share:
    """The bytes of a budget that one request holds."""

    def __init__(self, budget: Budget, size_bytes: int) -> None:
        self._budget = budget
        self.size_bytes = size_bytes

    def resize(self, size_bytes: int) -> None:
        """Hold so many bytes from now on. More than before are not waited for: they are there already."""
        self._budget.add(size_bytes - self.size_bytes)
        self.size_bytes = size_bytes

    @contextmanager
    def set_aside(self, size_bytes: int) -> Iterator[None]:
        """Hold nothing for the duration of the block, where others count the bytes, and so many after it."""
        self.resize(0)
        try:
            yield
        finally:
            self.resize(size_bytes)


class Budget:
    """A budget of bytes held at one time, granted in order of arrival.

    Args:
        bytes_max: the total number of bytes.
        wait_s_max: the longest wait for a share, seconds.
        who: the server, for messages.
    """

    def __init__(self, bytes_max: int, *, wait_s_max: float, who: str) -> None:
        self._who = who
        self.bytes_max = bytes_max
        self._wait_s_max = wait_s_max
        self._held = 0
        self._first = asyncio.Lock()
        self._room = asyncio.Event()

    @asynccontextmanager
    async def hold(self, size_bytes: int) -> AsyncIterator[Share]:
        """Reserve `size_bytes` (at most `bytes_max`) for the duration of the block, or as its share says.

        Raises:
            UnavailableError: the bytes did not become free in time.
        """
        assert size_bytes <= self.bytes_max, (size_bytes, self.bytes_max)
        try:
            async with asyncio.timeout(self._wait_s_max), self._first:
                while self._held + size_bytes > self.bytes_max:
                    self._room.clear()
                    await self._room.wait()
                self._held += size_bytes
        except TimeoutError as e:
            raise UnavailableError(
                f"{self._who} holds {self._held} bytes of other requests, at most {self.bytes_max} fit; "
                f"there was no room for {size_bytes} more within {self._wait_s_max:g} s, try again"
            ) from e
        share = Share(self, size_bytes)
        try:
            yield share
        finally:
            share.resize(0)

    def add(self, size_bytes: int) -> None:
        """Count bytes that are held, or negative ones for those that are not any more."""
        self._held += size_bytes
        self._room.set()
