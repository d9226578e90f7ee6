"""Checkers of notebook 07: what the tables are now, and which files a question opens."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Any

from pyiceberg.table import Table
from pyiceberg.types import DoubleType, IcebergType, LongType, StringType

from tarn.workshop import scratch
from tarn.workshop.verdict import Verdict, right, wrong

if TYPE_CHECKING:
    from tarn.workshop.lab import Lab

FILES_MAX = 32
OPENED_SHARE_MAX = 0.25
GUESTS = ("guest 00", "guest 07", "guest 31", "guest 63")
VISITS = 1024


def exercise_1(lab: Lab, answer: Any) -> Verdict:
    """Check the field id of the column that was once called amount."""
    price = lab.catalog.load_table(lab.name("sales")).schema().find_field("price")
    if isinstance(answer, bool) or not isinstance(answer, Integral):
        return wrong(
            f"answer is {answer!r}, asked for is a whole number", "print(sales.schema()) shows the numbers."
        )
    if answer == price.field_id:
        return right(f"{price.field_id} was amount, and is price")
    if answer == price.field_id - 1:
        return wrong(
            "that is its place counted from 0", "field ids begin with 1, and stay when columns move."
        )
    return wrong(
        f"{answer} is another column's number, or nobody's",
        "amount was renamed: which name does the table have for the id that the first file has for amount?",
    )


def exercise_2(lab: Lab, answer: Any) -> Verdict:
    """Check three changes of the invoices' columns, and that no file was written."""
    if not isinstance(answer, Table):
        return wrong(
            f"answer is of type {type(answer).__name__}, asked for is the table", "answer = invoices"
        )
    table = lab.catalog.load_table(lab.name("invoices"))
    if answer.metadata.table_uuid != table.metadata.table_uuid:
        return wrong("this is another table than invoices: it was replaced, or you answered with another one")
    if len(table.metadata.snapshots) != 1 or table.scan().count() != 3:
        return wrong(
            "the table's rows were written again",
            "run the cell above once more, and change the columns by update_schema only.",
        )
    ids = {field.field_id: field for field in table.schema().fields}
    # vat may have been added more than once.
    vat = next((field.field_id for field in table.schema().fields if field.name == "vat"), 4)
    wanted: tuple[tuple[int, str, IcebergType, str], ...] = (
        (1, "id", LongType(), "id was not to be changed."),
        (
            2,
            "customer",
            StringType(),
            'change.rename_column("cust", "customer") keeps the id, and with it the values.',
        ),
        (3, "total", DoubleType(), 'change.update_column("total", DoubleType()) widens it.'),
        (vat, "vat", DoubleType(), 'change.add_column("vat", DoubleType()) adds it.'),
    )
    for field_id, name, type_, hint in wanted:
        field = ids.get(field_id)
        if field is None and name != "vat":
            return wrong(f"{name} has lost its id {field_id}, and with it its old values", hint)
        if field is None:
            return wrong("there is no column vat", hint)
        if field.name != name:
            return wrong(f"the column with id {field_id} is called {field.name}, not {name}", hint)
        if field.field_type != type_:
            return wrong(f"{name} is of type {field.field_type}, not {type_}", hint)
    if ids[vat].required:
        return wrong("vat is required, which no old row could fulfil")
    return right("three changes, and not one file was written")


def exercise_3(lab: Lab, answer: Any) -> Verdict:
    """Check that a question about one guest opens few of the files of visits, which are not too many."""
    if not isinstance(answer, Table):
        return wrong(f"answer is of type {type(answer).__name__}, asked for is the table", "answer = visits")
    table = lab.catalog.load_table(lab.name("visits"))
    if answer.metadata.table_uuid != table.metadata.table_uuid:
        return wrong("this is another table than visits")
    files = len(scratch.files(table))
    if table.scan().count() != VISITS:
        return wrong(
            f"visits has {table.scan().count():,} rows, and should have {VISITS:,}",
            "run the cell above once more, and append visits_rows once, after update_spec.",
        )
    if files > FILES_MAX:
        return wrong(
            f"these are {files} files for {VISITS:,} rows",
            "bucket[8] makes eight partitions of any number of guests.",
        )
    opened = max(len(scratch.files(table, f"guest = '{guest}'")) for guest in GUESTS)
    if opened > OPENED_SHARE_MAX * files:
        hint = (
            "files of one day hold all guests: partition by what is asked for, BucketTransform(8) of guest."
        )
        if table.spec().is_unpartitioned():
            hint = "the table is not partitioned: update_spec, then append."
        elif files == 1:
            hint = "the partitioning came after the rows: it holds for files that are written later."
        return wrong(f"a question about one guest opens {opened} of {files} files", hint)
    return right(f"a question about one guest opens {opened} of {files} files")
