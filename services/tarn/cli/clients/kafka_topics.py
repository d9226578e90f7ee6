"""Topics and their messages, for the commands that list, create, delete, write and read them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from tarn.adapters.kafka_client import (
    TopicPartition,
    create_topic,
    describe_topic,
    topic_configs,
    vendor,
)
from tarn.adapters.kafka_login import Login
from tarn.cli.clients.kafka_connection import connection
from tarn.cli.clients.kafka_offsets import KafkaOffsets
from tarn.cli.ports import Bounds
from tarn.core.errors import AlreadyExistsError, InvalidError, UnavailableError

POLL_MS = 200
LINGER_MS = 5
MESSAGE_BYTES_MAX = 1_000_000
"""Size of a message with its key; the broker's own limit is a little higher."""
_INVALID = (
    vendor.InvalidConfigurationError,
    vendor.InvalidPartitionsError,
    vendor.InvalidTopicError,
    vendor.InvalidRequestError,
)
_REFUSED = (
    vendor.InvalidRecordError,
    vendor.InvalidTimestampError,
    vendor.MessageSizeTooLargeError,
    vendor.RecordListTooLargeError,
)
"""What a broker says of a message that it does not take, however often it is sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDetails:
    """One topic.

    Attributes:
        name: name of the topic.
        topic_id: id of the topic; a topic made again has another.
        bounds: partition to (first offset, offset after the last message).
        configs: settings that differ from the broker's, by name.
    """

    name: str
    topic_id: str
    bounds: Bounds
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message as it is in the log; `time_ms` is -1 if it has none."""

    partition: int
    offset: int
    time_ms: int
    key: bytes | None
    value: bytes | None


class KafkaTopics:
    """Topics of one cluster; every call opens connections of its own and closes them.

    Args:
        bootstrap: `host:port`, several separated by commas.
        login: Kafka credentials.
        timeout_s: limit of each request, in seconds.
    """

    def __init__(self, bootstrap: str, login: Login, *, timeout_s: float) -> None:
        self._open_bounds = partial(KafkaOffsets, bootstrap, login, timeout_s=timeout_s)
        self._connection = connection(bootstrap, login, timeout_s=timeout_s)
        self._timeout_ms = self._connection.request_timeout_ms

    def bounds(self) -> Mapping[str, Bounds]:
        """Bounds of every topic but the broker's internal ones.

        Raises:
            UnavailableError, ForbiddenError, UnauthenticatedError: see `KafkaConnection.error`.
        """
        with closing(self._open_bounds()) as opened:
            return opened.bounds()

    def _bounds_of(self, topic: str) -> Bounds:
        with closing(self._open_bounds()) as opened:
            return opened.bounds_of(topic)

    def details(self, topic: str) -> TopicDetails:
        """Everything about one topic.

        Raises:
            NoSuchTopicError: it does not exist.
            TarnError: as `bounds`.
        """
        with self._admin("describe", topic, "DESCRIBE") as admin:
            found = describe_topic(admin, topic)
            configs = topic_configs(admin, topic)
        return TopicDetails(
            name=topic,
            topic_id=str(found["topic_id"]),
            bounds=self._bounds_of(topic),
            configs=configs,
        )

    def create(self, topic: str, *, partitions: int, configs: Mapping[str, str]) -> None:
        """Create a topic and wait until the broker knows it.

        Raises:
            AlreadyExistsError: it exists.
            InvalidError: the broker refuses the name or a setting.
            TarnError: as `bounds`.
        """
        with self._admin("create", topic, "CREATE") as admin:
            try:
                created = create_topic(admin, topic, partitions, configs=configs)
            except _INVALID as e:
                raise InvalidError(f"Kafka does not create topic {topic}: {e}", topic=topic) from e
        if not created:
            raise AlreadyExistsError(f"topic {topic} exists already; nothing was changed", topic=topic)

    def delete(self, topic: str) -> None:
        """Delete a topic with its messages.

        Raises:
            NoSuchTopicError: it does not exist.
            TarnError: as `bounds`.
        """
        with self._admin("delete", topic, "DELETE") as admin:
            admin.delete_topics([topic])

    def produce(self, topic: str, messages: Iterable[tuple[bytes | None, bytes]]) -> Mapping[int, int]:
        """Send messages and wait until the broker has them all.

        Args:
            topic: name of the topic, which must exist.
            messages: (key, value) pairs; messages of one key stay in order.

        Returns:
            Partition to the number of messages that it got.

        Raises:
            InvalidError: a message is too large, or `messages` refuses one; those before it are sent. Or the
                broker refuses one.
            NoSuchTopicError: the topic does not exist.
            TarnError: as `bounds`; its text says how many messages were acknowledged.
        """
        self._require(topic)
        sent: Counter[int] = Counter()
        failed: list[Exception] = []
        refused: InvalidError | None = None
        with self._errors("send to", topic, "WRITE"):
            producer = self._connection.producer(
                acks="all",
                enable_idempotence=True,
                allow_auto_create_topics=False,
                linger_ms=LINGER_MS,
                max_block_ms=self._timeout_ms,
                delivery_timeout_ms=self._timeout_ms + LINGER_MS,
            )
            try:
                for key, value in _small_enough(messages, topic):
                    future = producer.send(topic, value, key=key)
                    future.add_callback(lambda meta: sent.update((meta.partition,)))
                    future.add_errback(failed.append)
                    if failed:
                        break
            except InvalidError as e:
                refused = e
            finally:
                producer.flush()
                producer.close(timeout=2)
        if failed:
            counted = f"{sent.total()} messages were acknowledged, and others may be in the topic too"
            if isinstance(failed[0], _REFUSED):
                raise InvalidError(
                    f"Kafka refuses a message for topic {topic} ({failed[0]}): a compacted topic takes "
                    "messages with a key only (--keys), and max.message.bytes of a topic is the most that it "
                    f"takes at once; scripts/tarn topic describe {topic} shows its settings; {counted}",
                    topic=topic,
                ) from failed[0]
            reason = self._connection.error(
                failed[0], f"send to topic {topic}", operation="WRITE", topic=topic
            )
            raise type(reason)(f"{reason.message}; {counted}", **reason.fields)
        if refused is not None:
            raise refused
        return dict(sorted(sent.items()))

    def consume(self, topic: str, positions: Mapping[int, int], *, follow: bool) -> Iterator[Message]:
        """Yield the committed messages from these offsets on.

        Args:
            topic: name of the topic.
            positions: partition to first offset; other partitions are not read.
            follow: whether to wait for more, without end; else up to what is there now.

        Raises:
            NoSuchTopicError: the topic does not exist.
            TarnError: as `bounds`.
        """
        self._require(topic)
        with self._errors("read", topic, "READ"):
            consumer = self._connection.consumer(
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                isolation_level="read_committed",
                allow_auto_create_topics=False,
            )
            try:
                yield from self._read(consumer, topic, positions, follow=follow)
            finally:
                consumer.close()

    def _read(
        self, consumer: Any, topic: str, positions: Mapping[int, int], *, follow: bool
    ) -> Iterator[Message]:
        parts = {TopicPartition(topic, p): offset for p, offset in positions.items()}
        consumer.assign(list(parts))
        for part, offset in parts.items():
            consumer.seek(part, offset)
        ends = consumer.end_offsets(list(parts), timeout_ms=self._timeout_ms)
        left = {part for part, offset in parts.items() if offset < ends[part]}
        moved_s = time.monotonic()
        while follow or left:
            polled = consumer.poll(timeout_ms=POLL_MS)
            for part, records in polled.items():
                for record in records:
                    if follow or record.offset < ends[part]:
                        time_ms = -1 if record.timestamp is None else record.timestamp
                        yield Message(
                            partition=part.partition,
                            offset=record.offset,
                            time_ms=time_ms,
                            key=record.key,
                            value=record.value,
                        )
            before, left = left, {part for part in left if consumer.position(part) < ends[part]}
            if polled or left != before:
                moved_s = time.monotonic()
            elif not follow and time.monotonic() - moved_s > self._timeout_ms / 1_000:
                silent_s = self._timeout_ms / 1_000
                raise UnavailableError(
                    f"could not read topic {topic} to its end: nothing came for {silent_s:g} s. Kafka "
                    "does not answer, or a transaction is open; see docker compose logs kafka",
                    topic=topic,
                )

    def _require(self, topic: str) -> None:
        """Require that a topic exists, as the clients would only wait for it."""
        with self._admin("describe", topic, "DESCRIBE") as admin:
            describe_topic(admin, topic)

    @contextmanager
    def _admin(self, verb: str, topic: str, operation: str) -> Iterator[Any]:
        """An admin client, closed afterwards; its errors are translated."""
        with self._errors(verb, topic, operation), closing(self._connection.admin()) as admin:
            yield admin

    def _errors(self, verb: str, topic: str, operation: str) -> AbstractContextManager[None]:
        return self._connection.errors(f"{verb} topic {topic}", operation=operation, topic=topic)


def _small_enough(
    messages: Iterable[tuple[bytes | None, bytes]], topic: str
) -> Iterator[tuple[bytes | None, bytes]]:
    """The messages, up to the first one that is too large.

    Raises:
        InvalidError: it is too large.
    """
    for number, (key, value) in enumerate(messages, start=1):
        size = len(value) + len(key or b"")
        if size > MESSAGE_BYTES_MAX:
            raise InvalidError(
                f"message {number} has {size} bytes, at most {MESSAGE_BYTES_MAX} can be sent; "
                f"the {number - 1} before it are in topic {topic}",
                topic=topic,
            )
        yield key, value
