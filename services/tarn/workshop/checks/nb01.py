"""Exercises of notebook 01: what a reader opens, what it skips, what a deletion leaves behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tarn.workshop import anatomy
from tarn.workshop.verdict import Verdict, right, wrong

if TYPE_CHECKING:
    from tarn.workshop.lab import Lab

LIMIT = 5.0


def exercise_1(lab: Lab, answer: Any) -> Verdict:
    """Objects that a reader of all rows opens."""
    table = lab.catalog.load_table(lab.name("anatomy"))
    parts = (1, 1, len(anatomy.manifests(table)), len(anatomy.data_files(table)))
    if answer == sum(parts):
        return right(
            f"1 metadata file, 1 manifest list, {parts[2]} manifests, {parts[3]} data files; none is listed."
        )
    near = {
        sum(parts) - 1: "one is missing: the metadata file and the manifest list are two objects, and the "
        "manifest that has only a deleted file is one too",
        parts[3]: "these are the data files; a reader has to find them first",
        parts[2] + parts[3]: "manifests have to be found too: who names them?",
        len(
            anatomy.objects(lab, table)
        ): "that is everything below the table's location; much of it belongs to earlier snapshots",
    }
    return wrong(
        near.get(answer, f"{answer!r} is not the number of objects on the way to all rows"),
        "go from left to right through the picture of the table.",
    )


def exercise_2(lab: Lab, answer: Any) -> Verdict:
    """Files that may have rows below a limit."""
    table = lab.catalog.load_table(lab.name("anatomy"))
    found = anatomy.bounds(table, "celsius")
    wanted = set(found["file"][found["least"] < LIMIT])
    given = _files(answer)
    if given == wanted:
        return right(
            f"{len(wanted)} of {len(found)}: the file of Oslo. All others begin above {LIMIT:g} degrees."
        )
    if extra := given - set(found["file"]):
        return wrong(
            f"{sorted(map(str, extra))[0]!r} is no data file of the current snapshot",
            "take the whole location, as it is in the column `file`.",
        )
    if given > wanted:
        return wrong(
            f"{len(given - wanted)} of these files need not be opened: they begin at {LIMIT:g} or above",
            "a row below the limit can only be where the least value is below it.",
        )
    return wrong(
        f"{len(wanted - given)} file that may have such rows is missing",
        "compare the limit with the least value of each file, not with the greatest.",
    )


def exercise_3(lab: Lab, answer: Any) -> Verdict:
    """Data files that the deletion took out and put in."""
    table = lab.catalog.load_table(lab.name("anatomy"))
    snapshots = sorted(table.metadata.snapshots, key=lambda one: one.sequence_number or 0)
    before, after = anatomy.data_files(table, snapshots[2]), anatomy.data_files(table, snapshots[3])
    taken, put = (_files(one) for one in answer)
    if (taken, put) == (before - after, after - before):
        return right(
            "One file out, one in. The other two are the same objects as before: nothing was copied."
        )
    if (put, taken) == (before - after, after - before):
        return wrong("the two are swapped: first what was taken out, then what was put in")
    if taken == before and put == after:
        return wrong(
            "these are all data files before and after; most of them stayed",
            "sets can be subtracted: before - after.",
        )
    return wrong(
        "that is not the difference between the two snapshots",
        "compare anatomy.data_files(table, before_delete) with anatomy.data_files(table).",
    )


def _files(answer: Any) -> set[Any]:
    """Locations; one alone is a text, which is not a list of its characters."""
    return {answer} if isinstance(answer, str) else set(answer)
