"""Health of Kafka: login on the container's port, metadata with a leader; deep: a record produced and read.

It goes the way of any client: its own user, whose password and privileges are set at the start like any
other. The shallow check is a hundred bytes over a socket: importing a client costs 50 times more.
"""

from __future__ import annotations

import json
import logging
import struct
import sys
import uuid
from pathlib import Path

from tarn.probe.kafka import Broker, Reader
from tarn.probe.look import secret

SERVICE = "kafka"
USER = "health"
TOPIC = "_tarn_health"
INSIDE = ("127.0.0.1", 9092)
LOCAL = "127.0.0.1:9095"
LIB = "/opt/tarn/lib"
TOLD = Path("/tmp/tarn-kafka-users.json")  # noqa: S108 - the container's own tmpfs
API_VERSIONS = 18
METADATA = 3
METADATA_VERSION = 1
UNKNOWN_TOPIC = 3
TIMEOUT_S = 4.0


def alive() -> None:
    """Require that the broker lists the API versions it supports, which needs no login.

    Raises:
        RuntimeError: no response.
    """
    try:
        with Broker(*INSIDE, timeout_s=TIMEOUT_S) as broker:
            broker.ask(API_VERSIONS, 0, b"")
    except OSError as error:
        raise RuntimeError(f"no answer from port {INSIDE[1]}: {error}") from error


def shallow() -> None:
    """Require that the broker accepts the login and that the probe's topic has a leader (or does not exist).

    Raises:
        RuntimeError: no response, a rejection, or a partition without a leader.
    """
    try:
        _require_users()
    except RuntimeError:
        _client()  # the deep check comes next: what it needs is loaded while the broker starts
        raise
    name = TOPIC.encode()
    try:
        with Broker(*INSIDE, timeout_s=TIMEOUT_S) as broker:
            broker.log_in(USER, _password())
            answer = broker.ask(
                METADATA, METADATA_VERSION, struct.pack(f">ih{len(name)}s", 1, len(name), name)
            )
    except TimeoutError as error:
        raise RuntimeError(f"no metadata from port {INSIDE[1]} within {TIMEOUT_S:g} s") from error
    except OSError as error:
        raise RuntimeError(f"no metadata from port {INSIDE[1]}: {error.strerror}") from error
    for partition, leader in leaders(answer):
        if leader < 0:
            raise RuntimeError(f"partition {partition} of {TOPIC} has no leader")


def leaders(answer: bytes) -> list[tuple[int, int]]:
    """(partition, leader) of each partition in a metadata response of version 1; leader -1 means none.

    Raises:
        RuntimeError: the broker reports an error for a topic, other than that it does not exist.
    """
    reader = Reader(answer)
    for _ in range(reader.take(">i")):
        reader.take(">i")  # broker id
        reader.text()  # host
        reader.take(">i")  # port
        reader.text()  # rack
    reader.take(">i")  # controller id
    found = []
    for _ in range(reader.take(">i")):
        error, name = reader.take(">h"), reader.text()
        if error not in (0, UNKNOWN_TOPIC):
            raise RuntimeError(f"metadata of {name}: error {error} of Kafka's protocol")
        reader.take(">b")  # internal
        for _ in range(reader.take(">i")):
            reader.take(">h")  # error of the partition
            partition, leader = reader.take(">i"), reader.take(">i")
            found.append((partition, leader))
            for _list in ("replicas", "in sync"):
                for _ in range(reader.take(">i")):
                    reader.take(">i")
    return found


def _require_users() -> None:
    """Require that the broker has its users and ACLs since this start; raises RuntimeError until then."""
    try:
        report = json.loads(TOLD.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RuntimeError("users and rights are not in yet") from error
    if not report["done"]:
        raise RuntimeError(f"users and rights are not in yet: {report['fault']}")


def _client() -> None:
    """Load Kafka's client."""
    if LIB not in sys.path:
        sys.path.insert(0, LIB)
    import kafka.admin  # noqa: F401


def _password() -> str:
    return str(json.loads(secret("kafka_users.json"))[USER])


def deep() -> None:
    """Require that a record is acknowledged, and can be read at the acknowledged offset.

    Raises:
        RuntimeError: something else was read.
    """
    _client()
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.admin import KafkaAdminClient, NewTopic
    from kafka.errors import TopicAlreadyExistsError

    # The client warns of a password without TLS, which the loopback does not need.
    logging.getLogger("kafka").setLevel(logging.ERROR)
    login = {
        "bootstrap_servers": LOCAL,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": USER,
        "sasl_plain_password": _password(),
    }
    consumer = KafkaConsumer(**login, enable_auto_commit=False)
    try:
        if TOPIC not in consumer.topics():
            admin = KafkaAdminClient(**login)
            try:
                configs = {"retention.ms": "3600000", "segment.bytes": "1048576"}
                topic = NewTopic(TOPIC, num_partitions=1, replication_factor=1, topic_configs=configs)
                admin.create_topics([topic])
            except TopicAlreadyExistsError:
                pass
            finally:
                admin.close()

        sent = uuid.uuid4().bytes
        producer = KafkaProducer(**login, acks="all")
        try:
            where = producer.send(TOPIC, sent, partition=0).get(timeout=10)
        finally:
            producer.close(timeout=5)

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
