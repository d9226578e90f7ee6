"""The catalog as ingestion uses it, without HTTP: the same operations, called in this process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from tarn.core.errors import AlreadyExistsError, ConflictError, OutcomeUnknownError
from tarn.core.outcome import Conflict, Unknown
from tarn.core.table_catalog import CommitDone, CommitOutcome, TableName
from tarn.core.table_state import CommitRequest, TableState
from tarn_catalog.operations.catalog import Catalog
from tarn_catalog.operations.identifiers import CreateTableRequest, TableIdentifier
from tarn_catalog.state.context import IdempotencyKey, Metadata


class InProcessCatalog:
    """A `TableCatalog` of `tarn.core.table_catalog` over an opened catalog.

    Args:
        catalog: the opened catalog.

    Attributes:
        catalog: the same.
        commits: number of commits that were asked for.
    """

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.commits = 0

    def load(self, table: TableName) -> TableState:
        """See `TableCatalog.load`."""
        return _state(self.catalog.tables.load(self._slot(table)))

    def create_namespace(self, namespace: tuple[str, ...]) -> None:
        """See `TableCatalog.create_namespace`."""
        for depth in range(1, len(namespace) + 1):
            try:
                self.catalog.namespaces.create(namespace[:depth], {})
            except AlreadyExistsError:
                continue

    def create(self, table: TableName, request: Mapping[str, Any]) -> TableState:
        """See `TableCatalog.create`."""
        wanted = CreateTableRequest(
            schema=request["schema"],
            spec=request["partition-spec"],
            order=request["write-order"],
            properties=request["properties"],
        )
        return _state(self.catalog.tables.create(self._slot(table), wanted))

    def commit(self, table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
        """See `TableCatalog.commit`."""
        self.commits += 1
        body = json.loads(json.dumps(request.body()))
        try:
            done = self.catalog.tables.commit(
                self._slot(table),
                body["requirements"],
                body["updates"],
                repeat=IdempotencyKey(key=key, what=f"commit {json.dumps(body, sort_keys=True)}"),
            )
        except ConflictError as e:
            return Conflict(reason=e.message)
        except OutcomeUnknownError as e:
            return Unknown(reason=e.message)
        return CommitDone(state=_state(done))

    def drop(self, table: TableName) -> None:
        """Drop a table; its files stay."""
        self.catalog.tables.drop(self._slot(table))

    def _slot(self, table: TableName) -> TableIdentifier:
        return TableIdentifier.of(table.namespace, table.name)


def _state(stored: Metadata) -> TableState:
    return TableState(cast("dict[str, Any]", stored.parsed))
