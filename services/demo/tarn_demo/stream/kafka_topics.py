"""The topics of the service: which there are, made if they are missing, and what they are made by."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from tarn.adapters.kafka_client import KafkaConnection, create_topic, describe_topic, vendor
from tarn.adapters.kafka_login import Login
from tarn.core.errors import InvalidSettingError, UnavailableError
from tarn_demo.stream.alerts import Limits
from tarn_demo.stream.topics import ALERTS, EVENTS, PARTIALS, STATE, WINDOWS, state_partition
from tarn_demo.stream.windows import STATE_VERSION, Rules

MIB = 1 << 20
_KEPT = {"cleanup.policy": "delete", "retention.ms": "-1"}
_MADE = {
    # The merge must have read a part before it goes: 256 MiB are more than the replay of a year.
    PARTIALS: {**_KEPT, "retention.bytes": str(256 * MIB), "segment.bytes": str(32 * MIB)},
    # Only the last record of a partition is ever read.
    STATE: {**_KEPT, "retention.bytes": str(16 * MIB), "segment.bytes": str(8 * MIB)},
    # Ingest has them made by its specs; whoever comes first.
    WINDOWS: {},
    ALERTS: {},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The topic flight-events as it was found.

    Attributes:
        partitions: how many it has.
        identity: what windows are made by, as a short text: another topic, other rules or another number of
            partitions have another.
    """

    partitions: int
    identity: str


def prepare(bootstrap: str, login: Login, rules: Rules, limits: Limits) -> Source:
    """Make the topics that are missing, and look at flight-events.

    Raises:
        UnavailableError: Kafka does not answer, or there is no topic flight-events yet.
        ForbiddenError: the user lacks a right.
        InvalidSettingError: the topic of states has too few partitions.
    """
    connection = KafkaConnection(bootstrap=bootstrap, login=login, client_id="tarn-stream")
    with connection.errors("prepare the topics of windows", operation="CREATE"):
        admin = connection.admin()
        try:
            try:
                found = describe_topic(admin, EVENTS)
            except vendor.UnknownTopicOrPartitionError as e:
                raise UnavailableError(
                    f"topic {EVENTS} does not exist at {bootstrap}; ingest makes it from its spec: see "
                    "docker compose logs ingest",
                    topic=EVENTS,
                ) from e
            partitions = len(found["partitions"])
            needed = state_partition(EVENTS, partitions - 1) + 1
            for topic, configs in _MADE.items():
                count = needed if topic == STATE else 1
                create_topic(admin, topic, count, configs=configs)
            states = len(describe_topic(admin, STATE)["partitions"])
        finally:
            admin.close()
    if states < needed:
        raise InvalidSettingError(
            f"topic {STATE} has {states} partitions, and {EVENTS} has {partitions}: it needs "
            f"{needed}; delete {STATE} (scripts/tarn topic delete {STATE} --yes): it is made "
            "again, and all windows are made again from the events",
            partitions=states,
        )
    return Source(partitions=partitions, identity=identity(str(found["topic_id"]), partitions, rules, limits))


def identity(topic_id: str, partitions: int, rules: Rules, limits: Limits) -> str:
    """Twelve hex digits of all that windows and alerts depend on besides the events."""
    made_by = (
        STATE_VERSION,
        topic_id,
        partitions,
        rules.window_ms,
        rules.hop_ms,
        rules.lateness_ms,
        limits.delay_minutes,
        limits.departures,
        limits.cancelled,
    )
    return hashlib.sha256(json.dumps(made_by).encode()).hexdigest()[:12]
