"""What the writers share: a batch and its key, repeats of a request, and the forms in which rows are sent."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import orjson
import pyarrow as pa

from tarn.adapters.gateway_client import Receipt
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Rows that are sent in one request.

    Attributes:
        body: the rows.
        kind: their media type.
        key: the same for all repeats.
    """

    body: bytes
    kind: str
    key: str


@dataclass(slots=True, kw_only=True)
class Batch:
    """Rows that a writer gathers, and sends under one key until they are in the table or refused.

    Attributes:
        table: qualified name of the table, for messages.
        new_key: makes a key that was not used before.
    """

    table: str
    new_key: Callable[[], str]
    _rows: list[Row] = field(default_factory=list)
    _lines: list[bytes] = field(default_factory=list)
    _bytes: int = 0
    _key: str | None = None

    def __len__(self) -> int:
        """Number of rows."""
        return len(self._rows)

    @property
    def sent(self) -> bool:
        """Whether it was sent before: it takes no further row, so that it stays as it was."""
        return self._key is not None

    def full(self, limits: WriteLimits) -> bool:
        """Whether it is to be sent."""
        return len(self._rows) >= limits.rows_max or self._bytes >= limits.bytes_max

    def add(self, row: Row) -> None:
        """Add a row.

        Raises:
            InvalidError: a value has no form in JSON.
        """
        assert not self.sent
        line = _line(row)
        self._rows.append(row)
        self._lines.append(line)
        self._bytes += len(line) + 1

    def request(self) -> Request:
        """The request with all rows, the same each time; at least one row is in it."""
        self._key = self._key or self.new_key()
        return Request(body=b"\n".join(self._lines), kind=JSON_LINES, key=self._key)

    def failed(self, error: TarnError) -> None:
        """Keep the batch after an error that a repeat may cure, and drop it after any other."""
        if not isinstance(error, (UnavailableError, OutcomeUnknownError)):
            self.discard()

    def answered(self, receipt: Receipt) -> Receipt:
        """Drop the batch, and return its receipt.

        Raises:
            RejectedRowsError: the table does not take some of the rows.
            AnswerGoneError: an earlier request wrote it, and its answer is not known any more.
        """
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
        """Drop the rows and the key."""
        self._rows, self._lines, self._bytes, self._key = [], [], 0, None


@dataclass(slots=True, kw_only=True)
class Repeats:
    """When one request is repeated, and when it is given up.

    Attributes:
        key: key of the request.
        until_s: when it is given up, on the monotonic clock.
        chance: a random number from 0 to 1.
    """

    key: str
    until_s: float
    chance: Callable[[], float]
    _pause_s: float = PAUSE_S
    _unknown: bool = False

    def wait_s(self, error: UnavailableError | OutcomeUnknownError, now_s: float) -> float:
        """How long to wait after an error before the request is repeated, in seconds.

        Args:
            error: what came instead of an answer.
            now_s: monotonic time in seconds.

        Raises:
            UnavailableError: the time is over, and no request can have written the rows.
            OutcomeUnknownError: it is over, and one of them may have.
        """
        self._unknown = self._unknown or isinstance(error, OutcomeUnknownError)
        asked_s = error.fields.get("retry_after_s", 0.0)
        # Spread, so that clients that were refused together do not come together.
        wait_s = max(float(str(asked_s)), self._pause_s) * (0.5 + self.chance())
        if now_s + wait_s > self.until_s:
            if self._unknown and not isinstance(error, OutcomeUnknownError):
                raise OutcomeUnknownError(
                    f"{error.message}; an earlier request with the key {self.key} may have written the rows",
                    key=self.key,
                ) from error
            raise error
        self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)
        return wait_s


def request_of(
    rows: Sequence[Row] | pa.Table | pa.RecordBatch, key: str | None, new_key: Callable[[], str]
) -> Request:
    """The request with these rows.

    Args:
        rows: mappings, or Arrow data.
        key: its key; None for a new one.
        new_key: makes a key that was not used before.

    Raises:
        InvalidError: the key is not of its form, or a value has no form in JSON.
    """
    if key is not None and not (0 < len(key) <= KEY_CHARS_MAX and key.isascii() and key.isprintable()):
        raise InvalidError(f"Invalid key {key[:40]!r}: use 1 to {KEY_CHARS_MAX} visible characters of ASCII")
    body, kind = _body(rows)
    return Request(body=body, kind=kind, key=key or new_key())


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
