"""Memory limits of request bodies: an upper bound of their parsed size, and a shared budget."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from tarn.core.errors import InvalidError, UnavailableError

# Bytes of a parsed value on CPython 3.11 to 3.13, rounded up: an object, a list, and any value with its key
# or slot. Delimiters inside strings are counted too: this is a bound, not a measurement.
OBJECT_BYTES = 240
LIST_BYTES = 110
VALUE_BYTES = 96
# The body itself and its strings: one character beyond ASCII may make each one of its string take 4 bytes.
PLAIN_FACTOR = 2
TEXT_FACTOR = 5
WEIGHT_BYTES_MAX = 96 * 1024 * 1024


class TooLargeError(InvalidError):
    """A request body over a size limit (HTTP 413)."""


def weight(body: bytes) -> int:
    """Return an upper bound of the memory that a JSON body takes once parsed, bytes.

    Raises:
        TooLargeError: the bound is over the limit of a request.
    """
    plain = body.isascii() and b"\\" not in body
    bound = (
        (PLAIN_FACTOR if plain else TEXT_FACTOR) * len(body)
        + OBJECT_BYTES * body.count(b"{")
        + LIST_BYTES * body.count(b"[")
        + VALUE_BYTES * (body.count(b",") + body.count(b":"))
    )
    if bound > WEIGHT_BYTES_MAX:
        raise TooLargeError(
            f"The request body of {len(body)} bytes may take {bound} bytes once parsed, at most "
            f"{WEIGHT_BYTES_MAX} are allowed; split the request"
        )
    return bound


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
    """

    def __init__(self, bytes_max: int, *, wait_s_max: float) -> None:
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
                f"The catalog holds {self._held} bytes of other requests, at most {self.bytes_max} fit; "
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
