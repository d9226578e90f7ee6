"""The student's topics: rows as JSON messages, made, read and deleted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any

from tarn.adapters.kafka_client import KafkaConnection, TopicPartition, create_topic, describe_topic
from tarn.adapters.kafka_login import Login
from tarn.core.source import NoSuchTopicError

TIMEOUT_MS = 10_000
LINGER_MS = 5
POLL_MS = 200

Row = Mapping[str, Any]
Place = tuple[int, int]
"""Partition and offset."""


class Topics:
    """Topics of one cluster.

    Args:
        bootstrap: `host:port` of the broker.
        login: Kafka credentials.
    """

    def __init__(self, bootstrap: str, login: Login) -> None:
        self._connection = KafkaConnection(
            bootstrap=bootstrap,
            login=login,
            client_id="tarn-workshop",
            request_timeout_ms=TIMEOUT_MS,
            bootstrap_timeout_ms=TIMEOUT_MS,
        )

    def create(self, topic: str, *, partitions: int) -> bool:
        """Create a topic; False if it is there already.

        Raises:
            TarnError: see `KafkaConnection.error`.
        """
        with self._errors("create", topic, "CREATE"), closing(self._connection.admin()) as admin:
            return create_topic(admin, topic, partitions)

    def delete(self, topic: str) -> bool:
        """Delete a topic with its messages; False if it is not there.

        Raises:
            TarnError: see `KafkaConnection.error`.
        """
        try:
            with self._errors("delete", topic, "DELETE"), closing(self._connection.admin()) as admin:
                admin.delete_topics([topic])
        except NoSuchTopicError:
            return False
        return True

    def partitions(self, topic: str) -> list[int]:
        """The partitions of a topic, sorted.

        Raises:
            NoSuchTopicError: it does not exist.
            TarnError: see `KafkaConnection.error`.
        """
        with self._errors("describe", topic, "DESCRIBE"), closing(self._connection.admin()) as admin:
            found = describe_topic(admin, topic)
        return sorted(int(one["partition_index"]) for one in found["partitions"])

    def produce(self, topic: str, rows: Iterable[Row], *, key: Callable[[Row], str] | None) -> list[Place]:
        """Send rows as JSON messages, and wait until the broker has them all; return the place of each.

        Args:
            topic: name of the topic, which exists.
            rows: the rows; values that JSON lacks are sent as text.
            key: makes the key of a row's message; rows of one key stay in order, in one partition.

        Raises:
            TarnError: see `KafkaConnection.error`.
        """
        with self._errors("send to", topic, "WRITE"):
            producer = self._connection.producer(
                acks="all",
                enable_idempotence=True,
                allow_auto_create_topics=False,
                linger_ms=LINGER_MS,
                max_block_ms=TIMEOUT_MS,
                delivery_timeout_ms=TIMEOUT_MS + LINGER_MS,
            )
            try:
                sent = [
                    producer.send(
                        topic,
                        json.dumps(dict(row), default=str).encode(),
                        key=None if key is None else key(row).encode(),
                    )
                    for row in rows
                ]
                producer.flush()
                done = [future.get(timeout=TIMEOUT_MS / 1_000) for future in sent]
            finally:
                producer.close(timeout=2)
        return [(one.partition, one.offset) for one in done]

    def ends(self, topic: str) -> dict[int, int]:
        """Partition to the offset after its last message.

        Raises:
            TarnError: see `KafkaConnection.error`.
        """
        parts = [TopicPartition(topic, p) for p in self.partitions(topic)]
        with self._errors("read", topic, "READ"), closing(self._consumer()) as consumer:
            consumer.assign(parts)
            found = consumer.end_offsets(parts)
        return {part.partition: int(offset) for part, offset in sorted(found.items())}

    def read(self, topic: str) -> Iterator[tuple[Place, Any]]:
        """Yield what is in a topic now: the place of each message, and its value from JSON, else as text.

        Raises:
            TarnError: see `KafkaConnection.error`.
        """
        ends = self.ends(topic)
        with self._errors("read", topic, "READ"), closing(self._consumer()) as consumer:
            left = {TopicPartition(topic, p): end for p, end in ends.items() if end > 0}
            consumer.assign(list(left))
            for part in left:
                consumer.seek(part, 0)
            while left:
                for part, records in consumer.poll(timeout_ms=POLL_MS).items():
                    for record in records:
                        if record.offset < ends[part.partition]:
                            yield (part.partition, record.offset), _value(record.value)
                left = {part: end for part, end in left.items() if consumer.position(part) < end}

    def _consumer(self) -> Any:
        return self._connection.consumer(
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            allow_auto_create_topics=False,
        )

    def _errors(self, verb: str, topic: str, operation: str) -> Any:
        return self._connection.errors(f"{verb} topic {topic}", operation=operation, topic=topic)


def _value(data: bytes | None) -> Any:
    text = "" if data is None else data.decode(errors="replace")
    try:
        return json.loads(text)
    except ValueError:
        return text
