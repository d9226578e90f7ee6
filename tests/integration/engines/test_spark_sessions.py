"""Spark Connect sessions come and go without leaving anything in the server."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from testcontainers.core.container import DockerContainer

from tarn.adapters import spark_remote
from tests.integration.engines.conftest import Lake
from tests.integration.minio.conftest import eventually
from tests.support.inside import said_inside


@pytest.fixture(scope="module")
def namespace(spark: SparkSession) -> str:
    spark.sql("CREATE NAMESPACE IF NOT EXISTS spark_sessions")
    return "spark_sessions"


@pytest.fixture
def address(spark_server: DockerContainer, lake: Lake) -> str:
    """Address of the server, with its token if it has one."""
    token = lake.secrets["spark"].get("spark_token")
    parameters = f"/;authorization=Bearer%20{token}" if token else ""
    return f"sc://127.0.0.1:{spark_server.get_exposed_port(15002)}{parameters}"


def one(spark: SparkSession, sql: str) -> tuple[Any, ...]:
    (row,) = spark.sql(sql).collect()
    return tuple(row)


def clients_of_the_catalog(server: DockerContainer) -> int:
    """Number of connections to the catalog held by the server, open or half closed."""
    code, output = said_inside(server.get_wrapped_container(), ["cat", "/proc/net/tcp", "/proc/net/tcp6"])
    assert code == 0
    rows = [row.split() for row in output.decode().splitlines()]
    return sum(1 for row in rows if len(row) > 3 and row[2].endswith(f":{8181:04X}"))


def test_sessions_that_ended_leave_nothing_behind(
    spark: SparkSession, spark_server: DockerContainer, address: str, namespace: str
) -> None:
    """Iceberg's own catalog keeps each session's client, connection and thread permanently."""
    table = f"{namespace}.visited"
    spark.sql(f"CREATE TABLE {table} (id BIGINT) USING iceberg")
    spark.sql(f"INSERT INTO {table} VALUES (1)")

    def visit() -> None:
        with spark_remote.session(address, {}) as visitor:
            assert one(visitor, f"SELECT count(*) FROM {table}") == (1,)

    sessions = 15
    visit()
    connections = clients_of_the_catalog(spark_server)
    for _ in range(sessions):
        visit()
    assert clients_of_the_catalog(spark_server) < connections + sessions // 2
    names = (
        said_inside(spark_server.get_wrapped_container(), ["sh", "-c", "cat /proc/[0-9]*/task/[0-9]*/comm"])
        .output.decode()
        .split()
    )
    assert names.count("rest-metrics-re") == 0


def test_a_session_with_settings_of_its_own_has_a_client_of_its_own(address: str, namespace: str) -> None:
    with spark_remote.session(address, {}) as own:
        own.conf.set("spark.sql.catalog.tarn.credential", "nobody:nothing")
        with pytest.raises(PySparkException, match=r"(?i)not ?authorized|unauthorized|invalid_client"):
            own.sql("SHOW NAMESPACES IN tarn").collect()
    with spark_remote.session(address, {}) as other:
        assert namespace.rpartition(".")[2] in str(other.sql("SHOW NAMESPACES IN tarn").collect())


@pytest.mark.runs_last
def test_a_session_that_begins_after_its_servers_token_was_refused_gets_another(
    lake: Lake, address: str, namespace: str
) -> None:
    """As after an hour in which the catalog did not answer when the token was due for renewal.

    An engine that renews its token meanwhile is refused until its next renewal.
    """

    def names() -> str:
        with spark_remote.session(address, {}) as session:
            return str(session.sql("SHOW NAMESPACES IN tarn").collect())

    def is_refused(session: SparkSession) -> bool:
        try:
            session.sql("SHOW NAMESPACES IN tarn").collect()
        except PySparkException as error:
            return "NotAuthorized" in str(error)
        return False

    def sign_with(key: str) -> None:
        part = lake.folder / "catalog" / "token_key.part"
        part.write_text(key)
        part.chmod(0o444)
        part.replace(part.with_name("token_key"))

    key = lake.secrets["catalog"]["token_key"]
    with spark_remote.session(address, {}) as held:
        assert not is_refused(held)
        try:
            sign_with("A" * len(key) if key[0] != "A" else "B" * len(key))
            eventually("the former token is refused", lambda: is_refused(held), timeout_s=120.0)
            assert namespace in names()
        finally:
            sign_with(key)
    eventually("the first key counts again", lambda: namespace in names(), timeout_s=120.0)
