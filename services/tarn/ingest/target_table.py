"""The tables that an ingestor writes: created if missing, and the write schema of their files."""

from __future__ import annotations

import structlog

from tarn.adapters.catalog_client import TableCatalog, TableName
from tarn.adapters.write_schema import WriteSchema, create_request, layout_of, layout_version
from tarn.core import dead_letter
from tarn.core.errors import AlreadyExistsError, NoSuchTableError
from tarn.core.spec import IngestorSpec
from tarn.core.table_state import Json, TableState

log = structlog.get_logger()


def ensure(catalog: TableCatalog, table: TableName, request: Json) -> TableState:
    """Load the table; create it, and its namespace, if it does not exist.

    Args:
        catalog: catalog of the table.
        table: table identifier.
        request: create-table request without the name.
    """
    try:
        return catalog.load(table)
    except NoSuchTableError:
        pass
    catalog.create_namespace(table.namespace)
    try:
        state = catalog.create(table, request)
    except AlreadyExistsError:
        return catalog.load(table)
    log.info("table created", table=str(table), uuid=state.uuid)
    return state


def dead_letter_request() -> Json:
    """REST request that creates the dead-letter table."""
    return create_request(dead_letter.FIELDS, trace=False)


class TargetTable:
    """The target table of one ingestor, and the write schema of its files.

    Args:
        spec: ingestor spec.
    """

    def __init__(self, spec: IngestorSpec) -> None:
        body = spec.spec
        self.name = TableName(body.table.levels, body.table.name)
        self._body = body
        self._layout: WriteSchema | None = None
        self._version: tuple[object, ...] = ()
        self._root = ""

    def request(self) -> Json:
        """REST request that creates the table."""
        body = self._body
        return create_request(
            body.columns.fields,
            trace=body.trace,
            partitioning=body.table.partitioning,
            properties=body.table.properties,
            format_version=body.table.format_version,
        )

    def see(self, state: TableState) -> None:
        """Refresh the table location and, if it changed, the write schema.

        Raises:
            TarnError: the table cannot take the spec's columns.
        """
        version = layout_version(state)
        if self._layout is None or self._version != version:
            body = self._body
            self._layout = layout_of(state, body.columns.fields, trace=body.trace, table=str(self.name))
            self._version = version
        self._root = state.root

    def is_current(self, state: TableState) -> bool:
        """Whether the write schema matches this version of the table."""
        return layout_version(state) == self._version

    @property
    def root(self) -> str:
        """Location of the table."""
        return self._root

    @property
    def layout(self) -> WriteSchema:
        """The write schema; available after `see`."""
        if self._layout is None:
            raise AssertionError("no layout before the first plan")
        return self._layout
