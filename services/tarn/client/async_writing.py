"""Writing rows through the gateway from asyncio: the batches, keys and repeats of `tarn.client.writing`."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol

import pyarrow as pa

from tarn.client.batches import Gathering, NotTakenError, request_of
from tarn.client.lines import Entry, entry_of
from tarn.client.repeats import ClosedError, Request, Row
from tarn.client.writing import Client, Receipt
from tarn.core.errors import OutcomeUnknownError, TarnError, UnavailableError

REQUESTS_MAX = 16
"""Requests of one writer that are under way at one time, by default; others wait for their turn."""
LEFT_ROWS_MAX = 1_000
LEFT_BYTES_MAX = 4 << 20
"""Rows of cancelled writes that wait for a batch before `write` takes no further row, and their size."""


class AsyncClient(Protocol):
    """Sends a request once, without holding up the event loop."""

    async def post(self, table: str, body: bytes, *, kind: str, key: str) -> Receipt:
        """Send rows once."""

    def close(self) -> None:
        """Close idle connections."""


class ThreadedClient:
    """An `AsyncClient` that sends each request on a thread of its own pool.

    A request whose task is cancelled goes on until its answer; nobody waits for that. A process that was
    forked has none of its parent's threads, and starts its own.

    Args:
        client: sends a request once.
        requests_max: number of threads.
    """

    def __init__(self, client: Client, *, requests_max: int = REQUESTS_MAX) -> None:
        self._client = client
        self._requests_max = requests_max
        self._process = os.getpid()
        self._threads = self._new_threads()
        self._closed = False

    async def post(self, table: str, body: bytes, *, kind: str, key: str) -> Receipt:
        """See `AsyncClient.post`."""
        if self._closed:
            raise _closed(table)
        if self._process != os.getpid():
            self._threads, self._process = self._new_threads(), os.getpid()
        sent = self._threads.submit(self._client.post, table, body, kind=kind, key=key)
        try:
            return await asyncio.wrap_future(sent)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._closed and task is not None and not task.cancelling():
                raise _closed(table) from None
            raise

    def close(self) -> None:
        """See `AsyncClient.close`. Requests that wait for a thread are not sent: `ClosedError`."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    def _new_threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._requests_max, thread_name_prefix="tarn-write")


def _closed(table: str) -> ClosedError:
    return ClosedError(f"the writer of {table} was closed before these rows were sent; use another one")


@dataclass(slots=True, eq=False, kw_only=True)
class _Waiting:
    """A row that was taken, and is not in the batch yet.

    Attributes:
        number: of the row, from 1 on, by the order of the writes.
        entry: the row.
        left: whether its write has ended, so that another one adds it.
        gone: whether it does not wait any more.
    """

    number: int
    entry: Entry
    left: bool = False
    gone: bool = False


@dataclass(slots=True, kw_only=True)
class AsyncRowWriter(Gathering):
    """Writes rows to one table. Tasks of one event loop may share it.

    As `tarn.client.RowWriter`, with `await`. While a batch is sent, `write` and `flush` of other tasks wait;
    `send` does not. A task that is cancelled while a batch is sent leaves the batch as it is: the next
    `write` or `flush` repeats it under its key.

    A `write` takes its row before it awaits anything, so one that is cancelled has taken it, whatever it
    waited for: the row keeps its place behind the rows of earlier writes, and the next `write`, `flush` or
    `close` adds it to the batch.

    Attributes:
        client: sends a request once.
        sleep: waits, in seconds.
    """

    client: AsyncClient
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    _turn: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)
    _waiting: deque[_Waiting] = field(init=False, default_factory=deque)
    _written: int = field(init=False, default=0)
    _left_rows: int = field(init=False, default=0)
    _left_bytes: int = field(init=False, default=0)

    async def write(self, row: Row) -> None:
        """Add a row to the batch, and send the batch if it is full; see `RowWriter.write`.

        If it is cancelled, the row is taken (see the class), unless it had not begun.

        Raises:
            InvalidError, TarnError: see `RowWriter.write`.
            NotTakenError: likewise; also, at once, if 1,000 rows or 4 MiB of cancelled writes wait: `flush`
                sends them.
        """
        self._require_own()
        own = self._take(row)
        try:
            async with self._turn:
                try:
                    with self._first(row):
                        await self._bring_in(own.number)
                except (UnavailableError, OutcomeUnknownError):
                    self._waiting.remove(own)
                    own.gone = True
                    raise
                if self._batch.full(self.limits):
                    await self._flush()
        except BaseException:
            self._leave(own)
            raise

    async def flush(self) -> Receipt | None:
        """Send the batch; see `RowWriter.flush`, also for what it raises.

        Rows of cancelled writes that wait behind the batch are sent after it: the receipt is the last one's.
        After an error of the batch they wait still, for the next `flush`.
        """
        self._require_own()
        last = self._written
        async with self._turn:
            await self._bring_in(last)
            return await self._flush()

    def discard(self) -> None:
        """Drop the batch. What an earlier `flush` sent of it may be in the table.

        Rows of cancelled writes that wait behind a batch which was sent stay.

        Raises:
            RuntimeError: it is being sent.
        """
        if self._turn.locked():
            raise RuntimeError("the batch is being sent; cancel the task that sends it first")
        if not self._batch.sent:
            self._waiting = deque(one for one in self._waiting if not one.left)
            self._left_rows = self._left_bytes = 0
        self._batch.discard()

    async def send(
        self, rows: Sequence[Row] | pa.Table | pa.RecordBatch, *, key: str | None = None
    ) -> Receipt:
        """Send rows in one request and wait until they can be read; see `RowWriter.send`."""
        return await self._repeat(request_of(rows, key, self.new_key))

    async def close(self) -> None:
        """Send what is left, and close the connections; see `RowWriter.close`.

        Requests of other tasks that wait for a thread are not sent, and end with an `UnavailableError`. If
        more than one batch is left and fails, the last error is raised, and has the one before it as its
        `__context__`.
        """
        try:
            with self._last():
                await self._flush_all()
        finally:
            self.client.close()

    async def __aenter__(self) -> AsyncRowWriter:
        """Return the writer."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Send what is left, unless the block failed."""
        if error is None:
            await self.close()
        else:
            self.client.close()

    def _take(self, row: Row) -> _Waiting:
        """Take a row, behind those of earlier writes."""
        entry = entry_of(row)
        if self._left_rows >= LEFT_ROWS_MAX or self._left_bytes >= LEFT_BYTES_MAX:
            raise NotTakenError(
                f"the row is not taken, call flush() and write it again: {self._left_rows} rows of cancelled "
                f"writes ({self._left_bytes} bytes) wait for a batch that is not in {self.table} for certain",
                row=row,
            )
        self._written += 1
        own = _Waiting(number=self._written, entry=entry)
        self._waiting.append(own)
        return own

    def _leave(self, own: _Waiting) -> None:
        """The write of a row has ended; if the row waits still, another write or `flush` adds it."""
        if not own.gone:
            own.left = True
            self._left_rows += 1
            self._left_bytes += len(own.entry.line)

    async def _bring_in(self, last: int) -> None:
        """Add the rows that wait, up to this number; send the batch before a row that it does not take."""
        while self._waiting and self._waiting[0].number <= last:
            first = self._waiting[0]
            if self._batch.full(self.limits) or not self._batch.takes(first.entry):
                await self._flush()
                continue
            self._waiting.popleft()
            self._batch.add(first.entry)
            first.gone = True
            if first.left:
                self._left_rows -= 1
                self._left_bytes -= len(first.entry.line)

    async def _flush_all(self) -> None:
        """Send the batch and all rows that wait, also behind rows that the table does not take."""
        self._require_own()
        before: TarnError | None = None
        while True:
            try:
                await self.flush()
            except TarnError as e:
                e.__context__ = e.__context__ or before
                if isinstance(e, (UnavailableError, OutcomeUnknownError)) or not self._waiting:
                    raise
                before = e
            else:
                break
        if before is not None:
            raise before

    def _held(self) -> int:
        return len(self._batch) + len(self._waiting)

    def _left(self) -> tuple[Row, ...]:
        return *self._batch.rows(), *(one.entry.as_sent() for one in self._waiting)

    async def _flush(self) -> Receipt | None:
        if not self._batch:
            return None
        with self._batch.sending() as request:
            receipt = await self._repeat(request)
        return self._batch.answered(receipt)

    async def _repeat(self, request: Request) -> Receipt:
        repeats = self._repeats(request)
        while True:
            with repeats.attempt():
                return await self.client.post(self.table, request.body, kind=request.kind, key=request.key)
            await self.sleep(repeats.wait_s)
