"""How fast a stream is played: which message is due after how many seconds."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Protocol

from tarn.core.errors import InvalidSettingError

FAR_MS = 1e15
"""A time beyond the end of every stream, in milliseconds; products of a user's numbers may be infinite."""


class Timeline(Protocol):
    """What a pace needs to know about a stream."""

    def __len__(self) -> int: ...

    def due(self, index: int) -> int:
        """When a message is played, in the time of the data (milliseconds)."""

    def index_of(self, due_ms: int) -> int:
        """The first message due at or after this time."""


class Pace(Protocol):
    """Says how far a stream should be."""

    def target(self, stream: Timeline, start: int, elapsed_s: float) -> int:
        """One past the last message that is due `elapsed_s` seconds after message `start`."""


@dataclass(frozen=True, slots=True)
class AllAtOnce:
    """Everything is due at the beginning."""

    def target(self, stream: Timeline, start: int, elapsed_s: float) -> int:
        """The end of the stream."""
        return len(stream)


@dataclass(frozen=True, slots=True)
class Rate:
    """So many messages a second, whenever they happened."""

    per_s: float

    def __post_init__(self) -> None:
        """Require a finite rate above 0."""
        if not 0 < self.per_s < inf:
            raise InvalidSettingError(
                f"the rate is {self.per_s}; give more than 0 messages a second", rate=self.per_s
            )

    def target(self, stream: Timeline, start: int, elapsed_s: float) -> int:
        """The messages that fit into the time passed."""
        return start + int(min(len(stream) - start, elapsed_s * self.per_s))


@dataclass(frozen=True, slots=True)
class Speed:
    """Time passes so many times as fast as it did."""

    factor: float

    def __post_init__(self) -> None:
        """Require a finite speed above 0."""
        if not 0 < self.factor < inf:
            raise InvalidSettingError(
                f"the speed is {self.factor}; give more than 0 (1 is as it happened)", speed=self.factor
            )

    def target(self, stream: Timeline, start: int, elapsed_s: float) -> int:
        """What happened by the moment in the data that the time passed leads to."""
        if start >= len(stream):
            return len(stream)
        return stream.index_of(stream.due(start) + int(min(FAR_MS, elapsed_s * self.factor * 1000)) + 1)


@dataclass(frozen=True, slots=True)
class HeadStart:
    """The first hours of the stream are due at once; from there on it goes at a pace.

    A stream that was left after its first hours goes on at the pace alone.
    """

    hours: float
    pace: Pace

    def __post_init__(self) -> None:
        """Require a finite time span, 0 or more."""
        if not 0 <= self.hours < inf:
            raise InvalidSettingError(
                f"the head start is {self.hours:g} hours; give 0 or more", hours=self.hours
            )

    def target(self, stream: Timeline, start: int, elapsed_s: float) -> int:
        """The end of the head start, or what the pace says from there."""
        if start >= len(stream):
            return len(stream)
        head = stream.index_of(stream.due(0) + int(min(FAR_MS, self.hours * 3_600_000)))
        return self.pace.target(stream, max(start, head), elapsed_s)
