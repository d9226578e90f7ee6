"""The inbox of a table: each row once, whatever is repeated, lost on its way, or raced by another gateway."""

from __future__ import annotations

import json
import random
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pytest

from tarn.core.table_catalog import TableName
from tarn.core.write_keys import KeyedWrite
from tarn.gateway.inbox import Inbox
from tarn.gateway.key_memory import KeyMemory
from tarn.gateway.takes import InboxLimits, Prepared
from tarn.gateway.writes import BusyError, Receipt, SequenceError, Write
from tarn.ingest.bookkeeper import Bookkeeper
from tarn.ingest.committer import Committer
from tarn.testing.faulty_catalog import Faults, FaultyCatalog
from tarn.testing.memory_topic import Topic
from tests.support.lake import TABLE, Lake, foreign_snapshot
from tests.support.plays import seeds

NAME = TableName(("bronze",), "orders")
LIMITS = InboxLimits(gap_s_max=0.2, wait_s_max=1e9)


def lake_with_table() -> Lake:
    lake = Lake(Topic("orders", 2))
    lake.work(lake.ingestor(), turns=3)
    return lake


def inbox(lake: Lake, *, own: str = "gateway-0", limits: InboxLimits = LIMITS) -> Inbox:
    context = lake.context()
    committer = Committer(lake.catalog, NAME, ports=context.ports)
    keeper = Bookkeeper(committer, clock=context.clock)
    keys = KeyMemory(lake.objects, new_name=lake.new_id, now_ms=context.ports.now_ms, inline_max=5)
    return Inbox(NAME, context, keeper.seat(), keys, own=own, limits=limits)


def row(number: int) -> bytes:
    return json.dumps({"id": number, "at": "2026-11-23T08:00:00Z"}).encode()


def write(*numbers: int, producer: str | None = "p", sequence: int = 0) -> Write:
    return Write(
        values=[row(n) for n in numbers], at_ms=1_700_000_000_000, producer=producer, sequence=sequence
    )


def settle(box: Inbox) -> None:
    for _ in range(50):
        prepared = box.prepare()
        if prepared is not None:
            box.commit(prepared)


def ids(lake: Lake) -> list[int]:
    return sorted(one["id"] for one in lake.rows())


def test_writes_that_wait_become_one_snapshot_with_one_file() -> None:
    lake = lake_with_table()
    box = inbox(lake)
    before = len(lake.files())
    answers = [box.submit(write(n, n + 1, producer=f"p{n}")) for n in (0, 10, 20)]
    settle(box)
    head = lake.table().head_id
    assert [a.result(0) for a in answers] == [
        Receipt(accepted=2, rejected={}, snapshot_id=head, repeated=False)
    ] * 3
    assert ids(lake) == [0, 1, 10, 11, 20, 21]
    assert len(lake.files()) == before + 1
    assert lake.offsets() == [(p, o) for p in range(3) for o in range(2)]


def test_a_bad_row_is_named_and_the_others_are_in() -> None:
    lake = lake_with_table()
    box = inbox(lake)
    bad = Write(values=[row(1), b'{"id": "x"}', row(3)], at_ms=0, producer="p")
    first, second = box.submit(bad), box.submit(write(4, producer="q"))
    settle(box)
    assert first.result(0).accepted == 2
    assert list(first.result(0).rejected) == [1]
    assert "id" in first.result(0).rejected[1]
    assert second.result(0) == Receipt(
        accepted=1, rejected={}, snapshot_id=lake.table().head_id, repeated=False
    )
    assert ids(lake) == [1, 3, 4]


def test_a_repeat_gets_the_answer_of_the_first_time() -> None:
    lake = lake_with_table()
    box = inbox(lake)
    bad = Write(values=[row(1), b"{}"], at_ms=0, producer="p")
    first = box.submit(bad)
    settle(box)
    for other in (box, inbox(lake, own="gateway-1")):
        again = other.submit(bad)
        settle(other)
        assert again.result(0).repeated
        assert (again.result(0).accepted, again.result(0).rejected) == (1, first.result(0).rejected)
    assert ids(lake) == [1]


def test_a_repeat_of_a_write_on_its_way_is_answered_with_it() -> None:
    lake = lake_with_table()
    box = inbox(lake)
    first = box.submit(write(1, 2))
    prepared = box.prepare()
    assert prepared is not None
    again = box.submit(write(1, 2))
    assert box.prepare() is None
    assert not again.done()
    box.commit(prepared)
    assert (first.result(0).repeated, again.result(0).repeated) == (False, True)
    assert ids(lake) == [1, 2]


def test_rows_that_came_in_another_order_are_one_commit() -> None:
    lake = lake_with_table()
    box = inbox(lake)
    late, first = box.submit(write(2, 3, sequence=1)), box.submit(write(1))
    before = lake.local.commits
    prepared = box.prepare()
    assert prepared is not None
    box.commit(prepared)
    assert (first.result(0).accepted, late.result(0).accepted) == (1, 2)
    assert lake.local.commits == before + 1
    assert ids(lake) == [1, 2, 3]


def test_rows_that_come_in_another_order_are_taken_in_theirs() -> None:
    lake = lake_with_table()
    box = inbox(lake)
    later = box.submit(write(3, sequence=2))
    assert box.prepare() is None
    first = box.submit(write(1, 2))
    settle(box)
    assert first.result(0).accepted + later.result(0).accepted == 3
    assert lake.offsets() == [(0, 0), (0, 1), (0, 2)]


@pytest.mark.parametrize(
    ("sequence", "rows", "words"),
    [(5, 1, "rows before it are missing"), (1, 3, "part of it is in the table already")],
)
def test_a_gap_and_an_overlap_are_refused_with_what_is_wanted(sequence: int, rows: int, words: str) -> None:
    lake = lake_with_table()
    box = inbox(lake)
    box.submit(write(1, 2))
    settle(box)
    wrong = box.submit(write(*range(rows), sequence=sequence))
    for _ in range(40):
        box.prepare()
    with pytest.raises(SequenceError, match=words) as caught:
        wrong.result(0)
    assert caught.value.fields["expected"] == 2
    assert ids(lake) == [1, 2]


def test_an_unknown_producer_begins_at_row_0() -> None:
    lake = lake_with_table()
    box = inbox(lake)
    wrong = box.submit(write(1, producer="new", sequence=7))
    for _ in range(40):
        box.prepare()
    with pytest.raises(SequenceError, match="does not know this producer"):
        wrong.result(0)


def test_clients_that_do_not_number_their_rows_share_a_producer_of_the_process() -> None:
    lake = lake_with_table()
    box = inbox(lake)
    answers = [box.submit(write(n, producer=None)) for n in range(3)]
    settle(box)
    answers += [box.submit(write(7, producer=None))]
    settle(box)
    assert [a.result(0).accepted for a in answers] == [1] * 4
    assert lake.offsets() == [(0, 0), (0, 1), (0, 2), (0, 3)]


def test_a_write_that_is_taken_back_leaves_its_place_to_others() -> None:
    lake = lake_with_table()
    size = write(1).bytes
    box = inbox(lake, limits=InboxLimits(waiting_bytes_max=2 * size, wait_s_max=1e9))
    first, second = box.submit(write(1)), box.submit(write(2, sequence=1))
    with pytest.raises(BusyError):
        box.submit(write(3, producer=None))
    assert box.withdraw(second)
    assert box.waiting == (1, size)
    assert not box.withdraw(second), "it is not there any more"
    third = box.submit(write(3, producer=None))
    settle(box)
    assert (first.result().accepted, third.result().accepted) == (1, 1)
    assert not box.withdraw(first), "it is in the table"
    assert ids(lake) == [1, 3]
    assert box.waiting == (0, 0)


def test_a_full_inbox_refuses_and_keeps_nothing_of_it() -> None:
    lake = lake_with_table()
    box = inbox(lake, limits=InboxLimits(waiting_writes_max=2))
    answers = [box.submit(write(n, producer=f"p{n}")) for n in range(2)]
    with pytest.raises(BusyError, match="2 writes"):
        box.submit(write(9, producer="late"))
    settle(box)
    assert [a.result(0).accepted for a in answers] == [1, 1]
    assert ids(lake) == [0, 1]


@dataclass
class Client:
    """A producer with its ledger: it sends in order and repeats what was not answered."""

    name: str
    chance: random.Random
    keyed: bool = False
    rows: int = 0
    acked: int = 0
    open: list[tuple[Write, Future[Receipt]]] = field(default_factory=list)
    good: set[int] = field(default_factory=set)
    sent: list[Write] = field(default_factory=list)

    def send(self, box: Inbox) -> None:
        """Send the next rows, or repeat the last ones that were answered."""
        start = self.rows
        if self.chance.random() < 0.2 and self.acked and not self.keyed:
            start = 0  # everything again, from the first row on
            count = self.acked
        elif self.chance.random() < 0.3 and self.sent and self.keyed:
            made = self.chance.choice(self.sent)
            self.open.append((made, box.submit(made)))
            return
        else:
            count = self.chance.randint(1, 4)
            self.rows += count
        self._send(box, start, count)

    def _send(self, box: Inbox, start: int, count: int) -> None:
        values = []
        for n in range(start, start + count):
            bad = n % 7 == 6
            values.append(b"[]" if bad else row(n))
            self.good |= set() if bad else {n}
        made = Write(values=values, at_ms=0, producer=self.name, sequence=start)
        if self.keyed:
            keyed = KeyedWrite.of("c-1", f"{self.name}-{start}", b"".join(values))
            made = Write(values=values, at_ms=0, keyed=keyed)
        self.sent.append(made)
        self.open.append((made, box.submit(made)))

    def collect(self, boxes: list[Inbox]) -> None:
        """Look at the answers; what failed, or belongs to a dead gateway, is sent again."""
        still = []
        for made, answer in self.open:
            if not answer.done():
                still.append((made, answer))
            elif answer.exception() is None:
                found = answer.result()
                assert found.accepted + len(found.rejected) == len(made.values)
                self.acked = max(self.acked, made.end)
            elif self.keyed or self.acked < made.end:
                still.append((made, self.chance.choice(boxes).submit(made)))
        self.open = still

    def forget(self, boxes: list[Inbox]) -> None:
        """The gateway is gone: everything that was not answered is sent again."""
        self.open = [(made, self.chance.choice(boxes).submit(made)) for made, _ in self.open]


@pytest.mark.plays
@pytest.mark.parametrize("seed", seeds(30))
def test_each_row_once_through_lost_answers_repeats_crashes_and_two_gateways(seed: int) -> None:
    chance = random.Random(seed)
    lake = lake_with_table()
    faults = Faults(chance, rate=0.3)

    def foreign(table: Any) -> None:
        foreign_snapshot(lake.local, table, chance.getrandbits(62))

    lake.catalog = FaultyCatalog(lake.local, faults, foreign=foreign)
    boxes = [inbox(lake, own=f"gateway-{n}") for n in range(2)]
    prepared: list[list[Prepared]] = [[], []]
    clients = [Client(f"p{n}", random.Random(chance.random()), keyed=n % 2 == 1) for n in range(4)]
    for _ in range(150):
        at = chance.randrange(2)
        box = boxes[at]
        step = chance.random()
        if step < 0.4:
            chance.choice(clients).send(box)
        elif step < 0.7 and len(prepared[at]) < 2:
            made = box.prepare()
            if made is not None:
                prepared[at].append(made)
        elif step < 0.95 and prepared[at]:
            box.commit(prepared[at].pop(0))
        elif step > 0.98:
            boxes[at] = inbox(lake, own=f"gateway-{chance.random()}")
            prepared[at] = []
            for client in clients:
                client.forget(boxes)
        for client in clients:
            client.collect(boxes)
    faults.rate = 0.0
    faults.land_all()
    for at, box in enumerate(boxes):
        for made in prepared[at]:
            box.put_back(made)
    for _ in range(60):
        for client in clients:
            client.collect(boxes)
        for box in boxes:
            settle(box)
        if not any(client.open for client in clients):
            break
    assert not any(client.open for client in clients), [c.open for c in clients]
    wanted = sorted(n for client in clients for n in client.good)
    assert ids(lake) == wanted
    assert len(set(lake.offsets())) == len(wanted)
    lake.history_is_a_chain()
    assert lake.table(TABLE).properties["tarn.gateway.producers"]


def test_a_commit_that_lands_while_the_next_one_is_prepared_disturbs_no_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lake = lake_with_table()
    box = inbox(lake)
    first = box.submit(keyed_write(1, "a"))
    prepared = box.prepare()
    assert prepared is not None
    second = box.submit(keyed_write(2, "b"))
    made = box._written

    def landed(*what: Any) -> Prepared:
        """The first commit ends between the judgement of the second one and its keys."""
        box.commit(prepared)
        return made(*what)

    monkeypatch.setattr(box, "_written", landed)
    later = box.prepare()
    monkeypatch.setattr(box, "_written", made)
    assert later is not None
    box.commit(later)
    settle(box)
    assert [one.result(0).repeated for one in (first, second)] == [False, False]
    repeat = [box.submit(keyed_write(number, key)) for number, key in ((1, "a"), (2, "b"))]
    settle(box)
    assert [one.result(0).repeated for one in repeat] == [True, True]
    other = inbox(lake, own="gateway-1")
    again = [other.submit(keyed_write(number, key)) for number, key in ((1, "a"), (2, "b"))]
    settle(other)
    assert [one.result(0).repeated for one in again] == [True, True]
    assert ids(lake) == [1, 2]


def keyed_write(number: int, key: str) -> Write:
    return Write(
        values=[row(number)],
        at_ms=1_700_000_000_000,
        keyed=KeyedWrite.of("someone", key, row(number)),
    )


def test_ids_of_others_do_not_shut_out_clients_without_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tarn.gateway.judge.PRODUCERS_MAX", 2)
    lake = lake_with_table()
    box = inbox(lake)
    answers = []
    for one in (
        write(1, producer="p"),
        write(2, producer="q"),
        write(3, producer="r"),
        write(4, producer=None),
    ):
        answers.append(box.submit(one))
        settle(box)
    with pytest.raises(BusyError, match="producers already"):
        answers[2].result(0)
    assert ids(lake) == [1, 2, 4]
