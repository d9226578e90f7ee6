"""The trail's logs in the object store, read as topics of one partition; all other topics are Kafka's."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from tarn.core.batch import RawRecords
from tarn.core.object_store import ObjectStore
from tarn.core.offsets import TopicIdentity
from tarn.core.source import NoSuchTopicError, OffsetBounds, TopicClient, TopicReader
from tarn.core.trail import LINES_MAX, LOGS, TOPIC_PREFIX, TrailLog

PARTITION = 0
LIST_EVERY_S = 2.0


class TrailTopics:
    """A `TopicClient` that reads the trail from the store, and everything else from another client.

    Args:
        store: the lake's store.
        bucket: the bucket; stands for the cluster in a topic's identity.
        others: client of all other topics.
        sleep: waits for a number of seconds.
        clock: monotonic clock, seconds.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        bucket: str,
        others: TopicClient,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._bucket = bucket
        self._others = others
        self._sleep = sleep
        self._clock = clock

    def open(self, topic: str, *, stream: str) -> TopicReader:
        """See `TopicClient.open`."""
        if not topic.startswith(TOPIC_PREFIX):
            return self._others.open(topic, stream=stream)
        found = next((log for log in LOGS if log.topic == topic), None)
        if found is None:
            raise NoSuchTopicError(
                f"the trail has no log {topic}; choose from {', '.join(log.topic for log in LOGS)}"
            )
        return TrailReader(self._store, found, bucket=self._bucket, sleep=self._sleep, clock=self._clock)

    def list_topics(self) -> list[str]:
        """See `TopicClient.list_topics`; a pattern never matches the trail."""
        return self._others.list_topics()

    def create(self, topic: str, *, partitions: int) -> None:
        """See `TopicClient.create`."""
        self._others.create(topic, partitions=partitions)

    def send(self, topic: str, events: Sequence[tuple[bytes, bytes]]) -> None:
        """See `TopicClient.send`; nothing is written to the trail."""
        self._others.send(topic, events)


class TrailReader:
    """A `TopicReader` of one log. The store is listed every two seconds at most, after what was read.

    Args:
        store: the lake's store.
        log: the log.
        bucket: the bucket.
        sleep: waits for a number of seconds.
        clock: monotonic clock, seconds.
    """

    def __init__(
        self,
        store: ObjectStore,
        log: TrailLog,
        *,
        bucket: str,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._log = log
        self._bucket = bucket
        self._sleep = sleep
        self._clock = clock
        self._position = 0
        self._ahead: list[int] = []
        self._listed_s: float | None = None
        self._newest: int | None = None

    def identity(self) -> TopicIdentity:
        """See `TopicReader.identity`."""
        return TopicIdentity(cluster=f"store {self._bucket}", topic=self._log.topic, topic_id="trail-v1")

    def bounds(self) -> dict[int, OffsetBounds]:
        """See `TopicReader.bounds`; the log starts at 0, as what was removed unread is no gap to stop at."""
        after = self._log.key(self._newest) if self._newest is not None else None
        self._newest = max(self._segments(after=after), default=self._newest)
        return {PARTITION: OffsetBounds(0, 0 if self._newest is None else (self._newest + 1) * LINES_MAX)}

    def epoch_ends(self, epochs: Mapping[int, int]) -> dict[int, int | None]:
        """See `TopicReader.epoch_ends`: the trail has none."""
        return {}

    def seek(self, positions: Mapping[int, int]) -> None:
        """See `TopicReader.seek`."""
        self._position = positions.get(PARTITION, 0)
        self._ahead, self._listed_s = [], None

    def poll(self, *, records_max: int, timeout_s: float) -> list[RawRecords]:
        """See `TopicReader.poll`."""
        segment = self._due()
        if segment is None:
            self._sleep(timeout_s)
            return []
        start, end = self._position, (segment + 1) * LINES_MAX
        found = self._store.get(self._log.key(segment))
        first = segment * LINES_MAX
        lines = [] if found is None else found.data.splitlines()
        numbered = [(first + i, line) for i, line in enumerate(lines) if first + i >= start]
        taken = numbered[: max(1, records_max)]
        if len(taken) < len(numbered):
            end = taken[-1][0] + 1
        else:
            self._ahead.pop(0)
        self._position = end
        return [
            RawRecords(
                partition=PARTITION,
                offsets=[offset for offset, _ in taken],
                times_ms=[found.modified_ms if found else -1] * len(taken),
                keys=[None] * len(taken),
                values=[line for _, line in taken],
                start=start,
                end=end,
            )
        ]

    def _due(self) -> int | None:
        """Return the next segment to read; None if there is none yet."""
        if not self._ahead:
            now_s = self._clock()
            if self._listed_s is not None and now_s - self._listed_s < LIST_EVERY_S:
                return None
            self._listed_s = now_s
            last = self._position // LINES_MAX
            after = self._log.key(last - 1) if last > 0 else None
            self._ahead = [s for s in self._segments(after=after) if (s + 1) * LINES_MAX > self._position]
        return self._ahead[0] if self._ahead else None

    def _segments(self, *, after: str | None) -> list[int]:
        found = (self._log.segment_of(one.key) for one in self._store.list(self._log.prefix, after=after))
        return sorted(segment for segment in found if segment is not None)

    def commit_group_offsets(self, positions: Mapping[int, int]) -> None:
        """See `TopicReader.commit_group_offsets`: the trail has no groups."""

    def close(self) -> None:
        """Release nothing, as nothing is held."""
