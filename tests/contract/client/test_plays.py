"""Random plays of ingest, merges, reaper, other writers and crashes: every row once per group (I13)."""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from tarn.client.subscription import Subscription
from tarn.core import small_files
from tarn.core.errors import OutcomeUnknownError, ReaderPlaceError, ReaderTakenError, TarnError
from tarn.core.history import Retention
from tarn.core.reading import ReaderPosition
from tarn.core.table_catalog import TableName
from tarn.testing.memory_topic import HOLE, Topic
from tarn_catalog.testing.faulty_store import Crash, Fault, FaultyStore, Op
from tests.contract.ingest.test_faults import faulty_lake
from tests.support.lake import order, spec
from tests.support.plays import seeds
from tests.support.readers import Client, places

Place = tuple[int, int]
STEPS = 40
OFFSETS = "tarn.offsets.orders"
FAULTS = (Fault.LOST_REPLY, Fault.RESET, Fault.LATE, Fault.CONFLICT, Fault.BUSY, Fault.BUSY_DONE)


@dataclass
class Sink:
    """What a reader did with its batches.

    Attributes:
        rows: places of the rows, in the order in which they were used.
        position: the position that the results have.
        done: places whose position was stored for the group, as far as the reader knows.
    """

    rows: list[Place] = field(default_factory=list)
    position: ReaderPosition | None = None
    done: set[Place] = field(default_factory=set)


class Play:
    """One play, drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.topic = Topic("orders", 3)
        self.lake, self.faults = faulty_lake(self.topic, seed, rate=0.2)
        self.lake.retention = Retention(newest=3, steps=(), total_min=0)
        partitioning = self.chance.choice(["[]", "[]", "['bucket(3, id)']"])
        self.spec = spec(partitioning=partitioning)
        self.client = Client(self.lake)
        self.exact, self.grouped = Sink(), Sink()
        self.deleted: set[Place] = set()
        self.writes = FaultyStore(self.lake.store, self._fault, late_ops=5)
        self.reader: Subscription | None = None
        self.number = 0
        self.crashes = self.reaped = self.rolled = 0
        self.left: list[int] = []
        self.feed()
        self.ingest()

    def _fault(self, op: Op) -> Fault | None:
        if op.kind == "put" and self.chance.random() < 0.25:
            return self.chance.choice(FAULTS)
        if self.chance.random() < 0.01:
            return Fault.CRASH
        return None

    # -- the table

    def feed(self) -> None:
        for _ in range(self.chance.randrange(1, 25)):
            self.number += 1
            what: Any = order(self.number)
            what = self.chance.choice([what] * 12 + [b"junk", HOLE])
            self.topic.send(self.chance.randrange(3), what)

    def ingest(self) -> None:
        self.lake.work(self.lake.ingestor(self.spec), turns=self.chance.randrange(20, 90))
        self.faults.land_some()

    def append(self) -> None:
        table = self.client.table()
        table.append(pa.Table.from_pylist([{"id": -1}], schema=table.schema().as_arrow()))

    def delete(self) -> None:
        if self.number < 2:
            return
        first = self.chance.randrange(1, self.number)
        last = first + self.chance.randrange(4)
        table = self.client.table()
        gone = table.scan(row_filter=f"id >= {first} and id <= {last}").to_arrow()
        if gone.num_rows == 0:
            return
        table.delete(f"id >= {first} and id <= {last}")
        self.deleted |= {(t["partition"], t["offset"]) for t in gone["_tarn"].to_pylist() if t is not None}

    def compact(self) -> None:
        table = self.client.table()
        rows = table.scan().to_arrow()
        if rows.num_rows:
            table.overwrite(rows)

    def roll_back(self) -> None:
        """Take the table back to a snapshot of ingest, or forward to one that was left so."""
        state = self.lake.table()
        left = [number for number in self.left if state.has_snapshot(number)]
        older = [s["snapshot-id"] for s in state.ancestors() if OFFSETS in s["summary"]]
        target = self.chance.choice([*left, *older])
        self.left.append(state.head_id or 0)
        names = {"main": "branch", "tarn-offsets-orders": "tag"}
        updates = [
            {"action": "set-snapshot-ref", "ref-name": name, "type": kind, "snapshot-id": target}
            for name, kind in names.items()
        ]
        slot = self.lake.local._slot(TableName(("bronze",), "orders"))
        self.lake.local.catalog.tables.commit(slot, [], updates)
        self.rolled += 1

    def reap(self) -> None:
        self.reaped += self.client.reap()

    # -- the readers

    def limits(self) -> dict[str, Any]:
        return {
            "rows_max": self.chance.choice([1, 3, 10, 1_000]),
            "files_max": self.chance.choice([1, 2, 64]),
        }

    def read_exactly(self) -> None:
        """A reader that keeps its position with its results; it dies between any two batches."""
        start = self.exact.position or "earliest"
        with contextlib.suppress(ReaderPlaceError):
            for batch in self.client.subscribe(None, start=start, **self.limits()):
                self.exact.rows += places(batch)
                self.exact.position = ReaderPosition.from_json(batch.position.to_json())
                if self.chance.random() < 0.2:
                    break

    def read_in_group(self) -> None:
        """A reader of a group, through a store whose writes fail; it may die with a batch half done."""
        try:
            if self.reader is None or self.chance.random() < 0.3:
                self.reader = self.client.subscribe(store=self.writes, auto_commit=False, **self.limits())
            for batch in self.reader:
                found = places(batch)
                again = self.grouped.done & set(found)
                assert not again, f"stored as done, and read again: {sorted(again)}"
                self.grouped.rows += found
                if self.chance.random() < 0.1:
                    raise Crash("with a batch that was used and not stored")
                self.reader.commit()
                self.grouped.done |= set(found)
                if self.chance.random() < 0.1:
                    return
        except Crash:
            self.reader = None
            self.crashes += 1
        except (OutcomeUnknownError, ReaderPlaceError, ReaderTakenError):
            self.reader = None
        except TarnError as error:
            if "a fault on purpose" not in error.message:
                raise
            self.reader = None

    def step(self) -> None:
        acts = [
            self.feed,
            self.ingest,
            self.ingest,
            self.read_exactly,
            self.read_in_group,
            self.read_in_group,
        ]
        acts += [self.chance.choice([self.append, self.delete, self.compact, self.reap, self.roll_back])]
        self.chance.choice(acts)()

    def finish(self) -> None:
        self.faults.land_all()
        self.faults.rate = 0.0
        for _ in range(3):
            self.lake.work(self.lake.ingestor(self.spec), turns=300)
        self.read_to_the_end()

    def read_to_the_end(self) -> None:
        reader = self.client.subscribe(None, start=self.exact.position or "earliest")
        for batch in reader:
            self.exact.rows += places(batch)
        self.writes.settle()
        for batch in self.client.subscribe():
            found = places(batch)
            assert not self.grouped.done & set(found)
            self.grouped.rows += found


@pytest.mark.plays
@pytest.mark.parametrize("seed", seeds(12))
def test_every_row_once_per_group_whatever_happens(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_files, "EVERY_S", 0.2)
    monkeypatch.setattr(small_files, "FIRST_LEVEL_MIN", 2)
    monkeypatch.setattr(small_files, "NEXT_LEVEL_MIN", 3)
    play = Play(seed)
    for _ in range(STEPS):
        play.step()
    play.finish()
    live = {(t["partition"], t["offset"]) for row in play.lake.rows() if (t := row["_tarn"]) is not None}
    exact = play.exact.rows
    assert len(exact) == len(set(exact)), "a row twice, although the position was kept with the results"
    # Rows that were deleted may have come back by a rollback, behind the readers.
    sure = live - play.deleted
    assert sure <= set(exact), f"lost: {sorted(sure - set(exact))[:10]}"
    assert set(exact) <= live | play.deleted
    assert sure <= set(play.grouped.rows), f"lost: {sorted(sure - set(play.grouped.rows))[:10]}"
    assert set(play.grouped.rows) <= live | play.deleted
    for partition in range(3):
        found = [offset for p, offset in exact if p == partition]
        assert found == sorted(found), "in order, across batches and restarts"
