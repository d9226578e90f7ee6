"""Lines of requests that wait for a table, on the event loop: a waiting request takes no thread.

Each table has a line of its own, first come, first served, so that writers of one table leave the threads to
all others. A request that finds the line full is refused, and one whose client is gone leaves it.

A writer whose commit was refused because another one was faster would lose again to whoever does not have to
load the table first. If it asks for that, its refusal is held back until the next turn can be reserved for
it: it builds its commit again while the others wait (ADR 56). A line whose turn nobody took, because its
writer is slow or gone, reserves none for a while.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import ClientDisconnect

from tarn_catalog.state.turns import WAIT_S_MAX, WAITING_MAX, too_long, too_many

WAITING_BYTES_MAX = 16 * 1024 * 1024
ALL_WAITING_BYTES_MAX = 64 * 1024 * 1024
RESERVED_S = 0.5
UNUSED_S = 10.0
RESERVE_WAIT_S_MAX = 5.0


@dataclass(slots=True)
class _Line:
    """A line.

    Attributes:
        served: how many requests are being served.
        waiting: for each waiting request, what is set once it is its turn.
        waiting_bytes: the length of the bodies of the waiting requests together, bytes.
        refused: for each refused writer that waits for a turn of its own, what is set once it is reserved.
        first: how many of the waiting requests are served before the next turn is reserved.
        reserved: the token of the reserved turn; None without one.
        until: what ends the reserved turn if nobody takes it; None once it is taken.
    """

    served: int = 0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)
    waiting_bytes: int = 0
    refused: deque[asyncio.Future[str | None]] = field(default_factory=deque)
    first: int = 0
    reserved: str | None = None
    until: asyncio.TimerHandle | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a request has to wait.

    Attributes:
        what: what it changes, such as "a.b"; the line's name.
        width: how many requests of the line are served at one time.
    """

    what: str
    width: int = 1


class Lines:
    """All lines of a process.

    Args:
        waiting_max: how many requests may wait in one line.
        waiting_bytes_max: how long their bodies may be together, bytes; one request may always wait.
        all_waiting_bytes_max: how long the bodies in all lines may be together, bytes.
        wait_s_max: how long a request waits, seconds.
        reserved_s: how long a reserved turn is kept for its writer, seconds.
        reserve_wait_s_max: how long a refusal is held back at most, seconds.
        unused_s: how long a line reserves no turn after one that nobody took, seconds.
    """

    def __init__(
        self,
        *,
        waiting_max: int = WAITING_MAX,
        waiting_bytes_max: int = WAITING_BYTES_MAX,
        all_waiting_bytes_max: int = ALL_WAITING_BYTES_MAX,
        wait_s_max: float = WAIT_S_MAX,
        reserved_s: float = RESERVED_S,
        reserve_wait_s_max: float = RESERVE_WAIT_S_MAX,
        unused_s: float = UNUSED_S,
    ) -> None:
        self._waiting_max = waiting_max
        self._waiting_bytes_max = waiting_bytes_max
        self._all_waiting_bytes_max = all_waiting_bytes_max
        self._waiting_bytes = 0
        self._wait_s_max = wait_s_max
        self._reserved_s = reserved_s
        self._reserve_wait_s_max = reserve_wait_s_max
        self._unused_s = unused_s
        # Of each line with a turn that nobody took: when, by the loop's clock, it reserves turns again.
        self._none_until: dict[str, float] = {}
        self._lines: dict[str, _Line] = {}

    def waiting(self, what: str) -> int:
        """Return how many requests wait in a line."""
        line = self._lines.get(what)
        return len(line.waiting) if line else 0

    @asynccontextmanager
    async def hold(
        self,
        place: Place,
        body_bytes: int,
        gone: Callable[[], Awaitable[None]],
        waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
        *,
        token: str | None = None,
    ) -> AsyncIterator[None]:
        """Wait for one's turn and have it for the duration of the block.

        Args:
            place: the line.
            body_bytes: the length of the request's body, bytes.
            gone: returns once the client has closed the connection.
            waiting: what holds while the request waits, and its body is counted here.
            token: token of the turn that was reserved for this request; another one counts as none.

        Raises:
            UnavailableError: the line is full, or the turn did not come in time.
            ClientDisconnect: the client is gone.
        """
        line = self._lines.setdefault(place.what, _Line())
        mine = line.until is not None and line.reserved == token
        if line.until is not None and mine:
            line.until.cancel()
            line.until = None
            line.served += 1  # nobody else is served while a turn is reserved
        elif line.served < place.width and line.reserved is None:
            line.served += 1
        else:
            await self._wait(line, place, body_bytes, gone, waiting)
        try:
            yield
        finally:
            line.served -= 1
            if mine:
                self._end_reserved(line)
            self._go_on(line, place)

    async def reserve(self, place: Place, gone: Callable[[], Awaitable[None]]) -> str | None:
        """Wait for a turn that is kept for one writer: nobody else is served before it comes with the token.

        Args:
            place: the line.
            gone: returns once the client has closed the connection.

        Returns:
            The token; None if too many wait, none could be reserved in time, one was not taken a short time
            ago, or the line serves several at a time.

        Raises:
            ClientDisconnect: the client is gone.
        """
        if place.width > 1 or self._none_until.get(place.what, 0.0) > asyncio.get_running_loop().time():
            return None
        line = self._lines.setdefault(place.what, _Line())
        if len(line.waiting) + len(line.refused) >= self._waiting_max:
            return None
        if not line.refused and line.reserved is None:
            line.first = len(line.waiting)
        mine: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        left = asyncio.ensure_future(gone())
        either: set[asyncio.Future[Any]] = {mine, left}
        line.refused.append(mine)
        self._go_on(line, place)
        try:
            await asyncio.wait(either, timeout=self._reserve_wait_s_max, return_when=asyncio.FIRST_COMPLETED)
        finally:
            left.cancel()
            if not mine.done():
                line.refused.remove(mine)
                self._go_on(line, place)
        if mine.done():
            return mine.result()
        if left.done():
            raise ClientDisconnect
        return None

    async def _wait(
        self,
        line: _Line,
        place: Place,
        body_bytes: int,
        gone: Callable[[], Awaitable[None]],
        waiting: Callable[[], AbstractContextManager[None]],
    ) -> None:
        if (
            len(line.waiting) + len(line.refused) >= self._waiting_max
            or (line.waiting and line.waiting_bytes + body_bytes > self._waiting_bytes_max)
            or self._waiting_bytes + body_bytes > self._all_waiting_bytes_max
        ):
            raise too_many(place.what, len(line.waiting) + len(line.refused))
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        left = asyncio.ensure_future(gone())
        line.waiting.append(turn)
        line.waiting_bytes += body_bytes
        self._waiting_bytes += body_bytes
        try:
            with waiting():
                await asyncio.wait(
                    {turn, left}, timeout=self._wait_s_max, return_when=asyncio.FIRST_COMPLETED
                )
        except asyncio.CancelledError:
            if turn.done():
                line.served -= 1
                self._go_on(line, place)
            raise
        finally:
            left.cancel()
            line.waiting_bytes -= body_bytes
            self._waiting_bytes -= body_bytes
            if not turn.done():
                line.waiting.remove(turn)
        if not turn.done():
            raise ClientDisconnect if left.done() else too_long(place.what, self._wait_s_max)

    def _go_on(self, line: _Line, place: Place) -> None:
        """Give free turns to those who wait longest; a line that nobody is in is forgotten.

        Between two reserved turns those are served who had come before the first of them ended: what they
        built on is mostly out of date, so they are refused soon, and may ask for a turn too.
        """
        line.first = min(line.first, len(line.waiting))
        while line.reserved is None and line.served < place.width and line.waiting:
            if line.refused and not line.first:
                break
            line.first = max(line.first - 1, 0)
            line.served += 1
            line.waiting.popleft().set_result(None)
        if line.reserved is None and not line.served and line.refused:
            line.reserved = secrets.token_urlsafe(12)
            line.refused.popleft().set_result(line.reserved)
            line.until = asyncio.get_running_loop().call_later(self._reserved_s, self._expire, line, place)
        idle = not line.served and line.reserved is None and not line.waiting and not line.refused
        if idle and self._lines.get(place.what) is line:
            del self._lines[place.what]

    def _expire(self, line: _Line, place: Place) -> None:
        """End a reserved turn that nobody took, and reserve none for a while."""
        now_s = asyncio.get_running_loop().time()
        self._none_until = {what: until for what, until in self._none_until.items() if until > now_s}
        self._none_until[place.what] = now_s + self._unused_s
        while line.refused:
            line.refused.popleft().set_result(None)
        self._end_reserved(line)
        self._go_on(line, place)

    def _end_reserved(self, line: _Line) -> None:
        line.reserved, line.until = None, None
        line.first = len(line.waiting)
