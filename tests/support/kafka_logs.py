"""Whole logs of topics, read by a client of kafka-python."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from typing import Any

# kafka-python reads its message schemas, at import and at first use, with a function deprecated in Python.
OLD = "(read_text|open_text) is deprecated"
with warnings.catch_warnings():
    warnings.filterwarnings("ignore", OLD, DeprecationWarning)
    from kafka import KafkaConsumer
    from kafka import KafkaProducer as KafkaProducer
    from kafka import TopicPartition as TopicPartition

READ_S = 120.0


def ends(options: Mapping[str, Any], topic: str, partitions: int) -> dict[int, int]:
    """The offset that the next message of each partition will get."""
    consumer = KafkaConsumer(**options, enable_auto_commit=False)
    try:
        places = [TopicPartition(topic, number) for number in range(partitions)]
        return {place.partition: end for place, end in consumer.end_offsets(places).items()}
    finally:
        consumer.close()


def read(
    options: Mapping[str, Any], topic: str, partitions: int, *, first: Mapping[int, int] | None = None
) -> dict[int, list[bytes]]:
    """The values of all records of a topic by partition, in the order of the log.

    Args:
        options: settings of the client.
        topic: the topic.
        partitions: how many it has.
        first: partition to the offset to begin at; by default with the first record.
    """
    consumer = KafkaConsumer(**options, enable_auto_commit=False)
    found: dict[int, list[bytes]] = {number: [] for number in range(partitions)}
    try:
        places = [TopicPartition(topic, number) for number in range(partitions)]
        consumer.assign(places)
        consumer.seek_to_beginning(*places)
        for number, offset in (first or {}).items():
            consumer.seek(TopicPartition(topic, number), offset)
        until, until_s = consumer.end_offsets(places), time.monotonic() + READ_S
        while any(consumer.position(place) < until[place] for place in places):
            read_to = {place.partition: consumer.position(place) for place in places}
            assert time.monotonic() < until_s, f"read to {read_to}, ends are {until}"
            for place, records in consumer.poll(timeout_ms=500).items():
                found[place.partition] += [record.value for record in records]
    finally:
        consumer.close()
    return found
