"""Faults 3 to 6, 10 to 12, 16, 23 and 24 through the gateway."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from tarn.core.table_catalog import CommitDone, CommitOutcome, TableName
from tarn.core.table_state import CommitRequest
from tarn.core.write_keys import WINDOW_S
from tarn.gateway.key_memory import SKEW_S
from tarn_catalog.testing.faulty_store import Fault, Op
from tests.campaign.answers import Broken, LostReply, LostReplyThenForeign
from tests.campaign.engine import TABLE, Engine
from tests.campaign.gateway_scenario import GATEWAY_FAULTS, KINDS, ThroughGateway
from tests.campaign.kills import AfterPointer, Killed
from tests.campaign.scenario import kind_of, of_orders
from tests.campaign.upkeep import HOUR_MS, StoreDown

if TYPE_CHECKING:
    from tests.campaign.gateway_clients import Entry
    from tests.campaign.gateway_process import Exchange, Gateway

FROZEN_S = 8.0
KEYS_APART_MS = SKEW_S * 1_000 // 2 - 1_000
"""So far off the right time the clocks of two gateways may be for keys: no more than `SKEW_S` apart."""
assert WINDOW_S > 10 * SKEW_S


class KilledOverCommit(ThroughGateway, AfterPointer):
    """Fault 3."""

    number = 3
    name = "killed right after the commit, before the answer is read"
    what = "The commit is in; the catalog or the gateway dies over it. A repeat finds it, in any gateway."


class LostAnswers(ThroughGateway, LostReply):
    """Fault 4."""

    number = 4
    name = "the answer is lost after the commit, all live"
    what = (
        "The store's answer to the catalog, the catalog's to the gateway, or the gateway's to the client is "
        "dropped; the repeat is answered as the first time."
    )

    def answer_lost(self, chance: random.Random, exchange: Exchange) -> bool:
        """See `ThroughGateway`."""
        if chance.random() < 0.25:
            self.sim.hit()
            return True
        return False


class LostAnswersThenForeign(ThroughGateway, LostReplyThenForeign):
    """Fault 5."""

    number = 5
    name = "the answer is lost, and another writer commits on top"
    what = "The own snapshot is an ancestor: the rows are in, and are answered so."


class BrokenAnswers(ThroughGateway, Broken):
    """Fault 6."""

    number = 6
    name = "500, 502, 504 or a cut connection"
    what = "Between gateway and catalog, and between client and gateway: unknown, never taken for a failure."

    def op(self, who: str, op: Op) -> Fault | None:
        """See `Scenario.op`."""
        if op.kind == "delete" and who.startswith("gateway"):
            self.sim.problem(f"{who} deleted {op.key}")
        return None

    def answer_lost(self, chance: random.Random, exchange: Exchange) -> bool:
        """See `ThroughGateway`."""
        return chance.random() < 0.2


class FrozenGateway(ThroughGateway):
    """Fault 10."""

    number = 10
    name = "a frozen gateway goes on late"
    what = (
        "One gateway stands still with writes half done; clients repeat them at the other; then it wakes up. "
        "Its commit is refused, or was there first."
    )
    gateways = (2,)

    def draw(self, chance: random.Random) -> None:
        """See `Scenario.draw`."""
        self.chance = chance
        self.wait = chance.randrange(8)
        self.left = chance.choice((1, 2))

    def op(self, who: str, op: Op) -> Fault | None:
        """See `Scenario.op`."""
        ours = who == "gateway-0" and op.kind == "put" and self.left > 0
        if not ours or not self.sim.engines[0].open:
            return None
        if self.wait > 0:
            self.wait -= 1
            return None
        self.left -= 1
        self.wait = self.chance.randrange(8)
        self._freeze(self.sim.engines[0])
        return None

    def request(self) -> str:
        """Stand still before a commit is sent as well."""
        process = self.sim.process()
        if process is not None and process.number == 0 and self.left > 0 and self.chance.random() < 0.2:
            self.left -= 1
            self._freeze(process)
        return "fine"

    def goes_on(self, process: Gateway) -> Callable[[], bool]:
        """Asks whether others went on with what the process has in its hands."""
        held = [exchange.entry for exchange in process.open if not exchange.entry.answered]
        return lambda: any(entry.answered for entry in held)

    def _freeze(self, process: Gateway) -> None:
        sim = self.sim
        taken = self.goes_on(process)
        process.frozen = sim.acting()
        try:
            sim.wait_for(taken, FROZEN_S + sim.chance.random() * 60)
            if taken():
                sim.hit()
        finally:
            process.frozen = None


class SameWriteTwice(ThroughGateway):
    """Fault 11."""

    number = 11
    name = "two gateways take the same write"
    what = (
        "What a client sends to one gateway is sent to the other at the same time, or to the same one again: "
        "it is in once, and one answer at most says that it is new."
    )
    gateways = (2,)

    def draw(self, chance: random.Random) -> None:
        """See `Scenario.draw`."""
        self.chance = chance
        self.raced: list[tuple[Entry, Exchange]] = []

    def actors(self) -> dict[str, Callable[[], None]]:
        """Somebody who sends what others send, at the same time, elsewhere."""
        return {"shadow-0": self._shadow, "shadow-1": self._shadow}

    def _shadow(self) -> None:
        from tests.campaign.gateway_process import Exchange

        sim = self.sim
        seen = 0
        while sim.clients_left > 0:
            sim.wait(lambda seen=seen: len(sim.sent_out) > seen or sim.clients_left == 0, None)  # type: ignore[misc]
            if len(sim.sent_out) == seen:
                return
            first, at = sim.sent_out[-1]
            seen = len(sim.sent_out)
            if first.entry.kind == "plain" or first.entry.answered:
                continue
            twin = Exchange(entry=first.entry, path=first.path, headers=first.headers, body=first.body)
            number = 1 - at if sim.chance.random() < 0.8 else at
            if not sim.connect(twin, number, first=False):
                continue
            first.entry.unknown = True
            sim.wait_for(lambda twin=twin: twin.over, 60.0)  # type: ignore[misc]
            if twin.status in (200, 422):
                self.raced.append((first.entry, twin))
                sim.hit()

    def check(self) -> None:
        """All answers to one write are the same, and at most one says that it is new."""
        import json

        news: dict[int, int] = {}
        for entry, twin in self.raced:
            found = json.loads(twin.answer)
            got = (found["accepted"], tuple(one["row"] for one in found["rejected"] or ()))
            assert got == (len(entry.good), entry.bad), f"{entry}: the other gateway answered {found}"
            news[id(entry)] = news.get(id(entry), 0) + (not found["repeated"])
        for entry, _ in self.raced:
            total = news[id(entry)] + sum(not one.repeated for one in entry.answers)
            assert total <= 1 or not entry.good, f"{entry}: {total} answers say that it is new"


class KilledBeforeAnswer(ThroughGateway, Killed):
    """Fault 12."""

    number = 12
    name = "killed between the commit and what comes after it"
    what = (
        "A gateway dies once its commit is in: before it knows, before it remembers keys, before it answers. "
        "The next one, or the other one, answers the repeat from the table."
    )

    def draw(self, chance: random.Random) -> None:
        """See `Scenario.draw`."""
        super().draw(chance)
        self.wait = chance.randrange(2)

    def due(self) -> bool:
        """See `Killed.due`; counted once the process dies."""
        before = self.happened
        found = super().due()
        self.happened = before
        return found

    def replied(
        self, engine: Engine, table: TableName, request: CommitRequest, outcome: CommitOutcome
    ) -> None:
        """See `Scenario.replied`."""
        process: Gateway = engine  # type: ignore[assignment]
        done = isinstance(outcome, CommitDone) and table == TABLE and bool(process.open)
        if done and not self.sim.healing and self.chance.random() < 0.6 and self.due():
            process.doom = self.chance.randrange(8)

    def answering(self, process: Gateway, exchange: Exchange, status: int) -> None:
        """See `ThroughGateway`."""
        if status == 200 and not self.sim.healing and self.chance.random() < 0.2 and self.due():
            self.sim.hit()
            process.kill()

    def doomed(self, process: Gateway) -> None:
        """See `ThroughGateway`."""
        if process.open:
            self.sim.hit()


class PoisonRows(ThroughGateway, Killed):
    """Fault 16."""

    number = 16
    name = "poison rows"
    what = (
        "Half of the rows are none of the table's, with kills and lost answers: the others are in once, each "
        "answer names the same bad rows."
    )
    bad_rows = 0.5

    def draw(self, chance: random.Random) -> None:
        """See `Scenario.draw`."""
        super().draw(chance)
        self.left += 2

    def row(self, chance: random.Random, number: int) -> tuple[dict[str, object], bool]:
        """See `ThroughGateway`."""
        row, good = super().row(chance, number)
        self.happened += not good
        return row, good

    def request(self) -> str:
        """See `Scenario.request`."""
        return self.chance.choice(("fine", "fine", "fine", "fine", "reply", "lost", "late"))

    def answering(self, process: Gateway, exchange: Exchange, status: int) -> None:
        """See `ThroughGateway`."""
        if not self.sim.healing and exchange.entry.bad and self.chance.random() < 0.15 and self.left > 0:
            self.left -= 1
            process.kill()


class StoreAway(ThroughGateway, StoreDown):
    """Fault 23."""

    number = 23
    name = "the store is killed, paused or full for 20 s"
    what = "Writes wait, or are refused with a reason; nothing is half committed; all goes on by itself."

    def draw(self, chance: random.Random) -> None:
        """See `Scenario.draw`."""
        super().draw(chance)
        self.wait = chance.randrange(10, 150)


class ClocksAndTokens(ThroughGateway, Killed):
    """Fault 24."""

    number = 24
    name = "clocks off by an hour, credentials that end"
    what = (
        "Each process has a clock of its own, which jumps; tokens of clients end, and catalog and store deny "
        "the gateway for a while. With keys the clocks are within the minute that gateways may differ by."
    )

    def draw(self, chance: random.Random) -> None:
        """See `Scenario.draw`."""
        super().draw(chance)
        self.left += 4
        self.wait = 0
        self.denied = self.locked = 0
        self.by_hours = chance.random() < 0.5
        self.kinds = ("numbered", "plain") if self.by_hours else KINDS

    def skew_ms(self, chance: random.Random) -> int:
        """See `Scenario.skew_ms`."""
        return chance.randrange(-HOUR_MS, HOUR_MS)

    def gateway_skew_ms(self, chance: random.Random) -> int:
        """See `ThroughGateway`."""
        apart_ms = HOUR_MS if self.by_hours else KEYS_APART_MS
        return chance.randrange(-apart_ms, apart_ms)

    def token_s(self, chance: random.Random) -> float:
        """See `ThroughGateway`."""
        return chance.choice((0.2, 1.0, 900.0))

    def moved(self, version: object) -> None:
        """A clock jumps."""
        if self.sim.healing or self.chance.random() < 0.7 or not self.due():
            return
        for process in self.sim.engines:
            if process is not None and self.chance.random() < 0.5:
                process.skew_ms = self.gateway_skew_ms(self.chance)
        for replica in self.sim.catalogs:
            replica.skew_ms = self.skew_ms(self.chance)

    def denies(self, engine: Engine) -> bool:
        """See `ThroughGateway`."""
        if self.locked > 0:
            self.locked -= 1
            return True
        if self.chance.random() < 0.05 and self.due():
            self.locked = self.chance.randrange(4)
            return True
        return False

    def request(self) -> str:
        """See `Scenario.request`."""
        return self.chance.choice(("fine", "fine", "fine", "fine", "fine", "reply", "lost", "late"))

    def op(self, who: str, op: Op) -> Fault | None:
        """See `Scenario.op`."""
        if who == "reaper" or op.kind != "put":
            return None
        if self.denied > 0:
            self.denied -= 1
            return Fault.DENIED
        if kind_of(op.key) != "other" and of_orders(op.key) and self.chance.random() < 0.1 and self.due():
            self.denied = self.chance.randrange(4)
            return Fault.DENIED
        return None


NUMBERS = tuple(sorted(GATEWAY_FAULTS))
