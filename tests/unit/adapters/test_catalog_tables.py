"""All tables of a catalog, but for what may not be read or is gone meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from tarn.adapters.catalog_tables import CatalogTables
from tarn.core.errors import ForbiddenError, NoSuchNamespaceError, NoSuchTableError, UnavailableError
from tarn.core.table_catalog import TableName

INSIDE: dict[tuple[str, ...], tuple[list[tuple[str, ...]], list[str]]] = {
    (): ([("shop",), ("secret",), ("gone",)], []),
    ("shop",): ([("shop", "eu")], ["orders"]),
    ("shop", "eu"): ([], ["orders", "items"]),
}
"""Namespace -> the namespaces and the tables in it."""
REFUSED: dict[tuple[str, ...], Exception] = {
    ("secret",): ForbiddenError("may not list secret"),
    ("gone",): NoSuchNamespaceError("gone is not there"),
}


class FakeCatalog:
    def __init__(self) -> None:
        self.refused = dict(REFUSED)

    def _inside(self, namespace: tuple[str, ...]) -> tuple[list[tuple[str, ...]], list[str]]:
        if namespace in self.refused:
            raise self.refused[namespace]
        return INSIDE[namespace]

    def namespaces(self, parent: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
        return list(self._inside(parent)[0])

    def tables(self, namespace: tuple[str, ...]) -> list[TableName]:
        return [TableName(namespace, name) for name in self._inside(namespace)[1]]

    def load(self, table: TableName) -> Any:
        if table.namespace in self.refused:
            raise self.refused[table.namespace]
        return table


def tables_of(catalog: Any) -> CatalogTables:
    return CatalogTables(catalog)


def test_tables_of_nested_namespaces_are_listed_and_what_may_not_be_read_is_passed_over() -> None:
    assert tables_of(FakeCatalog()).tables() == ["shop.eu.items", "shop.eu.orders", "shop.orders"]


def test_a_catalog_that_does_not_answer_is_no_empty_list() -> None:
    catalog = FakeCatalog()
    catalog.refused["shop",] = UnavailableError("no answer")
    with pytest.raises(UnavailableError):
        tables_of(catalog).tables()


def test_a_table_that_may_not_be_read_is_as_one_that_is_not_there() -> None:
    found = tables_of(FakeCatalog())
    wanted: Any = TableName(("shop", "eu"), "orders")
    assert found.state("shop.eu.orders") == wanted
    with pytest.raises(NoSuchTableError, match="may not list secret"):
        found.state("secret.orders")


class ManyNamespaces(FakeCatalog):
    """Namespaces `n0`, `n1`, ... with a table each, and a namespace `in` with one."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def _inside(self, namespace: tuple[str, ...]) -> tuple[list[tuple[str, ...]], list[str]]:
        if not namespace:
            return [(f"n{n}",) for n in range(self.count)], []
        return ([(*namespace, "in")] if len(namespace) == 1 else []), ["t"]


def test_tables_of_all_namespaces_however_many_there_are() -> None:
    found = tables_of(ManyNamespaces(1_200)).tables()
    assert len(found) == 2 * 1_200
    assert {"n0.t", "n0.in.t", "n1199.in.t"} <= set(found)
