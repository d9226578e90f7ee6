"""`LibrdkafkaProducer` at the broker that the library has inside for tests."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tarn.adapters import kafka_producer
from tarn.adapters.kafka_client import KafkaConnection, vendor
from tarn.adapters.kafka_producer import LibrdkafkaProducer, Sent

WAIT_S = 30.0
RECORDS = 5_000


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Address of a broker with topics of four partitions, which lives as long as the producer that has it."""
    inside = Producer({"bootstrap.servers": "none", "test.mock.num.brokers": 1, "log_level": 0})
    (found,) = [f"{b.host}:{b.port}" for b in inside.list_topics(timeout=WAIT_S).brokers.values()]
    inside.list_topics("sent", timeout=WAIT_S)  # that makes it
    yield found
    inside.flush(1)


def opened(
    address: str, *, delivery_ms_max: int = 30_000, message_bytes_max: int = 100_000
) -> LibrdkafkaProducer:
    return LibrdkafkaProducer(
        KafkaConnection(bootstrap=address, client_id="test"),
        delivery_ms_max=delivery_ms_max,
        linger_ms=5,
        batch_bytes=64 * 1024,
        message_bytes_max=message_bytes_max,
    )


def send(producer: LibrdkafkaProducer, number: int, *, value: bytes = b"v", topic: str = "sent") -> Sent:
    return producer.send(
        topic, key=b"k%d" % number, value=value, headers=[("n", b"%d" % number)], partition=number % 4
    )


def read(address: str, topic: str, count: int) -> dict[int, list[tuple[bytes, bytes, bytes]]]:
    """Key, value and header of all records, by partition in the order of the log."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, p, 0) for p in range(4)])
    found: dict[int, list[tuple[bytes, bytes, bytes]]] = {p: [] for p in range(4)}
    try:
        while sum(map(len, found.values())) < count:
            records = consumer.consume(1_000, WAIT_S)
            assert records, f"{sum(map(len, found.values()))} of {count} records came"
            for record in records:
                assert record.error() is None, record.error()
                ((_, header),) = record.headers() or []
                found[record.partition()].append((record.key(), record.value(), header))
        assert consumer.consume(1, 0.5) == [], "a record came twice"
    finally:
        consumer.close()
    return found


def test_records_arrive_once_and_in_order_and_are_acknowledged(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_producer, "QUEUE_KIB_MAX", 64)  # full again and again: `send` waits
    producer = opened(address)
    sent = [send(producer, n, value=b"x" * 100) for n in range(RECORDS)]
    for one in sent:
        one.get(WAIT_S)
    assert all(one.succeeded() for one in sent)
    producer.close(WAIT_S)
    assert read(address, "sent", RECORDS) == {
        p: [(b"k%d" % n, b"x" * 100, b"%d" % n) for n in range(p, RECORDS, 4)] for p in range(4)
    }


def test_what_nobody_acknowledged_has_not_succeeded(address: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        producer = opened(f"127.0.0.1:{silent.getsockname()[1]}")
        one = send(producer, 0)
        assert not one.succeeded()
        with pytest.raises(vendor.KafkaTimeoutError, match=r"no acknowledgement within 0\.2 s"):
            one.get(0.2)
        producer.close(0.1)
        assert not one.succeeded(), "what is given up is not acknowledged"
        with pytest.raises(vendor.KafkaError):
            one.get(1)


@pytest.mark.parametrize(
    ("topic", "value", "kind"),
    [("sent", b"x" * 100_001, vendor.MessageSizeTooLargeError)],
)
def test_a_record_that_is_too_large_is_refused_at_once(
    address: str, topic: str, value: bytes, kind: type[Exception]
) -> None:
    producer = opened(address)
    with pytest.raises(kind):
        send(producer, 0, value=value, topic=topic)
    producer.close(WAIT_S)


def test_the_broker_s_refusal_is_the_error_of_its_record() -> None:
    class Refuses:
        """Calls back with an error, as the library does for a record that the broker refuses."""

        def __init__(self) -> None:
            self.calls: list[Callable[[], None]] = []

        def poll(self, _: float) -> int:
            for call in self.calls:
                call()
            return len(self.calls)

    producer = Refuses()
    one = Sent(producer)  # type: ignore[arg-type]
    denied = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    producer.calls.append(lambda: one.delivered(denied, None))  # type: ignore[arg-type]
    with pytest.raises(vendor.TopicAuthorizationFailedError):
        one.get(1)
    assert not one.succeeded()


class Failed:
    """A producer with a fatal error, which the library raises from whatever is called next.

    Attributes:
        full: number of records that it does not take for now.
        flushed: for how long it was asked to wait.
    """

    def __init__(self, *, within_a_callback: bool = False, full: int = 0) -> None:
        self._within = within_a_callback
        self.full = full
        self.purged = 0
        self.flushed: list[float] = []

    def produce(self, *_: object, **__: object) -> None:
        if self.full:
            self.full -= 1
            raise BufferError

    def poll(self, _: float) -> int:
        error = KafkaException(KafkaError(KafkaError._GAPLESS_GUARANTEE, "a gap", fatal=True))
        if self._within:
            raise SystemError("returned a result with an exception set") from error
        raise error

    def flush(self, timeout: float) -> int:
        self.flushed.append(timeout)
        return self.poll(timeout)

    def purge(self) -> None:
        self.purged += 1


@pytest.mark.parametrize("within", [False, True])
def test_a_fatal_error_of_the_library_is_kafka_pythons_wherever_it_is_raised(
    address: str, monkeypatch: pytest.MonkeyPatch, within: bool
) -> None:
    producer = opened(address)
    producer._producer.flush(WAIT_S)
    failed = Failed(within_a_callback=within, full=1)
    producer._producer = failed  # type: ignore[assignment]
    with pytest.raises(vendor.KafkaConnectionError, match="a gap"):
        send(producer, 0)  # waits for room
    one = send(producer, 1)
    with pytest.raises(vendor.KafkaConnectionError, match="a gap"):
        one.get(1)
    monkeypatch.setattr(kafka_producer, "POLL_EVERY", 1)
    with pytest.raises(vendor.KafkaConnectionError, match="a gap"):
        send(producer, 2)
    producer.close(0.5)
    assert (failed.purged, failed.flushed) == (1, [0.5, 1])


def test_another_fault_of_the_interpreter_stays_what_it_is() -> None:
    class Broken:
        def poll(self, _: float) -> int:
            raise SystemError("bad argument")

    with pytest.raises(SystemError, match="bad argument"):
        Sent(Broken()).get(1)  # type: ignore[arg-type]
