"""Figures of tables, on a lake in a folder."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog

from tarn.workshop import offset_writer, plots, tables


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
    lake: Catalog, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    add(lake, "gold.a", "1", "2")
    add(lake, "gold.odd")
    load = lake.load_table

    def picky(name: Any) -> Any:
        if tuple(name)[-1] == "odd":
            raise ValueError("Unsupported field type: 'variant'\nand more")
        return load(name)

    monkeypatch.setattr(lake, "load_table", picky)
    shown = tables.overview(lake)
    assert list(shown.index) == ["gold.a"]
    assert (shown.loc["gold.a", "rows"], shown.loc["gold.a", "snapshots"]) == (2, 2)
    assert (
        capsys.readouterr().out
        == "left out: gold.odd, which pyiceberg cannot read (Unsupported field type: 'variant')\n"
    )


def test_rows_of_a_table_that_is_not_there_yet(lake: Catalog) -> None:
    assert tables.rows_in(lake, "gold.nothing") == 0
    add(lake, "gold.a", None, None)
    assert tables.rows_in(lake, "gold.a") == 2


def test_what_a_summary_says_is_looked_for_backwards(lake: Catalog) -> None:
    add(lake, "gold.a", "7", None)
    table = lake.load_table("gold.a")
    assert tables.said(table, table.current_snapshot(), "tarn.position") == {"next": {"0": 7}}
    with pytest.raises(KeyError, match=r"no snapshot of gold\.a has tarn\.other"):
        tables.said(table, table.current_snapshot(), "tarn.other")


def test_a_history_that_forms_a_circle_ends(lake: Catalog) -> None:
    """Tables that were stored before such snapshots were refused may have one."""
    add(lake, "gold.a", "7", "8")
    table = lake.load_table("gold.a")
    first, second = table.snapshots()
    made = first.model_copy(update={"parent_snapshot_id": second.snapshot_id})
    table.metadata.snapshots[:] = [made, second]
    found = itertools.islice(tables.back_from(table, table.current_snapshot()), 9)
    assert [one.snapshot_id for one in found] == [second.snapshot_id, first.snapshot_id]
    assert offset_writer.position_in_table(table) == {}


def test_the_newest_position_in_a_table_counts(lake: Catalog) -> None:
    add(lake, "gold.a", None)
    table = lake.load_table("gold.a")
    assert offset_writer.position_in_table(table) == {}
    for entry in ({offset_writer.ENTRY: '{"0": 5}'}, {offset_writer.ENTRY: '{"0": 6}'}, {}):
        table.append(pa.table({"n": [1]}), snapshot_properties=entry)
    assert offset_writer.position_in_table(table) == {0: 6}


def test_tables_meet_at_the_newest_position_that_all_have_stood_at(lake: Catalog) -> None:
    add(lake, "gold.a", "1", "2", "3")
    add(lake, "gold.b", "1", "2")
    add(lake, "gold.c", "9")
    found = {name: lake.load_table(name) for name in ("gold.a", "gold.b")}
    at = tables.at_one_position(found)
    for name, table in found.items():
        assert tables.said(table, table.snapshot_by_id(at[name]), "tarn.position") == {"next": {"0": 2}}
    assert tables.at_one_position(found | {"gold.c": lake.load_table("gold.c")}) == {}
    add(lake, "gold.d")
    gold = lake.load_table("gold.d")
    position = json.dumps({"next": {"0": 2}, "made-from": str(at["gold.b"])})
    gold.append(pa.table({"n": [1]}), snapshot_properties={"tarn.position": position})
    assert tables.at_one_position(found | {"gold.d": gold}).keys() == {"gold.a", "gold.b", "gold.d"}


def test_a_snapshot_of_a_while_ago(lake: Catalog) -> None:
    add(lake, "gold.a", None, None)
    table = lake.load_table("gold.a")
    first, second = sorted(table.metadata.snapshots, key=lambda s: s.sequence_number)
    assert tables.a_while_ago(table, seconds=3600) == first
    assert tables.a_while_ago(table, seconds=0) == second


def test_a_refusal_is_told_from_other_failures() -> None:
    def failing(text: str) -> Any:
        def attempt() -> None:
            raise OSError(text)

        return attempt

    assert tables.refused(failing("AWS Error ACCESS_DENIED during PutObject"))
    assert not tables.refused(failing("no route to host"))
    assert not tables.refused(lambda: None)


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
def test_kinds_of_files(path: str, kind: str) -> None:
    assert plots._kind(path) == kind
