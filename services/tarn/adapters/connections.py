"""Connections of an HTTP server: time limits for an incomplete request, eviction when all are taken.

uvicorn's own limit counts an idle connection like an active one: a thousand idle ones block all clients. Here
a new connection evicts the one that has been idle longest, unauthenticated ones first. A connection is
authenticated once a valid token was sent on it.
"""

from __future__ import annotations

import asyncio
from enum import Enum, auto
from typing import Any

from httptools import HttpParserCallbackError, HttpParserError, HttpParserUpgrade
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from tarn.core.http_heads import END, Frame, HeadError, frame_of, is_hopeless

HEAD_BYTES_MAX = 64 << 10
HEAD_WAIT_S = 10
ANSWER_WAIT_S = 60
CONNECTIONS_MAX = 512
WELCOME = "tarn.welcome"


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


class Stage(Enum):
    """What the next bytes of a connection are."""

    HEAD = auto()
    BODY = auto()
    CHUNKS = auto()
    NEXT = auto()  # of the next message, which waits until this one is answered


class Door(HttpToolsProtocol):
    """uvicorn's HTTP protocol with limits on the client, and one reading of what it sends.

    A complete head must arrive within `head_wait_s` seconds, however its bytes are spread, and a response
    must be read within `answer_wait_s` seconds. A request counts as active once its head is complete on an
    authenticated connection, and once its body is complete on any other.

    The parser gets one message at a time, and a head only when it is complete and checked: uvicorn's protocol
    would take in as many requests as come, and keep an endless head.
    """

    visitors: Visitors
    head_bytes_max: int = HEAD_BYTES_MAX
    head_wait_s: float = HEAD_WAIT_S
    answer_wait_s: float = ANSWER_WAIT_S

    def __init__(self, *what: Any, **more: Any) -> None:
        super().__init__(*what, **more)
        self.known = False
        self._late: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._stage = Stage.HEAD
        # What has come and is not parsed; of a body in chunks, `_parsed` bytes of it are.
        self._came = b""
        self._parsed = 0
        self._left = 0  # of a body
        self._idle_chunk_bytes = 0  # of a body in chunks, without any byte of the body
        self._frame: Frame | None = None
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
        self._came = b""
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._unset_keepalive_if_required()
        self._came = self._came + data if self._came else bytes(data)
        self._read()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field of the head; those that follow a body in chunks are left out, as they are unchecked."""
        if self._stage is Stage.HEAD:
            super().on_header(name, value.rstrip(b" \t"))

    def on_headers_complete(self) -> None:
        """Called by the parser once per head."""
        assert self._frame is not None
        self.expect_100_continue &= not self._frame.old
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Called by the parser with a part of the body."""
        self._idle_chunk_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Called by the parser at the end of the request."""
        super().on_message_complete()
        self._stage = Stage.NEXT

    def on_response_complete(self) -> None:
        """Called by uvicorn when the response is written."""
        super().on_response_complete()
        self._read()

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

    def _read(self) -> None:
        """Give the parser what has come, to the end of the message that is being served."""
        while not self.transport.is_closing():
            if self._stage is Stage.NEXT:
                if self._serving:
                    break
                self._stage = Stage.HEAD
            if not self._came or not self._parse():
                break
        if self._stage is Stage.NEXT and self._came:
            self.flow.pause_reading()
        self._settle()
        begun = bool(self._came) or self._stage in (Stage.BODY, Stage.CHUNKS)
        if begun and not self._serving and self._late is None and not self.transport.is_closing():
            self._expect_head()  # an unread body must end within the limit too

    def _parse(self) -> bool:
        """Give the parser a head, or a part of a body; False if more has to come."""
        if self._stage is Stage.HEAD:
            return self._parse_head()
        if self._stage is Stage.CHUNKS:
            return self._parse_chunks()
        part, self._came = self._came[: self._left], self._came[self._left :]
        self._left -= len(part)
        return self._feed(part) and self._ended(at_end=self._left == 0)

    def _parse_head(self) -> bool:
        end = self._came.find(END)
        size = len(self._came) if end < 0 else end + len(END)
        if size > self.head_bytes_max:
            self._refuse(431, f"the head of the request has more than {self.head_bytes_max} bytes; send less")
            return False
        if end < 0 and not is_hopeless(self._came):
            return False
        try:
            self._frame = frame_of(self._came[:size])
        except HeadError as e:
            self._refuse(400, str(e))
            return False
        self._unset_keepalive_if_required()
        self._came = self._came[size:]
        self._left = self._frame.body_bytes or 0
        if not self._feed(self._frame.head):
            return False
        if not self._ended(at_end=self._frame.body_bytes == 0):
            return False
        if self._stage is Stage.HEAD:
            self._stage = Stage.CHUNKS if self._frame.body_bytes is None else Stage.BODY
            self._parsed = self._idle_chunk_bytes = 0
        return True

    def _parse_chunks(self) -> bool:
        """Parse to the end of the message, which is at an empty line wherever it is, or of what has come."""
        came, parsed = self._came, self._parsed
        while parsed < len(came) and self._stage is Stage.CHUNKS:
            end = came.find(END, max(parsed - len(END) + 1, 0))
            until = len(came) if end < 0 else end + len(END)
            self._idle_chunk_bytes += until - parsed
            if not self._feed(came[parsed:until]):
                return False
            if self._idle_chunk_bytes > self.head_bytes_max:
                self._refuse(400, f"the body has more than {self.head_bytes_max} bytes between its chunks")
                return False
            parsed = until
        if self._stage is Stage.CHUNKS:
            self._came, self._parsed = came[1 - len(END) :], min(parsed, len(END) - 1)
            return False
        self._came, self._parsed = came[parsed:], 0
        return True

    def _feed(self, part: bytes) -> bool:
        """Give the parser a part; False if it is refused."""
        try:
            self.parser.feed_data(part)
        except HttpParserCallbackError:
            raise  # a defect: the event loop logs it and closes the connection
        except (HttpParserError, HttpParserUpgrade) as e:
            self._refuse(400, f"the request is not one of HTTP/1.1: {e}")
            return False
        return True

    def _ended(self, *, at_end: bool) -> bool:
        """Whether parser and frame agree that the message ends here; if not, the connection does."""
        if (self._stage is Stage.NEXT) is at_end:
            return True
        self._refuse(400, "the length of the request's body is not clear")
        return False

    def _refuse(self, status: int, why: str) -> None:
        """Answer what cannot be read, and close; a response that has begun is cut off instead."""
        self.logger.warning("Invalid HTTP request received: %s", why[:200])
        self._came = b""
        begun = self._stage in (Stage.BODY, Stage.CHUNKS)
        if self._serving:
            begun = self.cycle.response_started
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if not begun:
            text = why.encode("ascii", errors="replace")
            fields = (b"content-type: text/plain", b"content-length: %d" % len(text), b"connection: close")
            self.transport.write(STATUS_LINE[status] + b"\r\n".join((*fields, b"", text)))
        self.leave()

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
    visitors: Visitors,
    *,
    head_bytes_max: int = HEAD_BYTES_MAX,
    head_wait_s: float = HEAD_WAIT_S,
    answer_wait_s: float = ANSWER_WAIT_S,
) -> type[Door]:
    """Return the protocol class of the listeners that share `visitors`.

    Args:
        visitors: the shared connections.
        head_bytes_max: size of a request head.
        head_wait_s: time limit of a request head, seconds.
        answer_wait_s: time limit of reading a response, seconds.
    """

    class OneDoor(Door):
        pass

    OneDoor.visitors = visitors
    OneDoor.head_bytes_max = head_bytes_max
    OneDoor.head_wait_s = head_wait_s
    OneDoor.answer_wait_s = answer_wait_s
    return OneDoor
