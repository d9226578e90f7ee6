"""Interface of a topic client, independent of the Kafka library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tarn.core.batch import RawRecords
from tarn.core.errors import NotFoundError
from tarn.core.offsets import TopicIdentity


class NoSuchTopicError(NotFoundError):
    """The topic does not exist."""


@dataclass(frozen=True, slots=True)
class OffsetBounds:
    """Offsets in a partition's log: [start, end); `end` is the last stable offset."""

    start: int
    end: int


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

    def create(self, topic: str, *, partitions: int) -> None:
        """Create a topic; an existing one is left alone.

        Raises:
            UnavailableError: no broker responds.
        """
