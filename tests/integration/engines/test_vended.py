"""Spark with keys that the catalog vends: a principal without any store key reads its table, and no other."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from testcontainers.core.container import DockerContainer

from tarn.adapters import spark_remote
from tests.integration.engines.conftest import Lake, address, await_healthy, hardened, published
from tests.support.images import image


@dataclass(frozen=True, slots=True, kw_only=True)
class Vending:
    """A second catalog on the lake, which vends credentials.

    Attributes:
        ns: a namespace of this test's own.
        container: the catalog.
        client: an admin's client of it.
    """

    ns: str
    container: DockerContainer
    client: httpx.Client

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        answer = self.client.request(method, path, json=body)
        assert answer.status_code in (200, 204), answer.text
        return answer.json() if answer.content else None

    def principal(self) -> tuple[str, str]:
        """A new principal without any right: name and credential."""
        made = self.ask("POST", "/tarn/v1/principals", {"name": f"bob-{secrets.token_hex(3)}"})
        return made["name"], f"{made['client-id']}:{made['client-secret']}"

    def forget_principals(self) -> None:
        """Drop every principal that was made; the tables stay, and belong to nobody any more."""
        for one in self.ask("GET", "/tarn/v1/principals")["principals"]:
            if not one["built-in"]:
                self.ask("DELETE", f"/tarn/v1/principals/{one['name']}")

    def grant(self, to: str, privilege: str, table: str) -> None:
        on = {"kind": "table", "namespace": [self.ns], "name": table}
        self.ask("POST", "/tarn/v1/grants", {"on": on, "to": to, "privileges": [privilege]})


@pytest.fixture(scope="module")
def vending(lake: Lake) -> Iterator[Vending]:
    container = published(hardened(image("catalog"), lake.folder / "catalog"), 8182)
    container.with_env("TARN_S3_ENDPOINT_PUBLISHED", lake.s3).with_env("TARN_HOSTS", "vending")
    container.with_env("TARN_STS_ENDPOINT", "http://minio:9000")
    with container.with_network(lake.network).with_network_aliases("vending") as running:
        await_healthy(running, "vending")
        where = address(running, 8182)
        client_id, _, secret = lake.secrets["cli"]["catalog_credential"].partition(":")
        form = {"grant_type": "client_credentials", "client_id": client_id, "client_secret": secret}
        token = httpx.post(f"{where}/v1/oauth/tokens", data=form).json()["access_token"]
        with httpx.Client(
            base_url=where, headers={"authorization": f"Bearer {token}"}, timeout=120
        ) as client:
            made = Vending(ns=f"vended_{secrets.token_hex(3)}", container=running, client=client)
            made.ask("POST", "/v1/namespaces", {"namespace": [made.ns]})
            yield made
            # A lake with principals asks everybody at Trino to log in, also the tests that come next.
            made.forget_principals()


@pytest.fixture
def bob(vending: Vending, lake: Lake, spark_server: DockerContainer) -> Iterator[tuple[str, SparkSession]]:
    """A principal's name, and a session in which the catalog `bob` is the lake as it may use it."""
    name, credential = vending.principal()
    remote = (
        f"sc://localhost:{spark_server.get_exposed_port(15002)}/;token={lake.secrets['spark']['spark_token']}"
    )
    catalog = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "rest",
        ".uri": "http://vending:8181",
        ".rest.auth.type": "oauth2",
        ".oauth2-server-uri": "http://vending:8181/v1/oauth/tokens",
        ".credential": credential,
        ".header.X-Iceberg-Access-Delegation": "vended-credentials",
        ".cache-enabled": "false",
        ".rest-metrics-reporting-enabled": "false",
    }
    settings = {f"spark.sql.catalog.bob{key}": value for key, value in catalog.items()}
    with spark_remote.session(remote, settings) as session:
        yield name, session


def test_spark_reads_and_writes_with_vended_keys_what_its_principal_may(
    vending: Vending, spark: SparkSession, bob: tuple[str, SparkSession]
) -> None:
    """The session has no store key for this catalog: what it opens, the vended keys open."""
    name, session = bob
    for table in ("one", "two"):
        spark.sql(f"CREATE TABLE {vending.ns}.{table} (id BIGINT) USING iceberg")
        spark.sql(f"INSERT INTO {vending.ns}.{table} VALUES (1), (2)")
    own, other = (f"bob.{vending.ns}.{table}" for table in ("one", "two"))

    def count(table: str) -> int:
        (row,) = session.sql(f"SELECT count(id), sum(id) FROM {table}").collect()
        return int(row[0])

    with pytest.raises(PySparkException, match="may not load"):
        count(own)
    vending.grant(name, "READ", "one")
    assert count(own) == 2
    with pytest.raises(PySparkException, match="may not load"):
        count(other)
    # It fails at the store, before the catalog is asked: keys that read write no file.
    with pytest.raises(PySparkException, match=r"(?i)access ?denied|status code: 403|Forbidden"):
        session.sql(f"INSERT INTO {own} VALUES (3)").collect()
    assert count(own) == 2
    vending.grant(name, "WRITE", "one")
    session.sql(f"INSERT INTO {own} VALUES (3)").collect()
    session.sql(f"DELETE FROM {own} WHERE id = 1").collect()
    assert count(own) == 2
    log = vending.container.get_logs()[0].decode() + vending.container.get_logs()[1].decode()
    vended = [line for line in log.splitlines() if '"action": "vend"' in line and f'"{name}"' in line]
    assert {mode for mode in ("read", "write") for line in vended if f'"mode": "{mode}"' in line} == {
        *("read", "write")
    }, log[-2_000:]
