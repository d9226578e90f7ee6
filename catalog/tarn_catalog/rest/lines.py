"""Lines of requests that wait for a table, on the event loop: a waiting request takes no thread.

Each table has a line of its own, first come, first served, so that writers of one table leave the threads to
all others. A request that finds the line full is refused, and one whose client is gone leaves it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field

from starlette.requests import ClientDisconnect

from tarn_catalog.state.turns import WAIT_S_MAX, WAITING_MAX, too_long, too_many

WAITING_BYTES_MAX = 16 * 1024 * 1024
ALL_WAITING_BYTES_MAX = 64 * 1024 * 1024


@dataclass(slots=True)
class _Line:
    """A line.

    Attributes:
        served: how many requests are being served.
        waiting: for each waiting request, what is set once it is its turn.
        waiting_bytes: the length of the bodies of the waiting requests together, bytes.
    """

    served: int = 0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)
    waiting_bytes: int = 0


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
    """

    def __init__(
        self,
        *,
        waiting_max: int = WAITING_MAX,
        waiting_bytes_max: int = WAITING_BYTES_MAX,
        all_waiting_bytes_max: int = ALL_WAITING_BYTES_MAX,
        wait_s_max: float = WAIT_S_MAX,
    ) -> None:
        self._waiting_max = waiting_max
        self._waiting_bytes_max = waiting_bytes_max
        self._all_waiting_bytes_max = all_waiting_bytes_max
        self._waiting_bytes = 0
        self._wait_s_max = wait_s_max
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
    ) -> AsyncIterator[None]:
        """Wait for one's turn and have it for the duration of the block.

        Args:
            place: the line.
            body_bytes: the length of the request's body, bytes.
            gone: returns once the client has closed the connection.
            waiting: what holds while the request waits, and its body is counted here.

        Raises:
            UnavailableError: the line is full, or the turn did not come in time.
            ClientDisconnect: the client is gone.
        """
        line = self._lines.setdefault(place.what, _Line())
        if line.served < place.width:
            line.served += 1
        else:
            await self._wait(line, place, body_bytes, gone, waiting)
        try:
            yield
        finally:
            self._next(line, place)

    async def _wait(
        self,
        line: _Line,
        place: Place,
        body_bytes: int,
        gone: Callable[[], Awaitable[None]],
        waiting: Callable[[], AbstractContextManager[None]],
    ) -> None:
        if (
            len(line.waiting) >= self._waiting_max
            or (line.waiting and line.waiting_bytes + body_bytes > self._waiting_bytes_max)
            or self._waiting_bytes + body_bytes > self._all_waiting_bytes_max
        ):
            raise too_many(place.what, len(line.waiting))
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
                self._next(line, place)
            raise
        finally:
            left.cancel()
            line.waiting_bytes -= body_bytes
            self._waiting_bytes -= body_bytes
            if not turn.done():
                line.waiting.remove(turn)
        if not turn.done():
            raise ClientDisconnect if left.done() else too_long(place.what, self._wait_s_max)

    def _next(self, line: _Line, place: Place) -> None:
        """Give the turn that ends to who waits longest; a line that nobody is in is forgotten."""
        if line.waiting:
            line.waiting.popleft().set_result(None)
            return
        line.served -= 1
        if not line.served:
            del self._lines[place.what]
