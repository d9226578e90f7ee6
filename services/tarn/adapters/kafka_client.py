"""Kafka's client library in one place: one set of connection options, one map from its errors to Tarn's.

    library                                     Tarn                    next move
    AuthorizationError                          ForbiddenError          request the right that is named
    SaslAuthenticationFailedError and the like  UnauthenticatedError    correct the password
    UnknownTopicOrPartitionError                NoSuchTopicError        create the topic
    OffsetOutOfRange, NoOffsetForPartition,     OffsetGapError          stop: records are missing
    LogTruncationError
    UnsupportedCodecError, CorruptRecordError   DataError               stop: records cannot be read
    any other KafkaError, OSError               UnavailableError        wait

The broker's own scripts (`services/kafka`) use the library directly: their image lacks this package.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

with warnings.catch_warnings():
    # kafka-python uses importlib.resources.read_text, deprecated in Python 3.11 but not in 3.13.
    warnings.filterwarnings("ignore", "(read_text|open_text) is deprecated", DeprecationWarning)
    import kafka.errors as vendor
    from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, OffsetSpec
    from kafka.consumer import KafkaConsumer
    from kafka.producer import KafkaProducer
    from kafka.protocol.consumer import OffsetForLeaderEpochRequest
    from kafka.structs import OffsetAndMetadata, TopicPartition

from tarn.adapters.kafka_login import ANONYMOUS, ASK_TIMEOUT_S, Login, rejected, require_login
from tarn.core.errors import DataError, ForbiddenError, OffsetGapError, TarnError, UnavailableError
from tarn.core.offsets import TopicIdentity
from tarn.core.source import NoSuchTopicError

__all__ = [
    "CODECS",
    "KafkaConnection",
    "OffsetAndMetadata",
    "OffsetSpec",
    "TopicPartition",
    "create_topic",
    "describe_topic",
    "epoch_ends",
    "topic_configs",
    "vendor",
]

TIMEOUT_MS = 30_000
# With the library's default of 30 s, reconnecting to a broker that has just started may take seconds.
RECONNECT_MS_MAX = 500
REASON_CHARS_MAX = 200
CODECS = ("gzip", "snappy", "lz4", "zstd")
"""Compressions that this installation reads."""

OUT_OF_LOG = (
    vendor.OffsetOutOfRangeError,
    vendor.NoOffsetForPartitionError,
    vendor.LogTruncationError,
)
"""Errors of a position that the log does not have."""
_REJECTED = (
    vendor.SaslAuthenticationFailedError,
    vendor.UnsupportedSaslMechanismError,
    vendor.IllegalSaslStateError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaConnection:
    """Where a cluster is and who connects: opens the library's clients and translates their errors.

    Attributes:
        bootstrap: host:port of a broker, several separated by commas.
        login: Kafka credentials.
        client_id: name of the client in the broker's logs.
        request_timeout_ms: limit of each request.
        bootstrap_timeout_ms: limit of the first connection.
    """

    bootstrap: str
    login: Login = ANONYMOUS
    client_id: str
    request_timeout_ms: int = TIMEOUT_MS
    bootstrap_timeout_ms: int = TIMEOUT_MS

    def consumer(self, **options: Any) -> Any:
        """Open a KafkaConsumer; options are the library's, besides those of the connection.

        Raises:
            UnauthenticatedError: a broker rejects the login.
            KafkaError: the library's own; see `errors`.
        """
        return KafkaConsumer(**self._options(), metrics_enabled=False, **options)

    def producer(self, **options: Any) -> Any:
        """Open a KafkaProducer; see `consumer`."""
        return KafkaProducer(**self._options(), metrics_enabled=False, **options)

    def admin(self, **options: Any) -> Any:
        """Open a KafkaAdminClient; see `consumer`."""
        return KafkaAdminClient(**self._options(), **options)

    @contextmanager
    def errors(self, action: str, *, operation: str, topic: str = "") -> Iterator[None]:
        """Translate the library's errors inside a with statement; see `error`.

        Args:
            action: what is done, as in "read topic orders".
            operation: the right on the topic that it needs, by Kafka's name: READ, WRITE, CREATE, DESCRIBE.
            topic: the topic, if there is one.

        Raises:
            TarnError: the translated error.
        """
        try:
            yield
        except (vendor.KafkaError, OSError) as e:
            raise self.error(e, action, operation=operation, topic=topic) from e

    def error(self, error: Exception, action: str, *, operation: str, topic: str = "") -> TarnError:
        """Return Tarn's error for one of the library's; see the table of this module and `errors`."""
        reason = _reason(error)
        about = {"topic": topic} if topic else {}
        if isinstance(error, vendor.AuthorizationError):
            right = _right(error, operation, topic)
            return ForbiddenError(
                f"user {self.login.user or 'ANONYMOUS'} may not {action}: Kafka at {self.bootstrap} does not "
                f"grant it {right} ({reason}); the rights of Tarn's users are in docs/reference.md, at a "
                "broker of your own add this one",
                address=self.bootstrap,
                user=self.login.user,
                right=right,
                **about,
            )
        if isinstance(error, _REJECTED):
            return rejected(self.bootstrap, self.login.user, reason)
        if isinstance(error, vendor.UnknownTopicOrPartitionError):
            return NoSuchTopicError(
                f"could not {action}: the topic does not exist at {self.bootstrap}; create it, or set "
                "create: true in the spec",
                **about,
            )
        if isinstance(error, OUT_OF_LOG):
            return OffsetGapError(f"could not {action}: the log does not hold the offset: {reason}", **about)
        if isinstance(error, vendor.UnsupportedCodecError):
            return DataError(
                f"could not {action}: it holds records in a compression that cannot be read here: {reason}; "
                f"readable are {', '.join(CODECS)}. Let producers and topic use one of these, or write to "
                "another topic",
                **about,
            )
        if isinstance(error, vendor.CorruptRecordError):
            return DataError(f"could not {action}: {reason}; restore the segment", **about)
        return UnavailableError(
            f"could not {action}: Kafka at {self.bootstrap} does not answer ({reason}); is the service kafka "
            "running and healthy? see docker compose logs kafka",
            address=self.bootstrap,
            **about,
        )

    def _options(self) -> dict[str, Any]:
        options = self.login.options()
        timeout_s = min(ASK_TIMEOUT_S, self.bootstrap_timeout_ms / 1_000)
        require_login(self.bootstrap, options, timeout_s=timeout_s)
        return {
            **options,
            "bootstrap_servers": self.bootstrap.split(","),
            "client_id": self.client_id,
            "request_timeout_ms": self.request_timeout_ms,
            "bootstrap_timeout_ms": self.bootstrap_timeout_ms,
            "reconnect_backoff_max_ms": RECONNECT_MS_MAX,
        }


def create_topic(
    admin: Any, topic: str, partitions: int, *, configs: Mapping[str, str] | None = None, wait: bool = True
) -> bool:
    """Create a topic; False if it existed.

    Args:
        admin: the library's admin client.
        topic: name of the topic.
        partitions: number of partitions.
        configs: settings of the topic, by Kafka's names.
        wait: also wait until the brokers know it, at most the library's 10 s.

    Raises:
        KafkaError: the library's own; see `KafkaConnection.errors`.
    """
    try:
        options = {"num_partitions": partitions, "configs": dict(configs or {})}
        admin.create_topics({topic: options}, wait_for_metadata=wait)
    except vendor.TopicAlreadyExistsError:
        return False
    return True


def describe_topic(admin: Any, topic: str) -> Any:
    """The broker's description of a topic: `topic_id`, and `partitions` with `partition_index` each.

    Raises:
        KafkaError: the library's own, also for a topic that does not exist or that the user may not see.
    """
    found = admin.describe_topics([topic])[0]
    error = vendor.for_code(found.get("error_code", 0))
    if error is not vendor.NoError:
        raise error()
    return found


def identity_of(admin: Any, topic: str) -> TopicIdentity:
    """The identity of a topic, by which it differs from another one of its name.

    Raises:
        KafkaError: as `describe_topic`.
    """
    found = describe_topic(admin, topic)
    cluster = admin.describe_cluster()["cluster_id"]
    return TopicIdentity(cluster=str(cluster), topic=topic, topic_id=str(found["topic_id"]))


def epoch_ends(admin: Any, topic: str, epochs: Mapping[int, int]) -> dict[int, int | None]:
    """Where leader epochs end in the partitions of a topic; see `TopicReader.epoch_ends`.

    The library has this request, and no method of a client that sends it without reading; so it goes the way
    of the admin client's own requests.

    Raises:
        KafkaError: the library's own, also what a broker answers for one of the partitions.
    """
    kind = OffsetForLeaderEpochRequest.OffsetForLeaderTopic

    async def ask() -> dict[int, int | None]:
        found: dict[int, int | None] = {}
        leaders = await admin._async_get_leader_for_partitions([TopicPartition(topic, p) for p in epochs])
        for leader, partitions in leaders.items():
            asked = [
                kind.OffsetForLeaderPartition(partition=p, current_leader_epoch=-1, leader_epoch=epochs[p])
                for p in sorted(tp.partition for tp in partitions)
            ]
            request = OffsetForLeaderEpochRequest(replica_id=-1, topics=[kind(topic=topic, partitions=asked)])
            answer = await admin._manager.send(request, node_id=leader)
            for one in (one for of_topic in answer.topics for one in of_topic.partitions):
                error = vendor.for_code(one.error_code)
                if error is not vendor.NoError:
                    raise error(f"leader epochs of {topic} {one.partition}")
                found[one.partition] = int(one.end_offset) if one.end_offset >= 0 else None
        return found

    ends: dict[int, int | None] = admin._manager.run(ask)
    if ends.keys() != epochs.keys():
        raise vendor.KafkaError(f"no leader epochs of {topic} {sorted(epochs.keys() - ends.keys())}")
    return ends


def topic_configs(admin: Any, topic: str) -> dict[str, str]:
    """The settings of a topic that differ from the broker's, by name.

    Raises:
        KafkaError: the library's own; see `KafkaConnection.errors`.
    """
    found = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    held: Mapping[str, Any] = next((of_kind[topic] for of_kind in found.values() if topic in of_kind), {})
    return {name: str(value["value"]) for name, value in sorted(held.items())}


def _right(error: vendor.AuthorizationError, operation: str, topic: str) -> str:
    """The missing right, as in `READ on topic orders`: resource by the error, operation by the call."""
    names = ", ".join(_names(error)) or topic
    if isinstance(error, vendor.TopicAuthorizationFailedError):
        return f"{operation} on topic {names}".rstrip()
    if isinstance(error, vendor.GroupAuthorizationFailedError):
        return f"READ on group {names}" if names != topic else "READ on its consumer group"
    if isinstance(error, vendor.TransactionalIdAuthorizationFailedError):
        return "WRITE on its transactional id"
    if isinstance(error, vendor.ClusterAuthorizationFailedError):
        of_cluster = {"WRITE": "IDEMPOTENT_WRITE", "CREATE": "CREATE"}
        return f"{of_cluster.get(operation, 'DESCRIBE')} on the cluster"
    return "a right"


def _names(error: vendor.AuthorizationError) -> Iterable[str]:
    """Topics that the error names: the library gives a set of names, a name, a sentence or nothing."""
    first = error.args[0] if error.args else ""
    found = [first] if isinstance(first, str) else first if isinstance(first, set | list | tuple) else ()
    return sorted(name for name in found if isinstance(name, str) and name and " " not in name)


def _reason(error: Exception) -> str:
    text = str(error) or repr(error)
    name = type(error).__name__
    return (text if name in text else f"{name}: {text}")[:REASON_CHARS_MAX]
