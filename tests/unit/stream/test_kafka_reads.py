"""What is asked of Kafka without a group: it is asked again while Kafka does not answer, and not for good."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import (
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    TopicAuthorizationFailedError,
)

from tarn.adapters.kafka_login import ANONYMOUS
from tarn_demo.stream import kafka_reads
from tarn_demo.stream.kafka_reads import Reader
from tarn_demo.stream.topics import EVENTS

FIRST, END = 3, 9


class Consumer:
    """Answers of a broker in memory; the first questions meet the errors of `faults`."""

    def __init__(self, faults: list[Exception]) -> None:
        self.faults = faults
        self.asked = 0
        self._at = -1

    def assign(self, _places: list[Any]) -> None:
        self._at = -1

    def seek(self, _at: Any, offset: int) -> None:
        self._at = offset

    async def beginning_offsets(self, places: list[Any]) -> dict[Any, int]:
        return {at: self._answered(FIRST) for at in places}

    async def end_offsets(self, places: list[Any]) -> dict[Any, int]:
        return {at: self._answered(END) for at in places}

    async def getone(self, _at: Any) -> Any:
        return SimpleNamespace(offset=self._answered(self._at), value=b"%d" % self._at)

    def _answered(self, value: int) -> int:
        self.asked += 1
        if self.faults:
            raise self.faults.pop(0)
        return value


QUESTIONS: list[tuple[Callable[[Reader], Any], object]] = [
    (lambda reader: reader.bounds(EVENTS, 0), (FIRST, END)),
    (lambda reader: reader.last(EVENTS, 0), b"%d" % (END - 1)),
    (lambda reader: reader.first_from(EVENTS, 0, 5), 5),
]


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> Consumer:
    found = Consumer([])
    monkeypatch.setattr(kafka_reads, "AIOKafkaConsumer", lambda **_: found)
    monkeypatch.setattr(kafka_reads, "ASK_AGAIN_S", 0.01)
    return found


def answer(ask: Callable[[Reader], Any]) -> object:
    async def asked() -> object:
        return await ask(Reader("127.0.0.1:1", ANONYMOUS, "test"))

    return asyncio.run(asked())


@pytest.mark.parametrize(("ask", "expected"), QUESTIONS)
def test_a_broker_that_starts_again_is_waited_for(
    consumer: Consumer, ask: Callable[[Reader], Any], expected: object
) -> None:
    consumer.faults += [KafkaTimeoutError("in 10000 ms"), TimeoutError(), KafkaConnectionError("refused")]
    assert answer(ask) == expected
    assert consumer.faults == []


@pytest.mark.parametrize(("ask", "_expected"), QUESTIONS)
def test_what_does_not_pass_is_not_waited_for(
    consumer: Consumer, ask: Callable[[Reader], Any], _expected: object
) -> None:
    consumer.faults.append(TopicAuthorizationFailedError(EVENTS))
    with pytest.raises(TopicAuthorizationFailedError):
        answer(ask)
    assert consumer.asked == 1


@pytest.mark.parametrize(("ask", "_expected"), QUESTIONS)
def test_a_broker_that_never_answers_is_an_error(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Reader], Any], _expected: object
) -> None:
    monkeypatch.setattr(kafka_reads, "ANSWER_WAIT_S", 0.0)
    consumer.faults += [KafkaTimeoutError("in 10000 ms")] * 2
    with pytest.raises(KafkaError, match="in 10000 ms"):
        answer(ask)
    assert consumer.asked == 1
