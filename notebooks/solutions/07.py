"""Right and wrong answers to the exercises of notebook 07, for its test."""

FACTS = 14
PICTURES = 1

_CHANGE = """from pyiceberg.types import DoubleType

with invoices.update_schema() as change:
"""
_LAYOUT = """with visits.update_spec() as layout:
    layout.add_field({field})
visits.append(visits_rows)
answer = visits"""
_VISITS = 'visits = scratch.recreate(lab, "visits", visits_rows.schema)\n'
_INVOICES = """invoices = scratch.put(
    lab,
    "invoices",
    pa.table(
        {"id": [1, 2, 3], "cust": ["ada", "bob", "ada"], "total": [1.5, 2.5, 4.0]},
        schema=pa.schema([("id", pa.int64()), ("cust", pa.string()), ("total", pa.float32())]),
    ),
)
"""

SOLUTIONS = {
    "exercise-1": 'answer = sales.schema().find_field("price").field_id',
    "exercise-2": _INVOICES
    + _CHANGE
    + """    change.rename_column("cust", "customer")
    change.update_column("total", DoubleType())
    change.add_column("vat", DoubleType())
answer = invoices""",
    "exercise-3": _VISITS + _LAYOUT.format(field='"guest", BucketTransform(8), "guest_bucket"'),
}

WRONG = {
    "exercise-1": [
        ("answer = 'price'", "asked for is a whole number"),
        ("answer = 2", "counted from 0"),
        ("answer = sales.schema().find_field('note').field_id", "is another column's number"),
    ],
    "exercise-2": [
        ("answer = invoices.schema()", "asked for is the table"),
        ("answer = sales", "this is another table"),
        (_INVOICES + "answer = invoices", "the column with id 2 is called cust"),
        (
            _INVOICES
            + _CHANGE
            + """    change.delete_column("cust")
    change.add_column("customer", StringType())
answer = invoices""",
            "has lost its id 2",
        ),
        (
            _INVOICES
            + _CHANGE
            + """    change.rename_column("cust", "customer")
    change.update_column("total", DoubleType())
answer = invoices""",
            "there is no column vat",
        ),
        (
            _INVOICES
            + """invoices.append(invoices.scan().to_arrow())
answer = invoices""",
            "rows were written again",
        ),
    ],
    "exercise-3": [
        (_VISITS + "answer = visits", "has 0 rows"),
        (_VISITS + "visits.append(visits_rows)\nanswer = visits", "the table is not partitioned"),
        (_VISITS + _LAYOUT.format(field='"at", DayTransform(), "day"'), "opens 8 of 8 files"),
        (
            _VISITS + _LAYOUT.format(field='"guest", BucketTransform(64), "guest_bucket"'),
            "files for 1,024 rows",
        ),
        (
            _VISITS
            + """visits.append(visits_rows)
with visits.update_spec() as layout:
    layout.add_field("guest", BucketTransform(8), "guest_bucket")
answer = visits""",
            "the partitioning came after the rows",
        ),
    ],
}
