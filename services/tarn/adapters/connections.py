"""Connections of an HTTP server: time limits for an incomplete request, eviction when all are taken.

uvicorn's own limit counts an idle connection like an active one: a thousand idle ones block all clients. Here
a new connection evicts the one that has been idle longest, unauthenticated ones first. A connection is
authenticated once a valid token was sent on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_WAIT_S = 10
ANSWER_WAIT_S = 60
CONNECTIONS_MAX = 512
WELCOME = "tarn.welcome"


class Listener(uvicorn.Server):
    """A uvicorn server, perhaps one of several in a process; the caller handles signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers."""
        yield


class Visitors:
    """The connections of all listeners.

    Args:
        count_max: the maximum number of simultaneous connections.
    """

    def __init__(self, count_max: int = CONNECTIONS_MAX) -> None:
        self._count_max = count_max
        self._all: set[Door] = set()
        # Idle connections in the order in which they became idle: unauthenticated, then authenticated.
        self._strangers: dict[Door, None] = {}
        self._guests: dict[Door, None] = {}

    def __len__(self) -> int:
        return len(self._all)

    def came(self, door: Door) -> bool:
        """Register a new connection, evicting idle ones; False if the limit is reached and none is idle."""
        self._all.add(door)
        self.waits(door)
        while len(self._all) > self._count_max:
            oldest = next((one for one in (*self._strangers, *self._guests) if one is not door), None)
            if oldest is None:
                return False
            self.left(oldest)
            oldest.leave()
        return True

    def waits(self, door: Door) -> None:
        """Mark a connection as idle: waiting for the client."""
        if door not in self._strangers and door not in self._guests:
            (self._guests if door.known else self._strangers)[door] = None

    def works(self, door: Door) -> None:
        """Mark a connection as active: a request is being served."""
        self._strangers.pop(door, None)
        self._guests.pop(door, None)

    def left(self, door: Door) -> None:
        """Remove a connection that is closed or closing."""
        self._all.discard(door)
        self.works(door)


class Door(H11Protocol):
    """uvicorn's HTTP protocol with time limits on the client.

    A complete head must arrive within `head_wait_s` seconds, however its bytes are spread, and a response
    must be read within `answer_wait_s` seconds. A request counts as active once its head is complete on an
    authenticated connection, and once its body is complete on any other.
    """

    visitors: Visitors
    head_wait_s: float = HEAD_WAIT_S
    answer_wait_s: float = ANSWER_WAIT_S

    def __init__(self, *what: Any, **more: Any) -> None:
        super().__init__(*what, **more)
        self.known = False
        self._late: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self.app_state = {**self.app_state, WELCOME: self.welcome}

    def welcome(self) -> None:
        """Mark the connection as authenticated."""
        if not self.known:
            self.visitors.works(self)
            self.known = True
            self._settle()

    def leave(self) -> None:
        """Close the connection; data already sent is still delivered."""
        if not self.transport.is_closing():
            self.transport.close()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        if not self.visitors.came(self):
            self.limit_concurrency = 0  # uvicorn then answers its request with 503, and closes
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self.visitors.left(self)
        self._forget_head()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        super().data_received(data)
        self._settle()
        if not self._serving and self._late is None:
            self._expect_head()

    def on_response_complete(self) -> None:
        """Called by uvicorn when the response is written."""
        super().on_response_complete()
        self._settle()
        if self.conn.their_state is h11.SEND_BODY and self._late is None:
            self._expect_head()  # an unread body must end within the limit, or the connection is closed

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(self.answer_wait_s, self.transport.abort)

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    @property
    def _serving(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _settle(self) -> None:
        """Update whether the connection is idle or active."""
        if self.transport.is_closing():
            return
        if self._serving:
            self._forget_head()
            if self.known or not self.cycle.more_body:
                self.visitors.works(self)
        else:
            self.visitors.waits(self)

    def _expect_head(self) -> None:
        self._late = self.loop.call_later(self.head_wait_s, self.leave)

    def _forget_head(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


def door(
    visitors: Visitors, *, head_wait_s: float = HEAD_WAIT_S, answer_wait_s: float = ANSWER_WAIT_S
) -> type[Door]:
    """Return the protocol class of the listeners that share `visitors`.

    Args:
        visitors: the shared connections.
        head_wait_s: time limit of a request head, seconds.
        answer_wait_s: time limit of reading a response, seconds.
    """

    class OneDoor(Door):
        pass

    OneDoor.visitors = visitors
    OneDoor.head_wait_s = head_wait_s
    OneDoor.answer_wait_s = answer_wait_s
    return OneDoor
