"""Faults 1, 2, 3 and 12: a process dies at the worst moment."""

from __future__ import annotations

import random

from tarn.core.table_catalog import CommitDone, CommitOutcome, TableName
from tarn.core.table_state import CommitRequest
from tarn_catalog.testing.faulty_store import Fault, Op
from tests.campaign.engine import Engine
from tests.campaign.scenario import Scenario, kind_of, of_orders


class Killed(Scenario):
    """A process dies at one of its operations, up to three times in a run."""

    def draw(self, chance: random.Random) -> None:
        """See `Scenario.draw`."""
        self.chance = chance
        self.left = chance.randrange(1, 4)
        self.wait = chance.randrange(3)

    def due(self) -> bool:
        """Whether the next chance is taken."""
        if self.left == 0:
            return False
        if self.wait > 0:
            self.wait -= 1
            return False
        self.left -= 1
        self.wait = self.chance.randrange(3)
        self.sim.hit()
        return True


class AfterData(Killed):
    """Fault 1."""

    number = 1
    name = "killed after the data file, before the manifest"
    what = "The process that ingests dies once the data file is written. The batch is read again; 0 doubled."

    def op(self, who: str, op: Op) -> Fault | None:
        """See `Scenario.op`."""
        if not who.startswith("engine") or op.kind != "put":
            return None
        kind = kind_of(op.key)
        if kind == "data" and self.chance.random() < 0.5:
            return Fault.CRASH_DONE if self.due() else None
        return Fault.CRASH if kind == "manifest" and self.due() else None


class BeforePointer(Killed):
    """Fault 2."""

    number = 2
    name = "killed after manifest list or metadata.json, before the pointer"
    what = "Ingest or the catalog dies with all files written. The stray metadata.json is never adopted."

    def draw(self, chance: random.Random) -> None:
        """See `Scenario.draw`."""
        super().draw(chance)
        self.who = chance.choice(("engine", "catalog"))

    def op(self, who: str, op: Op) -> Fault | None:
        """See `Scenario.op`."""
        if op.kind != "put" or not who.startswith(self.who) or not self.sim.watch.versions:
            return None
        kind = kind_of(op.key)
        if who.startswith("engine"):
            return Fault.CRASH_DONE if kind == "list" and self.due() else None
        if kind == "metadata":
            return Fault.CRASH_DONE if self.due() else None
        return Fault.CRASH if kind == "pointer" and of_orders(op.key) and self.due() else None


class AfterPointer(Killed):
    """Fault 3."""

    number = 3
    name = "killed right after the commit, before the answer is read"
    what = (
        "The commit is in; the catalog or the process that ingests dies over it. It is found, not repeated."
    )

    def op(self, who: str, op: Op) -> Fault | None:
        """See `Scenario.op`."""
        swap = who.startswith("catalog") and op.kind == "put" and kind_of(op.key) == "pointer"
        if not swap or not self.sim.watch.lists or self.chance.random() < 0.5 or not self.due():
            return None
        return Fault.CRASH_DONE

    def replied(
        self, engine: Engine, table: TableName, request: CommitRequest, outcome: CommitOutcome
    ) -> None:
        """See `Scenario.replied`."""
        if isinstance(outcome, CommitDone) and not self.sim.healing and self.due():
            engine.kill()


class BeforeGroupOffsets(Killed):
    """Fault 12."""

    number = 12
    name = "killed between the table's commit and the group's offsets"
    what = "A restart resumes from the table, not from the group; group offsets lag, and never lead."
    issues = (11,)

    def draw(self, chance: random.Random) -> None:
        """See `Scenario.draw`."""
        super().draw(chance)
        self.wait = 0

    def grouped(self, engine: Engine) -> None:
        """See `Scenario.grouped`."""
        if self.due():
            engine.kill()
