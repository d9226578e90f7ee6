"""Interface of a table's log; `tarn.adapters.kafka_log` and `tarn.testing.memory_log` implement it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tarn.core.errors import UnavailableError
from tarn.core.offsets import TopicIdentity

Record = tuple[bytes, bytes | None]
"""Key and value of a claim; without a value it removes the claim with this key."""


class LogFencedError(UnavailableError):
    """Another process writes this log now; nothing of the transaction is in it, nor will be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPlace:
    """A log as it was when it was opened.

    Attributes:
        identity: identity of the topic with the rows.
        ends: partition to the offset behind its last record.
    """

    identity: TopicIdentity
    ends: Mapping[int, int]


class TableLog(Protocol):
    """The log of one table: rows, and claims beside them. Not thread-safe."""

    def open(self) -> LogPlace:
        """Begin to write: every transaction of others has ended when this returns, and none can begin.

        Raises:
            NoSuchTopicError: there is no topic for the rows.
            SourceChangedError: the topic with the claims is another one than at an earlier call, so that
                claims are lost; others go on writing.
            AccessError: the user may not write there.
            UnavailableError: the broker does not respond.
        """

    def ends(self) -> Mapping[int, int]:
        """Partition to the offset behind its last record, now; asked after `open`.

        Raises:
            NoSuchTopicError, AccessError, UnavailableError: as of `open`.
        """

    def claims(self) -> Iterable[Record]:
        """Committed claims since the last call, at first from the beginning; all that were confirmed before.

        Raises:
            SourceChangedError: as of `open`; or the topic ends before what was read of it.
            UnavailableError: the broker does not respond; the next call goes on behind the last record.
        """

    def append(
        self, rows: Sequence[tuple[int, bytes]], claims: Callable[[Sequence[int]], Sequence[Record]]
    ) -> None:
        """Write rows and claims in one transaction.

        Args:
            rows: partition and value of each row.
            claims: makes the claims from the offsets of the rows. If it raises, nothing is there, nor will
                be after `open`.

        Raises:
            LogFencedError: another process writes this log; nothing is there.
            UnavailableError: the broker does not respond; nothing is there, nor will be after `open`.
            OutcomeUnknownError: all may be there; known once `open` and `claims` have succeeded.
        """

    def rest(self) -> None:
        """Called every few seconds while nothing is written; asks the broker nothing."""

    def close(self) -> None:
        """Close all connections. An open transaction is aborted by the broker, or by the next `open`."""


class TableLogs(Protocol):
    """The logs of all tables."""

    def of(self, table_uuid: str) -> TableLog:
        """The log of a table; nothing is asked yet."""
