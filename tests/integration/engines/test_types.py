"""Tables that some client cannot open: rows or a known error, while Tarn's tools handle the other tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import time
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.types import GeometryType, LongType, NestedField

from tarn.core.errors import InvalidError
from tests.integration.engines.clients import READERS, Clients
from tests.integration.engines.limits import LIMITS
from tests.integration.engines.test_matrix import STOPS
from tests.integration.engines.writers import plain_rows

NAMESPACE = "types"
V3_SPARK = "USING iceberg TBLPROPERTIES ('format-version'='3')"
TWO_ROWS = "INSERT INTO {t} VALUES (1, 'a'), (2, 'b')"


@dataclass(frozen=True, slots=True)
class Case:
    """A table, and each reader's result.

    Attributes:
        maker: the engine that runs the statements.
        statements: create the table, with `{t}` for its name.
        values: column `v` of all rows.
        limits: reader -> the limitation that it hits; the others see the values.
        cannot: the limitation that the last statement hits.
    """

    maker: str
    statements: Sequence[str]
    values: Sequence[Any]
    limits: Mapping[str, str]
    cannot: str | None = None


CASES = {
    "variant_of_spark": Case(
        "spark",
        [
            f"CREATE TABLE {{t}} (id bigint, v variant) {V3_SPARK}",
            "INSERT INTO {t} SELECT 1, parse_json('7')",
        ],
        [],
        {"pyiceberg": "variant", "duckdb": "variant"},
    ),
    "variant_of_trino": Case(
        "trino",
        [
            "CREATE TABLE {t} (id bigint, v variant) WITH (format_version = 3)",
            "INSERT INTO {t} VALUES (1, CAST(JSON '7' AS variant))",
        ],
        [],
        {"pyiceberg": "variant", "duckdb": "variant"},
    ),
    "unknown": Case(
        "spark",
        [f"CREATE TABLE {{t}} (id bigint, v void) {V3_SPARK}", "INSERT INTO {t} VALUES (1, NULL)"],
        [None],
        {"trino": "unknown"},
    ),
    "geometry": Case("pyiceberg", [], [], {"trino": "geometry by Trino", "spark": "geometry by Spark"}),
    "time": Case(
        "trino",
        ["CREATE TABLE {t} (id bigint, v time(6))", "INSERT INTO {t} VALUES (1, TIME '10:00:00.5')"],
        [time(10, 0, 0, 500_000)],
        {"spark": "time"},
    ),
    "nanoseconds": Case(
        "trino",
        ["CREATE TABLE {t} (id bigint, v timestamp(9)) WITH (format_version = 3)"],
        [],
        {"spark": "nanoseconds"},
    ),
    "defaults_of_trino": Case(
        "trino",
        [
            "CREATE TABLE {t} (id bigint) WITH (format_version = 3)",
            "INSERT INTO {t} VALUES (1)",
            "ALTER TABLE {t} ADD COLUMN v integer DEFAULT 7",
            "INSERT INTO {t} (id) VALUES (2)",
        ],
        [7, 7],
        {},
    ),
    "defaults_of_spark": Case(
        "spark",
        [
            f"CREATE TABLE {{t}} (id bigint, v int) {V3_SPARK}",
            "INSERT INTO {t} VALUES (1, 5)",
            "ALTER TABLE {t} ADD COLUMN w int DEFAULT 7",
        ],
        [5],
        {},
        cannot="default values",
    ),
    "orc": Case(
        "trino",
        [
            "CREATE TABLE {t} (id bigint, v varchar) WITH (format = 'ORC')",
            TWO_ROWS,
            "DELETE FROM {t} WHERE id = 2",
        ],
        ["a"],
        {},
    ),
    "avro_deletes": Case(
        "trino",
        [
            "CREATE TABLE {t} (id bigint, v varchar) WITH (format = 'AVRO')",
            TWO_ROWS,
            "DELETE FROM {t} WHERE id = 2",
        ],
        ["a"],
        {"pyiceberg": "Avro deletes", "duckdb": "Avro deletes"},
    ),
    "avro_data": Case(
        "spark",
        [
            "CREATE TABLE {t} (id bigint, v string) USING iceberg "
            "TBLPROPERTIES ('write.format.default'='avro')",
            TWO_ROWS,
        ],
        ["a", "b"],
        {"pyiceberg": "Avro data", "duckdb": "Avro data"},
    ),
}


@pytest.fixture(scope="module")
def made(clients: Clients) -> Mapping[str, Exception | None]:
    """Every case's table, and the error of its last statement, if any."""
    clients.catalog.create_namespace(NAMESPACE)
    return {name: _make(clients, name, case) for name, case in CASES.items()}


def _make(clients: Clients, name: str, case: Case) -> Exception | None:
    table = f"{NAMESPACE}.{name}"
    if case.maker == "pyiceberg":
        _geometry(clients.catalog, table)
    run: Callable[[str], object] = clients.trino.rows if case.maker == "trino" else clients.spark.sql
    *first, last = [sql.format(t=table) for sql in case.statements] or [None]
    for sql in first:
        run(str(sql))
    try:
        if last is not None:
            run(last)
    except Exception as error:  # the test checks whatever an engine raises
        if case.cannot is None:
            raise
        return error
    return None


def _error_of(work: Callable[[], object]) -> Exception | None:
    try:
        work()
    except Exception as error:  # noqa: BLE001 - whatever a library raises is judged by the test
        return error
    return None


def _geometry(catalog: Catalog, table: str) -> None:
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "v", GeometryType()))
    catalog.create_table(table, schema=schema, properties={"format-version": "3"})


@pytest.mark.timeout(600)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", CASES)
def test_a_reader_sees_the_values_or_says_what_is_known(
    clients: Clients, made: Mapping[str, Exception | None], name: str, reader: str
) -> None:
    case, table = CASES[name], f"{NAMESPACE}.{name}"
    limit = case.limits.get(reader)
    columns = ["id", "v"] if limit or case.values else ["id"]
    if limit is None:
        rows = clients.read(reader, table, columns)
        assert not case.values or [row[1] for row in plain_rows(rows)] == case.values
        return
    error = _error_of(lambda: clients.read(reader, table, columns))
    assert error is not None, f"{LIMITS[limit].who} can read {table} now: take it out of limits.py"
    assert LIMITS[limit].says in str(error)
    if reader == "duckdb":  # Tarn's tool names table, cause and fix, and blames nothing else
        assert isinstance(error, InvalidError)
        assert table in error.message
        assert "minio" not in error.message


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.cannot is not None])
def test_what_a_maker_cannot_do_is_known(made: Mapping[str, Exception | None], name: str) -> None:
    limit = LIMITS[str(CASES[name].cannot)]
    assert made[name] is not None, f"{limit.who} can {limit.cannot} now: take it out of limits.py"
    assert limit.says in str(made[name])


def test_status_and_fsck_go_on_beside_such_tables(
    clients: Clients, made: Mapping[str, Exception | None]
) -> None:
    for name in made:
        assert clients.tools.facts(f"{NAMESPACE}.{name}").snapshots >= 0
    report = clients.tools.fsck()
    assert [finding for finding in report.damage if finding.where.startswith(f"{NAMESPACE}.")] == []


def test_deletes_of_a_trino_that_is_not_set_up_like_ours(clients: Clients) -> None:
    clients.catalog.create_namespace_if_not_exists(NAMESPACE)
    table = f"{NAMESPACE}.delta_length"
    clients.trino.rows(f"CREATE TABLE {table} AS SELECT n AS id FROM UNNEST(sequence(1, 9)) AS t(n)")
    # One row: a path that occurs twice would be dictionary-encoded.
    clients.trino.rows(
        f"DELETE FROM {table} WHERE id = 2",
        session={"tarn.parquet_writer_delta_length_byte_array_encoding_enabled": "true"},
    )
    left = [(n,) for n in (1, 3, 4, 5, 6, 7, 8, 9)]
    for reader in ("trino", "spark", "duckdb"):
        assert sorted(tuple(row) for row in clients.read(reader, table, ["id"])) == left, reader
    with pytest.raises(OSError, match="DictAccumulator") as caught:
        clients.read("pyiceberg", table, ["id"])
    assert LIMITS["delta-length deletes"].says in str(caught.value)
    clients.trino.rows(f"ALTER TABLE {table} EXECUTE optimize")
    assert sorted(clients.read("pyiceberg", table, ["id"])) == left


def test_every_limit_is_provoked() -> None:
    used = {limit for _, limit in STOPS.values()} | {"delta-length deletes"}
    used |= {limit for case in CASES.values() for limit in case.limits.values()}
    used |= {case.cannot for case in CASES.values() if case.cannot is not None}
    assert used == set(LIMITS)
