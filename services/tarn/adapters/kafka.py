"""Topic client of ingestion: topic identity, partition bounds, and polls that report the position reached.

The consumer never joins a group: it assigns itself all partitions and seeks to the offsets in the table.
Group offsets are committed after the table, for lag monitoring only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Literal

import structlog

from tarn.adapters.kafka_client import (
    OUT_OF_LOG,
    KafkaConnection,
    OffsetAndMetadata,
    OffsetSpec,
    TopicPartition,
    create_topic,
    describe_topic,
    epoch_ends,
    identity_of,
    vendor,
)
from tarn.adapters.kafka_librdkafka import LibrdkafkaConsumer
from tarn.adapters.kafka_login import Login
from tarn.adapters.kafka_records import CALL_TIMEOUT_MS, PythonConsumer, RecordConsumer
from tarn.core.batch import RawRecords
from tarn.core.errors import OffsetGapError, UnauthenticatedError, UnavailableError
from tarn.core.offsets import TopicIdentity
from tarn.core.source import OffsetBounds, TopicReader

log = structlog.get_logger()

Client = Literal["librdkafka", "kafka-python"]
REQUEST_TIMEOUT_MS = 10_000
LOOK_TIMEOUT_MS = 4_000
SEND_TIMEOUT_MS = 5_000
INTERNAL = "__"
"""Name prefix of the broker's internal topics, which no user may read."""


class KafkaSources:
    """`TopicClient` of one Kafka cluster.

    Args:
        bootstrap: host:port of a broker, several separated by commas.
        login: credentials, read for every connection so that a rotated password is used.
        client: the library that reads records.
    """

    def __init__(self, bootstrap: str, login: Callable[[], Login], *, client: Client = "librdkafka") -> None:
        self._bootstrap = bootstrap
        self._login = login
        self._client: Client = client

    def open(self, topic: str, *, stream: str) -> TopicReader:
        """See `TopicClient.open`."""
        return KafkaSource(self._connection(), topic, stream=stream, client=self._client)

    def list_topics(self) -> list[str]:
        """See `TopicClient.list_topics`."""
        connection = self._connection()
        with _errors(connection, "list the topics", operation="DESCRIBE"):
            admin = connection.admin()
            try:
                return sorted(name for name in admin.list_topics() if not name.startswith(INTERNAL))
            finally:
                admin.close()

    def create(self, topic: str, *, partitions: int) -> None:
        """See `TopicClient.create`."""
        connection = self._connection()
        with _errors(connection, f"create topic {topic}", operation="CREATE", topic=topic):
            admin = connection.admin()
            try:
                created = create_topic(admin, topic, partitions)
            finally:
                admin.close()
        if created:
            log.info("topic created", topic=topic, partitions=partitions)

    def send(self, topic: str, events: Sequence[tuple[bytes, bytes]]) -> None:
        """See `TopicClient.send`; a connection of its own, as events are rare."""
        connection = replace(self._connection(), request_timeout_ms=SEND_TIMEOUT_MS)
        with _errors(connection, f"send to topic {topic}", operation="WRITE", topic=topic):
            producer = connection.producer(
                acks="all",
                enable_idempotence=True,
                allow_auto_create_topics=False,
                max_block_ms=SEND_TIMEOUT_MS,
                delivery_timeout_ms=SEND_TIMEOUT_MS,
                linger_ms=0,
            )
            try:
                waiting = [producer.send(topic, value, key=key) for key, value in events]
                for one in waiting:
                    one.get(timeout=SEND_TIMEOUT_MS / 1_000)
            finally:
                producer.close(timeout=2)

    def _connection(self) -> KafkaConnection:
        return KafkaConnection(
            bootstrap=self._bootstrap,
            login=self._login(),
            client_id="tarn-ingest",
            request_timeout_ms=REQUEST_TIMEOUT_MS,
        )


class KafkaSource:
    """A `TopicReader` of one Kafka topic.

    Identity, bounds and group offsets are asked for with kafka-python; `client` reads the records.
    """

    def __init__(self, connection: KafkaConnection, topic: str, *, stream: str, client: Client) -> None:
        self._connection = connection
        self._topic = topic
        named = replace(connection, client_id=f"tarn-ingest-{stream}")
        group = f"tarn-{stream}"
        self._closing = ExitStack()
        with self._errors("connect for"), ExitStack() as opened:
            self._admin = connection.admin()
            opened.callback(self._quietly, self._admin.close)
            python = PythonConsumer(named, topic, group=group)
            opened.callback(self._quietly, python.close)
            self._consumer = python.consumer
            self._records: RecordConsumer = python
            if client == "librdkafka":
                self._records = LibrdkafkaConsumer(named, topic, group=group)
                opened.callback(self._quietly, self._records.close)
            self._closing = opened.pop_all()

    def identity(self) -> TopicIdentity:
        """See `TopicReader.identity`."""
        with self._errors("ask for the identity of"):
            return identity_of(self._admin, self._topic)

    def bounds(self) -> dict[int, OffsetBounds]:
        """See `TopicReader.bounds`."""
        with self._errors("ask for the bounds of"):
            found = describe_topic(self._admin, self._topic)
            partitions = [TopicPartition(self._topic, p["partition_index"]) for p in found["partitions"]]
            starts = self._offsets(partitions, OffsetSpec.EARLIEST)
            ends = self._offsets(partitions, OffsetSpec.LATEST)
        return {
            tp.partition: OffsetBounds(starts[tp].offset, ends[tp].offset, ends[tp].leader_epoch)
            for tp in sorted(partitions)
        }

    def _offsets(self, partitions: Sequence[TopicPartition], spec: OffsetSpec) -> Mapping[Any, Any]:
        """The admin client raises what the broker answers; a consumer asks again until it times out."""
        asked = dict.fromkeys(partitions, spec)
        found: Mapping[Any, Any] = self._admin.list_partition_offsets(
            asked, isolation_level="read_committed", timeout_ms=CALL_TIMEOUT_MS
        )
        return found

    def epoch_ends(self, epochs: Mapping[int, int]) -> dict[int, int | None]:
        """See `TopicReader.epoch_ends`."""
        with self._errors("ask for the leader epochs of"):
            return epoch_ends(self._admin, self._topic, epochs)

    def seek(self, positions: Mapping[int, int]) -> None:
        """See `TopicReader.seek`."""
        with self._errors("seek in"):
            self._records.assign(positions)

    def poll(self, *, records_max: int, timeout_s: float) -> list[RawRecords]:
        """See `TopicReader.poll`."""
        with self._errors("read", operation="READ"):
            try:
                return self._records.poll(records_max=records_max, timeout_s=timeout_s)
            except OUT_OF_LOG as e:
                positions = dict(self._records.positions)
                raise OffsetGapError(
                    f"topic {self._topic} has no offset {positions} any more, or not yet: {e}; rows "
                    "between the table's offsets and the log are lost, or the topic was cut. Restore "
                    "the log; the next plan says what else can be done",
                    topic=self._topic,
                    positions=positions,
                ) from e

    def commit_group_offsets(self, positions: Mapping[int, int]) -> None:
        """See `TopicReader.commit_group_offsets`."""
        offsets = {TopicPartition(self._topic, p): OffsetAndMetadata(o, "", -1) for p, o in positions.items()}
        try:
            self._consumer.commit(offsets, timeout_ms=CALL_TIMEOUT_MS)
        except vendor.KafkaError as e:
            reason = self._connection.error(e, "commit group offsets", operation="READ", topic=self._topic)
            log.info(
                "group offsets not written; only lag tools use them", topic=self._topic, reason=reason.message
            )

    def close(self) -> None:
        """See `TopicReader.close`."""
        self._closing.close()

    def _quietly(self, close: Callable[[], None]) -> None:
        try:
            close()
        except (vendor.KafkaError, OSError, RuntimeError) as e:  # librdkafka's are translated
            log.info("a Kafka client did not close cleanly", topic=self._topic, reason=repr(e))

    def _errors(self, what: str, *, operation: str = "DESCRIBE") -> AbstractContextManager[None]:
        """Translate errors of an action on the topic, at or after the current positions."""
        at = f" at or after {dict(self._records.positions)}" if operation == "READ" else ""
        action = f"{what} topic {self._topic}{at}"
        return _errors(self._connection, action, operation=operation, topic=self._topic)


@contextmanager
def _errors(connection: KafkaConnection, action: str, *, operation: str, topic: str = "") -> Iterator[None]:
    """As `KafkaConnection.errors`, for a service: it waits until a rejected login is corrected.

    Raises:
        UnavailableError: also if the login is rejected; the broker's password or the secret file may be
            corrected at any time.
        TarnError: another translated error.
    """
    try:
        with connection.errors(action, operation=operation, topic=topic):
            yield
    except UnauthenticatedError as e:
        raise UnavailableError(f"could not {action}: {e.message}", **e.fields) from e


def cluster_id(bootstrap: str, login: Login, *, timeout_ms: int = LOOK_TIMEOUT_MS) -> str:
    """The cluster id, asked for over a new connection so that a revoked password is noticed.

    Args:
        bootstrap: host:port of a broker, several separated by commas.
        login: Kafka credentials.
        timeout_ms: limit of the request.

    Raises:
        UnavailableError: no response in time, or the broker rejects the login.
        ForbiddenError: the user may not describe the cluster.
    """
    connection = KafkaConnection(
        bootstrap=bootstrap,
        login=login,
        client_id="tarn-ingest-watch",
        request_timeout_ms=timeout_ms,
        bootstrap_timeout_ms=timeout_ms,
    )
    with _errors(connection, "ask for the cluster id", operation="DESCRIBE"):
        admin = connection.admin()
        try:
            return str(admin.describe_cluster()["cluster_id"])
        finally:
            admin.close()
