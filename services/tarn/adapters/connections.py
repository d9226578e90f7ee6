"""Connections of an HTTP server: time limits for an incomplete request, eviction when all are taken.

uvicorn's own limit counts an idle connection like an active one: a thousand idle ones block all clients. Here
a new connection evicts the one that has been idle longest, unauthenticated ones first. A connection is
authenticated once a valid token was sent on it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, ClassVar, Protocol

from httptools import HttpParserCallbackError, HttpParserError, HttpParserUpgrade
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.flow_control import CLOSE_HEADER, FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from tarn.core.http_answers import Answer, Answered, nobody_asks
from tarn.core.http_heads import END, Frame, HeadError, frame_of, is_hopeless

TURN_S = 0.002
"""How long one connection's chunks are parsed before others have their turn, in seconds."""
PIECE_BYTES_MAX = 4 << 10
"""The most of a body in chunks that is parsed between two looks at the clock, in bytes."""
HEAD_BYTES_MAX = 64 << 10
HEAD_WAIT_S = 10
ANSWER_WAIT_S = 60
CONNECTIONS_MAX = 512
QUICK_BYTES_MAX = 64 << 10
"""Size of a body that is handed over with its head."""
BODILESS = frozenset((204, 304))
WELCOME = "tarn.welcome"
READ = "tarn.read"
"""What the state of a request has: who was found known is welcome, and `Door.when_read`."""


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
        """Mark a connection as idle: waiting for the client, if only to read what is left of an answer."""
        if door in self._all and door not in self._strangers and door not in self._guests:
            (self._guests if door.known else self._strangers)[door] = None

    def works(self, door: Door) -> None:
        """Mark a connection as active: a request is being served."""
        self._strangers.pop(door, None)
        self._guests.pop(door, None)

    def left(self, door: Door) -> None:
        """Remove a connection that is closed or closing."""
        self._all.discard(door)
        self.works(door)


class Flow(FlowControl):
    """uvicorn's flow of a connection, which can be held: nothing is read then, whoever wishes it."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self._held = False

    def hold(self) -> None:
        """Read nothing until `go_on`."""
        self._held = True
        self._transport.pause_reading()

    def go_on(self) -> None:
        """Read again, unless reading is paused."""
        self._held = False
        if not self.read_paused:
            self._transport.resume_reading()

    def resume_reading(self) -> None:
        """See `FlowControl`; if the flow is held, it is for later."""
        if self._held:
            self.read_paused = False
        else:
            super().resume_reading()


def _ending_unasked(app: ASGI3Application, cycle: RequestResponseCycle) -> ASGI3Application:
    """An application whose answer ends the connection if the client was not asked for its body.

    Such a client may leave the body out, and its next request would be read as that.
    """

    async def run(scope: Any, receive: Any, send: Any) -> None:
        async def answer(message: Any) -> None:
            unasked = cycle.waiting_for_100_continue and cycle.more_body
            if unasked and message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), CLOSE_HEADER]}
            await send(message)

        await app(scope, receive, answer)

    return run


class Quick(Protocol):
    """Takes requests that have come whole, and are as nearly all are. On the event loop."""

    def __call__(self, head: bytes, body: bytes, answered: Answered) -> Callable[[], None] | None:
        """Take a request, or leave it to the application.

        Args:
            head: its head, which was checked.
            body: its body.
            answered: to be called with the answer, later and on the loop.

        Returns:
            What answers at once that the server ends; None if the request was not taken, and nothing of it
            was done.
        """


class Stage(Enum):
    """What the next bytes of a connection are."""

    HEAD = auto()
    BODY = auto()
    CHUNKS = auto()
    NEXT = auto()  # of the next message, which waits until this one is answered


class Door(HttpToolsProtocol):
    """uvicorn's HTTP protocol with limits on the client, and one reading of what it sends.

    A complete head must arrive within `head_wait_s` seconds, however its bytes are spread, and a response
    must be read within `answer_wait_s` seconds, and so must what is left of it when the connection is closed:
    a transport waits for that without end. A request counts as active once its head is complete on an
    authenticated connection, and once its body is complete on any other.

    The parser gets one message at a time, and a head only when it is complete and checked: uvicorn's protocol
    would take in as many requests as come, and keep an endless head.
    """

    visitors: Visitors
    head_bytes_max: int = HEAD_BYTES_MAX
    head_wait_s: float = HEAD_WAIT_S
    answer_wait_s: float = ANSWER_WAIT_S
    quick: ClassVar[Quick | None] = None
    quick_reads: ClassVar[Quick | None] = None

    def __init__(self, *what: Any, **more: Any) -> None:
        super().__init__(*what, **more)
        self.known = False
        self._late: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._stage = Stage.HEAD
        # What has come. Of a body in chunks, `_parsed` bytes of it are parsed; in those of a head is no end.
        self._came = b""
        self._parsed = 0
        self._left = 0  # of a body
        self._idle_chunk_bytes = 0  # of a body in chunks, without any byte of the body
        self._frame: Frame | None = None
        # Of a request that `quick` has: what ends it, and whether the connection ends with its answer.
        self._give_up: Callable[[], None] | None = None
        self._last = False
        self._answer: asyncio.Future[None] | None = None
        self._when_read: list[Callable[[], None]] = []
        self.app_state = {**self.app_state, WELCOME: self.welcome, READ: self.when_read}

    def welcome(self) -> None:
        """Mark the connection as authenticated."""
        if not self.known and not self.transport.is_closing():
            self.visitors.works(self)
            self.known = True
            self._settle()

    def when_read(self, then: Callable[[], None]) -> None:
        """Call back once the client has read nearly all that was written to it, or is gone."""
        if self.flow.write_paused:
            self._when_read.append(then)
        else:
            then()

    def _is_read(self) -> None:
        waiting, self._when_read = self._when_read, []
        for then in waiting:
            then()

    def leave(self) -> None:
        """Close the connection; data already sent is still delivered. One that is closing ends now."""
        if self.transport.is_closing():
            self.transport.abort()
            return
        self._forget_head()
        self.transport.close()
        self._expect_end()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        self.flow = self._flow = Flow(transport)
        if not self.visitors.came(self):
            self.limit_concurrency = 0  # uvicorn then answers its request with 503, and closes
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self.visitors.left(self)
        self._forget_head()
        self._forget_end()
        self._unset_keepalive_if_required()  # or its timer keeps all of this after a reset
        self._came = b""
        super().connection_lost(exc)
        self._is_read()

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

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        if cycle.waiting_for_100_continue:
            app = _ending_unasked(app, cycle)
        super()._start_asgi_task(cycle, app)

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

    def shutdown(self) -> None:
        """Called by the server when it ends; it waits for its tasks, and cancels them at the end."""
        if self._give_up is None:
            super().shutdown()
            return
        self._last = True
        task = self.loop.create_task(self._answer_comes())
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    async def _answer_comes(self) -> None:
        self._answer = self.loop.create_future()
        try:
            await self._answer
        except asyncio.CancelledError:
            if self._give_up is not None:
                self._give_up()

    def _answered(self, answer: Answer, read: Callable[[], None] = nobody_asks) -> None:
        """Write the answer to the request that `quick` has; one that is late has been given up."""
        if self._give_up is None:
            read()
            return
        self._give_up = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(None)
        if self.transport.is_closing():
            read()
            return
        parts = [STATUS_LINE[answer.status]]
        for key, value in self.server_state.default_headers:
            parts += (key, b": ", value, b"\r\n")
        for name, text in answer.headers.items():
            parts.append(f"{name}: {text}\r\n".encode("latin-1"))
        ending = b"connection: close\r\n" if self._last else b""
        # Of an answer that never has a body, the length would be that of another one: RFC 9110, 8.6.
        length = b"" if answer.status in BODILESS else b"content-length: %d\r\n" % len(answer.body)
        parts += (ending, length, b"\r\n", answer.body)
        self.transport.write(b"".join(parts))
        self.when_read(read)
        if self._last:
            self.transport.close()
        self.on_response_complete()

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        super().pause_writing()
        self._expect_end()

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        super().resume_writing()
        if not self.transport.is_closing():
            self._forget_end()
        self._is_read()

    def timeout_keep_alive_handler(self) -> None:
        """Called when a connection has been idle for too long."""
        if not self.transport.is_closing():
            self.leave()

    @property
    def _serving(self) -> bool:
        if self._give_up is not None:
            return True
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
        elif not begun and not self._serving and self.cycle is not None and self._late is not None:
            self._forget_head()  # that body has ended: the connection is as idle as behind its answer
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

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
        end = self._came.find(END, max(self._parsed - len(END) + 1, 0))
        size = len(self._came) if end < 0 else end + len(END)
        if size > self.head_bytes_max:
            self._refuse(431, f"the head of the request has more than {self.head_bytes_max} bytes; send less")
            return False
        if end < 0 and not is_hopeless(self._came, looked=self._parsed):
            self._parsed = len(self._came)
            return False
        try:
            self._frame = frame_of(self._came[:size])
        except HeadError as e:
            self._refuse(400, str(e))
            return False
        self._unset_keepalive_if_required()
        if self._taken_whole(self._frame, size):
            return True
        self._came, self._parsed = self._came[size:], 0
        self._left = self._frame.body_bytes or 0
        if not self._feed(self._frame.head):
            return False
        if not self._ended(at_end=self._frame.body_bytes == 0):
            return False
        if self._stage is Stage.HEAD:
            self._stage = Stage.CHUNKS if self._frame.body_bytes is None else Stage.BODY
            self._idle_chunk_bytes = 0
        return True

    def _taken_whole(self, frame: Frame, head_bytes: int) -> bool:
        """Hand a request to `quick`, if all of it is there and its client is known; False: not taken."""
        quick = self.quick if frame.body_bytes else self.quick_reads
        if quick is None or not self.known or frame.old or self.flow.write_paused:
            return False
        if frame.body_bytes is None or frame.body_bytes > QUICK_BYTES_MAX:
            return False
        end = head_bytes + frame.body_bytes
        if len(self._came) < end:
            return False
        self._give_up = quick(frame.head, self._came[head_bytes:end], self._answered)
        if self._give_up is None:
            return False
        self._came, self._parsed, self._stage = self._came[end:], 0, Stage.NEXT
        return True

    def _parse_chunks(self) -> bool:
        """Parse to the end of the message, which is at an empty line wherever it is, or of what has come."""
        came, parsed = self._came, self._parsed
        ends_s = time.monotonic() + TURN_S  # not the loop's time, which uvloop keeps for a turn
        while parsed < len(came) and self._stage is Stage.CHUNKS:
            upto = min(parsed + PIECE_BYTES_MAX, len(came))
            end = came.find(END, max(parsed - len(END) + 1, 0), upto)
            until = upto if end < 0 else end + len(END)
            self._idle_chunk_bytes += until - parsed
            if not self._feed(came[parsed:until]):
                return False
            if self._idle_chunk_bytes > self.head_bytes_max:
                self._refuse(400, f"the body has more than {self.head_bytes_max} bytes between its chunks")
                return False
            parsed = until
            if parsed < len(came) and self._stage is Stage.CHUNKS and time.monotonic() > ends_s:
                self._parsed = parsed
                self._flow.hold()
                self.loop.call_soon(self._go_on)
                return False
        if self._stage is Stage.CHUNKS:
            self._came, self._parsed = came[1 - len(END) :], min(parsed, len(END) - 1)
            return False
        self._came, self._parsed = came[parsed:], 0
        return True

    def _go_on(self) -> None:
        """Parse what the last turn left."""
        if not self.transport.is_closing():
            self._flow.go_on()
            self._read()

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
            self._forget_head()
            self._expect_end()  # it is not closed before its client has read the answer
            self.visitors.waits(self)
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

    def _expect_end(self) -> None:
        """Give the client time to read the rest of an answer."""
        if self._unread is None:
            self._unread = self.loop.call_later(self.answer_wait_s, self.transport.abort)

    def _forget_end(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


def door(
    visitors: Visitors,
    *,
    head_bytes_max: int = HEAD_BYTES_MAX,
    head_wait_s: float = HEAD_WAIT_S,
    answer_wait_s: float = ANSWER_WAIT_S,
    quick: Quick | None = None,
    quick_reads: Quick | None = None,
) -> type[Door]:
    """Return the protocol class of the listeners that share `visitors`.

    Args:
        visitors: the shared connections.
        head_bytes_max: size of a request head.
        head_wait_s: time limit of a request head, seconds.
        answer_wait_s: time limit of reading a response, seconds.
        quick: what takes requests with a body that have come whole; None: the application has them all.
        quick_reads: what takes those without a body, likewise.
    """

    class OneDoor(Door):
        pass

    OneDoor.visitors = visitors
    OneDoor.head_bytes_max = head_bytes_max
    OneDoor.head_wait_s = head_wait_s
    OneDoor.answer_wait_s = answer_wait_s
    OneDoor.quick = staticmethod(quick) if quick is not None else None
    OneDoor.quick_reads = staticmethod(quick_reads) if quick_reads is not None else None
    return OneDoor
