"""One map from the errors of Kafka's library to Tarn's, over every caller: class and missing right."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from tarn.adapters import kafka_client
from tarn.adapters.kafka import KafkaSource, KafkaSources, cluster_id
from tarn.adapters.kafka_client import CODECS, KafkaConnection, TopicPartition, vendor
from tarn.adapters.kafka_login import Login
from tarn.cli.clients.kafka_log import KafkaLog
from tarn.cli.clients.kafka_offsets import KafkaOffsets
from tarn.core.errors import (
    DataError,
    ForbiddenError,
    OffsetGapError,
    TarnError,
    UnauthenticatedError,
    UnavailableError,
)
from tarn.core.source import NoSuchTopicError, OffsetBounds
from tarn_demo.flights import dataset, producer
from tarn_demo.flights.events import NoiseRates, Stream
from tarn_demo.flights.pace import AllAtOnce
from tarn_demo.flights.producer import Topic
from tarn_demo.flights.resume import plan

BROKER = "b:9092"
# Not SASL_PLAINTEXT: the login check would connect.
LOGIN = Login(protocol="SASL_SSL", user="cli", password="not to be shown")
ORDERS = TopicPartition("orders", 0)


class Clients:
    """The library's three clients on a topic with ten records, until a request meets a fault."""

    def __init__(self) -> None:
        self.fault: Exception | None = None
        self.at = ""
        self.made: list[tuple[str, dict[str, Any]]] = []
        self.open = 0
        self._manager = self
        self.answers: dict[str, Any] = {
            "describe_topics": [{"topic_id": "id", "partitions": [{"partition_index": 0}], "error_code": 0}],
            "describe_cluster": {"cluster_id": "c"},
            "list_topics": ["others"],
            "topics": {"orders"},
            "partitions_for_topic": {0},
            "partitions_for": {0},
            "beginning_offsets": {ORDERS: 0},
            "end_offsets": {ORDERS: 10},
            "list_partition_offsets": {ORDERS: SimpleNamespace(offset=10, leader_epoch=4)},
            "run": {0: 10},
            "position": 0,
            "poll": {},
            "send": self,
            "succeeded": False,
        }

    def opens(self, kind: str) -> Callable[..., Clients]:
        def make(connection: KafkaConnection | None = None, **options: Any) -> Clients:
            if connection is None:  # of the library itself
                self.made.append((kind, options))
            if self.fault and self.at == f"open {kind}":
                raise self.fault
            self.open += 1
            return self

        return make

    def close(self, **_: Any) -> None:
        self.open -= 1

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def request(*_: Any, **_options: Any) -> Any:
            if self.fault and self.at == name:
                raise self.fault
            return self.answers.get(name)

        return request


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> Clients:
    made = Clients()
    for kind in ("KafkaConsumer", "KafkaProducer", "KafkaAdminClient"):
        monkeypatch.setattr(kafka_client, kind, made.opens(kind))
    monkeypatch.setattr(producer, "LibrdkafkaProducer", made.opens("LibrdkafkaProducer"))
    monkeypatch.setattr(producer, "TOPIC_S_MAX", -1)
    return made


@dataclass(frozen=True)
class Call:
    """A caller's request that meets the fault.

    Attributes:
        run: the call.
        at: the library's method that raises.
        action: what the messages say.
        operation: the right on the topic that they name.
        service: whether the caller is a service, which waits until a rejected login is corrected.
    """

    run: Callable[[], Any]
    at: str
    action: str
    operation: str
    service: bool = False


def source() -> KafkaSource:
    found = KafkaSources(BROKER, lambda: LOGIN, client="kafka-python").open("orders", stream="s")
    assert isinstance(found, KafkaSource)
    return found


def polled() -> object:
    found = source()
    found.seek({0: 5})
    return found.poll(records_max=10, timeout_s=0.0)


def offsets() -> KafkaOffsets:
    return KafkaOffsets(BROKER, LOGIN, timeout_s=5.0)


def topic() -> Topic:
    return Topic(bootstrap=BROKER, login=LOGIN, name="orders")


@cache
def stream_of_a_day() -> Stream:
    flights = dataset.read_flights().slice(0, 20)
    return Stream(flights, dataset.read_reference("airports"), noise=NoiseRates(), seed=1)


def played() -> int:
    stream = stream_of_a_day()
    todo = plan({0: None}, (len(stream),), fingerprint=stream.fingerprint, again=False)
    return topic().play(stream, AllAtOnce(), todo)


CALLS = {
    "the command line identifies": Call(
        lambda: offsets().identity("orders"),
        "describe_topics",
        "ask for the identity of topic orders",
        "DESCRIBE",
    ),
    "ingest opens": Call(source, "open KafkaConsumer", "connect for topic orders", "DESCRIBE", True),
    "ingest identifies": Call(
        lambda: source().identity(),
        "describe_topics",
        "ask for the identity of topic orders",
        "DESCRIBE",
        True,
    ),
    "ingest asks for bounds": Call(
        lambda: source().bounds(),
        "list_partition_offsets",
        "ask for the bounds of topic orders",
        "DESCRIBE",
        True,
    ),
    "ingest asks for epochs": Call(
        lambda: source().epoch_ends({0: 4}),
        "run",
        "ask for the leader epochs of topic orders",
        "DESCRIBE",
        True,
    ),
    "ingest seeks": Call(lambda: source().seek({0: 5}), "seek", "seek in topic orders", "DESCRIBE", True),
    "ingest polls": Call(polled, "poll", "read topic orders at or after {0: 5}", "READ", True),
    "ingest creates": Call(
        lambda: KafkaSources(BROKER, lambda: LOGIN).create("orders", partitions=1),
        "create_topics",
        "create topic orders",
        "CREATE",
        True,
    ),
    "ingest checks": Call(
        lambda: cluster_id(BROKER, LOGIN), "describe_cluster", "ask for the cluster id", "DESCRIBE", True
    ),
    "cli opens a producer": Call(
        lambda: KafkaLog(BROKER, LOGIN).send("orders", b"v", timeout_s=1.0),
        "open KafkaProducer",
        "send to topic orders",
        "WRITE",
    ),
    "cli finds the topic": Call(
        lambda: KafkaLog(BROKER, LOGIN).send("orders", b"v", timeout_s=1.0),
        "partitions_for",
        "send to topic orders",
        "WRITE",
    ),
    "cli sends": Call(
        lambda: KafkaLog(BROKER, LOGIN).send("orders", b"v", timeout_s=1.0),
        "get",
        "send to topic orders",
        "WRITE",
    ),
    "cli lists": Call(
        lambda: KafkaLog(BROKER, LOGIN).topics(timeout_s=1.0), "topics", "list the topics", "DESCRIBE"
    ),
    "cli asks for bounds": Call(
        lambda: offsets().bounds(), "end_offsets", "ask for the bounds of the topics", "DESCRIBE"
    ),
    "cli reads times": Call(
        lambda: offsets().newest("orders", {0: (0, 10)}, [{0: 10}]), "poll", "read topic orders", "READ"
    ),
    "demo creates": Call(lambda: topic().ensure(), "create_topics", "create topic orders", "CREATE"),
    "demo asks for the end": Call(
        lambda: topic().end_offsets(), "end_offsets", "ask for the end of topic orders", "DESCRIBE"
    ),
    "demo describes": Call(
        lambda: topic().end_offsets(), "describe_topics", "ask for the end of topic orders", "DESCRIBE"
    ),
    "demo reads the end": Call(lambda: topic().tails(), "poll", "read topic orders", "READ"),
    "demo opens a producer": Call(played, "open LibrdkafkaProducer", "write to topic orders", "WRITE"),
    "demo sends": Call(played, "send", "write to topic orders", "WRITE"),
    "demo awaits": Call(played, "get", "write to topic orders", "WRITE"),
}


# Readers of a topic and of offsets keep their clients until they are closed.
READERS = (
    "ingest identifies",
    "ingest asks for bounds",
    "ingest asks for epochs",
    "ingest seeks",
    "ingest polls",
)
STAYS_OPEN = tuple(CALLS[name].run for name in (*READERS, "cli asks for bounds", "cli reads times"))


def met(call: Call, clients: Clients, fault: Exception) -> TarnError:
    clients.fault, clients.at = fault, call.at
    with pytest.raises(TarnError) as caught:
        call.run()
    assert caught.value.__cause__ is not None
    assert clients.open == 0 or call.run in STAYS_OPEN, "a client was left open"
    return caught.value


@pytest.mark.long
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    ("denied", "right"),
    [
        (vendor.TopicAuthorizationFailedError({"orders"}), "{operation} on topic orders"),
        (vendor.TopicAuthorizationFailedError("orders"), "{operation} on topic orders"),
        (vendor.GroupAuthorizationFailedError("tarn-s"), "READ on group tarn-s"),
        (vendor.GroupAuthorizationFailedError(), "READ on its consumer group"),
        (vendor.ClusterAuthorizationFailedError("not authorized to do that"), "{of_cluster} on the cluster"),
        (vendor.TransactionalIdAuthorizationFailedError(), "WRITE on its transactional id"),
        (vendor.DelegationTokenAuthorizationFailedError(), "a right"),
    ],
    ids=lambda value: repr(value) if isinstance(value, Exception) else "",
)
def test_a_denied_user_learns_which_right_is_missing(
    clients: Clients, name: str, denied: Exception, right: str
) -> None:
    call = CALLS[name]
    error = met(call, clients, denied)
    assert type(error) is ForbiddenError
    of_cluster = {"WRITE": "IDEMPOTENT_WRITE"}.get(call.operation, call.operation).replace("READ", "DESCRIBE")
    missing = right.format(operation=call.operation, of_cluster=of_cluster)
    assert error.message.startswith(
        f"user cli may not {call.action}: Kafka at {BROKER} does not grant it {missing} ("
    )
    assert type(denied).__name__ in error.message
    assert "docs/reference.md" in error.message
    assert {k: error.fields[k] for k in ("address", "user", "right")} == {
        "address": BROKER,
        "user": "cli",
        "right": missing,
    }
    assert "does not answer" not in error.message
    assert LOGIN.password not in error.message


@pytest.mark.parametrize("said", [(), (None,)], ids=["nothing", "null"])
def test_a_denied_topic_is_named_even_if_the_library_does_not(
    clients: Clients, said: tuple[object, ...]
) -> None:
    error = met(CALLS["ingest identifies"], clients, vendor.TopicAuthorizationFailedError(*said))
    assert error.fields["right"] == "DESCRIBE on topic orders"


@pytest.mark.parametrize("call", ["ingest identifies", "ingest asks for bounds", "demo asks for the end"])
@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (vendor.TopicAuthorizationFailedError, ForbiddenError),
        (vendor.BrokerNotAvailableError, UnavailableError),
    ],
)
def test_an_error_in_the_description_of_a_topic_counts(
    clients: Clients, call: str, fault: type[Exception], kind: type[TarnError]
) -> None:
    clients.answers["describe_topics"] = [{"error_code": fault.errno}]  # type: ignore[attr-defined]
    with pytest.raises(kind) as caught:
        CALLS[call].run()
    assert fault.__name__ in caught.value.message


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    "fault",
    [
        vendor.SaslAuthenticationFailedError("Authentication failed for user cli"),
        vendor.UnsupportedSaslMechanismError("SCRAM-SHA-512"),
        vendor.IllegalSaslStateError(),
    ],
    ids=repr,
)
def test_a_rejected_login_is_named_and_a_service_waits_for_it(
    clients: Clients, name: str, fault: Exception
) -> None:
    call = CALLS[name]
    error = met(call, clients, fault)
    if name == "demo awaits":
        assert type(error) is DataError  # a message was refused after others were taken
        return
    assert type(error) is (UnavailableError if call.service else UnauthenticatedError)
    assert f"Kafka at {BROKER} does not let user cli in (" in error.message
    assert error.message.startswith(f"could not {call.action}: ") == call.service
    assert type(fault).__name__ in error.message
    assert (error.fields["address"], error.fields["user"]) == (BROKER, "cli")


REST: dict[str, tuple[Exception, type[TarnError], str]] = {
    "no such topic": (
        vendor.UnknownTopicOrPartitionError(),
        NoSuchTopicError,
        f"the topic does not exist at {BROKER}; create it",
    ),
    "offset truncated": (vendor.LogTruncationError({ORDERS: None}), OffsetGapError, "LogTruncationError"),
    "offset gone": (vendor.OffsetOutOfRangeError({ORDERS: 5}), OffsetGapError, "OffsetOutOfRangeError"),
    "no offset": (vendor.NoOffsetForPartitionError(ORDERS), OffsetGapError, "NoOffsetForPartitionError"),
    "codec": (
        vendor.UnsupportedCodecError("no zstd"),
        DataError,
        f"UnsupportedCodecError: no zstd; readable are {', '.join(CODECS)}",
    ),
    "corrupt": (vendor.CorruptRecordError("bad crc"), DataError, "bad crc; restore the segment"),
    "no broker": (
        vendor.KafkaConnectionError("gone"),
        UnavailableError,
        f"Kafka at {BROKER} does not answer (KafkaConnectionError: gone); is the service kafka running and "
        "healthy? see docker compose logs kafka",
    ),
    "too late": (vendor.KafkaTimeoutError(), UnavailableError, "does not answer (KafkaTimeoutError)"),
    "no network": (
        ConnectionResetError("reset"),
        UnavailableError,
        "does not answer (ConnectionResetError: reset)",
    ),
}


@pytest.mark.parametrize("name", [name for name in CALLS if name != "demo awaits"])
@pytest.mark.parametrize("case", REST)
def test_every_other_error_has_one_class_whoever_calls(clients: Clients, name: str, case: str) -> None:
    call = CALLS[name]
    fault, kind, part = REST[case]
    if (name, case) == ("demo describes", "no such topic"):
        kind, part = UnavailableError, f"topic orders does not exist on {BROKER}; ingest makes it"
    if name == "demo sends" and isinstance(fault, OSError):
        return  # the library raises its own errors there; an OSError is the program's
    error = met(call, clients, fault)
    assert type(error) is kind
    assert part in error.message
    if (name, case) != ("demo describes", "no such topic") and "off" not in case:
        assert error.message.startswith(f"could not {call.action}: ")


@pytest.mark.parametrize("case", REST)
def test_a_message_that_kafka_did_not_take_is_a_gap_in_the_topic(clients: Clients, case: str) -> None:
    fault, _, _ = REST[case]
    if isinstance(fault, OSError):
        return
    error = met(CALLS["demo awaits"], clients, fault)
    assert type(error) is DataError
    assert "tarn demo load --again" in error.message


def test_why_kafka_has_no_bounds_is_said(clients: Clients) -> None:
    """A consumer would ask again until its time is over, and then say no more than that."""
    error = met(CALLS["ingest asks for bounds"], clients, vendor.KafkaStorageError("orders 0"))
    assert type(error) is UnavailableError
    assert "KafkaStorageError: orders 0)" in error.message


def test_bounds_end_where_a_transaction_is_open(clients: Clients) -> None:
    """A reader of committed records gets no further, and would lag for as long as it is open."""
    asked: list[Any] = []

    def list_partition_offsets(of: Any, **options: Any) -> Any:
        asked.append((*of.values(), options["isolation_level"]))
        return {ORDERS: SimpleNamespace(offset=7 + len(asked), leader_epoch=len(asked))}

    vars(clients)["list_partition_offsets"] = list_partition_offsets
    assert source().bounds() == {0: OffsetBounds(8, 9, 2)}
    assert asked == [(-2, "read_committed"), (-1, "read_committed")]


class Leaders:
    """An admin client of two brokers, each the leader of one partition."""

    def __init__(self, error: type[Exception] = vendor.NoError) -> None:
        self._manager = self
        self.asked: list[tuple[int, Any]] = []
        self._error = error

    def run(self, ask: Callable[[], Any]) -> Any:
        return asyncio.run(ask())

    async def _async_get_leader_for_partitions(self, partitions: Any) -> Any:
        return {7 + tp.partition: {tp} for tp in partitions}

    async def send(self, request: Any, *, node_id: int) -> Any:
        (topic,) = request.topics
        (one,) = topic.partitions
        self.asked.append((node_id, (topic.topic, one.partition, one.leader_epoch, one.current_leader_epoch)))
        code = getattr(self._error, "errno", 0)
        found = SimpleNamespace(
            partition=one.partition, error_code=code, end_offset=10 if one.leader_epoch < 5 else -1
        )
        return SimpleNamespace(topics=[SimpleNamespace(topic=topic.topic, partitions=[found])])


def test_epochs_are_asked_for_at_the_leader_of_each_partition() -> None:
    leaders = Leaders()
    assert kafka_client.epoch_ends(leaders, "orders", {0: 4, 1: 6}) == {0: 10, 1: None}
    assert sorted(leaders.asked) == [(7, ("orders", 0, 4, -1)), (8, ("orders", 1, 6, -1))]
    with pytest.raises(vendor.NotLeaderForPartitionError, match="leader epochs of orders 0"):
        kafka_client.epoch_ends(Leaders(vendor.NotLeaderForPartitionError), "orders", {0: 4})


def test_an_offset_that_ingest_misses_is_named_with_its_positions(clients: Clients) -> None:
    error = met(CALLS["ingest polls"], clients, vendor.OffsetOutOfRangeError({ORDERS: 5}))
    assert error.message.startswith("topic orders has no offset {0: 5} any more, or not yet: ")
    assert error.fields == {"topic": "orders", "positions": {0: 5}}


def test_group_offsets_that_may_not_be_written_are_logged_with_the_right(clients: Clients) -> None:
    found = source()
    clients.fault, clients.at = vendor.GroupAuthorizationFailedError("tarn-s"), "commit"
    with capture_logs() as logs:
        found.commit_group_offsets({0: 5})
    assert [entry["event"] for entry in logs] == ["group offsets not written; only lag tools use them"]
    assert "does not grant it READ on group tarn-s" in logs[0]["reason"]


def test_all_clients_have_one_set_of_connection_options(clients: Clients) -> None:
    clients.answers |= {"position": 10, "get": SimpleNamespace(partition=0, offset=1)}
    for call in CALLS.values():
        call.run()
    assert {kind for kind, _ in clients.made} == {"KafkaConsumer", "KafkaProducer", "KafkaAdminClient"}
    assert {options["client_id"] for _, options in clients.made} == {
        "tarn-ingest",
        "tarn-ingest-s",
        "tarn-ingest-watch",
        "tarn-cli",
        "tarn-demo",
    }
    for kind, options in clients.made:
        assert options["bootstrap_servers"] == [BROKER]
        assert {name: options[name] for name in LOGIN.options()} == LOGIN.options()
        assert 0 < options["request_timeout_ms"] <= 30_000
        assert 0 < options["bootstrap_timeout_ms"] <= 30_000
        assert options["reconnect_backoff_max_ms"] == 500
        assert options.get("metrics_enabled") is (None if kind == "KafkaAdminClient" else False)


def test_no_client_is_opened_if_the_login_is_rejected(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, float]] = []

    def require_login(bootstrap: str, options: Any, *, timeout_s: float) -> None:
        asked.append((bootstrap, timeout_s))
        raise UnauthenticatedError("no", address=bootstrap, user="cli")

    monkeypatch.setattr(kafka_client, "require_login", require_login)
    connection = KafkaConnection(bootstrap=BROKER, login=LOGIN, client_id="c", bootstrap_timeout_ms=1_500)
    for opens in (connection.consumer, connection.producer, connection.admin):
        with pytest.raises(UnauthenticatedError):
            opens()
    with pytest.raises(UnavailableError, match="could not connect for topic orders: no"):
        source()
    assert not clients.made
    assert asked == [*[(BROKER, 1.5)] * 3, (BROKER, 4.0)]
