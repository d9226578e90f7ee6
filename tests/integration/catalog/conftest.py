"""MinIO from Tarn's image with the stack's own bucket and policies, and catalogs from Tarn's image on it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from minio import Minio, MinioAdmin
from minio.credentials import StaticProvider
from pyiceberg.catalog import Catalog as PyIcebergCatalog
from pyiceberg.catalog import load_catalog
from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network

from tarn.adapters.store import S3Store
from tarn.bootstrap.policies import policies
from tarn_catalog.testing.server import write_secrets as write_access
from tests.integration.minio.conftest import hardened, write_secrets
from tests.support.healthy import await_health, health_of
from tests.support.images import image

REPOSITORY = Path(__file__).parents[3]
BUCKET = "tarn"
REGION = "us-east-1"
Key = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreServer:
    """A running store.

    Attributes:
        container: the container.
        endpoint: its address for the test.
        root: the root user's keys.
        network: network in which its name is `minio`.
    """

    container: DockerContainer
    endpoint: str
    root: Key
    network: Network

    @property
    def admin(self) -> MinioAdmin:
        return MinioAdmin(
            endpoint=self.endpoint.removeprefix("http://"),
            credentials=StaticProvider(*self.root),
            secure=False,
        )

    def user(self, policy: str) -> Key:
        """A new user with one of the stack's policies."""
        key = (f"{policy}-{secrets.token_hex(4)}", secrets.token_urlsafe(24))
        self.admin.user_add(*key)
        self.admin.attach_policy([policy], user=key[0])
        return key

    def store(self, key: Key, *, endpoint: str | None = None, bucket: str = BUCKET) -> S3Store:
        return S3Store(
            bucket=bucket,
            endpoint=endpoint or self.endpoint,
            region=REGION,
            access_key_id=key[0],
            secret_access_key=key[1],
        )


@pytest.fixture(scope="package")
def minio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    folder = tmp_path_factory.mktemp("minio")
    root = (f"tarn-root-{secrets.token_hex(4)}", secrets.token_urlsafe(30))
    write_secrets(folder, root_user=root[0], root_password=root[1])
    with Network() as network:
        container = hardened(folder).with_network(network).with_network_aliases("minio")
        with container:
            endpoint = f"http://127.0.0.1:{container.get_exposed_port(9000)}"
            store = StoreServer(container=container, endpoint=endpoint, root=root, network=network)
            await_health(container.get_wrapped_container(), what="MinIO")
            host = endpoint.removeprefix("http://")
            Minio(host, access_key=root[0], secret_key=root[1], secure=False, region=REGION).make_bucket(
                BUCKET
            )
            for user, policy in policies(BUCKET).items():
                store.admin.policy_add(user, policy=policy)
            yield store


def health(container: DockerContainer) -> str:
    return health_of(container.get_wrapped_container())


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A catalog from Tarn's image.

    Attributes:
        container: the container.
        uri: its published listener.
        inside: its listener for containers, at an address for the test.
        credential: credential of a principal.
        client_key: store keys of its clients.
        key: store keys of the catalog itself.
        store: the store that it uses.
    """

    container: DockerContainer
    uri: str
    inside: str
    credential: str
    client_key: Key
    key: Key
    store: StoreServer

    def open(self) -> PyIcebergCatalog:
        return load_catalog(
            "lake",
            **{
                "type": "rest",
                "uri": self.uri,
                "oauth2-server-uri": f"{self.uri}/v1/oauth/tokens",
                "credential": self.credential,
                "warehouse": "tarn",
                "s3.access-key-id": self.client_key[0],
                "s3.secret-access-key": self.client_key[1],
            },
        )


Serve = Callable[..., list[Server]]


@pytest.fixture
def serve(minio: StoreServer, tmp_path: Path) -> Iterator[Serve]:
    """Start replicas with one set of secrets, as in the stack, and wait until they are healthy."""
    started: list[DockerContainer] = []

    def start(replicas: int, *, vending: Key | None = None) -> list[Server]:
        key, client_key = minio.user("catalog"), minio.user("spark")
        credential = write_access(tmp_path / "secrets")
        write_secrets(tmp_path / "secrets", s3_access_key_id=key[0], s3_secret_access_key=key[1])
        if vending is not None:
            named = {"vending_access_key_id": vending[0], "vending_secret_access_key": vending[1]}
            write_secrets(tmp_path / "secrets", **named)
        for path in (tmp_path / "secrets").iterdir():
            path.chmod(0o444)
        servers = []
        for _ in range(replicas):
            container = DockerContainer(image("catalog")).with_network(minio.network)
            container.with_volume_mapping(str(tmp_path / "secrets"), "/run/tarn/secrets", "ro")
            container.with_tmpfs_mount("/tmp", "size=64m")
            container.with_env("TARN_S3_ENDPOINT_PUBLISHED", minio.endpoint)
            if vending is not None:
                container.with_env("TARN_STS_ENDPOINT", "http://minio:9000")
            container.with_kwargs(
                init=True,
                read_only=True,
                cap_drop=["ALL"],
                security_opt=["no-new-privileges:true"],
                mem_limit="512m",
                pids_limit=512,
            )
            for port in ("8181/tcp", "8182/tcp"):
                container.ports[port] = ("127.0.0.1", None)  # type: ignore[assignment]
            container.start()
            started.append(container)
            servers.append(
                Server(
                    container=container,
                    uri=f"http://127.0.0.1:{container.get_exposed_port(8182)}",
                    inside=f"http://127.0.0.1:{container.get_exposed_port(8181)}",
                    credential=credential,
                    client_key=client_key,
                    key=key,
                    store=minio,
                )
            )
        for container in started:
            await_health(container.get_wrapped_container(), what="the catalog")
        return servers

    yield start
    for container in started:
        container.stop()
