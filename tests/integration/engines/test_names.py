"""Rename, register, purge and properties in each engine's syntax, on one lake."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from trino.exceptions import TrinoUserError

from tests.integration.engines.conftest import Lake, Trino


@pytest.fixture(scope="module")
def namespaces(spark: SparkSession) -> tuple[str, str]:
    spark.sql("CREATE NAMESPACE names_one")
    spark.sql("CREATE NAMESPACE names_two")
    return "names_one", "names_two"


def values(spark: SparkSession, sql: str) -> list[Any]:
    return [row[0] for row in spark.sql(sql).collect()]


def properties(spark: SparkSession, table: str) -> dict[str, str]:
    return {row["key"]: row["value"] for row in spark.sql(f"SHOW TBLPROPERTIES {table}").collect()}


def comment(spark: SparkSession, table: str) -> str:
    told = {
        row["col_name"]: row["data_type"] for row in spark.sql(f"DESCRIBE TABLE EXTENDED {table}").collect()
    }
    return str(told["Comment"])


def metadata_file(spark: SparkSession, table: str) -> str:
    return str(
        values(spark, f"SELECT file FROM {table}.metadata_log_entries ORDER BY timestamp DESC LIMIT 1")[0]
    )


def test_a_table_renamed_by_one_engine_is_that_table_for_the_other(
    spark: SparkSession, trino_server: Trino, namespaces: tuple[str, str]
) -> None:
    one, two = namespaces
    spark.sql(f"CREATE TABLE {one}.t (id bigint) USING iceberg")
    spark.sql(f"INSERT INTO {one}.t VALUES (1)")
    spark.sql(f"ALTER TABLE {one}.t RENAME TO {two}.u")
    assert trino_server.rows(f"SELECT id FROM tarn.{two}.u") == [[1]]
    trino_server.rows(f"ALTER TABLE tarn.{two}.u RENAME TO tarn.{one}.v")
    spark.sql(f"INSERT INTO {one}.v VALUES (2)")
    assert values(spark, f"SELECT id FROM {one}.v ORDER BY id") == [1, 2]
    assert trino_server.rows(f"SHOW TABLES FROM tarn.{two}") == []
    with pytest.raises(PySparkException, match="TABLE_OR_VIEW_NOT_FOUND"):
        spark.sql(f"SELECT * FROM {two}.u").collect()
    spark.sql(f"CREATE TABLE {one}.taken (id bigint) USING iceberg")
    with pytest.raises(PySparkException, match=r"already exists|ALREADY_EXISTS"):
        spark.sql(f"ALTER TABLE {one}.v RENAME TO {one}.taken")
    with pytest.raises(TrinoUserError, match="already exists"):
        trino_server.rows(f"ALTER TABLE tarn.{one}.v RENAME TO tarn.{one}.taken")
    assert values(spark, f"SELECT count(*) FROM {one}.v") == [2]


def test_a_dropped_table_is_registered_by_either_engine(
    spark: SparkSession, trino_server: Trino, namespaces: tuple[str, str]
) -> None:
    one, _ = namespaces
    spark.sql(f"CREATE TABLE {one}.r USING iceberg AS SELECT id FROM range(10)")
    file = metadata_file(spark, f"{one}.r")
    with pytest.raises(PySparkException, match="a table has one name"):
        spark.sql(f"CALL tarn.system.register_table(table => '{one}.again', metadata_file => '{file}')")
    spark.sql(f"DROP TABLE {one}.r")
    done = spark.sql(f"CALL tarn.system.register_table(table => '{one}.again', metadata_file => '{file}')")
    assert done.collect()[0]["total_records_count"] == 10
    spark.sql(f"INSERT INTO {one}.again VALUES (10)")
    assert trino_server.rows(f"SELECT count(*) FROM tarn.{one}.again") == [[11]]
    file = metadata_file(spark, f"{one}.again")
    spark.sql(f"DROP TABLE {one}.again")
    folder, _, name = file.rpartition("/metadata/")
    trino_server.rows(f"CALL tarn.system.register_table('{one}', 'third', '{folder}', '{name}')")
    assert trino_server.rows(f"SELECT count(*) FROM tarn.{one}.third") == [[11]]
    assert values(spark, f"SELECT count(*) FROM {one}.third") == [11]


def test_a_purge_deletes_no_file_and_bars_the_way_back(
    spark: SparkSession, trino_server: Trino, namespaces: tuple[str, str], lake: Lake
) -> None:
    _, two = namespaces
    for engine in ("spark", "trino"):
        table = f"{two}.purged_by_{engine}"
        spark.sql(f"CREATE TABLE {table} USING iceberg AS SELECT id FROM range(10)")
        file = metadata_file(spark, table)
        data = values(spark, f"SELECT file_path FROM {table}.files")
        if engine == "spark":
            spark.sql(f"DROP TABLE {table} PURGE")
        else:
            trino_server.rows(f"DROP TABLE tarn.{table}")
        with pytest.raises(PySparkException, match="TABLE_OR_VIEW_NOT_FOUND"):
            spark.sql(f"SELECT * FROM {table}").collect()
        with pytest.raises(PySparkException, match="dropped with purge"):
            spark.sql(f"CALL tarn.system.register_table(table => '{table}', metadata_file => '{file}')")
        assert data
        assert not [location for location in (file, *data) if not lake.holds(location)]
    assert not lake.holds(f"{file}-no-such")
    assert spark.sql(f"SHOW TABLES IN {two}").collect() == []
    spark.sql(f"DROP NAMESPACE {two}")
    spark.sql(f"CREATE NAMESPACE {two}")


def test_properties_of_tables_and_namespaces(
    spark: SparkSession, trino_server: Trino, namespaces: tuple[str, str]
) -> None:
    one, _ = namespaces
    table = f"{one}.props"
    spark.sql(f"CREATE TABLE {table} (id bigint) USING iceberg TBLPROPERTIES ('a'='1', 'b'='2')")
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('a'='3', 'comment'='what it is')")
    spark.sql(f"ALTER TABLE {table} UNSET TBLPROPERTIES ('b')")
    found = properties(spark, table)
    assert (found["a"], found.get("b"), comment(spark, table)) == ("3", None, "what it is")
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('format-version'='3')")
    assert properties(spark, table)["format-version"] == "3"
    trino_server.rows(f"ALTER TABLE tarn.{table} SET PROPERTIES format = 'ORC'")
    assert properties(spark, table)["write.format.default"] == "ORC"
    trino_server.rows(f"COMMENT ON TABLE tarn.{table} IS 'said by Trino'")
    assert comment(spark, table) == "said by Trino"
    spark.sql(f"ALTER NAMESPACE {one} SET PROPERTIES ('owner-team'='lake', 'note'='x')")
    told = {
        row["info_name"]: row["info_value"]
        for row in spark.sql(f"DESCRIBE NAMESPACE EXTENDED {one}").collect()
    }
    assert "(owner-team,lake)" in told["Properties"]
    spark.sql(f"ALTER NAMESPACE {one} UNSET PROPERTIES ('note')")
    told = {
        row["info_name"]: row["info_value"]
        for row in spark.sql(f"DESCRIBE NAMESPACE EXTENDED {one}").collect()
    }
    assert "note" not in told["Properties"]


@pytest.mark.parametrize("name", ["a b", "über uns", "with-dash", "TEST NS"])
def test_odd_names_mean_the_same_to_both_engines(spark: SparkSession, trino_server: Trino, name: str) -> None:
    """Trino 483 has Iceberg 1.11, which encodes a space in a path as `+`; Spark has 1.12."""
    theirs, mine = name.lower(), f"spark {name.lower()}"
    trino_server.rows(f'CREATE SCHEMA tarn."{theirs}"')
    trino_server.rows(f'CREATE TABLE tarn."{theirs}"."{theirs}" AS SELECT 1 AS id')
    assert [theirs] in trino_server.rows("SHOW SCHEMAS FROM tarn")
    spark.sql(f"INSERT INTO `{theirs}`.`{theirs}` VALUES (2)")
    spark.sql(f"CREATE NAMESPACE `{mine}`")
    spark.sql(f"CREATE TABLE `{mine}`.`{mine}` USING iceberg AS SELECT * FROM `{theirs}`.`{theirs}`")
    for schema in (theirs, mine):
        assert trino_server.rows(f'SHOW TABLES FROM tarn."{schema}"') == [[schema]]
        assert sorted(trino_server.rows(f'SELECT id FROM tarn."{schema}"."{schema}"')) == [[1], [2]]
        assert values(spark, f"SELECT id FROM `{schema}`.`{schema}` ORDER BY id") == [1, 2]
        trino_server.rows(f'DROP TABLE tarn."{schema}"."{schema}"')
        trino_server.rows(f'DROP SCHEMA tarn."{schema}"')
    assert spark.sql("SHOW NAMESPACES").where(f"namespace like '%{theirs}%'").count() == 0
