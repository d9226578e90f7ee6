"""Connections: how long a client may keep one without a whole request, and who leaves when all are taken.

uvicorn's own limit counts a silent connection like a working one: a thousand of them lock everybody out. Here
a new connection takes the place of the one that has waited longest, of a stranger first. A stranger is a
connection on which no good token was shown yet.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_WAIT_S = 10
ANSWER_WAIT_S = 60
CONNECTIONS_MAX = 512
WELCOME = "tarn.welcome"


class Visitors:
    """The connections of all listeners.

    Args:
        count_max: how many there may be at one time.
    """

    def __init__(self, count_max: int = CONNECTIONS_MAX) -> None:
        self._count_max = count_max
        self._all: set[Door] = set()
        # Those that we wait for, in the order in which we began to: strangers, then the others.
        self._strangers: dict[Door, None] = {}
        self._guests: dict[Door, None] = {}

    def __len__(self) -> int:
        return len(self._all)

    def came(self, door: Door) -> bool:
        """Take in a new connection; False if all others are being served and there is no place for it."""
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
        """It is the client's turn."""
        if door not in self._strangers and door not in self._guests:
            (self._guests if door.known else self._strangers)[door] = None

    def works(self, door: Door) -> None:
        """It is our turn."""
        self._strangers.pop(door, None)
        self._guests.pop(door, None)

    def left(self, door: Door) -> None:
        """The connection is gone, or on its way."""
        self._all.discard(door)
        self.works(door)


class Door(H11Protocol):
    """uvicorn's protocol with limits on what a client may make us wait for.

    A whole head must come within `head_wait_s`, however its bytes are spread, and an answer must be read
    within `answer_wait_s`. A request of a known client counts as work as soon as its head is there, one of a
    stranger when its body is there too.
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
        """The client has shown a good token."""
        if not self.known:
            self.visitors.works(self)
            self.known = True
            self._settle()

    def leave(self) -> None:
        """Close the connection; what it has been sent already still arrives."""
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
        """uvicorn's: the answer is written."""
        super().on_response_complete()
        self._settle()
        if self.conn.their_state is h11.SEND_BODY and self._late is None:
            self._expect_head()  # a body that nobody wants comes to its end soon, or the connection does

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
        """Note whose turn it is."""
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
    """The protocol class of the listeners that share these visitors."""

    class OneDoor(Door):
        pass

    OneDoor.visitors = visitors
    OneDoor.head_wait_s = head_wait_s
    OneDoor.answer_wait_s = answer_wait_s
    return OneDoor
