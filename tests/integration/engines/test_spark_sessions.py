"""Spark Connect sessions come and go without leaving anything in the server."""

from __future__ import annotations

from typing import Any

import httpx
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


def token_of(lake: Lake) -> str:
    """A token of Spark's own principal."""
    client_id, _, secret = lake.secrets["spark"]["catalog_credential"].partition(":")
    form = {"grant_type": "client_credentials", "client_id": client_id, "client_secret": secret}
    answer = httpx.post(f"{lake.catalog}/v1/oauth/tokens", data=form, timeout=30).raise_for_status()
    return str(answer.json()["access_token"])


def status_with(lake: Lake, token: str) -> int:
    """The catalog's answer to a question with this token."""
    headers = {"authorization": f"Bearer {token}"}
    return httpx.get(f"{lake.catalog}/v1/namespaces", headers=headers, timeout=30).status_code


@pytest.mark.runs_last
def test_a_session_whose_servers_token_is_refused_gets_another_and_so_do_those_that_begin_later(
    lake: Lake, address: str, namespace: str
) -> None:
    """As after an hour in which the machine slept, or the catalog did not answer when the token was due."""

    def sign_with(key: str) -> None:
        part = lake.folder / "catalog" / "token_key.part"
        part.write_text(key)
        part.chmod(0o444)
        part.replace(part.with_name("token_key"))

    def names(session: SparkSession) -> str:
        return str(session.sql("SHOW NAMESPACES IN tarn").collect())

    def is_welcome(session: SparkSession) -> bool:
        try:
            return namespace in names(session)
        except PySparkException as error:
            if "NotAuthorized" in str(error):
                return False
            raise

    def await_refused(token: str) -> None:
        eventually("the former token is refused", lambda: status_with(lake, token) == 401, timeout_s=120.0)

    key = lake.secrets["catalog"]["token_key"]
    with spark_remote.session(address, {}) as held, spark_remote.session(address, {}) as idle:
        held.sql(f"CREATE TABLE {namespace}.held (id BIGINT) USING iceberg")
        assert namespace in names(held)
        assert namespace in names(idle)
        former = token_of(lake)
        assert status_with(lake, former) == 200
        try:
            sign_with("A" * len(key) if key[0] != "A" else "B" * len(key))
            await_refused(former)
            # A client that is seconds old is not replaced.
            eventually("another client is made", lambda: is_welcome(held), timeout_s=60.0)
            held.sql(f"INSERT INTO {namespace}.held VALUES (1)")
            assert one(held, f"SELECT count(*) FROM {namespace}.held") == (1,)
            with spark_remote.session(address, {}) as later:
                assert namespace in names(later)
            former = token_of(lake)
        finally:
            sign_with(key)
        await_refused(former)
        assert is_welcome(idle), "its client has a token of the first key, which counts again"
        eventually("a third client is made", lambda: is_welcome(held), timeout_s=60.0)
        assert one(held, f"SELECT count(*) FROM {namespace}.held") == (1,)
