"""Steps run from stored states on: nothing is stored before it was sent, nothing is taken twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from tarn.core.errors import OffsetGapError, UnavailableError
from tarn_demo.stream.steps import Outgoing, read_state, state_message
from tarn_demo.stream.tasks import PENDING_MAX, SEEK_WAIT_S, SEEKS_MAX, Place, Tasks
from tarn_demo.stream.topics import EVENTS, PARTIALS, STATE, state_partition

IDENTITY = "a1b2"
PLACE = Place(EVENTS, 2)


class Sum:
    """A step that sends the sum of what it took so far."""

    def __init__(self, state: Mapping[str, Any] | None) -> None:
        self.next_offset = 0 if state is None else int(state["next"])
        self.total = 0 if state is None else int(state["total"])

    def start_at(self, offset: int) -> None:
        self.next_offset = offset

    def take(self, offset: int, value: bytes | None) -> Iterator[Outgoing]:
        self.next_offset = offset + 1
        self.total += int(value or b"0")
        yield Outgoing("sums", b"", str(self.total).encode())

    def to_data(self) -> dict[str, Any]:
        return {"next": self.next_offset, "total": self.total}


@dataclass(frozen=True, kw_only=True)
class Acknowledgement:
    """What is there once the broker has a message."""

    kafka: Kafka
    number: int
    refused: bool

    def __await__(self) -> Generator[None, None, None]:
        if self.refused:
            raise UnavailableError("no answer")
        assert self.number == self.kafka.acknowledged + 1, "asked for in the order of sending"
        self.kafka.acknowledged = self.number
        return
        yield


class Kafka:
    """A log in memory; acknowledgements can be held back, or refused."""

    def __init__(self, values: list[int | None], first: int = 0) -> None:
        self.values, self.first = values, first
        self.sent: list[tuple[str, int, bytes]] = []
        self.acknowledged = 0
        self.refuses = False
        self.sought: list[int] = []

    async def send(self, message: Outgoing, partition: int = 0) -> Awaitable[Any]:
        self.sent.append((message.topic, partition, message.value))
        if message.topic == STATE:
            assert self.acknowledged == len(self.sent) - 1, "a state is stored after what it follows from"
        return Acknowledgement(kafka=self, number=len(self.sent), refused=self.refuses)

    async def last(self, topic: str, partition: int) -> bytes | None:
        found = [value for t, p, value in self.sent if (t, p) == (topic, partition)]
        return found[-1] if found else None

    async def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        return self.first, len(self.values)

    async def seek(self, place: Place, offset: int) -> None:
        assert place == PLACE
        self.sought.append(offset)

    async def first_from(self, topic: str, partition: int, offset: int) -> int:
        return next(n for n, value in enumerate(self.values) if n >= offset and value is not None)

    def states(self) -> list[Mapping[str, Any]]:
        found = [value for topic, _, value in self.sent if topic == STATE]
        return [state for value in found if (state := read_state(value, IDENTITY)) is not None]

    def sums(self) -> list[int]:
        return [int(value) for topic, _, value in self.sent if topic == "sums"]


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def tasks_of(kafka: Kafka, clock: Clock | None = None) -> Tasks:
    return Tasks(IDENTITY, lambda _place, state: Sum(state), kafka, monotonic=clock or Clock())


async def play(tasks: Tasks, kafka: Kafka, start: int, end: int) -> None:
    for offset in range(start, end):
        value = kafka.values[offset]
        if value is not None:
            await tasks.take(PLACE, offset, str(value).encode())


def test_a_state_is_stored_after_its_time_and_the_next_process_goes_on_there() -> None:
    async def run() -> None:
        kafka, clock = Kafka([1, 2, 3, 4, 5]), Clock()
        first = tasks_of(kafka, clock)
        await first.assigned([PLACE])
        await play(first, kafka, 0, 2)
        assert kafka.states() == []
        clock.now_s = 10.0
        await play(first, kafka, 2, 3)
        assert kafka.states() == [{"next": 3, "total": 6}]
        await play(first, kafka, 3, 4)  # killed here: that message is taken again
        second = tasks_of(kafka, clock)
        await second.assigned([PLACE])
        assert second.positions() == {PLACE: 3}
        kafka.acknowledged = len(kafka.sent)
        await play(second, kafka, 0, 5)
        assert kafka.sums() == [1, 3, 6, 10, 10, 15]

    asyncio.run(run())


def test_what_is_revoked_is_stored_and_messages_of_it_are_passed_over() -> None:
    async def run() -> None:
        kafka = Kafka([1, 2, 3])
        tasks = tasks_of(kafka)
        await tasks.assigned([PLACE])
        await play(tasks, kafka, 0, 2)
        await tasks.revoked()
        assert kafka.states() == [{"next": 2, "total": 3}]
        assert [p for topic, p, _ in kafka.sent if topic == STATE] == [state_partition(*PLACE)] == [3]
        await play(tasks, kafka, 2, 3)
        assert (kafka.sums(), tasks.positions()) == ([1, 3], {})

    asyncio.run(run())


def test_messages_that_come_again_are_passed_over() -> None:
    async def run() -> None:
        kafka = Kafka([1, 2, 3])
        tasks = tasks_of(kafka)
        await tasks.assigned([PLACE])
        await play(tasks, kafka, 0, 2)
        await play(tasks, kafka, 0, 3)
        assert kafka.sums() == [1, 3, 6]

    asyncio.run(run())


def test_it_reads_from_its_state_on_and_what_was_on_its_way_before_is_passed_over() -> None:
    async def run() -> None:
        kafka, clock = Kafka([1, 2, 3]), Clock()
        tasks = tasks_of(kafka, clock)
        await tasks.assigned([PLACE])
        assert kafka.sought == [0]
        await tasks.take(PLACE, 2, b"3")
        await play(tasks, kafka, 0, 3)
        assert (kafka.sums(), kafka.sought) == ([1, 3, 6], [0])

    asyncio.run(run())


@pytest.mark.parametrize("by", ["a later message", "a look"])
def test_messages_that_did_not_come_are_asked_for_again(by: str) -> None:
    async def run() -> None:
        kafka, clock = Kafka([1, 2, 3, 4]), Clock()
        tasks = tasks_of(kafka, clock)
        await tasks.assigned([PLACE])
        await play(tasks, kafka, 0, 1)
        await tasks.take(PLACE, 2, b"3")
        assert kafka.sought == [0, 1]
        await tasks.take(PLACE, 3, b"4")
        await tasks.look()
        assert kafka.sought == [0, 1], "not while they may be on their way"
        clock.now_s = 5.1
        await (tasks.look() if by == "a look" else tasks.take(PLACE, 3, b"4"))
        assert kafka.sought == [0, 1, 1]
        await play(tasks, kafka, 1, 4)
        clock.now_s = 20.0
        await tasks.look()
        assert (kafka.sums(), kafka.sought) == ([1, 3, 6, 10], [0, 1, 1])

    asyncio.run(run())


def test_messages_that_never_come_end_it_before_anything_is_stored() -> None:
    async def run() -> None:
        kafka, clock = Kafka([1, 2, 3]), Clock()
        tasks = tasks_of(kafka, clock)
        await tasks.assigned([PLACE])
        await play(tasks, kafka, 0, 1)
        for _ in range(SEEKS_MAX):
            await tasks.take(PLACE, 2, b"3")
            clock.now_s += SEEK_WAIT_S + 0.1
        with pytest.raises(OffsetGapError, match=f"offset 1 did not come, .*{SEEKS_MAX} times"):
            await tasks.take(PLACE, 2, b"3")
        assert tasks.positions() == {}
        await tasks.revoked()
        assert (kafka.sums(), kafka.states(), len(kafka.sought)) == ([1], [], 1 + SEEKS_MAX)

    asyncio.run(run())


def test_a_gap_that_the_log_has_is_passed() -> None:
    async def run() -> None:
        kafka = Kafka([1, None, None, 4])
        tasks = tasks_of(kafka)
        await tasks.assigned([PLACE])
        await play(tasks, kafka, 0, 4)
        assert (kafka.sums(), tasks.positions()) == ([1, 5], {PLACE: 4})

    asyncio.run(run())


def test_messages_that_are_gone_from_the_log_are_passed() -> None:
    async def run() -> None:
        kafka = Kafka([1, 2, 3, 4])
        tasks = tasks_of(kafka)
        await tasks.assigned([PLACE])
        await play(tasks, kafka, 0, 1)
        await tasks.revoked()
        kafka.first = 3
        await tasks.assigned([PLACE])
        await play(tasks, kafka, 3, 4)
        assert (kafka.sums(), kafka.sought) == ([1, 5], [0, 3])

    asyncio.run(run())


def test_messages_that_go_from_the_log_while_it_reads_are_known_to_be_gone() -> None:
    async def run() -> None:
        kafka, started = Kafka([1, 2, 3, 4]), list[int]()
        tasks = tasks_of(kafka)
        await tasks.assigned([PLACE])
        await play(tasks, kafka, 0, 1)
        step = tasks.steps()[PLACE]
        assert isinstance(step, Sum)
        step.start_at = started.append  # type: ignore[method-assign]
        kafka.values[1:3], kafka.first = [None, None], 3
        await play(tasks, kafka, 3, 4)
        assert (started, kafka.sums()) == ([3], [1, 5])

    asyncio.run(run())


def test_a_message_that_kafka_does_not_take_ends_it_and_no_state_is_stored() -> None:
    async def run() -> None:
        kafka = Kafka([1] * 5)
        tasks = tasks_of(kafka)
        await tasks.assigned([PLACE])
        await play(tasks, kafka, 0, 2)
        kafka.refuses = True
        await play(tasks, kafka, 2, 3)
        with pytest.raises(UnavailableError):
            await tasks.revoked()
        assert (kafka.states(), tasks.positions()) == ([], {})

    asyncio.run(run())


def test_what_is_sent_and_not_acknowledged_has_a_limit() -> None:
    async def run() -> None:
        kafka = Kafka([1] * (PENDING_MAX + 1))
        tasks = tasks_of(kafka)
        await tasks.assigned([PLACE])
        await play(tasks, kafka, 0, PENDING_MAX - 1)
        assert kafka.acknowledged == 0
        await play(tasks, kafka, PENDING_MAX - 1, PENDING_MAX + 1)
        assert kafka.acknowledged == PENDING_MAX

    asyncio.run(run())


@pytest.mark.parametrize(
    "stored",
    [None, b"not a state", "other", 99],
    ids=["none", "broken", "of other rules", "ahead of the log"],
)
def test_without_a_state_that_can_be_used_it_begins_where_the_log_does(stored: Any) -> None:
    async def run() -> None:
        kafka = Kafka([1, 2, 3, 4], first=2)
        if stored is not None:
            from tarn_demo.stream.steps import state_message

            step = Sum({"next": 99 if stored == 99 else 4, "total": 9})
            value = (
                stored
                if isinstance(stored, bytes)
                else state_message("other" if stored == "other" else IDENTITY, step)
            )
            kafka.sent.append((STATE, state_partition(*PLACE), value))
            kafka.acknowledged = 1
        tasks = tasks_of(kafka)
        await tasks.assigned([PLACE])
        assert tasks.positions() == {PLACE: 2}
        await play(tasks, kafka, 2, 4)
        assert kafka.sums() == [3, 7]

    asyncio.run(run())


def test_a_state_that_another_process_stores_meanwhile_is_not_ahead_of_the_log() -> None:
    """It may take a minute until Kafka has answered, and the partition be another process's."""

    class Moving(Kafka):
        def store(self, offset: int) -> None:
            message = state_message(IDENTITY, Sum({"next": offset, "total": offset}))
            self.sent.append((STATE, state_partition(*PLACE), message))

        def go_on(self) -> None:
            if len(self.values) == 3:
                self.values += [1, 1]
                self.store(5)

        async def last(self, topic: str, partition: int) -> bytes | None:
            found = await super().last(topic, partition)
            self.go_on()
            return found

        async def bounds(self, topic: str, partition: int) -> tuple[int, int]:
            found = await super().bounds(topic, partition)
            self.go_on()
            return found

    async def run() -> None:
        kafka = Moving([1, 1, 1])
        kafka.store(3)
        tasks = tasks_of(kafka)
        await tasks.assigned([PLACE])
        assert tasks.positions() == {PLACE: 3}

    asyncio.run(run())


def test_each_partition_has_a_place_of_its_own_for_its_state() -> None:
    places = [(PARTIALS, 0), *((EVENTS, p) for p in range(6))]
    assert [state_partition(*place) for place in places] == [*range(7)]
