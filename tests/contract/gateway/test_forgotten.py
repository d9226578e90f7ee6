"""Producers that the table forgets leave their rows to readers, the audit and fsck as they were."""

from __future__ import annotations

import random
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pytest

from tarn.adapters import manifest_audit
from tarn.adapters.bulk import PlainBulk
from tarn.client.subscription import Subscription
from tarn.core.errors import OutcomeUnknownError, ReaderPlaceError
from tarn.core.offsets import SUMMARY_PREFIX
from tarn.core.producers import STREAM
from tarn.core.reading import ReaderPosition
from tarn.core.table_catalog import TableName
from tarn.gateway.inbox import Inbox
from tarn.gateway.rows_commit import book_in
from tarn.gateway.takes import Prepared
from tarn.gateway.writes import Receipt, SequenceError
from tarn.ingest.batch_commit import offsets_in
from tarn.keeper.fsck import fsck
from tarn.testing.faulty_catalog import Faults, FaultyCatalog
from tests.contract.gateway.test_inbox import ids, inbox, lake_with_table, settle, write
from tests.support.gateway import World, row
from tests.support.lake import BUCKET, TABLE, Lake, foreign_snapshot
from tests.support.plays import seeds
from tests.support.readers import Client, places
from tests.support.struck import audit_of

DAY_S = 86_400
OFFSETS = SUMMARY_PREFIX + STREAM


def read(reader: Subscription) -> list[int]:
    return [number for batch in reader for number in batch.rows["id"].to_pylist()]


def require_whole(lake: Lake) -> None:
    found = audit_of(lake)(TABLE)
    assert found.whole, found.findings
    report = fsck(PlainBulk(lake.store), manifest_audit, bucket=BUCKET, tell=lambda _: None)
    assert not report.damage


def test_rows_of_a_producer_that_is_forgotten_are_read_and_are_no_damage(world: World) -> None:
    now_ms = [time.time_ns() // 1_000_000]
    gateway = world.gateway(now_ms=lambda: now_ms[0])
    assert world.post(gateway, [row(1), row(2)], producer="p").status_code == 200
    client = Client(world.lake)
    behind = client.subscribe("behind", rows_max=1)
    assert next(behind).rows["id"].to_pylist() == [1]
    behind.commit()
    assert read(client.subscribe("had-all")) == [1, 2]
    now_ms[0] += 8 * DAY_S * 1_000
    assert world.post(gateway, [row(3)], producer="q").status_code == 200
    assert world.post(gateway, [row(4)], producer="r").status_code == 200
    assert world.post(gateway, [row(5)], producer="p", sequence=2).status_code == 409, "it is forgotten"
    assert sorted(read(client.subscribe("behind"))) == [2, 3, 4]
    assert sorted(read(client.subscribe("had-all"))) == [3, 4]
    assert sorted(read(client.subscribe("new"))) == [1, 2, 3, 4]
    assert world.lake.offsets() == [(0, 0), (0, 1), (0, 2), (1, 0)]
    require_whole(world.lake)


def test_rows_without_numbers_are_read_after_a_gateway_that_is_forgotten(world: World) -> None:
    now_ms = [time.time_ns() // 1_000_000]
    for number in range(3):
        gateway = world.gateway(now_ms=lambda: now_ms[0])
        assert world.post(gateway, [row(number)], key=f"k{number}").status_code == 200
        assert read(Client(world.lake).subscribe("g")) == [number]
        gateway.stop()
        now_ms[0] += 8 * DAY_S * 1_000
    assert sorted(read(Client(world.lake).subscribe("new"))) == [0, 1, 2]
    assert len(book_in(world.lake.table()).producers) == 1
    require_whole(world.lake)


def test_a_rollback_behind_a_reader_is_noticed_after_its_producer_was_forgotten() -> None:
    lake = lake_with_table()
    client = Client(lake)
    box = inbox(lake)
    targets = []
    for number in range(3):
        box.submit(write(number, producer="p", sequence=number))
        settle(box)
        targets.append(lake.table().head_id)
    lake.clock.now_s += 8 * DAY_S
    box = inbox(lake)
    for number, producer in ((3, "q"), (4, "r")):
        box.submit(write(number, producer=producer))
        settle(box)
    last = lake.table().head_id
    reader = client.subscribe()
    assert sorted(read(reader)) == [0, 1, 2, 3, 4]
    go_to(lake, targets[0])
    with pytest.raises(ReaderPlaceError, match="gateway/0 was read up to 4, the table ends at 1"):
        next(reader)
    go_to(lake, last)
    assert read(reader) == []
    go_to(lake, targets[1])
    box = inbox(lake)
    again = [box.submit(write(10, 11, 12, producer="r")), box.submit(write(13, producer="q"))]
    settle(box)
    with pytest.raises(
        SequenceError, match="rolled back to before all rows of producer 'r': begin with a new"
    ):
        again[0].result(0)
    assert again[1].result(0).accepted == 1, "nobody had its number before"
    assert lake.offsets() == [(0, 0), (0, 1), (1, 0)]
    with pytest.raises(ReaderPlaceError, match="gateway/0 was read up to 4, the table ends at 2"):
        next(reader)
    assert sorted(read(client.subscribe("new"))) == [0, 1, 13]
    require_whole(lake)


def test_a_rollback_that_is_undone_makes_no_row_of_a_producer_one_that_the_table_has() -> None:
    lake = lake_with_table()
    box = inbox(lake)
    heads = []
    for number in range(3):
        box.submit(write(number, producer="p", sequence=number))
        settle(box)
        heads.append(lake.table().head_id)
    lake.clock.now_s += 8 * DAY_S
    box = inbox(lake)
    for rows, producer in (((50,), "o"), ((100, 101), "q")):
        box.submit(write(*rows, producer=producer))
        settle(box)
    last = lake.table().head_id
    go_to(lake, heads[0])
    box = inbox(lake)
    refused = box.submit(write(100, producer="q"))
    plain = box.submit(write(60))
    settle(box)
    with pytest.raises(SequenceError):
        refused.result(0)
    assert plain.result(0).accepted == 1
    go_to(lake, last)
    box = inbox(lake)
    answers = [box.submit(write(100 + n, producer="q", sequence=n)) for n in (1, 2, 3)]
    settle(box)
    assert [answer.result(0).repeated for answer in answers] == [True, False, False]
    assert ids(lake) == [0, 1, 2, 50, 100, 101, 102, 103]


def go_to(lake: Lake, snapshot_id: int | None) -> None:
    updates = [
        {"action": "set-snapshot-ref", "ref-name": name, "type": kind, "snapshot-id": snapshot_id}
        for name, kind in (("main", "branch"), (f"tarn-offsets-{STREAM}", "tag"))
    ]
    lake.local.catalog.tables.commit(lake.local._slot(TableName(("bronze",), "orders")), [], updates)


@dataclass
class Play:
    """Producers that come and go at two gateways over weeks, with lost answers, and readers beside them."""

    seed: int
    number: int = 0
    answers: dict[int, Future[Receipt]] = field(default_factory=dict)
    rows: list[tuple[int, int]] = field(default_factory=list)
    position: ReaderPosition | None = None

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.lake = lake_with_table()
        self.client = Client(self.lake)
        self.faults = Faults(self.chance, rate=0.2)
        self.lake.catalog = FaultyCatalog(self.lake.local, self.faults, foreign=self._foreign)
        self.boxes = [self._new_box() for _ in range(2)]
        self.prepared: list[list[Prepared]] = [[], []]
        self.producers: dict[str, int] = {}

    def _foreign(self, table: Any) -> None:
        foreign_snapshot(self.lake.local, table, self.chance.getrandbits(62))

    def _new_box(self) -> Inbox:
        return inbox(self.lake, own=f"gateway:{self.chance.random()}")

    def send(self) -> None:
        self.number += 1
        name = self.chance.choice([None, f"c/{self.number}", *list(self.producers)[-3:]])
        sequence = self.producers.get(name, 0) if name is not None else 0
        if name is not None:
            self.producers[name] = sequence + 1
        sent = write(self.number, producer=name, sequence=sequence)
        self.answers[self.number] = self.chance.choice(self.boxes).submit(sent)

    def prepare(self) -> None:
        at = self.chance.randrange(2)
        if len(self.prepared[at]) < 2 and (made := self.boxes[at].prepare()) is not None:
            self.prepared[at].append(made)

    def commit(self) -> None:
        at = self.chance.randrange(2)
        if self.prepared[at]:
            self.boxes[at].commit(self.prepared[at].pop(0))

    def restart(self) -> None:
        at = self.chance.randrange(2)
        self.boxes[at], self.prepared[at] = self._new_box(), []

    def pass_time(self) -> None:
        self.lake.clock.now_s += self.chance.choice((1, 4, 8)) * DAY_S

    def read(self) -> None:
        reader = self.client.subscribe(
            None, start=self.position or "earliest", rows_max=self.chance.choice([1, 3, 1_000])
        )
        for batch in reader:
            self.rows += places(batch)
            self.position = ReaderPosition.from_json(batch.position.to_json())
            if self.chance.random() < 0.2:
                break

    def finish(self) -> None:
        self.faults.rate = 0.0
        self.faults.land_all()
        for box, prepared in zip(self.boxes, self.prepared, strict=True):
            for made in prepared:
                box.commit(made)
            settle(box)


@pytest.mark.plays
@pytest.mark.parametrize("seed", seeds(12))
def test_each_row_is_read_once_whichever_producers_are_forgotten(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tarn.core.producers.OWN_MAX", 3)
    play = Play(seed)
    for _ in range(250):
        play.chance.choice(
            [play.send] * 5
            + [play.prepare] * 4
            + [play.commit] * 4
            + [play.restart, play.pass_time, play.read]
        )()
    play.finish()
    play.position = play.position and ReaderPosition.from_json(play.position.to_json())
    for batch in play.client.subscribe(None, start=play.position or "earliest"):
        play.rows += places(batch)
    found = ids(play.lake)
    assert len(found) == len(set(found)), "a row twice"
    for number, answer in play.answers.items():
        if answer.done() and answer.exception() is None:
            assert number in found
        elif answer.done():
            assert isinstance(answer.exception(), (SequenceError, OutcomeUnknownError)), answer.exception()
    assert sorted(play.rows) == play.lake.offsets(), "the reader had each row once"
    state = play.lake.table()
    book, offsets = book_in(state), offsets_in(state, STREAM)
    assert offsets is not None
    assert len(book.producers) < len({*play.producers}) + len(play.boxes), "some were forgotten"
    assert set(offsets.next) == {number for number, _ in play.rows}, "each number keeps its offset"
    require_whole(play.lake)
