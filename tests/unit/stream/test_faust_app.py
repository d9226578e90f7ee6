"""Faust's consumer as the service uses it: what is sought comes, the group's offsets are the positions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faust
import pytest
from faust.types import TP

from tarn.adapters.kafka_login import ANONYMOUS
from tarn_demo.stream.faust_app import LINGER_S, make_app
from tarn_demo.stream.tasks import Place
from tarn_demo.stream.topics import EVENTS, PARTIALS

PLACE = TP(EVENTS, 0)


@dataclass
class Message:
    """A message as far as Faust's reader looks at it."""

    offset: int
    topic: str = EVENTS
    key: bytes = b""
    value: bytes = b""


@dataclass
class Positions:
    """Where the steps are."""

    known: dict[Place, int]

    def positions(self) -> Mapping[Place, int]:
        return self.known


def make(tmp_path: Path, known: dict[Place, int]) -> faust.App:
    async def nothing() -> None:
        """There is nobody to say it to."""

    def failed(error: BaseException) -> None:
        raise error

    return make_app(
        "127.0.0.1:1",
        ANONYMOUS,
        lambda: Positions(known),  # type: ignore[arg-type,return-value]
        failed=failed,
        tell=nothing,
        data_dir=str(tmp_path),
    )


class Reader:
    """Faust's reader over batches from memory; the first message waits until `go`, as with a full queue."""

    def __init__(self, app: faust.App, batches: list[list[int]]) -> None:
        self.come: list[int] = []
        self.go = asyncio.Event()
        self._batches = batches
        self._over = faust.Service()
        self.consumer: Any = app.transport.create_consumer(
            callback=self._handed_over, on_partitions_revoked=_nobody, on_partitions_assigned=_nobody
        )
        self.consumer.getmany = self._getmany

    async def read(self) -> None:
        await self.consumer._drain_messages(self._over)

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.consumer._thread.thread_loop.close()

    async def _handed_over(self, message: Message) -> None:
        await self.go.wait()
        self.come.append(message.offset)

    async def _getmany(self, timeout: float) -> AsyncIterator[tuple[TP, Message]]:
        for offset in self._batches.pop(0):
            yield PLACE, Message(offset)
        if not self._batches:
            self._over._stopped.set()


async def _nobody(*_: Any) -> None:
    """Nobody hears of assignments."""


@pytest.mark.long
@pytest.mark.parametrize("sought", [100, 0])
def test_what_is_sought_while_a_message_waits_for_the_queue_comes(tmp_path: Path, sought: int) -> None:
    async def come() -> list[int]:
        batches = [[500, 501], [sought, sought + 1, sought + 2]]
        with Reader(make(tmp_path, {}), batches) as reader:
            reading = asyncio.ensure_future(reader.read())
            await asyncio.sleep(0.05)
            assert reader.come == [], "500 waits"
            if sought:
                reader.consumer._read_offset[PLACE] = sought  # as the thread does at a seek
            reader.go.set()
            await asyncio.wait_for(reading, 10)
            return reader.come

    assert asyncio.run(come()) == [500, 501, sought, sought + 1, sought + 2]


def test_the_offsets_of_the_group_are_the_positions(tmp_path: Path) -> None:
    async def committed() -> list[Mapping[TP, int]]:
        known = {Place(EVENTS, 0): 7, Place(EVENTS, 1): 9}
        commits: list[Mapping[TP, int]] = []

        async def commit(offsets: Mapping[TP, int]) -> bool:
            commits.append(dict(offsets))
            return len(commits) > 1

        with Reader(make(tmp_path, known), []) as reader:
            consumer = reader.consumer
            consumer.assignment = lambda: {PLACE, TP(PARTIALS, 0)}
            consumer._commit = commit
            assert not await consumer.commit(), "Kafka did not take it"
            assert await consumer.commit()
            assert not await consumer.commit(), "nothing has changed"
            known[Place(EVENTS, 0)] = 8
            assert await consumer.commit()
            known.clear()
            assert not await consumer.commit(), "it has none any more"
        return commits

    assert asyncio.run(committed()) == [{PLACE: 7}, {PLACE: 7}, {PLACE: 8}]


def test_messages_wait_for_others_to_share_a_request(tmp_path: Path) -> None:
    async def linger_ms() -> float:
        return float(make(tmp_path, {}).transport.create_producer().linger_ms)

    assert asyncio.run(linger_ms()) == LINGER_S * 1_000 == 50


def test_nothing_waits_for_acknowledgements_of_messages(tmp_path: Path) -> None:
    async def acks() -> dict[str, bool]:
        return {name: agent.channel.acks for name, agent in make(tmp_path, {}).agents.items()}

    assert asyncio.run(acks()) == {f"tarn.{name}": False for name in (EVENTS, PARTIALS)}
