"""Faults 22 to 25: the reaper, the store, clocks and credentials, and readers of yesterday."""

from __future__ import annotations

import random
from collections.abc import Callable

from tarn.core.errors import TarnError
from tarn.core.table_state import TableState
from tarn_catalog.operations.identifiers import TableIdentifier
from tarn_catalog.operations.multi_table_commit import Change
from tarn_catalog.testing.faulty_store import Crash, Fault, Op
from tests.campaign.engine import Engine
from tests.campaign.kills import Killed
from tests.campaign.scenario import Scenario, kind_of
from tests.campaign.world import SLOT
from tests.campaign.writers import Frozen

HOUR_MS = 3_600_000
DOWN_S = 20.0
OTHER = TableIdentifier.of(("ops",), "dead_letters")
PINNED_MAX = 12


class SlowWriter(Frozen):
    """Fault 22."""

    number = 22
    name = "the reaper with a slow writer in flight"
    what = "A commit stands still for longer than every grace while the reaper works: nothing of it is gone."
    issues = (11,)
    thin = True
    reaper = True

    def begin_freeze(self) -> None:
        """See `Frozen`."""
        self.passes = self.sim.passes
        for _ in range(self.chance.randrange(3)):
            self.sim.foreign()

    def due(self) -> bool:
        """See `Frozen`."""
        self.sim.lake.clock.now_s += 0.5
        return self.sim.passes >= self.passes + 3


class StoreDown(Scenario):
    """Fault 23."""

    number = 23
    name = "the store is killed, paused or full for 20 s"
    what = "Nothing is half committed; all goes on by itself once the store does."
    issues = (11,)

    def draw(self, chance: random.Random) -> None:
        """See `Scenario.draw`."""
        self.chance = chance
        self.how = chance.choice(("killed", "paused", "full"))
        self.wait = chance.randrange(10, 90)
        self.until_s: float | None = None

    def content(self) -> bool:
        """Whether it is over."""
        return self.until_s is None or self.sim.lake.clock.now_s > self.until_s

    def op(self, who: str, op: Op) -> Fault | None:
        """See `Scenario.op`."""
        now_s = self.sim.lake.clock.now_s
        if self.until_s is None:
            self.wait -= 1
            if self.wait > 0 or not self.sim.watch.versions:
                return None
            self.until_s = now_s + DOWN_S
            self.sim.hit()
        if now_s > self.until_s:
            return None
        self.sim.fault_s = now_s
        if op.kind != "put":
            return None if self.how == "full" else Fault.RESET
        if self.how == "paused":
            return self.chance.choice((Fault.LATE, Fault.RESET, Fault.LOST_REPLY))
        return (
            self.chance.choice((Fault.RESET, Fault.RESET, Fault.LOST_REPLY))
            if self.how == "killed"
            else (Fault.RESET)
        )


class ClocksAndCredentials(Killed):
    """Fault 24."""

    number = 24
    name = "clocks off by an hour, credentials that end"
    what = (
        "Each process has a clock of its own, which jumps; the store denies for a while. Order never changes."
    )
    issues = (12,)

    def draw(self, chance: random.Random) -> None:
        """See `Scenario.draw`."""
        super().draw(chance)
        self.left, self.wait = self.left + 3, 0
        self.denied = 0
        self.stops = frozenset({"Forbidden", "StoreDenied"})

    def skew_ms(self, chance: random.Random) -> int:
        """See `Scenario.skew_ms`."""
        return chance.randrange(-HOUR_MS, HOUR_MS)

    def polled(self, engine: Engine) -> None:
        """See `Scenario.polled`."""
        if self.sim.healing or self.chance.random() < 0.8 or not self.due():
            return
        engine.skew_ms = self.skew_ms(self.chance)
        for replica in self.sim.catalogs:
            replica.skew_ms = self.skew_ms(self.chance)

    def op(self, who: str, op: Op) -> Fault | None:
        """See `Scenario.op`."""
        if who == "reaper" or not self.sim.watch.versions:
            return None
        if self.denied > 0 and op.kind == "put":
            self.denied -= 1
            return Fault.DENIED
        if op.kind == "put" and kind_of(op.key) != "other" and self.chance.random() < 0.15 and self.due():
            self.denied = self.chance.randrange(6)
            return Fault.DENIED
        return None


class StaleReaders(Scenario):
    """Fault 25."""

    number = 25
    name = "readers of an expired snapshot, readers beside transactions"
    what = "A reader that keeps its snapshot gets its rows or a clean error; file names are never reused."
    thin = True
    reaper = True

    def draw(self, chance: random.Random) -> None:
        """See `Scenario.draw`."""
        self.chance = chance
        self.ending = 0

    def actors(self) -> dict[str, Callable[[], None]]:
        """Readers that stay with what they loaded, and commits to two tables at once beside them."""
        return {
            "pinned-0": self._pinned,
            "pairs": self._pairs,
            "reader-1": self._read,
            "reader-2": self._read,
        }

    def op(self, who: str, op: Op) -> Fault | None:
        """Between a pointer and its record, and between a commit and its end, others have time."""
        catalog, kind = who.startswith("catalog"), kind_of(op.key)
        waits = catalog and ((op.kind, kind) == ("get", "record") or (op.kind == "put" and self.ending > 0))
        self.ending -= catalog and kind == "pointer" and op.kind == "put" and self.ending > 0
        if waits and self.chance.random() < 0.7:
            for _ in range(self.chance.randrange(25)):
                self.sim.turn()
        if catalog and (op.kind, kind) == ("put", "record"):
            self.ending = 2
        return None

    def _read(self) -> None:
        self.sim.read()

    def _pinned(self) -> None:
        sim = self.sim
        for _ in range(PINNED_MAX):
            if sim.engines_left == 0:
                return
            sim.turn()
            if not sim.watch.versions or not sim.watch.lists:
                continue
            version = self.chance.choice(sim.watch.versions[-2:])
            for _ in range(self.chance.randrange(60)):
                sim.turn()
            sim.lake.clock.now_s += 2.0
            now = {s["snapshot-id"] for s in sim.watch.versions[-1].metadata["snapshots"]}
            problems = len(sim.watch.problems)
            sim.compare(TableState(version.metadata), version.next)
            if version.head not in now and len(sim.watch.problems) == problems:
                sim.hit()

    def _pairs(self) -> None:
        sim = self.sim
        number = 0
        while sim.engines_left > 0 and number < 10:
            for _ in range(self.chance.randrange(15)):
                sim.turn()
            number += 1
            if len(sim.watch.versions) < 2:
                continue
            update = [{"action": "set-properties", "updates": {f"pair-{number}": "1"}}]
            replica = sim.free_replica(write=True)
            try:
                replica.local.catalog.together.commit(
                    [Change(slot=slot, requirements=[], updates=update) for slot in (SLOT, OTHER)]
                )
                sim.hit()
            except (TarnError, Crash):
                continue
            finally:
                replica.busy = False
