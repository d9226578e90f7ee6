"""Sending many records by librdkafka (package confluent-kafka): idempotent, in order, at little cost each.

A record costs a fraction of what kafka-python takes for it. Errors become those of kafka-python, which
`tarn.adapters.kafka_client` maps to Tarn's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tarn.adapters.kafka_client import RECONNECT_MS_MAX, KafkaConnection, vendor
from tarn.adapters.kafka_librdkafka import login_options, translated, translating
from tarn.adapters.kafka_login import ASK_TIMEOUT_S, require_login

log = structlog.get_logger()

QUEUE_KIB_MAX = 32 * 1024
POLL_EVERY = 500
"""Records between two looks at what was acknowledged."""
FULL_WAIT_S = 0.05


class Sent:
    """A record that was handed over. `succeeded` and `get` are for the thread that sends."""

    __slots__ = ("_done", "_error", "_producer")

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._done = False
        self._error: KafkaError | None = None

    def delivered(self, error: KafkaError | None, _: Message) -> None:
        """Called by the library once the record's fate is known."""
        self._done, self._error = True, error

    def succeeded(self) -> bool:
        """Whether the broker has acknowledged the record."""
        return self._done and self._error is None

    def get(self, timeout: float) -> None:
        """Wait until the broker has acknowledged the record.

        Args:
            timeout: seconds.

        Raises:
            KafkaError: of kafka-python: the record was refused, or was not acknowledged in time.
        """
        until_s = time.monotonic() + timeout
        while not self._done:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                raise vendor.KafkaTimeoutError(f"no acknowledgement within {timeout:g} s")
            with translating():
                self._producer.poll(min(left_s, 0.5))
        if self._error is not None:
            raise translated(self._error)


class LibrdkafkaProducer:
    """Sends records in order, each once.

    Args:
        connection: where the cluster is, and who connects.
        delivery_ms_max: how long a record may wait for its acknowledgement, milliseconds.
        linger_ms: how long a batch may wait to be filled, milliseconds.
        batch_bytes: size of a full batch.
        message_bytes_max: size of the largest record.

    Raises:
        UnauthenticatedError: a broker rejects the login.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        *,
        delivery_ms_max: int,
        linger_ms: int,
        batch_bytes: int,
        message_bytes_max: int,
    ) -> None:
        timeout_s = min(ASK_TIMEOUT_S, connection.bootstrap_timeout_ms / 1_000)
        require_login(connection.bootstrap, connection.login.options(), timeout_s=timeout_s)
        quiet = logging.getLogger("librdkafka")
        quiet.setLevel(logging.CRITICAL + 1)
        self._since_poll = 0
        self._producer = Producer(
            {
                **login_options(connection),
                "bootstrap.servers": connection.bootstrap,
                "client.id": connection.client_id,
                "acks": "all",
                "enable.idempotence": True,
                # No later record of a partition is in its log without the earlier ones.
                "enable.gapless.guarantee": True,
                "delivery.timeout.ms": delivery_ms_max,
                "linger.ms": linger_ms,
                "batch.size": batch_bytes,
                "message.max.bytes": message_bytes_max,
                "queue.buffering.max.kbytes": QUEUE_KIB_MAX,
                "allow.auto.create.topics": False,
                "reconnect.backoff.max.ms": RECONNECT_MS_MAX,
            },
            logger=quiet,
        )

    def send(
        self,
        topic: str,
        *,
        key: bytes,
        value: bytes,
        headers: Sequence[tuple[str, bytes]],
        partition: int,
    ) -> Sent:
        """Hand a record over; waits while too much is unacknowledged.

        Raises:
            KafkaError: of kafka-python: the record is too large, or the library takes none any more, after an
                error that it calls fatal.
        """
        sent = Sent(self._producer)
        while True:
            try:  # no context manager, whose cost each record would have
                self._producer.produce(
                    topic,
                    key=key,
                    value=value,
                    headers=list(headers),
                    partition=partition,
                    on_delivery=sent.delivered,
                )
            except BufferError:
                with translating():
                    self._producer.poll(FULL_WAIT_S)
                continue
            except KafkaException as e:
                raise translated(e.args[0]) from e
            break
        self._since_poll += 1
        if self._since_poll >= POLL_EVERY:
            self._since_poll = 0
            with translating():
                self._producer.poll(0)
        return sent

    def close(self, timeout: float) -> None:
        """Wait for acknowledgements, but no longer than `timeout` seconds; then let the rest go."""
        try:
            with translating():
                left = self._producer.flush(timeout)
        except vendor.KafkaError as e:  # a fatal one: nothing is acknowledged any more
            log.warning("the producer failed; unacknowledged records are let go", reason=str(e))
            left = 1
        if left:
            self._producer.purge()
            with suppress(vendor.KafkaError), translating():
                self._producer.flush(1)
