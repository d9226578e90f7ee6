"""Checkers that need no lake: what they refuse, and with which words."""

from __future__ import annotations

from datetime import date
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog

from tarn.core.errors import InvalidError
from tarn.workshop.checks import nb10, nb11
from tarn.workshop.checks.frames import close, columns_of
from tarn.workshop.flights import timetable
from tarn.workshop.lab import Lab
from tarn.workshop.plots_flights import great_circle
from tarn.workshop.scratch import files, put, recreate, whole


def lab_with(**parts: Any) -> Lab:
    return cast("Lab", SimpleNamespace(**parts))


@pytest.fixture
def catalog(tmp_path: Any) -> Catalog:
    how = {"py-catalog-impl": "tarn_catalog.embedded.EmbeddedCatalog", "uri": tmp_path.as_uri()}
    found = load_catalog("lake", **how)
    found.create_namespace("ws_ada")
    return found


@pytest.fixture
def lab(catalog: Catalog) -> Lab:
    return lab_with(catalog=catalog, name=lambda table: f"ws_ada.{table}")


# -- DataFrames


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ([1], "of type list"),
        (pd.DataFrame({"n": [1]}), "the column dest is missing; yours are n"),
        (pd.DataFrame({"dest": [], "n": []}), "has no rows"),
    ],
)
def test_a_frame_that_cannot_be_compared_is_refused(answer: object, words: str) -> None:
    found, problem = columns_of(answer, ("dest", "n"))
    assert found is None
    assert not problem.right
    assert words in problem.message


def test_numbers_are_the_same_but_for_rounding_and_null_is_the_same_as_null() -> None:
    assert close(1 / 3, 0.33333333)
    assert not close(1.0, 1.001)
    assert close(None, float("nan"))
    assert not close(None, 0.0)
    assert not close(0.0, float("nan"))


# -- tables


def test_a_table_is_replaced_with_its_rows(lab: Lab) -> None:
    first = put(lab, "sales", pa.table({"n": [1, 2]}))
    again = put(lab, "sales", pd.DataFrame({"n": [3]}))
    assert first.metadata.table_uuid != again.metadata.table_uuid
    assert list(whole(lab, "sales")["n"]) == [3]
    assert whole(lab, "sales").equals(again.scan().to_pandas())


def test_files_that_a_filter_opens(lab: Lab) -> None:
    table = recreate(lab, "sales", pa.schema([("n", pa.int64())]))
    assert files(table) == []
    for n in (1, 2, 3):
        table.append(pa.table({"n": [n]}))
    assert len(files(table)) == 3
    assert len(files(table, "n = 2")) == 1
    assert set(files(table, "n > 1")) < set(files(table))


# -- notebook 10


@pytest.mark.long
def test_what_only_history_holds(lab: Lab) -> None:
    for name in ("trickle", "shreds"):
        table = put(lab, name, pa.table({"n": [1, 2]}))
        table.overwrite(pa.table({"n": [3]}))

    def held(table: Any) -> set[str]:
        return set(table.inspect.all_data_files()["file_path"].to_pylist()) - set(files(table))

    assert nb10.exercise_2(lab, held).right
    everything = nb10.exercise_2(
        lab, lambda table: set(table.inspect.all_data_files()["file_path"].to_pylist())
    )
    assert (everything.right, everything.message) == (False, "for trickle, 1 of your files are live")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("10, 1m for 1h, 1d for 30d", "at most 102 snapshots"),
        ("10,1m for 1h,  1d for 30d", "at most 102 snapshots"),
        ("10, 60s for 60m, 24h for 720h", "at most 102 snapshots"),
        ("11, 1m for 1h, 1d for 30d", "keeps the newest 11"),
        ("10, 1m for 1h, 1d for 31d", "one step is 1d for 31d, asked for is 1d for 30d"),
        ("10, 90s for 1h, 1d for 30d", "one step is 90s for 1h"),
        ("10, 1d for 30d, 1m for 1h", "the catalog would refuse it"),
        ("", "the catalog would refuse it"),
    ],
)
def test_a_ladder_is_compared_by_what_it_keeps(text: str, words: str) -> None:
    verdict = nb10.exercise_3(lab_with(), text)
    assert words in verdict.message
    assert verdict.right == words.startswith("at most")


# -- notebook 11


def event(number: int, **other: Any) -> dict[str, Any]:
    return {"no": number, "when": f"2026-03-02T08:{number % 60:02}:00Z", "text": "x"} | other


def test_events_may_have_any_keys_if_one_is_an_id_and_one_a_time() -> None:
    assert nb11.exercise_1(lab_with(), [event(n) for n in range(100)]).right
    one_id = [event(n, no=1, key=f"k{n}") for n in range(100)]
    assert (
        nb11.exercise_1(lab_with(), one_id).message
        == "100 events; 'key' distinguishes them, 'when' says when"
    )


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([event(n) for n in range(99)], "these are 99 events"),
        ([event(n // 2) for n in range(200)], "no key distinguishes the events"),
        ([event(n, no=True) for n in range(100)], "no key distinguishes the events"),
        ([event(n, when="2026-03-02T08:00:00") for n in range(100)], "'when' do not say in which time zone"),
        ([event(n, when="2 March") for n in range(100)], "no key has a time"),
        ([event(n, price=float("nan")) for n in range(100)], "event 0 cannot be written as JSON"),
        (
            [event(n) | ({"more": 1} if n == 7 else {}) for n in range(100)],
            "event 7 and the first one differ in 'more'",
        ),
        ("x" * 100, "asked for is a list"),
    ],
)
def test_events_that_a_table_could_not_use_are_refused(events: Any, words: str) -> None:
    verdict = nb11.exercise_1(lab_with(), events)
    assert not verdict.right
    assert words in verdict.message


def test_a_time_alone_is_not_an_id() -> None:
    """Two events may happen at one time, so different times distinguish nothing."""
    moments = [{"when": f"2026-03-02T08:{n // 60:02}:{n % 60:02}Z", "text": "x"} for n in range(100)]
    assert "no key distinguishes" in nb11.exercise_1(lab_with(), moments).message


def test_an_answer_sums_up() -> None:
    lab = lab_with(rows=lambda table: 300, name=lambda table: table)
    good = pd.DataFrame({"station": ["a", "b"], "n": [1, 2]})
    assert nb11.exercise_3(lab, good).right
    assert "there is nothing to see" in nb11.exercise_3(lab, good.assign(n=1)).message
    assert "it copies" in nb11.exercise_3(lab, pd.DataFrame({"a": range(300), "n": range(300)})).message
    assert "no column has a number" in nb11.exercise_3(lab, pd.DataFrame({"a": ["x", "y"], "b": "z"})).message


# -- the flights as a table


@pytest.mark.long
def test_a_timetable_has_the_days_of_new_york_and_no_other() -> None:
    rows = timetable(date(2013, 7, 1), 2).to_pandas()
    assert sorted(set(rows["date"])) == [date(2013, 7, 1), date(2013, 7, 2)]
    assert len(rows) == 966 + 945
    assert rows["time_hour"].is_monotonic_increasing
    local = rows["time_hour"].dt.tz_convert("America/New_York")
    assert (local.dt.date == rows["date"]).all()
    assert (local.dt.hour == rows["hour"]).all()


@pytest.mark.parametrize(
    ("first", "days"), [(date(2013, 12, 31), 2), (date(2012, 12, 31), 1), (date(2013, 1, 1), 0)]
)
def test_days_beyond_the_year_are_refused(first: date, days: int) -> None:
    with pytest.raises(InvalidError, match="the flights are those of 2013"):
        timetable(first, days)


# -- the map


def test_the_shortest_way_begins_and_ends_at_its_places_and_goes_north_of_the_straight_line() -> None:
    lon, lat = great_circle((-74.0, 40.7), (-122.4, 37.6))
    assert np.allclose([lon[0], lat[0]], [-74.0, 40.7])
    assert np.allclose([lon[-1], lat[-1]], [-122.4, 37.6])
    assert lat[len(lat) // 2] > 40.7, "on the globe it bends towards the pole"
    steps = np.hypot(np.diff(lon) * np.cos(np.radians(lat[1:])), np.diff(lat))
    assert np.allclose(steps, steps.mean(), rtol=0.02), "equal steps over the ground"


def test_a_way_to_the_same_place_is_a_point() -> None:
    lon, lat = great_circle((-74.0, 40.7), (-74.0, 40.7))
    assert np.allclose(lon, -74.0)
    assert np.allclose(lat, 40.7)
