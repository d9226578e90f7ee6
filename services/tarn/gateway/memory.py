"""The memory that all requests of a gateway share, so that nobody keeps others out of it. On the event loop.

A body has its share before it is read, and keeps it until its rows are in the table, or certainly are not:
longer than its request, if that is answered with "unknown" while the rows are still on their way. An answer
that names many bad rows is larger than their body: it has a share until its client has read it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tarn.core.errors import InvalidError, UnavailableError

GRACE_S = 2.0
"""A body may take that long, in seconds, whatever its size."""
RATE_MIN = 256 << 10
"""Bytes per second that a body has to come with after that, while others wait for its room."""
LOOK_S = 0.25
"""How often slow bodies are looked for while somebody waits, in seconds."""


class SlowBodyError(InvalidError):
    """The body did not come in time (HTTP 408)."""


class Held:
    """What one request holds.

    Args:
        memory: the memory that it is of.
        who: the principal.
        size_bytes: how much it holds.
    """

    def __init__(self, memory: Memory, who: str, size_bytes: int) -> None:
        self._memory = memory
        self._until: Future[Any] | None = None
        self._limit: asyncio.Timeout | None = None
        self._began_s = 0.0
        self._came = 0
        self._gave_way = False
        self.who = who
        self.size_bytes = size_bytes

    def resize(self, size_bytes: int) -> None:
        """Hold so many bytes from now on. More than before are not waited for: they are there already."""
        self._memory.count(self.who, size_bytes - self.size_bytes)
        self.size_bytes = size_bytes

    def came(self, size_bytes: int) -> None:
        """Further bytes of the body have arrived."""
        self._came += size_bytes

    @asynccontextmanager
    async def arriving(self, wait_s_max: float) -> AsyncIterator[None]:
        """Read the body in the block.

        Raises:
            SlowBodyError: it takes longer than `wait_s_max` seconds, or it is slow while others wait.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(wait_s_max) as self._limit:
                self._began_s = loop.time()
                yield
        except TimeoutError as e:
            took_s = loop.time() - self._began_s
            why = (
                f"{self._came} bytes came in {took_s:.1f} s, under {RATE_MIN} a second, while others waited"
                if self._gave_way
                else f"the body did not come within {wait_s_max:g} s"
            )
            raise SlowBodyError(f"{why}; nothing of it was written, send it faster, or less at once") from e
        finally:
            self._limit = None

    def give_way_if_slow(self, now_s: float) -> None:
        """End the body if it comes too slowly."""
        if self._limit is None or self._gave_way or self._limit.expired():
            return
        if self._came < RATE_MIN * (now_s - self._began_s - GRACE_S):
            self._gave_way = True
            self._limit.reschedule(now_s)

    def stays_until(self, answer: Future[Any]) -> None:
        """Hold it beyond the block, until the rows are in the table or certainly are not."""
        self._until = answer

    def end(self) -> None:
        """Give it back, now or when the rows have arrived."""
        if self._until is None or self._until.done():
            self.resize(0)
            return
        loop = asyncio.get_running_loop()
        self._memory.late += 1

        def landed(_: Future[Any]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(back)

        def back() -> None:
            self._memory.late -= 1
            self.resize(0)

        self._until.add_done_callback(landed)


@dataclass(slots=True, eq=False)
class _Wanted:
    """A request that waits for room."""

    who: str
    size_bytes: int
    granted: asyncio.Future[None]


class Memory:
    """Bytes held at one time. Who holds least is next; one principal never gets more than two thirds.

    What its answers take beyond that counts for itself alone: it gets no room, and others have their third.

    Args:
        bytes_max: the total number of bytes.
        wait_s_max: the longest wait for a share, in seconds.

    Attributes:
        late: writes that hold their share beyond their request.
    """

    def __init__(self, bytes_max: int, *, wait_s_max: float) -> None:
        self.bytes_max = bytes_max
        self.late = 0
        self._wait_s_max = wait_s_max
        self._held = self._counted = 0
        self._by: Counter[str] = Counter()
        self._waiting: list[_Wanted] = []
        self._holding: set[Held] = set()
        self._looking: asyncio.Task[None] | None = None

    @property
    def held(self) -> int:
        """Bytes that are held."""
        return self._held

    @asynccontextmanager
    async def hold(self, size_bytes: int, *, who: str) -> AsyncIterator[Held]:
        """Have a share for the duration of the block, or as it says.

        Raises:
            UnavailableError: it did not become free in time.
        """
        share_max = self._share_max
        assert size_bytes <= share_max, (size_bytes, share_max)
        wanted = _Wanted(who, size_bytes, asyncio.get_running_loop().create_future())
        self._waiting.append(wanted)
        self._grant()
        try:
            if not wanted.granted.done():
                self._look()
                async with asyncio.timeout(self._wait_s_max):
                    await wanted.granted
        except BaseException as e:
            if wanted in self._waiting:
                self._waiting.remove(wanted)
            elif wanted.granted.done():
                self.count(who, -size_bytes)  # granted in the moment in which it was given up
            self._grant()
            if isinstance(e, TimeoutError):
                raise UnavailableError(self._full(wanted)) from e
            raise
        held = Held(self, who, size_bytes)
        self._holding.add(held)
        try:
            yield held
        finally:
            self._holding.discard(held)
            held.end()

    def grab(self, size_bytes: int, *, who: str) -> Held | None:
        """A share at once, until its `end`; None if there is no room for it, or others wait for some."""
        if (
            self._waiting
            or self._counted + size_bytes > self.bytes_max
            or self._by[who] + size_bytes > self._share_max
        ):
            return None
        return self.keep(size_bytes, who=who)

    def keep(self, size_bytes: int, *, who: str) -> Held:
        """A share of what is there already, until its `end`: it is not waited for."""
        self.count(who, size_bytes)
        return Held(self, who, size_bytes)

    def count(self, who: str, size_bytes: int) -> None:
        """Count bytes that are held, or negative ones for those that are not any more."""
        before = min(self._by[who], self._share_max)
        self._held += size_bytes
        self._by[who] += size_bytes
        self._counted += min(self._by[who], self._share_max) - before
        if not self._by[who]:
            del self._by[who]
        if size_bytes < 0:
            self._grant()

    @property
    def _share_max(self) -> int:
        return self.bytes_max * 2 // 3

    def _grant(self) -> None:
        """Give room to those who hold least, in order of arrival among equals."""
        while self._waiting:
            fitting = [one for one in self._waiting if self._by[one.who] + one.size_bytes <= self._share_max]
            if not fitting:
                return
            one = min(fitting, key=lambda each: self._by[each.who])
            if self._counted + one.size_bytes > self.bytes_max:
                return  # it is next: smaller ones of others do not go before it for ever
            self._waiting.remove(one)
            self.count(one.who, one.size_bytes)
            if not one.granted.done():
                one.granted.set_result(None)

    def _look(self) -> None:
        if self._looking is None or self._looking.done():
            self._looking = asyncio.ensure_future(self._end_slow_ones())

    async def _end_slow_ones(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            for held in list(self._holding):
                held.give_way_if_slow(loop.time())
            await asyncio.sleep(LOOK_S)

    def _full(self, wanted: _Wanted) -> str:
        late = f", {self.late} of them on their way to tables that do not confirm," if self.late else ""
        return (
            f"the gateway holds {self._held} bytes of writes{late} and of answers not read yet, "
            f"{self._by[wanted.who]} of this principal; at most {self.bytes_max} fit, {self._share_max} of "
            f"one principal: there was no room for {wanted.size_bytes} more within "
            f"{self._wait_s_max:g} s. Nothing of it was written, repeat it"
        )
