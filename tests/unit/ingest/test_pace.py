"""The pace of a table's readers: whose batch is due when, and for whom a commit waits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarn.ingest.pace import Opened, Pace, Turn, joint_due_s
from tarn.ingest.replicas import Replica

TARGET_S = 1.0


def opened(at_s: float, *, full: bool = False) -> Opened:
    return Opened(at_s=at_s, due_s=None if full else at_s + TARGET_S)


def wait_s(turn: Turn, now_s: float, opened_s: float) -> float | None:
    return turn.wait_s(now_s, opened_s=opened_s, wait_s=max(0.0, opened_s + TARGET_S - now_s))


def test_a_lone_batch_is_due_by_its_own_age():
    assert joint_due_s(opened(5.0), []) == 6.0


def test_it_joins_a_neighbour_that_is_due_while_it_is_open():
    assert joint_due_s(opened(5.0), [opened(4.2), opened(4.6)]) == 5.2


def test_it_does_not_join_what_was_due_before_it_was_opened():
    """Otherwise a neighbour that hangs would make every later batch due at once."""
    assert joint_due_s(opened(5.0), [opened(3.9)]) == 6.0


def test_nobody_joins_a_batch_that_was_full_before_its_time():
    assert joint_due_s(opened(5.0), [opened(4.2, full=True)]) == 6.0


@given(st.lists(st.floats(0, 100), min_size=1, max_size=8))
def test_nobody_waits_longer_than_alone_and_some_neighbour_is_due_at_that_time(starts: list[float]):
    batches = [opened(at) for at in starts]
    for n, own in enumerate(batches):
        due = joint_due_s(own, batches[:n] + batches[n + 1 :])
        assert own.at_s <= due <= own.due_s
        assert due in [one.due_s for one in batches]


def test_readers_close_together_at_the_first_one_s_time():
    pace = Pace()
    one, other = pace.join(), pace.join()
    assert wait_s(one, 10.0, 10.0) == 1.0
    assert wait_s(other, 10.75, 10.75) == 0.25, "its own time is later"
    assert wait_s(one, 10.75, 10.0) == 0.25
    one.close(11.0)
    assert wait_s(other, 11.0, 10.75) == 0.0, "also after the first one has closed"
    other.close(11.0)
    assert wait_s(other, 11.5, 11.5) == 1.0, "the next batch has a time of its own"


def test_a_batch_without_records_has_no_time():
    pace = Pace()
    turn = pace.join()
    assert turn.wait_s(5.0, opened_s=None, wait_s=None) is None
    assert pace.awaited(5.0) == 0


def test_a_full_batch_is_closed_and_its_neighbour_goes_on():
    pace = Pace()
    one, other = pace.join(), pace.join()
    assert wait_s(one, 10.0, 10.0) == 1.0
    assert one.wait_s(10.3, opened_s=10.0, wait_s=0.0) == 0.0
    one.close(10.3)
    assert wait_s(other, 10.5, 10.5) == 1.0


def test_a_commit_waits_for_batches_on_their_way_only():
    pace = Pace()
    one, other = pace.join(), pace.join()
    assert pace.awaited(10.0) == 0
    wait_s(one, 10.0, 10.0)
    wait_s(other, 10.5, 10.5)
    assert pace.awaited(10.9) == 0, "open, and not due"
    assert pace.awaited(11.0) == 2, "due, and not closed yet"
    one.close(11.0)
    assert pace.awaited(11.0) == 2
    one.hand_over()
    assert pace.awaited(11.0) == 1
    other.close(11.0)
    other.hand_over()
    assert pace.awaited(11.0) == 0
    wait_s(one, 11.5, 11.5)
    assert pace.awaited(12.5) == 0, "its batch before is not committed yet, which comes first"
    one.settle()
    assert pace.awaited(12.5) == 1


def test_nobody_waits_for_a_reader_that_left():
    pace = Pace()
    one, other = pace.join(), pace.join()
    wait_s(one, 10.0, 10.0)
    one.close(11.0)
    one.leave()
    assert pace.awaited(12.0) == 0
    assert wait_s(other, 10.5, 10.5) == 1.0


@given(st.integers(1, 64), st.sets(st.integers(0, 500)))
def test_each_partition_is_of_one_replica(count: int, partitions: set[int]):
    by_partition = dict.fromkeys(partitions, "x")
    shares = [set(Replica(index=n, count=count).own(by_partition)) for n in range(count)]
    assert set().union(*shares) == partitions
    assert sum(map(len, shares)) == len(partitions)


def test_a_replica_has_a_name_of_its_own_if_it_is_not_alone():
    assert Replica().name("orders") == "orders"
    assert Replica(index=2, count=3).name("orders") == "orders/2"
    for index, count in ((3, 3), (-1, 2), (0, 0)):
        with pytest.raises(ValueError, match="numbered from 0"):
            Replica(index=index, count=count)
