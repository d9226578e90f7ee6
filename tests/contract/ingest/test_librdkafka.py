"""Records read by librdkafka, from the broker that the library has inside for tests (no transactions)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from operator import methodcaller

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from tarn.adapters import kafka_librdkafka
from tarn.adapters.kafka_client import KafkaConnection, vendor
from tarn.adapters.kafka_librdkafka import LibrdkafkaConsumer, translated
from tarn.core.batch import RawRecords

WAIT_S = 30.0


@pytest.fixture(scope="module")
def broker() -> Producer:
    """A producer, and in it a broker with topics of four partitions."""
    return Producer({"bootstrap.servers": "none", "test.mock.num.brokers": 1, "log_level": 0})


@pytest.fixture
def reader(broker: Producer) -> Iterator[Callable[[str], LibrdkafkaConsumer]]:
    """Opens consumers of a topic, closed after the test."""
    (address,) = [f"{b.host}:{b.port}" for b in broker.list_topics(timeout=WAIT_S).brokers.values()]
    opened: list[LibrdkafkaConsumer] = []

    def make(topic: str) -> LibrdkafkaConsumer:
        connection = KafkaConnection(bootstrap=address, client_id="test")
        opened.append(LibrdkafkaConsumer(connection, topic, group="tarn-test"))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


def send(broker: Producer, topic: str, *records: tuple[int, bytes | None]) -> None:
    """Produce (partition, value) pairs; the n-th has the key `kn` and the time n + 1."""
    for number, (partition, value) in enumerate(records):
        broker.produce(topic, value, key=b"k%d" % number, partition=partition, timestamp=number + 1)
    assert broker.flush(WAIT_S) == 0


def polled(
    consumer: LibrdkafkaConsumer, ends: dict[int, int], *, records_max: int = 1_000
) -> list[RawRecords]:
    """Everything up to these positions."""
    until, parts = time.monotonic() + WAIT_S, list[RawRecords]()
    while {p: consumer.positions[p] for p in ends} != ends:
        assert time.monotonic() < until, consumer.positions
        parts += consumer.poll(records_max=records_max, timeout_s=0.2)
    return parts


def test_records_come_as_they_were_sent_in_ranges_without_gaps(
    broker: Producer, reader: Callable[[str], LibrdkafkaConsumer]
) -> None:
    send(broker, "orders", (0, b"a"), (1, b"b"), (0, None), (0, b""), (1, b"\xff\n"))
    consumer = reader("orders")
    consumer.assign({0: 0, 1: 0, 2: 0})
    parts = polled(consumer, {0: 3, 1: 2})
    assert consumer.positions == {0: 3, 1: 2, 2: 0}
    found = {
        (part.partition, offset): (key, value, at)
        for part in parts
        for offset, key, value, at in zip(part.offsets, part.keys, part.values, part.times_ms, strict=True)
    }
    assert found == {
        (0, 0): (b"k0", b"a", 1),
        (0, 1): (b"k2", None, 3),
        (0, 2): (b"k3", b"", 4),
        (1, 0): (b"k1", b"b", 2),
        (1, 1): (b"k4", b"\xff\n", 5),
    }
    for partition in (0, 1):
        mine = [part for part in parts if part.partition == partition]
        assert mine[0].start == 0
        assert [part.end for part in mine[:-1]] == [part.start for part in mine[1:]]


def test_it_reads_from_the_assigned_offset_and_forgets_what_it_fetched(
    broker: Producer, reader: Callable[[str], LibrdkafkaConsumer]
) -> None:
    send(broker, "again", *((0, b"%d" % n) for n in range(100)))
    consumer = reader("again")
    consumer.assign({0: 0})
    assert consumer.poll(records_max=10, timeout_s=WAIT_S)[0].offsets[0] == 0
    for start in (40, 7):
        consumer.assign({0: start})
        parts = polled(consumer, {0: 100})
        assert parts[0].start == start
        assert [offset for part in parts for offset in part.offsets] == list(range(start, 100))


def test_a_poll_gives_at_most_what_was_asked_for(
    broker: Producer, reader: Callable[[str], LibrdkafkaConsumer]
) -> None:
    send(broker, "bounded", *((n % 4, b"%d" % n) for n in range(40)))
    consumer = reader("bounded")
    consumer.assign(dict.fromkeys(range(4), 0))
    sizes = []
    while sum(sizes) < 40:
        sizes.append(sum(len(p.offsets) for p in consumer.poll(records_max=7, timeout_s=WAIT_S)))
        assert sizes[-1], f"{sum(sizes)} of 40 records came"
    assert max(sizes) <= 7


def test_a_poll_takes_the_records_in_several_pieces_and_skips_none(
    broker: Producer, reader: Callable[[str], LibrdkafkaConsumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_librdkafka, "CONSUME_RECORDS", 7)
    send(broker, "pieces", *((n % 3, b"%d" % n) for n in range(300)))
    consumer = reader("pieces")
    consumer.assign(dict.fromkeys(range(3), 0))
    parts = polled(consumer, dict.fromkeys(range(3), 100))
    assert max(sum(len(part.offsets) for part in parts if part.partition == p) for p in range(3)) == 100
    assert max(len(part.offsets) for part in parts) > 7, "a poll is more than a piece"
    for p in range(3):
        mine = [part for part in parts if part.partition == p]
        assert [offset for part in mine for offset in part.offsets] == list(range(100))
        assert [value for part in mine for value in part.values] == [b"%d" % n for n in range(p, 300, 3)]
        assert [time_ms for part in mine for time_ms in part.times_ms] == list(range(p + 1, 301, 3))


class Sent:
    """A message as the library gives it."""

    def __init__(self, partition: int, offset: int, *, error: KafkaError | None = None) -> None:
        self._partition, self._offset, self._error = partition, offset, error

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return (0, 5) if self._offset % 2 else (1, 1_000 + self._offset)

    def key(self) -> bytes | None:
        return None if self._offset % 3 else b"k"

    def value(self) -> bytes | None:
        return b"%d" % self._offset

    def error(self) -> KafkaError | None:
        return self._error

    def leader_epoch(self) -> int | None:
        return None if self._partition else self._offset // 5


def test_pieces_with_holes_and_ends_become_the_columns_of_their_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("partition", "offset", "timestamp", "key", "value", "error"):
        monkeypatch.setattr(kafka_librdkafka, f"_{name}", methodcaller(name))
    end = KafkaError(KafkaError._PARTITION_EOF, "the end")
    found: dict[int, kafka_librdkafka._Columns] = {}
    ends: dict[int, int] = {}
    kafka_librdkafka._collect([Sent(0, 3), Sent(0, 4), Sent(1, 9), Sent(0, 7), Sent(0, 9)], found, ends)
    kafka_librdkafka._collect([Sent(2, 6, error=end), Sent(1, 10), Sent(0, 12, error=end)], found, ends)
    assert ends == {2: 6, 0: 12}
    assert {p: columns.offsets for p, columns in found.items()} == {0: [3, 4, 7, 9], 1: [9, 10]}
    assert found[0].values == [b"3", b"4", b"7", b"9"]
    assert (found[0].epoch, found[1].epoch) == (1, None), "that of the last record"
    assert found[0].keys == [b"k", None, None, b"k"]
    assert found[0].times_ms == [-1, 1_004, -1, -1], "a time that the record does not have is -1"
    denied = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "no")
    with pytest.raises(vendor.TopicAuthorizationFailedError):
        kafka_librdkafka._collect([Sent(0, 10), Sent(0, 11, error=denied)], found, ends)


def test_a_lone_record_does_not_wait_for_others(
    broker: Producer, reader: Callable[[str], LibrdkafkaConsumer]
) -> None:
    send(broker, "lone", (0, b"a"))
    consumer = reader("lone")
    consumer.assign({0: 0})
    begun = time.monotonic()
    (part,) = consumer.poll(records_max=1_000, timeout_s=WAIT_S)
    assert list(part.values) == [b"a"]
    assert time.monotonic() - begun < WAIT_S / 2


@pytest.mark.parametrize("offset", [11, 1_000_000])
def test_an_offset_outside_the_log_is_an_error_and_no_jump(
    broker: Producer, reader: Callable[[str], LibrdkafkaConsumer], offset: int
) -> None:
    send(broker, "short", *((0, b"%d" % n) for n in range(5)))
    consumer = reader("short")
    consumer.assign({0: offset})

    def read() -> None:
        for _ in range(100):
            assert consumer.poll(records_max=10, timeout_s=0.3) == []

    with pytest.raises(vendor.OffsetOutOfRangeError):
        read()
    assert consumer.positions == {0: offset}


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, vendor.TopicAuthorizationFailedError),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, vendor.GroupAuthorizationFailedError),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, vendor.UnknownTopicOrPartitionError),
        (KafkaError.OFFSET_OUT_OF_RANGE, vendor.OffsetOutOfRangeError),
        (KafkaError._AUTO_OFFSET_RESET, vendor.OffsetOutOfRangeError),
        (KafkaError._LOG_TRUNCATION, vendor.OffsetOutOfRangeError),
        (KafkaError._BAD_MSG, vendor.CorruptRecordError),
        (KafkaError._AUTHENTICATION, vendor.SaslAuthenticationFailedError),
        (KafkaError._UNKNOWN_TOPIC, vendor.UnknownTopicOrPartitionError),
        (KafkaError._TRANSPORT, vendor.KafkaConnectionError),
        (KafkaError._ALL_BROKERS_DOWN, vendor.KafkaConnectionError),
    ],
)
def test_its_errors_become_those_that_the_one_map_knows(code: int, error: type[Exception]) -> None:
    found = translated(KafkaError(code, "the reason"))
    assert type(found) is error
    assert "the reason" in str(found)


def test_a_broker_that_never_answers_is_reported_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = KafkaConnection(bootstrap="127.0.0.1:1", client_id="test")
    consumer = LibrdkafkaConsumer(connection, "orders", group="tarn-test")
    try:
        consumer.assign({0: 0})
        assert consumer.poll(records_max=10, timeout_s=0.1) == []
        monkeypatch.setattr(kafka_librdkafka, "SILENT_S_MAX", 0.5)
        with pytest.raises(vendor.KafkaConnectionError):
            polled(consumer, {0: 1})
    finally:
        consumer.close()


def test_a_log_that_is_only_silent_is_no_error(
    broker: Producer, reader: Callable[[str], LibrdkafkaConsumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_librdkafka, "SILENT_S_MAX", 0.0)
    send(broker, "silent", (0, b"a"))
    consumer = reader("silent")
    consumer.assign({0: 0})
    polled(consumer, {0: 1})
    consumer._on_error(KafkaError(KafkaError._TRANSPORT, "a broker went away, and came back"))
    assert [consumer.poll(records_max=10, timeout_s=0.1) for _ in range(3)] == [[], [], []]


def test_what_no_retry_helps_against_is_raised_at_the_next_poll(
    reader: Callable[[str], LibrdkafkaConsumer],
) -> None:
    consumer = reader("denied")
    consumer.assign({0: 0})
    consumer._on_error(KafkaError(KafkaError._AUTHENTICATION, "wrong password"))
    with pytest.raises(vendor.SaslAuthenticationFailedError, match="wrong password"):
        consumer.poll(records_max=10, timeout_s=0.1)


def test_an_exception_of_the_library_becomes_an_error_too() -> None:
    with pytest.raises(vendor.TopicAuthorizationFailedError, match="may not"), kafka_librdkafka.translating():
        raise KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "may not"))
