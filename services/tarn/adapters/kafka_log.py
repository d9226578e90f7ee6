"""Logs of tables on Kafka: rows and claims in one transaction of librdkafka (package confluent-kafka).

The transactional id is the name of the topic with the rows. So whoever opens a table's log ends what another
process had begun there, and fences it (`init_transactions`); all that was committed before can then be read.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import structlog
from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewTopic

from tarn.adapters.kafka_client import RECONNECT_MS_MAX, KafkaConnection, vendor
from tarn.adapters.kafka_librdkafka import login_options, translated
from tarn.adapters.kafka_login import Login, require_login
from tarn.core.errors import OutcomeUnknownError, SourceChangedError, UnavailableError
from tarn.core.log_claims import claims_topic_of, topic_of
from tarn.core.offsets import TopicIdentity
from tarn.core.table_log import LogFencedError, LogPlace, Record

log = structlog.get_logger()

OPEN_S_MAX = 10.0
ASK_S_MAX = 5.0
READ_S_MAX = 20.0
DELIVER_MS_MAX = 8_000
COMMIT_S_MAX = 10.0
ABORT_S_MAX = 1.0
TRANSACTION_MS_MAX = 15_000
"""A transaction of a process that died ends after this time, if nobody opens the log before."""
MESSAGE_BYTES_MAX = 4 << 20
CLAIMS_CONFIG = {
    "cleanup.policy": "compact",
    "segment.ms": "600000",
    "segment.bytes": str(16 << 20),
    "min.cleanable.dirty.ratio": "0.2",
    "delete.retention.ms": "3600000",
}
"""One record per producer or key is kept: what a gateway reads when it begins is a few segments at most."""
CREATED_LOOK_S = 0.1
GROUP = "tarn-gateway"
_FENCED = {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}


class KafkaLogs:
    """A `TableLogs` of one Kafka cluster.

    Args:
        bootstrap: host:port of a broker, several separated by commas.
        login: credentials, read for every connection so that a rotated password is used.
        claims_config: settings of the topics with claims.
    """

    def __init__(
        self,
        bootstrap: str,
        login: Callable[[], Login],
        *,
        claims_config: dict[str, str] | None = None,
    ) -> None:
        self._bootstrap = bootstrap
        self._login = login
        self._claims_config = CLAIMS_CONFIG if claims_config is None else claims_config

    def of(self, table_uuid: str) -> KafkaLog:
        """See `TableLogs.of`."""
        return KafkaLog(self._connection, table_uuid, claims_config=self._claims_config)

    def _connection(self) -> KafkaConnection:
        return KafkaConnection(bootstrap=self._bootstrap, login=self._login(), client_id="tarn-gateway")


class KafkaLog:
    """A `TableLog` on Kafka.

    Args:
        connection: where the cluster is, and who connects.
        table_uuid: UUID of the table.
        claims_config: settings of the topic with the claims, if it is created.
    """

    def __init__(
        self,
        connection: Callable[[], KafkaConnection],
        table_uuid: str,
        *,
        claims_config: dict[str, str],
    ) -> None:
        self._connect = connection
        self._topic = topic_of(table_uuid)
        self._claims = claims_topic_of(table_uuid)
        self._claims_config = claims_config
        self._producer: Producer | None = None
        self._admin: AdminClient | None = None
        self._partitions: list[int] = []
        self._next = 0
        self._claims_id: str | None = None

    def open(self) -> LogPlace:
        """See `TableLog.open`."""
        self._end_producer()
        connection = self._connect()
        require_login(connection.bootstrap, connection.login.options())
        options = _options(connection)
        with self._errors(connection, "open", operation="DESCRIBE"):
            place = self._found(self._asking(options))
            self._partitions = list(place.ends)
        with self._errors(connection, "create the claims of", operation="CREATE"):
            self._create_claims(self._asking(options))
        with self._errors(connection, "look at the claims of", operation="DESCRIBE"):
            self._require_same_claims(self._asking(options))  # before it takes the log from others
        with self._errors(connection, "begin transactions of", operation="WRITE"):
            self._producer = producer = Producer(
                {
                    **options,
                    "transactional.id": self._topic,
                    "enable.idempotence": True,
                    "acks": "all",
                    "transaction.timeout.ms": TRANSACTION_MS_MAX,
                    "delivery.timeout.ms": DELIVER_MS_MAX,
                    "message.max.bytes": MESSAGE_BYTES_MAX,
                    "allow.auto.create.topics": False,
                }
            )
            producer.init_transactions(OPEN_S_MAX)
            ends = self._ends(self._asking(options), self._partitions)
        return LogPlace(identity=place.identity, ends=ends)

    def ends(self) -> dict[int, int]:
        """See `TableLog.ends`."""
        connection = self._connect()
        with self._errors(connection, "look at", operation="DESCRIBE"):
            return self._ends(self._asking(_options(connection)), self._partitions)

    def claims(self) -> Iterator[Record]:
        """See `TableLog.claims`."""
        connection = self._connect()
        with self._errors(connection, "read the claims of", operation="READ"):
            admin = self._asking(_options(connection))
            self._require_same_claims(admin)
            # Up to the last record there is, not the last one that is committed: a transaction whose commit
            # was confirmed is visible a little later.
            end = self._ask(
                admin.list_offsets(
                    {TopicPartition(self._claims, 0): _latest()},
                    isolation_level=IsolationLevel.READ_UNCOMMITTED,
                    request_timeout=ASK_S_MAX,
                )
            ).offset
            if self._next > end:
                raise self._claims_lost(f"ends at offset {end}, and was read to {self._next}")
            if self._next == end:
                return
            consumer = Consumer(
                {
                    **_options(connection),
                    "group.id": GROUP,
                    "enable.auto.commit": False,
                    "enable.auto.offset.store": False,
                    "enable.partition.eof": True,
                    # The oldest records may have been compacted away; a claim that counts is in another.
                    "auto.offset.reset": "earliest",
                    "isolation.level": "read_committed",
                    "check.crcs": True,
                    "allow.auto.create.topics": False,
                    "fetch.wait.max.ms": 50,
                }
            )
            try:
                consumer.assign([TopicPartition(self._claims, 0, self._next)])
                yield from self._read(consumer, end)
            finally:
                consumer.close()

    def append(
        self, rows: Sequence[tuple[int, bytes]], claims: Callable[[Sequence[int]], Sequence[Record]]
    ) -> None:
        """See `TableLog.append`."""
        producer = self._producer
        if producer is None:
            raise UnavailableError("the log is not open")
        connection = self._connect()
        try:
            with self._errors(connection, "write to", operation="WRITE"):
                producer.begin_transaction()
                offsets = self._sent(producer, rows)
                for key, value in claims(offsets):
                    producer.produce(self._claims, value, key=key, partition=0)  # the commit waits for them
        except BaseException:
            self._abort(producer)
            raise
        self._commit(producer)

    def rest(self) -> None:
        """See `TableLog.rest`; the library holds what it reports until it is asked for, without a bound."""
        for client in (self._producer, self._admin):
            if client is not None:
                with suppress(KafkaException):  # of a fatal error, which the next write meets
                    client.poll(0)

    def close(self) -> None:
        """See `TableLog.close`."""
        self._end_producer()
        self._admin = None

    def _asking(self, options: dict[str, Any]) -> AdminClient:
        """The client for questions; a new one after an error, which may be that of an old password."""
        if self._admin is None:
            self._admin = AdminClient(options)
        return self._admin

    def _found(self, admin: AdminClient) -> LogPlace:
        found = self._described(admin, self._topic)
        cluster = admin.list_topics(self._topic, timeout=ASK_S_MAX).cluster_id
        return LogPlace(
            identity=TopicIdentity(cluster=str(cluster), topic=self._topic, topic_id=_id(found)),
            ends={int(one.id): 0 for one in found.partitions},
        )

    def _described(self, admin: AdminClient, topic: str) -> Any:
        """The library's description of a topic, which its stubs do not have."""
        return self._ask(admin.describe_topics(TopicCollection([topic]), request_timeout=ASK_S_MAX))

    def _identified_claims(self, admin: AdminClient) -> str:
        """The id of the topic with the claims, which exists, though a broker may not know it yet."""
        until_s = time.monotonic() + ASK_S_MAX
        while True:
            try:
                return _id(self._described(admin, self._claims))
            except KafkaException as e:
                if e.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART or time.monotonic() > until_s:
                    raise
            time.sleep(CREATED_LOOK_S)

    def _require_same_claims(self, admin: AdminClient) -> None:
        """Require that the topic with the claims is the one of earlier calls.

        Raises:
            SourceChangedError: it is another one.
        """
        found = self._identified_claims(admin)
        if self._claims_id is None:
            self._claims_id = found
        elif found != self._claims_id:
            raise self._claims_lost(f"has the id {found}, and had {self._claims_id}")

    def _claims_lost(self, how: str) -> SourceChangedError:
        return SourceChangedError(
            f"topic {self._claims} {how}: it was deleted and created again, or lost records, and with it "
            "what is known of repeats. A repeat of an earlier row would be written a second time. Once no "
            "client repeats rows from before, restart the gateway, which goes on with the topic as it is",
            topic=self._claims,
        )

    def _ends(self, admin: AdminClient, partitions: Sequence[int]) -> dict[int, int]:
        wanted = {TopicPartition(self._topic, p): _latest() for p in partitions}
        asked = admin.list_offsets(
            wanted, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=ASK_S_MAX
        )
        return {tp.partition: int(one.result(ASK_S_MAX).offset) for tp, one in asked.items()}

    def _create_claims(self, admin: AdminClient) -> None:
        made = admin.create_topics(
            [NewTopic(self._claims, num_partitions=1, config=self._claims_config)],
            operation_timeout=ASK_S_MAX,
            request_timeout=ASK_S_MAX,
        )
        try:
            self._ask(made)
        except KafkaException as e:
            if e.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        else:
            log.info("topic created", topic=self._claims)

    def _ask(self, asked: dict[Any, Any]) -> Any:
        """The one result of a request of the admin client."""
        return next(iter(asked.values())).result(ASK_S_MAX)

    def _read(self, consumer: Consumer, end: int) -> Iterator[Record]:
        until_s = time.monotonic() + READ_S_MAX
        while self._next < end:
            if time.monotonic() > until_s:
                raise UnavailableError(
                    f"topic {self._claims} was read to offset {self._next} of {end} within {READ_S_MAX:g} s: "
                    "Kafka is slow, or a transaction of another gateway does not end"
                )
            # `consume` alone would wait for all its messages until the timeout.
            first = consumer.poll(0.2)
            for message in [] if first is None else [first, *consumer.consume(500, 0)]:
                error = message.error()
                if error is not None:
                    if error.code() != KafkaError._PARTITION_EOF:
                        raise KafkaException(error)
                    self._next = max(self._next, int(message.offset() or 0))
                    continue
                yield bytes(message.key() or b""), message.value()
                # Only now: a record that could not be understood comes again, and is not passed over.
                self._next = int(message.offset() or 0) + 1

    def _sent(self, producer: Producer, rows: Sequence[tuple[int, bytes]]) -> list[int]:
        """Send rows and wait until the broker has them; returns their offsets.

        Raises:
            KafkaException: one was not delivered.
        """
        offsets = [-1] * len(rows)
        failed: list[KafkaError] = []

        def delivered(at: int, error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failed.append(error)
            else:
                offsets[at] = int(message.offset() or 0)

        for at, (partition, value) in enumerate(rows):
            producer.produce(self._topic, value, partition=partition, on_delivery=partial(delivered, at))
        try:
            left = producer.flush(DELIVER_MS_MAX / 1_000 + 1)
        except SystemError as e:
            # The library calls `delivered` with its own exception, of a fatal error, still set.
            raise (e.__cause__ if isinstance(e.__cause__, KafkaException) else e) from None
        if failed:
            raise KafkaException(failed[0])
        if left or -1 in offsets:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"{left} rows not delivered"))
        return offsets

    def _commit(self, producer: Producer) -> None:
        """Commit the transaction.

        Raises:
            OutcomeUnknownError: it may be committed.
        """
        until_s = time.monotonic() + COMMIT_S_MAX
        while True:
            try:
                producer.commit_transaction(max(0.1, until_s - time.monotonic()))
                return
            except KafkaException as e:
                error = e.args[0]
                if error.retriable() and time.monotonic() < until_s:
                    continue
                raise OutcomeUnknownError(
                    f"Kafka did not confirm a transaction on topic {self._topic} ({error.str()})"
                ) from e

    def _abort(self, producer: Producer) -> None:
        """Try to end the transaction, so that readers need not wait; it cannot be committed any more."""
        try:
            producer.purge()
            producer.abort_transaction(ABORT_S_MAX)
        except KafkaException as e:
            log.info("a transaction is left to the broker", topic=self._topic, reason=e.args[0].str())

    def _end_producer(self) -> None:
        if self._producer is not None:
            self._producer.purge()
            self._producer = None

    @contextmanager
    def _errors(self, connection: KafkaConnection, action: str, *, operation: str) -> Iterator[None]:
        """Translate the library's errors inside a with statement.

        Raises:
            LogFencedError: another process writes the log.
            TarnError: see `KafkaConnection.error`.
        """
        try:
            yield
        except KafkaException as e:
            self._admin = None
            error = e.args[0]
            if error.code() in _FENCED:
                raise LogFencedError(f"another gateway writes topic {self._topic} ({error.str()})") from e
            raise connection.error(
                translated(error), f"{action} topic {self._topic}", operation=operation, topic=self._topic
            ) from e
        except TimeoutError as e:  # of the admin client's futures
            self._admin = None
            late = vendor.KafkaTimeoutError(f"no answer within {ASK_S_MAX:g} s")
            raise connection.error(
                late, f"{action} topic {self._topic}", operation=operation, topic=self._topic
            ) from e
        except BufferError as e:
            raise UnavailableError(f"the queue of topic {self._topic} is full; send it again") from e


def _id(found: Any) -> str:
    """The id of a described topic."""
    most, least = found.topic_id.get_most_significant_bits(), found.topic_id.get_least_significant_bits()
    return str(uuid.UUID(int=((most % 2**64) << 64) | (least % 2**64)))


def _latest() -> OffsetSpec:
    found: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    return found


def _options(connection: KafkaConnection) -> dict[str, Any]:
    quiet = logging.getLogger("librdkafka")
    quiet.setLevel(logging.CRITICAL + 1)
    return {
        **login_options(connection),
        "bootstrap.servers": connection.bootstrap,
        "client.id": connection.client_id,
        "socket.timeout.ms": int(ASK_S_MAX * 1_000),
        "reconnect.backoff.max.ms": RECONNECT_MS_MAX,
        "error_cb": _reported,
        "logger": quiet,
    }


def _reported(error: KafkaError) -> None:
    log.debug("librdkafka reports", error=error.str())
