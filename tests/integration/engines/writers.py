"""Every writer of the matrix: the steps of a history in its own syntax."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Protocol

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import EqualTo, In
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, IdentityTransform, MonthTransform
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
)

from tests.integration.engines.history import (
    COLUMNS,
    AddColumn,
    Append,
    Compact,
    Content,
    Delete,
    DeleteKind,
    Ingest,
    Merge,
    Rename,
    Repartition,
    Row,
    Step,
    Update,
)

ICEBERG: Mapping[str, IcebergType] = {
    "long": LongType(),
    "int": IntegerType(),
    "string": StringType(),
    "decimal(10, 2)": DecimalType(10, 2),
    "double": DoubleType(),
    "timestamptz": TimestamptzType(),
    "date": DateType(),
    "boolean": BooleanType(),
}


class Writer(Protocol):
    """Creates a table and applies steps to it."""

    def create(self, table: str) -> None:
        """Create the table with the columns of the history, partitioned by kind."""

    def take(self, table: str, step: Step, before: Content) -> None:
        """Apply a step to a table that holds `before`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """Differences between SQL engines.

    Attributes:
        types: Iceberg type -> the engine's own.
        create: statement that creates a table; `{table}` and `{columns}` are filled in.
        repartition: statements for `Repartition`.
        compact: statement for `Compact`; None if there is none.
    """

    types: Mapping[str, str]
    create: str
    repartition: Sequence[str]
    compact: str | None


PLAIN_TYPES = {"long": "bigint", "int": "integer", "string": "varchar", "date": "date", "boolean": "boolean"}
TRINO_TYPES = {
    **PLAIN_TYPES,
    "decimal(10, 2)": "decimal(10, 2)",
    "double": "double",
    "timestamptz": "timestamp(6) with time zone",
}
SPARK_TYPES = {**TRINO_TYPES, "string": "string", "timestamptz": "timestamp"}


def trino(version: int) -> Dialect:
    """Trino's dialect for a table of a format version."""
    return Dialect(
        types=TRINO_TYPES,
        create=f"CREATE TABLE {{table}} ({{columns}}) WITH (format_version = {version}, "
        "partitioning = ARRAY['kind'])",
        repartition=[
            "ALTER TABLE {table} SET PROPERTIES partitioning = ARRAY['month(day)', 'bucket(id, 4)']"
        ],
        compact="ALTER TABLE {table} EXECUTE optimize",
    )


def spark(version: int, mode: str | None) -> Dialect:
    """Spark's dialect for a table of a format version; `mode` is the write mode, None keeps the default."""
    properties = {"format-version": str(version)}
    if mode is not None:
        properties |= {f"write.{what}.mode": mode for what in ("delete", "update", "merge")}
    listed = ", ".join(f"'{key}'='{value}'" for key, value in properties.items())
    return Dialect(
        types=SPARK_TYPES,
        create="CREATE TABLE {table} ({columns}) USING iceberg PARTITIONED BY (kind) "
        f"TBLPROPERTIES ({listed})",
        repartition=[
            "ALTER TABLE {table} DROP PARTITION FIELD kind",
            "ALTER TABLE {table} ADD PARTITION FIELD month(day)",
            "ALTER TABLE {table} ADD PARTITION FIELD bucket(4, id)",
        ],
        compact="CALL tarn.system.rewrite_data_files(table => '{table}', "
        "options => map('rewrite-all', 'true'))",
    )


class SqlWriter:
    """An engine that executes SQL statements.

    Args:
        run: executes one and waits for its end.
        dialect: its SQL dialect.
    """

    def __init__(self, run: Callable[[str], object], dialect: Dialect) -> None:
        self._run = run
        self._dialect = dialect

    def create(self, table: str) -> None:
        """See `Writer`."""
        columns = ", ".join(f"{name} {self._dialect.types[kind]}" for name, kind in COLUMNS.items())
        self._run(self._dialect.create.format(table=table, columns=columns))

    def take(self, table: str, step: Step, before: Content) -> None:
        """See `Writer`."""
        for statement in self._statements(step, before):
            self._run(statement.format(table=table))

    def _statements(self, step: Step, before: Content) -> Sequence[str]:
        columns = before.columns
        match step:
            case Append(rows):
                values = ", ".join(self._values(row, columns) for row in rows)
                return [f"INSERT INTO {{table}} ({', '.join(columns)}) VALUES {values}"]
            case Delete(ids):
                return [f"DELETE FROM {{table}} WHERE id IN ({_listed(ids)})"]
            case DeleteKind(kind):
                return [f"DELETE FROM {{table}} WHERE kind = '{kind}'"]
            case Update(ids, values):
                sets = ", ".join(f"{n} = {self._literal(v, columns[n])}" for n, v in values.items())
                return [f"UPDATE {{table}} SET {sets} WHERE id IN ({_listed(ids)})"]
            case Merge(rows, gone):
                return [self._merge(rows, gone, columns)]
            case AddColumn(name, kind):
                return [f"ALTER TABLE {{table}} ADD COLUMN {name} {self._dialect.types[kind]}"]
            case Rename(old, new):
                return [f"ALTER TABLE {{table}} RENAME COLUMN {old} TO {new}"]
            case Repartition():
                return self._dialect.repartition
            case Compact():
                return [self._dialect.compact] if self._dialect.compact is not None else []
            case Ingest():
                raise AssertionError("ingest takes no statements")

    def _merge(self, rows: Sequence[Row], gone: Sequence[int], columns: Mapping[str, str]) -> str:
        source = [(row, "false") for row in rows] + [({"id": i}, "true") for i in gone]
        values = ", ".join(f"{self._values(row, columns)[:-1]}, {flag})" for row, flag in source)
        return (
            f"MERGE INTO {{table}} t "
            f"USING (SELECT * FROM (VALUES {values}) AS v({', '.join(columns)}, gone)) s "
            "ON t.id = s.id WHEN MATCHED AND s.gone THEN DELETE WHEN MATCHED THEN UPDATE SET "
            + ", ".join(f"{name} = s.{name}" for name in columns if name != "id")
            + f" WHEN NOT MATCHED THEN INSERT ({', '.join(columns)}) "
            f"VALUES ({', '.join(f's.{name}' for name in columns)})"
        )

    def _values(self, row: Row, columns: Mapping[str, str]) -> str:
        return f"({', '.join(self._literal(row.get(name), kind) for name, kind in columns.items())})"

    def _literal(self, value: object, kind: str) -> str:
        if isinstance(value, datetime):
            zone = "" if self._dialect.types[kind] == "timestamp" else " UTC"
            value = f"{value:%Y-%m-%d %H:%M:%S.%f}{zone}"
        elif isinstance(value, Decimal | date | float):
            value = str(value)
        if value is None:
            text = "NULL"
        elif isinstance(value, str):
            # A quote is doubled for Trino and DuckDB; Spark requires it escaped.
            quote = "\\'" if self._dialect.types["string"] == "string" else "''"
            text = "'" + value.replace("'", quote) + "'"
        else:
            text = str(value).lower()
        return f"CAST({text} AS {self._dialect.types[kind]})"


class PyIceberg:
    """pyiceberg as its own documentation uses it.

    Args:
        catalog: the lake.
        version: format version of the tables that it creates.
    """

    def __init__(self, catalog: Catalog, version: int) -> None:
        self._catalog = catalog
        self._version = version

    def create(self, table: str) -> None:
        """See `Writer`."""
        fields = [NestedField(n, name, ICEBERG[kind]) for n, (name, kind) in enumerate(COLUMNS.items(), 1)]
        by_kind = PartitionField(source_id=2, field_id=1000, transform=IdentityTransform(), name="kind")
        self._catalog.create_table(
            table,
            schema=Schema(*fields),
            partition_spec=PartitionSpec(by_kind),
            properties={"format-version": str(self._version)},
        )

    def take(self, table: str, step: Step, before: Content) -> None:
        """See `Writer`."""
        loaded = self._catalog.load_table(table)
        match step:
            case Append(rows):
                loaded.append(_arrow(loaded, rows))
            case Delete(ids):
                loaded.delete(In("id", ids))  # type: ignore[arg-type]
            case DeleteKind(kind):
                loaded.delete(EqualTo("kind", kind))  # type: ignore[call-arg]
            case Update(ids, values):
                changed = [{**before.rows[i], **values} for i in ids]
                loaded.overwrite(_arrow(loaded, changed), overwrite_filter=In("id", ids))  # type: ignore[arg-type]
            case Merge(rows, gone):
                loaded.upsert(_arrow(loaded, rows), join_cols=["id"])
                loaded.delete(In("id", gone))  # type: ignore[arg-type]
            case AddColumn(name, kind):
                with loaded.update_schema() as schema:
                    schema.add_column(name, ICEBERG[kind])
            case Rename(old, new):
                with loaded.update_schema() as schema:
                    schema.rename_column(old, new)
            case Repartition():
                with loaded.update_spec() as spec:
                    spec.remove_field("kind")
                    spec.add_field("day", MonthTransform(), "day_month")
                    spec.add_field("id", BucketTransform(4), "id_bucket")
            case Compact():
                loaded.overwrite(loaded.scan().to_arrow())
            case Ingest():
                raise AssertionError("ingest is another writer")


class Relay:
    """Several writers, each taking the next step on one table.

    Args:
        writers: they take turns; the table is created by the one that `ahead` names.
        ahead: index of the writer that creates the table.
    """

    def __init__(self, writers: Sequence[Writer], ahead: int) -> None:
        self._writers = writers
        self._turn = ahead

    def create(self, table: str) -> None:
        """See `Writer`."""
        self._writers[self._turn % len(self._writers)].create(table)

    def take(self, table: str, step: Step, before: Content) -> None:
        """See `Writer`."""
        self._turn += 1
        self._writers[self._turn % len(self._writers)].take(table, step, before)


def message(row: Row) -> bytes:
    """A row as the JSON message that ingest reads."""

    def plain(value: object) -> object:
        if isinstance(value, datetime):
            return value.isoformat().replace("+00:00", "Z")
        return str(value) if isinstance(value, Decimal | date) else value

    return json.dumps({name: plain(value) for name, value in row.items()}).encode()


def _arrow(table: Table, rows: Sequence[Row]) -> pa.Table:
    schema = table.schema().as_arrow()
    return pa.Table.from_pylist(
        [{name: row.get(name) for name in schema.names} for row in rows], schema=schema
    )


def _listed(ids: Sequence[int]) -> str:
    return ", ".join(str(i) for i in ids)


def plain_rows(rows: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Rows as tuples, sorted by their first value."""
    return sorted((tuple(row) for row in rows), key=lambda row: row[0])
