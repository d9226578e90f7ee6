"""Faults of `durability=log`: gateways write a table's topic in transactions, an ingestor lands it.

The broker is the one in memory of the gateway's tests: it has transactions, and fences who wrote before. Its
steps are turns of the schedule. The ingestor lands what the topic has now and then, undisturbed: what breaks
ingestors is in the simulation of ingest.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from tarn.core.errors import UnavailableError
from tarn.core.log_claims import LogBook, claims_topic_of, topic_of
from tarn.core.spec import parse_spec
from tarn.gateway.log_judge import LogLimits
from tarn.gateway.logs import Logs
from tarn.ingest.context import IngestContext
from tarn.testing.memory_log import MemoryLogs
from tests.campaign.gateway_clients import Answered, Entry
from tests.campaign.gateway_faults import FrozenGateway, KilledBeforeAnswer, PoisonRows, SameWriteTwice
from tests.campaign.gateway_scenario import GATEWAY_FAULTS, KINDS, ThroughGateway
from tests.campaign.gateway_world import GatewaySim
from tests.campaign.kills import Killed
from tests.campaign.through import Through
from tests.campaign.upkeep import DOWN_S
from tests.campaign.waits import Held
from tests.support.gateway import LOG_SPEC

if TYPE_CHECKING:
    from tests.campaign.gateway_process import Exchange, Gateway

STREAM = "orders-log"
LAND_TURNS = 6
AWAY_S, AWAY_S_MAX = 2.0, 8.0
"""How long a gateway may not be able to open the log again, in seconds: others repeat its writes."""
LOG_FAULTS: dict[int, type[ThroughLog]] = {}
"""Number of the fault in shared/reliability.md -> its scenario with `durability=log`."""


class ThroughLog(ThroughGateway):
    """A fault of gateways that write logs."""

    registry = LOG_FAULTS  # type: ignore[assignment]
    sim: LogSim  # type: ignore[assignment]

    def step(self, process: Gateway, step: str) -> None:
        """A step of a transaction, or of opening a log (`tarn.testing.memory_log.STEPS`).

        Raises:
            UnavailableError: the broker does not respond.
        """


class LogSim(GatewaySim):
    """One run of one fault with `durability=log`; see `GatewaySim`."""

    scenario: ThroughLog
    durability = "log"

    def __init__(self, scenario: ThroughLog, seed: int, *, gateways: int) -> None:
        super().__init__(scenario, seed, gateways=gateways)
        self.watch.stream = STREAM
        self.lake.sources.topics = self.topics
        self.logs = MemoryLogs(self.lake.sources)
        self.logs.at = self._step
        self.uuid = self.lake.table().uuid
        text = LOG_SPEC.replace("NAME", STREAM).replace("TOPIC", topic_of(self.uuid))
        self._landing = parse_spec(text, file="log.yaml")
        self.land(turns=3)

    def _step(self, step: str) -> None:
        process = self.process()
        if process is None:
            return
        process.turn()
        if not self.healing:
            self.scenario.step(process, step)

    def land(self, *, turns: int) -> None:
        """Let an ingestor bring what the topic has into the table."""
        with self.undisturbed():
            self.lake.work(self.lake.ingestor(self._landing), turns=turns)

    def logs_of(self, context: IngestContext) -> Logs:
        """The logs of a gateway."""
        limits = LogLimits(rows_max=self.draw("rows_max", (100_000, 100_000, 3)))
        return Logs(context, self.logs, limits=limits, clock=self.lake.clock)

    def more_actors(self) -> dict[str, Callable[[], None]]:
        """Somebody who lands the log."""
        return {"lander": self._land_often}

    def _land_often(self) -> None:
        while self.clients_left > 0:
            self.rest(0.1 + self.chance.random())
            self.land(turns=LAND_TURNS)

    def in_topic(self) -> Counter[int]:
        """How often each row is in the topic."""
        topic = self.topics[topic_of(self.uuid)]
        values = [value for log in topic.logs.values() for value in log if isinstance(value, bytes)]
        return Counter(json.loads(value)["id"] for value in values)

    def answered(self, entry: Entry, answer: Answered) -> None:
        """A client has an answer: Kafka has the rows from now on."""
        found = self.in_topic()
        wrong = {one: found[one] for one in entry.good.values() if found[one] != 1}
        if wrong:
            self.problem(f"{entry}: answered, and the topic has {wrong}")

    def problems_of(self, rows: list[dict[str, Any]], ends: Mapping[int, int]) -> None:
        """See `GatewaySim`; a transaction may be landed in parts."""
        entries, self.entries = self.entries, []
        try:
            super().problems_of(rows, ends)
        finally:
            self.entries = entries

    def landed(self) -> None:
        """Land all that the topic has."""
        self.land(turns=80)

    def sequences(self, rows: list[dict[str, Any]]) -> None:
        """The log wants each producer's next row."""
        book = LogBook(claims_topic_of(self.uuid))
        book.read(self.logs.of(self.uuid).claims())
        for client in sorted({entry.client for entry in self.entries if entry.kind == "numbered"}):
            own = [entry for entry in self.entries if entry.client == client]
            known = book.producers.get(f"{client}/{client}")
            end = own[-1].sequence + len(own[-1].rows)
            if known is None or known.end != end:
                self.problem(f"{client} has sent {end} rows, the log wants {known and known.end} next")
        if +(self.in_topic() - Counter(row["id"] for row in rows)):
            self.problem("the topic has rows that are not in the table")

    @contextmanager
    def alone(self) -> Iterator[None]:
        """See `Sim.alone`."""
        locks = SimpleNamespace(Condition=lambda: Held(self))
        with super().alone(), ExitStack() as stack:
            stack.enter_context(patch("tarn.gateway.log_queue.threading", locks))
            stack.enter_context(patch("tarn.gateway.log_inbox.log.exception", self._broke))
            yield


class KilledOverTransaction(ThroughLog, Killed):
    """Fault 3."""

    number = 3
    name = "killed right after the transaction, before the answer is read"
    what = "The rows are in the log, the gateway dies over it: the next one finds the mark, or the repeat."

    def step(self, process: Gateway, step: str) -> None:
        """See `ThroughLog`."""
        if step in ("commit", "committed") and self.chance.random() < 0.4 and self.due():
            process.kill()


class LostBrokerAnswers(ThroughLog, Killed):
    """Fault 4."""

    number = 4
    name = "the answer is lost after the transaction, all live"
    what = (
        "The broker's answer to the gateway, or the gateway's to the client, is dropped: one row each, also "
        "if the gateway finds out late, when another one has written more."
    )

    def draw(self, chance: random.Random) -> None:
        """See `Scenario.draw`."""
        super().draw(chance)
        self.left += 2
        self.late = chance.random() < 0.5
        self.kinds = ("numbered",) if self.late else KINDS
        self.away_s: dict[Gateway, float] = {}

    def step(self, process: Gateway, step: str) -> None:
        """See `ThroughLog`."""
        now_s = self.sim.lake.clock.now_s
        if step == "open" and now_s < self.away_s.get(process, 0.0):
            raise UnavailableError("the log does not open on purpose")
        if step == "committed" and self.chance.random() < 0.5 and self.due():
            if self.late:
                self.away_s[process] = now_s + self.chance.uniform(AWAY_S, AWAY_S_MAX)
            raise UnavailableError("the answer is lost on purpose")

    def answer_lost(self, chance: random.Random, exchange: Exchange) -> bool:
        """See `ThroughGateway`."""
        return chance.random() < 0.2


class BrokenBroker(ThroughLog, Killed):
    """Fault 6."""

    number = 6
    name = "the broker fails at any step"
    what = "Opening, fencing, reading claims, rows, claims, commit: unknown is looked for, a failure said so."

    def draw(self, chance: random.Random) -> None:
        """See `Scenario.draw`."""
        super().draw(chance)
        self.left, self.wait = self.left + 4, 0

    def step(self, process: Gateway, step: str) -> None:
        """See `ThroughLog`."""
        if self.chance.random() < 0.15 and self.due():
            raise UnavailableError(f"broken on purpose at {step}")


class FrozenLog(ThroughLog, FrozenGateway):
    """Fault 10."""

    number = 10
    what = "One gateway stands still within a transaction; the other takes the log; the first one is fenced."

    def goes_on(self, process: Gateway) -> Callable[[], bool]:
        """See `FrozenGateway`: the other one has taken the log, and written it."""
        topic = topic_of(self.sim.uuid)
        held = self.sim.logs.held(topic)
        epoch, claims = held.epoch, len(held.claims)
        return lambda: held.epoch > epoch and len(held.claims) > claims

    def step(self, process: Gateway, step: str) -> None:
        """See `ThroughLog`."""
        if process.number == 0 and self.left > 0 and process.open and self.chance.random() < 0.1:
            self.left -= 1
            self._freeze(process)


class SameWriteInLog(ThroughLog, SameWriteTwice):
    """Fault 11."""

    number = 11
    what = "Two gateways take the log from each other with the same writes: each is in it once."


class KilledBeforeLogAnswer(ThroughLog, KilledBeforeAnswer):
    """Fault 12."""

    number = 12
    what = "A gateway dies once its transaction is in the log, before it answers: a repeat finds its claim."

    def step(self, process: Gateway, step: str) -> None:
        """See `ThroughLog`."""
        if step == "committed" and process.open and self.chance.random() < 0.4 and self.due():
            process.doom = self.chance.randrange(6)


class PoisonInLog(ThroughLog, PoisonRows):
    """Fault 16."""

    number = 16


class BrokerAway(ThroughLog):
    """Fault 23."""

    number = 23
    name = "the broker is unavailable for 20 s"
    what = "Writes are refused with a reason, or unknown; nothing is half written; all goes on by itself."

    def draw(self, chance: random.Random) -> None:
        """See `Scenario.draw`."""
        self.chance = chance
        self.wait = chance.randrange(3, 60)
        self.first = chance.choice(("", "commit", "committed"))
        self.until_s: float | None = None

    def step(self, process: Gateway, step: str) -> None:
        """See `ThroughLog`."""
        now_s = self.sim.lake.clock.now_s
        if self.until_s is None:
            self.wait -= 1
            if self.wait > 0 or (self.first and step != self.first):
                return
            self.until_s = now_s + DOWN_S
            self.sim.hit()
        if now_s < self.until_s:
            self.sim.fault_s = now_s
            raise UnavailableError("the broker is away on purpose")


SCENARIOS: dict[Through, Mapping[int, type[ThroughGateway]]] = {
    "gateway": GATEWAY_FAULTS,
    "log": LOG_FAULTS,
}
"""What gateways write through -> number of the fault -> its scenario."""
