"""The tables and logs of a gateway: as many as are allowed, and those that nobody uses give way to others."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import pytest

from tarn.core.errors import UnavailableError
from tarn.core.history import Retention
from tarn.core.outcome import Unknown
from tarn.core.table_catalog import CommitOutcome, TableCatalog, TableName
from tarn.core.table_state import CommitRequest
from tarn.gateway import tables as tables_module
from tarn.gateway.inbox import Inbox
from tarn.gateway.inboxes import IDLE_S
from tarn.gateway.logs import Logs
from tarn.gateway.merges import Merges
from tarn.gateway.tables import Tables
from tarn.gateway.writes import BusyError, Receipt
from tarn.ingest.bookkeeper import Bookkeepers
from tarn.testing.memory_log import MemoryLogs
from tests.contract.gateway.test_inbox import NAME, ids, inbox, lake_with_table, settle, write

A, B, C = (TableName(("bronze",), name) for name in "abc")


class Clock:
    now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tables(clock: Clock) -> Iterator[Tables]:
    lake = lake_with_table()
    made = Tables(lake.context(), lake.objects, tables_max=2, clock=clock)
    yield made
    clock.now_s = 0
    assert made.close(wait_s=60)


def test_a_table_has_one_inbox_for_as_long_as_it_is_used(tables: Tables, clock: Clock) -> None:
    first = tables.inbox(A)
    for _ in range(3):
        clock.now_s += IDLE_S
        assert tables.inbox(A) is first
    assert tables.waiting() == {"bronze.a": (0, 0)}


def test_one_table_more_than_are_allowed_waits_for_another_to_be_idle(tables: Tables, clock: Clock) -> None:
    former = tables.inbox(A)
    clock.now_s += IDLE_S
    other = tables.inbox(B)
    with pytest.raises(BusyError, match="writes to 2 tables, at most 2") as e:
        tables.inbox(C)
    assert e.value.retry_after_s == 60
    clock.now_s += 1
    tables.inbox(C)
    assert tables.waiting().keys() == {"bronze.b", "bronze.c"}
    with pytest.raises(UnavailableError, match="the gateway stops"):
        former.submit(write(1))
    assert tables.inbox(B) is other


def test_a_table_that_was_used_since_gives_way_to_nobody(tables: Tables, clock: Clock) -> None:
    first = tables.inbox(A)
    tables.inbox(B)
    clock.now_s += IDLE_S
    assert tables.inbox(A) is first
    clock.now_s += 1
    tables.inbox(C)
    assert tables.waiting().keys() == {"bronze.a", "bronze.c"}


def test_a_table_with_writes_that_wait_gives_way_to_nobody(
    tables: Tables, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    run: Callable[[Inbox], None] = lambda _inbox: (ended.wait(60), None)[1]  # noqa: E731
    monkeypatch.setattr(Inbox, "run", run)
    try:
        busy = tables.inbox(A)
        answer: Future[Receipt] = busy.submit(write(1))
        tables.inbox(B)
        clock.now_s += 2 * IDLE_S
        tables.inbox(C)
        assert tables.waiting().keys() == {"bronze.a", "bronze.c"}
        assert not answer.done()
    finally:
        ended.set()


def test_what_is_kept_of_a_table_goes_with_its_inbox(clock: Clock) -> None:
    lake = lake_with_table()
    context = replace(lake.context(), bookkeepers=Bookkeepers())
    tables = Tables(context, lake.objects, tables_max=1, clock=clock)
    for number in range(5):
        clock.now_s += IDLE_S + 1
        tables.inbox(TableName(("bronze",), f"t{number}"))
    until_s = time.monotonic() + 60
    while len(context.bookkeepers._made) > 1:
        assert time.monotonic() < until_s, "those of tables that nobody writes to any more"
        time.sleep(0.01)
        gc.collect()
    clock.now_s = 0
    assert tables.close(wait_s=60)


class LandsUnseen:
    """A catalog that takes the first commit, and says that its outcome is unknown once it may."""

    def __init__(self, inner: TableCatalog) -> None:
        self._inner = inner
        self.landed, self.go_on = threading.Event(), threading.Event()
        self.load, self.create, self.create_namespace = inner.load, inner.create, inner.create_namespace

    def commit(self, table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
        done = self._inner.commit(table, request, key=key)
        if self.landed.is_set():
            return done
        self.landed.set()
        assert self.go_on.wait(60)
        return Unknown(reason="the answer was lost")


def test_a_table_whose_commit_is_under_way_may_give_way_and_be_opened_again(clock: Clock) -> None:
    """Both inboxes number rows under one id; the later one commits once the outcome of the former is known.

    Or the former would find the number of its rows taken, and its own commit nowhere: not even as the last
    one of this gateway.
    """
    lake = lake_with_table()
    other = inbox(lake, own="gateway:other", retention=Retention(newest=1, steps=(), total_min=0))
    catalog = LandsUnseen(lake.local)
    context = replace(
        lake.context(),
        catalog=catalog,
        executor=lambda: ThreadPoolExecutor(max_workers=1),
        bookkeepers=Bookkeepers(),
    )
    tables = Tables(context, lake.objects, tables_max=1, clock=clock)
    former = tables.inbox(NAME)
    first = former.submit(write(1, producer=None))
    assert catalog.landed.wait(60)
    for number in (3, 4, 5):
        other.submit(write(number, producer=f"p{number}"))
        settle(other)
    for table in (B, NAME):
        clock.now_s += IDLE_S + 1
        tables.inbox(table)
    later = tables.inbox(NAME)
    assert later is not former
    second = later.submit(write(2, producer=None))
    keeper = context.bookkeepers.of(NAME, lambda: pytest.fail("it has none"))
    until_s = time.monotonic() + 60
    while not keeper._queue and not second.done():
        assert time.monotonic() < until_s
        time.sleep(0.01)
    assert not second.done()
    catalog.go_on.set()
    assert [one.result(60).repeated for one in (first, second)] == [False, False]
    assert ids(lake) == [1, 2, 3, 4, 5]
    clock.now_s = 0
    assert tables.close(wait_s=60)


def test_after_its_end_nothing_is_opened(tables: Tables) -> None:
    tables.inbox(A)
    assert tables.close(wait_s=60)
    with pytest.raises(UnavailableError, match="nothing was written"):
        tables.inbox(A)


def test_logs_give_way_as_tables_do_and_say_what_else_there_is(clock: Clock) -> None:
    lake = lake_with_table()
    logs = Logs(lake.context(), MemoryLogs(lake.sources), logs_max=1, clock=clock)
    first = logs.inbox(A)
    with pytest.raises(BusyError, match=r"the logs of 1 tables, at most 1 .* durability=lake") as e:
        logs.inbox(B)
    assert e.value.retry_after_s == 60
    clock.now_s += IDLE_S + 1
    assert logs.inbox(B) is not first
    with pytest.raises(UnavailableError, match="the gateway stops"):
        first.submit(write(1))
    clock.now_s = 0
    assert logs.close(wait_s=60)
    with pytest.raises(UnavailableError, match="nothing was written"):
        logs.inbox(B)


def test_merges_go_on_without_a_pause_while_there_is_one_to_make(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Merges] = []
    over = threading.Event()
    mine = TableName(("bronze",), "merged-again-and-again")

    def run_once(merges: Merges) -> bool:
        if merges._table != mine:
            return False  # of a gateway of another test that still runs
        monkeypatch.setattr(tables_module, "MERGE_LOOK_S", 3_600.0)
        looks.append(merges)
        if len(looks) == 9:
            over.set()
        return len(looks) < 9

    monkeypatch.setattr(tables_module, "MERGE_LOOK_S", 0.2)
    monkeypatch.setattr(Merges, "run_once", run_once)
    lake = lake_with_table()
    made = Tables(lake.context(), lake.objects, tables_max=2)
    made.inbox(mine)
    assert over.wait(60)
    assert made.close(wait_s=60)
    assert len(looks) == 9, "then it looks again after a while"
