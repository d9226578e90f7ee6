"""What a broker says of a log that was truncated by a loss of power, and how its readers notice."""

from __future__ import annotations

import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, get_args

import pytest

from tarn.adapters.kafka import Client, KafkaSource, KafkaSources
from tarn.adapters.kafka_log import KafkaLogs
from tarn.adapters.kafka_login import Login
from tarn.core.errors import OffsetGapError, UnavailableError
from tarn.core.log_claims import topic_of
from tarn.core.offsets import OffsetMap
from tarn.core.source import OffsetBounds
from tarn.core.table_log import Record
from tarn.ingest.truncation import require_untruncated
from tests.integration.kafka.conftest import OLD, Broker, eventually

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", OLD, DeprecationWarning)
    from kafka import KafkaProducer, TopicPartition
    from kafka.admin import KafkaAdminClient

pytestmark = pytest.mark.filterwarnings(f"ignore:{OLD}:DeprecationWarning")

CLIENTS: tuple[Client, ...] = get_args(Client)
WAIT_S = 120.0
T = TypeVar("T")


@pytest.fixture(params=CLIENTS)
def opened(request: pytest.FixtureRequest, broker: Broker) -> Iterator[Callable[[], KafkaSource]]:
    """Opens readers of a topic of the test's own, with ten records in the first of two partitions."""
    topic = f"truncated-{request.param}-{request.function.__name__.replace('_', '-')}"[:200]
    broker.make_topic(topic)
    send(broker, topic, *(b"first %d" % n for n in range(10)))
    login = Login(user="ingest", password=broker.secrets.passwords["ingest"])
    held: list[KafkaSource] = []

    def open_one() -> KafkaSource:
        source = KafkaSources(broker.address, lambda: login, client=request.param).open(topic, stream="s")
        assert isinstance(source, KafkaSource)
        held.append(source)
        return source

    yield open_one
    for source in held:
        source.close()


@pytest.fixture
def reader(opened: Callable[[], KafkaSource]) -> KafkaSource:
    """One of them."""
    return opened()


def send(broker: Broker, topic: str, *values: bytes) -> None:
    """Produce to partition 0, each value a batch of its own."""
    producer = KafkaProducer(**broker.options(), acks="all")
    for value in values:
        producer.send(topic, value, partition=0).get(timeout=WAIT_S)
    producer.close(timeout=5)


def answered(ask: Callable[[], T]) -> T:
    """The answer of a broker that may have just started: it may not know its partitions yet."""
    until = time.monotonic() + WAIT_S
    while True:
        try:
            return ask()
        except UnavailableError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def read(source: KafkaSource, end: int) -> list[tuple[int, int | None]]:
    """Offset and epoch of each poll of partition 0 with records, up to a position."""
    until, found, at = time.monotonic() + WAIT_S, list[tuple[int, int | None]](), -1
    while at < end:
        assert time.monotonic() < until
        for part in answered(lambda: source.poll(records_max=1_000, timeout_s=0.25)):
            at = part.end
            if part.offsets:
                found.append((part.offsets[-1], part.epoch))
    return found


def held(source: KafkaSource, offset: int, epoch: int) -> OffsetMap:
    """The map of a table that stands there."""
    return OffsetMap(source=source.identity(), next={0: offset, 1: 0}, epochs={0: epoch})


def require(source: KafkaSource, table: OffsetMap) -> None:
    require_untruncated(source, table, source.bounds(), stream="s", clock=time.monotonic, poll_s=0.25)


def test_a_log_that_was_truncated_and_grew_again_is_told_by_its_epochs(
    broker: Broker, opened: Callable[[], KafkaSource]
) -> None:
    reader = opened()
    topic = reader._topic
    first, _ = reader.bounds().values()
    assert first == OffsetBounds(0, 10, first.epoch)
    epoch = first.epoch or 0
    assert reader.epoch_ends({0: epoch, 1: epoch}) == {0: 10, 1: 0}
    assert reader.epoch_ends({0: epoch + 1}) == {0: None}
    reader.seek({0: 0, 1: 0})
    assert read(reader, 10)[-1] == (9, epoch)
    require(reader, held(reader, 10, epoch))
    broker.lose(topic, 0, offset=7)
    reader = opened()  # as each plan does
    later = answered(reader.bounds)[0]
    assert later.end == 7
    assert later.epoch is not None
    assert later.epoch > epoch, "each start of the broker begins an epoch"
    assert reader.epoch_ends({0: epoch, 1: epoch}) == {0: 7, 1: 0}
    send(broker, topic, *(b"second %d" % n for n in range(5)))
    assert reader.bounds()[0] == OffsetBounds(0, 12, later.epoch)
    assert reader.epoch_ends({0: epoch, 1: epoch}) == {0: 7, 1: 0}
    table = held(reader, 10, epoch)
    with pytest.raises(OffsetGapError, match=r"truncated, at 7 or before: from 7 on it has other records"):
        require(reader, table)
    require(reader, held(reader, 7, epoch))
    # What is said to do: the records are deleted where they are.
    admin = KafkaAdminClient(**broker.options())
    admin.delete_records({TopicPartition(topic, 0): 10})
    admin.close()
    require(reader, table)
    reader.seek({0: 10, 1: 0})
    assert read(reader, 12)[-1] == (11, later.epoch)


def test_a_reader_that_waits_at_the_end_sees_the_later_epoch(broker: Broker, reader: KafkaSource) -> None:
    """The log is truncated and has grown past the position before the reader fetches again."""
    topic, epoch = reader._topic, reader.bounds()[0].epoch
    assert epoch is not None
    reader.seek({0: 10, 1: 0})
    for _ in range(4):
        assert reader.poll(records_max=10, timeout_s=0.25) == []
    resume = paused(reader)
    broker.lose(topic, 0, offset=7)
    send(broker, topic, *(b"second %d" % n for n in range(8)))
    resume()
    found = read(reader, 15)
    assert all(seen is not None and seen > epoch for _, seen in found), "no library refuses the position"


def test_a_reader_that_read_up_to_the_end_is_refused_or_sees_the_later_epoch(
    broker: Broker, reader: KafkaSource
) -> None:
    topic, epoch = reader._topic, reader.bounds()[0].epoch
    assert epoch is not None
    reader.seek({0: 0, 1: 0})
    read(reader, 10)
    resume = paused(reader)
    broker.lose(topic, 0, offset=7)
    send(broker, topic, *(b"second %d" % n for n in range(8)))
    resume()
    try:
        found = read(reader, 15)
    except OffsetGapError as e:
        assert "truncat" in e.message or "was cut" in e.message  # noqa: PT017
    else:
        assert all(seen is not None and seen > epoch for _, seen in found)


def paused(reader: KafkaSource) -> Any:
    """Let librdkafka fetch nothing, as kafka-python does outside of a poll; returns what lets it go on."""
    consumer = getattr(reader._records, "_consumer", None)
    if consumer is None:
        return lambda: None
    assigned = consumer.assignment()
    consumer.pause(assigned)
    return lambda: consumer.resume(assigned)


def test_the_marks_of_a_transaction_that_ended_in_a_later_epoch_are_no_loss(
    broker: Broker, reader: KafkaSource
) -> None:
    """A reader passes over them, so the table stands behind the end of the epoch of its last record."""
    topic, epoch = reader._topic, reader.bounds()[0].epoch
    assert epoch is not None
    producer = KafkaProducer(**broker.options(), transactional_id=f"t-{topic}", acks="all")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"open", partition=0)
    producer.flush(timeout=WAIT_S)
    broker.container.kill("SIGKILL")
    broker.container.start()
    broker.await_health("healthy")
    producer.abort_transaction()
    producer.close(timeout=5)
    until = time.monotonic() + WAIT_S
    while answered(reader.bounds)[0].end < 12:
        assert time.monotonic() < until
        time.sleep(0.2)
    assert reader.epoch_ends({0: epoch}) == {0: 11}
    require(reader, held(reader, 12, epoch))


def test_a_gateway_learns_the_end_and_the_offsets_of_a_truncated_log_before_it_commits(
    broker: Broker,
) -> None:
    table = str(uuid.uuid4())
    topic = topic_of(table)
    broker.make_topic(topic)
    login = Login(user="gateway", password=broker.secrets.passwords["gateway"])
    log = KafkaLogs(broker.address, lambda: login).of(table)
    log.open()
    for n in range(4):
        log.append([(0, b"%d" % n)], lambda offsets: [(b"k/%d" % offsets[0], b"{}")])
    # The mark of the last transaction is written after its answer.
    eventually("all marks are written", lambda: answered(log.ends) == {0: 8, 1: 0}, timeout_s=WAIT_S)
    broker.lose(topic, 0, offset=4)
    eventually("the log is cut", lambda: answered(log.ends) == {0: 4, 1: 0}, timeout_s=WAIT_S)
    seen: list[int] = []

    def refuse(offsets: Sequence[int]) -> list[Record]:
        seen.extend(offsets)
        raise OffsetGapError("the table has them")

    # As after any error: the producer from before would see a gap in its own numbers first.
    answered(log.open)
    with pytest.raises(OffsetGapError, match="the table has them"):
        log.append([(0, b"other")], refuse)
    assert 4 <= seen[0] < 8, "behind the marks of what was aborted, if any"
    log.close()
    values = committed(broker, topic)
    assert values == [b"0", b"1"]


def committed(broker: Broker, topic: str) -> list[bytes]:
    """The committed records of partition 0."""
    login = Login(user="ingest", password=broker.secrets.passwords["ingest"])
    source = KafkaSources(broker.address, lambda: login).open(topic, stream="s")
    try:
        source.seek({0: 0})
        until, found, at = time.monotonic() + WAIT_S, list[bytes](), 0
        while at < source.bounds()[0].end:
            assert time.monotonic() < until
            for part in source.poll(records_max=100, timeout_s=0.25):
                at = part.end
                found += [value for value in part.values if value is not None]
    finally:
        source.close()
    return found
