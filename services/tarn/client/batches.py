"""What the writers share: a batch, how it is sent under its key, and the forms in which rows are sent."""

from __future__ import annotations

import os
import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa

from tarn.adapters.gateway_client import BODY_BYTES_MAX, Receipt
from tarn.client.lines import Entry, line_of
from tarn.client.repeats import TIMEOUT_S_MAX, Clocks, Repeats, RepeatTooLateError, Request, Row
from tarn.core.errors import InvalidError, OutcomeUnknownError, TarnError, UnavailableError
from tarn.core.write_keys import KEY_CHARS_MAX

JSON_LINES = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"


class RejectedRowsError(InvalidError):
    """The table does not take some rows; the others of the batch are in it.

    Args:
        message: how many, and the first reason.
        rows: the rows, as they were sent, each with the reason.
        receipt: what became of the batch.
    """

    def __init__(self, message: str, *, rows: Sequence[tuple[Row, str]], receipt: Receipt) -> None:
        super().__init__(message, rejected=len(rows))
        self.rows: tuple[tuple[Row, str], ...] = tuple(rows)
        self.receipt = receipt


class NotTakenError(UnavailableError):
    """A row was not added: the batch before it is not in the table yet, and takes no further row.

    Besides `RepeatTooLateError` the only error of the gateway that leaves the row of a `write` to its caller.

    Args:
        message: why, and what to do.
        row: the row.
    """

    def __init__(self, message: str, *, row: Row) -> None:
        super().__init__(message)
        self.row = row


class AnswerGoneError(InvalidError):
    """The rows were taken by an earlier request, and which of them the table rejected is not known any more.

    Args:
        message: which rows, and where to look.
        rows: the rows, as they were sent; do not send them again, most are in the table.
        receipt: what is known of the batch.
    """

    def __init__(self, message: str, *, rows: Sequence[Row], receipt: Receipt) -> None:
        super().__init__(message, rows=len(rows))
        self.rows: tuple[Row, ...] = tuple(rows)
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


@dataclass(slots=True, kw_only=True)
class Batch:
    """Rows that a writer gathers, and sends under one key until they are in the table or refused.

    Attributes:
        table: qualified name of the table, for messages.
        new_key: makes a key that was not used before.
    """

    table: str
    new_key: Callable[[], str]
    _entries: list[Entry] = field(default_factory=list)
    _bytes: int = 0
    _request: Request | None = None

    def __len__(self) -> int:
        """Number of rows."""
        return len(self._entries)

    @property
    def sent(self) -> bool:
        """Whether it was sent before: it takes no further row, so that it stays as it was."""
        return self._request is not None

    def full(self, limits: WriteLimits) -> bool:
        """Whether it is to be sent."""
        return len(self._entries) >= limits.rows_max or self._bytes >= limits.bytes_max

    def takes(self, entry: Entry) -> bool:
        """Whether a row can be added; otherwise the batch is to be sent first."""
        return not self.sent and self._bytes + len(entry.line) <= BODY_BYTES_MAX

    def add(self, entry: Entry) -> None:
        """Add a row that it takes."""
        assert not self.sent
        self._entries.append(entry)
        self._bytes += len(entry.line) + 1

    def rows(self) -> tuple[Row, ...]:
        """The rows, as they were given; one whose values were changed since as it was sent."""
        return tuple(entry.as_sent() for entry in self._entries)

    @contextmanager
    def sending(self) -> Iterator[Request]:
        """A block that sends the batch; at least one row is in it.

        Yields:
            The request with all rows, the same each time. The batch is kept after an error that a repeat may
            cure, and dropped after any other of Tarn's, which has its rows then.
        """
        if self._request is None:
            body = b"\n".join(entry.line for entry in self._entries)
            self._request = Request(body=body, kind=JSON_LINES, key=self.new_key(), rows=self.rows)
        try:
            yield self._request
        except (UnavailableError, OutcomeUnknownError):
            raise
        except TarnError as e:
            e.rows = self.rows()
            self.discard()
            raise

    def answered(self, receipt: Receipt) -> Receipt:
        """Drop the batch, and return its receipt.

        Raises:
            RejectedRowsError: the table does not take some of the rows.
            AnswerGoneError: an earlier request wrote it, and its answer is not known any more.
        """
        entries = self._entries
        self.discard()
        if receipt.accepted is None:
            raise AnswerGoneError(
                f"{self.table} got these {len(entries)} rows by an earlier request, whose answer is not "
                "known any more: it may have rejected some. Look into it; sent again they may be there twice",
                rows=[entry.as_sent() for entry in entries],
                receipt=receipt,
            )
        if receipt.rejected:
            found = [(entries[at].as_sent(), reason) for at, reason in sorted(receipt.rejected.items())]
            raise RejectedRowsError(
                f"{self.table} does not take {len(found)} of {len(entries)} rows, the others are in it; "
                f"the first: {found[0][1]}",
                rows=found,
                receipt=receipt,
            )
        return receipt

    def discard(self) -> None:
        """Drop the rows and the key."""
        self._entries, self._bytes, self._request = [], 0, None


def new_key() -> str:
    """A key that was not used before."""
    return uuid.uuid4().hex


@dataclass(slots=True, kw_only=True)
class Gathering:
    """What a writer has and decides, whether it waits or is awaited.

    Attributes:
        table: qualified name of the table.
        limits: bounds.
        clock: monotonic time in seconds.
        wall: time since the epoch in seconds, which goes on while the machine sleeps.
        chance: a random number from 0 to 1.
        new_key: makes a key that was not used before.
        process: id of this process.
    """

    table: str
    limits: WriteLimits = field(default_factory=WriteLimits)
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    chance: Callable[[], float] = random.random
    new_key: Callable[[], str] = new_key
    process: Callable[[], int] = os.getpid
    _batch: Batch = field(init=False)
    _owner: int = field(init=False)

    def __post_init__(self) -> None:
        """Begin the first batch."""
        self._batch = Batch(table=self.table, new_key=self.new_key)
        self._owner = self.process()

    def _require_own(self) -> None:
        """Take the writer over in a process that was forked; what was gathered before is its parent's.

        Raises:
            InvalidError: the writer has rows of the parent: sent by both, they would be there twice.
        """
        here = self.process()
        if here == self._owner:
            return
        if held := self._held():
            raise InvalidError(
                f"{held} rows for {self.table} were gathered before this process ({here}) was forked from "
                f"{self._owner}, which sends them: make a writer of its own in this process, or call flush() "
                "before the fork",
                rows=held,
            )
        self._owner = here

    def _held(self) -> int:
        """Number of the rows that were gathered."""
        return len(self._batch)

    @contextmanager
    def _first(self, row: Row) -> Iterator[None]:
        """A block that sends a batch before a row is added, which does not take that row.

        Raises:
            NotTakenError: the batch is still there, so the row is not taken.
            RepeatTooLateError: the batch is not repeated any more; the row is not taken, and not in `rows`.
            TarnError: what became of the batch, which is gone; the row is to be taken.
        """
        try:
            yield
        except RepeatTooLateError:
            raise
        except (UnavailableError, OutcomeUnknownError) as e:
            raise NotTakenError(
                f"the row is not taken, write it again later: {len(self._batch)} rows before it are not in "
                f"{self.table} for certain ({e.message})",
                row=row,
            ) from e

    @contextmanager
    def _last(self) -> Iterator[None]:
        """A block that sends what is left; an error that leaves it there has it in `rows`."""
        try:
            yield
        except (UnavailableError, OutcomeUnknownError) as e:
            e.rows = self._left()
            raise

    def _left(self) -> tuple[Row, ...]:
        """The rows that were taken and are not in the table for certain."""
        return self._batch.rows()

    def _repeats(self, request: Request) -> Repeats:
        """The attempts at a request, from now on."""
        return Repeats(
            table=self.table,
            request=request,
            timeout_s=self.limits.timeout_s,
            clocks=Clocks(steady=self.clock, wall=self.wall),
            chance=self.chance,
        )


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
    return b"\n".join(map(line_of, rows)), JSON_LINES
