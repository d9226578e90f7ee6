"""The inbox of a table: each row once, whatever is repeated, lost on its way, or raced by another gateway."""

from __future__ import annotations

import dataclasses
import json
import random
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pytest

from tarn.adapters import partitions
from tarn.core.errors import OutcomeUnknownError, TooManyPartitionsError, UnavailableError
from tarn.core.history import Retention
from tarn.core.outcome import Rejected, Unknown
from tarn.core.pressure import DebtLimits, Pressure, of_debt
from tarn.core.table_catalog import CommitOutcome, TableCatalog, TableName
from tarn.core.table_state import CommitRequest, TableState, current_schema
from tarn.core.write_keys import WINDOW_S, KeyedWrite
from tarn.gateway import inbox as inbox_module
from tarn.gateway.inbox import Inbox
from tarn.gateway.key_memory import KeyMemory
from tarn.gateway.rows_commit import book_in
from tarn.gateway.tables import _in_doubt
from tarn.gateway.takes import InboxLimits, Prepared
from tarn.gateway.uploads import Sending
from tarn.gateway.writes import BusyError, Receipt, SequenceError, Write
from tarn.ingest.bookkeeper import Bookkeeper
from tarn.ingest.changes import Done, NeedsReplan
from tarn.ingest.committer import Committer
from tarn.testing.faulty_catalog import Faults, FaultyCatalog
from tarn.testing.lake import Clock
from tarn.testing.memory_topic import Topic
from tests.support.lake import TABLE, Lake, foreign_snapshot, spec
from tests.support.plays import seeds

NAME = TableName(("bronze",), "orders")
LIMITS = InboxLimits(gap_s_max=0.2, wait_s_max=1e9)


def lake_with_table() -> Lake:
    lake = Lake(Topic("orders", 2))
    lake.work(lake.ingestor(), turns=3)
    return lake


def inbox(
    lake: Lake, *, own: str = "gateway-0", limits: InboxLimits = LIMITS, retention: Retention | None = None
) -> Inbox:
    context = lake.context()
    committer = Committer(lake.catalog, NAME, ports=context.ports, retention=retention)
    keeper = Bookkeeper(committer, clock=context.clock)
    keys = KeyMemory(lake.objects, new_name=lake.new_id, now_ms=context.ports.now_ms, inline_max=5)
    sending = Sending()
    seat = keeper.seat(in_doubt=_in_doubt, on_wait=sending.look, require_going=sending.require_going)
    return Inbox(NAME, context, seat, keys, own=own, limits=limits, sending=sending)


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


def partitioned(monkeypatch: pytest.MonkeyPatch, *, limit: int) -> Lake:
    """A lake whose table has a partition for each id; a commit may touch so many of them."""
    lake = Lake(Topic("orders", 2))
    lake.work(lake.ingestor(spec(partitioning="[id]")), turns=3)
    monkeypatch.setattr(partitions, "PARTITIONS_PER_BATCH_MAX", limit)
    return lake


def test_writes_of_too_many_partitions_together_become_several_commits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lake = partitioned(monkeypatch, limit=4)
    box = inbox(lake)
    before = len(list(lake.table().ancestors()))
    keyed = KeyedWrite(key="alice k", digest="d")
    writes = [
        write(0, 1, producer="p"),
        write(10, 11, producer=None),
        write(2, 3, producer="p", sequence=2),
        dataclasses.replace(write(20, 21, producer=None), keyed=keyed),
        write(30, 31, producer=None),
        write(4, producer="p", sequence=4),
    ]
    answers = [box.submit(one) for one in writes]
    repeat = box.submit(writes[0])
    first = box.prepare()
    assert first is not None
    assert (len(first.parts), sum(file.records for file in first.change.files)) == (1, 2)
    left = [one.bytes for one in writes[1:]]
    assert box.waiting == (len(left), sum(left)), "what was put back is counted as before"
    box.commit(first)
    settle(box)
    assert [answer.result(0).accepted for answer in answers] == [2, 2, 2, 2, 2, 1]
    assert not any(answer.result(0).repeated for answer in answers)
    assert repeat.result(0).repeated
    assert ids(lake) == [0, 1, 2, 3, 4, 10, 11, 20, 21, 30, 31]
    assert box.waiting == (0, 0)
    snapshots = len(list(lake.table().ancestors())) - before
    assert 3 <= snapshots <= 6
    book = book_in(lake.table())
    assert set(book.producers) == {"p", "gateway-0"}
    assert lake.offsets() == sorted(
        (book.producers[name].number, o) for name, end in (("p", 5), ("gateway-0", 6)) for o in range(end)
    )
    for other in (box, inbox(lake, own="gateway-1")):
        again = [other.submit(one) for one in writes if one.producer or one.keyed]
        settle(other)
        assert [(a.result(0).accepted, a.result(0).repeated) for a in again] == [
            (n, True) for n in (2, 2, 2, 1)
        ]
    assert len(ids(lake)) == 11
    lake.history_is_a_chain()


def test_only_a_write_of_too_many_partitions_alone_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    lake = partitioned(monkeypatch, limit=4)
    box = inbox(lake)
    answers = [box.submit(write(n, producer=f"p{n}")) for n in range(3)]
    large = box.submit(write(*range(10, 15), producer="large"))
    answers += [box.submit(write(n, producer=f"p{n}")) for n in range(3, 9)]
    settle(box)
    with pytest.raises(TooManyPartitionsError, match="a batch of 5 rows touches 5 partitions, more than 4"):
        large.result(0)
    assert [answer.result(0).accepted for answer in answers] == [1] * 9
    assert ids(lake) == list(range(9))
    after = [box.submit(write(10 + n, producer=None)) for n in range(4)]
    prepared = box.prepare()
    assert prepared is not None
    assert len(prepared.parts) == 4, "writes that fit are taken together again"
    box.commit(prepared)
    assert all(answer.result(0).accepted == 1 for answer in after)


def test_a_bad_row_is_named_and_the_others_are_in() -> None:
    lake = lake_with_table()
    box = inbox(lake)
    bad = Write(values=[row(1), b'{"id": "x"}', row(3)], at_ms=0, producer="p")
    first, second = box.submit(bad), box.submit(write(4, producer="q"))
    settle(box)
    assert first.result(0).accepted == 2
    rejected = first.result(0).rejected or {}
    assert list(rejected) == [1]
    assert "id" in rejected[1]
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
    assert [one.result(0).accepted for one in (first, later)] == [2, 1]
    assert lake.offsets() == [(0, 0), (0, 1), (0, 2)]


def test_a_producer_with_many_rows_behind_it_waits_no_longer_than_a_new_one() -> None:
    lake = lake_with_table()
    box = inbox(lake, limits=InboxLimits(gap_s_max=0.2, wait_s_max=1e9, rows_max=2))
    old = box.submit(write(0, 1, 2, 3, 4, producer="old"))
    settle(box)
    assert old.result(0).accepted == 5
    second = box.submit(write(6, producer="old", sequence=6))
    first = box.submit(write(5, producer="old", sequence=5))
    others = [box.submit(write(10 + n, producer=f"new-{n}")) for n in range(4)]
    prepared = box.prepare()
    assert prepared is not None
    box.commit(prepared)
    assert [one.done() for one in (first, second, *others)] == [True, True, False, False, False, False]
    settle(box)
    assert ids(lake) == [0, 1, 2, 3, 4, 5, 6, 10, 11, 12, 13]


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
                assert found.accepted is not None
                assert found.rejected is not None
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
def test_each_row_once_through_lost_answers_repeats_crashes_and_two_gateways(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    lake = partitioned(monkeypatch, limit=10) if seed % 3 == 2 else lake_with_table()
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


def test_bad_rows_beside_good_ones_leave_the_commit_and_are_answered() -> None:
    lake = lake_with_table()
    box = inbox(lake)
    bad = [
        box.submit(Write(values=[b"{}"], at_ms=0, keyed=KeyedWrite.of("c", key, b"{}") if key else None))
        for key in ("k", "k", "")
    ]
    good = [box.submit(write(n, producer=name)) for n, name in ((1, None), (2, "p"))]
    settle(box)
    assert [(one.result(0).accepted, list(one.result(0).rejected or ())) for one in bad] == [(0, [0])] * 3
    assert [one.result(0).accepted for one in good] == [1, 1]
    after = box.submit(write(3, producer=None))
    settle(box)
    assert after.result(0).accepted == 1
    assert ids(lake) == [1, 2, 3]
    lake.history_is_a_chain()


def test_gateways_that_start_again_and_again_shut_out_no_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tarn.gateway.judge.PRODUCERS_MAX", 2)
    monkeypatch.setattr("tarn.core.producers.OWN_MAX", 3)
    lake = lake_with_table()
    lasting = inbox(lake, own="gateway:lasting")
    for turn in range(8):
        for box in (inbox(lake, own=f"gateway:{turn}"), lasting):
            answer = box.submit(write(10 * turn + (box is lasting), producer=None))
            settle(box)
            assert answer.result(0).accepted == 1
    book = book_in(lake.table(TABLE))
    assert list(book.producers) == ["gateway:6", "gateway:7", "gateway:lasting"]
    assert book.next_number == 4, "numbers of those that are forgotten go on"
    client = lasting.submit(write(100, producer="c/p"))
    settle(lasting)
    assert client.result(0).accepted == 1
    assert len(ids(lake)) == 17


def test_rows_of_a_gateway_that_was_forgotten_meanwhile_are_not_written_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tarn.core.producers.OWN_MAX", 1)
    monkeypatch.setattr("tarn.gateway.inbox.FORGOTTEN_S", -1.0)
    lake = lake_with_table()
    box = inbox(lake, own="gateway:a")
    answer = box.submit(write(1, producer=None))
    prepared = box.prepare()
    assert prepared is not None
    real = box._commits.commit

    def lost(change: Any, writer: Any) -> Any:
        """It lands, and by the time that the gateway looks its id and its snapshot are gone."""
        assert isinstance(real(change, writer), Done)
        other = inbox(lake, own="gateway:b")
        other.submit(write(2, producer=None))
        settle(other)
        judged = change.on(lake.table(TABLE))
        assert isinstance(judged, Rejected)
        return NeedsReplan(state=lake.table(TABLE), reason=judged.reason)

    with monkeypatch.context() as patch:
        patch.setattr(box._commits, "commit", lost)
        box.commit(prepared)
    settle(box)
    with pytest.raises(OutcomeUnknownError, match="forgotten"):
        answer.result(0)
    assert ids(lake) == [1, 2]
    again = box.submit(write(3, producer=None))
    settle(box)
    assert again.result(0).accepted == 1


@pytest.mark.parametrize("same", [True, False])
def test_rows_that_another_gateway_committed_are_answered_as_that_one_judged_them(
    monkeypatch: pytest.MonkeyPatch, same: bool
) -> None:
    """The columns may have changed between the two: then it is not said which rows are in."""
    lake = lake_with_table()
    one, other = inbox(lake), inbox(lake, own="gateway-1")
    sent = Write(values=[row(1), b"{}"], at_ms=0, producer="p")
    late = one.submit(sent)
    prepared = one.prepare()
    assert prepared is not None
    if not same:
        ((waiting, _),) = prepared.parts
        prepared = dataclasses.replace(prepared, parts=((waiting, {0: "by other columns"}),))
    first = other.submit(sent)
    settle(other)
    assert first.result(0).accepted == 1
    one.commit(prepared)
    settle(one)
    found = late.result(0)
    assert found.repeated
    assert (found.accepted, found.rejected) == ((1, first.result(0).rejected) if same else (None, None))
    assert ids(lake) == [1]


class LosesFirstAnswer:
    """A catalog that takes the first commit and does not answer; others go on before anybody looks."""

    def __init__(self, inner: TableCatalog, others: Callable[[], None]) -> None:
        self._inner = inner
        self._others: Callable[[], None] | None = others
        self.load, self.create, self.create_namespace = inner.load, inner.create, inner.create_namespace

    def commit(self, table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
        done = self._inner.commit(table, request, key=key)
        if self._others is None:
            return done
        others, self._others = self._others, None
        others()
        return Unknown(reason="the answer was lost")


class Away:
    """A catalog that takes no commit for a while, and says nothing of any."""

    def __init__(self, inner: TableCatalog, *, until_s: float, clock: Clock, outcome: CommitOutcome | None):
        self._inner = inner
        self._until_s = until_s
        self._clock = clock
        self._outcome = outcome
        self.load, self.create, self.create_namespace = inner.load, inner.create, inner.create_namespace

    def commit(self, table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
        if self._clock.now_s >= self._until_s:
            return self._inner.commit(table, request, key=key)
        if self._outcome is None:
            raise UnavailableError("no connection")
        return self._outcome


def test_a_commit_without_an_answer_is_its_own_when_its_snapshot_is_expired() -> None:
    lake = lake_with_table()
    newest = Retention(newest=1, steps=(), total_min=0)
    other = inbox(lake, own="gateway-1", retention=newest)
    landed: list[int | None] = []

    def others() -> None:
        landed.append(lake.table().head_id)
        for number in range(3, 9):
            other.submit(write(number, producer=f"p{number}"))
            settle(other)

    lake.catalog = LosesFirstAnswer(lake.local, others)
    box = inbox(lake, retention=newest)
    answers = [box.submit(write(number, producer=f"p{number}")) for number in (1, 2)]
    settle(box)
    state = lake.table()
    assert landed[0] not in [one["snapshot-id"] for one in state.metadata["snapshots"]], "expired"
    seen = Receipt(accepted=1, rejected={}, snapshot_id=state.head_id, repeated=False)
    assert [one.result(0) for one in answers] == [seen, seen]
    again = other.submit(write(1, producer="p1"))
    settle(other)
    assert again.result(0).repeated
    assert ids(lake) == list(range(1, 9))


def test_a_table_loaded_while_a_commit_ends_does_not_give_its_numbers_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows with the same numbers would be taken for those of the commit, and be in no table."""
    lake = lake_with_table()
    box = inbox(lake)
    first = box.submit(write(1, 2, producer=None))
    prepared = box.prepare()
    assert prepared is not None
    load, box._plan = box._commits.load, None

    def ends_meanwhile() -> TableState:
        before = load()
        if not first.done():
            box.commit(prepared)
        return before

    monkeypatch.setattr(box._commits, "load", ends_meanwhile)
    second = box.submit(write(3, producer=None))
    later = box.prepare()
    assert later is not None
    assert [(claim.start, claim.end) for claim in later.change.claims] == [(2, 3)]
    box.commit(later)
    assert [one.result(0).repeated for one in (first, second)] == [False, False]
    assert ids(lake) == [1, 2, 3]


@pytest.mark.parametrize("sent", [False, True])
def test_rows_whose_numbers_other_rows_have_are_planned_again(sent: bool) -> None:
    lake = lake_with_table()
    one, other = inbox(lake), inbox(lake)  # of one id, which does not happen
    answers = [box.submit(write(number, producer=None)) for number, box in enumerate((one, other))]
    made, late = one.prepare(), other.prepare()
    assert made is not None
    assert late is not None
    assert made.change.claims == late.change.claims
    if sent:
        other._commits.load()
    one.commit(made)
    other.commit(late)
    assert not answers[1].done()
    settle(other)
    assert [answer.result(0).repeated for answer in answers] == [False, False]
    assert ids(lake) == [0, 1]


def add_column(lake: Lake, name: str) -> None:
    metadata = lake.table().metadata
    schema, last = current_schema(metadata), int(metadata["last-column-id"])
    column = {"id": last + 1, "name": name, "required": False, "type": "string"}
    added = {"action": "add-schema", "schema": {**schema, "fields": [*schema["fields"], column]}}
    lake.local.catalog.tables.commit(
        lake.local._slot(NAME), [], [added, {"action": "set-current-schema", "schema-id": -1}]
    )


def keyed(number: int, key: str) -> Write:
    made = write(number, producer=None)
    return dataclasses.replace(made, keyed=KeyedWrite.of("ann", key, made.values[0]))


@pytest.mark.parametrize(
    ("outcome", "error"),
    [(None, UnavailableError), (Unknown(reason="no answer"), OutcomeUnknownError)],
    ids=["not-sent", "unknown"],
)
def test_a_key_is_known_after_a_commit_for_which_the_catalog_was_away_for_long(
    outcome: CommitOutcome | None, error: type[Exception]
) -> None:
    """A key counts from before its commit: one that landed much later would be forgotten at once."""
    lake = lake_with_table()
    until_s = lake.clock.now_s + 1.5 * WINDOW_S
    lake.catalog = Away(lake.local, until_s=until_s, clock=lake.clock, outcome=outcome)
    box = inbox(lake)
    answers: list[Future[Receipt]] = []
    while lake.clock.now_s < until_s + 180.0:
        answers.append(box.submit(keyed(1, "k")))
        settle(box)
        lake.clock.now_s += 60.0
    assert ids(lake) == [1]
    assert isinstance(answers[0].exception(0), error)
    assert answers[-1].result(0).repeated


def test_a_commit_that_waited_for_the_one_before_counts_its_keys_from_when_it_begins() -> None:
    lake = lake_with_table()
    box = inbox(lake)
    first, second = box.submit(write(1, producer=None)), box.submit(keyed(2, "k"))
    box._queue, later = deque([box._queue[0]]), box._queue[1]
    before = box.prepare()
    box._queue.append(later)
    prepared = box.prepare()
    assert before is not None
    assert prepared is not None
    lake.clock.now_s += 2 * WINDOW_S
    box.commit(before)
    box.commit(prepared)
    settle(box)
    lake.clock.now_s += WINDOW_S / 2
    again = box.submit(keyed(2, "k"))
    settle(box)
    assert [one.result(0).repeated for one in (first, second, again)] == [False, False, True]
    assert ids(lake) == [1, 2]


def test_a_table_looked_at_while_a_commit_ends_does_not_lend_it_older_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the decoder of the older columns a row with the new one would be a bad row."""
    lake = lake_with_table()
    older = lake.table()
    lake.catalog = LosesFirstAnswer(lake.local, lambda: add_column(lake, "note"))
    box = inbox(lake)
    first = box.submit(write(1))
    prepared = box.prepare()
    assert prepared is not None
    looks: list[TableState] = []

    def of_debt_meanwhile(state: TableState, limits: DebtLimits) -> Pressure:
        if not looks:
            looks.append(state)
            other = threading.Thread(target=box._look, args=(older, 0.0))  # as the inbox's thread loads it
            other.start()
            other.join(30)
        return of_debt(state, limits)

    monkeypatch.setattr(inbox_module, "of_debt", of_debt_meanwhile)
    box.commit(prepared)
    assert len(current_schema(looks[0].metadata)["fields"]) > len(current_schema(older.metadata)["fields"])
    noted = b'{"id": 2, "at": "2026-11-23T08:00:00Z", "note": "new"}'
    second = box.submit(Write(values=[noted], at_ms=0, producer="q"))
    settle(box)
    assert first.result(0).accepted == 1
    assert second.result(0).rejected == {}
    assert ids(lake) == [1, 2]
