"""Plays a stream into Kafka: idempotent, every message acknowledged by the broker's log, memory bounded."""

from __future__ import annotations

import time
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tarn.adapters.kafka_client import KafkaConnection, TopicPartition, create_topic, describe_topic, vendor
from tarn.adapters.kafka_login import ANONYMOUS, Login
from tarn.adapters.kafka_producer import LibrdkafkaProducer
from tarn.core.errors import DataError, UnavailableError
from tarn_demo.flights.events import PARTITIONS, TOPIC, Stream
from tarn_demo.flights.pace import Pace
from tarn_demo.flights.resume import HEADER, ReplayMarker, ReplayPass

CHUNK_MESSAGES = 5_000
CHUNKS_IN_FLIGHT_MAX = 8
DELIVERY_MS_MAX = 600_000
TICK_S = 0.05
TOPIC_S_MAX = 30.0
TOPIC_POLL_S = 0.2
TAIL_MESSAGES = 100
TAIL_GROWTH = 10
TAIL_RECORDS = 1_000
TAIL_MS_MAX = 15_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """The topic of the events.

    Attributes:
        bootstrap: host:port of a broker, several joined by commas.
        login: Kafka credentials.
        name: of the topic.
    """

    bootstrap: str
    login: Login = ANONYMOUS
    name: str = TOPIC

    @property
    def _connection(self) -> KafkaConnection:
        return KafkaConnection(bootstrap=self.bootstrap, login=self.login, client_id="tarn-demo")

    def ensure(self, partitions: int = PARTITIONS) -> int:
        """Create the topic if it is missing; returns how many partitions it has.

        Raises:
            UnavailableError: Kafka does not answer.
            ForbiddenError: the user lacks a right on the topic.
        """
        with self._errors("create", operation="CREATE"):
            admin = self._connection.admin()
            try:
                if self.name not in admin.list_topics():
                    create_topic(admin, self.name, partitions, wait=False)
            finally:
                admin.close()
        return len(self.end_offsets())

    def end_offsets(self) -> dict[int, int]:
        """Per partition the offset that the next message will get.

        Raises:
            UnavailableError: Kafka does not answer, or there is no such topic.
            ForbiddenError: the user lacks a right on the topic.
        """
        return self._offsets("end")

    def first_offsets(self) -> dict[int, int]:
        """Per partition the offset of its first message, or of the next one if it has none.

        Raises:
            UnavailableError: Kafka does not answer, or there is no such topic.
            ForbiddenError: the user lacks a right on the topic.
        """
        return self._offsets("beginning")

    def _offsets(self, which: str) -> dict[int, int]:
        with self._errors(f"ask for the {which} of", operation="DESCRIBE"):
            consumer = self._connection.consumer(enable_auto_commit=False)
            try:
                ask = consumer.end_offsets if which == "end" else consumer.beginning_offsets
                found = ask([TopicPartition(self.name, p) for p in self._partitions()])
                return {at.partition: int(offset) for at, offset in sorted(found.items())}
            finally:
                consumer.close()

    def _partitions(self) -> list[int]:
        """The topic's partitions; waits for a topic that was just created.

        The consumer alone cannot say whether a topic does not exist or may not be seen.
        """
        admin = self._connection.admin()
        try:
            deadline = time.monotonic() + TOPIC_S_MAX
            while True:
                try:
                    found = describe_topic(admin, self.name)
                    return [int(partition["partition_index"]) for partition in found["partitions"]]
                except (vendor.UnknownTopicOrPartitionError, vendor.LeaderNotAvailableError) as e:
                    if time.monotonic() > deadline:
                        raise UnavailableError(
                            f"topic {self.name} does not exist on {self.bootstrap}; ingest makes it from its "
                            "spec: see docker compose logs ingest",
                            topic=self.name,
                        ) from e
                    time.sleep(TOPIC_POLL_S)
        finally:
            admin.close()

    def tails(self) -> dict[int, ReplayMarker | None]:
        """Per partition the marker of the newest message that has one.

        Raises:
            UnavailableError: Kafka does not answer.
            ForbiddenError: the user lacks a right on the topic.
        """
        ends = self.end_offsets()
        with self._errors("read", operation="READ"):
            consumer = self._connection.consumer(enable_auto_commit=False)
            try:
                return {p: self._tail(consumer, TopicPartition(self.name, p), e) for p, e in ends.items()}
            finally:
                consumer.close()

    def _tail(self, consumer: Any, at: TopicPartition, end: int) -> ReplayMarker | None:
        """The newest marker of a partition: others may have written behind it, so more and more is read."""
        consumer.assign([at])
        first = int(consumer.beginning_offsets([at])[at])
        before, messages = end, TAIL_MESSAGES
        found: ReplayMarker | None = None
        while found is None and before > first:
            since = max(first, before - messages)
            found = self._newest(consumer, at, since, before)
            before, messages = since, messages * TAIL_GROWTH
        return found

    def _newest(self, consumer: Any, at: TopicPartition, since: int, before: int) -> ReplayMarker | None:
        """The newest marker of the messages of a partition between two offsets; later ones may count."""
        consumer.seek(at, since)
        found: ReplayMarker | None = None
        while consumer.position(at) < before:
            polled = consumer.poll(timeout_ms=TAIL_MS_MAX, max_records=TAIL_RECORDS)
            if not polled:
                raise UnavailableError(
                    f"could not read the end of {self.name}, partition {at.partition}, within {TAIL_MS_MAX} "
                    "ms; see docker compose logs kafka",
                    topic=self.name,
                )
            for record in polled[at]:
                found = _marker(record.headers) or found
        return found

    def play(
        self,
        stream: Stream,
        pace: Pace,
        play: ReplayPass,
        *,
        end: int | None = None,
        on_progress: Callable[[int], None] = lambda at: None,
    ) -> int:
        """Send what the topic lacks of a replay pass, at a pace; returns how many messages, all acknowledged.

        Args:
            stream: what is played.
            pace: how fast.
            play: the pass: from which message on, per partition.
            end: one past the last message to play; the whole stream if not said.
            on_progress: called with one past the last message handed over.

        Raises:
            UnavailableError: Kafka does not answer; messages may have been sent, and the next pass goes on
                after the last that Kafka holds.
            ForbiddenError: the user lacks a right on the topic.
            DataError: Kafka refused a message, so the topic lacks one.
        """
        with self._errors("write to", operation="WRITE"):
            producer = LibrdkafkaProducer(
                self._connection,
                delivery_ms_max=DELIVERY_MS_MAX,
                linger_ms=20,
                batch_bytes=256 * 1024,
                message_bytes_max=4 * 1024 * 1024,
            )
        try:
            player = Player(send=producer.send, topic=self.name, partitions=len(play.next))
            return player.play(stream, pace, play, end=end, on_progress=on_progress)
        except vendor.KafkaError as e:
            action = f"write to topic {self.name}"
            raise self._connection.error(e, action, operation="WRITE", topic=self.name) from e
        finally:
            producer.close(timeout=10)

    def _errors(self, what: str, *, operation: str) -> AbstractContextManager[None]:
        return self._connection.errors(f"{what} topic {self.name}", operation=operation, topic=self.name)


def partition_of(key: bytes, partitions: int) -> int:
    """CRC-32 of the key, as librdkafka's default partitioner does it: in C, unlike kafka-python's murmur2."""
    return zlib.crc32(key) % partitions


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
    """Sends messages of a stream in order, a bounded number of them unacknowledged.

    Args:
        send: hands one message over, as `LibrdkafkaProducer.send` does.
        topic: where to.
        partitions: how many it has.
    """

    def __init__(self, *, send: Callable[..., Any], topic: str, partitions: int) -> None:
        self._send_one = send
        self._topic = topic
        self._partitions = partitions
        self._in_flight: deque[list[Any]] = deque()

    def play(
        self,
        stream: Stream,
        pace: Pace,
        play: ReplayPass,
        *,
        end: int | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        on_progress: Callable[[int], None] = lambda sent: None,
    ) -> int:
        """Send what the topic lacks of a replay pass, at a pace; returns how many messages, all acknowledged.

        Args:
            stream: what is played.
            pace: how fast.
            play: the pass: from which message on, per partition.
            end: one past the last message to play; the whole stream if not said.
            monotonic: clock, seconds.
            sleep: waits, seconds.
            on_progress: called with one past the last message handed over.

        Raises:
            DataError: Kafka refused a message, so the topic lacks one.
            AuthorizationError: the user lacks a right on the topic; the library's own error.
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
                self._await_oldest_chunk()
            at, sent = target, sent + len(chunk)
            on_progress(at)
        while self._in_flight:
            self._await_oldest_chunk()
        return sent

    def _send(self, stream: Stream, play: ReplayPass, start: int, end: int) -> list[Any]:
        prefix = ReplayMarker(fingerprint=play.fingerprint, round=play.round, index=0).encode()[:-1]
        chunk = []
        for index, message in enumerate(stream.messages(start, end, now=datetime.now(UTC)), start=start):
            partition = partition_of(message.key, self._partitions)
            if index < play.next[partition]:
                continue
            chunk.append(
                self._send_one(
                    self._topic,
                    key=message.key,
                    value=message.value,
                    headers=[(HEADER, b"%b%d" % (prefix, index))],
                    partition=partition,
                )
            )
        return chunk

    def _await_oldest_chunk(self) -> None:
        """Waits until the oldest chunk is acknowledged."""
        for sent in self._in_flight.popleft():
            if sent.succeeded():
                continue
            try:
                sent.get(timeout=DELIVERY_MS_MAX / 1000 + 30)
            except vendor.AuthorizationError:
                raise  # the user lacks a right: sending again does not help
            except vendor.KafkaError as e:
                raise DataError(
                    f"Kafka did not take a message of {self._topic} ({e}); see its logs, then run "
                    "tarn demo load --again: events that are there already are recognised by their ids",
                    topic=self._topic,
                ) from e


def _marker(headers: Sequence[tuple[str, bytes]]) -> ReplayMarker | None:
    value = dict(headers).get(HEADER)
    return ReplayMarker.decode(value) if value is not None else None
