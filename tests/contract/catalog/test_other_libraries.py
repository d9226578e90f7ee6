"""Polars and iceberg-rust (through DataFusion) on tables of the catalog over HTTP, files in a folder.

iceberg-rust reads the metadata file that the catalog names: its wheel has no client of a REST catalog. Polars
shares the client with pyiceberg, not the reader of data.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pytest
from datafusion import SessionContext
from pyiceberg.catalog import Catalog as PyIcebergCatalog
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import StringType
from pyiceberg_core.datafusion import IcebergDataFusionTable

from tests.contract.catalog.conftest import open_lake

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "who": ["a", "b", None]})
Rows = list[dict[str, Any]]


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PyIcebergCatalog]:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # the other planner is a package of its own
    with ExitStack() as stack:
        client = open_lake("rest-file", tmp_path / "lake", stack).client
        client.create_namespace("ns")
        yield client


def by_polars(table: Table, **more: Any) -> Rows:
    return list(polars.scan_iceberg(table, **more).sort("id").collect().to_dicts())


def by_rust(table: Table) -> Rows:
    context = SessionContext()
    reader = IcebergDataFusionTable(
        identifier=table.name(), metadata_location=table.metadata_location, file_io_properties={}
    )
    context.register_table("t", reader)
    return list(context.sql("SELECT * FROM t ORDER BY id").to_pylist())


@pytest.mark.parametrize("version", ["1", "2"])
def test_each_reads_every_state_of_a_table(client: PyIcebergCatalog, version: str) -> None:
    table = client.create_table("ns.t", ROWS.schema, properties={"format-version": version})
    table.append(ROWS)
    first = table.current_snapshot()
    assert first is not None
    before = ROWS.to_pylist()
    assert by_polars(client.load_table("ns.t")) == by_rust(client.load_table("ns.t")) == before
    with table.update_spec() as spec:
        spec.add_field("who", IdentityTransform())
    with table.update_schema() as schema:
        schema.rename_column("id", "number")
        schema.add_column("more", StringType())
    with table.update_schema() as schema:
        schema.rename_column("number", "id")
    table.append(pa.table({"id": pa.array([4], pa.int64()), "who": ["d"], "more": ["m"]}))
    table.delete("id = 2")
    after = [{**row, "more": None} for row in before if row["id"] != 2]
    after.append({"id": 4, "who": "d", "more": "m"})
    table = client.load_table("ns.t")
    assert by_polars(table) == by_rust(table) == table.scan().to_arrow().sort_by("id").to_pylist() == after
    assert by_polars(table, snapshot_id=first.snapshot_id) == before
    filtered = polars.scan_iceberg(table).filter(polars.col("who") == "d").select("id").collect()
    assert filtered.to_dicts() == [{"id": 4}]


def test_what_polars_writes_is_read_by_the_others(client: PyIcebergCatalog) -> None:
    table = client.create_table("ns.t", ROWS.schema)
    polars.from_arrow(ROWS).write_iceberg(table, mode="append")
    polars.from_arrow(ROWS.slice(0, 1)).write_iceberg(client.load_table("ns.t"), mode="append")
    table = client.load_table("ns.t")
    expected = [ROWS.to_pylist()[0], *ROWS.to_pylist()]
    assert by_rust(table) == by_polars(table) == table.scan().to_arrow().sort_by("id").to_pylist() == expected
    polars.from_arrow(ROWS.slice(2, 1)).write_iceberg(table, mode="overwrite")
    assert by_rust(client.load_table("ns.t")) == ROWS.slice(2, 1).to_pylist()
