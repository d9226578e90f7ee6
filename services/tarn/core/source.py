"""What ingestion asks of a topic, whichever client reads it."""

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
    """What a partition's log holds: offsets in [start, end); `end` is the last stable offset."""

    start: int
    end: int


class TopicReader(Protocol):
    """One topic. Used by one thread."""

    def identity(self) -> TopicIdentity:
        """Who the topic is right now, asked from the cluster.

        Raises:
            NoSuchTopicError: it does not exist.
            UnavailableError: no answer.
        """

    def bounds(self) -> dict[int, OffsetBounds]:
        """What every partition holds right now.

        Raises:
            NoSuchTopicError: it does not exist.
            UnavailableError: no answer.
        """

    def seek(self, positions: Mapping[int, int]) -> None:
        """Reads on from exactly these positions; everything polled and not taken before is forgotten."""

    def poll(self, *, records_max: int, timeout_s: float) -> list[RawRecords]:
        """What came within the time, per partition; a part without records says that only the position moved.

        Raises:
            OffsetGapError: the position is outside the log.
            DataError: the log cannot be read there.
            UnavailableError: no answer.
        """

    def commit_group_offsets(self, positions: Mapping[int, int]) -> None:
        """Writes group offsets for lag tools; a failure is told, and harms nothing."""

    def close(self) -> None:
        """Gives up all connections."""


class TopicClient(Protocol):
    """Opens topics."""

    def open(self, topic: str, *, stream: str) -> TopicReader:
        """The topic, with nothing read yet.

        Raises:
            UnavailableError: no broker answers.
        """

    def create(self, topic: str, *, partitions: int) -> None:
        """Makes the topic; an existing one is fine.

        Raises:
            UnavailableError: no broker answers.
        """
