"""What a checker says of an answer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether an answer is right, and the words for whoever gave it.

    Attributes:
        right: whether it is.
        message: what is right about it, or what is wrong.
        hint: where to look next; empty for none.
    """

    right: bool
    message: str
    hint: str = ""


def right(message: str) -> Verdict:
    """The answer is right; the message says why."""
    return Verdict(right=True, message=message)


def wrong(message: str, hint: str = "") -> Verdict:
    """The answer is wrong; the message says what about it, the hint where to look."""
    return Verdict(right=False, message=message, hint=hint)
