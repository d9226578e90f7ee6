"""Writing rows through the gateway: batches, each exactly once however often its request is repeated."""

from __future__ import annotations

import base64
import random
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from types import TracebackType
from typing import Any, Protocol

import orjson
import pyarrow as pa

from tarn.adapters.gateway_client import Receipt as Receipt
from tarn.core.errors import InvalidError, OutcomeUnknownError, TarnError, UnavailableError
from tarn.core.write_keys import KEY_CHARS_MAX

JSON_LINES = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
TIMEOUT_S_MAX = 600.0
"""A key is known for 15 minutes after the commit; repeats have to end well before."""
PAUSE_S = 0.05
PAUSE_S_MAX = 5.0

Row = Mapping[str, Any]


class RejectedRowsError(InvalidError):
    """The table does not take some rows; the others of the batch are in it.

    Args:
        message: how many, and the first reason.
        rows: the rows, each with the reason.
        receipt: what became of the batch.
    """

    def __init__(self, message: str, *, rows: Sequence[tuple[Row, str]], receipt: Receipt) -> None:
        super().__init__(message, rejected=len(rows))
        self.rows = tuple(rows)
        self.receipt = receipt


class AnswerGoneError(InvalidError):
    """The rows were taken by an earlier request, and which of them the table rejected is not known any more.

    Args:
        message: which rows, and where to look.
        rows: the rows; do not send them again, most are in the table.
        receipt: what is known of the batch.
    """

    def __init__(self, message: str, *, rows: Sequence[Row], receipt: Receipt) -> None:
        super().__init__(message, rows=len(rows))
        self.rows = tuple(rows)
        self.receipt = receipt


class Client(Protocol):
    """Sends a request once; see `tarn.adapters.gateway_client.GatewayClient`."""

    def post(self, table: str, body: bytes, *, kind: str, key: str) -> Receipt:
        """Send rows once."""

    def close(self) -> None:
        """Close idle connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteLimits:
    """Bounds of a writer.

    Attributes:
        rows_max: number of rows after which `write` sends what it has.
        bytes_max: size of the rows after which it does, in bytes of JSON.
        timeout_s: how long a request is repeated, in seconds.
    """

    rows_max: int = 1_000
    bytes_max: int = 1 << 20
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        """Check the values."""
        for name, value, least, most in (
            ("rows_max", self.rows_max, 1, 10_000),
            ("bytes_max", self.bytes_max, 1, 2 << 20),
            ("timeout_s", self.timeout_s, 0.0, TIMEOUT_S_MAX),
        ):
            if not least <= value <= most:
                raise InvalidError(f"Invalid {name} {value!r}: give a number from {least} to {most}")


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
    new_key: Callable[[], str] = lambda: uuid.uuid4().hex
    _rows: list[Row] = field(default_factory=list)
    _lines: list[bytes] = field(default_factory=list)
    _bytes: int = 0
    _key: str | None = None

    def write(self, row: Row) -> None:
        """Add a row to the batch, and send the batch if it is full.

        Raises:
            InvalidError: a value has no form in JSON.
            TarnError: see `flush`.
        """
        if self._key is not None:
            self.flush()  # a batch that failed goes first, under its own key and as it was
        line = _line(row)
        self._rows.append(row)
        self._lines.append(line)
        self._bytes += len(line) + 1
        if len(self._rows) >= self.limits.rows_max or self._bytes >= self.limits.bytes_max:
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
        if not self._rows:
            return None
        self._key = self._key or self.new_key()
        try:
            receipt = self._repeat(b"\n".join(self._lines), JSON_LINES, self._key)
        except (UnavailableError, OutcomeUnknownError):
            raise
        except TarnError:
            self.discard()
            raise
        rows = self._rows
        self.discard()
        if receipt.accepted is None:
            raise AnswerGoneError(
                f"{self.table} got these {len(rows)} rows by an earlier request, whose answer is not known "
                "any more: it may have rejected some. Look into it; sent again they may be there twice",
                rows=rows,
                receipt=receipt,
            )
        if receipt.rejected:
            found = [(rows[at], reason) for at, reason in sorted(receipt.rejected.items())]
            raise RejectedRowsError(
                f"{self.table} does not take {len(found)} of {len(rows)} rows, the others are in it; "
                f"the first: {found[0][1]}",
                rows=found,
                receipt=receipt,
            )
        return receipt

    def discard(self) -> None:
        """Drop the batch. What an earlier `flush` sent of it may be in the table."""
        self._rows, self._lines, self._bytes, self._key = [], [], 0, None

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
        if key is not None and not (0 < len(key) <= KEY_CHARS_MAX and key.isascii() and key.isprintable()):
            raise InvalidError(
                f"Invalid key {key[:40]!r}: use 1 to {KEY_CHARS_MAX} visible characters of ASCII"
            )
        body, kind = _body(rows)
        return self._repeat(body, kind, key or self.new_key())

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

    def _repeat(self, body: bytes, kind: str, key: str) -> Receipt:
        until_s = self.clock() + self.limits.timeout_s
        pause_s, unknown = PAUSE_S, False
        while True:
            try:
                return self.client.post(self.table, body, kind=kind, key=key)
            except (UnavailableError, OutcomeUnknownError) as e:
                unknown = unknown or isinstance(e, OutcomeUnknownError)
                asked_s = e.fields.get("retry_after_s", 0.0)
                # Spread, so that clients that were refused together do not come together.
                wait_s = max(float(str(asked_s)), pause_s) * (0.5 + self.chance())
                if self.clock() + wait_s > until_s:
                    if unknown and not isinstance(e, OutcomeUnknownError):
                        raise OutcomeUnknownError(
                            f"{e.message}; an earlier request with the key {key} may have written the rows",
                            key=key,
                        ) from e
                    raise
                self.sleep(wait_s)
                pause_s = min(2 * pause_s, PAUSE_S_MAX)


def _body(rows: Sequence[Row] | pa.Table | pa.RecordBatch) -> tuple[bytes, str]:
    if isinstance(rows, (pa.Table, pa.RecordBatch)):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as stream:
            stream.write(rows)
        return sink.getvalue().to_pybytes(), ARROW
    if isinstance(rows, Mapping):
        raise InvalidError("rows are a sequence of mappings: put the one row into a list")
    return b"\n".join(map(_line, rows)), JSON_LINES


def _line(row: Row) -> bytes:
    try:
        return orjson.dumps(dict(row), default=_form, option=orjson.OPT_NON_STR_KEYS)
    except (orjson.JSONEncodeError, TypeError, ValueError) as e:
        raise InvalidError(f"a row has no form in JSON: {e}; its fields are {list(row)[:20]}") from e


def _form(value: object) -> str:
    """The form that a column of the value's type reads, for what has none in JSON."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"{type(value).__name__} is not supported")
