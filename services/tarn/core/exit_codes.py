"""Exit codes of all Tarn commands; they follow the error tree, so that a script can choose its next step."""

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

    2 means fix the input or a setting, 3 wait and retry, 4 a wrong or missing privilege, 5 stored state needs
    a person's attention, 1 any other failure, 70 a bug in Tarn.
    """
    return next((code for kind, code in _CODES if isinstance(error, kind)), BUG)
