"""Waiting for a state: one look begins when the time is over, and a failure says what was there."""

from __future__ import annotations

import subprocess
import time

import pytest

from tests.support.stack import eventually, run


def test_a_look_that_takes_longer_than_the_limit_is_followed_by_another() -> None:
    looks = []

    def slow() -> bool:
        looks.append(time.monotonic())
        time.sleep(0.05)
        return len(looks) == 2

    assert eventually(slow, timeout_s=0.01, what="it", pause_s=0)


def test_a_limit_of_nothing_is_one_look() -> None:
    looks: list[int] = []

    def look() -> bool:
        looks.append(1)
        return False

    with pytest.raises(AssertionError, match=r"^not within 0 s: the end$"):
        eventually(look, timeout_s=0, what="the end")
    assert looks == [1]


def test_what_was_there_is_asked_for_once_the_time_is_over() -> None:
    seen = [0]

    def look() -> bool:
        seen[0] += 1
        return False

    with pytest.raises(AssertionError, match=r"^not within 0 s: two; there was 1$"):
        eventually(look, timeout_s=0, what=lambda: f"two; there was {seen[0]}")


def test_a_program_that_is_not_done_in_time_says_what_it_has_printed() -> None:
    with pytest.raises(subprocess.TimeoutExpired) as late:
        run(["sh", "-c", "echo half of it; exec sleep 60"], timeout_s=4)
    assert late.value.__notes__ == ["half of it\n"]
