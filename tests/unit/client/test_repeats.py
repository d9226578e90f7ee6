"""Repeats of a request: pauses, the error at their end, and requests that are too old for one."""

from __future__ import annotations

import pytest

from tarn.client.repeats import (
    PAUSE_S,
    PAUSE_S_MAX,
    REPEAT_S_MAX,
    TIMEOUT_S_MAX,
    Clocks,
    ClosedError,
    Repeats,
    RepeatTooLateError,
    Request,
)
from tarn.core.errors import ForbiddenError, OutcomeUnknownError, TarnError, UnavailableError
from tarn.core.write_keys import WINDOW_S

LOST = OutcomeUnknownError("lost")
AWAY = UnavailableError("away")


class World:
    """Clocks that a test sets."""

    def __init__(self) -> None:
        self.steady_s = self.wall_s = 100.0
        self.request = Request(body=b"{}", kind="application/json", key="k", rows=lambda: ({"id": 1},))

    def repeats(self, timeout_s: float = 60.0, chance: float = 0.5) -> Repeats:
        return Repeats(
            table="a.b",
            request=self.request,
            timeout_s=timeout_s,
            clocks=Clocks(steady=lambda: self.steady_s, wall=lambda: self.wall_s),
            chance=lambda: chance,
        )

    def given_up(self, *errors: TarnError | BaseException) -> Exception:
        """How a call without a second attempt ends, for each of these in turn; the last one's error."""
        caught: Exception = AssertionError("no error")
        for error in errors:
            try:
                fail(self.repeats(timeout_s=0), error)
            except (TarnError, KeyboardInterrupt) as e:
                caught = e if isinstance(e, Exception) else caught
        return caught


def fail(repeats: Repeats, error: BaseException) -> None:
    with repeats.attempt():
        raise error


@pytest.fixture
def world() -> World:
    return World()


def test_pauses_grow_and_are_spread(world: World) -> None:
    for chance, factor in ((0.0, 0.5), (0.5, 1.0), (1.0, 1.5)):
        repeats, found = world.repeats(chance=chance), []
        for _ in range(9):
            fail(repeats, AWAY)
            found.append(repeats.wait_s / factor)
        assert found == pytest.approx([*(PAUSE_S * 2**n for n in range(7)), PAUSE_S_MAX, PAUSE_S_MAX])
    repeats = world.repeats()
    fail(repeats, UnavailableError("busy", retry_after_s=7.0))
    assert repeats.wait_s == 7.0


def test_other_errors_end_the_repeats_and_a_result_leaves_them(world: World) -> None:
    with pytest.raises(ForbiddenError):
        fail(world.repeats(), ForbiddenError("no"))
    repeats = world.repeats()
    with repeats.attempt():
        pass
    assert repeats.wait_s == 0.0


def test_time_is_over_when_the_next_attempt_would_begin_behind_it(world: World) -> None:
    repeats = world.repeats(timeout_s=7.0)
    fail(repeats, UnavailableError("busy", retry_after_s=7.0))
    world.steady_s += 0.01
    with pytest.raises(UnavailableError, match="busy"):
        fail(repeats, UnavailableError("busy", retry_after_s=7.0))


def test_a_writer_that_was_closed_repeats_nothing(world: World) -> None:
    with pytest.raises(ClosedError):
        fail(world.repeats(), ClosedError("closed"))
    fail(world.repeats(), LOST)
    with pytest.raises(OutcomeUnknownError, match="closed; an earlier request with the key k may have"):
        fail(world.repeats(), ClosedError("closed"))


@pytest.mark.parametrize("before", [LOST, KeyboardInterrupt()])
def test_what_an_earlier_call_left_unknown_stays_so(world: World, before: BaseException) -> None:
    world.given_up(before)
    found = world.given_up(AWAY)
    assert type(found) is OutcomeUnknownError
    assert "away; an earlier request with the key k may have written" in str(found)


def test_what_nobody_wrote_may_be_sent_however_late(world: World) -> None:
    assert type(world.given_up(AWAY, AWAY)) is UnavailableError
    world.steady_s = world.wall_s = 1e6
    assert type(world.given_up(AWAY)) is UnavailableError


@pytest.mark.parametrize("clock", ["steady_s", "wall_s"])
def test_a_request_that_may_have_written_is_too_old_for_a_repeat_by_either_clock(
    world: World, clock: str
) -> None:
    world.given_up(AWAY, LOST, AWAY)
    setattr(world, clock, 100.0 + REPEAT_S_MAX)
    world.given_up(LOST)  # the first one counts, not this one
    setattr(world, clock, 100.1 + REPEAT_S_MAX)
    found = world.given_up(LOST)
    assert isinstance(found, RepeatTooLateError)
    assert found.rows == ({"id": 1},)
    assert found.key == found.fields["key"] == "k"


def test_a_repeat_is_judged_before_its_key_is_forgotten() -> None:
    """A body may take 30 s, its memory 20 s, its turn 30 s, the answer 75 s, and the token may have ended."""
    assert TIMEOUT_S_MAX < REPEAT_S_MAX <= WINDOW_S - 2 * (30 + 20 + 30)
