"""`KafkaLog` at the broker that librdkafka has inside for tests.

That broker has transactions, and neither topic ids, fences nor readers of committed records:
tests/e2e/test_log.py has those.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicCollection, Uuid
from confluent_kafka.admin import AdminClient

from tarn.adapters import kafka_log
from tarn.adapters.kafka_client import KafkaConnection
from tarn.adapters.kafka_log import KafkaLog, KafkaLogs
from tarn.adapters.kafka_login import ANONYMOUS
from tarn.core.errors import (
    CorruptStateError,
    ForbiddenError,
    OutcomeUnknownError,
    SourceChangedError,
    TarnError,
    UnavailableError,
)
from tarn.core.log_claims import LogBook, claims_topic_of, topic_of
from tarn.core.offsets import TopicIdentity
from tarn.core.table_log import LogFencedError, LogPlace, Record

WAIT_S = 60.0


class Log(KafkaLog):
    """A log whose topics exist, and that does not ask for their ids.

    Attributes:
        number: the id of the topic with the claims.
    """

    number = "one"

    def _found(self, admin: AdminClient) -> LogPlace:
        own = TopicIdentity(cluster="c", topic=self._topic, topic_id="i")
        return LogPlace(identity=own, ends=dict.fromkeys(range(4), 0))

    def _create_claims(self, admin: AdminClient) -> None:
        return

    def _identified_claims(self, admin: AdminClient) -> str:
        return self.number


class Refusing:
    """A producer whose transactions fail as planned."""

    def __init__(self, inner: Producer, *plan: KafkaError, begin: KafkaError | None = None) -> None:
        self._inner = inner
        self._plan = list(plan)
        self._begin = begin
        self.aborted = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def begin_transaction(self) -> None:
        if self._begin is not None:
            raise KafkaException(self._begin)
        self._inner.begin_transaction()

    def abort_transaction(self, timeout: float) -> None:
        self.aborted += 1

    def commit_transaction(self, timeout: float) -> None:
        if self._plan:
            raise KafkaException(self._plan.pop(0))
        self._inner.commit_transaction(timeout)


@pytest.fixture(scope="module")
def broker() -> Producer:
    return Producer({"bootstrap.servers": "none", "test.mock.num.brokers": 1, "log_level": 0})


@pytest.fixture
def made(broker: Producer) -> Iterator[Callable[[], Log]]:
    """Makes logs of one table; both topics have a record."""
    table = str(uuid.uuid4())
    for topic in (topic_of(table), claims_topic_of(table)):
        broker.produce(topic, b"first", key=b"k/1", partition=0)
    assert broker.flush(WAIT_S) == 0
    (address,) = [f"{b.host}:{b.port}" for b in broker.list_topics(timeout=WAIT_S).brokers.values()]
    opened: list[Log] = []

    def make() -> Log:
        opened.append(
            Log(
                lambda: KafkaConnection(bootstrap=address, client_id="test", login=ANONYMOUS),
                table,
                claims_config={},
            )
        )
        return opened[-1]

    yield make
    for one in opened:
        one.close()


def write(log: KafkaLog, *rows: tuple[int, bytes]) -> list[int]:
    """Write rows; returns the offsets that their claims are made from."""
    found: list[int] = []

    def claims(offsets: Sequence[int]) -> Sequence[Record]:
        found.extend(offsets)
        return [(b"k/1", b"claim"), (b"k/2", None)]

    log.append(rows, claims)
    return found


def test_rows_have_the_offsets_of_their_partitions(made: Callable[[], Log]) -> None:
    log = made()
    assert log.open().ends == {0: 1, 1: 0, 2: 0, 3: 0}
    assert write(log, (0, b"a"), (1, b"b"), (0, b"c")) == [1, 0, 2]
    (last,) = write(log, (0, b"d"))
    assert last > 2
    assert write(log) == []
    assert log.open().ends[0] > last


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (KafkaError(KafkaError._FENCED, "fenced", fatal=True), LogFencedError),
        (KafkaError(KafkaError.PRODUCER_FENCED, "fenced"), LogFencedError),
        (KafkaError(KafkaError.INVALID_PRODUCER_EPOCH, "old epoch"), LogFencedError),
        (KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "denied"), ForbiddenError),
        (KafkaError(KafkaError._MSG_TIMED_OUT, "late"), UnavailableError),
    ],
)
def test_what_fails_before_the_commit_is_named_and_nothing_is_there(
    made: Callable[[], Log], error: KafkaError, found: type[TarnError]
) -> None:
    log = made()
    log.open()
    assert log._producer is not None
    refusing = Refusing(log._producer, begin=error)
    log._producer = refusing  # type: ignore[assignment]
    with pytest.raises(found) as caught:
        write(log, (0, b"a"))
    assert caught.type is found
    assert refusing.aborted == 1, "readers would wait for the end of the transaction"
    assert log.open().ends[0] == 1


def test_a_claim_that_cannot_be_made_leaves_the_log_usable_once_opened(made: Callable[[], Log]) -> None:
    log = made()
    log.open()

    def fail(offsets: Sequence[int]) -> Sequence[Record]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        log.append([(0, b"a")], fail)
    log.open()
    write(log, (0, b"b"))


def test_a_log_that_is_not_open_takes_nothing(made: Callable[[], Log]) -> None:
    with pytest.raises(UnavailableError, match="not open"):
        write(made(), (0, b"a"))


@pytest.mark.parametrize(
    "error",
    [
        KafkaError(KafkaError._FENCED, "fenced", fatal=True),
        KafkaError(KafkaError._TIMED_OUT, "late"),
        KafkaError(KafkaError.INVALID_TXN_STATE, "state", txn_requires_abort=True),
    ],
)
def test_whatever_a_commit_answers_but_yes_its_outcome_is_unknown(
    made: Callable[[], Log], error: KafkaError
) -> None:
    log = made()
    log.open()
    assert log._producer is not None
    log._producer = Refusing(log._producer, error)  # type: ignore[assignment]
    with pytest.raises(OutcomeUnknownError, match="did not confirm"):
        write(log, (0, b"a"))


def test_a_commit_is_asked_for_again_while_that_may_help(made: Callable[[], Log]) -> None:
    log = made()
    log.open()
    assert log._producer is not None
    again = KafkaError(KafkaError._TIMED_OUT, "late", retriable=True)
    log._producer = Refusing(log._producer, again, again)  # type: ignore[assignment]
    assert write(log, (0, b"a")) == [1]


def test_the_ends_are_those_of_now(made: Callable[[], Log]) -> None:
    log = made()
    assert log.open().ends == {0: 1, 1: 0, 2: 0, 3: 0}
    assert log.ends() == {0: 1, 1: 0, 2: 0, 3: 0}
    write(log, (0, b"a"), (2, b"b"))
    assert log.ends() == {0: 3, 1: 0, 2: 2, 3: 0}, "the mark of a transaction has an offset too"


def test_a_broker_that_is_away_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_log, "ASK_S_MAX", 0.5)
    with pytest.raises(UnavailableError, match=r"Kafka at 127\.0\.0\.1:1 does not answer"):
        KafkaLogs("127.0.0.1:1", lambda: ANONYMOUS).of("t").open()


class Records:
    """A consumer with records of the claims."""

    def __init__(self, *records: tuple[int, bytes, bytes | None]) -> None:
        self._left = list(records)

    def poll(self, _: float) -> object:
        return Given(*self._left.pop(0)) if self._left else None

    def consume(self, most: int, _: float) -> list[object]:
        found, self._left = [Given(*one) for one in self._left[:most]], self._left[most:]
        return list(found)


class Given:
    """A record of the claims."""

    def __init__(self, offset: int, key: bytes, value: bytes | None) -> None:
        self._offset, self._key, self._value = offset, key, value

    def error(self) -> None:
        return None

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes:
        return self._key

    def value(self) -> bytes | None:
        return self._value


def test_a_claim_that_could_not_be_taken_is_read_again(made: Callable[[], Log]) -> None:
    log = made()
    book = LogBook("claims")
    with pytest.raises(CorruptStateError, match="k/b"):
        book.read(log._read(Records((0, b"p/a", None), (1, b"k/b", b"?"), (2, b"k/c", None)), 3))  # type: ignore[arg-type]
    assert log._next == 1
    book.read(log._read(Records((1, b"k/b", None), (2, b"k/c", None)), 3))  # type: ignore[arg-type]
    assert log._next == 3


def test_claims_of_a_topic_that_was_recreated_are_lost_and_not_taken_for_the_rest(
    made: Callable[[], Log],
) -> None:
    log = made()
    assert [key for key, _ in log.claims()] == [b"k/1"]
    assert list(log.claims()) == []
    log.number = "two"  # as long as the one before, or longer
    with pytest.raises(SourceChangedError, match=r"has the id two, and had one: .* restart the gateway"):
        list(log.claims())
    with pytest.raises(SourceChangedError, match="has the id two"):
        log.open()
    assert log._producer is None, "another gateway, which goes on, would be fenced"
    log.number = "one"
    log._next = 7
    with pytest.raises(SourceChangedError, match="ends at offset 1, and was read to 7"):
        list(log.claims())
    other = made()
    other.number = "two"
    assert [key for key, _ in other.claims()] == [b"k/1"], "after a restart the topic of now counts"


class Describing:
    """An admin client whose broker learns of a topic after some questions."""

    def __init__(self, unknown: int) -> None:
        self.unknown = unknown

    def describe_topics(self, topics: TopicCollection, request_timeout: float) -> dict[str, Future[Any]]:
        asked: Future[Any] = Future()
        self.unknown -= 1
        if self.unknown >= 0:
            asked.set_exception(KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, "unknown")))
        else:
            asked.set_result(SimpleNamespace(topic_id=Uuid(1, -1)))
        return {"t": asked}


def test_a_topic_that_a_broker_does_not_know_yet_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_log, "CREATED_LOOK_S", 0.0)
    log = KafkaLogs("127.0.0.1:1", lambda: ANONYMOUS).of("t")
    found = log._identified_claims(Describing(3))  # type: ignore[arg-type]
    assert found == "00000000-0000-0001-ffff-ffffffffffff"
    monkeypatch.setattr(kafka_log, "ASK_S_MAX", 0.05)
    with pytest.raises(KafkaException):
        log._identified_claims(Describing(1 << 30))  # type: ignore[arg-type]


def test_questions_go_over_a_new_connection_after_an_error(
    made: Callable[[], Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a change of the gateway's password: the former connection is of no use any more."""
    log = made()
    right = log._connect
    monkeypatch.setattr(kafka_log, "ASK_S_MAX", 0.5)
    log._connect = lambda: KafkaConnection(bootstrap="127.0.0.1:1", client_id="test", login=ANONYMOUS)
    with pytest.raises(UnavailableError):
        list(log.claims())
    monkeypatch.undo()
    log._connect = right
    assert [key for key, _ in log.claims()] == [b"k/1"]
    assert log.open().ends[0] == 1


def test_what_the_library_reports_of_a_broker_that_is_away_is_let_go(
    made: Callable[[], Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = made()
    monkeypatch.setattr(kafka_log, "ASK_S_MAX", 0.5)
    log._connect = lambda: KafkaConnection(bootstrap="127.0.0.1:1", client_id="test", login=ANONYMOUS)
    log._producer = Producer({**kafka_log._options(log._connect()), "transactional.id": "away"})
    log._asking(kafka_log._options(log._connect()))
    assert log._admin is not None
    until_s = time.monotonic() + WAIT_S
    while not (len(log._producer) and len(log._admin)):
        assert time.monotonic() < until_s
        time.sleep(0.05)
    until_s = time.monotonic() + WAIT_S
    while len(log._producer) or len(log._admin):  # further reports may come meanwhile
        assert time.monotonic() < until_s, "they are held for ever"
        log.rest()
