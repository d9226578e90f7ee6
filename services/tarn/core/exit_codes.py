"""Exit codes of every Tarn command: they follow the error tree, so that a script can tell its next step."""

from __future__ import annotations

from tarn.core.errors import (
    AccessError,
    DataError,
    InvalidError,
    OutcomeUnknownError,
    TarnError,
    UnavailableError,
)

OK = 0
FAILED = 1
INVALID = 2
UNAVAILABLE = 3
DENIED = 4
STOPPED = 5
BUG = 70
INTERRUPTED = 130

_CODES: tuple[tuple[type[TarnError], int], ...] = (
    (InvalidError, INVALID),
    (UnavailableError, UNAVAILABLE),
    (OutcomeUnknownError, UNAVAILABLE),
    (AccessError, DENIED),
    (DataError, STOPPED),
    (TarnError, FAILED),
)


def exit_code(error: BaseException) -> int:
    """Return the exit code for an error.

    2 means fix the input or a setting, 3 wait and try again, 4 wrong or missing right, 5 stored state must be
    looked at by a person, 1 any other refusal, 70 a defect of Tarn itself.
    """
    return next((code for kind, code in _CODES if isinstance(error, kind)), BUG)
