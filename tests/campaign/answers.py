"""Faults 4 to 8 and 19: answers that are lost, late, wrong or refusing."""

from __future__ import annotations

import random

from tarn.core.table_catalog import CommitDone, CommitOutcome, TableName
from tarn.core.table_state import CommitRequest
from tarn_catalog.testing.faulty_store import Fault, Op
from tests.campaign.engine import TABLE, Engine
from tests.campaign.kills import Killed
from tests.campaign.scenario import kind_of, of_orders


class LostReply(Killed):
    """Fault 4."""

    number = 4
    name = "the answer is lost after the commit, the client lives"
    what = "The store's answer to the catalog, or the catalog's to ingest, is dropped; success is found once."

    def draw(self, chance: random.Random) -> None:
        """See `Scenario.draw`."""
        super().draw(chance)
        self.left += 2

    def op(self, who: str, op: Op) -> Fault | None:
        """See `Scenario.op`."""
        swap = who.startswith("catalog") and op.kind == "put" and kind_of(op.key) == "pointer"
        return Fault.LOST_REPLY if swap and self.chance.random() < 0.5 and self.due() else None

    def request(self) -> str:
        """See `Scenario.request`."""
        return "reply" if self.chance.random() < 0.5 and self.due() else "fine"


class LostReplyThenForeign(Killed):
    """Fault 5."""

    number = 5
    name = "the answer is lost, and another writer commits on top"
    what = "The pointer is no longer the own one; the own snapshot is an ancestor, so the commit succeeded."

    def draw(self, chance: random.Random) -> None:
        """See `Scenario.draw`."""
        super().draw(chance)
        self.next = "fine"
        self.forge = False

    def op(self, who: str, op: Op) -> Fault | None:
        """See `Scenario.op`."""
        if not who.startswith("catalog") or kind_of(op.key) != "pointer" or not of_orders(op.key):
            return None
        if self.forge and op.kind == "get":
            self.forge = False
            if self.sim.foreign():
                self.sim.hit()
            return None
        if op.kind == "put" and self.chance.random() < 0.3 and self.sim.watch.versions and self.left > 0:
            self.left -= 1
            self.forge = True
            return Fault.LOST_REPLY
        return None

    def request(self) -> str:
        """See `Scenario.request`."""
        if self.left == 0 or self.chance.random() < 0.6:
            return "fine"
        self.left -= 1
        self.next = "on top"
        return "reply"

    def replied(
        self, engine: Engine, table: TableName, request: CommitRequest, outcome: CommitOutcome
    ) -> None:
        """See `Scenario.replied`."""
        if self.next == "fine" or not isinstance(outcome, CommitDone):
            return
        self.next = "fine"
        for _ in range(self.chance.choice((1, 1, 4))):
            if self.sim.foreign():
                self.sim.hit()


class Broken(Killed):
    """Fault 6."""

    number = 6
    name = "500, 502, 504 or a cut connection"
    what = "The outcome is unknown; no file is deleted, and the same key gives the first outcome again."

    def draw(self, chance: random.Random) -> None:
        """See `Scenario.draw`."""
        super().draw(chance)
        self.left, self.wait = self.left + 3, 0

    def request(self) -> str:
        """See `Scenario.request`."""
        if self.chance.random() < 0.4 or not self.due():
            return "fine"
        return self.chance.choice(("lost", "reply", "late", "late-twice", "away"))

    def op(self, who: str, op: Op) -> Fault | None:
        """See `Scenario.op`."""
        if op.kind == "delete" and who.startswith("engine"):
            self.sim.watch.problems.append(f"{who} deleted {op.key}")
        return None

    def check(self) -> None:
        """Send every commit that happened again, with its key."""
        listed = self.sim.watch.lists
        before = self.sim.watch.versions[-1].location
        for key, (table, request) in self.sim.sent.items():
            own = {u["snapshot"]["manifest-list"] for u in request.updates if u["action"] == "add-snapshot"}
            if table == TABLE and own & listed:
                again = self.sim.lake.local.commit(table, request, key=key)
                assert isinstance(again, CommitDone), f"the repeat of {key} was answered with {again}"
        assert self.sim.watch.versions[-1].location == before, "a repeat changed the table"


class Refused(Killed):
    """Fault 7."""

    number = 7
    name = "a definite refusal (409)"
    what = "Another writer was first: read again, judge again, rebase; the files are used again."

    def draw(self, chance: random.Random) -> None:
        """See `Scenario.draw`."""
        super().draw(chance)
        self.left, self.wait = self.left + 3, 0
        self.data: set[str] = set()
        self.live: set[str] = set()

    def engines(self, chance: random.Random) -> int:
        """One: a second one's files may remain unused."""
        return 1

    def content(self) -> bool:
        """Whether nothing is under way: what the end of a process cuts off leaves unused files."""
        return self.sim.watch.committing == 0 and not self.sim.watch.merging

    def request(self) -> str:
        """See `Scenario.request`."""
        return "foreign" if self.sim.watch.lists and self.chance.random() < 0.7 and self.due() else "fine"

    def op(self, who: str, op: Op) -> Fault | None:
        """See `Scenario.op`."""
        if op.kind == "put" and kind_of(op.key) == "data" and of_orders(op.key):
            self.data.add(op.key)
        return None

    def replied(
        self, engine: Engine, table: TableName, request: CommitRequest, outcome: CommitOutcome
    ) -> None:
        """See `Scenario.replied`."""
        if table == TABLE and isinstance(outcome, CommitDone):
            self.live |= {e.data_file.file_path.partition("/tarn/")[2] for e in self.sim.lake.files()}

    def check(self) -> None:
        """Every data file that was written is, or was, in the table."""
        cut_off = {path.partition("/tarn/")[2] for path in self.sim.watch.cut_off}
        left = {key for key in self.data if key not in self.live | cut_off}
        assert not left, f"written and not used: {sorted(left)}"


class ToldApart(Killed):
    """Fault 8."""

    number = 8
    name = "412, 409 and 503 of the store distinguished"
    what = "409 and 503 are sent again after a look; 503 proves nothing; 412 is looked at, not repeated."

    def draw(self, chance: random.Random) -> None:
        """See `Scenario.draw`."""
        super().draw(chance)
        self.left += 7

    def op(self, who: str, op: Op) -> Fault | None:
        """See `Scenario.op`."""
        if op.kind != "put" or kind_of(op.key) == "other":
            return None
        swap = who.startswith("catalog") and kind_of(op.key) == "pointer"
        if self.chance.random() < (0.3 if swap else 0.85):
            return None
        if self.left == 0:
            return None
        self.left -= 1
        self.sim.hit()
        if who.startswith("engine") or who == "reaper":
            return self.chance.choice((Fault.BUSY, Fault.BUSY_DONE, Fault.RESET, Fault.LOST_REPLY))
        return self.chance.choice((Fault.CONFLICT, Fault.BUSY, Fault.BUSY_DONE, Fault.RESET))


class Late(Killed):
    """Fault 19."""

    number = 19
    name = "a late request joins a later commit"
    what = "A request that timed out arrives after later commits, once or twice: refused, or found as done."
    issues = (11,)
    merges = True

    def draw(self, chance: random.Random) -> None:
        """See `Scenario.draw`."""
        super().draw(chance)
        self.left += 3

    def request(self) -> str:
        """See `Scenario.request`."""
        if self.chance.random() < 0.4 or not self.due():
            return "fine"
        return self.chance.choice(("late", "late-twice"))

    def op(self, who: str, op: Op) -> Fault | None:
        """See `Scenario.op`."""
        if op.kind != "put" or kind_of(op.key) == "other" or self.chance.random() < 0.85:
            return None
        return Fault.LATE if self.due() else None
