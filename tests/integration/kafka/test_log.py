"""The log of a table on a real broker, with what the one inside librdkafka has not: fences and topic ids."""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Callable, Iterator

import pytest

from tarn.adapters.kafka_log import KafkaLog, KafkaLogs
from tarn.adapters.kafka_login import Login
from tarn.core.errors import SourceChangedError
from tarn.core.log_claims import claims_topic_of, topic_of
from tarn.core.table_log import LogFencedError
from tests.integration.kafka.conftest import OLD, Broker

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", OLD, DeprecationWarning)
    from kafka.admin import KafkaAdminClient

pytestmark = pytest.mark.filterwarnings(f"ignore:{OLD}:DeprecationWarning")


@pytest.fixture(scope="module")
def broker(shared_broker: Broker) -> Broker:
    return shared_broker


@pytest.fixture
def table(broker: Broker) -> str:
    """UUID of a table that has a topic for its log."""
    made = str(uuid.uuid4())
    broker.make_topic(topic_of(made))
    return made


@pytest.fixture
def of(broker: Broker, table: str) -> Iterator[Callable[[], KafkaLog]]:
    """Makes the table's log, each as of a gateway of its own."""
    login = Login(user="gateway", password=broker.secrets.passwords["gateway"])
    logs = KafkaLogs(broker.address, lambda: login)
    made: list[KafkaLog] = []

    def make() -> KafkaLog:
        made.append(logs.of(table))
        return made[-1]

    yield make
    for one in made:
        one.close()


def append(log: KafkaLog, *values: bytes) -> None:
    """Write rows, and a claim for each by its offset."""
    log.append([(0, value) for value in values], lambda offsets: [(b"k/%d" % o, b"{}") for o in offsets])


def keys(log: KafkaLog) -> list[bytes]:
    """Keys of the claims since the last call."""
    return [key for key, _ in log.claims()]


def test_who_opens_the_log_fences_the_former_one_and_has_its_claims(of: Callable[[], KafkaLog]) -> None:
    first, second = of(), of()
    first.open()
    append(first, b"a", b"b")
    second.open()
    with pytest.raises(LogFencedError):
        append(first, b"c")
    assert keys(second) == [b"k/0", b"k/1"]
    append(second, b"d")
    assert len(keys(second)) == 1


def test_claims_that_are_another_topic_are_noticed_though_it_is_longer(
    broker: Broker, table: str, of: Callable[[], KafkaLog]
) -> None:
    first, second = of(), of()
    first.open()
    append(first, b"a")
    assert keys(first) == [b"k/0"]
    admin = KafkaAdminClient(**broker.options())
    admin.delete_topics([claims_topic_of(table)])
    admin.close()
    second.open()
    append(second, b"b", b"c")
    with pytest.raises(SourceChangedError, match="restart the gateway"):
        keys(first)
    with pytest.raises(SourceChangedError, match="restart the gateway"):
        first.open()
    append(second, b"d")
    assert len(keys(second)) == 3
