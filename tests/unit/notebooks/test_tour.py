"""The tour's helpers, on a lake in a folder; nothing is plotted."""

from __future__ import annotations

import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog

FILE = Path(__file__).resolve().parents[3] / "notebooks" / "tarn_tour.py"


@pytest.fixture
def tour(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """The module without the plotting library, which is only in the image."""
    drawing: dict[str, Any] = {name: types.ModuleType(name) for name in ("matplotlib", "matplotlib.pyplot")}
    drawing["matplotlib.pyplot"].rcParams = {}
    drawing["matplotlib"].pyplot = drawing["matplotlib.pyplot"]
    drawing["matplotlib.dates"] = types.ModuleType("matplotlib.dates")
    drawing["matplotlib.dates"].ConciseDateFormatter = object
    for name, module in drawing.items():
        monkeypatch.setitem(sys.modules, name, module)
    spec = importlib.util.spec_from_file_location("tarn_tour", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def lake(tmp_path: Path) -> Catalog:
    how = {"py-catalog-impl": "tarn_catalog.embedded.EmbeddedCatalog", "uri": tmp_path.as_uri()}
    catalog = load_catalog("lake", **how)
    catalog.create_namespace("gold")
    return catalog


def add(lake: Catalog, name: str, *positions: str | None) -> None:
    """Create a table with one row per commit, each at a position in the stream."""
    table = lake.create_table(name, pa.schema([("n", pa.int64())]))
    for number, position in enumerate(positions):
        told = {} if position is None else {"tarn.position": json.dumps({"next": {"0": int(position)}})}
        table.append(pa.table({"n": [number]}), snapshot_properties=told)


def test_the_overview_leaves_out_what_the_client_cannot_read_and_says_so(
    tour: types.ModuleType, lake: Catalog, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    add(lake, "gold.a", "1", "2")
    add(lake, "gold.odd")
    load = lake.load_table

    def picky(name: Any) -> Any:
        if tuple(name)[-1] == "odd":
            raise ValueError("Unsupported field type: 'variant'\nand more")
        return load(name)

    monkeypatch.setattr(lake, "load_table", picky)
    shown = tour.overview(lake)
    assert list(shown.index) == ["gold.a"]
    assert (shown.loc["gold.a", "rows"], shown.loc["gold.a", "snapshots"]) == (2, 2)
    assert (
        capsys.readouterr().out
        == "left out: gold.odd, which pyiceberg cannot read (Unsupported field type: 'variant')\n"
    )


def test_rows_of_a_table_that_is_not_there_yet(tour: types.ModuleType, lake: Catalog) -> None:
    assert tour.rows_in(lake, "gold.nothing") == 0
    add(lake, "gold.a", None, None)
    assert tour.rows_in(lake, "gold.a") == 2


def test_what_a_summary_says_is_looked_for_backwards(tour: types.ModuleType, lake: Catalog) -> None:
    add(lake, "gold.a", "7", None)
    table = lake.load_table("gold.a")
    assert tour.said(table, table.current_snapshot(), "tarn.position") == {"next": {"0": 7}}
    with pytest.raises(KeyError, match=r"no snapshot of gold\.a has tarn\.other"):
        tour.said(table, table.current_snapshot(), "tarn.other")


def test_tables_meet_at_the_newest_position_that_all_have_stood_at(
    tour: types.ModuleType, lake: Catalog
) -> None:
    add(lake, "gold.a", "1", "2", "3")
    add(lake, "gold.b", "1", "2")
    add(lake, "gold.c", "9")
    tables = {name: lake.load_table(name) for name in ("gold.a", "gold.b")}
    at = tour.at_one_position(tables)
    for name, table in tables.items():
        assert tour.said(table, table.snapshot_by_id(at[name]), "tarn.position") == {"next": {"0": 2}}
    assert tour.at_one_position(tables | {"gold.c": lake.load_table("gold.c")}) == {}


def test_a_snapshot_of_a_while_ago(tour: types.ModuleType, lake: Catalog) -> None:
    add(lake, "gold.a", None, None)
    table = lake.load_table("gold.a")
    first, second = sorted(table.metadata.snapshots, key=lambda s: s.sequence_number)
    assert tour.a_while_ago(table, seconds=3600) == first
    assert tour.a_while_ago(table, seconds=0) == second


def test_facts_are_counted_and_a_wrong_one_stops(
    tour: types.ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = tour.Facts()
    facts.check("one is one", 1 == 1, "seen")
    assert capsys.readouterr().out == "✓ one is one  (seen)\n"
    with pytest.raises(AssertionError, match=r"not so: two is one \(\)"):
        facts.check("two is one", False)
    assert facts.checked == ["one is one"]


def test_waiting_ends_with_the_last_answer(tour: types.ModuleType) -> None:
    answers = iter([[], [], ["there"]])
    assert tour.until(lambda: next(answers), seconds=5, pause_s=0.01) == ["there"]
    assert tour.until(lambda: 0, seconds=0.02, pause_s=0.01) == 0


def test_a_refusal_is_told_from_other_failures(tour: types.ModuleType) -> None:
    def failing(text: str) -> Any:
        def attempt() -> None:
            raise OSError(text)

        return attempt

    assert tour.refused(failing("AWS Error ACCESS_DENIED during PutObject"))
    assert not tour.refused(failing("no route to host"))
    assert not tour.refused(lambda: None)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("b/warehouse/n/t/data/x.parquet", "data (Parquet)"),
        ("b/warehouse/n/t/metadata/1.metadata.json", "table metadata (JSON)"),
        ("b/warehouse/n/t/metadata/1.gz.metadata.json", "table metadata (JSON)"),
        ("b/warehouse/n/t/metadata/1.metadata.json.gz", "table metadata (JSON)"),
        ("b/warehouse/n/t/metadata/m.avro", "manifests (Avro) and others"),
    ],
)
def test_kinds_of_files(tour: types.ModuleType, path: str, kind: str) -> None:
    assert tour._kind(path) == kind
