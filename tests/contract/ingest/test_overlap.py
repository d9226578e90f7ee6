"""Reading goes on while a batch is committed; one commit at a time, in order, and none is left behind."""

from __future__ import annotations

import random
import threading
from dataclasses import replace

import pytest

from tarn.core.errors import ConflictError, SourceChangedError, UnavailableError
from tarn.core.spec import parse_spec
from tarn.core.table_catalog import CommitOutcome, TableName
from tarn.core.table_state import CommitRequest
from tarn.ingest.context import one_thread
from tarn.ingest.ingestor import Ingestor
from tarn.testing.memory_topic import Topic
from tests.support.lake import SPEC, Lake, order
from tests.support.plays import seeds

WAIT_S = 60.0
# Closed by its number of records: the poll that reaches 10 adds at most 5.
BY_NUMBER = parse_spec(
    SPEC.replace("FORMAT", "2")
    .replace("PARTITIONING", "[]")
    .replace("maxLatencySeconds: 0.05", "maxLatencySeconds: 60"),
    file="orders.yaml",
)


def lake_with(records: int) -> tuple[Lake, Topic]:
    topic = Topic("orders", 1)
    topic.send(0, *(order(n) for n in range(records)))
    return Lake(topic), topic


def read_up_to(lake: Lake) -> int:
    """Position of the newest reader."""
    return lake.sources.readers[-1].positions[0]


def test_the_next_batch_is_read_while_one_is_committed() -> None:
    """With real threads: the commit ends only once records after its own were read."""
    lake, _ = lake_with(40)
    context = replace(lake.context(), executor=one_thread)
    read, waited = threading.Event(), list[bool]()
    inner = lake.local.commit

    def commit(table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
        if table.name == "orders" and lake.table().head is not None:
            waited.append(read.wait(WAIT_S))
        return inner(table, request, key=key)

    def polled() -> None:
        if waited or read_up_to(lake) > 10:
            read.set()

    lake.local.commit = commit  # type: ignore[method-assign]
    lake.sources.on_poll = polled
    ingestor = Ingestor(BY_NUMBER, context)
    late = threading.Event()
    timer = threading.Timer(2 * WAIT_S, late.set)
    timer.start()
    try:
        ingestor.cycle(lambda: late.is_set() or lake.registry.get("orders").rows == 40)
    finally:
        timer.cancel()
    assert all(waited)
    assert len(waited) >= 2
    assert lake.offsets() == [(0, n) for n in range(40)]


def test_no_more_than_one_batch_is_read_beyond_the_one_that_is_committed() -> None:
    lake, _ = lake_with(200)
    seen = [0]
    inner = lake.local.commit

    def commit(table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
        done = inner(table, request, key=key)
        if table.name == "orders" and lake.offsets():
            ends = max(o for _, o in lake.offsets()) + 1
            seen.append(read_up_to(lake) - ends)
        return done

    lake.local.commit = commit  # type: ignore[method-assign]
    lake.commits_now = lambda: False
    lake.work(lake.ingestor(BY_NUMBER), turns=400)
    lake.work(lake.ingestor())
    assert lake.offsets() == [(0, n) for n in range(200)]
    # A batch is closed by the poll that reaches its 10 records.
    assert 0 < max(seen) <= 14


@pytest.mark.parametrize("failure", [UnavailableError("Kafka is away"), ConflictError("a defect")])
def test_a_commit_under_way_ends_before_reading_fails(failure: Exception) -> None:
    """Otherwise the next plan would race it."""
    lake, _ = lake_with(30)
    lake.commits_now = lambda: False

    def poll() -> None:
        if read_up_to(lake) > 15:
            raise failure

    lake.sources.on_poll = poll
    with pytest.raises(type(failure)):
        lake.ingestor(BY_NUMBER).cycle(lambda: False)
    assert 10 <= len(lake.offsets()) <= 14, "the first batch is in the table"
    lake.sources.on_poll = lambda: None
    lake.work(lake.ingestor())
    assert lake.offsets() == [(0, n) for n in range(30)]


def test_a_commit_under_way_is_awaited_when_the_service_stops_and_its_offsets_are_told() -> None:
    lake, _ = lake_with(30)
    lake.commits_now = lambda: False
    lake.ingestor(BY_NUMBER).cycle(lambda: bool(lake.sources.readers) and read_up_to(lake) > 15)
    held = len(lake.offsets())
    assert 10 <= held <= 14
    assert lake.sources.group_offsets == {0: held}


def test_a_topic_recreated_after_its_records_were_read_is_noticed_before_they_are_committed() -> None:
    lake, _ = lake_with(30)
    lake.commits_now = lambda: False
    again = Topic("orders", 1, topic_id="id-2")
    again.send(0, *(order(9_000 + n) for n in range(60)))

    def poll() -> None:
        if read_up_to(lake) > 15:
            lake.sources.topics["orders"] = again

    lake.sources.on_poll = poll
    with pytest.raises(SourceChangedError):
        lake.ingestor(BY_NUMBER).cycle(lambda: False)
    found = lake.rows()
    assert all(row["id"] < 30 for row in found), "nothing of the other topic"
    assert 10 <= len(found) <= 14


@pytest.mark.plays
@pytest.mark.parametrize("seed", seeds(30))
def test_commits_that_end_at_any_moment_lose_and_double_nothing(seed: int) -> None:
    lake, topic = lake_with(0)
    chance = random.Random(seed)
    lake.commits_now = lambda: chance.random() < 0.25

    def poll() -> None:
        if chance.random() < 0.05:
            raise UnavailableError("Kafka is away")
        topic.send(0, *(order(n) for n in range(chance.randrange(4))))

    lake.sources.on_poll = poll
    for _ in range(4):
        lake.work(lake.ingestor(), turns=60)
    lake.sources.on_poll = lambda: None
    lake.work(lake.ingestor(), turns=200)
    assert lake.offsets() == [(0, n) for n in range(len(topic.logs[0]))]
    lake.history_is_a_chain()
