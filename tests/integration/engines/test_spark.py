"""Spark's image: table operations of a Connect client, alone and beside Trino; secrets stay secret."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from testcontainers.core.container import DockerContainer

from tarn.adapters import spark_remote
from tests.integration.engines.conftest import Lake, Trino
from tests.support.inside import said_inside


@pytest.fixture(scope="module")
def namespace(spark: SparkSession) -> str:
    spark.sql("CREATE NAMESPACE spark_own")
    return "spark_own"


def one(spark: SparkSession, sql: str) -> tuple[Any, ...]:
    (row,) = spark.sql(sql).collect()
    return tuple(row)


@pytest.mark.parametrize("version", [2, 3])
def test_every_way_to_change_a_table(spark: SparkSession, namespace: str, version: int) -> None:
    table = f"{namespace}.changes_v{version}"
    spark.sql(
        f"CREATE TABLE {table} (id bigint, name string) USING iceberg PARTITIONED BY (bucket(2, id)) "
        f"TBLPROPERTIES ('format-version'='{version}', 'write.delete.mode'='merge-on-read', "
        "'write.merge.mode'='merge-on-read')"
    )
    spark.range(1000).selectExpr("id", "concat('n', id) AS name").writeTo(table).append()
    spark.sql(f"DELETE FROM {table} WHERE id % 10 = 3")
    spark.sql(
        f"MERGE INTO {table} t USING (SELECT id + 990 AS id, 'm' AS name FROM range(20)) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    # 900 remain, of 990..999 all but 993 are updated, 993 and 1000..1009 are new.
    expected = (911, sum(i for i in range(1000) if i % 10 != 3) + 993 + sum(range(1000, 1010)), 20)
    ask = f"SELECT count(*), sum(id), count_if(name = 'm') FROM {table}"
    assert one(spark, ask) == expected
    done = spark.sql(
        f"CALL tarn.system.rewrite_data_files(table => '{table}', options => map('rewrite-all', 'true'))"
    ).collect()[0]
    assert (done["added_data_files_count"], done["failed_data_files_count"]) == (2, 0)
    assert one(spark, ask) == expected
    assert one(spark, f"SELECT count(*) FROM {table}.files WHERE content = 0") == (2,)


def test_a_commit_of_one_engine_is_seen_by_the_next_query_of_the_other(
    spark: SparkSession, namespace: str, trino_server: Trino
) -> None:
    spark.sql(f"CREATE TABLE {namespace}.shared (id bigint) USING iceberg")
    table = f"tarn.{namespace}.shared"
    for number in range(0, 10, 2):
        spark.sql(f"INSERT INTO {table} VALUES ({number})")
        assert trino_server.rows(f"SELECT count(*), max(id) FROM {table}") == [[number + 1, number]]
        trino_server.rows(f"INSERT INTO {table} VALUES ({number + 1})")
        assert one(spark, f"SELECT count(*), max(id) FROM {table}") == (number + 2, number + 1)
    trino_server.rows(f"DELETE FROM {table} WHERE id < 5")
    assert one(spark, f"SELECT count(*), min(id) FROM {table}") == (5, 5)
    spark.sql(f"DELETE FROM {table} WHERE id = 5")
    assert trino_server.rows(f"SELECT count(*), min(id) FROM {table}") == [[4, 6]]


def test_a_query_that_ran_before_is_not_compiled_again(
    spark: SparkSession, spark_server: DockerContainer
) -> None:
    """Sixty queries need more pieces of code than Spark keeps by itself."""

    def compiled() -> int:
        address = f"http://127.0.0.1:{spark_server.get_exposed_port(4040)}/metrics/json/"
        with urllib.request.urlopen(address, timeout=60) as answer:
            histograms = json.load(answer)["histograms"]
        return sum(one["count"] for name, one in histograms.items() if name.endswith(".compilationTime"))

    def ask() -> None:
        for number in range(60):
            assert one(spark, f"SELECT count(*) FROM range(100) WHERE id > {number}") == (99 - number,)

    before = compiled()
    ask()
    first = compiled()
    ask()
    assert first - before > 100
    assert compiled() - first < 10


def test_a_full_outer_join_is_not_one_method_with_what_follows_it(spark: SparkSession) -> None:
    """The JVM's second compiler would work on that method of a MERGE for long, and give up."""
    adaptive, setting = "spark.sql.adaptive.enabled", "spark.sql.codegen.join.fullOuterSortMergeJoin.enabled"
    query = "EXPLAIN CODEGEN SELECT * FROM range(9) l FULL OUTER JOIN range(9) r ON l.id = r.id"
    before = {name: spark.conf.get(name) for name in (adaptive, setting)}
    try:
        spark.conf.set(adaptive, "false")  # the plan says what is compiled
        assert "FullOuterJoinRow" not in one(spark, query)[0]
        spark.conf.set(setting, "true")
        assert "FullOuterJoinRow" in one(spark, query)[0], "Spark's own way"
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def test_no_way_of_looking_shows_a_secret(
    spark: SparkSession, spark_server: DockerContainer, lake: Lake
) -> None:
    held = [
        lake.secrets["spark"][name] for name in ("catalog_credential", "s3_secret_access_key", "spark_token")
    ]
    port = spark_server.get_exposed_port(4040)
    address = f"http://127.0.0.1:{port}/api/v1/applications"
    with urllib.request.urlopen(address, timeout=60) as answer:
        application = json.load(answer)[0]["id"]
    with urllib.request.urlopen(f"{address}/{application}/environment", timeout=60) as answer:
        page = answer.read().decode()
    assert "spark.sql.catalog.tarn.credential" in page
    settings = str(
        [tuple(row) for row in spark.sql("SET -v").collect()] + [tuple(r) for r in spark.sql("SET").collect()]
    )
    attrs = json.dumps(spark_server.get_wrapped_container().attrs)
    out, err = spark_server.get_logs()
    for place in (page, settings, str(spark.conf.getAll), attrs, (out + err).decode()):
        assert not any(secret in place for secret in held)
    with pytest.raises(PySparkException, match="SQL_CONF_NOT_FOUND"):
        spark.conf.get("spark.sql.catalog.tarn.credential")


def test_the_settings_with_secrets_are_the_servers_alone(spark_server: DockerContainer) -> None:
    code, output = said_inside(
        spark_server.get_wrapped_container(), ["stat", "-c", "%a %u", "/tmp/spark-conf/spark-defaults.conf"]
    )
    assert (code, output.decode().split()) == (0, ["600", "10004"])


# pyspark says so itself when a session that the server refuses is closed.
@pytest.mark.filterwarnings("ignore:The 'warn' method is deprecated:DeprecationWarning")
@pytest.mark.parametrize("parameters", ["", "/;authorization=Bearer%20{other}", "/;authorization={token}"])
def test_without_the_token_nobody_comes_in(
    spark: SparkSession, spark_server: DockerContainer, lake: Lake, parameters: str
) -> None:
    """No token, a wrong one, and the right one in the wrong form; the client's own form is the control."""
    token = lake.secrets["spark"]["spark_token"]
    address = f"sc://127.0.0.1:{spark_server.get_exposed_port(15002)}"
    remote = address + parameters.format(token=token, other=token[::-1])
    with (
        pytest.raises(PySparkException, match=r"(No|Invalid) authentication token") as refused,
        spark_remote.session(remote, {}) as stranger,
    ):
        stranger.sql("SELECT 1").collect()
    assert token not in str(refused.value)
    with spark_remote.session(f"{address}/;authorization=Bearer%20{token}", {}) as own:
        assert own.sql("SELECT 1").collect()[0][0] == 1


def test_python_runs_in_the_server(spark_server: DockerContainer) -> None:
    script = (
        "from pyspark.sql import SparkSession; from pyspark.sql.functions import udf; "
        "s = SparkSession.builder.remote('sc://127.0.0.1:15002/;authorization=Bearer%20' + "
        "open('/run/tarn/secrets/spark_token').read().strip()).create(); "
        "f = udf(lambda x: x + 1, 'long'); "
        "print(s.range(100).select(f('id').alias('a')).agg({'a': 'sum'}).collect()[0][0]); s.stop()"
    )
    code, output = said_inside(spark_server.get_wrapped_container(), ["python", "-c", script])
    assert (code, output.decode().split()[-1]) == (0, "5050")
