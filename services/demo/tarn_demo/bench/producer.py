"""A producer of small writes over HTTP, as cheap as can be: the machine is for what is measured."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

ANSWER_S_MAX = 75.0
PAUSE_S_MAX = 5.0
END = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]{1,9})\r\n")
_AFTER = re.compile(rb"\r\nretry-after: *([0-9]{1,9})\r\n")
_PRESSURE = b"\r\ntarn-pressure:"


@dataclass(slots=True)
class Tally:
    """What one producer did.

    Attributes:
        times_ms: time from each write's first request to its answer, in milliseconds.
        bytes: size of the bodies that were answered.
        refused: number of answers 429 and 503, after which the write was repeated.
        delayed: number of answers that name a pressure.
        unknown: number of attempts of unknown outcome, by a peer that repeats them.
        errors: other answers, which end the producer.
    """

    times_ms: list[float] = field(default_factory=list)
    bytes: int = 0
    refused: int = 0
    delayed: int = 0
    unknown: int = 0
    errors: list[str] = field(default_factory=list)


class Line(asyncio.Protocol):
    """A connection on which one request at a time is asked."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._came = b""
        self._answer: asyncio.Future[tuple[bytes, bytes]] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    async def ask(self, request: bytes) -> tuple[bytes, bytes]:
        """The head in lower case and the body of the answer to a request.

        Raises:
            OSError: the connection ended before, or no answer came within `ANSWER_S_MAX` seconds.
            ValueError: the answer does not say how long it is.
        """
        loop = asyncio.get_running_loop()
        assert self._transport is not None
        answer: asyncio.Future[tuple[bytes, bytes]] = loop.create_future()
        self._answer = answer
        late = loop.call_later(ANSWER_S_MAX, self._fail, TimeoutError("no answer"))
        self._transport.write(request)
        if self._transport.is_closing():
            self._fail(ConnectionResetError("the connection has ended"))
        try:
            return await answer
        finally:
            late.cancel()

    def close(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._came += data
        end = self._came.find(END)
        if end < 0:
            return
        head = self._came[: end + len(END)].lower()
        length = _LENGTH.search(head)
        if length is None:
            self._fail(ValueError(f"an answer without its length: {head[:200]!r}"))
            return
        whole = len(head) + int(length[1])
        if len(self._came) >= whole and self._answer is not None and not self._answer.done():
            body, self._came = self._came[len(head) : whole], self._came[whole:]
            self._answer.set_result((head, body))

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._fail(exc or ConnectionResetError("the connection ended before the answer"))

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)


class Producer:
    """One producer: a connection, an id, and its rows one after the other.

    Args:
        address: host and port of the gateway.
        table: qualified name of the table.
        token: bearer token.
        number: number of the producer.
        row: makes the body of a row from its sequence.
        durability: what an answer promises: `lake` or `log`.
    """

    def __init__(
        self,
        address: tuple[str, int],
        table: str,
        token: str,
        number: int,
        row: Callable[[int], bytes],
        *,
        durability: str = "lake",
    ) -> None:
        self._address = address
        self._row = row
        self._head = (
            f"POST /v1/tables/{table}/rows?durability={durability} HTTP/1.1\r\n"
            f"Host: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
            f"Content-Type: application/json\r\nTarn-Producer: p{number}\r\n"
        ).encode()
        self.tally = Tally()

    async def run(self, until_s: float) -> None:
        """Write until then."""
        line = Line()
        try:
            await asyncio.get_running_loop().create_connection(lambda: line, *self._address)
            sequence = 0
            while time.monotonic() < until_s and not self.tally.errors:
                await self._write(line, sequence)
                sequence += 1
        except (OSError, ValueError) as e:
            self.tally.errors.append(repr(e))
        finally:
            line.close()

    async def _write(self, line: Line, sequence: int) -> None:
        body = self._row(sequence)
        request = b"%sTarn-Sequence: %d\r\nContent-Length: %d\r\n\r\n%s" % (
            self._head,
            sequence,
            len(body),
            body,
        )
        began_s = time.perf_counter()
        while True:
            head, answer = await line.ask(request)
            status = int(head[9:12])
            if status not in (429, 503):
                break
            self.tally.refused += 1
            after = _AFTER.search(head)
            await asyncio.sleep(min(PAUSE_S_MAX, float(after[1]) if after is not None else 1.0))
        if status != 200:
            self.tally.errors.append(f"{status}: {answer[:200].decode(errors='replace')}")
            return
        self.tally.times_ms.append((time.perf_counter() - began_s) * 1_000)
        self.tally.bytes += len(body)
        self.tally.delayed += _PRESSURE in head
