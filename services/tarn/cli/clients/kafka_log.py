"""Kafka client of the command line: sends messages and lists topics."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from kafka.consumer import KafkaConsumer
from kafka.errors import AuthorizationError, KafkaError
from kafka.producer import KafkaProducer

from tarn.adapters.kafka_login import Login, require_login
from tarn.cli.ports import Placed
from tarn.core.errors import ForbiddenError, UnavailableError

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
        require_login(self._bootstrap, self._login.options())
        try:
            producer = KafkaProducer(
                **self._login.options(),
                bootstrap_servers=self._bootstrap.split(","),
                acks="all",
                enable_idempotence=True,
                allow_auto_create_topics=False,
                max_block_ms=_milliseconds(timeout_s),
                delivery_timeout_ms=_milliseconds(timeout_s),
                request_timeout_ms=_milliseconds(timeout_s),
                bootstrap_timeout_ms=_milliseconds(timeout_s),
                linger_ms=0,
            )
        except KafkaError as error:
            raise self._unreachable(error) from error
        try:
            while not producer.partitions_for(topic):
                if time.monotonic() + TOPIC_POLL_S >= end_s:
                    raise UnavailableError(
                        f"topic {topic} does not exist on {self._bootstrap}; ingest makes it from its spec: "
                        "see docker compose logs ingest",
                        topic=topic,
                    )
                time.sleep(TOPIC_POLL_S)
            meta: Any = producer.send(topic, value).get(timeout=max(end_s - time.monotonic(), 0.1))
        except KafkaError as error:
            raise self._unreachable(error) from error
        finally:
            producer.close(timeout=2)
        return Placed(partition=meta.partition, offset=meta.offset)

    def topics(self, *, timeout_s: float) -> Sequence[str]:
        """See `MessageLog.topics`."""
        require_login(self._bootstrap, self._login.options(), timeout_s=timeout_s)
        try:
            consumer = KafkaConsumer(
                **self._login.options(),
                bootstrap_servers=self._bootstrap.split(","),
                bootstrap_timeout_ms=_milliseconds(timeout_s),
                request_timeout_ms=_milliseconds(timeout_s),
            )
            try:
                return sorted(consumer.topics())
            finally:
                consumer.close()
        except KafkaError as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: KafkaError) -> UnavailableError | ForbiddenError:
        if isinstance(error, AuthorizationError):
            return ForbiddenError(
                f"user {self._login.user} may not do this at Kafka ({type(error).__name__}: {error}); its "
                "rights are in docs/reference.md",
                address=self._bootstrap,
            )
        return UnavailableError(
            f"Kafka at {self._bootstrap} does not answer ({type(error).__name__}: {error}); "
            "is the service kafka running and healthy? see docker compose logs kafka",
            address=self._bootstrap,
        )


def _milliseconds(seconds: float) -> int:
    return max(1, int(seconds * 1000))
