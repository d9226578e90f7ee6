"""DuckDB on tables of the lake: what is read, what is rejected, and the error messages."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from tarn.cli.clients.duck import Duck
from tarn.core.errors import InvalidError, NoSuchTableError, TarnError, UnavailableError

EVENTS = pa.table(
    {
        "id": pa.array([1, 2, 3], pa.int64()),
        "Kind": ["a", "b", "a"],
        "seen": pa.array(
            [datetime(2026, 3, day, tzinfo=UTC) for day in (1, 2, 3)], pa.timestamp("us", tz="UTC")
        ),
        "price": pa.array([Decimal("1.50"), None, Decimal("2.25")], pa.decimal128(10, 2)),
        "day": pa.array([date(2026, 3, 1)] * 3),
        "_tarn": [{"partition": 0, "offset": offset} for offset in (7, 8, 9)],
    }
)
KINDS = pa.table({"Kind": ["a", "b"], "id": pa.array([10, 20], pa.int64())})


class MemoryTable:
    def __init__(self, rows: pa.Table, fault: Exception | None = None) -> None:
        self.rows = rows
        self.schema = rows.schema
        self.fault = fault
        self.asked: list[list[str]] = []

    def batches(self, columns: Collection[str]) -> Iterator[pa.RecordBatch]:
        wanted = [name for name in self.schema.names if name in columns]
        self.asked.append(wanted)
        yield from self.rows.select(wanted).to_batches(max_chunksize=2)
        if self.fault is not None:
            raise self.fault


class MemoryTables:
    def __init__(self, **tables: MemoryTable) -> None:
        self.held = tables

    def open(self, name: str) -> MemoryTable:
        if name not in self.held:
            raise NoSuchTableError(f"no such table: {name}")
        return self.held[name]


def lake(fault: Exception | None = None) -> MemoryTables:
    return MemoryTables(
        **{
            "bronze.events": MemoryTable(EVENTS, fault),
            "ref.kinds": MemoryTable(KINDS),
            "deep.er.kinds": MemoryTable(KINDS),
        }
    )


def rows(sql: str, tables: MemoryTables | None = None) -> tuple[tuple[object, ...], ...]:
    return Duck(tables or lake()).query(sql).rows


def refused(sql: str, tables: MemoryTables | None = None) -> str:
    with pytest.raises(InvalidError) as caught:
        Duck(tables or lake()).query(sql)
    assert "\n" not in caught.value.message
    return caught.value.message


def test_values_come_back_as_plain_python_values():
    answer = Duck(lake()).query("SELECT * FROM bronze.events WHERE id = 1")
    assert answer.columns == ("id", "Kind", "seen", "price", "day", "_tarn")
    assert answer.rows == (
        (
            1,
            "a",
            datetime(2026, 3, 1, tzinfo=UTC),
            Decimal("1.50"),
            date(2026, 3, 1),
            {"partition": 0, "offset": 7},
        ),
    )
    assert not answer.truncated


def test_a_map_is_an_object_as_in_trino():
    assert rows("SELECT MAP {'a': 1} AS m, [MAP {'b': 2}] AS l") == (({"a": 1}, [{"b": 2}]),)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id FROM bronze.events ORDER BY 1",
        "SELECT id FROM tarn.bronze.events ORDER BY 1;",
        'FROM "bronze"."events" SELECT id ORDER BY 1',
        "WITH events AS (SELECT id FROM bronze.events) SELECT * FROM events ORDER BY 1",
        "WITH tarn AS (SELECT id FROM bronze.events) SELECT * FROM tarn ORDER BY 1",
        "SELECT id FROM bronze.events WHERE id IN (SELECT id FROM bronze.events) ORDER BY 1",
        "SELECT id FROM bronze.events WHERE false UNION ALL (SELECT id FROM bronze.events ORDER BY 1)",
    ],
)
def test_a_table_is_found_wherever_it_is_named(sql: str):
    assert rows(sql) == ((1,), (2,), (3,))


@pytest.mark.long
def test_columns_of_any_name_are_read() -> None:
    """A plan has a line for each column; a name with two was not found in it, and was null in each row."""
    names = ["two\nlines", "A b", 'q"q', "it's", "x.y", "x", "0:1", "a,b", "[z]", " ", "é", "select", "tab\t"]
    table = pa.table({name: pa.array([number]) for number, name in enumerate(names)}).append_column(
        "s", pa.array([{"in\nner": 99}])
    )
    odd = MemoryTables(**{"o.dd": MemoryTable(table)})
    for number, name in enumerate(names):
        quoted = '"' + name.replace('"', '""') + '"'
        assert rows(f"SELECT max({quoted}) FROM o.dd WHERE {quoted} IS NOT NULL", odd) == ((number,),), name
    assert rows('SELECT max(s."in\nner") FROM o.dd', odd) == ((99,),)
    assert rows("SELECT * EXCLUDE (s) FROM o.dd", odd) == (tuple(range(len(names))),)


def test_columns_whose_names_differ_by_case_alone_are_not_taken_for_each_other() -> None:
    """DuckDB takes them for one: a question for ID was answered with id."""
    odd = MemoryTables(**{"o.dd": MemoryTable(pa.table({"id": [1], "n": [2], "ID": [3]}))})
    said = refused('SELECT "ID" FROM o.dd', odd)
    assert said.startswith("o.dd has the columns 'id' and 'ID', which are one to DuckDB")
    two = MemoryTables(**{"o.dd": MemoryTable(pa.table({"é": [1], "É": [2]}))})
    assert rows('SELECT "É", "é" FROM o.dd', two) == ((2, 1),), "of letters beyond ASCII it knows the case"


@pytest.mark.long
def test_tables_are_joined_also_with_themselves_and_in_deeper_namespaces():
    assert rows('SELECT e.id, k.id FROM bronze.events e JOIN ref.kinds k USING ("Kind") ORDER BY 1') == (
        (1, 10),
        (2, 20),
        (3, 10),
    )
    assert rows("SELECT count(*) FROM bronze.events a JOIN bronze.events b ON a.id < b.id") == ((3,),)
    for name in ("deep.er.kinds", "tarn.deep.er.kinds", '"deep.er".kinds'):
        assert rows(f"SELECT max(id) FROM {name}") == ((20,),)


def test_only_the_columns_that_a_statement_needs_are_read():
    tables = lake()
    events = tables.held["bronze.events"]
    rows("SELECT kind FROM bronze.events WHERE id > 1", tables)
    rows("SELECT _tarn.offset FROM bronze.events", tables)
    rows("SELECT count(*) FROM bronze.events", tables)
    assert events.asked == [["id", "Kind"], ["_tarn"], ["id"]]


def test_columns_of_one_table_are_not_taken_for_those_of_another():
    tables = lake()
    rows("SELECT e.seen FROM bronze.events e JOIN ref.kinds k ON k.id = e.id * 10", tables)
    assert tables.held["bronze.events"].asked == [["id", "seen"]]
    assert tables.held["ref.kinds"].asked == [["id"]]


def test_describe_reads_no_rows():
    tables = lake()
    found = rows("DESCRIBE bronze.events", tables)
    assert [row[:2] for row in found][:3] == [
        ("id", "BIGINT"),
        ("Kind", "VARCHAR"),
        ("seen", "TIMESTAMP WITH TIME ZONE"),
    ]
    assert tables.held["bronze.events"].asked == []


def test_no_more_rows_than_asked_for_and_it_says_so():
    answer = Duck(lake()).query("SELECT id FROM bronze.events ORDER BY id", rows_max=2)
    assert (answer.rows, answer.truncated) == (((1,), (2,)), True)
    assert not Duck(lake()).query("SELECT id FROM bronze.events", rows_max=3).truncated


def test_columns_named_twice_are_both_there():
    answer = Duck(lake()).query("SELECT id, id + 1 AS id FROM bronze.events WHERE id = 1")
    assert (answer.columns, answer.rows) == (("id", "id"), ((1, 2),))


def test_a_statement_without_a_table_runs():
    assert rows("SELECT 1 + 1 AS two") == ((2,),)


@pytest.mark.parametrize(
    ("sql", "part"),
    [
        ("SELEC 1", 'syntax error at or near "SELEC"'),
        ("SELECT nothing FROM bronze.events", 'Referenced column "nothing" not found'),
        ("SELECT * FROM events", "Table with name events does not exist"),
        ("SELECT * FROM tarn", "Table with name tarn does not exist"),
        ("SELECT foo(1)", "Scalar Function with name foo does not exist"),
        ("SELECT CAST('a' AS INT)", "Could not convert string 'a'"),
        ("SELECT 1; SELECT 2", "2 statements; write one"),
        ("-- nothing", "0 statements; write one"),
        (
            "INSERT INTO bronze.events SELECT * FROM bronze.events",
            "this is INSERT; use --engine trino or spark",
        ),
        ("CREATE TABLE a.b (x INT)", "this is CREATE"),
        ("DROP TABLE bronze.events", "this is DROP"),
        ("COPY (SELECT 1) TO 'x.csv'", "this is COPY"),
        ("SET memory_limit = '1TB'", "this is SET"),
        ("ATTACH 'x.db'", "this is ATTACH"),
        ("SHOW TABLES", "scripts/tarn status lists all of them"),
        ("SELECT * FROM information_schema.tables", "scripts/tarn status lists all of them"),
        ("FROM read_csv('/etc/passwd')", "disabled by configuration"),
        ("FROM '/etc/hosts'", "does not exist"),
        ("SELECT * FROM bronze.events AT (VERSION => 3)", "does not support time travel"),
    ],
)
def test_what_cannot_be_done_is_one_line_that_says_why(sql: str, part: str):
    assert part in refused(sql)


def test_an_unknown_table_is_told_by_the_catalog():
    with pytest.raises(NoSuchTableError, match=r"no such table: bronze\.nothing"):
        rows("SELECT * FROM bronze.nothing")


@pytest.mark.long
def test_too_much_memory_is_refused_with_the_limit():
    with pytest.raises(InvalidError, match=r"more than the 64 MB that DuckDB has here.*--engine trino"):
        Duck(lake(), memory_mb=64).query("SELECT r.range FROM range(20_000_000) r ORDER BY hash(r.range)")


@pytest.mark.parametrize(
    "fault",
    [UnavailableError("the store is away"), InvalidError("too big for here: use --engine trino")],
)
def test_what_a_table_says_while_it_is_read_is_what_is_told(fault: TarnError):
    with pytest.raises(type(fault)) as caught:
        rows("SELECT count(seen) FROM bronze.events", lake(fault))
    assert caught.value is fault


def test_the_same_engine_answers_again_and_again():
    duck = Duck(lake())
    assert [duck.query("SELECT count(*) FROM ref.kinds").rows for _ in range(3)] == [((2,),)] * 3


def test_answers_can_be_told_as_json():
    from tarn.cli.formats import as_json

    told = json.loads(
        as_json(Duck(lake()).query("SELECT seen, price, _tarn FROM bronze.events WHERE id = 1"))
    )
    assert told["rows"] == [["2026-03-01T00:00:00Z", "1.50", {"partition": 0, "offset": 7}]]
