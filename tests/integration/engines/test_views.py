"""Views by each engine: one name for all, whoever makes it, and each reads the dialects that it can."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyiceberg.exceptions import NamespaceNotEmptyError
from pyiceberg.view.metadata import SQLViewRepresentation, ViewVersion
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from trino.exceptions import TrinoExternalError, TrinoQueryError, TrinoUserError

from tests.integration.engines.clients import Clients
from tests.integration.engines.conftest import Trino

NAMESPACE = "views"
ROWS = [[1, "x"], [2, "y"]]


def rows(spark: SparkSession, sql: str) -> list[list[Any]]:
    return [list(row) for row in spark.sql(sql).collect()]


@pytest.fixture(scope="module")
def table(spark: SparkSession) -> Iterator[str]:
    spark.sql(f"CREATE NAMESPACE {NAMESPACE}")
    spark.sql(f"CREATE TABLE {NAMESPACE}.t (a int, b string) USING iceberg")
    spark.sql(f"INSERT INTO {NAMESPACE}.t VALUES (1, 'x'), (2, 'y')")
    yield f"{NAMESPACE}.t"
    spark.sql(f"DROP TABLE {NAMESPACE}.t")
    spark.sql(f"DROP NAMESPACE {NAMESPACE}")


def test_a_view_of_spark_is_replaced_renamed_and_dropped(
    spark: SparkSession, trino_server: Trino, table: str
) -> None:
    view = f"{NAMESPACE}.sv"
    spark.sql(f"CREATE VIEW {view} AS SELECT a FROM tarn.{table}")
    spark.sql(f"CREATE OR REPLACE VIEW {view} AS SELECT a, upper(b) AS b FROM tarn.{table}")
    assert rows(spark, f"SELECT * FROM {view} ORDER BY a") == [[1, "X"], [2, "Y"]]
    assert rows(spark, f"SHOW VIEWS IN {NAMESPACE}") == [[NAMESPACE, "sv", False]]
    assert rows(spark, f"SHOW TABLES IN {NAMESPACE}") == [[NAMESPACE, "t", False]]
    # Trino lists it, does not run another dialect, and does not take it over.
    assert trino_server.rows(f"SHOW TABLES FROM tarn.{NAMESPACE}") == [["sv"], ["t"]]
    with pytest.raises(TrinoExternalError, match="unsupported dialect 'spark'"):
        trino_server.rows(f"SELECT * FROM tarn.{view}")
    with pytest.raises(TrinoQueryError, match="loss of view dialects"):
        trino_server.rows(f"CREATE OR REPLACE VIEW tarn.{view} AS SELECT a FROM tarn.{table}")
    spark.sql(f"ALTER VIEW {view} RENAME TO {NAMESPACE}.sw")
    assert rows(spark, f"SELECT b FROM {NAMESPACE}.sw ORDER BY a") == [["X"], ["Y"]]
    spark.sql(f"DROP VIEW {NAMESPACE}.sw")
    assert rows(spark, f"SHOW VIEWS IN {NAMESPACE}") == []


def test_a_view_of_trino_is_read_by_spark_and_keeps_its_name(
    spark: SparkSession, trino_server: Trino, table: str
) -> None:
    trino_server.rows(f"CREATE VIEW tarn.{NAMESPACE}.tv AS SELECT a, b FROM tarn.{table} WHERE a > 1")
    trino_server.rows(f"CREATE OR REPLACE VIEW tarn.{NAMESPACE}.tv AS SELECT a, b FROM tarn.{table}")
    assert trino_server.rows(f"SELECT * FROM tarn.{NAMESPACE}.tv ORDER BY a") == ROWS
    # Spark has no other dialect to choose from and tries Trino's, which is the same SQL here.
    assert rows(spark, f"SELECT * FROM {NAMESPACE}.tv ORDER BY a") == ROWS
    with pytest.raises(TrinoUserError, match="already exists"):
        trino_server.rows(f"CREATE TABLE tarn.{NAMESPACE}.tv (a int)")
    with pytest.raises(PySparkException, match=r"already exists|ALREADY_EXISTS"):
        spark.sql(f"CREATE TABLE {NAMESPACE}.tv (a int) USING iceberg")
    with pytest.raises(TrinoUserError, match="a table with that name exists"):
        trino_server.rows(f"ALTER VIEW tarn.{NAMESPACE}.tv RENAME TO tarn.{table}")
    trino_server.rows(f"ALTER VIEW tarn.{NAMESPACE}.tv RENAME TO tarn.{NAMESPACE}.tw")
    trino_server.rows(f"DROP VIEW tarn.{NAMESPACE}.tw")
    assert trino_server.rows(f"SHOW TABLES FROM tarn.{NAMESPACE}") == [["t"]]


def test_a_view_of_trino_is_read_by_others_than_its_maker(trino_server: Trino) -> None:
    """Without SECURITY INVOKER it names its maker, as whom Trino would ask without a credential."""
    trino_server.rows("CREATE SCHEMA tarn.views_others")
    trino_server.rows("CREATE TABLE tarn.views_others.t AS SELECT 1 x")
    trino_server.rows("CREATE VIEW tarn.views_others.v AS SELECT x FROM tarn.views_others.t", user="alice")
    for user in ("alice", "bob"):
        assert trino_server.rows("SELECT x FROM tarn.views_others.v", user=user) == [[1]], user
    trino_server.rows("DROP VIEW tarn.views_others.v", user="bob")
    trino_server.rows("DROP TABLE tarn.views_others.t")
    trino_server.rows("DROP SCHEMA tarn.views_others")


def test_a_view_with_two_dialects_is_read_by_both(
    spark: SparkSession, trino_server: Trino, clients: Clients, table: str
) -> None:
    catalog = clients.catalog
    queries = [
        SQLViewRepresentation(type="sql", sql=f"SELECT a, b FROM tarn.{table}", dialect=dialect)
        for dialect in ("spark", "trino")
    ]
    version = ViewVersion(
        **{"version-id": 1, "schema-id": 0, "timestamp-ms": 1, "default-namespace": [NAMESPACE]},
        summary={},
        representations=queries,
    )
    catalog.create_view(f"{NAMESPACE}.both", catalog.load_table(table).schema(), version)
    assert rows(spark, f"SELECT * FROM {NAMESPACE}.both ORDER BY a") == ROWS
    assert trino_server.rows(f"SELECT * FROM tarn.{NAMESPACE}.both ORDER BY a") == ROWS
    assert catalog.list_views(NAMESPACE) == [(NAMESPACE, "both")]
    with pytest.raises(NamespaceNotEmptyError):
        catalog.drop_namespace(NAMESPACE)
    catalog.drop_view(f"{NAMESPACE}.both")
