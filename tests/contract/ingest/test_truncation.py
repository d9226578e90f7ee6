"""A log that lost its end and grew again (ADR 57): no record of it is passed over in silence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tarn.core.errors import OffsetGapError, UnavailableError
from tarn.core.offsets import OffsetMap
from tarn.ingest.batch_commit import offsets_in
from tarn.ingest.truncation import require_untruncated
from tarn.testing.memory_topic import HOLE, MemoryTopicClient, MemoryTopicReader, Topic
from tests.support.lake import Lake, order, spec

TRUNCATED = r"offset 10 of partition 0 .* truncated, at 7 or before: from 7 on it has other records"


def filled(number: int = 10) -> tuple[Lake, Topic]:
    topic = Topic("orders", 2)
    topic.send(0, *(order(n) for n in range(number)))
    lake = Lake(topic)
    lake.work(lake.ingestor())
    assert ids(lake) == list(range(number))
    return lake, topic


def ids(lake: Lake) -> list[int]:
    return sorted(row["id"] for row in lake.rows())


def stands(lake: Lake) -> OffsetMap:
    found = offsets_in(lake.table(), "orders")
    assert found is not None
    return found


@pytest.mark.parametrize("more", [3, 4, 100])
def test_a_log_that_has_grown_past_the_table_since_it_was_truncated_stops_the_stream(more: int) -> None:
    lake, topic = filled()
    topic.truncate(0, 7)
    with pytest.raises(OffsetGapError, match="ends at 7, before it"):
        lake.work(lake.ingestor())
    topic.send(0, *(order(100 + n) for n in range(more)))
    for _ in range(2):
        with pytest.raises(OffsetGapError, match=TRUNCATED):
            lake.work(lake.ingestor())
        topic.send(0, order(500))
        topic.take_over()
    assert ids(lake) == list(range(10))


def test_a_broker_that_starts_again_without_a_loss_stops_nothing_and_its_epoch_is_learned() -> None:
    lake, topic = filled()
    assert stands(lake).epochs == {0: 0, 1: 0}
    for n in range(3):
        topic.take_over()
        topic.send(0, order(10 + n))
        lake.work(lake.ingestor())
        assert stands(lake).epochs == {0: 2 * (n + 1), 1: 0}
    assert ids(lake) == list(range(13))


def test_offsets_without_a_record_of_a_later_epoch_are_no_loss() -> None:
    """A transaction that was open is aborted by the next leader: its marks are of a later epoch."""
    topic = Topic("orders", 1)
    topic.send(0, *(order(n) for n in range(10)))
    topic.take_over()
    topic.send(0, HOLE, HOLE)
    table = OffsetMap(source=topic.identity, next={0: 12}, epochs={0: 0})
    assert topic.epoch_end(0, 0) == 10

    def required() -> None:
        source = MemoryTopicClient(topic).open("orders", stream="orders")
        require_untruncated(source, table, source.bounds(), stream="orders", clock=lambda: 0.0, poll_s=0.0)

    required()
    topic.send(0, order(12))
    required()
    topic.logs[0][11] = order(11)
    with pytest.raises(OffsetGapError, match="from 11 on it has other records"):
        required()
    topic.starts[0] = 12
    required()


def test_a_broker_whose_answers_stay_older_than_its_records_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lake, topic = filled()
    topic.take_over()
    topic.send(0, order(10))
    ingestor, bounds = lake.ingestor(), MemoryTopicReader.bounds
    older = {
        p: replace(one, epoch=0)
        for p, one in MemoryTopicClient(topic).open("orders", stream="s").bounds().items()
    }
    monkeypatch.setattr(MemoryTopicReader, "bounds", lambda _: older)
    ingestor.cycle(lambda: False)  # ends for a new plan
    for _ in range(2):
        with pytest.raises(
            UnavailableError, match=r"epochs \{0: 2\}, and its broker still states \{0: 0, 1: 0\}"
        ):
            ingestor.cycle(lambda: False)
    assert ids(lake) == list(range(10))
    monkeypatch.setattr(MemoryTopicReader, "bounds", bounds)
    lake.work(ingestor)
    assert ids(lake) == list(range(11))


def test_the_stream_goes_on_once_the_records_that_it_lacks_are_gone() -> None:
    """As the message says: they were copied to the end of the log and deleted where they were."""
    lake, topic = filled()
    topic.truncate(0, 7)
    topic.send(0, *(order(100 + n) for n in range(5)))
    with pytest.raises(OffsetGapError, match=r"copy its records before 10 to its end"):
        lake.work(lake.ingestor())
    topic.send(0, *(order(100 + n) for n in range(3)))
    topic.starts[0] = 10
    lake.work(lake.ingestor())
    assert ids(lake) == [*range(10), *range(100, 105)]


def test_a_log_that_has_not_come_to_the_epoch_is_an_older_one() -> None:
    lake, topic = filled()
    topic.take_over()
    topic.send(0, order(10))
    lake.work(lake.ingestor())
    topic.epochs = {p: [(0, 0)] for p in topic.logs}
    with pytest.raises(OffsetGapError, match=r"in leader epoch 2, which the log has not come to"):
        lake.work(lake.ingestor())


def test_a_table_of_an_earlier_version_goes_on_and_has_epochs_after_its_next_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    advance = OffsetMap.advance
    with monkeypatch.context() as patch:
        patch.setattr(OffsetMap, "advance", lambda self, ranges, _epochs=None: advance(self, ranges))
        lake, topic = filled()
    assert stands(lake).epochs == {}
    assert "epochs" not in stands(lake).to_json()
    topic.take_over()
    topic.send(0, order(10))
    lake.work(lake.ingestor())
    assert stands(lake).epochs == {0: 2}
    assert ids(lake) == list(range(11))


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_reader_at_the_end_notices_that_the_log_was_truncated_and_grew_between_two_polls(
    replicas: int,
) -> None:
    lake, topic = filled()
    ingestor, polls = lake.ingestor(spec(replicas=replicas)), [0]

    def polled() -> None:
        polls[0] += 1
        if polls[0] == 3:
            topic.truncate(0, 7)
            topic.send(0, *(order(100 + n) for n in range(5)))

    lake.sources.on_poll = polled
    with pytest.raises(OffsetGapError, match=TRUNCATED):
        lake.work(ingestor)
    assert ids(lake) == list(range(10))


def test_a_reader_at_the_end_notices_it_without_a_record_behind_its_position() -> None:
    lake, topic = filled()
    polls = [0]

    def polled() -> None:
        polls[0] += 1
        if polls[0] == 3:
            topic.truncate(0, 7)
            topic.send(0, *(order(100 + n) for n in range(3)))
            lake.clock.now_s += 6

    lake.sources.on_poll = polled
    with pytest.raises(OffsetGapError, match=TRUNCATED):
        lake.work(lake.ingestor())


def test_what_was_read_before_the_loss_and_is_in_no_table_is_read_again_as_it_is_now() -> None:
    lake, topic = filled()
    topic.send(0, *(order(n) for n in range(10, 15)))
    polls = [0]

    def polled() -> None:
        polls[0] += 1
        if polls[0] == 2:  # the first poll has them all, and their batch waits for its age
            topic.truncate(0, 12)
            topic.send(0, *(order(100 + n) for n in range(7)))

    lake.sources.on_poll = polled
    lake.work(lake.ingestor())
    assert ids(lake) == [*range(12), *range(100, 107)]
    assert lake.offsets() == [(0, n) for n in range(19)]


def test_a_broker_that_starts_again_while_records_come_lets_none_be_missed_or_doubled() -> None:
    lake, topic = filled()
    polls = [0]

    def polled() -> None:
        polls[0] += 1
        if polls[0] < 40:
            topic.send(0, order(9 + polls[0]))
            topic.send(1, order(1_000 + polls[0]))
        if polls[0] % 7 == 0:
            topic.take_over()

    lake.sources.on_poll = polled
    lake.work(lake.ingestor(), turns=600)
    assert ids(lake) == [*range(49), *range(1_001, 1_040)]
    assert stands(lake).epochs.keys() == {0, 1}


def test_the_topic_in_memory_has_the_epochs_of_a_broker() -> None:
    """The answers are those of a broker in `tests/integration/kafka/test_truncation.py`."""
    topic = Topic("orders", 2)
    topic.send(0, *(order(n) for n in range(10)))
    assert [topic.epoch_end(p, 0) for p in (0, 1)] == [10, 0]
    assert topic.epoch_end(0, 1) is None
    topic.truncate(0, 7)
    assert [topic.epoch_end(p, 0) for p in (0, 1)] == [7, 0]
    topic.send(0, *(order(n) for n in range(5)))
    assert [topic.epoch_end(0, epoch) for epoch in range(4)] == [7, 7, 12, None]
    assert [topic.epoch_of(0, offset) for offset in (0, 6, 7, 12)] == [0, 0, 2, 2]
    topic.take_over()
    topic.take_over()
    assert [topic.epoch_end(0, epoch) for epoch in (0, 2, 4, 6)] == [7, 12, 12, 12]
