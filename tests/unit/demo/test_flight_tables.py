"""How far the tables of the flights are, read from a catalog in the test's process."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog

from tarn.cli.settings import Secrets, Settings
from tarn.core.errors import DataError
from tarn_demo.flight_tables import FlightTables
from tarn_jobs.position import PROPERTY
from tarn_jobs.schema import SILVER

ROWS = pa.table({"flight": [1, 2]})
POSITION = {"v": 1, "source": {"topic": "flight-events"}, "next": {"0": 7, "1": 9}}


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    how = {"py-catalog-impl": "tarn_catalog.embedded.EmbeddedCatalog", "uri": tmp_path.as_uri()}
    found = load_catalog("lake", **how)
    found.create_namespace("silver")
    return found


@pytest.fixture
def tables(catalog: Catalog) -> FlightTables:
    secrets = Secrets(access_key="a", secret_key="s", credential="c", jupyter_token="j", spark_token="t")
    found = FlightTables(Settings(), secrets)
    found.__dict__["_catalog"] = catalog
    return found


def test_a_layer_is_as_far_as_its_position_says(catalog: Catalog, tables: FlightTables) -> None:
    table = catalog.create_table(SILVER.name, ROWS.schema)
    table.append(ROWS, snapshot_properties={PROPERTY: json.dumps(POSITION)})
    table.append(ROWS)
    silver = tables.layers()["silver"]
    assert (silver.rows, dict(silver.next)) == (4, {0: 7, 1: 9})
    assert tables.layers()["gold"].rows == 0


def test_a_position_that_cannot_be_read_is_an_answer_and_no_defect(
    catalog: Catalog, tables: FlightTables
) -> None:
    table = catalog.create_table(SILVER.name, ROWS.schema)
    table.append(ROWS, snapshot_properties={PROPERTY: json.dumps(POSITION | {"v": 9})})
    for look in (tables.layers, tables.by_table):
        with pytest.raises(DataError, match=r"^silver\.flights: offsets in a snapshot summary are not of"):
            look()
