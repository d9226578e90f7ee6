"""Exercises of notebook 00: a question to the lake, and a table of one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from tarn.workshop.verdict import Verdict, right, wrong

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from tarn.workshop.lab import Lab

ROUTES = "gold.delays_by_route"
TOP = 5
AROUND_MS = 120_000
"""A statement may take so long, and clocks of engines may differ."""


def exercise_1(lab: Lab, answer: Any) -> Verdict:
    """The destination that is farthest from New York."""
    if not isinstance(answer, str):
        return wrong(
            f"answer is of type {type(answer).__name__}, asked for is the code of an airport",
            'a code is a text of three letters, as in "MIA".',
        )
    routes = lab.catalog.load_table(ROUTES).scan(selected_fields=("dest", "distance")).to_pandas().dropna()
    miles = routes.groupby("dest")["distance"].max()
    code = answer.strip().upper()
    if code not in miles:
        return wrong(
            f"{answer!r} is no destination in {ROUTES}", "the column dest has the codes of destinations."
        )
    farthest = miles[miles == miles.max()]
    if code in farthest:
        return right(f"{code} is {int(miles.max()):,} miles away, the farthest of {len(miles)} destinations.")
    return wrong(
        f"{code} is {int(miles[code]):,} miles away, and some destination is farther",
        f"the column distance of {ROUTES} has the miles. The lake goes on: ask it again.",
    )


def exercise_2(lab: Lab, answer: Any) -> Verdict:
    """A table of one's own with the destinations that have most flights."""
    from pyiceberg.exceptions import NoSuchTableError

    name = lab.name("favourites")
    if answer != name:
        return wrong(f"answer is {answer!r}, asked for is the name of your table, {name!r}")
    try:
        own = lab.catalog.load_table(name)
    except NoSuchTableError:
        return wrong(
            f"there is no table {name}", f"a statement that makes one begins with CREATE TABLE {name} AS."
        )
    found = own.scan().to_pandas()
    if missing := [column for column in ("dest", "flights") if column not in found.columns]:
        return wrong(f"the column {missing[0]} is missing; the table has {', '.join(found.columns)}")
    if len(found) != TOP:
        return wrong(f"the table has {len(found)} rows, asked for are {TOP}", f"ORDER BY … LIMIT {TOP}.")
    if found["dest"].duplicated().any():
        return wrong(
            "a destination is there more than once",
            f"{ROUTES} has a row for each origin: GROUP BY dest, and sum(flights).",
        )
    routes = lab.catalog.load_table(ROUTES)
    total = _flights(routes, None)
    # The lake goes on between the statement and this look: a few flights may decide about a place.
    least = 0.9 * total.nlargest(TOP).min() - 1
    few = [dest for dest in found["dest"] if total.get(dest, 0) < least]
    if few:
        return wrong(
            f"{few[0]} is not among the {TOP} destinations with most flights",
            "ORDER BY the sum, the largest first: DESC.",
        )
    if other := _of_no_moment(found, own, routes):
        return wrong(
            f"{other[0]} has {other[1]} flights in your table, and it had another number when you made it",
            f"{ROUTES} has a row for each origin: sum(flights), GROUP BY dest.",
        )
    return right(
        f"{name} is an Iceberg table like those of the lake, and yours: Spark and pyiceberg read it, too."
    )


def _flights(routes: Table, snapshot_id: int | None) -> pd.Series[Any]:
    """Destination to its flights, over all origins, at a snapshot; None: now."""
    rows = routes.scan(snapshot_id=snapshot_id, selected_fields=("dest", "flights")).to_pandas()
    return rows.groupby("dest")["flights"].sum()


def _of_no_moment(found: pd.DataFrame, own: Table, routes: Table) -> tuple[str, Any] | None:
    """A destination and its flights, if the flights are those of no moment around those of the table.

    The lake goes on between the statement, its commit and this look, and a table may be mended by more
    statements: a DELETE leaves the flights of the first one. If that past is gone, all flights pass.
    """
    times = [one.timestamp_ms for one in own.metadata.snapshots]
    if not times:
        return None
    first, last = min(times) - AROUND_MS, max(times) + AROUND_MS
    kept = sorted(routes.metadata.snapshots, key=lambda one: one.timestamp_ms)
    before = [one for one in kept if one.timestamp_ms < first]
    if not before and all(one.parent_snapshot_id is not None for one in kept):
        return None
    near = [one for one in kept if first <= one.timestamp_ms <= last]
    given = pd.to_numeric(found.set_index("dest")["flights"], errors="coerce")
    sums = [_flights(routes, one.snapshot_id).reindex(given.index) for one in (*before[-1:], *near)]
    if not sums or any((given == then).all() for then in sums):
        return None
    dest = given.index[given != sums[-1]][0] if (given != sums[-1]).any() else given.index[0]
    return str(dest), found.set_index("dest")["flights"][dest]
