"""The tables that an ingestor writes: made where they are missing, and how rows are laid out in them."""

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
    """The table; made if it does not exist."""
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
    """What makes the table of dead letters."""
    return create_request(dead_letter.FIELDS, trace=False)


class TargetTable:
    """The table of one ingestor, and the layout that its files need.

    Args:
        spec: what is to be written.
    """

    def __init__(self, spec: IngestorSpec) -> None:
        body = spec.spec
        self.name = TableName(body.table.levels, body.table.name)
        self._body = body
        self._layout: WriteSchema | None = None
        self._version: tuple[object, ...] = ()
        self._root = ""

    def request(self) -> Json:
        """What makes the table."""
        body = self._body
        return create_request(
            body.columns.fields,
            trace=body.trace,
            partitioning=body.table.partitioning,
            properties=body.table.properties,
            format_version=body.table.format_version,
        )

    def see(self, state: TableState) -> None:
        """Takes over where the table keeps its files and, if it changed, how they are laid out.

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
        """Whether the layout is the one that this state of the table asks for."""
        return layout_version(state) == self._version

    @property
    def root(self) -> str:
        """Where its files go."""
        return self._root

    @property
    def layout(self) -> WriteSchema:
        """How rows are laid out; known after `see`."""
        if self._layout is None:
            raise AssertionError("no layout before the first plan")
        return self._layout
