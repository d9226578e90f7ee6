"""How long rows waited, from offset maps and commit times of a table in a folder."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table

from tarn.workshop import freshness

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        (
            "_tarn",
            pa.struct(
                [("partition", pa.int32()), ("offset", pa.int64()), ("time", pa.timestamp("us", tz="UTC"))]
            ),
        ),
    ]
)
AT = datetime(2026, 1, 5, tzinfo=UTC)


@pytest.fixture
def lake(tmp_path: Path) -> Catalog:
    how = {"py-catalog-impl": "tarn_catalog.embedded.EmbeddedCatalog", "uri": tmp_path.as_uri()}
    catalog = load_catalog("lake", **how)
    catalog.create_namespace("ws_ada")
    return catalog


def rows(*places: tuple[int, int]) -> pa.Table:
    """One row per place (partition, offset), sent a second apart."""
    return pa.Table.from_pylist(
        [
            {
                "id": 100 * partition + offset,
                "_tarn": {"partition": partition, "offset": offset, "time": AT + timedelta(seconds=offset)},
            }
            for partition, offset in places
        ],
        schema=SCHEMA,
    )


def commit(table: Table, data: pa.Table, offsets: dict[str, int]) -> int:
    table.append(data, snapshot_properties={"tarn.offsets.orders": json.dumps({"next": offsets})})
    found = table.current_snapshot()
    assert found is not None
    return found.snapshot_id


def test_a_row_belongs_to_the_first_commit_whose_map_is_behind_it(lake: Catalog) -> None:
    table = lake.create_table("ws_ada.orders", SCHEMA)
    first = commit(table, rows((0, 0), (0, 1)), {"0": 2})
    second = commit(table, rows((0, 2), (1, 0)), {"0": 3, "1": 1})
    table.append(rows(), snapshot_properties={})  # somebody else's commit has no map
    found = freshness.of_rows(table, "orders").set_index("id")
    assert found["commit"].to_dict() == {0: first, 1: first, 2: second, 100: second}
    times = {one.snapshot_id: one.timestamp_ms for one in table.snapshots()}
    for number, offset in ((0, 0), (1, 1), (2, 2), (100, 0)):
        waited_ms = times[found["commit"][number]] - (AT + timedelta(seconds=offset)).timestamp() * 1_000
        assert found["seconds"][number] == pytest.approx(waited_ms / 1_000)
    assert list(found["sent"]) == sorted(found["sent"])
    assert "_tarn" not in found.columns


def test_a_row_behind_every_map_is_not_given_to_another_commit(lake: Catalog) -> None:
    table = lake.create_table("ws_ada.orders", SCHEMA)
    commit(table, rows((0, 0), (0, 7)), {"0": 1})
    with pytest.raises(ValueError, match="load it again"):
        freshness.of_rows(table, "orders")


def test_a_table_without_rows_has_none(lake: Catalog) -> None:
    table = lake.create_table("ws_ada.orders", SCHEMA)
    commit(table, rows(), {"0": 0})
    assert freshness.of_rows(table, "orders").empty
