"""The bookkeeper of a table, with threads: who waits together is committed together, and nobody hangs."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from tarn.core.errors import OutcomeUnknownError, UnavailableError
from tarn.core.outcome import Unknown
from tarn.core.table_catalog import CommitOutcome, TableName
from tarn.core.table_state import CommitRequest, TableState, commit_ids
from tarn.ingest.bookkeeper import Bookkeeper, Bookkeepers, Seat
from tarn.ingest.changes import Done
from tarn.ingest.committer import MEMBERS_MAX, Committer
from tarn.ingest.context import StoppedError
from tarn.testing.memory_topic import Topic
from tests.support.batches import Hands
from tests.support.lake import Lake

WITHIN_S = 30.0


class Gate:
    """A catalog whose next commits wait at a gate, and may fail behind it."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.load: Callable[[TableName], TableState] = lake.local.load
        self.entered = threading.Semaphore(0)
        self.open = threading.Event()
        self.members: list[int] = []
        self.errors: list[BaseException] = []

    def commit(self, table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
        self.members.append(len(commit_ids(request.updates[0]["snapshot"]["summary"])))
        self.entered.release()
        assert self.open.wait(WITHIN_S)
        if self.errors:
            raise self.errors.pop(0)
        return self.lake.local.commit(table, request, key=key)


class Desk:
    """A bookkeeper behind a gate, and readers that hand over from threads of their own."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.lake = Lake(Topic("orders", 3))
        self.hands = Hands(self.lake)
        self.gate = Gate(self.lake)
        self.pool = pool
        self.stopped = False
        context = self.lake.context()

        def sleep(_seconds: float) -> None:
            if self.stopped:
                raise StoppedError
            time.sleep(0.005)

        committer = Committer(
            self.gate,  # type: ignore[arg-type]
            self.lake.ingestor().table,
            ports=replace(context.ports, sleep=sleep),
        )
        self.keeper = Bookkeeper(committer, clock=time.monotonic)

    def seat(self, **options: Any) -> Seat:
        return self.keeper.seat(**options)

    def hand_over(self, change: Any, seat: Seat | None = None) -> Future[Any]:
        member = self.hands.member(change)
        return self.pool.submit((seat or self.seat()).commit, change, member.writer)

    def hold(self) -> Future[Any]:
        """Hand over a first change, whose commit is under way at the gate."""
        first = self.hand_over(self.hands.batch(0, 0, 1))
        assert self.gate.entered.acquire(timeout=WITHIN_S)
        return first

    def queued(self, count: int) -> None:
        """Wait until so many changes wait."""
        until_s = time.monotonic() + WITHIN_S
        while len(self.keeper._queue) < count:
            assert time.monotonic() < until_s, f"{len(self.keeper._queue)} of {count} wait"
            time.sleep(0.001)


@pytest.fixture
def desk() -> Iterator[Desk]:
    with ThreadPoolExecutor(MEMBERS_MAX + 10) as pool:
        made = Desk(pool)
        try:
            yield made
        finally:
            made.stopped = True
            made.gate.open.set()


def test_what_waits_while_a_commit_is_under_way_is_one_snapshot(desk: Desk) -> None:
    first = desk.hold()
    others = [desk.hand_over(desk.hands.batch(p, 0, 4)) for p in (1, 2)]
    others.append(desk.hand_over(desk.hands.batch(0, 1, 9)))
    desk.queued(3)
    desk.gate.open.set()
    results = [one.result(WITHIN_S) for one in [first, *others]]
    assert all(isinstance(one, Done) and one.by_us for one in results)
    assert desk.gate.members == [1, 3]
    assert sum(one.first for one in results) == 2, "each snapshot is counted once"
    assert desk.hands.next() == {0: 9, 1: 4, 2: 4}


def test_a_group_has_a_limit_and_all_have_their_turn(desk: Desk) -> None:
    first = desk.hold()
    others = [desk.hand_over(desk.hands.batch(0, 0, 1, stream=f"s{n}")) for n in range(MEMBERS_MAX + 3)]
    desk.queued(len(others))
    desk.gate.open.set()
    assert all(one.result(WITHIN_S).by_us for one in [first, *others])
    assert desk.gate.members == [1, MEMBERS_MAX, 3]


def test_a_reader_that_is_to_stop_does_not_wait_for_the_commit_of_another(desk: Desk) -> None:
    """The catalog may be away for long; what nobody has taken yet was never sent."""
    going = threading.Event()

    def require_going() -> None:
        if going.is_set():
            raise StoppedError

    first = desk.hold()
    waits = desk.hand_over(desk.hands.batch(1, 0, 4), desk.seat(require_going=require_going))
    stays = desk.hand_over(desk.hands.batch(2, 0, 4))
    desk.queued(2)
    going.set()
    with pytest.raises(StoppedError):
        waits.result(WITHIN_S)
    assert not first.done()
    desk.gate.open.set()
    assert first.result(WITHIN_S).by_us
    assert stays.result(WITHIN_S).by_us
    assert desk.hands.next() == {0: 1, 2: 4}


@pytest.mark.parametrize("landed", [False, True])
def test_a_reader_that_is_to_stop_leaves_the_commit_of_others_to_them(desk: Desk, landed: bool) -> None:
    """It leads a snapshot of three whose outcome is unknown, while the catalog is away."""
    going, back, sent = threading.Event(), threading.Event(), threading.Semaphore(0)
    members: list[int] = []

    def require_going() -> None:
        if going.is_set():
            raise StoppedError

    def commit(table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
        members.append(len(commit_ids(request.updates[0]["snapshot"]["summary"])))
        if back.is_set():
            return desk.lake.local.commit(table, request, key=key)
        if landed:
            desk.lake.local.commit(table, request, key=key)
        sent.release()
        raise UnavailableError("no answer")

    def load(table: TableName) -> TableState:
        if members and not back.is_set():
            raise UnavailableError("no answer")
        return desk.lake.local.load(table)

    desk.gate.commit, desk.gate.load = commit, load  # type: ignore[method-assign]
    seats = [desk.seat(gather_s=60.0, require_going=require_going), desk.seat(), desk.seat()]
    for seat in seats[1:]:
        seat.turn.close(time.monotonic())
    leads = desk.hand_over(desk.hands.batch(1, 0, 4), seats[0])
    desk.queued(1)
    others = [desk.hand_over(desk.hands.batch(p, 0, 3), seats[p or 1]) for p in (2, 0)]
    assert sent.acquire(timeout=WITHIN_S)
    assert members == [3]
    going.set()
    with pytest.raises(StoppedError):
        leads.result(WITHIN_S)
    assert not any(one.done() for one in others), "the catalog is away"
    back.set()
    assert all(one.result(WITHIN_S).by_us for one in others)
    assert members == ([3] if landed else [3, 2])
    assert desk.hands.next() == ({0: 3, 1: 4, 2: 3} if landed else {0: 3, 2: 3})


def test_a_change_that_was_sent_by_one_who_was_given_up_is_in_doubt(desk: Desk) -> None:
    """It waits for its turn as if it were new, and the request with it may still be applied."""
    going, sent = threading.Event(), threading.Semaphore(0)
    leader: list[int] = []

    def require_leading() -> None:
        if going.is_set():
            raise StoppedError

    def require_following() -> None:
        if going.is_set() and threading.get_ident() not in leader:
            raise UnavailableError("nothing was written")

    def commit(table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
        desk.gate.members.append(len(commit_ids(request.updates[0]["snapshot"]["summary"])))
        leader.append(threading.get_ident())
        sent.release()
        return Unknown(reason="no answer")

    desk.gate.commit = commit  # type: ignore[method-assign]
    leads = desk.seat(gather_s=60.0, require_going=require_leading)
    follows = desk.seat(
        require_going=require_following, in_doubt=lambda e: OutcomeUnknownError(f"in doubt: {e}")
    )
    follows.turn.close(time.monotonic())
    first = desk.hand_over(desk.hands.batch(1, 0, 4), leads)
    desk.queued(1)
    second = desk.hand_over(desk.hands.batch(2, 0, 3), follows)
    assert sent.acquire(timeout=WITHIN_S)
    assert desk.gate.members[0] == 2
    going.set()
    with pytest.raises(StoppedError):
        first.result(WITHIN_S)
    with pytest.raises(OutcomeUnknownError, match="in doubt: nothing was written"):
        second.result(WITHIN_S)


def test_a_lone_reader_waits_for_nobody(desk: Desk) -> None:
    desk.gate.open.set()
    began_s = time.monotonic()
    assert desk.hand_over(desk.hands.batch(0, 0, 4), desk.seat(gather_s=60.0)).result(WITHIN_S).by_us
    assert time.monotonic() - began_s < WITHIN_S


def test_a_commit_waits_for_a_neighbour_whose_files_are_on_the_way(desk: Desk) -> None:
    desk.gate.open.set()
    one, other = desk.seat(gather_s=60.0), desk.seat(gather_s=60.0)
    other.turn.close(time.monotonic())
    first = desk.hand_over(desk.hands.batch(0, 0, 4), one)
    desk.queued(1)
    time.sleep(0.05)
    assert desk.gate.members == []
    second = desk.hand_over(desk.hands.batch(1, 0, 4), other)
    assert [found.result(WITHIN_S).by_us for found in (first, second)] == [True, True]
    assert desk.gate.members == [2]


def test_it_does_not_wait_for_ever(desk: Desk) -> None:
    desk.gate.open.set()
    one, other = desk.seat(gather_s=0.05), desk.seat()
    other.turn.close(time.monotonic())
    assert desk.hand_over(desk.hands.batch(0, 0, 4), one).result(WITHIN_S).by_us
    assert desk.gate.members == [1]


def test_it_waits_no_longer_once_the_neighbour_gave_up(desk: Desk) -> None:
    desk.gate.open.set()
    one, other = desk.seat(gather_s=60.0), desk.seat()
    other.turn.close(time.monotonic())
    first = desk.hand_over(desk.hands.batch(0, 0, 4), one)
    desk.queued(1)
    other.turn.leave()
    assert first.result(WITHIN_S).by_us


class Crash(BaseException):
    """The end of a process at this point."""


def test_a_crash_of_the_one_who_commits_reaches_all_whose_change_it_had(desk: Desk) -> None:
    first = desk.hold()
    others = [desk.hand_over(desk.hands.batch(p, 0, 4)) for p in (1, 2)]
    desk.queued(2)
    desk.gate.errors = [ValueError("one"), Crash()]
    desk.gate.open.set()
    with pytest.raises(ValueError, match="one"):
        first.result(WITHIN_S)
    for one in others:
        with pytest.raises(Crash):
            one.result(WITHIN_S)
    assert desk.hand_over(desk.hands.batch(0, 0, 4)).result(WITHIN_S).by_us, "it goes on"


def test_a_stop_ends_the_wait_of_all(desk: Desk) -> None:
    first = desk.hold()
    others = [desk.hand_over(desk.hands.batch(p, 0, 4)) for p in (1, 2)]
    desk.queued(2)
    desk.stopped = True
    desk.gate.errors = [UnavailableError("no connection")] * 3
    desk.gate.open.set()
    for one in (first, *others):
        with pytest.raises(StoppedError):
            one.result(WITHIN_S)


def test_an_outage_is_shown_for_those_too_whose_turn_has_not_come(desk: Desk) -> None:
    """Without a sign of life, the health check would take them for hanging."""
    reasons: list[str] = []
    first = desk.hold()
    waiting = desk.hand_over(desk.hands.batch(1, 0, 4), desk.seat(on_wait=reasons.append))
    desk.queued(1)
    desk.gate.errors = [UnavailableError("no connection")] * 3
    desk.gate.open.set()
    assert first.result(WITHIN_S).by_us
    assert waiting.result(WITHIN_S).by_us
    assert reasons == ["no connection"] * 3


def test_a_refusal_is_counted_once_for_a_group(desk: Desk) -> None:
    counted: list[Any] = []
    rival = Hands(desk.lake)
    first = desk.hold()
    seats = [desk.seat(on_refusal=counted.append) for _ in range(2)]
    others = [desk.hand_over(desk.hands.batch(p, 0, 4), seat) for p, seat in zip((1, 2), seats, strict=True)]
    desk.queued(2)
    inner = desk.lake.local.commit

    def beaten(table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
        if len(desk.gate.members) == 2:
            desk.lake.local.commit = inner  # type: ignore[method-assign]
            rival.commit(rival.batch(0, 0, 3, stream="rival"))
        return inner(table, request, key=key)

    desk.lake.local.commit = beaten  # type: ignore[method-assign]
    desk.gate.open.set()
    assert all(one.result(WITHIN_S).by_us for one in [first, *others])
    assert len(counted) == 1
    assert desk.gate.members == [1, 2, 2]


def test_a_process_has_one_bookkeeper_per_table(desk: Desk) -> None:
    keepers = Bookkeepers()
    made = [Bookkeeper(desk.keeper._committer, clock=time.monotonic) for _ in range(3)]
    orders, other = TableName(("bronze",), "orders"), TableName(("bronze",), "other")
    assert keepers.of(orders, lambda: made[0]) is made[0]
    assert keepers.of(orders, lambda: made[1]) is made[0]
    assert keepers.of(other, lambda: made[2]) is made[2]


def test_a_bookkeeper_that_nobody_has_a_seat_at_is_not_kept(desk: Desk) -> None:
    """Or a process that works for one table after the other would keep the metadata of all of them."""
    keepers, orders = Bookkeepers(), TableName(("bronze",), "orders")

    def make() -> Bookkeeper:
        return Bookkeeper(desk.keeper._committer, clock=time.monotonic)

    seat = keepers.of(orders, make).seat()
    gc.collect()
    assert keepers.of(orders, lambda: pytest.fail("it has one")) is seat._bookkeeper
    del seat
    gc.collect()
    later = make()
    assert keepers.of(orders, lambda: later) is later
