"""Interface of the Iceberg catalog for committers: load, create, and commit with three outcomes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tarn.core.outcome import Conflict, Unknown
from tarn.core.table_state import CommitRequest, Json, TableState


@dataclass(frozen=True, slots=True)
class TableName:
    """Table identifier: namespace levels and name."""

    namespace: tuple[str, ...]
    name: str

    def __str__(self) -> str:
        return ".".join((*self.namespace, self.name))


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitDone:
    """The commit was applied.

    Attributes:
        state: the table as returned by the catalog.
    """

    state: TableState


CommitOutcome = CommitDone | Conflict | Unknown


class TableCatalog(Protocol):
    """Catalog operations of ingestion."""

    def load(self, table: TableName) -> TableState:
        """Load the current state of the table.

        Raises:
            NoSuchTableError: the table does not exist.
            UnavailableError: no usable response; wait.
            AccessError: the principal lacks permission.
        """

    def create_namespace(self, namespace: tuple[str, ...]) -> None:
        """Create the namespace and its parents; those that exist already are left alone.

        Raises:
            UnavailableError: no usable response; wait and retry.
            AccessError: the principal lacks permission.
        """

    def create(self, table: TableName, request: Json) -> TableState:
        """Create the table.

        Raises:
            AlreadyExistsError: it exists, perhaps from an earlier request whose response was lost: load it.
            UnavailableError: no usable response: load the table before retrying.
            InvalidError: the request is invalid.
            AccessError: the principal lacks permission.
        """

    def commit(self, table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
        """Send one commit, without retries.

        Args:
            table: table identifier.
            request: requirements and updates.
            key: idempotency key.

        Raises:
            UnavailableError: nothing was sent; wait.
            NoSuchTableError: the table does not exist.
            InvalidError: the request is invalid.
            AccessError: the principal lacks permission.
        """
