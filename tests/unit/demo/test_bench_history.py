"""The network side of `scripts/bench history`: when tenths end, what Trino is asked, ages by tenth."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tarn.cli.ports import Answer
from tarn.core.errors import UnavailableError
from tarn.core.table_state import TableState
from tarn_demo.bench.history import MESSAGE_BYTES, Feed, Goal, Looks, Most, ages_by_tenth, ask, facts
from tarn_demo.bench.ingest import VisibilityLog
from tarn_demo.bench.peers import PARTITIONS, messages


def test_a_run_by_time_ends_by_time() -> None:
    goal = Goal(seconds=100.0)
    assert [goal.tenth(s, 7) for s in (0.0, 9.9, 10.0, 30.0, 99.9, 100.0, 200.0)] == [0, 0, 1, 3, 9, 10, 10]


def test_a_run_by_commits_ends_by_commits() -> None:
    goal = Goal(seconds=100.0, commits=1_000)
    assert [goal.tenth(500.0, n) for n in (0, 99, 100, 999, 1_000, 1_001)] == [0, 0, 1, 9, 10, 10]


class Asked:
    """An engine that takes 0.1 s to plan and 0.3 s to count."""

    name = "trino"

    def __init__(self, *, fails: bool = False) -> None:
        self.now, self.fails = 0.0, fails

    def query(self, sql: str, *, rows_max: int = 0) -> Answer:
        self.now += 0.1 if sql.startswith("EXPLAIN ") else 0.3
        if self.fails:
            raise UnavailableError("away")
        return Answer(columns=(), rows=())


def test_planning_and_counting_are_timed_apart() -> None:
    looks, trino = Looks(), Asked()
    for _ in range(3):
        ask(trino, looks, clock=lambda: trino.now)
    ask(Asked(fails=True), looks)
    assert looks.empty() == {"planning_ms": 100.0, "count_ms": 300.0, "questions": 3, "failed": 1}
    assert looks.empty() == {"planning_ms": None, "count_ms": None, "questions": 0, "failed": 0}


def test_the_median_of_two_is_between_them() -> None:
    looks = Looks(planning_ms=[10.0, 20.0], count_ms=[30.0, 10.0])
    assert looks.empty() == {"planning_ms": 15.0, "count_ms": 20.0, "questions": 2, "failed": 0}


def test_the_most_is_that_since_it_was_asked_for_last() -> None:
    most = Most()
    for files, manifests in ((3, 4), (9, None), (None, 7), (2, 5)):
        most.saw(files=files, manifests=manifests)
    assert most.empty() == {"files_most": 9, "manifests_most": 7}
    most.saw(files=1)
    assert most.empty() == {"files_most": 1, "manifests_most": 0}


def test_ages_belong_to_the_tenth_in_which_a_message_was_sent() -> None:
    seen = VisibilityLog()
    seen.record({0: 1}, at_ms=1_050)
    seen.record({0: 3}, at_ms=2_500)
    records = iter([(0, 0, 1_000), (0, 1, 1_900), (0, 2, 2_100)])
    found = ages_by_tenth(seen, records, [1_500, 2_000, 9_000, 10_000])
    assert [one.get("p50_ms") for one in found] == [50, 600, 400, None]
    assert [one["n"] for one in found] == [1, 1, 1, 0]


def test_facts_are_those_of_the_current_version() -> None:
    summary = {"total-data-files": "3", "total-files-size": "90", "total-records": "7"}
    state = TableState(
        {
            "last-sequence-number": 12,
            "snapshots": [{"snapshot-id": 1, "summary": {}}, {"snapshot-id": 2, "summary": summary}],
            "refs": {"main": {"snapshot-id": 2, "type": "branch"}},
        }
    )
    found = facts(state, 4)
    assert found["metadata_bytes"] > 100
    assert found | {"metadata_bytes": 0} == {
        "commits": 12,
        "snapshots": 2,
        "metadata_bytes": 0,
        "manifests": 4,
        "files": 3,
        "live_bytes": 90,
        "rows": 7,
    }


class Producer:
    """Keeps what is sent; `left` messages are never delivered."""

    def __init__(self, left: int = 0) -> None:
        self.left = left
        self.partitions: list[int] = []

    def produce(self, topic: str, value: bytes, *, partition: int) -> None:
        self.partitions.append(partition)

    def poll(self, timeout: float) -> int:
        return 0

    def flush(self, timeout: float) -> int:
        return self.left


@pytest.mark.parametrize("left", [0, 3])
def test_messages_are_sent_at_a_rate_and_must_be_delivered(left: int) -> None:
    producer: Any = Producer(left)
    stop = threading.Event()
    feed = Feed(producer, "t", 2_000.0, stop)
    thread = threading.Thread(target=feed.run)
    thread.start()
    while feed.sent < 40:
        pass
    stop.set()
    thread.join(timeout=10)
    assert feed.sent == len(producer.partitions)
    assert producer.partitions[:PARTITIONS] == list(range(PARTITIONS))
    assert bool(feed.error) == bool(left)


def test_a_message_that_the_producer_has_no_room_for_is_sent_next() -> None:
    stop, sent, full = threading.Event(), list[tuple[int, int]](), [True]

    class Narrow:
        def produce(self, topic: str, value: bytes, *, partition: int) -> None:
            if len(sent) % 3 == 2 and full[0]:
                full[0] = False
                raise BufferError
            full[0] = True
            sent.append((len(sent), partition))
            made.append(value)
            if len(sent) == 20:
                stop.set()

        def poll(self, timeout: float) -> int:
            return 0

        def flush(self, timeout: float) -> int:
            return 0

    made: list[bytes] = []
    feed = Feed(Narrow(), "t", 1_000.0, stop)
    feed.run()
    assert made == [value for _, value in messages(feed.sent, MESSAGE_BYTES)]
    assert [partition for _, partition in sent] == [number % PARTITIONS for number in range(feed.sent)]
