"""Long tests that take turns: a complete run has one turn of six, and the next commit's run the next one.

A test marked `in_turn(n, catches)` takes long, and shows on another part, or in another way, what tests of
every run show as well. n is a number, or a tuple of them. The year, which is the longest, shares its turn
with no other single test, only with parameters of those that have a part in each turn.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TypeVar

import pytest
from tarn_host.testing.tiers import TURNS

V = TypeVar("V")

TURN = os.environ.get("TARN_TEST_TURN", "")
"""Number of this run's turn, from 1 on; empty for all."""


def of_other_turns(items: Sequence[pytest.Item], turn: str = TURN) -> list[pytest.Item]:
    """The tests that the run of this turn leaves out. Pure.

    Args:
        items: all tests of a tier.
        turn: number of the turn, or empty for all.

    Raises:
        pytest.UsageError: a test names a turn that does not exist.
    """
    others = []
    for item in items:
        marker = item.get_closest_marker("in_turn")
        if marker is None:
            continue
        given, _catches = marker.args
        numbers = given if isinstance(given, tuple) else (given,)
        for number in numbers:
            if number not in range(1, TURNS + 1):
                raise pytest.UsageError(
                    f"{item.nodeid}: in_turn({number}) is no turn; there are 1 to {TURNS}"
                )
        if turn and int(turn) not in numbers:
            others.append(item)
    return others


def one_after_the_other(
    values: Iterable[V], catches: str, *, times: int = 1
) -> dict[V, pytest.MarkDecorator]:
    """Value of a parameter -> the mark that puts it into the next turn.

    Args:
        values: the values of the parameter.
        catches: what the other turns miss.
        times: in how many of the turns each value is; it divides their number.
    """
    apart = TURNS // times
    return {
        value: pytest.mark.in_turn(tuple(range(n % apart + 1, TURNS + 1, apart)), catches)
        for n, value in enumerate(values)
    }
