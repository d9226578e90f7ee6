"""Waiting for a state: one look begins when the time is over, and a failure says what was there."""

from __future__ import annotations

import subprocess
import time

import pytest

from tests.support.stack import eventually, run


def test_a_look_that_takes_longer_than_the_limit_is_followed_by_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, looks = [0.0], []

    def slow() -> bool:
        looks.append(now[0])
        now[0] += 5
        return len(looks) == 2

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    assert eventually(slow, timeout_s=1, what="it", pause_s=0)
    assert looks == [0, 5]


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


@pytest.mark.parametrize(
    ("printed", "note"), [(b"half of it\n", "half of it\n"), (None, "it printed nothing")]
)
def test_a_program_that_is_not_done_in_time_says_what_it_has_printed(
    monkeypatch: pytest.MonkeyPatch, printed: bytes | None, note: str
) -> None:
    def late(*_: object, **options: object) -> None:
        raise subprocess.TimeoutExpired("sh", 4, output=printed)

    monkeypatch.setattr(subprocess, "run", late)
    with pytest.raises(subprocess.TimeoutExpired) as error:
        run(["sh"], timeout_s=4)
    assert error.value.__notes__ == [note]
