"""Writing rows through the gateway: batches, each exactly once however often its request is repeated."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol

import pyarrow as pa

from tarn.adapters.gateway_client import Receipt as Receipt
from tarn.client.batches import AnswerGoneError as AnswerGoneError
from tarn.client.batches import Batch, Repeats, Request, Row, request_of
from tarn.client.batches import RejectedRowsError as RejectedRowsError
from tarn.client.batches import WriteLimits as WriteLimits
from tarn.core.errors import OutcomeUnknownError, TarnError, UnavailableError


class Client(Protocol):
    """Sends a request once; see `tarn.adapters.gateway_client.GatewayClient`."""

    def post(self, table: str, body: bytes, *, kind: str, key: str) -> Receipt:
        """Send rows once."""

    def close(self) -> None:
        """Close idle connections."""


def new_key() -> str:
    """A key that was not used before."""
    return uuid.uuid4().hex


@dataclass(slots=True, kw_only=True)
class RowWriter:
    """Writes rows to one table. Not thread-safe; use one per thread.

    `write` gathers rows and sends them in batches, `send` sends its rows at once. When they return from
    sending, the rows can be read. As a context manager it sends what is left at the end of the block, unless
    that is left by an error.

    Attributes:
        table: qualified name of the table.
        client: sends a request once.
        limits: bounds.
        clock: monotonic time in seconds.
        sleep: waits, in seconds.
        chance: a random number from 0 to 1.
        new_key: makes a key that was not used before.
    """

    table: str
    client: Client
    limits: WriteLimits = field(default_factory=WriteLimits)
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    chance: Callable[[], float] = random.random
    new_key: Callable[[], str] = new_key
    _batch: Batch = field(init=False)

    def __post_init__(self) -> None:
        """Begin the first batch."""
        self._batch = Batch(table=self.table, new_key=self.new_key)

    def write(self, row: Row) -> None:
        """Add a row to the batch, and send the batch if it is full.

        Raises:
            InvalidError: a value has no form in JSON.
            TarnError: see `flush`.
        """
        if self._batch.sent:
            self.flush()  # a batch that failed goes first, under its own key and as it was
        self._batch.add(row)
        if self._batch.full(self.limits):
            self.flush()

    def flush(self) -> Receipt | None:
        """Send the batch; None if it is empty. It is kept after `UnavailableError` and `OutcomeUnknownError`.

        Raises:
            RejectedRowsError: the table does not take some of the rows. The batch is gone.
            AnswerGoneError: an earlier request wrote it, and its answer is not known any more. Likewise.
            UnavailableError: the gateway took none of it in time.
            OutcomeUnknownError: it may be in the table; `flush` repeats it.
            TarnError: the principal may not write, the table does not exist, or the request is not valid; the
                batch is gone, as repeating it does not help.
        """
        if not self._batch:
            return None
        try:
            receipt = self._repeat(self._batch.request())
        except TarnError as e:
            self._batch.failed(e)
            raise
        return self._batch.answered(receipt)

    def discard(self) -> None:
        """Drop the batch. What an earlier `flush` sent of it may be in the table."""
        self._batch.discard()

    def send(self, rows: Sequence[Row] | pa.Table | pa.RecordBatch, *, key: str | None = None) -> Receipt:
        """Send rows in one request and wait until they can be read; what `write` gathered stays.

        Args:
            rows: mappings, or Arrow data; at least one row, at most 10,000 rows and 4 MiB.
            key: the same for all repeats of these rows, also by another process within 15 minutes; None: a
                new one, which this call repeats by itself.

        Returns:
            What became of the rows; bad ones are in `rejected`. `accepted` is None if an earlier request
            wrote them and it is not known any more which.

        Raises:
            TarnError: see `flush`; nothing is kept.
        """
        return self._repeat(request_of(rows, key, self.new_key))

    def close(self) -> None:
        """Send what is left, and close the connections."""
        try:
            self.flush()
        finally:
            self.client.close()

    def __enter__(self) -> RowWriter:
        """Return the writer."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Send what is left, unless the block failed."""
        if error is None:
            self.close()
        else:
            self.client.close()

    def _repeat(self, request: Request) -> Receipt:
        repeats = Repeats(key=request.key, until_s=self.clock() + self.limits.timeout_s, chance=self.chance)
        while True:
            try:
                return self.client.post(self.table, request.body, kind=request.kind, key=request.key)
            except (UnavailableError, OutcomeUnknownError) as e:
                wait_s = repeats.wait_s(e, self.clock())
            self.sleep(wait_s)
