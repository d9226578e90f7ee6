"""Which writes an inbox puts into one commit: those that come while another one is made, or just after it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from tarn.core.errors import UnavailableError
from tarn.core.table_catalog import TableName
from tarn.gateway import group_wait
from tarn.gateway.group_wait import SHARE, TOGETHER_BYTES, WAIT_S_MAX, GroupWait
from tarn.gateway.inbox import Inbox
from tarn.gateway.key_memory import KeyMemory
from tarn.gateway.writes import Receipt, Write
from tarn.ingest.bookkeeper import Bookkeeper
from tarn.ingest.committer import Committer
from tarn.testing.memory_topic import Topic
from tests.support.lake import Lake
from tests.support.stack import eventually

NAME = TableName(("bronze",), "orders")


class SlowCommits:
    """A seat at the bookkeeper whose commits wait to be let through, one permit each.

    Attributes:
        begun: number of commits that were asked for.
        permits: lets one commit through per release.
    """

    def __init__(self, seat: Any) -> None:
        self._seat = seat
        self.begun = 0
        self.permits = threading.Semaphore(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._seat, name)

    def commit(self, change: Any, writer: Any) -> Any:
        self.begun += 1
        assert self.permits.acquire(timeout=30)
        return self._seat.commit(change, writer)


@contextmanager
def running(lake: Lake, now_s: Callable[[], float] = lambda: 0.0) -> Iterator[tuple[Inbox, SlowCommits]]:
    """An inbox with its threads."""
    context = replace(lake.context(), clock=now_s)
    keeper = Bookkeeper(Committer(lake.catalog, NAME, ports=context.ports), clock=now_s)
    commits = SlowCommits(keeper.seat())
    keys = KeyMemory(lake.objects, new_name=lake.new_id, now_ms=context.ports.now_ms)
    box = Inbox(NAME, context, commits, keys, own="gateway-0")

    def executor() -> Executor:
        return ThreadPoolExecutor(max_workers=1)

    thread = threading.Thread(target=box.run, args=(executor,))
    thread.start()
    try:
        yield box, commits
    finally:
        box.close()
        commits.permits.release(100)
        thread.join(timeout=30)
        assert not thread.is_alive()


@pytest.fixture
def lake() -> Lake:
    made = Lake(Topic("orders", 2))
    made.work(made.ingestor(), turns=3)
    return made


def write(number: int, *, size: int = 1) -> Write:
    row = json.dumps({"id": number, "at": "2026-11-23T08:00:00Z"}).ljust(size)
    return Write(values=[row.encode()], at_ms=0, producer=f"p{number}")


def snapshots(*answers: Future[Receipt]) -> list[int | None]:
    return [one.result(30).snapshot_id for one in answers]


def keys(lake: Lake) -> set[str]:
    return {one.key for one in lake.store.list("")}


def begun(commits: SlowCommits, number: int) -> None:
    eventually(lambda: commits.begun == number, timeout_s=60, what=f"commit {number} begins", pause_s=0.01)


def test_what_comes_while_a_commit_is_under_way_is_one_file(lake: Lake) -> None:
    with running(lake) as (box, commits):
        first = box.submit(write(1))
        begun(commits, 1)
        stored = keys(lake)
        second = box.submit(write(2))
        with pytest.raises(TimeoutError):
            second.result(0.2)
        assert keys(lake) == stored, "no file is made for one row while others may come"
        assert box.withdraw(other := box.submit(write(9)))
        third = box.submit(write(3))
        commits.permits.release()
        begun(commits, 2)
        commits.permits.release()
        one, two, three = snapshots(first, second, third)
    assert one != two == three
    assert other.exception(0) is not None
    assert sorted(row["id"] for row in lake.rows()) == [1, 2, 3]


def test_an_inbox_goes_on_when_what_waits_for_company_is_taken_back(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread would end, and those who have the inbox in their hands would hear that the gateway stops."""
    with running(lake) as (box, commits):
        commits.permits.release(2)
        until, taken_back = box._until, list[bool]()

        def alone(ready: Callable[[], object], *, timeout_s: float | None = None, **more: int) -> None:
            if timeout_s is not None and not taken_back:
                (only,) = box._queue
                taken_back.append(box.withdraw(only.answer))
            until(ready, timeout_s=timeout_s, **more)

        monkeypatch.setattr(box, "_until", alone)
        first = box.submit(write(1))
        assert isinstance(first.exception(30), UnavailableError)
        assert box.submit(write(2)).result(30).accepted == 1
    assert [row["id"] for row in lake.rows()] == [2]


def test_a_write_wakes_the_inbox_only_when_something_is_to_be_done(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_wait, "WAIT_S_MAX", 20.0)
    now_s = [0.0]
    with running(lake, lambda: now_s[0]) as (box, commits):
        first = box.submit(write(1))
        begun(commits, 1)
        woken: list[int] = []
        wake = box._changed.notify_all

        def noted() -> None:
            woken.append(box.waiting[0])
            wake()

        monkeypatch.setattr(box._changed, "notify_all", noted)
        during = [box.submit(write(number)) for number in range(2, 12)]
        assert woken == [], "a commit is under way"
        now_s[0] = 15.0
        commits.permits.release()
        assert first.result(30).accepted == 1
        eventually(lambda: box._wake_writes == 11, timeout_s=60, what="they are waited for", pause_s=0.01)
        assert woken == [10], "the commit has ended"
        back = box.submit(write(20))
        begun(commits, 2)
        assert woken == [10, 11], "all are there that the commit before leads one to expect"
        commits.permits.release()
        assert len(set(snapshots(*during, back))) == 1


def test_a_large_file_is_made_while_the_one_before_is_committed(lake: Lake) -> None:
    with running(lake) as (box, commits):
        first = box.submit(write(1))
        begun(commits, 1)
        stored = keys(lake)
        rows = [write(100 + n, size=100_000) for n in range(2 + TOGETHER_BYTES // 100_000)]
        large = [box.submit(one) for one in rows]
        eventually(lambda: keys(lake) > stored, timeout_s=60, what="its file is there", pause_s=0.01)
        assert commits.begun == 1
        commits.permits.release(2)
        found = snapshots(first, *large)
    assert found[0] not in found[1:]


def test_the_writers_of_one_commit_are_waited_for_at_the_next(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock stands but for the commit, so the wait ends as they are all back, or by its own timeout."""
    monkeypatch.setattr(group_wait, "WAIT_S_MAX", 20.0)
    now_s = [0.0]
    with running(lake, lambda: now_s[0]) as (box, commits):
        alone = box.submit(write(1))
        begun(commits, 1)
        pair = box.submit(write(2)), box.submit(write(3))
        commits.permits.release()
        begun(commits, 2)
        now_s[0] = 100.0
        commits.permits.release()
        assert len(set(snapshots(*pair))) == 1
        back = box.submit(write(4))
        with pytest.raises(TimeoutError):
            back.result(0.2)
        assert commits.begun == 2
        other = box.submit(write(5))
        begun(commits, 3)
        commits.permits.release()
        assert len(set(snapshots(back, other))) == 1
        assert alone.done()


def test_a_writer_alone_does_not_wait(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_wait, "WAIT_S_MAX", 1e9)
    now_s = [0.0]
    with running(lake, lambda: now_s[0]) as (box, commits):
        for number in range(2):
            answer = box.submit(write(number))
            begun(commits, number + 1)
            now_s[0] += 100.0
            commits.permits.release()
            assert answer.result(30).accepted == 1


def test_the_wait_is_a_share_of_the_last_commit_and_bounded() -> None:
    assert GroupWait().left_s(0.0) == 0.0
    short = GroupWait.after(3, took_s=0.01, now_s=5.0)
    assert short.writes == 3
    assert short.left_s(5.0) == pytest.approx(0.01 * SHARE)
    assert short.left_s(6.0) == 0.0
    assert GroupWait.after(3, took_s=60.0, now_s=5.0).left_s(5.0) == pytest.approx(WAIT_S_MAX)
