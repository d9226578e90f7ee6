"""Trino and Spark from Tarn's images on a lake from Tarn's images: store, its users and policies, catalog."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trino.dbapi
from pyspark.sql import SparkSession
from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network

from tarn.adapters import spark_remote
from tarn.core.credential_plan import plan
from tarn.core.credentials import UIDS
from tests.integration.minio.conftest import eventually, write_secrets
from tests.support.healthy import ENDED_WITHIN_S, await_health, state_of
from tests.support.images import image

if TYPE_CHECKING:
    from tests.integration.engines.clients import Clients

MEMORY = {"trino": "1800m", "spark": "2g", "minio": "768m", "catalog": "512m", "services": "256m"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lake:
    """Store and catalog, ready for engines.

    Attributes:
        network: network in which their names are `minio` and `catalog`.
        folder: one folder of secrets per consumer.
        secrets: consumer -> file name -> content.
        store: the store's container.
        s3: address of the store for the test.
        catalog: address of the catalog for the test.
        catalog_container: the catalog's container.
    """

    network: Network
    folder: Path
    secrets: dict[str, dict[str, str]]
    store: DockerContainer
    s3: str
    catalog: str
    catalog_container: DockerContainer

    def holds(self, location: str) -> bool:
        """Whether the store holds an object, according to its own disk."""
        code, _ = self.store.exec(["test", "-e", f"/data/{location.removeprefix('s3://')}"])
        return bool(code == 0)

    def engine(self, name: str) -> DockerContainer:
        """An engine as the stack runs it, not yet started."""
        container = hardened(image(name), self.folder / name)
        return container.with_network(self.network).with_network_aliases(name)


def hardened(name: str, folder: Path) -> DockerContainer:
    """A container of Tarn's image with the hardening of docker-compose.yml."""
    service = name.rpartition("/")[2].partition(":")[0]
    container = DockerContainer(name)
    container.with_volume_mapping(str(folder), "/run/tarn/secrets", "ro")
    container.with_tmpfs_mount("/tmp", "exec,size=256m")
    return container.with_kwargs(
        init=True,
        read_only=True,
        cap_drop=["ALL"],
        security_opt=["no-new-privileges:true"],
        mem_limit=MEMORY[service],
        pids_limit=1024,
    )


def published(container: DockerContainer, port: int) -> DockerContainer:
    """The container, with a port published at a free port of 127.0.0.1 for the test."""
    container.ports[f"{port}/tcp"] = ("127.0.0.1", None)  # type: ignore[assignment]
    return container


def address(container: DockerContainer, port: int) -> str:
    """The address of a published port for the test."""
    return f"http://127.0.0.1:{container.get_exposed_port(port)}"


def state(container: DockerContainer) -> dict[str, object]:
    """The container's state, as the engine reports it."""
    return state_of(container.get_wrapped_container())


def await_healthy(container: DockerContainer, name: str) -> None:
    """Wait for the first passed health check, which is a deep one.

    Raises:
        AssertionError: it did not pass before the timeout.
    """
    await_health(container.get_wrapped_container(), what=name)


@pytest.fixture(scope="session")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """A store with its users and policies, and the catalog on it."""
    folder = tmp_path_factory.mktemp("secrets")
    held: dict[str, dict[str, str]] = {consumer: {} for consumer in UIDS}
    for file in plan(held, random_bytes=secrets.token_bytes):
        held[file.consumer][file.name] = file.content
    for consumer, files in held.items():
        write_secrets(folder / consumer, **files)
    with (
        Network() as network,
        published(hardened(image("minio"), folder / "minio"), 9000)
        .with_network(network)
        .with_network_aliases("minio") as store,
    ):
        await_healthy(store, "minio")
        bootstrap = hardened(image("services"), folder / "bootstrap").with_network(network)
        bootstrap.with_command(["python", "-m", "tarn.bootstrap.store"])
        with bootstrap:
            eventually("bootstrap is done", lambda: health_is_over(bootstrap), timeout_s=ENDED_WITHIN_S)
            assert state(bootstrap)["ExitCode"] == 0, bootstrap.get_logs()
        s3 = address(store, 9000)
        with (
            published(hardened(image("catalog"), folder / "catalog"), 8182)
            .with_env("TARN_S3_ENDPOINT_PUBLISHED", s3)
            .with_network(network)
            .with_network_aliases("catalog") as catalog
        ):
            await_healthy(catalog, "catalog")
            where = address(catalog, 8182)
            yield Lake(
                network=network,
                folder=folder,
                secrets=held,
                store=store,
                s3=s3,
                catalog=where,
                catalog_container=catalog,
            )


def health_is_over(container: DockerContainer) -> bool:
    """Whether a one-shot container has ended."""
    return state(container)["Status"] == "exited"


class Trino:
    """A running Trino and a client of it."""

    def __init__(self, container: DockerContainer) -> None:
        self.container = container
        self.address = f"127.0.0.1:{container.get_exposed_port(8080)}"

    def rows(
        self, sql: str, *, session: Mapping[str, str] | None = None, user: str = "test"
    ) -> list[list[object]]:
        """All rows of one query, run with these session properties."""
        host, _, port = self.address.partition(":")
        with trino.dbapi.connect(
            host=host,
            port=int(port),
            user=user,
            catalog="tarn",
            session_properties=dict(session or {}),
        ) as connection:
            cursor = connection.cursor()
            cursor.execute(sql)
            return [list(row) for row in cursor.fetchall()]


@pytest.fixture(scope="session")
def trino_server(lake: Lake) -> Iterator[Trino]:
    """A healthy Trino."""
    with published(lake.engine("trino"), 8080) as container:
        await_healthy(container, "trino")
        yield Trino(container)


@pytest.fixture(scope="session")
def spark_server(lake: Lake) -> Iterator[DockerContainer]:
    """A healthy Spark Connect server."""
    with published(published(lake.engine("spark"), 15002), 4040) as container:
        await_healthy(container, "spark")
        yield container


@pytest.fixture(scope="session")
def spark(lake: Lake, spark_server: DockerContainer) -> Iterator[SparkSession]:
    """A client session on it."""
    remote = (
        f"sc://localhost:{spark_server.get_exposed_port(15002)}/;token={lake.secrets['spark']['spark_token']}"
    )
    with spark_remote.session(remote, {}) as session:
        yield session


@pytest.fixture(scope="session")
def clients(lake: Lake, trino_server: Trino, spark: SparkSession) -> Clients:
    """Every client of the lake."""
    from tests.integration.engines.clients import Clients, open_catalog
    from tests.integration.engines.ours import Ingesting, OwnTools

    return Clients(open_catalog(lake), trino_server, spark, OwnTools(lake), Ingesting(lake))
