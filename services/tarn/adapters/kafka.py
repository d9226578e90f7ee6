"""Topic client of ingestion: topic identity, partition bounds, and polls that report the position reached.

The consumer never joins a group: it assigns itself all partitions and seeks to the offsets in the table.
Group offsets are committed after the table, for lag monitoring only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

import structlog

from tarn.adapters.kafka_client import (
    KafkaConnection,
    OffsetAndMetadata,
    TopicPartition,
    create_topic,
    describe_topic,
    vendor,
)
from tarn.adapters.kafka_login import Login
from tarn.core.batch import RawRecords
from tarn.core.errors import OffsetGapError, UnauthenticatedError, UnavailableError
from tarn.core.offsets import TopicIdentity
from tarn.core.source import OffsetBounds, TopicReader

log = structlog.get_logger()

REQUEST_TIMEOUT_MS = 10_000
CALL_TIMEOUT_MS = 10_000
LOOK_TIMEOUT_MS = 4_000
FETCH_WAIT_MS_MAX = 250
FETCH_BYTES_MAX = 16 * 1024 * 1024
PARTITION_FETCH_BYTES_MAX = 4 * 1024 * 1024
METADATA_AGE_MS_MAX = 60_000


class KafkaSources:
    """`TopicClient` of one Kafka cluster.

    Args:
        bootstrap: host:port of a broker, several separated by commas.
        login: credentials, read for every connection so that a rotated password is used.
    """

    def __init__(self, bootstrap: str, login: Callable[[], Login]) -> None:
        self._bootstrap = bootstrap
        self._login = login

    def open(self, topic: str, *, stream: str) -> TopicReader:
        """See `TopicClient.open`."""
        return KafkaSource(self._connection(), topic, stream=stream)

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

    def _connection(self) -> KafkaConnection:
        return KafkaConnection(
            bootstrap=self._bootstrap,
            login=self._login(),
            client_id="tarn-ingest",
            request_timeout_ms=REQUEST_TIMEOUT_MS,
        )


class KafkaSource:
    """A `TopicReader` over kafka-python."""

    def __init__(self, connection: KafkaConnection, topic: str, *, stream: str) -> None:
        self._connection = connection
        self._topic = topic
        self._positions: dict[int, int] = {}
        with self._errors("connect for"):
            self._admin = connection.admin()
            try:
                self._consumer = replace(connection, client_id=f"tarn-ingest-{stream}").consumer(
                    group_id=f"tarn-{stream}",
                    enable_auto_commit=False,
                    auto_offset_reset="none",
                    isolation_level="read_committed",
                    check_crcs=True,
                    allow_auto_create_topics=False,
                    fetch_max_wait_ms=FETCH_WAIT_MS_MAX,
                    fetch_max_bytes=FETCH_BYTES_MAX,
                    max_partition_fetch_bytes=PARTITION_FETCH_BYTES_MAX,
                    metadata_max_age_ms=METADATA_AGE_MS_MAX,
                )
            except BaseException:
                self._admin.close()
                raise

    def identity(self) -> TopicIdentity:
        """See `TopicReader.identity`."""
        with self._errors("ask for the identity of"):
            found = describe_topic(self._admin, self._topic)
            cluster = self._admin.describe_cluster()["cluster_id"]
        return TopicIdentity(cluster=str(cluster), topic=self._topic, topic_id=str(found["topic_id"]))

    def bounds(self) -> dict[int, OffsetBounds]:
        """See `TopicReader.bounds`."""
        with self._errors("ask for the bounds of"):
            found = describe_topic(self._admin, self._topic)
            partitions = [TopicPartition(self._topic, p["partition_index"]) for p in found["partitions"]]
            starts = self._consumer.beginning_offsets(partitions, timeout_ms=CALL_TIMEOUT_MS)
            ends = self._consumer.end_offsets(partitions, timeout_ms=CALL_TIMEOUT_MS)
        return {tp.partition: OffsetBounds(int(starts[tp]), int(ends[tp])) for tp in sorted(partitions)}

    def seek(self, positions: Mapping[int, int]) -> None:
        """See `TopicReader.seek`."""
        wanted = {TopicPartition(self._topic, p): offset for p, offset in positions.items()}
        with self._errors("seek in"):
            self._consumer.assign(list(wanted))
            for tp, offset in wanted.items():
                self._consumer.seek(tp, offset)
        self._positions = dict(positions)

    def poll(self, *, records_max: int, timeout_s: float) -> list[RawRecords]:
        """See `TopicReader.poll`."""
        with self._errors("read", operation="READ"):
            try:
                polled = self._consumer.poll(
                    timeout_ms=max(0, int(timeout_s * 1_000)), max_records=records_max
                )
            except (vendor.OffsetOutOfRangeError, vendor.NoOffsetForPartitionError) as e:
                raise OffsetGapError(
                    f"topic {self._topic} has no offset {self._positions} any more, or not yet: {e}; rows "
                    "between the table's offsets and the log are lost, or the topic was cut. Restore "
                    "the log; the next plan says what else can be done",
                    topic=self._topic,
                    positions=dict(self._positions),
                ) from e
            found = []
            for partition, start in sorted(self._positions.items()):
                tp = TopicPartition(self._topic, partition)
                records = polled.get(tp) or []
                end = self._consumer.position(tp, timeout_ms=CALL_TIMEOUT_MS)
                if end is None or end < start:
                    raise OffsetGapError(
                        f"the position in partition {partition} of {self._topic} went from {start} to {end}; "
                        "the log was cut",
                        topic=self._topic,
                        partition=partition,
                    )
                if end > start:
                    found.append(
                        RawRecords(
                            partition=partition,
                            offsets=[r.offset for r in records],
                            times_ms=[r.timestamp if r.timestamp is not None else -1 for r in records],
                            keys=[r.key for r in records],
                            values=[r.value for r in records],
                            start=start,
                            end=end,
                        )
                    )
                    self._positions[partition] = end
            return found

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
        for client in (self._consumer, self._admin):
            try:
                client.close()
            except (vendor.KafkaError, OSError) as e:
                log.info("a Kafka client did not close cleanly", topic=self._topic, reason=repr(e))

    def _errors(self, what: str, *, operation: str = "DESCRIBE") -> AbstractContextManager[None]:
        """Translate errors of an action on the topic, at or after the current positions."""
        at = f" at or after {self._positions}" if operation == "READ" else ""
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
