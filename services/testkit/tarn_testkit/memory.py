"""Topics in memory, for the embedded lake: what is appended wakes the readers that wait for it."""

from __future__ import annotations

import threading
import time
import uuid
import zlib
from collections.abc import Sequence
from itertools import count

from tarn.core.source import NoSuchTopicError
from tarn.testing.memory_topic import MemoryTopicClient, Topic
from tarn_testkit.backend import Offsets
from tarn_testkit.messages import Message


class MemoryTopics:
    """`Topics` in memory; messages of one key go to one partition, others to each in turn.

    Attributes:
        client: the same topics, as ingestors read them.
    """

    def __init__(self) -> None:
        self.client = MemoryTopicClient()
        self.client.on_nothing = self._wait
        self._cluster = uuid.uuid4().hex
        self._changed = threading.Condition()
        self._turns = count()

    def ensure(self, topic: str, *, partitions: int) -> bool:
        """See `Topics.ensure`."""
        with self._changed:
            if topic in self.client.topics:
                return False
            self.client.topics[topic] = Topic(
                topic, partitions, topic_id=uuid.uuid4().hex, cluster=self._cluster
            )
            return True

    def delete(self, topic: str) -> None:
        """See `Topics.delete`."""
        with self._changed:
            self.client.topics.pop(topic, None)

    def produce(self, topic: str, messages: Sequence[Message]) -> Offsets:
        """See `Topics.produce`."""
        found = self.client.topics.get(topic)
        if found is None:
            raise NoSuchTopicError(f"topic {topic} does not exist")
        last: dict[int, int] = {}
        for one in messages:
            number = next(self._turns) if one.key is None else zlib.crc32(one.key)
            partition = number % len(found.logs)
            last[partition] = found.append(
                partition, one.value, key=one.key, time_ms=time.time_ns() // 1_000_000
            )
        with self._changed:
            self._changed.notify_all()
        return dict(sorted(last.items()))

    def _wait(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait(seconds)
