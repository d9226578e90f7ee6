"""All tables of a catalog, as the scheduled audit looks for dead letters: none is left out."""

from __future__ import annotations

from typing import Any

from tarn.adapters.catalog_tables import CatalogTables
from tarn.core.errors import ForbiddenError, NotFoundError
from tarn.core.table_catalog import TableName


class Catalog:
    """Namespaces `n0`, `n1`, ... with one table each, also in the namespace `in` of each."""

    def __init__(self, count: int) -> None:
        self.count = count

    def namespaces(self, parent: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
        if parent == ("n1",):
            raise NotFoundError("dropped a moment ago")
        if not parent:
            return [(f"n{n}",) for n in range(self.count)]
        return [(*parent, "in")] if len(parent) == 1 else []

    def tables(self, namespace: tuple[str, ...]) -> list[TableName]:
        if namespace == ("n0",):
            raise ForbiddenError("no grant")
        return [TableName(namespace, "t")]


def test_tables_of_all_namespaces_however_many_there_are() -> None:
    catalog: Any = Catalog(1_200)
    found = CatalogTables(catalog).tables()
    assert len(found) == 2 * 1_200 - 2
    assert {"n0.in.t", "n1.t", "n2.t", "n2.in.t", "n1199.in.t"} <= set(found)
    assert not {"n0.t", "n1.in.t"} & set(found)
