"""Checkers of notebook 10: what the tables are made of, and what a property would keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyiceberg.table import Table

from tarn.core.errors import InvalidError
from tarn.core.history import HISTORY_PROPERTY, retention_of
from tarn.workshop import scratch
from tarn.workshop.verdict import Verdict, right, wrong

if TYPE_CHECKING:
    from tarn.workshop.lab import Lab

COMMITS = 12
FILES_MAX = 2
WANTED_HISTORY = "10, 1m for 1h, 1d for 30d"
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000


def exercise_1(lab: Lab, answer: Any) -> Verdict:
    """Check that the table has few files, and its rows."""
    name = lab.name("shreds")
    asked = answer.name() if isinstance(answer, Table) else answer
    if asked not in (name, tuple(name.split("."))):
        return wrong(
            f"answer is {_short(answer)}, asked for is the table or its name", 'answer = lab.name("shreds")'
        )
    table = lab.catalog.load_table(name)
    files = len(scratch.files(table))
    rows = table.scan().to_arrow()
    if rows.num_rows != 10 * COMMITS or len(set(rows["at"].to_pylist())) != 10 * COMMITS:
        return wrong(
            f"the table has {rows.num_rows} rows, and should have its {10 * COMMITS}, each once",
            "merging replaces files and adds no row; run the cell above once more to begin again.",
        )
    if files > FILES_MAX:
        return wrong(
            f"the table is made of {files} files",
            f"CALL tarn.system.rewrite_data_files(table => '{name}') in Spark, "
            f"or ALTER TABLE {name} EXECUTE optimize in Trino.",
        )
    return right(f"{10 * COMMITS} rows in {files} file{'s' if files > 1 else ''}")


def exercise_2(lab: Lab, answer: Any) -> Verdict:
    """Check a function that returns the data files that only history holds."""
    if not callable(answer):
        return wrong(
            f"answer is {_short(answer)}, asked for is a function",
            "answer = held_by_history, without brackets.",
        )
    for name in ("trickle", "shreds"):
        table = lab.catalog.load_table(lab.name(name))
        found = answer(table)
        if not isinstance(found, set | frozenset):
            return wrong(
                f"the function returns {_short(found)}, asked for is a set of paths",
                "set(…) makes one of a list.",
            )
        live = set(scratch.files(table))
        everything = set(table.inspect.all_data_files()["file_path"].to_pylist())
        wanted = everything - live
        if found & live:
            return wrong(
                f"for {name}, {len(found & live)} of your files are live",
                "take away those of the current snapshot: table.inspect.data_files() or scan().plan_files().",
            )
        if found - everything:
            return wrong(
                f"for {name}, {len(found - everything)} of your paths are not data files of a kept snapshot",
                "manifests and metadata files are files too, but no data files.",
            )
        if found != wanted:
            return wrong(
                f"for {name}, {len(wanted - found)} files are missing",
                "table.inspect.all_data_files() has those of all kept snapshots.",
            )
    return right("what history alone holds, it gives back when it is thinned")


def exercise_3(lab: Lab, answer: Any) -> Verdict:
    """Check the text of a ladder."""
    del lab
    if not isinstance(answer, str):
        return wrong(
            f"answer is {_short(answer)}, asked for is a text", "as in trickle.properties['tarn.history']."
        )
    try:
        mine, wanted = (retention_of({HISTORY_PROPERTY: text}, None) for text in (answer, WANTED_HISTORY))
    except InvalidError as error:
        return wrong(f"the catalog would refuse it: {error.message}")
    if mine is None or wanted is None:
        return wrong("this keeps everything, for good")
    if mine.newest != wanted.newest:
        return wrong(
            f"this keeps the newest {mine.newest}, asked for are {wanted.newest}",
            "the first number says how many.",
        )
    spans = [(one.every_ms, one.until_ms) for one in mine.steps]
    if len(spans) != 2:
        return wrong(
            f"you have {len(spans)} steps after the newest, asked for are two",
            "steps are separated by commas.",
        )
    for (every, until), (wanted_every, wanted_until) in zip(
        spans, ((MINUTE_MS, HOUR_MS), (DAY_MS, 30 * DAY_MS)), strict=True
    ):
        if (every, until) != (wanted_every, wanted_until):
            return wrong(
                f"one step is {_span(every)} for {_span(until)}, asked for is "
                f"{_span(wanted_every)} for {_span(wanted_until)}",
                "s, m, h and d are seconds, minutes, hours and days.",
            )
    return right(f"at most {mine.count_max} snapshots, however often there is a commit")


def _span(ms: int) -> str:
    for unit, length in (("d", DAY_MS), ("h", HOUR_MS), ("m", MINUTE_MS)):
        if ms % length == 0:
            return f"{ms // length}{unit}"
    return f"{ms // 1000}s"


def _short(value: Any) -> str:
    return f"of type {type(value).__name__}"
