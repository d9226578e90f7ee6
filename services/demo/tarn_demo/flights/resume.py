"""Where a stream was left: told by the topic itself, so that playing on neither skips nor repeats a message.

Each message carries a header with the play it belongs to and its place in the stream. A play is one pass over
a stream: the stream's fingerprint and a round. In every partition the last message says how far that play
came there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tarn.core.errors import CorruptStateError

HEADER = "tarn-play"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """The place of a message.

    Attributes:
        fingerprint: of the stream (dataset, shares, seed).
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
    def decode(value: bytes) -> Mark:
        """Reads the header's value.

        Raises:
            CorruptStateError: it is none.
        """
        try:
            play, index = value.decode("ascii").split("/")
            fingerprint, round_ = play.split(".")
            return Mark(fingerprint=fingerprint, round=int(round_), index=int(index))
        except ValueError as e:
            raise CorruptStateError(
                f"the header {HEADER} of a message is {value[:80]!r}, not fingerprint.round/index; "
                "something else writes to this topic with this header",
                value=value[:80],
            ) from e


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """One pass over a stream, from where it was left.

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


def plan(tails: Mapping[int, Mark | None], ends: tuple[int, ...], *, fingerprint: str, again: bool) -> Play:
    """The play to go on with, or a new one.

    Args:
        tails: per partition the mark of its newest marked message; None if it has none.
        ends: per partition one past its last message of the stream.
        fingerprint: of the stream to play.
        again: start another pass if the last one is finished.
    """
    marks = {p: m for p, m in tails.items() if m is not None and m.fingerprint == fingerprint}
    if not marks:
        return Play(fingerprint=fingerprint, round=1, next=(0,) * len(ends))
    newest = max(m.round for m in marks.values())
    after = [0] * len(ends)
    for partition, mark in marks.items():
        if mark.round == newest:
            after[partition] = mark.index + 1
    last = Play(fingerprint=fingerprint, round=newest, next=tuple(after))
    if again and is_finished(last, ends):
        return Play(fingerprint=fingerprint, round=newest + 1, next=(0,) * len(ends))
    return last


def is_begun(play: Play) -> bool:
    """Whether any partition has messages of it."""
    return any(play.next)


def is_finished(play: Play, ends: tuple[int, ...]) -> bool:
    """Whether every partition has all of its messages."""
    return all(done >= end for done, end in zip(play.next, ends, strict=True))


def is_anothers(tails: Mapping[int, Mark | None], *, fingerprint: str) -> bool:
    """Whether the topic ends with the play of another stream: other shares, or another seed."""
    return any(m is not None and m.fingerprint != fingerprint for m in tails.values())
