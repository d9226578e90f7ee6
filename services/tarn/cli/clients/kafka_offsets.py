"""Bounds of topics and times of messages, read from Kafka in a few small requests."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from tarn.adapters.kafka import INTERNAL
from tarn.adapters.kafka_client import TopicPartition, identity_of
from tarn.adapters.kafka_login import ANONYMOUS, Login
from tarn.cli.clients.kafka_connection import connection
from tarn.cli.ports import Bounds
from tarn.core.offsets import TopicIdentity
from tarn.core.years import MS_MAX

LOOK_BACK = 8
"""Offsets to read before an end: the last ones may be transaction markers, which are not delivered."""
FETCH_BYTES_MAX = 64 * 1024
POLL_MS = 200


class KafkaOffsets:
    """`ports.LogEnds` of one broker list, over one connection that is opened on first use.

    Args:
        bootstrap: `host:port`, several separated by commas.
        login: Kafka credentials.
        timeout_s: limit of each operation, in seconds.
    """

    def __init__(self, bootstrap: str, login: Login = ANONYMOUS, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._connection = connection(bootstrap, login, timeout_s=timeout_s)

    def bounds(self) -> Mapping[str, Bounds]:
        """See `LogEnds.bounds`; omits the broker's internal topics."""
        with self._connection.errors("ask for the bounds of the topics", operation="DESCRIBE"):
            return self._bounds(sorted(n for n in self._consumer.topics() if not n.startswith(INTERNAL)))

    def bounds_of(self, topic: str) -> Bounds:
        """Bounds of one topic; the others are not asked for. Raises as `bounds`."""
        what = f"ask for the bounds of topic {topic}"
        with self._connection.errors(what, operation="DESCRIBE", topic=topic):
            return self._bounds([topic])[topic]

    def identity(self, topic: str) -> TopicIdentity:
        """Identity of a topic, over a connection of its own; raises as `bounds`."""
        what = f"ask for the identity of topic {topic}"
        with self._connection.errors(what, operation="DESCRIBE", topic=topic):
            admin = self._connection.admin()
            try:
                return identity_of(admin, topic)
            finally:
                admin.close()

    def _bounds(self, topics: Sequence[str]) -> dict[str, Bounds]:
        parts = [
            TopicPartition(topic, partition)
            for topic in topics
            for partition in sorted(self._consumer.partitions_for_topic(topic) or ())
        ]
        firsts = self._consumer.beginning_offsets(parts, timeout_ms=self._timeout_s * 1000)
        ends = self._consumer.end_offsets(parts, timeout_ms=self._timeout_s * 1000)
        found: dict[str, dict[int, tuple[int, int]]] = {topic: {} for topic in topics}
        for part in parts:
            found[part.topic][part.partition] = (int(firsts[part]), int(ends[part]))
        return dict(found)

    def newest(
        self, topic: str, bounds: Bounds, places: Sequence[Mapping[int, int]]
    ) -> tuple[datetime | None, ...]:
        """See `LogEnds.newest`."""
        # An offset may lie beyond bounds read a moment earlier: then the newest message is meant.
        clipped = [
            {p: min(offset, bounds[p][1]) for p, offset in place.items() if p in bounds} for place in places
        ]
        wanted = {(p, offset) for place in clipped for p, offset in place.items() if offset > bounds[p][0]}
        with self._connection.errors(f"read topic {topic}", operation="READ", topic=topic):
            times = self._times(topic, bounds, wanted)
        found = ([times[at] for at in place.items() if at in times] for place in clipped)
        return tuple(datetime.fromtimestamp(max(ms) / 1000, UTC) if ms else None for ms in found)

    def close(self) -> None:
        """Close the connection."""
        if "_consumer" in self.__dict__:
            self._consumer.close()

    def _times(self, topic: str, bounds: Bounds, wanted: set[tuple[int, int]]) -> dict[tuple[int, int], int]:
        """Time of the newest message before each (partition, offset), in milliseconds since the epoch.

        Reads one offset per partition at a time.
        """
        found: dict[tuple[int, int], int] = {}
        left = {p: sorted(offset for q, offset in wanted if q == p) for p, _ in wanted}
        until = time.monotonic() + self._timeout_s
        while left:
            round_ = {TopicPartition(topic, p): offsets.pop() for p, offsets in left.items()}
            left = {p: offsets for p, offsets in left.items() if offsets}
            self._consumer.assign(list(round_))
            for part, offset in round_.items():
                self._consumer.seek(part, max(bounds[part.partition][0], offset - LOOK_BACK))
            waiting = dict(round_)
            while waiting and time.monotonic() < until:
                for part, records in self._consumer.poll(timeout_ms=POLL_MS).items():
                    for record in records:
                        # A producer may send any number as the time, or none.
                        timed = record.timestamp is not None and 0 <= record.timestamp <= MS_MAX
                        if record.offset < round_[part] and timed:
                            found[(part.partition, round_[part])] = record.timestamp
                waiting = {p: o for p, o in waiting.items() if self._consumer.position(p) < o}
        return found

    @cached_property
    def _consumer(self) -> Any:
        return self._connection.consumer(
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=FETCH_BYTES_MAX,
        )
