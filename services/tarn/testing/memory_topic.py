"""Topics in memory, for tests of ingestion."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from tarn.core.batch import RawRecords
from tarn.core.errors import OffsetGapError
from tarn.core.offsets import TopicIdentity
from tarn.core.source import NoSuchTopicError, OffsetBounds


class Topic:
    """A topic in memory.

    Args:
        name: name of the topic.
        partitions: number of partitions.
        topic_id: topic id.
        cluster: cluster id.

    Attributes:
        logs: partition to values, by offset; a `Hole` is an offset without a record.
        starts: partition to log start.
        times_ms: timestamp by offset, if a test needs another than the usual.
        keys: key by (partition, offset), of what was appended with one.
        stamps_ms: timestamp by (partition, offset), of what was appended with one.
        epochs: partition to the leader epochs of its log, each with the offset that it begins at; ascending.
    """

    def __init__(self, name: str, partitions: int, *, topic_id: str = "id-1", cluster: str = "c-1") -> None:
        self.name = name
        self.topic_id = topic_id
        self.cluster = cluster
        self.logs: dict[int, list[bytes | Hole | None]] = {p: [] for p in range(partitions)}
        self.starts: dict[int, int] = dict.fromkeys(range(partitions), 0)
        self.times_ms: dict[int, int] = {}
        self.keys: dict[tuple[int, int], bytes] = {}
        self.stamps_ms: dict[tuple[int, int], int] = {}
        self.epochs: dict[int, list[tuple[int, int]]] = {p: [(0, 0)] for p in range(partitions)}
        self._appending = threading.Lock()

    @property
    def identity(self) -> TopicIdentity:
        """Its identity, by which it differs from another one of its name."""
        return TopicIdentity(cluster=self.cluster, topic=self.name, topic_id=self.topic_id)

    def send(self, partition: int, *values: bytes | Hole | None) -> None:
        """Append values to a partition."""
        self.logs[partition] += values

    def take_over(self) -> None:
        """Begin a new leader epoch in each partition, as a broker does that starts."""
        for partition, log in self.logs.items():
            held = self.epochs.setdefault(partition, [(0, 0)])
            epoch = held[-1][0] + 2
            # One without a record is forgotten.
            held[:] = [*((e, start) for e, start in held if start < len(log)), (epoch, len(log))]

    def truncate(self, partition: int, end: int) -> None:
        """Lose the records from an offset on, as in a loss of power, and start again."""
        del self.logs[partition][end:]
        self.take_over()

    def epoch_of(self, partition: int, offset: int) -> int:
        """The leader epoch of a record, or of the log's end."""
        held = self.epochs.setdefault(partition, [(0, 0)])
        return max(epoch for epoch, start in held if start <= offset)

    def epoch_end(self, partition: int, epoch: int) -> int | None:
        """Where a leader epoch ends in a partition; see `TopicReader.epoch_ends`."""
        held = self.epochs.setdefault(partition, [(0, 0)])
        if epoch > held[-1][0]:
            return None
        return min((start for e, start in held if e > epoch), default=len(self.logs[partition]))

    def append(self, partition: int, value: bytes, *, key: bytes | None, time_ms: int) -> int:
        """Append one message with key and timestamp; its offset. Thread-safe."""
        with self._appending:
            offset = len(self.logs[partition])
            if key is not None:
                self.keys[partition, offset] = key
            self.stamps_ms[partition, offset] = time_ms
            # Last, as readers look at the log.
            self.logs[partition].append(value)
            return offset

    def time_ms(self, partition: int, offset: int) -> int:
        """The timestamp of a message."""
        usual = self.times_ms.get(offset, 1_700_000_000_000 + offset)
        return self.stamps_ms.get((partition, offset), usual)


class Hole:
    """An offset without a record: aborted, compacted, or a control record."""


HOLE = Hole()


class MemoryTopicClient:
    """A `TopicClient` over topics in memory.

    Attributes:
        topics: topics by name.
        group_offsets: partition to committed group offset, of all topics.
        on_poll: called before each poll.
        on_nothing: called with the seconds that a poll may wait, if it found nothing; it is not repeated.
        readers: every reader that was opened, in order.
        keys: topic to the keys of the events that were sent to it.
    """

    def __init__(self, *topics: Topic) -> None:
        self.topics = {t.name: t for t in topics}
        self.group_offsets: dict[int, int] = {}
        self.on_poll: Callable[[], None] = lambda: None
        self.on_nothing: Callable[[float], None] = lambda _s: None
        self.readers: list[MemoryTopicReader] = []
        self.keys: dict[str, list[bytes]] = {}

    def open(self, topic: str, *, stream: str) -> MemoryTopicReader:
        """See `TopicClient.open`."""
        self.readers.append(MemoryTopicReader(self, topic))
        return self.readers[-1]

    def list_topics(self) -> list[str]:
        """See `TopicClient.list_topics`."""
        return sorted(self.topics)

    def create(self, topic: str, *, partitions: int) -> None:
        """See `TopicClient.create`."""
        self.topics.setdefault(topic, Topic(topic, partitions))

    def send(self, topic: str, events: Sequence[tuple[bytes, bytes]]) -> None:
        """See `TopicClient.send`; events go to the first partition, without their keys."""
        if topic not in self.topics:
            raise NoSuchTopicError(f"topic {topic} does not exist")
        self.topics[topic].send(0, *(value for _, value in events))
        self.keys.setdefault(topic, []).extend(key for key, _ in events)


class MemoryTopicReader:
    """A `TopicReader` over a topic in memory; it returns at most half of `records_max` per partition.

    Attributes:
        positions: next offset of each partition.
    """

    def __init__(self, client: MemoryTopicClient, topic: str) -> None:
        self._client = client
        self._name = topic
        self.positions: dict[int, int] = {}

    @property
    def _topic(self) -> Topic:
        found = self._client.topics.get(self._name)
        if found is None:
            raise NoSuchTopicError(f"topic {self._name} does not exist")
        return found

    def identity(self) -> TopicIdentity:
        """See `TopicReader.identity`."""
        return TopicIdentity(cluster=self._topic.cluster, topic=self._name, topic_id=self._topic.topic_id)

    def bounds(self) -> dict[int, OffsetBounds]:
        """See `TopicReader.bounds`."""
        topic = self._topic
        return {
            p: OffsetBounds(topic.starts[p], len(log), topic.epoch_of(p, len(log)))
            for p, log in topic.logs.items()
        }

    def epoch_ends(self, epochs: Mapping[int, int]) -> dict[int, int | None]:
        """See `TopicReader.epoch_ends`."""
        return {p: self._topic.epoch_end(p, epoch) for p, epoch in epochs.items()}

    def seek(self, positions: Mapping[int, int]) -> None:
        """See `TopicReader.seek`."""
        self.positions = dict(positions)

    def poll(self, *, records_max: int, timeout_s: float) -> list[RawRecords]:
        """See `TopicReader.poll`."""
        self._client.on_poll()
        found = []
        for p, start in self.positions.items():
            log = self._topic.logs[p]
            if start < self._topic.starts[p] or start > len(log):
                raise OffsetGapError(f"no offset {start} in partition {p}")
            end = start
            taken: list[tuple[int, bytes | None]] = []
            while end < len(log) and len(taken) < max(1, records_max // 2):
                value = log[end]
                if not isinstance(value, Hole):
                    taken.append((end, value))
                end += 1
            if end > start:
                found.append(
                    RawRecords(
                        partition=p,
                        offsets=[o for o, _ in taken],
                        times_ms=[self._topic.time_ms(p, o) for o, _ in taken],
                        keys=[self._topic.keys.get((p, o)) for o, _ in taken],
                        values=[v for _, v in taken],
                        start=start,
                        end=end,
                        epoch=self._topic.epoch_of(p, taken[-1][0]) if taken else None,
                    )
                )
                self.positions[p] = end
        if not found:
            self._client.on_nothing(timeout_s)
        return found

    def commit_group_offsets(self, positions: Mapping[int, int]) -> None:
        """See `TopicReader.commit_group_offsets`."""
        self._client.group_offsets.update(positions)

    def close(self) -> None:
        """Release nothing, as nothing is held."""
