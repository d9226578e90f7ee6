"""Topic client of ingestion: topic identity, partition bounds, and polls that report the position reached.

The consumer never joins a group: it assigns itself all partitions and seeks to the offsets in the table.
Group offsets are committed after the table, for lag monitoring only.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import structlog

with warnings.catch_warnings():
    # kafka-python uses importlib.resources.read_text, deprecated in Python 3.11 but not in 3.13.
    warnings.filterwarnings("ignore", "(read_text|open_text) is deprecated", DeprecationWarning)
    # mypy mistakes the folder services/kafka for the library.
    from kafka import KafkaAdminClient, KafkaConsumer  # type: ignore[attr-defined]
    from kafka import errors as vendor
    from kafka.structs import OffsetAndMetadata, TopicPartition

from tarn.adapters.kafka_login import Login, require_login
from tarn.core.batch import RawRecords
from tarn.core.errors import (
    DataError,
    ForbiddenError,
    OffsetGapError,
    TarnError,
    UnauthenticatedError,
    UnavailableError,
)
from tarn.core.offsets import TopicIdentity
from tarn.core.source import NoSuchTopicError, OffsetBounds, TopicReader

log = structlog.get_logger()

REQUEST_TIMEOUT_MS = 10_000
CALL_TIMEOUT_MS = 10_000
# With the library's default of 30 s, reconnecting to a broker that has just started may take seconds.
RECONNECT_MS_MAX = 500
FETCH_WAIT_MS_MAX = 250
FETCH_BYTES_MAX = 16 * 1024 * 1024
PARTITION_FETCH_BYTES_MAX = 4 * 1024 * 1024
METADATA_AGE_MS_MAX = 60_000
CODECS = ("gzip", "snappy", "lz4", "zstd")


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
        return KafkaSource(self._bootstrap, topic, stream=stream, login=self._login())

    def create(self, topic: str, *, partitions: int) -> None:
        """See `TopicClient.create`."""
        with _told(f"create topic {topic}", self._bootstrap):
            admin = _admin(self._bootstrap, self._login())
            try:
                admin.create_topics({topic: {"num_partitions": partitions}}, wait_for_metadata=True)
            except vendor.TopicAlreadyExistsError:
                return
            finally:
                admin.close()
            log.info("topic created", topic=topic, partitions=partitions)


class KafkaSource:
    """A `TopicReader` over kafka-python."""

    def __init__(self, bootstrap: str, topic: str, *, stream: str, login: Login) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._positions: dict[int, int] = {}
        with _told(f"connect for topic {topic}", bootstrap):
            self._admin = _admin(bootstrap, login)
            try:
                self._consumer = KafkaConsumer(
                    **login.options(),
                    bootstrap_servers=bootstrap.split(","),
                    client_id=f"tarn-ingest-{stream}",
                    group_id=f"tarn-{stream}",
                    enable_auto_commit=False,
                    auto_offset_reset="none",
                    isolation_level="read_committed",
                    check_crcs=True,
                    allow_auto_create_topics=False,
                    fetch_max_wait_ms=FETCH_WAIT_MS_MAX,
                    fetch_max_bytes=FETCH_BYTES_MAX,
                    max_partition_fetch_bytes=PARTITION_FETCH_BYTES_MAX,
                    request_timeout_ms=REQUEST_TIMEOUT_MS,
                    reconnect_backoff_max_ms=RECONNECT_MS_MAX,
                    metadata_max_age_ms=METADATA_AGE_MS_MAX,
                    metrics_enabled=False,
                )
            except BaseException:
                self._admin.close()
                raise

    def identity(self) -> TopicIdentity:
        """See `TopicReader.identity`."""
        found = self._describe()
        with _told(f"ask who topic {self._topic} is", self._bootstrap):
            cluster = self._admin.describe_cluster()["cluster_id"]
        return TopicIdentity(cluster=str(cluster), topic=self._topic, topic_id=str(found["topic_id"]))

    def bounds(self) -> dict[int, OffsetBounds]:
        """See `TopicReader.bounds`."""
        found = self._describe()
        partitions = [TopicPartition(self._topic, p["partition_index"]) for p in found["partitions"]]
        with _told(f"ask how far topic {self._topic} reaches", self._bootstrap):
            starts = self._consumer.beginning_offsets(partitions, timeout_ms=CALL_TIMEOUT_MS)
            ends = self._consumer.end_offsets(partitions, timeout_ms=CALL_TIMEOUT_MS)
        return {tp.partition: OffsetBounds(int(starts[tp]), int(ends[tp])) for tp in sorted(partitions)}

    def seek(self, positions: Mapping[int, int]) -> None:
        """See `TopicReader.seek`."""
        wanted = {TopicPartition(self._topic, p): offset for p, offset in positions.items()}
        with _told(f"seek in topic {self._topic}", self._bootstrap):
            self._consumer.assign(list(wanted))
            for tp, offset in wanted.items():
                self._consumer.seek(tp, offset)
        self._positions = dict(positions)

    def poll(self, *, records_max: int, timeout_s: float) -> list[RawRecords]:
        """See `TopicReader.poll`."""
        with _told(f"read topic {self._topic}", self._bootstrap):
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
            except vendor.UnsupportedCodecError as e:
                raise DataError(
                    f"topic {self._topic} holds records at or after {self._positions} in a compression that "
                    f"cannot be read here: {e}; readable are {', '.join(CODECS)}. Let producers and topic "
                    "use one of these, or write to another topic",
                    topic=self._topic,
                ) from e
            except vendor.CorruptRecordError as e:
                raise DataError(
                    f"topic {self._topic} cannot be read at {self._positions}: {e}; restore the segment",
                    topic=self._topic,
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
            log.info("group offsets not written; only lag tools use them", topic=self._topic, reason=repr(e))

    def close(self) -> None:
        """See `TopicReader.close`."""
        for client in (self._consumer, self._admin):
            try:
                client.close()
            except (vendor.KafkaError, OSError) as e:
                log.info("a Kafka client did not close cleanly", topic=self._topic, reason=repr(e))

    def _describe(self) -> Any:
        with _told(f"ask for topic {self._topic}", self._bootstrap):
            found = self._admin.describe_topics([self._topic])[0]
            error = vendor.for_code(found.get("error_code", 0))
            if error is vendor.UnknownTopicOrPartitionError:
                raise NoSuchTopicError(
                    f"topic {self._topic} does not exist; make it, or say create: true in the spec",
                    topic=self._topic,
                )
            if error is not vendor.NoError:
                raise error()
            return found


class _told:  # noqa: N801 - reads as a word in a with statement
    """Context manager that translates kafka-python's errors to those of `tarn.core.errors`."""

    def __init__(self, what: str, bootstrap: str) -> None:
        self._what = what
        self._bootstrap = bootstrap

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, UnauthenticatedError):
            # The broker, or the secret file, may be corrected at any time: a service waits for that.
            raise UnavailableError(f"could not {self._what}: {error.message}", **error.fields) from error
        if error is None or isinstance(error, TarnError):
            return
        if isinstance(error, vendor.AuthorizationError):
            raise ForbiddenError(
                f"may not {self._what} at {self._bootstrap}: {error!r}; the rights of this user are in "
                "docs/reference.md"
            ) from error
        if isinstance(error, vendor.UnknownTopicOrPartitionError):
            raise NoSuchTopicError(f"could not {self._what}: the topic does not exist") from error
        if isinstance(error, vendor.KafkaError | OSError):
            raise UnavailableError(
                f"could not {self._what}: no usable answer from Kafka at {self._bootstrap}: {error!r:.200}; "
                "wait",
                bootstrap=self._bootstrap,
            ) from error


def _admin(bootstrap: str, login: Login) -> Any:
    require_login(bootstrap, login.options())
    return KafkaAdminClient(
        **login.options(),
        bootstrap_servers=bootstrap.split(","),
        client_id="tarn-ingest",
        request_timeout_ms=REQUEST_TIMEOUT_MS,
        reconnect_backoff_max_ms=RECONNECT_MS_MAX,
    )


LOOK_TIMEOUT_MS = 4_000


def cluster_id(bootstrap: str, login: Login, *, timeout_ms: int = LOOK_TIMEOUT_MS) -> str:
    """The cluster id, asked for over a new connection so that a revoked password is noticed.

    Args:
        bootstrap: host:port of a broker, several separated by commas.
        login: Kafka credentials.
        timeout_ms: limit of the request.

    Raises:
        UnavailableError: no response in time, or the broker rejects the login.
    """
    with _told("ask the cluster who it is", bootstrap):
        require_login(bootstrap, login.options(), timeout_s=timeout_ms / 1_000)
        admin = KafkaAdminClient(
            **login.options(),
            bootstrap_servers=bootstrap.split(","),
            client_id="tarn-ingest-watch",
            request_timeout_ms=timeout_ms,
            reconnect_backoff_max_ms=RECONNECT_MS_MAX,
            bootstrap_timeout_ms=timeout_ms,
        )
        try:
            return str(admin.describe_cluster()["cluster_id"])
        finally:
            admin.close()
