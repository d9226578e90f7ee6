"""A stack with an empty lake: the session's own, purged by the users' scripts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support import flights
from tests.support.containers import LogKeeper
from tests.support.stack import Stack

DOWN_S = 300


@pytest.fixture
def emptied(stack: Stack, log_keeper: LogKeeper) -> Callable[[], Stack]:
    """Stop, purge and restart the stack, unless no flight was replayed yet."""

    def empty() -> Stack:
        if not sum(flights.end_offsets(stack).values()):
            return stack
        stack.keep_logs(log_keeper)
        down = stack.script("down", "--purge", "--yes", timeout_s=DOWN_S)
        assert down.code == 0, down.text
        up = stack.script("up", "--yes")
        assert up.code == 0, up.text[-8_000:]
        return stack

    return empty
