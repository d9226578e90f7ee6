"""Plays a stream into Kafka: idempotent, every message acknowledged by the broker's log, memory bounded."""

from __future__ import annotations

import time
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from kafka.admin import KafkaAdminClient, NewTopic
from kafka.consumer import KafkaConsumer
from kafka.errors import KafkaError, TopicAlreadyExistsError
from kafka.producer import KafkaProducer
from kafka.structs import TopicPartition

from tarn.core.errors import DataError, UnavailableError
from tarn.flights.events import PARTITIONS, TOPIC, Message, Stream
from tarn.flights.pace import Pace

CHUNK_MESSAGES = 5_000
CHUNKS_IN_FLIGHT_MAX = 8
DELIVERY_MS_MAX = 600_000
TICK_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """How to reach Kafka.

    Attributes:
        bootstrap: host:port.
        security: further settings of kafka-python (security_protocol, sasl_mechanism and so on).
    """

    bootstrap: str
    security: Mapping[str, Any]

    def options(self) -> dict[str, Any]:
        """What every client of this broker is opened with."""
        return {"bootstrap_servers": self.bootstrap, **self.security}


def ensure_topic(broker: Broker, topic: str = TOPIC, partitions: int = PARTITIONS) -> int:
    """Makes the topic if there is none; gives how many partitions it has.

    Raises:
        UnavailableError: Kafka does not answer.
    """
    try:
        admin = KafkaAdminClient(**broker.options())
        try:
            if topic not in admin.list_topics():
                with suppress(TopicAlreadyExistsError):  # somebody else was first, which is as good
                    admin.create_topics([NewTopic(topic, num_partitions=partitions, replication_factor=1)])
        finally:
            admin.close()
        ends = end_offsets(broker, topic)
    except KafkaError as e:
        raise UnavailableError(
            f"Kafka at {broker.bootstrap} does not answer ({e}); start the stack or look at its logs",
            bootstrap=broker.bootstrap,
        ) from e
    return len(ends)


def end_offsets(broker: Broker, topic: str = TOPIC) -> dict[int, int]:
    """Per partition the offset that the next message will get; empty if there is no such topic."""
    consumer = KafkaConsumer(**broker.options(), enable_auto_commit=False)
    try:
        deadline = time.monotonic() + 30
        while not (found := consumer.partitions_for_topic(topic)):
            if time.monotonic() > deadline:
                return {}
            time.sleep(0.2)  # a topic just made takes a moment to be known
        partitions = [TopicPartition(topic, p) for p in found]
        return {tp.partition: int(end) for tp, end in sorted(consumer.end_offsets(partitions).items())}
    finally:
        consumer.close()


def partition_of(key: bytes, partitions: int) -> int:
    """CRC-32 of the key, as librdkafka's default partitioner does it: in C, unlike kafka-python's murmur2."""
    return zlib.crc32(key) % partitions


class Player:
    """Sends messages of a stream in order.

    Args:
        broker: where to.
        partitions: how many partitions the topic has.
        topic: what it is called.
    """

    def __init__(self, broker: Broker, *, partitions: int, topic: str = TOPIC) -> None:
        self._topic = topic
        self._partitions = partitions
        self._in_flight: deque[list[Any]] = deque()
        self._producer = KafkaProducer(
            **broker.options(),
            acks="all",
            enable_idempotence=True,
            linger_ms=20,
            batch_size=256 * 1024,
            max_request_size=4 * 1024 * 1024,
            delivery_timeout_ms=DELIVERY_MS_MAX,
        )

    def __enter__(self) -> Player:
        return self

    def __exit__(self, *_: object) -> None:
        self._producer.close(timeout=10)

    def play(
        self,
        stream: Stream,
        pace: Pace,
        *,
        start: int = 0,
        end: int | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        on_progress: Callable[[int], None] = lambda sent: None,
    ) -> int:
        """Sends the messages from `start` to `end` at a pace; returns one past the last, all acknowledged.

        Raises:
            DataError: a message was not taken, so that what was sent has a hole.
        """
        last = len(stream) if end is None else min(end, len(stream))
        begun, at = monotonic(), start
        while at < last:
            target = min(last, pace.target(stream, start, monotonic() - begun))
            if target <= at:
                sleep(TICK_S)
                continue
            target = min(target, at + CHUNK_MESSAGES)
            self._in_flight.append(
                [self._send(m) for m in stream.messages(at, target, now=datetime.now(UTC))]
            )
            while len(self._in_flight) > CHUNKS_IN_FLIGHT_MAX:
                self._settle()
            at = target
            on_progress(at)
        while self._in_flight:
            self._settle()
        return at

    def _send(self, message: Message) -> Any:
        return self._producer.send(
            self._topic,
            key=message.key,
            value=message.value,
            partition=partition_of(message.key, self._partitions),
        )

    def _settle(self) -> None:
        """Waits until the oldest chunk is acknowledged."""
        for sent in self._in_flight.popleft():
            if sent.succeeded():
                continue
            try:
                sent.get(timeout=DELIVERY_MS_MAX / 1000 + 30)
            except KafkaError as e:
                raise DataError(
                    f"Kafka did not take a message of {self._topic} ({e}); see its logs, then load again: "
                    "events that are there already are recognised by their ids",
                    topic=self._topic,
                ) from e
