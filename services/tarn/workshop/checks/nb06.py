"""Exercises of notebook 06: the snapshot to go back to, an audit, and what a rollback reads again."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Any

from pyiceberg.table import Table

from tarn.workshop.goods import DEAREST
from tarn.workshop.tables import back_from, said, summary_of
from tarn.workshop.verdict import Verdict, right, wrong

if TYPE_CHECKING:
    from tarn.workshop.lab import Lab

FINE = "fine"
FAULTS = {
    "cents": "prices in cents, which are far too high",
    "refund": "prices of zero and below",
    "no_price": "a product without a price",
}
"""Branch with a delivery that must not go out, and what is wrong about it."""
HINTS = {
    "cents": "a price is good from 0.01 € to 50 €.",
    "refund": "a price is good from 0.01 € to 50 €.",
    "no_price": "price > 50 is neither true nor false for null, so WHERE drops the row: say price IS NULL.",
}
HOLE = "{branch}"
LEAST = 0.01
"""No product costs less."""


def exercise_1(lab: Lab, answer: Any) -> Verdict:
    """Check the last snapshot whose price list is right."""
    table = lab.catalog.load_table(lab.name("prices"))
    nightly = _line(table, "in-cents" if "in-cents" in table.metadata.refs else "main")
    if not _whole(answer):
        return wrong(
            f"answer is of type {type(answer).__name__}, asked for is a snapshot's id, a whole number",
            "prices.snapshots()[0].snapshot_id is one.",
        )
    if answer not in nightly:
        return wrong(f"the table has no nightly list with the id {answer}", "take one of prices.snapshots().")
    good = [of for of in nightly if _dearest(table, of) < DEAREST]
    if answer == good[-1]:
        return right(f"Night {len(good)} of {len(nightly)}: its list is right, and the next one has cents.")
    if answer in good:
        return wrong(
            "its list is right, but it is not the last right one: a night's prices would be lost for nothing",
            "go on until a list has prices in cents, and take the one before.",
        )
    if answer == nightly[len(good)]:
        return wrong("it is the first list with prices in cents", "asked for is the one before it.")
    return wrong("its list has prices in cents", "look into lists: which is the last without?")


def exercise_2(lab: Lab, answer: Any) -> Verdict:
    """Check an audit: it finds every bad delivery, and lets the good one pass."""
    if not isinstance(answer, str):
        return wrong(f"answer is of type {type(answer).__name__}, asked for is a statement as text")
    if HOLE not in answer:
        return wrong(
            f"there is no {HOLE} in the statement, so it asks the same list each time",
            "in an f-string it is written with two braces on each side: {{branch}}.",
        )
    for branch in (FINE, *FAULTS):
        count = _count(lab, answer.replace(HOLE, branch))
        if count is None:
            return wrong(
                f"the answer for {branch} is not one whole number",
                "SELECT count(*) FROM … gives one row, one column.",
            )
        if branch == FINE and count:
            return wrong(
                f"it stops the good delivery: it counts {count} bad rows on the branch {FINE}",
                "count the rows that must not go out, not those that may.",
            )
        if branch != FINE and not count:
            return wrong(
                f"it lets {FAULTS[branch]} go out: it counts no bad row on the branch {branch}", HINTS[branch]
            )
        if branch != FINE and count != (rows := _bad(lab, branch)):
            return wrong(
                f"it counts {count} of {rows} bad rows on the branch {branch}: {FAULTS[branch]}",
                HINTS[branch],
            )
    return right("It stops the three bad deliveries, and lets the good one pass.")


def exercise_3(lab: Lab, answer: Any) -> Verdict:
    """Check the number of messages between two offset maps."""
    table = lab.catalog.load_table(lab.name("coldstore"))
    entry = f"tarn.offsets.{lab.ingestor('coldstore')}"
    then = said(table, table.snapshot_by_name("good"), entry)["next"]
    now = said(table, table.current_snapshot(), entry)["next"]
    read = sum(now.values()) - sum(then.values())
    if not _whole(answer):
        return wrong(f"answer is of type {type(answer).__name__}, asked for is a whole number")
    if answer == read:
        return right(f"From {_words(then)} to {_words(now)}: {read} messages.")
    if answer == sum(now.values()):
        return wrong(
            f"{answer} are all messages of the topic", "those up to the tag's map need not be read again."
        )
    if answer == sum(then.values()):
        return wrong(
            f"{answer} are the messages that the tag has already", "asked for is what comes behind them."
        )
    if answer == int(summary_of(table.current_snapshot())["total-records"]) - sum(then.values()):
        return wrong(
            "that is the difference of the rows, but the delete has taken rows away, and no messages",
            "subtract the offset maps, not the rows.",
        )
    return wrong(
        f"{answer} is not the difference of the two maps",
        "subtract the map of good from the present one in each partition, and add up.",
    )


def _line(table: Table, name: str) -> list[int]:
    """Ids of the snapshots that lead to a branch or tag, oldest first."""
    return [snapshot.snapshot_id for snapshot in back_from(table, table.snapshot_by_name(name))][::-1]


def _whole(answer: Any) -> bool:
    """Whether it is a whole number, of Python or of numpy."""
    return isinstance(answer, Integral) and not isinstance(answer, bool)


def _dearest(table: Table, snapshot_id: int) -> float:
    return float(table.scan(snapshot_id=snapshot_id, selected_fields=("price",)).to_pandas()["price"].max())


def _count(lab: Lab, statement: str) -> int | None:
    """The one number that a statement gives; None if it gives anything else."""
    found = lab.trino(statement)
    if found.shape != (1, 1):
        return None
    try:
        return int(found.iloc[0, 0])
    except (TypeError, ValueError):
        return None


def _bad(lab: Lab, branch: str) -> int:
    """The rows of a branch that must not go out."""
    table = lab.catalog.load_table(lab.name("prices"))
    (snapshot,) = list(back_from(table, table.snapshot_by_name(branch)))[:1]
    listed = table.scan(snapshot_id=snapshot.snapshot_id, selected_fields=("price",)).to_pandas()["price"]
    return int((~listed.between(LEAST, DEAREST)).sum())


def _words(offsets: dict[str, int]) -> str:
    return " and ".join(f"{offset} in partition {p}" for p, offset in sorted(offsets.items()))
