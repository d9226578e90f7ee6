"""Reading without a group: the last state of a partition, and what is said from now on."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError, KafkaTimeoutError

from tarn.adapters.kafka_login import Login

__all__ = ["KafkaError", "Reader", "security"]

REQUEST_TIMEOUT_MS = 10_000
POLL_MS = 500
LAST_WAIT_S = 20.0
RECORDS_MAX = 2_000
ANSWER_WAIT_S = 60.0
"""How long Kafka is asked again while it does not answer, in seconds: as long as a message may wait there."""
ASK_AGAIN_S = 0.5

T = TypeVar("T")

log = structlog.get_logger()


def security(login: Login) -> dict[str, Any]:
    """A login as aiokafka's clients take it."""
    options = login.options()
    if login.protocol == "SASL_SSL":
        options["ssl_context"] = ssl.create_default_context()
    return options


class Reader:
    """A client that reads what it is asked for.

    What it has to know of a partition it asks for until Kafka answers, for about `ANSWER_WAIT_S`.

    Args:
        bootstrap: host:port of a broker, several separated by commas.
        login: Kafka credentials.
        client_id: name of the client in the broker's logs.
    """

    def __init__(self, bootstrap: str, login: Login, client_id: str) -> None:
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap.split(","),
            client_id=client_id,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            **security(login),
        )
        self._turn = asyncio.Lock()

    async def start(self) -> None:
        """Connect.

        Raises:
            KafkaError: no broker answers, or it rejects the login.
        """
        await self._consumer.start()

    async def stop(self) -> None:
        """Disconnect."""
        await self._consumer.stop()

    async def last(self, topic: str, partition: int) -> bytes | None:
        """The value of the last record of a partition; None if there is none.

        Raises:
            KafkaError: Kafka does not answer.
            TimeoutError: the record did not come.
        """
        at = TopicPartition(topic, partition)
        async with self._turn:
            return await _answer(lambda: self._last(at))

    async def _last(self, at: TopicPartition) -> bytes | None:
        self._consumer.assign([at])
        end = (await self._consumer.end_offsets([at]))[at]
        if end == (await self._consumer.beginning_offsets([at]))[at]:
            return None
        self._consumer.seek(at, end - 1)
        value: bytes | None = (await asyncio.wait_for(self._consumer.getone(at), LAST_WAIT_S)).value
        return value

    async def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """The first offset that a partition holds, and the one that the next message will get.

        Raises:
            KafkaError: Kafka does not answer.
        """
        at = TopicPartition(topic, partition)
        async with self._turn:
            return await _answer(lambda: self._bounds(at))

    async def _bounds(self, at: TopicPartition) -> tuple[int, int]:
        first = (await self._consumer.beginning_offsets([at]))[at]
        return int(first), int((await self._consumer.end_offsets([at]))[at])

    async def first_from(self, topic: str, partition: int, offset: int) -> int:
        """The offset of the first record at or after an offset; there is one.

        Raises:
            KafkaError: Kafka does not answer.
            TimeoutError: no record came.
        """
        at = TopicPartition(topic, partition)
        async with self._turn:
            return await _answer(lambda: self._first_from(at, offset))

    async def _first_from(self, at: TopicPartition, offset: int) -> int:
        self._consumer.assign([at])
        self._consumer.seek(at, offset)
        return int((await asyncio.wait_for(self._consumer.getone(at), LAST_WAIT_S)).offset)

    async def follow(self, topics: Mapping[str, int]) -> None:
        """Go to near the ends of the only partitions of some topics.

        Args:
            topics: topic to how many records before its end.

        Raises:
            KafkaError: Kafka does not answer.
        """
        places = [TopicPartition(topic, 0) for topic in topics]
        self._consumer.assign(places)
        first = await self._consumer.beginning_offsets(places)
        for at, end in (await self._consumer.end_offsets(places)).items():
            self._consumer.seek(at, max(first[at], end - topics[at.topic]))

    async def poll(self) -> Iterable[ConsumerRecord]:
        """Records that have come; none if none came within `POLL_MS`."""
        found = await self._consumer.getmany(timeout_ms=POLL_MS, max_records=RECORDS_MAX)
        return [record for records in found.values() for record in records]

    async def ends(self, places: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """By topic and partition the offset that the next message will get: a request that needs an answer.

        Raises:
            KafkaError: Kafka does not answer.
        """
        wanted = [TopicPartition(*place) for place in places]
        return {tuple(at): int(end) for at, end in (await self._consumer.end_offsets(wanted)).items()}


async def _answer(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask until Kafka answers; not again once `ANSWER_WAIT_S` are over.

    While a broker starts again, a single connection to it may take all the time that aiokafka has for a
    question: it waits for an address that nobody answers at yet, and all that is asked waits for it.

    Raises:
        KafkaError: Kafka refuses, or did not answer.
        TimeoutError: the record did not come.
    """
    until_s = time.monotonic() + ANSWER_WAIT_S
    while True:
        try:
            return await ask()
        except (KafkaError, TimeoutError) as e:
            waits = isinstance(e, (TimeoutError, KafkaTimeoutError)) or e.retriable
            if not waits or time.monotonic() >= until_s:
                raise
            log.warning("Kafka is asked again", error=type(e).__name__, reason=str(e)[:300])
        await asyncio.sleep(ASK_AGAIN_S)
