"""All tables of a catalog with their metadata, as audits read them."""

from __future__ import annotations

import contextlib

from tarn.adapters.catalog_client import RestCatalog
from tarn.core.errors import AccessError, NoSuchTableError, NotFoundError
from tarn.core.table_catalog import TableName
from tarn.core.table_state import TableState


class CatalogTables:
    """The tables that a principal may read, over the REST catalog; safe for several threads.

    Args:
        catalog: asked in every call.
    """

    def __init__(self, catalog: RestCatalog) -> None:
        self._catalog = catalog

    def tables(self) -> list[str]:
        """Qualified names of all tables, but for those of namespaces that may not be read.

        Raises:
            TarnError: the catalog does not respond.
        """
        found: list[str] = []
        waiting = self._catalog.namespaces()
        while waiting:
            namespace = waiting.pop()
            # One that was dropped a moment ago has no tables, and the others have.
            with contextlib.suppress(NotFoundError, AccessError):
                found += [str(table) for table in self._catalog.tables(namespace)]
            with contextlib.suppress(NotFoundError, AccessError):
                waiting += self._catalog.namespaces(namespace)
        return sorted(found)

    def state(self, table: str) -> TableState:
        """Metadata of a table.

        Raises:
            NoSuchTableError: it does not exist, or may not be read.
            TarnError: the catalog does not respond.
        """
        *namespace, name = table.split(".")
        try:
            return self._catalog.load(TableName(tuple(namespace), name))
        except AccessError as e:
            raise NoSuchTableError(e.message, table=table) from e
