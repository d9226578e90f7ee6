"""Exercises of notebook 00: a question to the lake, and a table of one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tarn.workshop.verdict import Verdict, right, wrong

if TYPE_CHECKING:
    from tarn.workshop.lab import Lab

ROUTES = "gold.delays_by_route"
TOP = 5


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
        found = lab.catalog.load_table(name).scan().to_pandas()
    except NoSuchTableError:
        return wrong(
            f"there is no table {name}", f"a statement that makes one begins with CREATE TABLE {name} AS."
        )
    if missing := [column for column in ("dest", "flights") if column not in found.columns]:
        return wrong(f"the column {missing[0]} is missing; the table has {', '.join(found.columns)}")
    if len(found) != TOP:
        return wrong(f"the table has {len(found)} rows, asked for are {TOP}", f"ORDER BY … LIMIT {TOP}.")
    if found["dest"].duplicated().any():
        return wrong(
            "a destination is there more than once",
            f"{ROUTES} has a row for each origin: GROUP BY dest, and sum(flights).",
        )
    routes = lab.catalog.load_table(ROUTES).scan(selected_fields=("dest", "flights")).to_pandas()
    total = routes.groupby("dest")["flights"].sum()
    # The lake goes on between the statement and this look: a few flights may decide about a place.
    least = 0.9 * total.nlargest(TOP).min() - 1
    few = [dest for dest in found["dest"] if total.get(dest, 0) < least]
    if few:
        return wrong(
            f"{few[0]} is not among the {TOP} destinations with most flights",
            "ORDER BY the sum, the largest first: DESC.",
        )
    return right(
        f"{name} is an Iceberg table like those of the lake, and yours: Spark and pyiceberg read it, too."
    )
