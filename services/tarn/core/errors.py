"""The error tree. A type says what the caller does next; a message says what, the values, what to do.

TarnError
├── InvalidError            fix the input
│   ├── InvalidNameError    a namespace, table or column name that is not allowed
│   ├── InvalidLocationError a location outside what the caller may use
│   ├── InvalidSpecError    an ingestor spec that cannot be used
│   └── InvalidSettingError a setting that cannot be used
├── NotFoundError           name something that exists
│   ├── NoSuchNamespaceError
│   └── NoSuchTableError
├── AlreadyExistsError      choose another name
├── NotEmptyError           empty it first
├── AccessError
│   ├── UnauthenticatedError show a valid token
│   └── ForbiddenError       ask for the right
├── ConflictError           reload, rebase, try again
├── UnavailableError        wait, try again; nothing was changed
├── OutcomeUnknownError     read back one's own commit id before anything else
└── DataError               stop: going on would lose or double rows
    ├── OffsetGapError
    ├── SourceChangedError   the topic is not the one that was read before
    ├── OtherStreamError     the table holds the topic's records under another stream's name
    └── CorruptStateError    stored state contradicts itself
"""

from __future__ import annotations


class TarnError(Exception):
    """The base of every error Tarn raises on purpose.

    Args:
        message: what happened, the values, and what to do.
        **fields: the same values for logs, by name.
    """

    def __init__(self, message: str, **fields: object) -> None:
        super().__init__(message)
        self.message = message
        self.fields = fields


class InvalidError(TarnError):
    """The input is wrong: fix it."""


class InvalidNameError(InvalidError):
    """A namespace, table or column name that is not allowed."""


class InvalidLocationError(InvalidError):
    """A location that the caller may not use."""


class InvalidSpecError(InvalidError):
    """An ingestor spec that cannot be used."""


class InvalidSettingError(InvalidError):
    """A setting that cannot be used."""


class NotFoundError(TarnError):
    """The named thing does not exist."""


class NoSuchNamespaceError(NotFoundError):
    """The namespace does not exist."""


class NoSuchTableError(NotFoundError):
    """The table does not exist."""


class AlreadyExistsError(TarnError):
    """The name is taken."""


class NotEmptyError(TarnError):
    """The thing still holds others: empty it first."""


class AccessError(TarnError):
    """The caller may not do this."""


class UnauthenticatedError(AccessError):
    """No valid token was shown."""


class ForbiddenError(AccessError):
    """The principal lacks the right."""


class ConflictError(TarnError):
    """Somebody else was first, provably: reload, rebase, try again."""


class UnavailableError(TarnError):
    """A dependency does not answer and nothing was changed: wait, try again."""


class OutcomeUnknownError(TarnError):
    """A write may or may not have happened: read back one's own commit id first."""


class DataError(TarnError):
    """Going on would lose or double rows: stop."""


class OffsetGapError(DataError):
    """An offset range does not start where the table's range ends."""


class SourceChangedError(DataError):
    """The topic is not the one that was read before (other cluster or topic id, or shorter)."""


class OtherStreamError(DataError):
    """The table holds another stream of the same topic: its records would go in a second time."""


class CorruptStateError(DataError):
    """Stored state contradicts itself."""
