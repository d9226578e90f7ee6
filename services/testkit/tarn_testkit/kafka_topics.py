"""The topics of a running stack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tarn.adapters.kafka_client import KafkaConnection
from tarn.adapters.kafka_login import Login
from tarn.cli.clients.kafka_topics import KafkaTopics
from tarn.core.errors import AlreadyExistsError
from tarn.core.source import NoSuchTopicError
from tarn_testkit.backend import Offsets
from tarn_testkit.messages import Message

TIMEOUT_S = 30.0
LINGER_MS = 5


def login_of(env: Mapping[str, str]) -> Login:
    """The Kafka user of `scripts/tarn env`."""
    return Login(
        protocol=env["TARN_KAFKA_SECURITY_PROTOCOL"],
        mechanism=env["TARN_KAFKA_SASL_MECHANISM"],
        user=env["TARN_KAFKA_USERNAME"],
        password=env["TARN_KAFKA_PASSWORD"],
    )


class StackTopics:
    """`Topics` of a Kafka cluster.

    Args:
        bootstrap: `host:port`, several separated by commas.
        login: Kafka credentials.
    """

    def __init__(self, bootstrap: str, login: Login) -> None:
        self._topics = KafkaTopics(bootstrap, login, timeout_s=TIMEOUT_S)
        self._connection = KafkaConnection(bootstrap=bootstrap, login=login, client_id="tarn-testkit")

    def names(self) -> list[str]:
        """Names of all topics but the broker's internal ones."""
        return sorted(self._topics.bounds())

    def ensure(self, topic: str, *, partitions: int) -> bool:
        """See `Topics.ensure`."""
        try:
            self._topics.create(topic, partitions=partitions, configs={})
        except AlreadyExistsError:
            return False
        return True

    def delete(self, topic: str) -> None:
        """See `Topics.delete`."""
        try:
            self._topics.delete(topic)
        except NoSuchTopicError:
            return

    def produce(self, topic: str, messages: Sequence[Message]) -> Offsets:
        """See `Topics.produce`: all of them are acknowledged by the broker when this returns.

        Raises:
            TarnError: the broker does not take one; those before it may be in the topic.
        """
        last: dict[int, int] = {}
        with self._connection.errors(f"send to topic {topic}", operation="WRITE", topic=topic):
            producer = self._connection.producer(
                acks="all", enable_idempotence=True, allow_auto_create_topics=False, linger_ms=LINGER_MS
            )
            try:
                sent = [producer.send(topic, one.value, key=one.key) for one in messages]
                for future in sent:
                    meta = future.get(timeout=TIMEOUT_S)
                    last[meta.partition] = max(meta.offset, last.get(meta.partition, -1))
            finally:
                producer.close(timeout=2)
        return dict(sorted(last.items()))
