"""Creating, reading and committing list nothing in the store; only a listing of names does (I6)."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from tarn.adapters.store import FileStore


def test_reads_and_commits_list_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[str] = []
    original = FileStore.list

    def counting(self: FileStore, prefix: str, **options: object) -> object:
        listed.append(prefix)
        return original(self, prefix, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(FileStore, "list", counting)
    lake = {"py-catalog-impl": "tarn_catalog.embedded.EmbeddedCatalog", "uri": f"file://{tmp_path}"}
    catalog = load_catalog("lake", **lake)
    catalog.create_namespace("shop")
    listed.clear()  # the check of the store at the first use lists, once per process
    orders = catalog.create_table("shop.orders", pa.schema([("id", pa.int64())]))
    for number in range(3):
        orders.append(pa.table({"id": [number]}))
    assert catalog.load_table("shop.orders").scan().count() == 3
    assert listed == []
    assert catalog.list_tables("shop") == [("shop", "orders")]
    assert len(listed) == 1
