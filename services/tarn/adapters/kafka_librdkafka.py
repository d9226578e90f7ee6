"""Reading records by librdkafka (package confluent-kafka), at a fraction of kafka-python's processor time.

Only records are read by it: identity and bounds of a topic, group offsets and new topics go through
`tarn.adapters.kafka_client`, whatever reads the records. Its errors become those of kafka-python, which that
module maps to Tarn's: codes of the Kafka protocol are the same numbers, codes of the library itself are in
`_OWN_CODES`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import structlog
from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from tarn.adapters.kafka_client import RECONNECT_MS_MAX, KafkaConnection, vendor
from tarn.adapters.kafka_records import FETCH_WAIT_MS_MAX, METADATA_AGE_MS_MAX, known_epoch
from tarn.core.batch import RawRecords

log = structlog.get_logger()

POLL_RECORDS_MAX = 10_000
CONSUME_RECORDS = 500
"""Messages that are objects at one time: fewer than begin a garbage collection, which would visit all."""
# A fetch is decompressed as a whole, and the limits count what is fetched: small ones bound the memory. A
# producer's batch that is larger comes alone.
FETCH_BYTES_MAX = 128 * 1024
PARTITION_FETCH_BYTES_MAX = 32 * 1024
# What waits is also the most that one poll adds to a batch, whatever the size of its records. A record takes
# some 400 bytes beside its value, which the first limit does not count.
QUEUED_KIB_MAX = 1024
QUEUED_RECORDS_MAX = 5_000
SILENT_S_MAX = 30.0
# How long it waits after its queue was full; its default of 1 s would leave a fast reader without records.
QUEUE_BACKOFF_MS = 10

# As functions, which `map` calls without a step of the interpreter per record. Partition and offset are
# always there; the stubs say that they may be None.
_partition: Callable[[Any], int] = Message.partition  # type: ignore[assignment]
_offset: Callable[[Any], int] = Message.offset  # type: ignore[assignment]
_timestamp: Callable[[Any], tuple[int, int]] = Message.timestamp
_key: Callable[[Any], bytes | None] = Message.key
_value: Callable[[Any], bytes | None] = Message.value
_error: Callable[[Any], KafkaError | None] = Message.error
_OWN_CODES: dict[int, type[Exception]] = {
    KafkaError._AUTHENTICATION: vendor.SaslAuthenticationFailedError,
    KafkaError._AUTO_OFFSET_RESET: vendor.OffsetOutOfRangeError,
    KafkaError._LOG_TRUNCATION: vendor.OffsetOutOfRangeError,
    KafkaError._BAD_COMPRESSION: vendor.CorruptRecordError,
    KafkaError._BAD_MSG: vendor.CorruptRecordError,
    KafkaError._NOT_IMPLEMENTED: vendor.UnsupportedCodecError,
    KafkaError._UNKNOWN_TOPIC: vendor.UnknownTopicOrPartitionError,
    KafkaError._UNKNOWN_PARTITION: vendor.UnknownTopicOrPartitionError,
}


@dataclass(slots=True)
class _Columns:
    """Records of one partition, in the order of their offsets; see `RawRecords`."""

    offsets: list[int] = field(default_factory=list)
    times_ms: list[int] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    epoch: int | None = None


class LibrdkafkaConsumer:
    """A `RecordConsumer` over librdkafka.

    Args:
        connection: where the cluster is, and who connects.
        topic: the topic.
        group: consumer group, which the broker's access control asks for; it is not joined.
    """

    def __init__(self, connection: KafkaConnection, topic: str, *, group: str) -> None:
        self._topic = topic
        self._failed: KafkaError | None = None
        self._last_error: KafkaError | None = None
        self._assigned_s: float | None = None
        self._positions: dict[int, int] = {}
        quiet = logging.getLogger("librdkafka")
        quiet.setLevel(logging.CRITICAL + 1)
        self._consumer = Consumer(
            {
                **login_options(connection),
                "bootstrap.servers": connection.bootstrap,
                "client.id": connection.client_id,
                "group.id": group,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "check.crcs": True,
                "allow.auto.create.topics": False,
                "fetch.wait.max.ms": FETCH_WAIT_MS_MAX,
                "fetch.max.bytes": FETCH_BYTES_MAX,
                # Of requests, which are small here; the library wants no more than a fetch may have.
                "message.max.bytes": FETCH_BYTES_MAX,
                "max.partition.fetch.bytes": PARTITION_FETCH_BYTES_MAX,
                "topic.metadata.refresh.interval.ms": METADATA_AGE_MS_MAX,
                "fetch.queue.backoff.ms": QUEUE_BACKOFF_MS,
                "queued.max.messages.kbytes": QUEUED_KIB_MAX,
                "queued.min.messages": QUEUED_RECORDS_MAX,  # it is an upper limit, whatever its name
                "socket.timeout.ms": connection.request_timeout_ms,
                "reconnect.backoff.max.ms": RECONNECT_MS_MAX,
                "error_cb": self._on_error,
            },
            logger=quiet,
        )

    @property
    def positions(self) -> Mapping[int, int]:
        """Next offset of each assigned partition."""
        return self._positions

    def assign(self, positions: Mapping[int, int]) -> None:
        """See `RecordConsumer.assign`."""
        self._positions = dict(positions)
        wanted = [TopicPartition(self._topic, p, offset) for p, offset in positions.items()]
        with translating():
            self._consumer.assign(wanted)
        self._assigned_s, self._last_error = time.monotonic(), None

    def poll(self, *, records_max: int, timeout_s: float) -> list[RawRecords]:
        """See `RecordConsumer.poll`."""
        # `consume` alone would wait for all its records until the timeout; the first one is waited for, the
        # others are those that have been fetched already.
        with translating():
            first = self._consumer.poll(timeout_s)
        if self._failed is not None:
            raise translated(self._failed)
        if first is None:
            self._require_sign_of_life()
            return []
        self._assigned_s = None
        left = min(records_max, POLL_RECORDS_MAX)
        found: dict[int, _Columns] = {}
        ends: dict[int, int] = {}
        asked, messages = 1, [first]
        while messages:
            _collect(messages, found, ends)
            left -= len(messages)
            if len(messages) < asked or left <= 0:
                break
            asked = min(left, CONSUME_RECORDS)
            messages.clear()  # before the next ones exist
            with translating():
                messages = self._consumer.consume(asked, 0)
        return self._moved(found, ends)

    def close(self) -> None:
        """See `RecordConsumer.close`."""
        with translating():
            self._consumer.close()

    def _moved(self, held: Mapping[int, _Columns], ends: Mapping[int, int]) -> list[RawRecords]:
        """The records of each partition that moved; its position is after the last one, or the end it saw."""
        found = []
        for partition, start in sorted(self._positions.items()):
            records = held.get(partition) or _Columns()
            end = max(records.offsets[-1] + 1 if records.offsets else start, ends.get(partition, start))
            if end <= start:
                continue
            found.append(
                RawRecords(
                    partition=partition,
                    offsets=records.offsets,
                    times_ms=records.times_ms,
                    keys=records.keys,
                    values=records.values,
                    start=start,
                    end=end,
                    epoch=records.epoch,
                )
            )
            self._positions[partition] = end
        return found

    def _on_error(self, error: KafkaError) -> None:
        """Called during a poll; the library tries again, and a broker that is away is noticed by others."""
        if error.fatal() or error.code() == KafkaError._AUTHENTICATION:
            self._failed = error
        if self._last_error is None or self._last_error.code() != error.code():
            log.info("librdkafka reports", topic=self._topic, error=error.str())
        self._last_error = error

    def _require_sign_of_life(self) -> None:
        """Raise what the library reported if nothing came since the assignment, not even a log's end."""
        if self._assigned_s is None or self._last_error is None:
            return
        if time.monotonic() - self._assigned_s > SILENT_S_MAX:
            raise translated(self._last_error)


def _collect(messages: Sequence[Any], found: dict[int, _Columns], ends: dict[int, int]) -> None:
    """Add messages to the columns of their partitions, and the ends of logs that they report to `ends`.

    Raises:
        KafkaError: kafka-python's, for another event.
    """
    for event in filter(_error, messages):
        if event.error().code() != KafkaError._PARTITION_EOF:
            raise translated(event.error())
        ends[event.partition()] = event.offset()
        messages = [message for message in messages if message.error() is None]
    for partition, same in groupby(messages, _partition):
        run = list(same)
        columns = found.setdefault(partition, _Columns())
        first, last = run[0].offset(), run[-1].offset()
        # Offsets of a partition ascend: if as many lie between the ends as there are, none is left out.
        columns.offsets += range(first, last + 1) if last - first == len(run) - 1 else map(_offset, run)
        columns.times_ms += [
            -1 if kind == TIMESTAMP_NOT_AVAILABLE else time_ms for kind, time_ms in map(_timestamp, run)
        ]
        columns.keys += map(_key, run)
        columns.values += map(_value, run)
        columns.epoch = known_epoch(run[-1].leader_epoch())


@contextmanager
def translating() -> Iterator[None]:
    """Translate the library's exceptions inside a with statement.

    Raises:
        KafkaError: of kafka-python.
    """
    try:
        yield
    except KafkaException as e:
        raise translated(e.args[0]) from e
    except SystemError as e:
        # The library has called a function of Python's with its own exception, of a fatal error, still set.
        if not isinstance(e.__cause__, KafkaException):
            raise
        raise translated(e.__cause__.args[0]) from e


def login_options(connection: KafkaConnection) -> dict[str, Any]:
    """Credentials as configuration of librdkafka."""
    login = connection.login
    if not login.protocol.startswith("SASL_"):
        return {"security.protocol": login.protocol}
    return {
        "security.protocol": login.protocol,
        "sasl.mechanism": login.mechanism,
        "sasl.username": login.user,
        "sasl.password": login.password,
    }


def translated(error: KafkaError) -> Exception:
    """The error of kafka-python for one of librdkafka."""
    code = error.code()
    kind: type[Exception] = (
        vendor.for_code(code) if code > 0 else _OWN_CODES.get(code, vendor.KafkaConnectionError)
    )
    return kind(error.str())
