"""Kafka client of the command line: sends messages and lists topics."""

from __future__ import annotations

import time
from collections.abc import Sequence

from tarn.adapters.kafka_login import Login
from tarn.cli.clients.kafka_connection import connection
from tarn.cli.ports import Placed
from tarn.core.errors import UnavailableError

TOPIC_POLL_S = 0.2


class KafkaLog:
    """A `MessageLog` over kafka-python.

    Args:
        bootstrap: `host:port`, several separated by commas.
        login: Kafka credentials.
    """

    def __init__(self, bootstrap: str, login: Login) -> None:
        self._bootstrap = bootstrap
        self._login = login

    def send(self, topic: str, value: bytes, *, timeout_s: float) -> Placed:
        """See `MessageLog.send`."""
        end_s = time.monotonic() + timeout_s
        opened = connection(self._bootstrap, self._login, timeout_s=timeout_s)
        with opened.errors(f"send to topic {topic}", operation="WRITE", topic=topic):
            producer = opened.producer(
                acks="all",
                enable_idempotence=True,
                allow_auto_create_topics=False,
                max_block_ms=opened.request_timeout_ms,
                delivery_timeout_ms=opened.request_timeout_ms,
                linger_ms=0,
            )
            try:
                while not producer.partitions_for(topic):
                    if time.monotonic() + TOPIC_POLL_S >= end_s:
                        raise UnavailableError(
                            f"topic {topic} does not exist on {self._bootstrap}; ingest makes it from its "
                            "spec: see docker compose logs ingest",
                            topic=topic,
                        )
                    time.sleep(TOPIC_POLL_S)
                meta = producer.send(topic, value).get(timeout=max(end_s - time.monotonic(), 0.1))
            finally:
                producer.close(timeout=2)
        return Placed(partition=meta.partition, offset=meta.offset)

    def topics(self, *, timeout_s: float) -> Sequence[str]:
        """See `MessageLog.topics`."""
        opened = connection(self._bootstrap, self._login, timeout_s=timeout_s)
        with opened.errors("list the topics", operation="DESCRIBE"):
            consumer = opened.consumer()
            try:
                return sorted(consumer.topics())
            finally:
                consumer.close()
