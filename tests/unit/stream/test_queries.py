"""The SQL over live.route_delays that docs/stream.md and notebook 09 show, run by DuckDB."""

from __future__ import annotations

import ast
import re
from typing import Any

import duckdb
import pytest
from tarn_host.stack.project import ROOT

from tests.support.workshop import read, source

SPEC_COLUMNS = (
    "window_id VARCHAR, origin VARCHAR, destination VARCHAR, origin_name VARCHAR, destination_name VARCHAR, "
    "window_start TIMESTAMPTZ, window_end TIMESTAMPTZ, flights INT, departures INT, arrivals INT, "
    'cancelled INT, mean_departure_delay_minutes DOUBLE, _tarn STRUCT("offset" BIGINT, "time" TIMESTAMPTZ)'
)
OLD, NEW = 5, 7
"""Flights of each window in a run of the service, and in a later one with other rules or other flights."""


@pytest.fixture
def lake() -> duckdb.DuckDBPyConnection:
    """Three windows of one route of an old run, and an hour later of a new one, whose last was sent twice.

    Another route has the first window only, in both.
    """
    made = duckdb.connect()
    made.execute("SET TimeZone = 'UTC'")
    made.execute("CREATE SCHEMA live")
    made.execute(f"CREATE TABLE live.route_delays ({SPEC_COLUMNS})")
    sent = [(hour, OLD) for hour in (0, 1, 2)] + [(hour, NEW) for hour in (0, 1, 2, 2)]
    # The newest first, and mixed: an engine reads files in any order.
    for offset in (6, 0, 3, 1, 4, 2, 5):
        hour, flights = sent[offset]
        insert(made, "EWR", hour, flights, offset)
        if hour == 0:
            insert(made, "JFK", hour, flights, offset)
    return made


def insert(made: duckdb.DuckDBPyConnection, origin: str, hour: int, flights: int, offset: int) -> None:
    """Insert a window of a route to LGA; of each run the JFK's come a second later."""
    start, end = f"2013-01-01 0{hour}:00", f"2013-01-01 0{hour + 3}:00"
    row = [f"{origin}-LGA/{hour}", origin, "LGA", origin, "La Guardia", start, end, flights, flights, 0, 0]
    run, second = (0, offset) if flights == OLD else (1, offset - 3)
    made.execute(
        "INSERT INTO live.route_delays VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, row(?, ?::TIMESTAMPTZ))",
        [*row, float(flights), offset, f"2026-01-01 0{run}:00:0{second + (origin == 'JFK')}"],
    )


def queries_of(notebook: str, function: str) -> list[str]:
    """The texts that a function of a notebook gives to `lab.trino`."""
    cells = [cell for cell in read(notebook)["cells"] if cell["cell_type"] == "code"]
    (tree,) = [
        node
        for cell in cells
        for node in ast.walk(ast.parse(source(cell)))
        if isinstance(node, ast.FunctionDef) and node.name == function
    ]
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [
        ast.literal_eval(call.args[0])
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == "trino"
    ]


def rows(lake: duckdb.DuckDBPyConnection, query: str) -> list[dict[str, Any]]:
    found = lake.execute(query)
    names = [column[0] for column in found.description or ()]
    return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def test_the_query_of_the_docs_takes_the_newest_of_a_window(lake: duckdb.DuckDBPyConnection) -> None:
    page = (ROOT / "docs/stream.md").read_text(encoding="utf-8")
    (query,) = re.findall(r"^```sql\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    found = rows(lake, query)
    assert [row["flights"] for row in found] == [NEW] * 4
    assert {row["mean_departure_delay_minutes"] for row in found} == {float(NEW)}


def test_the_notebook_draws_the_newest_of_a_window(lake: duckdb.DuckDBPyConnection) -> None:
    (query,) = queries_of("09_live.ipynb", "delays_of_the_lake")
    assert [(row["flights"], row["mean_delay"]) for row in rows(lake, query)] == [(NEW, float(NEW))] * 4


def test_the_notebook_compares_windows_of_one_run(lake: duckdb.DuckDBPyConnection) -> None:
    (query,) = queries_of("09_live.ipynb", "of_the_lake")
    found = {row["window_id"]: (row["sent"], row["values"]) for row in rows(lake, query)}
    assert found == {"EWR-LGA/0": (1, 1), "EWR-LGA/1": (1, 1), "EWR-LGA/2": (2, 1), "JFK-LGA/0": (1, 1)}
    lake.execute("UPDATE live.route_delays SET flights = 1 WHERE _tarn.offset = 6")
    found = {row["window_id"]: (row["sent"], row["values"]) for row in rows(lake, query)}
    assert found["EWR-LGA/2"] == (2, 2), "of one run they must be the same"
