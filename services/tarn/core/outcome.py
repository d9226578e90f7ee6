"""The three outcomes of a conditional write (invariant I3)."""

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
    """The write did not and will not happen: the stored value is another one.

    Attributes:
        reason: what was found instead, for people.
    """

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """The write may have happened, or may still happen.

    Attributes:
        reason: why nothing better can be said, for people.
    """

    reason: str


Outcome = Committed | Conflict | Unknown
