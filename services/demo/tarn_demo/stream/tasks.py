"""Runs the steps of the partitions that this process has, each from its last stored state on.

The truth is the log: a step's state says which offset comes next, and is stored with it in one record,
after what follows from earlier messages was acknowledged. So a process that is killed repeats what it sent
since, with the same keys and values, and nothing is lost or counted twice. Offsets that Kafka keeps for the
group decide nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import structlog

from tarn.core.errors import CorruptStateError, OffsetGapError
from tarn_demo.stream.steps import Outgoing, Step, read_state, state_message
from tarn_demo.stream.topics import STATE, state_partition

SAVE_EVERY_S = 10.0
SEEK_WAIT_S = 5.0
"""How long messages that were on their way before a seek may come, in seconds."""
SEEKS_MAX = 5
PENDING_MAX = 1_000
"""Messages that are sent and not acknowledged yet."""
GONE = "messages are gone that were not read"

log = structlog.get_logger()


class Place(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


class Log(Protocol):
    """What is needed of Kafka."""

    async def send(self, message: Outgoing, partition: int = 0) -> Awaitable[Any]:
        """Hand a message over; the result is there once it is acknowledged."""

    async def last(self, topic: str, partition: int) -> bytes | None:
        """The value of the last record of a partition; None if there is none."""

    async def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """The first offset that a partition holds, and the one that the next message will get."""

    async def seek(self, place: Place, offset: int) -> None:
        """Have messages come from this offset on."""

    async def first_from(self, topic: str, partition: int, offset: int) -> int:
        """The offset of the first record at or after an offset; there is one."""


@dataclass(slots=True)
class _Task:
    step: Step
    saved_s: float
    saved_offset: int
    sought_s: float
    seeks: int = 1
    skipped: bool = False
    found: int | None = None
    sent: list[Awaitable[Any]] = field(default_factory=list)


class Tasks:
    """The partitions of this process.

    Args:
        identity: what windows are made by.
        make: makes the step of a place, from a state, or with nothing known.
        kafka: Kafka.
        monotonic: time in seconds.
        save_every_s: how often a state is stored, in seconds.
    """

    def __init__(
        self,
        identity: str,
        make: Callable[[Place, Mapping[str, Any] | None], Step],
        kafka: Log,
        *,
        monotonic: Callable[[], float],
        save_every_s: float = SAVE_EVERY_S,
    ) -> None:
        self._identity = identity
        self._make = make
        self._kafka = kafka
        self._monotonic = monotonic
        self._save_every_s = save_every_s
        self._tasks: dict[Place, _Task] = {}
        self._turn = asyncio.Lock()
        self.assignments = 0
        """How often places were assigned, if only none."""

    def steps(self) -> Mapping[Place, Step]:
        """The steps of this process."""
        return {place: task.step for place, task in self._tasks.items()}

    def positions(self) -> Mapping[Place, int]:
        """The offset that comes next, by place."""
        return {place: task.step.next_offset for place, task in self._tasks.items()}

    async def assigned(self, places: Iterable[Place]) -> None:
        """Load the states of the places that this process has from now on."""
        async with self._turn:
            self._tasks = {}
            self.assignments += 1
            for place in sorted(places):
                now_s = self._monotonic()
                step = await self._load(place)
                await self._kafka.seek(place, step.next_offset)
                self._tasks[place] = _Task(step, now_s, step.next_offset, self._monotonic())
            log.info(
                "partitions assigned",
                next={f"{place.topic}-{place.partition}": at for place, at in self.positions().items()},
            )

    async def revoked(self) -> None:
        """Store all states, and have no place any more."""
        async with self._turn:
            try:
                for place, task in self._tasks.items():
                    if task.step.next_offset > task.saved_offset:
                        await self._save(place, task)
            finally:
                self._tasks = {}

    async def take(self, place: Place, offset: int, value: bytes | None) -> None:
        """Take a message; one that was taken already, or is of a place of others, changes nothing.

        So is one that comes too early: messages before it are in the log. They are asked for again.

        Raises:
            OffsetGapError: messages did not come, however often they were asked for.
            KafkaError: what follows from it, or the state, could not be sent.
        """
        async with self._turn:
            task = self._tasks.get(place)
            if task is None or offset < task.step.next_offset:
                return
            try:
                await self._take(place, task, offset, value)
            except BaseException:
                self._tasks = {}  # a state may be ahead of what was sent: it must not be stored
                raise

    async def _take(self, place: Place, task: _Task, offset: int, value: bytes | None) -> None:
        if offset > task.step.next_offset and not await self._is_next(place, task, offset):
            return
        task.seeks, task.skipped, task.found = 0, False, None
        for message in task.step.take(offset, value):
            task.sent.append(await self._kafka.send(message))
            if len(task.sent) >= PENDING_MAX:
                await _acknowledged(task)
        if self._monotonic() - task.saved_s >= self._save_every_s:
            await self._save(place, task)

    async def look(self) -> None:
        """Ask again for messages that should have come; to be called every few seconds.

        Raises:
            OffsetGapError: they did not come, however often they were asked for.
        """
        async with self._turn:
            for place, task in self._tasks.items():
                if task.skipped and self._monotonic() - task.sought_s > SEEK_WAIT_S:
                    await self._seek(place, task)

    async def _is_next(self, place: Place, task: _Task, offset: int) -> bool:
        """Whether the log holds nothing between the next offset and this one; if it does, seek there."""
        wanted = task.step.next_offset
        if task.found is None:
            task.found = await self._kafka.first_from(place.topic, place.partition, wanted)
        if task.found != offset:
            task.skipped = True
            if not task.seeks or self._monotonic() - task.sought_s > SEEK_WAIT_S:
                await self._seek(place, task)
            return False
        first, _ = await self._kafka.bounds(*place)
        gone = first > wanted
        if gone:
            task.step.start_at(offset)
        log.warning(
            GONE if gone else "the log holds no messages here",
            topic=place.topic,
            partition=place.partition,
            next=wanted,
            first=offset,
        )
        return True

    async def _seek(self, place: Place, task: _Task) -> None:
        wanted = task.step.next_offset
        if task.seeks >= SEEKS_MAX:
            raise OffsetGapError(
                f"topic {place.topic}, partition {place.partition}: offset {wanted} did not come, although "
                f"the log holds it and it was asked for {task.seeks} times; the service begins again from "
                "its stored state",
                topic=place.topic,
                partition=place.partition,
            )
        task.seeks, task.sought_s = task.seeks + 1, self._monotonic()
        log.info("messages are asked for again", topic=place.topic, partition=place.partition, next=wanted)
        await self._kafka.seek(place, wanted)

    async def _load(self, place: Place) -> Step:
        partition = state_partition(*place)
        # The state first: a log that ends before it has lost messages, however long the answers took.
        stored = await self._kafka.last(STATE, partition)
        first, end = await self._kafka.bounds(place.topic, place.partition)
        try:
            state = read_state(stored, self._identity)
            step = self._make(place, state)
        except CorruptStateError as e:
            log.warning("a stored state is passed over", topic=STATE, partition=partition, reason=e.message)
            state = None
        if state is not None and step.next_offset <= end:
            if step.next_offset < first:
                log.warning(
                    GONE,
                    topic=place.topic,
                    partition=place.partition,
                    next=step.next_offset,
                    first=first,
                )
                step.start_at(first)
            return step
        if state is not None:
            log.warning(
                "a stored state is ahead of the log and is passed over",
                topic=place.topic,
                partition=place.partition,
                next=step.next_offset,
                end=end,
            )
        step = self._make(place, None)
        if first > step.next_offset:
            log.warning(
                GONE, topic=place.topic, partition=place.partition, next=step.next_offset, first=first
            )
        step.start_at(first)
        return step

    async def _save(self, place: Place, task: _Task) -> None:
        await _acknowledged(task)
        key = f"{place.topic}/{place.partition}".encode()
        message = Outgoing(STATE, key, state_message(self._identity, task.step))
        await (await self._kafka.send(message, state_partition(*place)))
        task.saved_s, task.saved_offset = self._monotonic(), task.step.next_offset


async def _acknowledged(task: _Task) -> None:
    sent, task.sent = task.sent, []
    for one in sent:
        await one
