"""Kafka, MinIO and the catalog from Tarn's images, and ingest beside them as the stack runs it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
import urllib.error
import urllib.request
import uuid
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.models.containers import Container
from pyiceberg.catalog import Catalog, load_catalog
from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network

from tarn.adapters.kafka_login import Login
from tarn.core.credentials import UIDS
from tarn_testkit.started import free_ports
from tests.support.compose import SERVICES
from tests.support.healthy import ENDED_WITHIN_S, HEALTHY_WITHIN_S, await_health, health_of, said_by
from tests.support.images import image
from tests.support.inside import said_inside

with warnings.catch_warnings():
    # kafka-python reads its message schemas with a function that is deprecated in Python 3.11.
    warnings.filterwarnings("ignore", "(read_text|open_text) is deprecated", DeprecationWarning)
    from kafka import KafkaProducer

UID = 10006
DATA_UIDS = {"minio": 10001, "kafka": 10002}
RUNS_WITHIN_S = 180.0
CAUGHT_UP_WITHIN_S = 180.0
ANSWER_S = 30.0

SPEC = """
apiVersion: tarn/v1
kind: Ingestor
metadata: {name: orders}
spec:
  source: {kafka: {topic: orders, create: true, partitions: 3}}
  table: {namespace: bronze, name: orders}
  schema:
    fields:
      - {name: id, type: long, required: true}
      - {name: at, type: timestamptz}
      - {name: text, type: string}
  deadLetters: {table: {namespace: ops, name: dead_letters}}
  batching: {maxRecords: 2000, maxLatencySeconds: 0.2}
"""


def eventually(what: str, holds: Callable[[], bool], *, timeout_s: float) -> float:
    """Seconds until the condition held. The last look begins when the time is over.

    Args:
        what: name of the condition, for the error message.
        holds: the condition.
        timeout_s: the timeout, in seconds.

    Raises:
        AssertionError: it did not hold before the timeout.
    """
    start_s = time.monotonic()
    while True:
        is_last = time.monotonic() - start_s >= timeout_s
        if holds():
            return time.monotonic() - start_s
        if is_last:
            raise AssertionError(f"not within {timeout_s:g} s: {what}")
        time.sleep(0.1)


def hardened(name: str, *, pids: int = 512, **limits: Any) -> DockerContainer:
    """A container of one of Tarn's images with the hardening of docker-compose.yml, and so many threads."""
    container = DockerContainer(image(name)).with_tmpfs_mount("/tmp", "exec,size=128m")
    return container.with_kwargs(
        init=True,
        read_only=True,
        cap_drop=["ALL"],
        security_opt=["no-new-privileges:true"],
        pids_limit=pids,
        **limits,
    )


def holder(volume: str) -> DockerContainer:
    """A container that keeps a volume mounted while its user stops and starts, and can write to it."""
    container = DockerContainer(image("services")).with_kwargs(user="0:0", network_mode="none")
    return container.with_volume_mapping(volume, "/data", "rw").with_command(["sleep", "3600"])


@dataclass(frozen=True, slots=True)
class Disk:
    """A data volume of a fixed size."""

    holder: DockerContainer

    def fill(self) -> None:
        """Fill all remaining space."""
        self._run("dd if=/dev/zero of=/data/filler bs=64k; dd if=/dev/zero of=/data/filler2 bs=1k", 1)
        assert self.free_bytes() == 0

    def free(self) -> None:
        """Release the space."""
        self._run("rm -f /data/filler /data/filler2", 0)

    def free_bytes(self) -> int:
        code = "import os; s = os.statvfs('/data'); print(s.f_bavail * s.f_frsize)"
        return int(said_inside(self.holder.get_wrapped_container(), ["python", "-c", code]).output)

    def _run(self, script: str, code: int) -> None:
        done = self.holder.exec(["sh", "-c", script])
        assert done.exit_code == code, done.output.decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A small stack: each service has its own name in the network and its own secrets.

    Attributes:
        network: their common network.
        secrets: consumer -> the volume that holds its secrets.
        containers: service -> its container.
        disks: service -> its data volume of a fixed size.
        s3: address of the store for the test.
        catalog: address of the catalog for the test.
        kafka: address of the broker for the test.
    """

    network: Network
    secrets: dict[str, str]
    containers: dict[str, DockerContainer]
    disks: dict[str, Disk]
    s3: str
    catalog: str
    kafka: str

    def wrapped(self, service: str) -> Container:
        return self.containers[service].get_wrapped_container()

    def login(self) -> Login:
        return Login(user="cli", password=self.secret("cli", "kafka_password"))

    def producer(self) -> Any:
        return KafkaProducer(bootstrap_servers=self.kafka, **self.login().options(), acks="all", linger_ms=5)

    def secret(self, consumer: str, name: str) -> str:
        """One secret, read by a container that has access to it."""
        command = ["docker", "run", "--rm", "--user=0", "--network=none", "--no-healthcheck"]
        command += [
            "-v",
            f"{self.secrets[consumer]}:/secrets:ro",
            image("services"),
            "cat",
            f"/secrets/{name}",
        ]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout.strip()

    def open(self) -> Catalog:
        """A pyiceberg catalog, as the cli's principal."""
        return load_catalog(
            "lake",
            **{
                "type": "rest",
                "uri": self.catalog,
                "oauth2-server-uri": f"{self.catalog}/v1/oauth/tokens",
                "credential": self.secret("cli", "catalog_credential"),
                "warehouse": "tarn",
                "s3.access-key-id": self.secret("cli", "s3_access_key_id"),
                "s3.secret-access-key": self.secret("cli", "s3_secret_access_key"),
                "s3.endpoint": self.s3,
                "s3.region": "us-east-1",
            },
        )


def free_port() -> int:
    """A port that no connection takes while its container is killed and starts again."""
    (port,) = free_ports(["any"]).values()
    return int(port)


def init_of(secrets: dict[str, str], *options: str) -> DockerContainer:
    """The init service for these volumes."""
    init = DockerContainer(image("services")).with_kwargs(user="0:0")
    init.with_command(["python", "-m", "tarn.bootstrap.init", *options])
    for consumer, volume in secrets.items():
        init.with_volume_mapping(volume, f"/secrets/{consumer}", "rw")
    return init


def one_shot(container: DockerContainer) -> None:
    """Run a container to its end and require exit code 0."""
    with container:
        wrapped = container.get_wrapped_container()
        code = wrapped.wait(timeout=ENDED_WITHIN_S)["StatusCode"]
        assert code == 0, wrapped.logs().decode()


@pytest.fixture(scope="module")
def disk_mib() -> dict[str, int]:
    """Size in MiB of a service's data volume; services not listed have all of the machine's disk."""
    return {}


@pytest.fixture(scope="module")
def stack(disk_mib: dict[str, int]) -> Iterator[Stack]:
    """Store, catalog and Kafka, with credentials and rights created by Tarn's own one-shot services."""
    client = docker.from_env()
    mark = uuid.uuid4().hex[:8]
    secrets = {consumer: f"tarn-test-{mark}-{consumer}" for consumer in UIDS}
    data = {name: f"tarn-test-{mark}-{name}-data" for name in DATA_UIDS}
    volumes = [*secrets.values(), *data.values()]
    for name, mib in disk_mib.items():
        owner = f"uid={DATA_UIDS[name]},gid={DATA_UIDS[name]},mode=0750"
        options = {"type": "tmpfs", "device": "tmpfs", "o": f"size={mib}m,{owner}"}
        client.volumes.create(data[name], driver_opts=options)
    ports = {name: int(text) for name, text in free_ports(["kafka", "s3", "catalog"]).items()}
    port, s3_port, catalog_port = ports["kafka"], ports["s3"], ports["catalog"]
    try:
        with Network() as network, contextlib.ExitStack() as running:
            one_shot(init_of(secrets))

            def service(name: str, *, alias: str, **limits: Any) -> DockerContainer:
                container = hardened(name, **limits).with_network(network).with_network_aliases(alias)
                return container.with_volume_mapping(secrets[alias], "/run/tarn/secrets", "ro")

            disks = {name: Disk(running.enter_context(holder(data[name]))) for name in disk_mib}
            minio = service("minio", alias="minio", mem_limit="768m")
            minio.with_volume_mapping(data["minio"], "/data", "rw")
            minio.ports["9000/tcp"] = ("127.0.0.1", s3_port)  # type: ignore[assignment]
            running.enter_context(minio)
            bootstrap = service("services", alias="bootstrap", user="10008:10008")
            one_shot(bootstrap.with_command(["python", "-m", "tarn.bootstrap.store"]))
            catalog = service("catalog", alias="catalog", mem_limit="512m")
            catalog.with_env("TARN_S3_ENDPOINT_PUBLISHED", f"http://127.0.0.1:{s3_port}")
            catalog.ports["8182/tcp"] = ("127.0.0.1", catalog_port)  # type: ignore[assignment]
            running.enter_context(catalog)
            # As in the compose file: a broker whose disk is full exits, and the engine restarts it.
            kafka = service("kafka", alias="kafka", mem_limit="1g", restart_policy={"Name": "unless-stopped"})
            kafka.with_volume_mapping(data["kafka"], "/data", "rw")
            kafka.with_env("TARN_KAFKA_ADVERTISED_PUBLISHED", f"127.0.0.1:{port}")
            kafka.ports["9094/tcp"] = ("127.0.0.1", port)  # type: ignore[assignment]
            running.enter_context(kafka)
            found = Stack(
                network=network,
                secrets=secrets,
                containers={"minio": minio, "catalog": catalog, "kafka": kafka},
                disks=disks,
                s3=f"http://127.0.0.1:{s3_port}",
                catalog=f"http://127.0.0.1:{catalog_port}",
                kafka=f"127.0.0.1:{port}",
            )
            for name in found.containers:
                await_health(found.wrapped(name), what=name)
            yield found
    finally:
        for volume in volumes:
            with contextlib.suppress(docker.errors.NotFound):
                client.volumes.get(volume).remove(force=True)
        client.close()


def health(container: Container) -> str:
    return health_of(container)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingest:
    """A running ingest service and its environment."""

    container: DockerContainer
    stack: Stack

    @property
    def wrapped(self) -> Container:
        return self.container.get_wrapped_container()

    def get(self, path: str) -> tuple[int, bytes]:
        """Status and body of one of its pages; status 0 if it does not answer."""
        try:
            with urllib.request.urlopen(f"{self.address}{path}", timeout=ANSWER_S) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as e:
            return e.code, e.read()
        except OSError:
            return 0, b""

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.container.get_exposed_port(8091)}"

    def status(self, name: str = "orders") -> dict[str, Any]:
        status, body = self.get("/status")
        found: dict[str, Any] = json.loads(body)["ingestors"].get(name, {}) if status == 200 else {}
        return found

    def caught_up(self, ends: dict[int, int]) -> bool:
        """Whether the table holds everything below these end offsets."""
        committed = self.status().get("committedOffsets", {})
        return {int(p): o for p, o in committed.items()} == ends

    def await_caught_up(self, ends: dict[int, int]) -> None:
        """Wait until the table holds everything below these end offsets."""
        self._await("the table caught up", lambda: self.caught_up(ends), CAUGHT_UP_WITHIN_S, f"to {ends}")

    def await_running(self) -> None:
        self._await("the ingestor runs", lambda: self.status().get("state") == "Running", RUNS_WITHIN_S)

    def await_health(self, status: str = "healthy", *, timeout_s: float = HEALTHY_WITHIN_S) -> None:
        """Wait until the engine reports this health."""
        await_health(self.wrapped, status, timeout_s=timeout_s, what="ingest")

    def _await(self, what: str, holds: Callable[[], bool], timeout_s: float, wanted: str = "") -> None:
        try:
            eventually(what, holds, timeout_s=timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error} {wanted}; {self.status()}; {said_by(self.wrapped)}") from None


@contextlib.contextmanager
def serving(stack: Stack, folder: Path, spec: str, **variables: str) -> Iterator[Ingest]:
    """A new ingest service; the tables and topics of earlier ones still exist.

    Args:
        stack: what it works with.
        folder: an empty folder for its spec.
        spec: its spec.
        variables: environment variables.
    """
    (folder / "orders.yaml").write_text(spec)
    folder.chmod(0o755)
    pids = SERVICES["ingest"]["pids_limit"]
    container = hardened("services", mem_limit="512m", pids=pids, user=f"{UID}:{UID}")
    container.with_network(stack.network)
    container.with_volume_mapping(stack.secrets["ingest"], "/run/tarn/secrets", "ro")
    container.with_volume_mapping(str(folder), "/etc/tarn/specs", "ro")
    memory = {
        k: v for k, v in SERVICES["ingest"]["environment"].items() if k.startswith(("ARROW_", "MALLOC_"))
    }
    for name, value in (memory | variables).items():
        container.with_env(name, str(value))
    container.ports["8091/tcp"] = ("127.0.0.1", free_port())  # type: ignore[assignment]
    with container:
        found = Ingest(container=container, stack=stack)
        found.await_running()
        yield found


@pytest.fixture
def ingest(stack: Stack, tmp_path: Path) -> Iterator[Ingest]:
    """A new ingest service of the orders."""
    with serving(stack, tmp_path, SPEC) as found:
        yield found
