"""Plays: people, controllers, writers and the store do as a seed says; in the end each message is one row."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from tarn.core.control.model import Timing
from tarn.core.errors import AlreadyExistsError, NotFoundError, OutcomeUnknownError, UnavailableError
from tarn.testing.memory_topic import Topic
from tarn_catalog.testing.faulty_store import Fault, FaultyStore, Op, no_faults
from tests.support import plant as module
from tests.support.lake import Lake, order
from tests.support.plant import Crash, Mortal, Plant
from tests.support.plays import seeds

NAMES = ("orders", "sales")
STEPS = 40
FAULTS = (Fault.LOST_REPLY, Fault.RESET, Fault.LATE, Fault.CONFLICT, Fault.BUSY, Fault.BUSY_DONE)


class Death(BaseException):
    """The end of a writer, wherever it is."""


class Play:
    """One play.

    Args:
        seed: decides everything but the order of threads.
    """

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.plant = Plant(Lake(*(Topic(name, 3, topic_id=f"id-{name}") for name in NAMES)))
        self.faulty = FaultyStore(self.plant.lake.store, self._fault)
        self.plant.specs.store = self.faulty
        self.plant.controller = self.plant.new_controller()
        self.quiet = False
        self.happened: dict[str, int] = {}
        poll = self.plant.lake.sources.on_poll

        def polled() -> None:
            poll()
            if not self.quiet and self.chance.random() < 0.02:
                self._count("writer died")
                raise Death

        self.plant.lake.sources.on_poll = polled

    def _fault(self, op: Op) -> Fault | None:
        if op.kind != "put" or self.quiet or self.chance.random() > 0.35:
            return None
        self._count("store fault")
        return self.chance.choice(FAULTS)

    def _count(self, what: str) -> None:
        self.happened[what] = self.happened.get(what, 0) + 1

    def step(self) -> None:
        """Do one thing."""
        name = self.chance.choice(NAMES)
        try:
            self.chance.choice(
                (self.send, self.send, self.declare, self.declare, self.delete, self.run, self.run)
            )(name)
        except (OutcomeUnknownError, AlreadyExistsError, NotFoundError, UnavailableError):
            self._count("refused")

    def send(self, name: str) -> None:
        topic = self.plant.lake.sources.topics[name]
        for _ in range(self.chance.randint(1, 20)):
            topic.send(self.chance.randrange(3), order(self.chance.randrange(1_000)))

    def declare(self, name: str) -> None:
        latency_s = self.chance.choice((0.05, 0.1))
        batching = {"maxRecords": self.chance.randint(3, 30), "maxLatencySeconds": latency_s}
        self.plant.apply(name, replicas=self.chance.randint(1, 3), batching=batching)

    def delete(self, name: str) -> None:
        if self.plant.specs.get(name) is not None and self.chance.random() < 0.5:
            self.plant.delete(name)

    def run(self, _name: str) -> None:
        if self.chance.random() < 0.5:
            at = self.chance.randint(1, 20)
            self.plant.controller = self.plant.new_controller(Mortal(at=at, after=self.chance.random() < 0.5))
        try:
            for _ in range(self.chance.randint(1, 6)):
                self.plant.controller.step()
                time.sleep(0.005)
        except Crash:
            self._count("controller died")
            self.plant.controller = self.plant.new_controller()

    def end(self) -> None:
        """Let everything come to rest, and require each message once."""
        self.quiet = True
        self.faulty.settle()
        self.faulty.plan = no_faults
        self.plant.controller = self.plant.new_controller()
        for name in NAMES:
            self.plant.until(lambda n=name: self._declared(n))
        self.plant.until(
            lambda: all(self.plant.all_in(name) and self.plant.running(2, name) for name in NAMES)
        )
        assert len(self.plant.workers()) == 4
        for name in NAMES:
            self.plant.exact(name)

    def _declared(self, name: str) -> bool:
        self.plant.lake.sources.topics[name].send(0, order(1))
        try:
            self.plant.apply(name, replicas=2)
        except AlreadyExistsError:
            return False  # it is being deleted
        return True


@pytest.mark.plays
@pytest.mark.parametrize("seed", seeds(6))
def test_plays_lose_and_double_nothing(seed: int, monkeypatch: pytest.MonkeyPatch, logged: list[Any]) -> None:
    monkeypatch.setattr(module, "TIMING", Timing(drain_s_max=20, backoff_s=0.02, backoff_s_max=0.1))
    play = Play(seed)
    try:
        for _ in range(STEPS):
            play.step()
        play.end()
    finally:
        play.quiet = True
        play.plant.close()
    assert {line["event"] for line in logged if line["log_level"] == "error"} <= {"writer failed"}
    logged.clear()
    assert sum(play.happened.values()) > 0
