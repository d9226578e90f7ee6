"""Plays a stream into Kafka: idempotent, every message acknowledged by the broker's log, memory bounded."""

from __future__ import annotations

import time
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
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
from tarn.flights.events import PARTITIONS, TOPIC, Stream
from tarn.flights.pace import Pace
from tarn.flights.resume import HEADER, Mark, Play

CHUNK_MESSAGES = 5_000
CHUNKS_IN_FLIGHT_MAX = 8
DELIVERY_MS_MAX = 600_000
TICK_S = 0.05
TAIL_MESSAGES = 100
TAIL_MS_MAX = 15_000


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


def tails(broker: Broker, topic: str = TOPIC) -> dict[int, Mark | None]:
    """Per partition the mark of the newest message that has one, among its last `TAIL_MESSAGES`."""
    consumer = KafkaConsumer(
        **broker.options(), enable_auto_commit=False, group_id=None, consumer_timeout_ms=TAIL_MS_MAX
    )
    try:
        found: dict[int, Mark | None] = {}
        for partition, end in end_offsets(broker, topic).items():
            at = TopicPartition(topic, partition)
            consumer.assign([at])
            first = int(consumer.beginning_offsets([at])[at])
            consumer.seek(at, max(first, end - TAIL_MESSAGES))
            found[partition] = None
            while consumer.position(at) < end:
                polled = consumer.poll(timeout_ms=TAIL_MS_MAX, max_records=TAIL_MESSAGES)
                if not polled:
                    raise UnavailableError(
                        f"could not read the end of {topic}, partition {partition}, within {TAIL_MS_MAX} ms; "
                        "see docker compose logs kafka",
                        topic=topic,
                    )
                for record in polled[at]:
                    found[partition] = _mark(record.headers) or found[partition]
        return found
    finally:
        consumer.close()


def _mark(headers: Sequence[tuple[str, bytes]]) -> Mark | None:
    value = dict(headers).get(HEADER)
    return Mark.decode(value) if value is not None else None


def ends_in(stream: Stream, partitions: int) -> tuple[int, ...]:
    """Per partition one past its last message of the stream; 0 if it gets none."""
    ends = [0] * partitions
    high = len(stream)
    while high > 0 and 0 in ends:
        low = max(0, high - CHUNK_MESSAGES)
        for index, message in enumerate(stream.messages(low, high, now=datetime.now(UTC)), start=low):
            partition = partition_of(message.key, partitions)
            if ends[partition] < index + 1:
                ends[partition] = index + 1
        high = low
    return tuple(ends)


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
        play: Play,
        *,
        end: int | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        on_progress: Callable[[int], None] = lambda sent: None,
    ) -> int:
        """Sends what the topic lacks of a play, at a pace; returns how many messages, all acknowledged.

        Args:
            stream: what is played.
            pace: how fast.
            play: from where on, per partition.
            end: one past the last message to play; the whole stream if not said.
            monotonic: clock, seconds.
            sleep: waits, seconds.
            on_progress: told one past the last message handed over.

        Raises:
            DataError: a message was not taken, so that what was sent has a hole.
        """
        last = len(stream) if end is None else min(end, len(stream))
        begun, at, sent = monotonic(), play.start, 0
        while at < last:
            target = min(last, pace.target(stream, play.start, monotonic() - begun))
            if target <= at:
                sleep(TICK_S)
                continue
            target = min(target, at + CHUNK_MESSAGES)
            chunk = self._send(stream, play, at, target)
            self._in_flight.append(chunk)
            while len(self._in_flight) > CHUNKS_IN_FLIGHT_MAX:
                self._settle()
            at, sent = target, sent + len(chunk)
            on_progress(at)
        while self._in_flight:
            self._settle()
        return sent

    def _send(self, stream: Stream, play: Play, start: int, end: int) -> list[Any]:
        prefix = Mark(fingerprint=play.fingerprint, round=play.round, index=0).encode()[:-1]
        chunk = []
        for index, message in enumerate(stream.messages(start, end, now=datetime.now(UTC)), start=start):
            partition = partition_of(message.key, self._partitions)
            if index < play.next[partition]:
                continue
            chunk.append(
                self._producer.send(
                    self._topic,
                    key=message.key,
                    value=message.value,
                    headers=[(HEADER, b"%b%d" % (prefix, index))],
                    partition=partition,
                )
            )
        return chunk

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
