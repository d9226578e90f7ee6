"""DuckDB in the command line: reads tables of the lake as Arrow, and writes nothing.

DuckDB's own Iceberg extension would have to be downloaded. Here its parser determines the tables of a
statement and its planner the columns; pyiceberg reads just these. DuckDB itself may open no file and no
connection.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from typing import Any, Protocol

import duckdb
import pyarrow as pa

from tarn.cli.clients.arrow_rows import rows_of
from tarn.cli.hostenv import TRINO_CATALOG as CATALOG
from tarn.cli.ports import Answer
from tarn.core.errors import InvalidError, TarnError

MEMORY_MB = 384
THREADS = 2
ROWS_MAX = 1_000
NAMES_MAX = 50
SCAN = "PYTHON_ARROW_SCAN"
OWN_SCHEMAS = frozenset({"information_schema", "pg_catalog"})


class ArrowTable(Protocol):
    """A table of the lake.

    Attributes:
        schema: Arrow schema of its columns.
    """

    schema: pa.Schema

    def batches(self, columns: Collection[str]) -> Iterator[pa.RecordBatch]:
        """Yield all rows with these columns, in the order of the schema.

        Raises:
            TarnError: the table cannot be read.
        """


class Tables(Protocol):
    """The tables of the lake."""

    def open(self, name: str) -> ArrowTable:
        """Open a table by its namespace and name, separated by dots.

        Raises:
            NoSuchTableError: the table does not exist.
            TarnError: the catalog does not respond or denies access.
        """


class Duck:
    """DuckDB over the lake; one connection per statement.

    Args:
        tables: tables of the lake.
        memory_mb: memory limit of DuckDB itself, in MB.
    """

    name = "duckdb"

    def __init__(self, tables: Tables, *, memory_mb: int = MEMORY_MB) -> None:
        self._tables = tables
        self._memory_mb = memory_mb

    def query(self, sql: str, *, rows_max: int = ROWS_MAX) -> Answer:
        """See `Engine.query`."""
        streams: list[_Stream] = []
        with _connected(self._memory_mb) as connection:
            try:
                text = _one_select(connection, sql)
                for path in tables_named(connection, text):
                    stream = _Stream(len(streams), self._tables.open(".".join(path)))
                    streams.append(stream)
                    _show(connection, path, stream)
                _choose_columns(connection, text, streams)
                return _answer(connection.sql(text), rows_max)
            except duckdb.OutOfMemoryException as error:
                raise InvalidError(
                    f"the statement needs more than the {self._memory_mb} MB that DuckDB has here; ask for "
                    "less, or use --engine trino"
                ) from error
            except duckdb.Error as error:
                # A table's error stops DuckDB with an error of DuckDB's own.
                fault = next((s.fault for s in streams if s.fault is not None), None)
                if fault is not None:
                    raise fault from error
                raise InvalidError(f"DuckDB does not accept the statement: {_first_line(error)}") from error


def tables_named(connection: duckdb.DuckDBPyConnection, sql: str) -> list[tuple[str, ...]]:
    """Return the tables that a SELECT references, as paths: namespace levels and name.

    Raises:
        InvalidError: the statement lists DuckDB's own tables, or references too many.
    """
    ((parsed,),) = connection.execute("SELECT json_serialize_sql(?)", [sql]).fetchall()
    found: dict[tuple[str, ...], None] = {}
    for node in _objects(json.loads(parsed)):
        if node.get("type") == "SHOW_REF" and node.get("show_type") == "SHOW_SPECIAL":
            raise _lists_nothing("SHOW")
        if node.get("type") != "BASE_TABLE":
            continue
        path = tuple(node["qualified_name"]["path"])
        if len(path) > 1 and path[0] == CATALOG:
            path = path[1:]
        if path[0].lower() in OWN_SCHEMAS:
            raise _lists_nothing(path[0])
        # An unqualified name is a common table expression, or unknown: every table of the lake has a
        # namespace.
        if len(path) > 1:
            found[path] = None
    if len(found) > NAMES_MAX:
        raise InvalidError(f"the statement names {len(found)} tables; {NAMES_MAX} at most")
    return list(found)


class _Stream:
    """A table in the form DuckDB needs: a schema for planning, and a new stream of batches per scan.

    Columns have numbers in place of their names, that of their table and their own: a plan says one name per
    line, and a name may have several. The whole schema is always present; a column that no plan reads is
    null.
    """

    def __init__(self, number: int, table: ArrowTable) -> None:
        self.table = table
        self.number = number
        self.wanted: set[str] = set()
        self.fault: TarnError | None = None
        self.aliases = {name: f"{number}:{column}" for column, name in enumerate(table.schema.names)}
        self.schema = pa.schema([pa.field(self.aliases[f.name], f.type) for f in table.schema])

    def want(self, projection: str) -> None:
        """Record a column that a plan reads; may be a field of a struct, as in `0:4.offset`."""
        self.wanted |= {name for name, own in self.aliases.items() if f"{projection}.".startswith(f"{own}.")}

    def __arrow_c_schema__(self) -> object:
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return pa.RecordBatchReader.from_batches(self.schema, self._batches()).__arrow_c_stream__()

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            for batch in self.table.batches(self.wanted):
                held = set(batch.schema.names)
                arrays = [
                    batch.column(f.name) if f.name in held else pa.nulls(batch.num_rows, f.type)
                    for f in self.table.schema
                ]
                yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        except TarnError as error:
            self.fault = error
            raise


class _connected:  # noqa: N801 - reads as a word in a with statement
    """Context manager: a new in-memory DuckDB without access to files or the network."""

    def __init__(self, memory_mb: int) -> None:
        self._connection = duckdb.connect(
            ":memory:", config={"memory_limit": f"{memory_mb}MB", "threads": THREADS, "temp_directory": ""}
        )

    def __enter__(self) -> duckdb.DuckDBPyConnection:
        self._connection.execute(
            f"ATTACH ':memory:' AS {CATALOG}; USE {CATALOG}; SET TimeZone = 'UTC'; "
            "SET python_enable_replacements = false; SET enable_external_access = false"
        )
        return self._connection

    def __exit__(self, *_: object) -> None:
        self._connection.close()


def _one_select(connection: duckdb.DuckDBPyConnection, sql: str) -> str:
    statements = connection.extract_statements(sql)
    if len(statements) != 1:
        raise InvalidError(f"{len(statements)} statements; write one")
    kind = statements[0].type
    if kind != duckdb.StatementType.SELECT:
        raise InvalidError(
            f"DuckDB only reads here (SELECT, DESCRIBE, SUMMARIZE), and this is {kind.name}; "
            "use --engine trino or spark",
            kind=kind.name,
        )
    return str(statements[0].query)


def _show(connection: duckdb.DuckDBPyConnection, path: tuple[str, ...], stream: _Stream) -> None:
    """Create a view with the table's own name and column names.

    Raises:
        InvalidError: DuckDB would take two columns for one.
    """
    seen: dict[bytes, str] = {}
    for name in stream.aliases:
        if (other := seen.setdefault(name.encode().lower(), name)) != name:
            raise InvalidError(
                f"{'.'.join(path)} has the columns {other!r} and {name!r}, which are one to DuckDB; read "
                "the table with pyiceberg (docs/clients.md), or rename a column"
            )
    source = f"source_{stream.number}"
    connection.register(source, stream)
    columns = ", ".join(f"{_quoted(own)} AS {_quoted(name)}" for name, own in stream.aliases.items())
    levels = [_quoted(level) for level in path]
    for depth in range(1, len(levels)):
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {'.'.join(levels[:depth])}")
    connection.execute(f"CREATE VIEW {'.'.join(levels)} AS SELECT {columns} FROM {source}")  # noqa: S608


def _choose_columns(connection: duckdb.DuckDBPyConnection, sql: str, streams: list[_Stream]) -> None:
    """Determine from the plan which columns the statement reads."""
    if not streams:
        return
    ((_, plan),) = connection.execute(f"EXPLAIN (FORMAT json) {sql}").fetchall()
    for node in _objects(json.loads(plan)):
        if node.get("name") != SCAN:
            continue
        read = node["extra_info"].get("Projections", [])
        for projection in [read] if isinstance(read, str) else read:
            for stream in streams:
                stream.want(projection)


def _answer(relation: Any, rows_max: int) -> Answer:
    if relation is None:
        return Answer(columns=(), rows=())
    reader = relation.to_arrow_reader(rows_max + 1)
    rows: list[tuple[object, ...]] = []
    while len(rows) <= rows_max:
        try:
            batch = reader.read_next_batch()
        except StopIteration:
            break
        rows += rows_of(reader.schema.names, batch.columns)
    return Answer(
        columns=tuple(reader.schema.names), rows=tuple(rows[:rows_max]), truncated=len(rows) > rows_max
    )


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every object inside a JSON value."""
    if isinstance(value, dict):
        yield value
        for item in value.values():
            yield from _objects(item)
    elif isinstance(value, list):
        for item in value:
            yield from _objects(item)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _lists_nothing(what: str) -> InvalidError:
    return InvalidError(
        f"DuckDB knows only the tables that a statement names, so {what} would show none; "
        "scripts/tarn status lists all of them"
    )


_WHERE = re.compile(r"\n\s*LINE \d+:.*", re.DOTALL)


def _first_line(error: Exception) -> str:
    return " ".join(_WHERE.sub("", str(error)).split())[:500]
