"""Deterministic interleaving of actors on one store: one store operation at a time, in a seeded order."""

from __future__ import annotations

import random
import threading
from bisect import insort
from collections.abc import Callable

from tarn_catalog.testing.faulty_store import ANSWERS, Crash, Fault, Op

STUCK_S = 30.0
POOLS = tuple(
    f"tarn_catalog.{module}.ThreadPoolExecutor"
    for module in ("operations.uuids", "operations.namespaces", "state.parallel")
)
"""Names under which the catalog starts threads of its own; they would escape the schedule."""


class Alone:
    """Executor that runs everything in the calling thread; takes the place of `POOLS`."""

    def __init__(self, **_: object) -> None:
        pass

    def __enter__(self) -> Alone:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    map = staticmethod(map)


class Schedule:
    """Threads that take turns at every store operation and every wait; the seed decides whose turn it is.

    Args:
        seed: seed of the RNG, the only source of randomness.
        fault_share: fraction of operations that fail.
        stuck_s: seconds without any turn after which the actors count as stuck.
    """

    def __init__(self, seed: int, *, fault_share: float, stuck_s: float = STUCK_S) -> None:
        self._stuck_s = stuck_s
        self.chance = random.Random(seed)
        self.steps = 0
        self.faults = 0
        self.crashes = 0
        self.problem: BaseException | None = None
        self._fault_share = fault_share
        self._seconds = 0.0
        self._who = threading.local()
        self._lock = threading.Lock()
        self._ready: dict[str, threading.Lock] = {}
        # Sorted.
        self._waiting: list[str] = []
        self._crash_at: dict[str, tuple[int, Fault]] = {}
        self._taken: dict[str, int] = {}

    def run(self, actors: dict[str, Callable[[], None]], *, crash_at: dict[str, tuple[int, Fault]]) -> None:
        """Run all actors to their end or crash. Raises any other exception that one of them raised."""
        self._ready = {name: threading.Lock() for name in actors}
        for lock in self._ready.values():
            lock.acquire()
        self._crash_at, self._taken = crash_at, dict.fromkeys(actors, 0)
        threads = [threading.Thread(target=self._live, args=pair, daemon=True) for pair in actors.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=self._stuck_s)
            assert not thread.is_alive(), "an actor is stuck"
        if self.problem is not None:
            raise self.problem

    def _live(self, name: str, act: Callable[[], None]) -> None:
        self._who.name = name
        try:
            self._turn(name)
            act()
        except Crash:
            self.crashes += 1
        except BaseException as error:  # noqa: BLE001 (raised by the thread that started it all)
            self.problem = self.problem or error
        finally:
            with self._lock:
                del self._ready[name]
                self._next(None)

    def _turn(self, name: str) -> None:
        mine = self._ready[name]
        with self._lock:
            insort(self._waiting, name)
            if self._next(name):
                return
        assert mine.acquire(timeout=self._stuck_s), "its turn never came"

    def _next(self, asking: str | None) -> bool:
        """Let one actor continue once all are waiting; whether it is the one that asks."""
        if not self._ready or len(self._waiting) < len(self._ready):
            return False
        able = self._able()
        self.steps += 1
        # As `chance.choice` draws, without its two calls: this is done a few hundred times in each run.
        count = len(able)
        bits = count.bit_length()
        at = self.chance.getrandbits(bits)
        while at >= count:
            at = self.chance.getrandbits(bits)
        name = able[at]
        self._waiting.remove(name)
        if name == asking:
            return True
        self._ready[name].release()
        return False

    def _able(self) -> list[str]:
        """Who can go on, sorted: all."""
        return self._waiting

    def plan(self, op: Op) -> Fault | None:
        """Fault plan of a `FaultyStore`: waits for the actor's turn, then returns the fault."""
        name = getattr(self._who, "name", None)
        if name is None:
            return None
        self._turn(name)
        self._taken[name] += 1
        at, how = self._crash_at.get(name, (0, Fault.CRASH))
        if self._taken[name] == at:
            return how
        if op.kind == "put" and "/warehouse/" not in op.key and self.chance.random() < self._fault_share:
            self.faults += 1
            return self.chance.choice(ANSWERS)
        return None

    def clock(self) -> float:
        """Simulated seconds, which pass only while an actor waits."""
        return self._seconds

    def sleep(self, wait_s: float) -> None:
        """Wait while the others run."""
        self._seconds += wait_s
        name = getattr(self._who, "name", None)
        if name is not None:
            self._turn(name)
