"""Ingest's topic reader on a real broker, with each library that can read records: one suite for both."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from typing import get_args

import pytest

from tarn.adapters.kafka import Client, KafkaSources
from tarn.adapters.kafka_client import CODECS, KafkaConnection
from tarn.adapters.kafka_librdkafka import LibrdkafkaConsumer
from tarn.adapters.kafka_login import Login
from tarn.core.batch import RawRecords
from tarn.core.errors import ForbiddenError, OffsetGapError, UnavailableError
from tarn.core.source import NoSuchTopicError, OffsetBounds, TopicReader
from tests.integration.kafka.conftest import OLD, Broker
from tests.support.stack import eventually

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", OLD, DeprecationWarning)
    from kafka import KafkaProducer, TopicPartition
    from kafka.admin import KafkaAdminClient

pytestmark = pytest.mark.filterwarnings(f"ignore:{OLD}:DeprecationWarning")

CLIENTS: tuple[Client, ...] = get_args(Client)
WAIT_S = 120.0
STREAM = "records"


@pytest.fixture(scope="module")
def broker(shared_broker: Broker) -> Broker:
    return shared_broker


@pytest.fixture(params=CLIENTS)
def sources(request: pytest.FixtureRequest, broker: Broker) -> KafkaSources:
    """The topic client of ingest, as its own user."""
    login = Login(user="ingest", password=broker.secrets.passwords["ingest"])
    return KafkaSources(broker.address, lambda: login, client=request.param)


@pytest.fixture
def opened(sources: KafkaSources) -> Iterator[Callable[[str], TopicReader]]:
    """Opens topics, closed after the test."""
    held: list[TopicReader] = []

    def open_topic(topic: str) -> TopicReader:
        held.append(sources.open(topic, stream=STREAM))
        return held[-1]

    yield open_topic
    for one in held:
        one.close()


@pytest.fixture
def topic(broker: Broker, request: pytest.FixtureRequest) -> str:
    """A topic of two partitions of the test's own."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    broker.make_topic(name)
    return name


def read(source: TopicReader, ends: dict[int, int], starts: dict[int, int]) -> list[RawRecords]:
    """Everything from these positions up to the others."""
    source.seek(starts)
    at, until, parts = dict(starts), time.monotonic() + WAIT_S, list[RawRecords]()
    while at != ends:
        assert time.monotonic() < until, f"at {at}, wanted {ends}"
        for part in source.poll(records_max=1_000, timeout_s=0.25):
            assert part.start == at[part.partition], "ranges without a gap"
            at[part.partition] = part.end
            parts.append(part)
    return parts


def values(parts: list[RawRecords]) -> dict[tuple[int, int], bytes | None]:
    return {
        (part.partition, offset): value
        for part in parts
        for offset, value in zip(part.offsets, part.values, strict=True)
    }


def ends_of(source: TopicReader) -> dict[int, int]:
    return {partition: found.end for partition, found in source.bounds().items()}


@pytest.mark.parametrize("codec", [None, *CODECS])
def test_every_compression_is_read(
    broker: Broker, topic: str, opened: Callable[[str], TopicReader], codec: str | None
) -> None:
    producer = KafkaProducer(**broker.options(), compression_type=codec, linger_ms=50)
    sent = [b'{"id": %d, "text": "%s"}' % (n, b"a" * 300) for n in range(300)]
    first_ms = int(time.time() * 1_000)  # the broker deletes records of long ago whenever it looks
    for n, value in enumerate(sent):
        producer.send(topic, value, key=None if n % 2 else b"k", partition=0, timestamp_ms=first_ms + n)
    producer.flush(timeout=WAIT_S)
    producer.close(timeout=5)
    source = opened(topic)
    assert source.bounds() == {0: OffsetBounds(0, 300, 0), 1: OffsetBounds(0, 0, 0)}
    parts = read(source, {0: 300, 1: 0}, {0: 0, 1: 0})
    assert values(parts) == {(0, n): value for n, value in enumerate(sent)}
    assert [t for part in parts for t in part.times_ms] == [first_ms + n for n in range(300)]
    assert [k for part in parts for k in part.keys] == [None if n % 2 else b"k" for n in range(300)]


@pytest.mark.parametrize(("codec", "mib_max"), [("lz4", 20), ("zstd", 70)])
def test_what_waits_to_be_polled_is_bounded_however_well_it_compresses(
    broker: Broker, topic: str, codec: str, mib_max: int
) -> None:
    """120 MB that take less than a megabyte compressed: a reader that polls no more does not fetch it all."""
    login = Login(user="ingest", password=broker.secrets.passwords["ingest"])
    producer = KafkaProducer(**broker.options(), compression_type=codec, linger_ms=50, batch_size=1 << 20)
    for n in range(12_000):
        producer.send(topic, b'{"id": %d, "text": "%s"}' % (n, b"abcdefgh" * 1_250), partition=n % 2)
    producer.flush(timeout=WAIT_S)
    producer.close(timeout=5)
    connection = KafkaConnection(bootstrap=broker.address, client_id="test", login=login)
    consumer = LibrdkafkaConsumer(connection, topic, group=f"tarn-{STREAM}")
    try:
        consumer.assign({0: 0, 1: 0})
        assert consumer.poll(records_max=1, timeout_s=WAIT_S)
        time.sleep(3.0)
        (first,) = consumer._consumer.consume(1, WAIT_S)
        waiting = [first, *consumer._consumer.consume(12_000, 0)]
    finally:
        consumer.close()
    size = sum(len(message.value() or b"") for message in waiting)
    assert 0 < size <= mib_max << 20, f"{len(waiting)} of 12,000 messages, {size} bytes"


def test_only_committed_records_are_read_and_the_position_passes_the_others(
    broker: Broker, topic: str, opened: Callable[[str], TopicReader]
) -> None:
    producer = KafkaProducer(**broker.options(), transactional_id=f"t-{topic}", acks="all")
    producer.init_transactions()
    for word, keep in ((b"kept", True), (b"dropped", False), (b"last", True), (b"end", False)):
        producer.begin_transaction()
        for n in range(5):
            producer.send(topic, word + b"%d" % n, partition=n % 2)
        producer.flush(timeout=WAIT_S)
        producer.commit_transaction() if keep else producer.abort_transaction()
    producer.begin_transaction()
    producer.send(topic, b"open", partition=0)
    producer.flush(timeout=WAIT_S)
    source = opened(topic)
    ends = ends_of(source)
    found = values(read(source, ends, {0: 0, 1: 0}))
    assert sorted(v for v in found.values() if v) == sorted(
        word + b"%d" % n for word in (b"kept", b"last") for n in range(5)
    )
    assert sum(ends.values()) > len(found) + 10, "aborted records and the marks of transactions take offsets"
    producer.commit_transaction()
    producer.close(timeout=5)
    # The broker answers a commit before it has written the marks that end the transaction.
    eventually(lambda: ends_of(source) != ends, timeout_s=WAIT_S, what="the end of the transaction")
    later = ends_of(source)
    assert list(values(read(source, later, ends)).values()) == [b"open"]


def test_deleted_records_are_a_gap_and_no_jump(
    broker: Broker, topic: str, opened: Callable[[str], TopicReader]
) -> None:
    assert broker.send(topic, [b"%d" % n for n in range(20)]) == 20
    admin = KafkaAdminClient(**broker.options())
    admin.delete_records({TopicPartition(topic, 0): 6})
    admin.close()
    source = opened(topic)
    assert source.bounds()[0] == OffsetBounds(6, 10, 0)
    source.seek({0: 3, 1: 0})

    def poll_until_told() -> None:
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until:
            assert all(part.partition == 1 for part in source.poll(records_max=10, timeout_s=0.25))

    with pytest.raises(OffsetGapError, match=r"has no offset .*0: 3"):
        poll_until_told()


def test_a_topic_that_is_made_again_has_another_identity_and_is_not_read_by_the_old_offsets(
    broker: Broker, topic: str, opened: Callable[[str], TopicReader]
) -> None:
    """Ingest asks for the identity after the last record of a batch; what was read until then is dropped."""
    assert broker.send(topic, [b"%d" % n for n in range(4)]) == 4
    source = opened(topic)
    before = source.identity()
    assert len(values(read(source, {0: 2, 1: 2}, {0: 0, 1: 0}))) == 4
    admin = KafkaAdminClient(**broker.options())
    admin.delete_topics([topic])
    admin.close()
    broker.make_topic(topic)
    assert broker.send(topic, [b"other"] * 8) == 8
    until, found = time.monotonic() + 5, list[RawRecords]()
    while time.monotonic() < until:
        try:
            found += source.poll(records_max=10, timeout_s=0.25)
        except (OffsetGapError, UnavailableError, NoSuchTopicError):
            break
    assert all(part.start >= 2 for part in found), "no poll goes back before the position"
    assert source.identity().topic_id != before.topic_id


def test_a_missing_right_is_named(broker: Broker, topic: str, sources: KafkaSources) -> None:
    assert broker.send(topic, [b"a", b"b"]) == 2
    login = Login(user="replay", password=broker.secrets.passwords["replay"])
    theirs = KafkaSources(broker.address, lambda: login, client=sources._client)

    def reading() -> None:
        source = theirs.open(topic, stream=STREAM)
        try:
            with pytest.raises(ForbiddenError, match=f"DESCRIBE on topic {topic}"):
                source.identity()
            source.seek({0: 0, 1: 0})
            until = time.monotonic() + WAIT_S
            while time.monotonic() < until:
                assert source.poll(records_max=10, timeout_s=0.25) == []
        finally:
            source.close()

    with pytest.raises(ForbiddenError, match=rf"READ on (group tarn-{STREAM}|its consumer group)"):
        reading()


def test_group_offsets_are_committed_for_lag_tools(
    broker: Broker, topic: str, opened: Callable[[str], TopicReader]
) -> None:
    assert broker.send(topic, [b"%d" % n for n in range(6)]) == 6
    source = opened(topic)
    read(source, {0: 3, 1: 3}, {0: 0, 1: 0})
    source.commit_group_offsets({0: 3, 1: 2})
    admin = KafkaAdminClient(**broker.options())
    found = admin.list_group_offsets({f"tarn-{STREAM}": None})[f"tarn-{STREAM}"]
    admin.close()
    offsets = {tp.partition: meta.offset for tp, meta in found.items() if tp.topic == topic}
    assert offsets == {0: 3, 1: 2}


@pytest.mark.parametrize("client", CLIENTS)
def test_a_wrong_password_is_waited_for(broker: Broker, client: Client) -> None:
    login = Login(user="ingest", password="not-the-password")
    with pytest.raises(UnavailableError, match="does not let user ingest in"):
        KafkaSources(broker.address, lambda: login, client=client).open("orders", stream=STREAM)
