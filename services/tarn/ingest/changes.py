"""A change of a table, its result, and the interface to whoever commits it.

A change is data: it names files that are in the store already, and judges whether they may join a version of
the table. So whoever wrote the files need not be who commits them, nor run in the same process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tarn.core.outcome import AlreadyCommitted, Rejected
from tarn.core.table_files import TableWriter, WrittenList
from tarn.core.table_state import Append, CommitRequest, Json, TableState, WrittenFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The change is committed.

    Attributes:
        state: a version of the table that includes the change.
        by_us: whether a request of this commit applied it.
        attempts: number of requests sent.
        first: whether it is the first change of its snapshot, which may hold several.
        listed: manifest list of the last request; None if another one was applied, or none was sent.
    """

    state: TableState
    by_us: bool
    attempts: int
    first: bool = True
    listed: WrittenList | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedsReplan:
    """The change is not in the table and does not fit it: plan again from the table's current state."""

    state: TableState
    reason: str


CommitResult = Done | NeedsReplan


class Change(Protocol):
    """One logical commit."""

    @property
    def commit_id(self) -> str:
        """Commit id, the same for all attempts."""

    @property
    def table_uuid(self) -> str:
        """UUID of the table that the change was planned for."""

    @property
    def files(self) -> tuple[WrittenFile, ...]:
        """Data files to add; they are in the store already."""

    @property
    def removed(self) -> tuple[WrittenFile, ...]:
        """Data files to remove, whose rows `files` hold or nobody needs; all must be live."""

    def on(self, state: TableState) -> Append | AlreadyCommitted | Rejected:
        """What to append to exactly this version of the table, or why nothing. Pure.

        Raises:
            DataError: continuing would lose or duplicate rows.
        """


class TableCommits(Protocol):
    """Loads, creates, alters and commits to one table."""

    def ensure(self, request: Json) -> TableState:
        """Load the table; create it, and its namespace, if it does not exist.

        Args:
            request: create-table request without the name.

        Raises:
            UnavailableError: the catalog does not respond.
        """

    def load(self) -> TableState:
        """Load the table.

        Raises:
            NoSuchTableError: the table does not exist.
            UnavailableError: the catalog does not respond.
        """

    def alter(self, request: CommitRequest) -> TableState:
        """Send a commit that adds no snapshot, once.

        Raises:
            UnavailableError: the catalog does not respond, another commit came first, or the outcome is
                unknown; the table then says whether anything is left to be done.
        """

    def commit(self, change: Change, writer: TableWriter) -> CommitResult:
        """Commit the change at most once; return only when the outcome is certain.

        Args:
            change: the logical commit.
            writer: writer of the change's files; the table must still have its schema and partition spec.

        Returns:
            `Done` if the table includes the change, `NeedsReplan` if it does not and cannot as planned.

        Raises:
            DataError: raised by the change's `on`, or the stored state contradicts itself.
            NoSuchTableError, InvalidError, AccessError: waiting does not help.
        """
