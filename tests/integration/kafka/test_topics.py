"""`scripts/tarn topic`, `produce` and `consume` on a real broker, as the command line's own user."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tarn.adapters.kafka import KafkaSources
from tarn.adapters.kafka_login import Login
from tarn.cli.clients import kafka_topics
from tarn.cli.clients.kafka_topics import KafkaTopics, Message
from tarn.core.errors import AlreadyExistsError, ForbiddenError, InvalidError
from tarn.core.source import NoSuchTopicError
from tests.integration.kafka.conftest import OLD, Broker

pytestmark = pytest.mark.filterwarnings(f"ignore:{OLD}:DeprecationWarning")


@pytest.fixture(scope="module")
def broker(shared_broker: Broker) -> Broker:
    return shared_broker


@pytest.fixture
def topics(broker: Broker) -> KafkaTopics:
    return as_user(broker, "cli")


def as_user(broker: Broker, user: str) -> KafkaTopics:
    login = Login(user=user, password=broker.secrets.passwords[user])
    return KafkaTopics(broker.address, login, timeout_s=60.0)


def test_a_topic_from_its_creation_to_its_end(topics: KafkaTopics) -> None:
    topics.create("cli.whole", partitions=2, configs={"retention.ms": "3600000"})
    with pytest.raises(AlreadyExistsError, match=r"topic cli\.whole exists already"):
        topics.create("cli.whole", partitions=5, configs={})
    sent = topics.produce("cli.whole", ((b"%d" % (n % 7), b"message %d" % n) for n in range(5_000)))
    assert sum(sent.values()) == 5_000
    assert set(sent) == {0, 1}
    found = topics.details("cli.whole")
    assert {p: end - first for p, (first, end) in found.bounds.items()} == sent
    assert found.configs["retention.ms"] == "3600000"
    assert len(found.topic_id) > 10
    assert topics.bounds()["cli.whole"] == found.bounds
    read = list(topics.consume("cli.whole", {0: 0, 1: 0}, follow=False))
    assert sorted(m.value or b"" for m in read) == sorted(b"message %d" % n for n in range(5_000))
    for key in {m.key for m in read}:
        of_key = [int((m.value or b"").split()[1]) for m in read if m.key == key]
        assert of_key == sorted(of_key), "messages of one key are in order"
    (last,) = topics.consume("cli.whole", {1: sent[1] - 1}, follow=False)
    assert (last.partition, last.offset) == (1, sent[1] - 1)
    topics.delete("cli.whole")
    with pytest.raises(NoSuchTopicError, match=r"could not describe topic cli\.whole"):
        topics.details("cli.whole")


def test_ingest_lists_the_topics_for_its_patterns_without_the_internal_ones(
    broker: Broker, topics: KafkaTopics
) -> None:
    topics.create("listed.one", partitions=1, configs={})
    topics.produce("listed.one", [(None, b"{}")])
    login = Login(user="ingest", password=broker.secrets.passwords["ingest"])
    found = KafkaSources(broker.address, lambda: login).list_topics()
    assert "listed.one" in found
    assert not [name for name in found if name.startswith("__")]
    topics.delete("listed.one")


def test_following_sees_what_comes_later(topics: KafkaTopics) -> None:
    topics.create("cli.follow", partitions=1, configs={})
    topics.produce("cli.follow", [(None, b"before")])
    following: Iterator[Message] = topics.consume("cli.follow", {0: 1}, follow=True)
    later = threading.Timer(1.0, topics.produce, ("cli.follow", [(None, b"after")]))
    later.start()
    try:
        message = next(following)
    finally:
        later.join()
        following.close()  # type: ignore[attr-defined]
    assert (message.offset, message.value) == (1, b"after")


def test_what_is_not_there_is_named(topics: KafkaTopics) -> None:
    for work in (
        lambda: topics.details("cli.absent"),
        lambda: topics.delete("cli.absent"),
        lambda: topics.produce("cli.absent", [(None, b"a")]),
        lambda: list(topics.consume("cli.absent", {0: 0}, follow=False)),
    ):
        with pytest.raises(NoSuchTopicError, match=r"topic cli\.absent: the topic does not exist"):
            work()


def test_what_kafka_does_not_take_is_refused(topics: KafkaTopics, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidError, match=r"does not create topic cli\.odd: .*retention"):
        topics.create("cli.odd", partitions=1, configs={"retention.ms": "soon"})
    assert "cli.odd" not in topics.bounds()
    monkeypatch.setattr(kafka_topics, "MESSAGE_BYTES_MAX", 10)
    topics.create("cli.large", partitions=1, configs={})
    with pytest.raises(InvalidError, match="message 2 has 11 bytes, at most 10 can be sent; the 1 before"):
        topics.produce("cli.large", [(None, b"small"), (None, b"x" * 11), (None, b"never")])
    assert [m.value for m in topics.consume("cli.large", {0: 0}, follow=False)] == [b"small"]


def test_an_internal_topic_and_another_user_are_refused(broker: Broker, topics: KafkaTopics) -> None:
    with pytest.raises((ForbiddenError, NoSuchTopicError)):
        topics.delete("__consumer_offsets")
    assert not [name for name in topics.bounds() if name.startswith("__")]
    topics.create("cli.kept", partitions=1, configs={})
    with pytest.raises(ForbiddenError, match=r"user ingest may not delete topic cli\.kept"):
        as_user(broker, "ingest").delete("cli.kept")
    assert "cli.kept" in topics.bounds()
