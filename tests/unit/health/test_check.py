"""The levels of the health check: what is looked at when, and what is told when."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from tarn.health import Check, Level, Limits, State, Verdict, deep_due, fresh

LIMITS = Limits()
START = "boot/100"
S, D = Level.SHALLOW, Level.DEEP


class World:
    """A service, a clock and a place for the state; nothing real."""

    def __init__(self, *, state: State | None = None, look_s: float = 0.0) -> None:
        self.now_s = 1000.0
        self.look_s = look_s
        self.state = state or State(start=START)
        self.looks: list[tuple[float, Level]] = []
        self.fault: Callable[[float, Level], str | None] = lambda now_s, level: None

    def run(self, limits: Limits = LIMITS) -> Verdict:
        check = Check(
            look=self._look, save=self._save, clock=lambda: self.now_s, sleep=self._sleep, limits=limits
        )
        return check.run(self.state)

    def levels(self) -> list[Level]:
        return [level for _, level in self.looks]

    def _look(self, level: Level) -> str | None:
        self.looks.append((self.now_s, level))
        self.now_s += self.look_s
        return self.fault(self.now_s, level)

    def _save(self, state: State) -> None:
        self.state = state

    def _sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now_s += seconds


def healthy(*, deep_passed_s: float = 990.0, ended_s: float | None = 998.0) -> State:
    return State(start=START, healthy=True, deep_passed_s=deep_passed_s, ended_s=ended_s)


def test_a_new_start_is_healthy_only_after_a_deep_look() -> None:
    world = World()
    assert world.run() == Verdict(healthy=True, line="usable (deep)")
    assert world.levels() == [S, D]
    assert world.state == healthy(deep_passed_s=1000.0, ended_s=1000.0)


def test_a_service_is_healthy_within_a_pause_of_being_usable() -> None:
    world = World()
    world.fault = lambda now_s, level: "refused" if now_s < 1007.3 else None
    assert world.run().healthy
    assert 1007.3 <= world.now_s <= 1007.3 + LIMITS.poll_s_max


def test_no_deep_look_while_the_shallow_one_fails() -> None:
    world = World()
    world.fault = lambda now_s, level: "refused" if now_s < 1005 else None
    world.run()
    assert world.levels().count(D) == 1
    assert world.levels()[-2:] == [S, D]


def test_a_shallow_look_alone_does_not_make_it_healthy() -> None:
    world = World()
    world.fault = lambda now_s, level: "query failed" if level is D else None
    assert world.run() == Verdict(healthy=False, line="query failed")
    assert world.state == State(start=START)
    assert world.now_s <= 1000 + LIMITS.hold_s


def test_a_healthy_one_is_looked_at_shallowly_for_one_watch() -> None:
    world = World(state=healthy())
    assert world.run() == Verdict(healthy=True, line="usable (shallow)")
    assert world.looks == [(1000.0 + i * LIMITS.watch_s, S) for i in range(5)]
    assert world.state == healthy(ended_s=1040.0)


def test_a_fault_is_told_in_time_whatever_moment_it_begins() -> None:
    for begin_ms in range(0, 45_000, 250):
        begin_s = 1000 + begin_ms / 1000
        world = World(state=healthy(), look_s=0.0)

        def fault(now_s: float, level: Level, begin_s: float = begin_s) -> str | None:
            return "no answer" if now_s >= begin_s else None

        world.fault = fault
        while (verdict := world.run()).healthy:
            world.now_s += 2.0  # the engine's pause between two checks
        assert verdict.line == "no answer"
        assert world.now_s - begin_s <= LIMITS.watch_s + LIMITS.retry_s + 2.0


def test_a_fault_that_takes_its_whole_budget_is_told_within_a_minute() -> None:
    for level in Level:
        budget_s = LIMITS.shallow_budget_s if level is S else LIMITS.deep_budget_s
        passed_s = 990.0 if level is S else 600.0
        world = World(state=healthy(deep_passed_s=passed_s), look_s=budget_s)
        world.fault = lambda now_s, level: "no answer within its budget"
        assert not world.run().healthy
        assert LIMITS.watch_s + 2.0 + (world.now_s - 1000) < 60


def test_one_failed_look_is_not_a_fault() -> None:
    world = World(state=healthy())
    world.fault = lambda now_s, level: "hiccup" if now_s == 1020.0 else None
    assert world.run().healthy
    assert (1022.0, S) in world.looks


def test_the_deep_look_comes_again_after_five_minutes_and_ends_the_watch() -> None:
    world = World(state=healthy(deep_passed_s=715.0))
    assert world.run() == Verdict(healthy=True, line="usable (deep)")
    assert world.looks == [(1000.0, S), (1010.0, S), (1020.0, D)]
    assert world.state == healthy(deep_passed_s=1020.0, ended_s=1020.0)


def test_a_failed_deep_look_makes_it_unhealthy_though_the_shallow_one_passes() -> None:
    world = World(state=healthy(deep_passed_s=600.0))
    world.fault = lambda now_s, level: "read back nothing" if level is D else None
    assert world.run() == Verdict(healthy=False, line="read back nothing")
    assert world.levels() == [D, D]


def test_the_way_back_asks_for_a_deep_look() -> None:
    world = World(state=healthy())
    world.fault = lambda now_s, level: "frozen" if now_s < 1100 else None
    assert not world.run().healthy
    assert world.state == State(start=START)
    world.looks.clear()
    while not world.run().healthy:
        world.now_s += 2.0
    assert world.levels()[-1] is D
    assert world.now_s <= 1100 + LIMITS.poll_s_max + 2.0


def test_after_a_watch_cut_short_the_engine_is_told_at_once() -> None:
    cut = World(state=healthy())

    def pause(now_s: float, level: Level) -> str | None:
        if now_s >= 1020:
            raise KeyboardInterrupt
        return None

    cut.fault = pause
    with pytest.raises(KeyboardInterrupt):
        cut.run()
    assert cut.state == healthy(ended_s=None)
    world = World(state=cut.state)
    assert world.run() == Verdict(healthy=True, line="usable (shallow)")
    assert world.looks == [(1000.0, S)]
    assert world.state == healthy(ended_s=1000.0)


def test_after_a_gap_the_engine_is_told_at_once() -> None:
    for gap_s, looks in ((LIMITS.gap_s_max, 5), (LIMITS.gap_s_max + 0.1, 1)):
        world = World(state=healthy(ended_s=1000.0 - gap_s))
        assert world.run().healthy
        assert len(world.looks) == looks


def test_after_a_watch_cut_short_a_fault_is_still_confirmed() -> None:
    world = World(state=healthy(ended_s=None))
    world.fault = lambda now_s, level: "frozen"
    assert world.run() == Verdict(healthy=False, line="frozen")
    assert world.levels() == [S, S]


def test_what_was_known_of_another_start_counts_for_nothing() -> None:
    assert fresh(healthy(), "boot/200") == State(start="boot/200")
    assert fresh(None, START) == State(start=START)
    assert fresh(healthy(), START) == healthy()


@pytest.mark.parametrize(("passed_s", "due"), [(None, True), (700.0, True), (700.1, False)])
def test_when_a_deep_look_is_due(passed_s: float | None, due: bool) -> None:
    state = State(start=START, healthy=True, deep_passed_s=passed_s)
    assert deep_due(state, 1000.0, LIMITS) is due


def test_the_limits_leave_room_for_each_other() -> None:
    assert all(getattr(LIMITS, field.name) > 0 for field in dataclasses.fields(Limits))
    assert LIMITS.watch_s < LIMITS.hold_s < LIMITS.deep_every_s
    assert LIMITS.hold_s + 2 * LIMITS.deep_budget_s + LIMITS.retry_s < 120  # --timeout in the Dockerfiles
