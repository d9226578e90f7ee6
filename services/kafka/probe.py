"""Kafka's health: metadata with a leader, asked on the container's port; deep, a record sent and read back.

The shallow look is 40 bytes over a socket, spelled out here: importing a client costs 50 times more.
"""

from __future__ import annotations

import socket
import struct
import sys
import uuid

TOPIC = "_tarn_health"
INSIDE = ("127.0.0.1", 9092)
LOCAL = "127.0.0.1:9095"
METADATA = 3
METADATA_VERSION = 1
ANSWER_BYTES_MAX = 1_000_000
TIMEOUT_S = 4.0


def shallow() -> None:
    """The broker answers for its own topic, and that has a leader (before there is one: any answer).

    Raises:
        RuntimeError: no answer, or a partition without a leader.
    """
    name = TOPIC.encode()
    client = b"tarn-health"
    request = struct.pack(f">hhih{len(client)}s", METADATA, METADATA_VERSION, 1, len(client), client)
    request += struct.pack(f">ih{len(name)}s", 1, len(name), name)
    try:
        with socket.create_connection(INSIDE, timeout=TIMEOUT_S) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            (size,) = struct.unpack(">i", _receive(connection, 4))
            if not 0 < size <= ANSWER_BYTES_MAX:
                raise RuntimeError(f"metadata answer of {size} bytes on port {INSIDE[1]}: not a Kafka broker")
            answer = _receive(connection, size)
    except TimeoutError as error:
        raise RuntimeError(f"no metadata from port {INSIDE[1]} within {TIMEOUT_S:g} s") from error
    except OSError as error:
        raise RuntimeError(f"no metadata from port {INSIDE[1]}: {error.strerror}") from error
    for partition, leader in leaders(answer):
        if leader < 0:
            raise RuntimeError(f"partition {partition} of {TOPIC} has no leader")


def leaders(answer: bytes) -> list[tuple[int, int]]:
    """Partition and leader (-1: none) of each partition in a metadata answer of version 1."""
    reader = _Reader(answer)
    reader.take(">i")  # correlation id
    for _ in range(reader.take(">i")):
        reader.take(">i")  # broker id
        reader.text()  # host
        reader.take(">i")  # port
        reader.text()  # rack
    reader.take(">i")  # controller id
    found = []
    for _ in range(reader.take(">i")):
        reader.take(">h")  # error of the topic
        reader.text()
        reader.take(">b")  # internal
        for _ in range(reader.take(">i")):
            reader.take(">h")  # error of the partition
            partition, leader = reader.take(">i"), reader.take(">i")
            found.append((partition, leader))
            for _list in ("replicas", "in sync"):
                for _ in range(reader.take(">i")):
                    reader.take(">i")
    return found


class _Reader:
    """Walks through an answer."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def take(self, form: str) -> int:
        (value,) = struct.unpack_from(form, self._content, self._at)
        self._at += struct.calcsize(form)
        return int(value)

    def text(self) -> None:
        length = self.take(">h")
        self._at += max(length, 0)


def _receive(connection: socket.socket, size: int) -> bytes:
    """Exactly so many bytes.

    Raises:
        RuntimeError: the broker closed the connection first.
    """
    content = b""
    while len(content) < size:
        piece = connection.recv(size - len(content))
        if not piece:
            raise RuntimeError(f"the broker closed the connection after {len(content)} of {size} bytes")
        content += piece
    return content


def deep() -> None:
    """A record is acknowledged, and read back from where it was acknowledged.

    Raises:
        RuntimeError: something else came back.
    """
    sys.path.insert(0, "/opt/tarn/lib")
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.admin import KafkaAdminClient, NewTopic
    from kafka.errors import TopicAlreadyExistsError

    admin = KafkaAdminClient(bootstrap_servers=LOCAL)
    try:
        configs = {"retention.ms": "3600000", "segment.bytes": "1048576"}
        topic = NewTopic(TOPIC, num_partitions=1, replication_factor=1, topic_configs=configs)
        admin.create_topics([topic])
    except TopicAlreadyExistsError:
        pass
    finally:
        admin.close()

    sent = uuid.uuid4().bytes
    producer = KafkaProducer(bootstrap_servers=LOCAL, acks="all")
    try:
        where = producer.send(TOPIC, sent, partition=0).get(timeout=10)
    finally:
        producer.close(timeout=5)

    consumer = KafkaConsumer(bootstrap_servers=LOCAL, enable_auto_commit=False)
    try:
        place = TopicPartition(TOPIC, 0)
        consumer.assign([place])
        consumer.seek(place, where.offset)
        records = consumer.poll(timeout_ms=5000, max_records=1).get(place, [])
    finally:
        consumer.close()
    if [record.value for record in records] != [sent]:
        raise RuntimeError(
            f"offset {where.offset} of {TOPIC}: got {len(records)} records, not the one just sent"
        )
