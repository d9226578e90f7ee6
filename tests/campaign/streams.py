"""Faults 13 to 17: what happens to topics, offsets and records."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace as replaced
from typing import Any

from tarn.cli.ports import Clock, Offsets
from tarn.cli.rollback import RollbackPorts, roll_back
from tarn.core.errors import TarnError
from tarn.core.offsets import SUMMARY_PREFIX
from tarn.ingest.batch_commit import offsets_in
from tarn.testing.memory_topic import HOLE
from tarn_catalog.testing.faulty_store import Fault, Op
from tests.campaign.engine import TABLE, Engine
from tests.campaign.kills import Killed
from tests.campaign.scenario import Scenario, kind_of
from tests.campaign.world import SLOT
from tests.support.lake import order, spec

RESTORED_TURNS = 60


class OffsetsGone(Killed):
    """Fault 13."""

    number = 13
    name = "group offsets reset, or the log's start moved beyond the table"
    what = (
        "Lost group offsets are harmless; a log that no longer has the next offset stops the stream loudly."
    )
    issues = (11,)

    def draw(self, chance: random.Random) -> None:
        """See `Scenario.draw`."""
        super().draw(chance)
        self.wait = 0
        self.trims = chance.random() < 0.5
        self.trimmed = False

    def polled(self, engine: Engine) -> None:
        """See `Scenario.polled`."""
        sim = self.sim
        if sim.healing or self.trimmed or self.chance.random() < 0.5:
            return
        if not self.trims:
            if self.due():
                far = {p: len(log) + 5 for p, log in sim.topic.logs.items()}
                new = self.chance.choice(({}, dict.fromkeys(sim.topic.logs, 0), far))
                sim.group.clear()
                sim.group.update(new)
            return
        reading = engine.reading()
        for partition, log in sim.topic.logs.items():
            # What is read has its start in the table; without that rule, nobody would miss what expires here.
            known = sim.watch.next.get(partition, reading.get(partition))
            if known is not None and known + 1 < len(log) and self.due():
                sim.topic.starts[partition] = self.chance.randrange(known + 1, len(log))
                self.trimmed = True
                self.stops = frozenset({"OffsetGap"})
                return

    def ended(self) -> None:
        """The log is restored; until then no engine may have gone on in silence."""
        if self.trimmed and not self.sim.caught_up() and "OffsetGap" not in self.sim.stops:
            self.sim.watch.problems.append(
                "the next offset was gone from the log, and no engine stopped for it"
            )
        self.sim.topic.starts = dict.fromkeys(self.sim.topic.starts, 0)


class Recreated(Killed):
    """Fault 14."""

    number = 14
    name = "the topic is deleted and created again"
    what = "Offsets start at 0 again under another topic id: noticed; the new topic is read as a new stream."
    issues = (11,)

    def draw(self, chance: random.Random) -> None:
        """See `Scenario.draw`."""
        super().draw(chance)
        self.left, self.wait = 1, chance.randrange(2)
        self.old: list[tuple[int, int, int | None]] = []

    def polled(self, engine: Engine) -> None:
        """See `Scenario.polled`."""
        sim = self.sim
        if sim.healing or self.chance.random() < 0.5 or not self.due():
            return
        self.old = [(p, o, sent.id) for p, records in sim.ledger.items() for o, sent in records.items()]
        self.stops = frozenset({"SourceChanged", "OffsetGap"})
        self.other_rows = True
        sim.topic.topic_id = "id-2"
        sim.topic.logs = {p: [] for p in sim.topic.logs}
        sim.ledger = {p: {} for p in sim.topic.logs}
        sim.send(self.chance.randrange(3, 40))

    def ended(self) -> None:
        """Do what the message says: go on under a new name of the stream."""
        sim = self.sim
        if not self.happened:
            return
        state = sim.lake.table()
        held = offsets_in(state, "orders")
        ends = dict(held.next) if held is not None else {}
        self.former = [(p, o, n) for p, o, n in self.old if o < ends.get(p, 0)]
        body = sim.spec.spec
        sim.spec = spec(
            format_version=body.table.format_version,
            replicas=body.replicas,
            direct=body.commit == "direct",
            stream="rewritten",
        )
        sim.watch.stream, sim.watch.rewritten = "rewritten", True
        sim.watch.versions[-1] = replaced(sim.watch.versions[-1], next={})


class Unmarked(Killed):
    """Fault 15."""

    number = 15
    name = "the snapshot with the offsets expired, or rolled back"
    what = "Foreign commits and an expiry leave only the tag; a rollback takes rows and offsets together."
    thin = False
    bad_share = 0.0

    def draw(self, chance: random.Random) -> None:
        """See `Scenario.draw`."""
        super().draw(chance)
        self.how = chance.choice(("expire", "rewind", "keep"))

    def actors(self) -> dict[str, Callable[[], None]]:
        """Somebody who maintains the table."""
        return {"maintainer": self._maintain}

    def _maintain(self) -> None:
        sim = self.sim
        while sim.engines_left > 0 and self.left > 0:
            sim.turn()
            if len(sim.watch.lists) < 2 or self.chance.random() < 0.7:
                continue
            self.left -= 1
            with sim.undisturbed():
                (self._expire if self.how == "expire" else self._roll_back)()

    def _expire(self) -> None:
        sim = self.sim
        for _ in range(3):
            sim.foreign()
        state = sim.lake.table()
        held = {int(ref["snapshot-id"]) for ref in state.refs.values()} | {state.head_id}
        old = [s["snapshot-id"] for s in state.metadata["snapshots"] if s["snapshot-id"] not in held]
        update = {"action": "remove-snapshots", "snapshot-ids": old}
        sim.lake.local.catalog.tables.commit(SLOT, [], [update])
        head = state.head
        assert head is not None
        if SUMMARY_PREFIX + "orders" not in head["summary"]:
            sim.hit()

    def _roll_back(self) -> None:
        sim = self.sim
        state = sim.lake.table()
        ours = [s["snapshot-id"] for s in state.ancestors() if SUMMARY_PREFIX + "orders" in s["summary"]]
        if len(ours) < 2:
            return
        target = self.chance.choice(ours[1:])
        before = dict(sim.watch.next)
        there = next(v.next for v in sim.watch.versions if v.head == target)
        sim.watch.rewritten = True
        bounds = {p: (sim.topic.starts[p], len(log)) for p, log in sim.topic.logs.items()}
        ports = RollbackPorts(
            catalog=sim.lake.local,
            objects=sim.lake.objects,
            bounds=lambda: {"orders": bounds},
            identity=lambda _: sim.topic.identity,
            new_key=sim.new_key,
            new_snapshot_id=lambda: sim.chance.getrandbits(62) + 1,
            now_ms=sim.now_ms,
            clock=Clock(wait=lambda _: None),
        )
        offsets = Offsets.REWIND if self.how == "rewind" else Offsets.KEEP
        if self.how == "keep":
            gone = [(p, o) for p, end in before.items() for o in range(there.get(p, 0), end)]
            self.deleted |= {(p, o) for p, o in gone if o in sim.ledger[p]}
        try:
            roll_back(ports, TABLE, str(target), offsets)
        except TarnError as e:
            sim.watch.problems.append(f"the rollback to {target} was refused: {e}")
            return
        sim.hit()


class Poison(Killed):
    """Fault 16."""

    number = 16
    name = "poison records"
    what = (
        "Broken, null and wrong records, with kills and lost answers: each is one dead letter; all goes on."
    )
    issues = (11,)

    def record(self, chance: random.Random, number: int) -> Any:
        """See `Scenario.record`."""
        if chance.random() < 0.6:
            return order(number)
        self.sim.hit()
        return chance.choice(
            (
                b"junk %d" % number,
                b"",
                b"[1, 2]",
                b'{"id": "x"}',
                b'{"at": "2026-11-21T08:00:00Z"}',
                b'{"id": 1.5}',
                b'{"id": 99999999999999999999}',
                b'{"id": 1} {"id": 2}',
                b'{"id": 1, "at": "never"}',
                b"\xff\xfe",
                None,
            )
        )

    def op(self, who: str, op: Op) -> Fault | None:
        """See `Scenario.op`."""
        if not self.sim.watch.versions or "dead_letters" not in op.key or op.kind != "put" or self.left == 0:
            return None
        if self.chance.random() < 0.8:
            return None
        self.left -= 1
        if who.startswith("engine"):
            return self.chance.choice((Fault.CRASH, Fault.CRASH_DONE))
        return Fault.LOST_REPLY if kind_of(op.key) == "pointer" else None

    def request(self) -> str:
        """See `Scenario.request`."""
        return self.chance.choice(("fine", "fine", "fine", "reply", "lost", "late"))


class Transactions(Scenario):
    """Fault 17."""

    number = 17
    name = "aborted and open transactions"
    what = "Aborted records never appear, open transactions are waited for, offsets without record are read."
    issues = (11,)

    def draw(self, chance: random.Random) -> None:
        """See `Scenario.draw`."""
        self.chance = chance

    def record(self, chance: random.Random, number: int) -> Any:
        """See `Scenario.record`."""
        if chance.random() < 0.75:
            return super().record(chance, number)
        self.sim.hit()
        return HOLE

    def actors(self) -> dict[str, Callable[[], None]]:
        """A producer with transactions: nothing beyond an open one is visible."""
        return {"transactions": self._transact}

    def _transact(self) -> None:
        sim = self.sim
        for _ in range(4):
            for _ in range(self.chance.randrange(40)):
                sim.turn()
            if sim.engines_left == 0:
                return
            count = self.chance.randrange(1, 6)
            if self.chance.random() < 0.5:
                partition = self.chance.randrange(len(sim.topic.logs))
                sim.topic.send(partition, *([HOLE] * (count + 1)))
            else:
                sim.send(count)
                for log in sim.topic.logs.values():
                    log.append(HOLE)
            sim.hit()
