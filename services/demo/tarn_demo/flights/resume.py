"""Where a replay stopped, read from the topic itself: resuming neither skips nor repeats a message.

Each message carries a header with the replay pass it belongs to and its index in the stream. A pass is one
run over a stream: the stream's fingerprint and a round. In every partition the last message says how far that
pass came.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tarn.core.errors import CorruptStateError

HEADER = "tarn-play"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayMarker:
    """The place of a message: pass and index.

    Attributes:
        fingerprint: of the stream (data set, noise rates, seed).
        round: 1 for the first pass.
        index: of the message in the stream.
    """

    fingerprint: str
    round: int
    index: int

    def encode(self) -> bytes:
        """The header's value."""
        return f"{self.fingerprint}.{self.round}/{self.index}".encode()

    @staticmethod
    def decode(value: bytes) -> ReplayMarker:
        """Reads the header's value.

        Raises:
            CorruptStateError: the value is not fingerprint.round/index.
        """
        try:
            play, index = value.decode("ascii").split("/")
            fingerprint, round_ = play.split(".")
            return ReplayMarker(fingerprint=fingerprint, round=int(round_), index=int(index))
        except ValueError as e:
            raise CorruptStateError(
                f"the header {HEADER} of a message is {value[:80]!r}, not fingerprint.round/index; "
                "something else writes to this topic with this header",
                value=value[:80],
            ) from e


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPass:
    """One pass over a stream, from where it stopped.

    Attributes:
        fingerprint: of the stream.
        round: which pass.
        next: per partition the first message of the stream that is not in it yet.
    """

    fingerprint: str
    round: int
    next: tuple[int, ...]

    @property
    def start(self) -> int:
        """The first message that any partition still needs."""
        return min(self.next)


def plan(
    tails: Mapping[int, ReplayMarker | None], ends: tuple[int, ...], *, fingerprint: str, again: bool
) -> ReplayPass:
    """The pass to resume, or a new one.

    Args:
        tails: per partition the marker of its newest marked message; None if it has none.
        ends: per partition one past its last message of the stream.
        fingerprint: of the stream to play.
        again: start another pass if the last one is finished.
    """
    markers = {p: m for p, m in tails.items() if m is not None and m.fingerprint == fingerprint}
    if not markers:
        return ReplayPass(fingerprint=fingerprint, round=1, next=(0,) * len(ends))
    newest = max(m.round for m in markers.values())
    after = [0] * len(ends)
    for partition, marker in markers.items():
        if marker.round == newest:
            after[partition] = marker.index + 1
    last = ReplayPass(fingerprint=fingerprint, round=newest, next=tuple(after))
    if again and is_finished(last, ends):
        return ReplayPass(fingerprint=fingerprint, round=newest + 1, next=(0,) * len(ends))
    return last


def is_begun(play: ReplayPass) -> bool:
    """Whether any partition has messages of it."""
    return any(play.next)


def is_finished(play: ReplayPass, ends: tuple[int, ...]) -> bool:
    """Whether every partition has all of its messages."""
    return all(done >= end for done, end in zip(play.next, ends, strict=True))


def is_of_another_stream(tails: Mapping[int, ReplayMarker | None], *, fingerprint: str) -> bool:
    """Whether the topic ends with a pass over another stream: other noise rates, or another seed."""
    return any(m is not None and m.fingerprint != fingerprint for m in tails.values())


def is_forgotten(tails: Mapping[int, ReplayMarker | None], firsts: Mapping[int, int]) -> bool:
    """Whether nobody knows how far the topic was played: Kafka has deleted the last messages of a partition.

    Args:
        tails: per partition the marker of its newest marked message; None if it has none.
        firsts: per partition the offset of its first message, or of the next one if it has none.
    """
    return any(marker is None and firsts[partition] > 0 for partition, marker in tails.items())
