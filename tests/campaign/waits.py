"""A schedule whose actors say what they wait for; time passes when nobody else can go on.

The schedule of the catalog's tests lets every actor spin. A gateway has many threads that wait most of the
time, so here an actor is next only when what it waits for is there, or its time is over. If nobody is, the
clock moves to the next end of a wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.campaign.wakes import Wakes
from tests.contract.catalog.schedule import Schedule

if TYPE_CHECKING:
    from tests.campaign.gateway_world import GatewaySim

STEP_S = 0.0005
"""How much time a turn takes."""
LOCK_TURN_SHARE = 0.25


class Waits(Schedule):
    """See the module.

    Args:
        seed: seed of whose turn it is.
        clock: has the time in seconds, `now_s`.
        stuck_s: seconds of the wall clock without any turn after which the actors count as stuck.
    """

    def __init__(self, seed: int, clock: Any, *, stuck_s: float) -> None:
        super().__init__(seed, fault_share=0.0, stuck_s=stuck_s)
        self._time = clock
        self._for: dict[str, tuple[Callable[[], bool], float | None]] = {}
        self._more: list[threading.Thread] = []
        self._broken = ""

    def run(self, actors: dict[str, Callable[[], None]], *, crash_at: Any = None) -> None:
        """See `Schedule.run`; ends when the actors that were added meanwhile have ended too."""
        super().run(actors, crash_at={})
        for thread in self._more:
            thread.join(timeout=self._stuck_s)
            assert not thread.is_alive(), f"{thread.name} is stuck"
        if self.problem is not None:
            raise self.problem

    def add(self, name: str, act: Callable[[], None]) -> None:
        """Start a further actor. Called by an actor whose turn it is."""
        lock = threading.Lock()
        lock.acquire()
        with self._lock:
            assert name not in self._ready, name
            self._ready[name] = lock
            self._taken[name] = 0
        thread = threading.Thread(target=self._live, args=(name, act), name=name, daemon=True)
        self._more.append(thread)
        thread.start()

    def wait(self, ready: Callable[[], bool], until_s: float | None) -> None:
        """Give the turn away until something holds, or the time has come.

        Args:
            ready: whether it holds; changes nothing.
            until_s: when the wait ends, on the simulation's clock; None: not before.
        """
        name = self._who.name
        self._for[name] = (ready, until_s)
        try:
            self._turn(name)
        finally:
            self._for.pop(name, None)
        if self._broken:
            raise AssertionError(self._broken)

    def _able(self) -> list[str]:
        """Who can go on, sorted; time passes until somebody can."""
        self._time.now_s += STEP_S
        able = self._able_now()
        if able:
            return able
        ends = [until_s for _, until_s in self._for.values() if until_s is not None]
        if not ends:
            self._broken = f"nobody can go on: {self._waiting}"
            return self._waiting
        self._time.now_s = max(self._time.now_s, min(ends))
        return self._able_now()

    def _able_now(self) -> list[str]:
        now_s = self._time.now_s
        found = []
        for name in self._waiting:
            what = self._for.get(name)
            if what is None or self._broken:
                found.append(name)
                continue
            ready, until_s = what
            if (until_s is not None and now_s >= until_s) or ready():
                found.append(name)
        return found


class Held(Wakes):
    """A lock and condition, as `threading.Condition`, for the threads of a process of the simulation.

    Args:
        sim: the run.
    """

    def __init__(self, sim: GatewaySim) -> None:
        self._sim = sim
        self._owner: int | None = None
        self._depth = 0
        self._wakes = 0

    def __enter__(self) -> Held:
        """Take the lock; others may go on before, as before any instruction of a thread."""
        if self._owner != threading.get_ident():
            if self._sim.chance.random() < LOCK_TURN_SHARE:
                self._sim.pause()
            self._take()
        self._depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        """Release the lock; not if the process died over a wait."""
        if self._owner == threading.get_ident():
            self._depth -= 1
            if self._depth == 0:
                self._owner = None

    def _take(self) -> None:
        while self._owner is not None:
            self._sim.block(lambda: self._owner is None)
        self._owner = threading.get_ident()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for a notification."""
        wakes, depth = self._wakes, self._depth
        self._owner, self._depth = None, 0
        self._sim.block(lambda: self._wakes != wakes, timeout)
        self._take()
        self._depth = depth
        return self._wakes != wakes


class Flag:
    """As `threading.Event`.

    Args:
        sim: the run.
    """

    def __init__(self, sim: GatewaySim) -> None:
        self._sim = sim
        self._set = False

    def set(self) -> None:
        """Wake all who wait, for good."""
        self._set = True

    def is_set(self) -> bool:
        """Whether it was set."""
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, or the time is over."""
        if not self._set:
            self._sim.block(self.is_set, timeout)
        return self._set


class Thread:
    """As `threading.Thread`: an actor of the schedule, which dies with the process that started it.

    Args:
        sim: the run.
        target: what it runs.
        name: its name within the process.
        daemon: not looked at: a process ends with its main thread.
    """

    def __init__(
        self, sim: GatewaySim, *, target: Callable[[], Any], name: str = "thread", daemon: bool = False
    ) -> None:
        self._sim = sim
        self._target = target
        self._name = name
        self._ended = False

    def start(self) -> None:
        """Start it."""
        self._sim.start(self._name, self._live)

    def _live(self) -> None:
        try:
            self._target()
        finally:
            self._ended = True

    def is_alive(self) -> bool:
        """Whether it runs."""
        return not self._ended

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, or the time is over."""
        if not self._ended:
            self._sim.block(lambda: self._ended, timeout)
