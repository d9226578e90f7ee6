"""A write: rows that a client sent at once, and what became of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tarn.core.errors import ConflictError, InvalidError, UnavailableError
from tarn.core.log_claims import Run
from tarn.core.write_keys import KeyedWrite


class BusyError(UnavailableError):
    """Too much waits already; nothing of the write was kept.

    Args:
        message: what is full, and how much waits.
        retry_after_s: when to come again, in seconds.
    """

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.retry_after_s = retry_after_s


class QuotaError(BusyError):
    """The table's owner allows no more today; nothing of the write was kept."""


class OverQuotaError(InvalidError):
    """A write that is larger than what the table's owner allows in a whole day: no repeat of it helps."""


class SequenceError(ConflictError):
    """Rows that do not follow those of their producer; `fields["expected"]` is the next row wanted."""


class KeyReusedError(InvalidError):
    """An idempotency key came with other rows before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """Rows of one request.

    Attributes:
        values: the rows, at least one: JSON objects, or Arrow IPC streams of one row.
        at_ms: when they arrived, in milliseconds since the epoch.
        producer: id of the producer; None for a client that does not number its rows.
        sequence: sequence of the first row; 0 without a producer.
        keyed: the idempotency key; None without. A write with neither producer nor key is new each time.
    """

    values: Sequence[bytes]
    at_ms: int
    producer: str | None = None
    sequence: int = 0
    keyed: KeyedWrite | None = None

    @property
    def end(self) -> int:
        """Sequence behind the last row."""
        return self.sequence + len(self.values)

    @property
    def bytes(self) -> int:
        """Size of the rows."""
        return sum(map(len, self.values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What became of a write.

    Attributes:
        accepted: number of rows in the table, or in its log; None if an earlier request brought them in, and
            it is not known any more which ones.
        rejected: index in the write to the reason why a row is not; None likewise.
        snapshot_id: a snapshot of the table that has them; None if the table has none, or for the log.
        repeated: whether an earlier request brought them in.
        topic: topic of the log that has them; None if the table has.
        offsets: where they are in it, if that is remembered.
    """

    accepted: int | None
    rejected: dict[int, str] | None
    snapshot_id: int | None
    repeated: bool
    topic: str | None = None
    offsets: tuple[Run, ...] = ()
