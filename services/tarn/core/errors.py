"""The error tree. The type determines the caller's next move; the message has what, the values, what to do.

TarnError
├── InvalidError            fix the input
│   ├── InvalidNameError    a namespace, table or column name that is not allowed
│   ├── InvalidLocationError a location outside what the caller may use
│   ├── InvalidSpecError    an ingestor spec that cannot be used
│   ├── InvalidSettingError a setting that cannot be used
│   └── TooManyPartitionsError rows that touch more partitions of the table than one commit may
├── NotFoundError           name something that exists
│   ├── NoSuchNamespaceError
│   ├── NoSuchTableError
│   └── NoSuchViewError
├── AlreadyExistsError      choose another name
├── NotEmptyError           empty it first
├── AccessError
│   ├── UnauthenticatedError show a valid token
│   └── ForbiddenError       request the missing privilege
├── ConflictError           reload, rebase, retry
│   └── ReaderTakenError     another reader has taken over the group
├── UnavailableError        wait, retry; nothing was changed
├── OutcomeUnknownError     look for one's own commit id before anything else
└── DataError               stop: continuing would lose or duplicate rows
    ├── OffsetGapError
    ├── SourceChangedError   the topic is not the one that was read before
    ├── ReaderPlaceError     the table does not have a reader's place: recreated, or rolled back
    ├── OtherStreamError     the table holds the topic's records under another stream's name
    └── CorruptStateError    stored state contradicts itself
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class TarnError(Exception):
    """Base of all errors that Tarn raises deliberately.

    Args:
        message: what happened, the values, and what to do.
        **fields: the same values by name, for logs.

    Attributes:
        rows: the rows that a writer of `tarn.client` dropped or left with this error; empty for others.
    """

    rows: Sequence[Any] = ()

    def __init__(self, message: str, **fields: object) -> None:
        super().__init__(message)
        self.message = message
        self.fields = fields

    def __reduce__(self) -> tuple[Any, ...]:
        """What pickle keeps: an error comes out of a pool of processes as it was, whatever it is made of."""
        return _again, (type(self), self.args), self.__dict__


def _again(kind: type[TarnError], args: tuple[Any, ...]) -> TarnError:
    return kind.__new__(kind, *args)


class InvalidError(TarnError):
    """The input is invalid: fix it."""


class InvalidNameError(InvalidError):
    """A namespace, table or column name that is not allowed."""


class InvalidLocationError(InvalidError):
    """A location that the caller may not use."""


class InvalidSpecError(InvalidError):
    """An invalid ingestor spec."""


class InvalidSettingError(InvalidError):
    """An invalid setting."""


class TooManyPartitionsError(InvalidError):
    """Rows of one commit touch more partitions than it may: commit fewer of them at once."""


class NotFoundError(TarnError):
    """The named object does not exist."""


class NoSuchNamespaceError(NotFoundError):
    """The namespace does not exist."""


class NoSuchTableError(NotFoundError):
    """The table does not exist."""


class NoSuchViewError(NotFoundError):
    """There is no view with this name."""


class AlreadyExistsError(TarnError):
    """The name is taken."""


class NotEmptyError(TarnError):
    """The object is not empty: empty it first."""


class AccessError(TarnError):
    """The caller lacks permission."""


class UnauthenticatedError(AccessError):
    """The request has no valid token."""


class ForbiddenError(AccessError):
    """The principal lacks the privilege."""


class ConflictError(TarnError):
    """Another writer provably won: reload, rebase, retry."""


class ReaderTakenError(ConflictError):
    """Another reader has taken over the group: stop reading, or subscribe again to take it back."""


class UnavailableError(TarnError):
    """A dependency does not respond and nothing was changed: wait, retry."""


class OutcomeUnknownError(TarnError):
    """A write may or may not have happened: look for one's own commit id first."""


class DataError(TarnError):
    """Continuing would lose or duplicate rows: stop."""


class OffsetGapError(DataError):
    """An offset range does not start where the table's offsets end."""


class SourceChangedError(DataError):
    """The topic is not the one read before (other cluster or topic id, or shorter log)."""


class ReaderPlaceError(DataError):
    """The table does not have the reader's place: it was recreated or rolled back."""


class OtherStreamError(DataError):
    """The table has another stream of the same topic: its records would be inserted twice."""


class CorruptStateError(DataError):
    """Stored state contradicts itself."""
