"""The levels of the health check: when each runs, what it reports, and when a process is ended."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tarn.probe.runner import ALIVE, DEEP, SHALLOW, Check, Limits, State, deep_due, fresh, hangs, note_silence

LIMITS = Limits()
START = "boot/100"
S, D = SHALLOW, DEEP
BUDGET_S = {ALIVE: 5.0, SHALLOW: 5.0, DEEP: 20.0}


class World:
    """A service, a clock and a state store, all simulated."""

    def __init__(self, *, state: State | None = None, look_s: float = 0.0, age_s: float = 500.0) -> None:
        self.now_s = 1000.0
        self.started_s = self.now_s - age_s
        self.look_s = look_s
        self.state = state or State(START)
        self.looks: list[tuple[float, str]] = []
        self.ended: list[tuple[float, float]] = []
        self.rests = 0
        self.fault: Callable[[float, str], str | None] = lambda now_s, level: None

    def run(self, limits: Limits = LIMITS) -> tuple[bool, str]:
        check = Check(
            look=self._look,
            rest=self._rest,
            save=self._save,
            end=self._end,
            age=lambda: self.now_s - self.started_s,
            clock=lambda: self.now_s,
            sleep=self._sleep,
            limits=limits,
        )
        return check.run(self.state)

    def run_for(self, seconds: float) -> None:
        """Run the check as the engine does, with two seconds in between, until the process is ended."""
        until_s = self.now_s + seconds
        while self.now_s < until_s and not self.ended:
            self.run()
            self.now_s += 2.0

    def levels(self) -> list[str]:
        return [level for _, level in self.looks]

    def _look(self, level: str) -> str | None:
        if level != ALIVE:
            self.looks.append((self.now_s, level))
        self.now_s += min(self.look_s, BUDGET_S[level])
        return self.fault(self.now_s, level)

    def _rest(self) -> None:
        self.rests += 1

    def _save(self, state: State) -> None:
        self.state = State.from_text(state.to_text())

    def _end(self, silent_s: float, fault: str) -> str:
        self.ended.append((self.now_s, silent_s))
        return "ended"

    def _sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now_s += seconds


def healthy(*, deep_passed_s: float = 990.0, ended_s: float | None = 998.0) -> State:
    return State(START, healthy=True, answered=True, deep_passed_s=deep_passed_s, ended_s=ended_s)


def only_usable(now_s: float, level: str) -> str | None:
    """The fault of a service whose dependency is down: the process itself answers."""
    return None if level == ALIVE else "the store does not answer"


def test_a_new_start_is_healthy_only_after_a_deep_look() -> None:
    world = World()
    assert world.run() == (True, "usable (deep)")
    assert world.levels() == [S, D]
    assert world.state == healthy(deep_passed_s=1000.0, ended_s=1000.0)


def test_a_service_is_healthy_within_a_pause_of_being_usable() -> None:
    world = World()
    world.fault = lambda now_s, level: "refused" if now_s < 1007.3 else None
    assert world.run()[0]
    assert 1007.3 <= world.now_s <= 1007.3 + LIMITS.poll_s_max


def test_no_deep_look_while_the_shallow_one_fails() -> None:
    world = World()
    world.fault = lambda now_s, level: "refused" if now_s < 1005 else None
    world.run()
    assert world.levels().count(D) == 1
    assert world.levels()[-2:] == [S, D]


def test_a_shallow_look_alone_does_not_make_it_healthy() -> None:
    world = World()
    world.fault = lambda now_s, level: "query failed" if level == D else None
    assert world.run() == (False, "query failed")
    assert world.state == State(START, answered=True)
    assert world.now_s <= 1000 + LIMITS.hold_s


def test_a_healthy_one_is_looked_at_shallowly_for_one_watch() -> None:
    world = World(state=healthy())
    assert world.run() == (True, "usable (shallow)")
    assert world.looks == [(1000.0 + i * 15, S) for i in range(8)]
    assert world.rests == 7, "between two looks nothing is held"
    assert world.state == healthy(ended_s=1105.0)


def test_a_fault_is_told_in_time_whatever_moment_it_begins() -> None:
    for begin_ms in range(0, 120_000, 500):
        begin_s = 1000 + begin_ms / 1000
        world = World(state=healthy(), look_s=0.0)

        def fault(now_s: float, level: str, begin_s: float = begin_s) -> str | None:
            return "no answer" if now_s >= begin_s else None

        world.fault = fault
        while (verdict := world.run())[0]:
            world.now_s += 2.0  # the engine's pause between two checks
        assert verdict[1] == "no answer"
        assert world.now_s - begin_s <= LIMITS.watch_s + LIMITS.retry_s + 2.0


def test_a_fault_that_takes_its_whole_budget_is_told_within_a_minute() -> None:
    for level in (S, D):
        budget_s = BUDGET_S[level]
        passed_s = 990.0 if level is S else -3000.0
        world = World(state=healthy(deep_passed_s=passed_s), look_s=budget_s)
        world.fault = lambda now_s, level: "no answer within its budget"
        assert not world.run()[0]
        assert LIMITS.watch_s + 2.0 + (world.now_s - 1000) < 60


def test_one_failed_look_is_not_a_fault() -> None:
    world = World(state=healthy())
    world.fault = lambda now_s, level: "hiccup" if now_s == 1030.0 else None
    assert world.run()[0]
    assert (1032.0, S) in world.looks


def test_the_deep_look_comes_again_after_an_hour_and_ends_the_watch() -> None:
    world = World(state=healthy(deep_passed_s=-2575.0))
    assert world.run() == (True, "usable (deep)")
    assert world.looks == [(1000.0, S), (1015.0, S), (1030.0, D)]
    assert world.state == healthy(deep_passed_s=1030.0, ended_s=1030.0)


def test_a_failed_deep_look_makes_it_unhealthy_though_the_shallow_one_passes() -> None:
    world = World(state=healthy(deep_passed_s=-3000.0))
    world.fault = lambda now_s, level: "read back nothing" if level == D else None
    assert world.run() == (False, "read back nothing")
    assert world.levels() == [D, D]


def test_the_way_back_asks_for_a_deep_look() -> None:
    world = World(state=healthy())
    world.fault = lambda now_s, level: only_usable(now_s, level) if now_s < 1100 else None
    assert not world.run()[0]
    assert not world.state.healthy
    assert world.state.deep_passed_s is None
    world.looks.clear()
    while not world.run()[0]:
        world.now_s += 2.0
    assert world.levels()[-1] == D
    assert world.now_s <= 1100 + LIMITS.poll_s_max + 2.0


def test_after_a_watch_cut_short_the_engine_is_told_at_once() -> None:
    cut = World(state=healthy())

    def pause(now_s: float, level: str) -> str | None:
        if now_s >= 1030:
            raise KeyboardInterrupt
        return None

    cut.fault = pause
    with pytest.raises(KeyboardInterrupt):
        cut.run()
    assert cut.state == healthy(ended_s=None)
    world = World(state=cut.state)
    assert world.run() == (True, "usable (shallow)")
    assert world.looks == [(1000.0, S)]
    assert world.state == healthy(ended_s=1000.0)


def test_after_a_gap_the_engine_is_told_at_once() -> None:
    for gap_s, looks in ((LIMITS.gap_s_max, 8), (LIMITS.gap_s_max + 0.1, 1)):
        world = World(state=healthy(ended_s=1000.0 - gap_s))
        assert world.run()[0]
        assert len(world.looks) == looks


def test_after_a_watch_cut_short_a_fault_is_still_confirmed() -> None:
    world = World(state=healthy(ended_s=None))
    world.fault = lambda now_s, level: "frozen"
    assert world.run() == (False, "frozen")
    assert world.levels() == [S, S]


def test_what_was_known_of_another_start_counts_for_nothing() -> None:
    assert fresh(healthy(), "boot/200") == State("boot/200")
    assert fresh(None, START) == State(START)
    assert fresh(healthy(), START) == healthy()


@pytest.mark.parametrize(("passed_s", "due"), [(None, True), (-2600.0, True), (-2599.9, False)])
def test_when_a_deep_look_is_due(passed_s: float | None, due: bool) -> None:
    state = State(START, healthy=True, deep_passed_s=passed_s)
    assert deep_due(state, 1000.0, LIMITS) is due


def test_the_limits_leave_room_for_each_other() -> None:
    assert all(value > 0 for name, value in vars(Limits).items() if not name.startswith("_"))
    assert LIMITS.watch_s < LIMITS.hold_s < LIMITS.deep_every_s
    assert LIMITS.hold_s + 2 * (45.0 + BUDGET_S[ALIVE]) + LIMITS.retry_s < 240  # --timeout in the Dockerfiles
    assert LIMITS.silent_s < LIMITS.run_s_min < LIMITS.start_grace_s


# -- a process that hangs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("look_s", [0.01, 2.0, 5.0])
def test_a_process_that_falls_silent_is_ended_within_a_hundred_seconds(look_s: float) -> None:
    for begin_ms in range(0, 120_000, 1_500):
        begin_s = 1000 + begin_ms / 1000
        world = World(state=healthy())

        def fault(now_s: float, level: str, begin_s: float = begin_s, world: World = world) -> str | None:
            if now_s < begin_s:
                return None
            world.now_s += look_s
            return "no answer"

        world.fault = fault
        world.run_for(300)
        (at_s, silent_s) = world.ended[0]
        assert at_s - begin_s <= 100 + 2 * look_s
        assert silent_s >= LIMITS.silent_s


def test_a_dependency_that_is_away_for_an_hour_ends_nothing() -> None:
    world = World(state=healthy())
    world.fault = only_usable
    world.run_for(3600)
    assert world.ended == []
    assert not world.state.healthy


def test_one_answer_of_its_own_begins_the_count_again() -> None:
    world = World(state=healthy())
    # Silent for fifty seconds of every minute.
    world.fault = lambda now_s, level: "slow" if now_s % 60 < 50 else None
    world.run_for(3600)
    assert world.ended == []


def test_a_container_is_never_ended_in_its_first_two_minutes() -> None:
    world = World(state=State(START, answered=True), age_s=1.0)
    world.fault = lambda now_s, level: "no answer"
    world.run_for(600)
    (at_s, _) = world.ended[0]
    assert LIMITS.run_s_min <= at_s - world.started_s <= LIMITS.run_s_min + LIMITS.poll_s_max + 2.0


def test_a_process_that_has_not_answered_yet_has_ten_minutes() -> None:
    world = World(age_s=1.0)
    world.fault = lambda now_s, level: "refused"
    world.run_for(700)
    (at_s, _) = world.ended[0]
    assert at_s - world.started_s >= LIMITS.start_grace_s


def test_a_silence_with_a_gap_in_it_is_two() -> None:
    """A container that was paused while its process was silent is not ended the moment it resumes."""
    state = State(START, answered=True)
    for now_s in (0.0, 10.0, 20.0, 30.0, 40.0):
        note_silence(state, now_s, LIMITS)
    assert not hangs(state, now_s=59.9, age_s=500.0, limits=LIMITS)
    assert hangs(state, now_s=60.0, age_s=500.0, limits=LIMITS)
    note_silence(state, 40.0 + LIMITS.silent_gap_s_max + 0.1, LIMITS)
    assert state.silent_looks == 1
    assert not hangs(state, now_s=200.0, age_s=500.0, limits=LIMITS)


def test_few_looks_prove_no_silence() -> None:
    state = State(START, answered=True)
    for now_s in (0.0, 30.0, 60.0, 90.0):
        note_silence(state, now_s, LIMITS)
    assert not hangs(state, now_s=90.0, age_s=500.0, limits=LIMITS)
    note_silence(state, 92.0, LIMITS)
    assert hangs(state, now_s=92.0, age_s=500.0, limits=LIMITS)
