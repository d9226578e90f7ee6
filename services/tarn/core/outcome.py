"""The three outcomes of a conditional write (invariant I3), and verdicts on a write before it is sent."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """The write happened.

    Attributes:
        etag: the entity tag of the value now stored.
    """

    etag: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """The write did not and will not happen: another value is stored.

    Attributes:
        reason: what was found instead, for people.
        turn: token of the turn that the catalog keeps for this writer, a moment long; None without one.
    """

    reason: str
    turn: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """The write may have happened, or may still happen.

    Attributes:
        reason: why the outcome is unknown, for people.
    """

    reason: str


Outcome = Committed | Conflict | Unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class AlreadyCommitted:
    """Verdict on a change: this version of the table already includes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """Verdict on a change: it cannot be applied to this version of the table; plan again.

    Attributes:
        reason: what does not fit, for people.
    """

    reason: str
