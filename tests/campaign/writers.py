"""Faults 9, 10, 11, 20 and 21: several writers of one table."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

from tarn.core.errors import ConflictError, TarnError
from tarn.core.outcome import Conflict
from tarn.core.table_catalog import CommitOutcome, TableName
from tarn.core.table_state import CommitRequest, TableState
from tarn_catalog.testing.faulty_store import Crash, Fault, Op
from tests.campaign.engine import TABLE, Engine
from tests.campaign.kills import Killed
from tests.campaign.scenario import Scenario, kind_of, of_orders
from tests.campaign.world import SLOT, STUCK_S
from tests.contract.catalog.schedule import Schedule
from tests.support import readers

RACERS = 32
FROZEN_TURNS_MAX = 150
FROZEN_S = 60.0


class Race(Scenario):
    """Fault 9."""

    number = 9
    name = "32 writers, one base, one barrier"
    what = "In each round exactly one of those left commits; after 32 rounds all are in, in one chain."

    def ended(self) -> None:
        """Race with what the engines left."""
        sim = self.sim
        if not sim.watch.lists:
            return
        left = {n: sim.catalog_on(_Turned(sim), 0) for n in range(RACERS)}
        for _ in range(RACERS):
            base = sim.watch.versions[-1].metadata
            won: list[int] = []
            sim.schedule = Schedule(sim.chance.getrandbits(32), fault_share=0.0, stuck_s=STUCK_S)
            actors = {f"writer-{n}": partial(self._try, n, catalog, base, won) for n, catalog in left.items()}
            sim.schedule.run(actors, crash_at={})
            if len(won) != 1:
                sim.watch.problems.append(
                    f"{len(won)} of {len(left)} writers got the answer that they won a round"
                )
                return
            del left[won[0]]
            sim.hit()

    def _try(self, number: int, catalog: Any, base: dict[str, Any], won: list[int]) -> None:
        head = next(s for s in base["snapshots"] if s["snapshot-id"] == base["current-snapshot-id"])
        own = 10**17 + len(self.sim.watch.versions) * RACERS + number
        kept = {k: v for k, v in head["summary"].items() if k == "operation" or k.startswith("total-")}
        snapshot = {
            **head,
            "snapshot-id": own,
            "parent-snapshot-id": head["snapshot-id"],
            "sequence-number": base["last-sequence-number"] + 1,
            "timestamp-ms": base["last-updated-ms"] + 1,
            "summary": {**kept, "racer": str(number)},
        }
        if base["format-version"] >= 3:
            snapshot |= {"first-row-id": base["next-row-id"], "added-rows": 0}
        at = {"ref-name": "main", "type": "branch", "snapshot-id": own}
        try:
            catalog.tables.commit(
                SLOT,
                [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": head["snapshot-id"]}],
                [{"action": "add-snapshot", "snapshot": snapshot}, {"action": "set-snapshot-ref", **at}],
            )
        except ConflictError:
            return
        won.append(number)

    def check(self) -> None:
        """Every writer is in the history once."""
        heads = [v.head for v in self.sim.watch.versions if v.head is not None and v.head >= 10**17]
        racers = {n for n in heads if n < 10**17 + 10**9}
        assert not self.happened or len(racers) == RACERS, f"{len(racers)} of {RACERS} writers are in"


class _Turned:
    """A store whose operations take turns."""

    def __init__(self, sim: Any) -> None:
        self._sim = sim

    def __getattr__(self, name: str) -> Any:
        whole = getattr(self._sim.store, name)

        def turned(*args: Any, **options: Any) -> Any:
            self._sim.turn()
            return whole(*args, **options)

        return turned


class Frozen(Scenario):
    """A process stands still in the middle of a commit until others went on."""

    kinds: tuple[str, ...] = ("data", "manifest", "list")

    def draw(self, chance: random.Random) -> None:
        """See `Scenario.draw`."""
        self.chance = chance
        self.wait = chance.randrange(5)
        self.left = 1

    def due(self) -> bool:
        """Whether others went on far enough."""
        raise NotImplementedError

    def op(self, who: str, op: Op) -> Fault | None:
        """See `Scenario.op`."""
        ours = who == "engine-0" and op.kind == "put" and of_orders(op.key)
        if not ours or kind_of(op.key) not in self.kinds or self.left == 0:
            return None
        if self.wait > 0:
            self.wait -= 1
            return None
        self.left -= 1
        self.begin_freeze()
        engine = self.sim.engines[0]
        engine.frozen = self.sim.acting()
        try:
            for _ in range(FROZEN_TURNS_MAX):
                if self.due():
                    self.sim.hit()
                    break
                self.sim.turn()
        finally:
            engine.frozen = None
        self.sim.lake.clock.now_s += FROZEN_S
        return None

    def begin_freeze(self) -> None:
        """Remember what is, to see others go on."""


class Zombie(Frozen):
    """Fault 10."""

    number = 10
    name = "a zombie writer"
    what = "One engine stands still for a minute with a batch half written; another goes on; it wakes up."
    issues = (11,)

    def engines(self, chance: random.Random) -> int:
        """The zombie and its successor."""
        return 2

    def begin_freeze(self) -> None:
        """See `Frozen`."""
        self.before = dict(self.sim.watch.next)

    def due(self) -> bool:
        """See `Frozen`."""
        return self.sim.watch.next != self.before


class Rebalance(Scenario):
    """Fault 11."""

    number = 11
    name = "two consumers hold one partition"
    what = "Two engines read and commit the same offsets at the same time; the second is refused, not added."
    issues = (11,)

    def engines(self, chance: random.Random) -> int:
        """Two on the same partitions."""
        return 2

    def replied(
        self, engine: Engine, table: TableName, request: CommitRequest, outcome: CommitOutcome
    ) -> None:
        """See `Scenario.replied`."""
        if table == TABLE and isinstance(outcome, Conflict):
            self.sim.hit()


class Compaction(Killed):
    """Fault 20."""

    number = 20
    name = "a merge of small files races a delete"
    what = "Another engine deletes rows while their file is merged: they do not come back, none is doubled."
    issues = (11,)
    thin = False
    merges = True
    bad_share = 0.0

    def draw(self, chance: random.Random) -> None:
        """See `Scenario.draw`."""
        super().draw(chance)
        self.wait = 0

    def format_version(self, chance: random.Random) -> int:
        """Version 2: pyiceberg deletes in no other."""
        return 2

    def request(self) -> str:
        """See `Scenario.request`."""
        if self.sim.sending is None or self.left == 0 or self.sim.sending[0] != TABLE:
            return "fine"
        added = [u["snapshot"] for u in self.sim.sending[1].updates if u["action"] == "add-snapshot"]
        if not added or added[0]["summary"]["operation"] != "replace":
            return "fine"
        if self.chance.random() < 0.2:
            return "fine"
        self.left -= 1
        # Both orders: the delete comes first, or the merge, whose answer is lost.
        return self.chance.choice(("foreign", "foreign", "reply"))

    def replied(
        self, engine: Engine, table: TableName, request: CommitRequest, outcome: CommitOutcome
    ) -> None:
        """See `Scenario.replied`."""
        kinds = [u["snapshot"]["summary"]["operation"] for u in request.updates if "snapshot" in u]
        if table == TABLE and kinds == ["replace"] and self.chance.random() < 0.4:
            self.foreign()

    def foreign(self) -> None:
        """Delete a row of the oldest small files, as pyiceberg does."""
        sim = self.sim
        with sim.undisturbed():
            rows = sim.lake.rows()
            if not rows:
                return
            row = sim.chance.choice(rows[-12:])
            client = readers.Client(sim.lake)
            client.table().delete(f"id == {row['id']}")
            readers._LAKES.clear()
        self.deleted.add((row["_tarn"]["partition"], row["_tarn"]["offset"]))
        sim.hit()


class Expiry(Scenario):
    """Fault 21."""

    number = 21
    name = "expiry races a new tag or branch"
    what = (
        "Snapshots expire while tags and branches are set on them: no ref points at nothing, no file is gone."
    )
    thin = True
    reaper = True

    def draw(self, chance: random.Random) -> None:
        """See `Scenario.draw`."""
        self.chance = chance
        self.kept: dict[str, int] = {}
        self.removed = 0

    def actors(self) -> dict[str, Callable[[], None]]:
        """Two that tag, one that expires; each works on what it read before."""
        return {"tagger-0": self._tag, "tagger-1": self._tag, "expirer": self._expire}

    def _each(self, update: Callable[[TableState], tuple[str, dict[str, Any]] | None]) -> None:
        sim = self.sim
        for _ in range(12):
            if sim.engines_left == 0:
                return
            for _ in range(self.chance.randrange(12)):
                sim.turn()
            replica = sim.free_replica(write=False)
            try:
                state = TableState(replica.local.catalog.tables.load(SLOT).parsed)
            except TarnError:
                continue
            made = update(state)
            if made is None:
                continue
            name, body = made
            for _ in range(self.chance.randrange(6)):
                sim.turn()
            replica = sim.free_replica(write=True)
            try:
                replica.local.catalog.tables.commit(
                    SLOT, [{"type": "assert-table-uuid", "uuid": state.uuid}], [body]
                )
            except (TarnError, Crash):
                sim.hit()
                continue
            finally:
                replica.busy = False
            if name:
                self.kept[name] = body["snapshot-id"]
            sim.hit()

    def _tag(self) -> None:
        def update(state: TableState) -> tuple[str, dict[str, Any]] | None:
            ids = [s["snapshot-id"] for s in state.metadata["snapshots"]]
            if not ids:
                return None
            name = f"t{self.chance.getrandbits(40)}"
            kind = self.chance.choice(("tag", "branch"))
            at = {"ref-name": name, "type": kind, "snapshot-id": self.chance.choice(ids[:3])}
            return name, {"action": "set-snapshot-ref", **at}

        self._each(update)

    def _expire(self) -> None:
        def update(state: TableState) -> tuple[str, dict[str, Any]] | None:
            held = {int(ref["snapshot-id"]) for ref in state.refs.values()}
            ids = [s["snapshot-id"] for s in state.metadata["snapshots"]]
            free = [n for n in ids if n not in held and n != state.head_id]
            if not free:
                return None
            some = self.chance.sample(free, self.chance.randrange(1, len(free) + 1))
            return "", {"action": "remove-snapshots", "snapshot-ids": some}

        self._each(update)

    def check(self) -> None:
        """Every ref that was confirmed is there, with its snapshot and all its rows."""
        metadata = self.sim.lake.table().metadata
        ids = {s["snapshot-id"] for s in metadata["snapshots"]}
        placed = {name: ref["snapshot-id"] for name, ref in metadata["refs"].items()}
        loose = {name for name, at in placed.items() if at not in ids}
        assert not loose, f"refs {sorted(loose)} point at nothing"
        gone = {name for name, at in self.kept.items() if placed.get(name) != at}
        assert not gone, f"refs {sorted(gone)} were confirmed, and are not there"
        for name, at in self.kept.items():
            refs = {**metadata["refs"], "main": {"snapshot-id": at, "type": "branch"}}
            version = {**metadata, "current-snapshot-id": at, "refs": refs}
            rows = self.sim.lake.rows(state=TableState(version))
            total = next(s for s in metadata["snapshots"] if s["snapshot-id"] == at)["summary"][
                "total-records"
            ]
            assert len(rows) == int(total), f"{name} has {len(rows)} of {total} rows"
