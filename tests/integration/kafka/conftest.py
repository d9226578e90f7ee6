"""One broker from Tarn's image, run as in docker-compose.yml, with secrets made for the test."""

from __future__ import annotations

import contextlib
import io
import json
import secrets
import struct
import tarfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from docker.models.containers import Container
from testcontainers.core.container import DockerContainer

from tarn.adapters.kafka_login import Login
from tarn.core.kafka_users import ADMIN, USERS
from tarn_testkit.started import free_ports
from tests.support.healthy import HEALTHY_WITHIN_S, await_health, health_of
from tests.support.images import image
from tests.support.kafka_logs import OLD, KafkaProducer, read

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", OLD, DeprecationWarning)
    from kafka.admin import KafkaAdminClient, NewTopic


def eventually(what: str, holds: Callable[[], bool], *, timeout_s: float) -> None:
    """Return as soon as the condition holds. The last look begins when the time is over.

    Args:
        what: name of the condition, for the error message.
        holds: the condition.
        timeout_s: the timeout, in seconds.

    Raises:
        AssertionError: it did not hold before the timeout.
    """
    until_s = time.monotonic() + timeout_s
    while True:
        is_last = time.monotonic() >= until_s
        if holds():
            return
        if is_last:
            raise AssertionError(f"not within {timeout_s:g} s: {what}")
        time.sleep(0.2)


def free_port() -> int:
    """A port that was free a moment ago: the broker's advertised address must be known before it starts."""
    (port,) = free_ports(["any"]).values()
    return int(port)


@dataclass(frozen=True, slots=True, kw_only=True)
class Secrets:
    """The broker's secret files, in a folder visible to its container.

    Attributes:
        folder: the folder.
        passwords: user -> password, as last written.
    """

    folder: Path
    passwords: dict[str, str] = field(default_factory=dict)

    def write(self, **passwords: str) -> None:
        """Write the files, with these passwords changed."""
        self.passwords.update({u: secrets.token_urlsafe(32) for u in USERS if u not in self.passwords})
        self.passwords.update(passwords)
        self.folder.mkdir(exist_ok=True)
        files = {
            "kafka_user": ADMIN,
            "kafka_password": secrets.token_urlsafe(32),
            "kafka_users.json": json.dumps(self.passwords),
        }
        for name, content in files.items():
            path = self.folder / name
            path.unlink(missing_ok=True)
            path.write_text(content)
            path.chmod(0o444)
        self.folder.chmod(0o755)


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A running broker.

    Attributes:
        container: its container.
        address: `host:port` of the listener for the host, for use by the test.
        inside: `host:port` of the listener for containers, for use by the test.
        secrets: its secret files.
    """

    container: Container
    address: str
    inside: str
    secrets: Secrets

    def options(self, user: str = "cli", **changes: str) -> dict[str, Any]:
        """The kafka-python settings of a client of this user; `changes` override them."""
        login = Login(user=user, password=self.secrets.passwords.get(user, "no such user"))
        return {"bootstrap_servers": self.address, **login.options(), **changes}

    def health(self) -> str:
        """Its health, as the engine reports it."""
        return health_of(self.container)

    def health_line(self) -> str:
        """The output of the last finished health check."""
        self.container.reload()
        return str(self.container.attrs["State"]["Health"]["Log"][-1]["Output"]).strip()

    def await_health(self, status: str, timeout_s: float = HEALTHY_WITHIN_S) -> None:
        """Return as soon as the engine reports this status."""
        await_health(self.container, status, timeout_s=timeout_s)

    def restart(self) -> None:
        """Stop it gracefully, start it, and return when it is healthy."""
        self.container.stop(timeout=15)
        self.container.start()
        self.await_health("healthy")

    def lose(self, topic: str, partition: int, *, offset: int) -> None:
        """Kill it, let its log end before the batch with this offset as in a loss of power, and start it."""
        self.container.kill("SIGKILL")
        path = f"/data/log/{topic}-{partition}/{0:020}.log"
        stream, _ = self.container.get_archive(path)
        with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as packed:
            member = packed.getmembers()[0]
            held = packed.extractfile(member)
            assert held is not None
            data = held.read()
        at = 0
        while at < len(data):
            first, size = struct.unpack_from(">qi", data, at)
            if first >= offset:
                break
            at += 12 + size
        assert at < len(data), f"{path} has no batch from offset {offset} on"
        member.size, out = at, io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as packed:
            packed.addfile(member, io.BytesIO(data[:at]))
        assert self.container.put_archive(str(Path(path).parent), out.getvalue())
        self.container.start()
        self.await_health("healthy")

    def make_topic(self, name: str, partitions: int = 2) -> None:
        """Create a topic."""
        admin = KafkaAdminClient(**self.options())
        admin.create_topics([NewTopic(name, num_partitions=partitions, replication_factor=1)])
        admin.close()

    def send(self, topic: str, records: list[bytes]) -> int:
        """Produce the records; returns how many were acknowledged."""
        producer = KafkaProducer(**self.options(), acks="all")
        waiting = [producer.send(topic, record, partition=i % 2) for i, record in enumerate(records)]
        producer.flush(timeout=120)
        producer.close(timeout=5)
        return sum(future.succeeded() for future in waiting)

    def read(self, topic: str, partitions: int = 2) -> list[bytes]:
        """Every record of a topic."""
        return [value for values in read(self.options(), topic, partitions).values() for value in values]


def hardened(secret_files: Secrets, port: int, inside_port: int, data: str | None = None) -> DockerContainer:
    """A container of Tarn's image with the hardening of docker-compose.yml; both listeners are published."""
    container = DockerContainer(image("kafka"))
    container.with_tmpfs_mount("/tmp", "exec,size=128m")
    container.with_env("TARN_KAFKA_ADVERTISED_PUBLISHED", f"127.0.0.1:{port}")
    container.with_volume_mapping(str(secret_files.folder), "/run/tarn/secrets", "ro")
    if data is not None:
        container.with_volume_mapping(data, "/data", "rw")
    container.with_kwargs(
        init=True,
        read_only=True,
        cap_drop=["ALL"],
        security_opt=["no-new-privileges:true"],
        mem_limit="1g",
        pids_limit=512,
    )
    container.ports["9094/tcp"] = ("127.0.0.1", port)  # type: ignore[assignment]
    container.ports["9092/tcp"] = ("127.0.0.1", inside_port)  # type: ignore[assignment]
    return container


@contextlib.contextmanager
def running(
    folder: Path,
    data: str | None = None,
    *,
    over: Mapping[str, str] | None = None,
    without: str = "",
    healthy: bool = True,
) -> Iterator[Broker]:
    """A broker.

    Args:
        folder: the folder of its secrets.
        data: the volume of its log; None for one of its own.
        over: files of the host -> the files of the image that they replace.
        without: a secret that it does not get.
        healthy: wait until it is healthy.
    """
    secret_files = Secrets(folder=folder)
    secret_files.write()
    if without:
        (folder / without).unlink()
    port, inside_port = free_port(), free_port()
    container = hardened(secret_files, port, inside_port, data)
    for source, target in (over or {}).items():
        container.with_volume_mapping(source, target, "ro")
    with container:
        found = Broker(
            container=container.get_wrapped_container(),
            address=f"127.0.0.1:{port}",
            inside=f"127.0.0.1:{inside_port}",
            secrets=secret_files,
        )
        if healthy:
            found.await_health("healthy")
        yield found


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A healthy broker."""
    with running(tmp_path_factory.mktemp("broker") / "secrets") as found:
        yield found


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The broker of modules that neither stop it nor change its users; each has topics of other names."""
    with running(tmp_path_factory.mktemp("shared") / "secrets") as found:
        yield found
