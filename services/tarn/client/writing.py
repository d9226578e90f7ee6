"""Writing rows through the gateway: batches, each exactly once however often its request is repeated."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

import pyarrow as pa

from tarn.adapters.gateway_client import Receipt as Receipt
from tarn.client.batches import AnswerGoneError as AnswerGoneError
from tarn.client.batches import Gathering, request_of
from tarn.client.batches import NotTakenError as NotTakenError
from tarn.client.batches import RejectedRowsError as RejectedRowsError
from tarn.client.batches import WriteLimits as WriteLimits
from tarn.client.lines import entry_of
from tarn.client.repeats import RepeatTooLateError as RepeatTooLateError
from tarn.client.repeats import Request, Row
from tarn.core.errors import OutcomeUnknownError, TarnError, UnavailableError


class Client(Protocol):
    """Sends a request once; see `tarn.adapters.gateway_client.GatewayClient`."""

    def post(self, table: str, body: bytes, *, kind: str, key: str) -> Receipt:
        """Send rows once."""

    def close(self) -> None:
        """Close idle connections."""


@dataclass(slots=True, kw_only=True)
class RowWriter(Gathering):
    """Writes rows to one table. Not thread-safe; use one per thread.

    `write` gathers rows and sends them in batches, `send` sends its rows at once. When they return from
    sending, the rows can be read. As a context manager it sends what is left at the end of the block, unless
    that is left by an error.

    Attributes:
        client: sends a request once.
        sleep: waits, in seconds.
    """

    client: Client
    sleep: Callable[[float], None] = time.sleep

    def write(self, row: Row) -> None:
        """Add a row to the batch, and send the batch if it is full.

        A batch that failed goes first, under its own key and as it was, and so does one with which the row
        does not fit into a request.

        Raises:
            InvalidError: a value has no form in JSON, two keys have the same, or the row is larger than a
                request; or the rows before it are those of a process that this one was forked from. It is not
                taken, and the rows before it stay.
            NotTakenError: the batch before the row is not in the table yet; the row is not taken.
            RepeatTooLateError: see `flush`; the row is taken if it is among the error's `rows`.
            TarnError: see `flush`. The row is taken, whichever batch the error is of: it is among the error's
                `rows`, or goes with the next batch.
        """
        self._require_own()
        entry = entry_of(row)
        if not self._batch.takes(entry):
            try:
                with self._first(row):
                    self.flush()
            except (UnavailableError, OutcomeUnknownError):
                raise
            except TarnError:
                self._batch.add(entry)
                raise
        self._batch.add(entry)
        if self._batch.full(self.limits):
            self.flush()

    def flush(self) -> Receipt | None:
        """Send the batch; None if it is empty. It is kept after `UnavailableError` and `OutcomeUnknownError`.

        An error after which it is gone has its rows in `rows`: as they were given, and one whose values were
        changed since as JSON reads what was sent.

        Raises:
            RejectedRowsError: the table does not take some of the rows. The batch is gone.
            AnswerGoneError: an earlier request wrote it, and its answer is not known any more. Likewise.
            UnavailableError: the gateway took none of it in time.
            RepeatTooLateError: it may be in the table, and its key may be forgotten: `flush` does not repeat
                it any more. Look into the table, and drop the batch with `discard`.
            OutcomeUnknownError: it may be in the table; `flush` repeats it.
            TarnError: the principal may not write, the table does not exist, or the request is not valid; the
                batch is gone, as repeating it does not help.
            InvalidError: also, with the batch left as it is, if its rows are those of a process that this one
                was forked from.
        """
        self._require_own()
        if not self._batch:
            return None
        with self._batch.sending() as request:
            receipt = self._repeat(request)
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
        """Send what is left, and close the connections.

        Raises:
            TarnError: see `flush`; `UnavailableError` and `OutcomeUnknownError` have what is left in `rows`.
        """
        try:
            with self._last():
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
        repeats = self._repeats(request)
        while True:
            with repeats.attempt():
                return self.client.post(self.table, request.body, kind=request.kind, key=request.key)
            self.sleep(repeats.wait_s)
