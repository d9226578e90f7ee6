"""Our Kafka as the stack relies on it: no topic by accident, nothing acknowledged lost, true health."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from docker.models.containers import Container
from testcontainers.core.container import DockerContainer

from tests.support.images import image

# kafka-python reads its message schemas, at import and at first use, with a function Python calls old.
OLD = "(read_text|open_text) is deprecated"
with warnings.catch_warnings():
    warnings.filterwarnings("ignore", OLD, DeprecationWarning)
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.admin import KafkaAdminClient, NewTopic
    from kafka.errors import KafkaError

pytestmark = pytest.mark.filterwarnings(f"ignore:{OLD}:DeprecationWarning")

HEALTHY_WITHIN_S = 60.0
UNHEALTHY_WITHIN_S = 60.0
RECORDS = 2_000


def eventually(what: str, holds: Callable[[], bool], *, timeout_s: float) -> None:
    """Return as soon as it holds.

    Raises:
        AssertionError: it never did within the timeout.
    """
    until_s = time.monotonic() + timeout_s
    while time.monotonic() < until_s:
        if holds():
            return
        time.sleep(0.2)
    raise AssertionError(f"not within {timeout_s:g} s: {what}")


def hardened(port: int) -> DockerContainer:
    """Our image with what docker-compose.yml takes away from it, published at this port."""
    container = DockerContainer(image("kafka"))
    container.with_tmpfs_mount("/tmp", "exec,size=128m")
    container.with_env("TARN_KAFKA_ADVERTISED_PUBLISHED", f"127.0.0.1:{port}")
    container.with_kwargs(
        init=True,
        read_only=True,
        cap_drop=["ALL"],
        security_opt=["no-new-privileges:true"],
        mem_limit="1g",
        pids_limit=512,
    )
    container.ports["9094/tcp"] = ("127.0.0.1", port)  # type: ignore[assignment]
    return container


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A running broker.

    Attributes:
        container: its container.
        address: `host:port` as the test reaches it.
    """

    container: Container
    address: str

    def health(self) -> str:
        """What the engine says about its health."""
        self.container.reload()
        return str(self.container.attrs["State"]["Health"]["Status"])

    def health_line(self) -> str:
        """What the last finished check printed."""
        self.container.reload()
        return str(self.container.attrs["State"]["Health"]["Log"][-1]["Output"]).strip()

    def await_health(self, status: str, timeout_s: float = HEALTHY_WITHIN_S) -> None:
        """Return as soon as the engine says so."""
        eventually(status, lambda: self.health() == status, timeout_s=timeout_s)

    def make_topic(self, name: str, partitions: int = 2) -> None:
        """Make a topic."""
        admin = KafkaAdminClient(bootstrap_servers=self.address)
        admin.create_topics([NewTopic(name, num_partitions=partitions, replication_factor=1)])
        admin.close()

    def send(self, topic: str, records: list[bytes]) -> int:
        """How many of the records were acknowledged."""
        producer = KafkaProducer(bootstrap_servers=self.address, acks="all")
        waiting = [producer.send(topic, record, partition=i % 2) for i, record in enumerate(records)]
        producer.flush(timeout=30)
        producer.close(timeout=5)
        return sum(future.succeeded() for future in waiting)

    def read(self, topic: str, partitions: int = 2) -> list[bytes]:
        """Every record of a topic."""
        consumer = KafkaConsumer(bootstrap_servers=self.address, enable_auto_commit=False)
        places = [TopicPartition(topic, number) for number in range(partitions)]
        consumer.assign(places)
        consumer.seek_to_beginning(*places)
        ends = consumer.end_offsets(places)
        found: list[bytes] = []
        until_s = time.monotonic() + 20
        while any(consumer.position(place) < ends[place] for place in places):
            assert time.monotonic() < until_s, f"read {len(found)} records, ends are {ends}"
            for records in consumer.poll(timeout_ms=500).values():
                found += [record.value for record in records]
        consumer.close()
        return found


@pytest.fixture(scope="module")
def broker(free_port: int) -> Iterator[Broker]:
    """A healthy broker."""
    with hardened(free_port) as container:
        running = Broker(container=container.get_wrapped_container(), address=f"127.0.0.1:{free_port}")
        running.await_health("healthy")
        yield running


@pytest.fixture(scope="module")
def free_port() -> int:
    """A port that was free a moment ago: the broker must be told its published address before it starts."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def pid_of(broker: Broker) -> str:
    found = broker.container.exec_run(["sh", "-c", "grep -lx java /proc/[0-9]*/comm"]).output.decode()
    return re.findall(r"\d+", found)[0]


def test_what_is_sent_is_read(broker: Broker) -> None:
    broker.make_topic("sent")
    records = [f"row {number}".encode() for number in range(RECORDS)]
    assert broker.send("sent", records) == RECORDS
    assert sorted(broker.read("sent")) == sorted(records)


def test_no_topic_is_made_by_naming_it(broker: Broker) -> None:
    producer = KafkaProducer(bootstrap_servers=broker.address, max_block_ms=2_000)
    with pytest.raises(KafkaError):
        producer.send("a-typing-mistake", b"x").get(timeout=5)
    producer.close(timeout=1)
    admin = KafkaAdminClient(bootstrap_servers=broker.address)
    assert "a-typing-mistake" not in admin.list_topics()
    admin.close()


def test_it_runs_as_nobody_special_on_a_root_it_cannot_write(broker: Broker) -> None:
    assert broker.container.exec_run(["id"]).output.decode().startswith("uid=10002(kafka)")
    code, said = broker.container.exec_run(["sh", "-c", "echo x > /opt/kafka/x"])
    assert code != 0
    assert b"Read-only file system" in said


def test_the_controller_listens_for_nobody_else(broker: Broker) -> None:
    listening = set()
    for table in ("tcp", "tcp6"):
        rows = broker.container.exec_run(["cat", f"/proc/net/{table}"]).output.decode().splitlines()[1:]
        for row in rows:
            fields = row.split()
            if fields[3] == "0A":
                host, _, port = fields[1].rpartition(":")
                listening.add((int(port, 16), host.endswith("0100007F")))
    assert {(9092, False), (9094, False), (9093, True), (9095, True)} <= listening
    assert {port for port, local in listening if not local} == {9092, 9094}


def test_a_frozen_broker_is_unhealthy_in_time_and_healthy_again(broker: Broker) -> None:
    pid = pid_of(broker)
    assert broker.container.exec_run(["sh", "-c", f"kill -STOP {pid}"]).exit_code == 0
    broker.await_health("unhealthy", UNHEALTHY_WITHIN_S)
    assert broker.health_line() == "shallow: no metadata from port 9092 within 4 s"
    assert broker.container.exec_run(["sh", "-c", f"kill -CONT {pid}"]).exit_code == 0
    broker.await_health("healthy", 30)


def test_a_kill_loses_no_acknowledged_record_and_keeps_the_log(broker: Broker) -> None:
    before = broker.container.exec_run(["cat", "/data/log/meta.properties"]).output
    broker.make_topic("killed")
    records = [f"row {number}".encode() for number in range(RECORDS)]
    assert broker.send("killed", records) == RECORDS
    broker.container.kill("SIGKILL")
    broker.container.start()
    broker.await_health("healthy")
    assert broker.container.exec_run(["cat", "/data/log/meta.properties"]).output == before
    assert sorted(broker.read("killed")) == sorted(records)


def test_a_stop_is_clean(broker: Broker) -> None:
    broker.container.stop(timeout=15)
    said = broker.container.logs(tail=20).decode()
    assert "Terminating process due to signal SIGTERM" in said
    assert "Shutdown complete" in said
    stopped_s = time.time()
    broker.container.start()
    broker.await_health("healthy")
    said = broker.container.logs(since=stopped_s).decode()
    assert re.search(
        r"Skipping recovery of \d+ logs from /data/log since clean shutdown file was found", said
    )


def test_a_log_without_its_name_is_left_alone(broker: Broker) -> None:
    broker.container.exec_run(["mv", "/data/log/meta.properties", "/data/kept"])
    broker.container.stop(timeout=15)
    broker.container.start()
    assert broker.container.wait(timeout=20)["StatusCode"] == 65
    assert "nothing was changed" in broker.container.logs(tail=2).decode()
