"""A topic, independent of the Kafka library: its bounds, its client, and where a stream starts in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tarn.core.batch import RawRecords
from tarn.core.errors import NotFoundError, OffsetGapError
from tarn.core.offsets import OffsetMap, TopicIdentity, next_or_start, require_same_source


class NoSuchTopicError(NotFoundError):
    """The topic does not exist."""


class NoMessagesError(NotFoundError):
    """The topic has no message yet that columns could be inferred from."""


@dataclass(frozen=True, slots=True)
class OffsetBounds:
    """Offsets in a partition's log: [start, end); `end` is the last stable offset.

    `epoch` is the leader epoch of its log now, None if it has none. It grows each time that a broker takes
    the partition over, also the same one after a start. Records have the epoch in which they were written.
    """

    start: int
    end: int
    epoch: int | None = None


class TopicReader(Protocol):
    """Reader of one topic. Not thread-safe."""

    def identity(self) -> TopicIdentity:
        """Current identity of the topic, as reported by the cluster.

        Raises:
            NoSuchTopicError: the topic does not exist.
            UnavailableError: the cluster does not respond.
        """

    def bounds(self) -> dict[int, OffsetBounds]:
        """Current bounds of every partition.

        Raises:
            NoSuchTopicError: the topic does not exist.
            UnavailableError: the cluster does not respond.
        """

    def epoch_ends(self, epochs: Mapping[int, int]) -> dict[int, int | None]:
        """Where leader epochs end in the log (Kafka's OffsetForLeaderEpoch).

        Args:
            epochs: partition to leader epoch.

        Returns:
            Partition to the offset where later epochs begin, or to the end of the log; None if the log has
            not come to that epoch.

        Raises:
            NoSuchTopicError: the topic or a partition does not exist.
            UnavailableError: the cluster does not respond.
        """

    def seek(self, positions: Mapping[int, int]) -> None:
        """Continue at exactly these offsets; records buffered before are discarded."""

    def poll(self, *, records_max: int, timeout_s: float) -> list[RawRecords]:
        """Poll records, per partition; a part without records means that only the position advanced.

        Args:
            records_max: maximum number of records.
            timeout_s: how long to wait for records, in seconds.

        Raises:
            OffsetGapError: the position is outside the log.
            DataError: the log cannot be read at this position.
            UnavailableError: the cluster does not respond.
        """

    def commit_group_offsets(self, positions: Mapping[int, int]) -> None:
        """Commit group offsets for lag monitoring; a failure is logged and harmless."""

    def close(self) -> None:
        """Close all connections."""


class TopicClient(Protocol):
    """Opens and creates topics."""

    def open(self, topic: str, *, stream: str) -> TopicReader:
        """Open a topic; nothing is read yet.

        Raises:
            UnavailableError: no broker responds.
        """

    def list_topics(self) -> list[str]:
        """Names of the topics that may be read, but for the broker's internal ones.

        Raises:
            UnavailableError: no broker responds.
        """

    def create(self, topic: str, *, partitions: int) -> None:
        """Create a topic; an existing one is left alone.

        Raises:
            UnavailableError: no broker responds.
        """

    def send(self, topic: str, events: Sequence[tuple[bytes, bytes]]) -> None:
        """See `EventSender.send`."""


class EventSender(Protocol):
    """Writes events to topics."""

    def create(self, topic: str, *, partitions: int) -> None:
        """See `TopicClient.create`."""

    def send(self, topic: str, events: Sequence[tuple[bytes, bytes]]) -> None:
        """Append events; return once all are acknowledged. After an error, some may be there.

        Args:
            topic: name of the topic.
            events: key and value of each.

        Raises:
            NoSuchTopicError: the topic does not exist.
            UnavailableError: the cluster does not respond in time.
            AccessError: the user may not write the topic.
        """


def start_positions(
    table: OffsetMap | None, source: TopicIdentity, bounds: Mapping[int, OffsetBounds], *, stream: str
) -> dict[int, int]:
    """Start offset per partition: the table's offset map, or the log start for partitions it lacks.

    Args:
        table: the stream's offset map; None before its first commit.
        source: identity of the topic.
        bounds: partition to log start and end offsets.
        stream: name of the stream, for error messages.

    Raises:
        SourceChangedError: the map belongs to another topic or cluster.
        OffsetGapError: the log does not hold the next offset: it starts after it, ends before it, or the
            partition is missing. Continuing would skip rows.
    """
    if table is not None:
        require_same_source(table.source, source)
        for partition, offset in table.next.items():
            found = bounds.get(partition)
            if found is None:
                raise OffsetGapError(
                    f"stream {stream}: the table stands at offset {offset} of partition {partition}, which "
                    f"topic {source.topic} does not have; restore it, or write to a new table",
                    partition=partition,
                    offset=offset,
                )
            if not found.start <= offset <= found.end:
                if offset < found.start:
                    what = f"the log starts at {found.start}: {found.start - offset} offsets are gone unread"
                    do = "accept the loss by a new metadata.name: it begins where the log does"
                else:
                    what = f"the log ends at {found.end}, before it: its next offsets would be used again"
                    do = "write to a new table"
                raise OffsetGapError(
                    f"stream {stream}: the table stands at offset {offset} of partition {partition} of "
                    f"topic {source.topic}, and {what}. Restore the log, or {do}",
                    partition=partition,
                    offset=offset,
                    start=found.start,
                    end=found.end,
                )
    return next_or_start(table, {p: b.start for p, b in bounds.items()})
