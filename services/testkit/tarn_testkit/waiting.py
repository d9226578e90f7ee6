"""Waiting for a state, never for a while."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from tarn_testkit.errors import WaitError

T = TypeVar("T")

PAUSE_S = 0.2


def eventually(
    look: Callable[[], T | None],
    *,
    timeout_s: float,
    what: str | Callable[[], str] = "the condition",
    pause_s: float = PAUSE_S,
) -> T:
    """The first result that is true: not None, False, 0, or empty.

    Args:
        look: called until it returns such a result; what it raises ends the wait.
        timeout_s: the timeout, in seconds.
        what: name of the condition, for the error message, or what makes it once the time is over.
        pause_s: seconds between two calls.

    Raises:
        WaitError: there was none before the timeout; an AssertionError too.
    """
    until_s = time.monotonic() + timeout_s
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > until_s:
            said = f"{what}; the last result was {found!r:.200}" if isinstance(what, str) else what()
            raise WaitError(f"not within {timeout_s:g} s: {said}")
        time.sleep(pause_s)
