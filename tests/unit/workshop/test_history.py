"""The graph of a table's snapshots, made-up price lists, and the rollback that notebook 06 commits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from tarn.workshop import goods, plots_history, tables
from tests.support.workshop import read, source

BOOK = "06_time_travel.ipynb"


@pytest.fixture
def lake(tmp_path: Path) -> Catalog:
    how = {"py-catalog-impl": "tarn_catalog.embedded.EmbeddedCatalog", "uri": tmp_path.as_uri()}
    catalog = load_catalog("lake", **how)
    catalog.create_namespace("ws_ada")
    return catalog


@pytest.fixture
def table(lake: Catalog) -> Table:
    """A table with three snapshots on main."""
    made = lake.create_table("ws_ada.readings", pa.schema([("n", pa.int64())]))
    for n in range(3):
        made.append(pa.table({"n": [n]}))
    return made


def ids(table: Table) -> list[int]:
    return [snapshot.snapshot_id for snapshot in table.snapshots()]


def test_a_branch_has_a_lane_of_its_own(table: Table) -> None:
    first, second, third = ids(table)
    table.manage_snapshots().create_tag(first, "good").create_branch(second, "audit").commit()
    table.append(pa.table({"n": [9]}), branch="audit")
    graph = plots_history.graph_of(table)
    side = ids(table)[-1]
    assert graph.places == {first: (0, 0), second: (1, 0), third: (2, 0), side: (3, 1)}
    assert graph.edges == [(first, second), (second, third), (second, side)]
    assert graph.labels == {first: ["good"], third: ["main"], side: ["audit"]}


def test_after_going_back_what_was_current_is_the_side_line(table: Table) -> None:
    first, second, third = ids(table)
    table.manage_snapshots().set_current_snapshot(first).commit()
    table.append(pa.table({"n": [9]}))
    graph = plots_history.graph_of(table)
    now = ids(table)[-1]
    assert {of: lane for of, (_, lane) in graph.places.items()} == {first: 0, second: 1, third: 1, now: 0}
    assert graph.labels == {now: ["main"]}


def test_a_table_without_snapshots_has_an_empty_graph(lake: Catalog) -> None:
    made = lake.create_table("ws_ada.empty", pa.schema([("n", pa.int64())]))
    assert plots_history.graph_of(made) == plots_history.Graph(places={}, edges=[], labels={})


@pytest.mark.parametrize("seed", ["ada", "bob", "grace", "student"])
@pytest.mark.parametrize("nights", [4, 6, 12])
def test_prices_are_right_for_two_nights_and_in_cents_at_the_end(nights: int, seed: str) -> None:
    lists = goods.price_lists(nights, seed)
    right = [bool((one["price"] < goods.DEAREST).all()) for one in lists]
    assert len(lists) == nights
    assert right[:2] == [True, True]
    assert right[-1] is False
    assert sorted(right, reverse=True) == right, "once wrong, always wrong"
    for one, ok in zip(lists, right, strict=True):
        dear = set(one[one["price"] > goods.DEAREST]["product"])
        assert dear == (set() if ok else set(goods.DAIRY))


def test_readings_go_on_where_the_last_ones_ended() -> None:
    ten = [*goods.readings(0, 5), *goods.readings(5, 5)]
    assert [one["id"] for one in ten] == list(range(10))
    assert {one["sensor"] for one in ten} == set(goods.SENSORS)
    assert sorted(one["at"] for one in ten) == [one["at"] for one in ten]


def rollback_of_the_notebook(table: Table) -> Any:
    """The function `roll_back` of notebook 06, for a table of this test."""
    [text] = [source(cell) for cell in read(BOOK)["cells"] if "def roll_back" in source(cell)]
    function = text.partition("\n\n\n")[0]
    names: dict[str, Any] = {"readings": table, "ingestor": "ws-ada-readings"}
    exec(function, names)
    return names["roll_back"]


def test_the_notebooks_rollback_moves_three_names_in_one_commit(table: Table) -> None:
    first, _, third = ids(table)
    table.manage_snapshots().create_tag(first, "good").create_tag(
        third, "tarn-offsets-ws-ada-readings"
    ).commit()
    before = table.metadata_location
    rollback_of_the_notebook(table)("good")
    table.refresh()
    assert {name: ref.snapshot_id for name, ref in table.metadata.refs.items()} == {
        "main": first,
        "good": first,
        "tarn-offsets-ws-ada-readings": first,
        f"before-rollback-{third}": third,
    }
    assert [entry.metadata_file for entry in table.metadata.metadata_log][-1] == before, "one commit"
    assert len(ids(table)) == 3


def test_the_notebooks_rollback_is_refused_if_main_has_moved(
    table: Table, lake: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of its three names matters: pyiceberg sends the condition of the first one only."""
    first, *_ = ids(table)
    table.manage_snapshots().create_tag(first, "good").commit()
    lake.load_table("ws_ada.readings").append(pa.table({"n": [9]}))
    monkeypatch.setattr(Table, "refresh", lambda self: self)  # it is faster than our look
    with pytest.raises(CommitFailedException, match="main"):
        rollback_of_the_notebook(table)("good")
    monkeypatch.undo()
    assert table.refresh().scan().count() == 4, "nothing was rolled back"
    assert tables.summary_of(table.current_snapshot())["total-records"] == "4"
