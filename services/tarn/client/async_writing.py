"""Writing rows through the gateway from asyncio: the batches, keys and repeats of `tarn.client.writing`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol

import pyarrow as pa

from tarn.client.batches import Gathering, line_of, request_of
from tarn.client.repeats import Request, Row
from tarn.client.writing import Client, Receipt

REQUESTS_MAX = 16
"""Requests of one writer that are under way at one time, by default; others wait for their turn."""


class AsyncClient(Protocol):
    """Sends a request once, without holding up the event loop."""

    async def post(self, table: str, body: bytes, *, kind: str, key: str) -> Receipt:
        """Send rows once."""

    def close(self) -> None:
        """Close idle connections."""


class ThreadedClient:
    """An `AsyncClient` that sends each request on a thread of its own pool.

    A request whose task is cancelled goes on until its answer; nobody waits for that.

    Args:
        client: sends a request once.
        requests_max: number of threads.
    """

    def __init__(self, client: Client, *, requests_max: int = REQUESTS_MAX) -> None:
        self._client = client
        self._threads = ThreadPoolExecutor(requests_max, thread_name_prefix="tarn-write")

    async def post(self, table: str, body: bytes, *, kind: str, key: str) -> Receipt:
        """See `AsyncClient.post`."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._threads, lambda: self._client.post(table, body, kind=kind, key=key)
        )

    def close(self) -> None:
        """See `AsyncClient.close`."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._client.close()


@dataclass(slots=True, kw_only=True)
class AsyncRowWriter(Gathering):
    """Writes rows to one table. Tasks of one event loop may share it.

    As `tarn.client.RowWriter`, with `await`. While a batch is sent, `write` and `flush` of other tasks wait;
    `send` does not. A task that is cancelled while a batch is sent leaves the batch as it is: the next
    `write` or `flush` repeats it under its key.

    Attributes:
        client: sends a request once.
        sleep: waits, in seconds.
    """

    client: AsyncClient
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    _turn: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)

    async def write(self, row: Row) -> None:
        """Add a row to the batch, and send the batch if it is full; see `RowWriter.write`.

        Raises:
            InvalidError, NotTakenError, TarnError: see `RowWriter.write`.
        """
        line = line_of(row)
        async with self._turn:
            if self._batch.sent:
                with self._first(row, line):
                    await self._flush()
            self._batch.add(row, line)
            if self._batch.full(self.limits):
                await self._flush()

    async def flush(self) -> Receipt | None:
        """Send the batch; see `RowWriter.flush`, also for what it raises."""
        async with self._turn:
            return await self._flush()

    def discard(self) -> None:
        """Drop the batch. What an earlier `flush` sent of it may be in the table.

        Raises:
            RuntimeError: it is being sent.
        """
        if self._turn.locked():
            raise RuntimeError("the batch is being sent; cancel the task that sends it first")
        self._batch.discard()

    async def send(
        self, rows: Sequence[Row] | pa.Table | pa.RecordBatch, *, key: str | None = None
    ) -> Receipt:
        """Send rows in one request and wait until they can be read; see `RowWriter.send`."""
        return await self._repeat(request_of(rows, key, self.new_key))

    async def close(self) -> None:
        """Send what is left, and close the connections."""
        try:
            await self.flush()
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
