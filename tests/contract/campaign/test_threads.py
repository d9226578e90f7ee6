"""All threads of the shipped code that a simulation runs take turns; others would make it luck."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable

from tests.campaign.engine import Turned
from tests.campaign.scenario import Scenario
from tests.campaign.sources import ROOT
from tests.campaign.world import Sim

FOLDERS = (
    "services/tarn/core",
    "services/tarn/adapters",
    "services/tarn/ingest",
    "catalog/tarn_catalog/metadata",
    "catalog/tarn_catalog/operations",
    "catalog/tarn_catalog/state",
)
STARTS_OR_WAITS = re.compile(
    r"(?:threading\.)?\b(Thread|Timer|Condition|Event|Barrier|Semaphore|ThreadPoolExecutor|ProcessPoolExecutor)\("
)
KNOWN = {
    "services/tarn/ingest/bookkeeper.py": "its condition is a `Turned`",
    "services/tarn/ingest/pace.py": "has the bookkeeper's condition",
    "services/tarn/ingest/context.py": "commits run in a `SteppedExecutor`",
    "services/tarn/ingest/service.py": "not run: readers are actors",
    "services/tarn/core/control/report.py": "its `Condition` is a statement about an ingestor",
    "services/tarn/ingest/thread_driver.py": "not run: likewise",
    "services/tarn/ingest/process_driver.py": "not run: likewise",
    "services/tarn/ingest/worker.py": "not run: a reader in a process of its own",
    "services/tarn/ingest/topic_watch.py": "not run: compares patterns with topics for the controller",
    "services/tarn/ingest/health.py": "not run: looks at dependencies",
    "services/tarn/ingest/server.py": "not run: the HTTP server of the status",
    "services/tarn/ingest/strikes.py": "not run: faults by hand, of a page",
    "services/tarn/ingest/wiring.py": "writes run in `Writers`; not run: the pool of the scheduled audit",
    "catalog/tarn_catalog/operations/trail.py": "not run: catalogs of the simulation keep no trail",
    "catalog/tarn_catalog/operations/token_gate.py": "not run: vended keys",
    "catalog/tarn_catalog/operations/health.py": "not run: the check of the store",
    "catalog/tarn_catalog/operations/namespaces.py": "in POOLS",
    "catalog/tarn_catalog/operations/uuids.py": "in POOLS",
    "catalog/tarn_catalog/state/parallel.py": "in POOLS",
    "services/tarn/adapters/budget.py": "not run: bodies of HTTP requests; its lock is of an event loop",
}
"""Modules that start threads or wait for them, and why that does not escape the schedule."""


class Nothing(Scenario):
    """No fault, and none of the list."""

    def __init__(self) -> None:
        super().__init__()
        self.more: dict[str, Callable[[], None]] = {}

    def actors(self) -> dict[str, Callable[[], None]]:
        return self.more


Nothing.number = 98


def test_every_module_that_starts_threads_or_waits_is_known() -> None:
    found = {
        str(path.relative_to(ROOT))
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        if STARTS_OR_WAITS.search(path.read_text(encoding="utf-8"))
    }
    assert found == set(KNOWN), "say in KNOWN why the simulation still decides who runs, or make it so"


def test_a_thread_outside_the_schedule_is_a_problem() -> None:
    scenario = Nothing()
    sim = Sim(scenario, 1)

    def stray() -> None:
        thread = threading.Thread(target=sim.catalogs[0].store.get, args=("a",), name="stray")
        with raised_in_threads():
            thread.start()
            thread.join()

    scenario.more = {"parent": stray}
    sim.run()
    assert "thread stray runs outside the schedule" in sim.watch.problems


class raised_in_threads:  # noqa: N801 - a block
    """Within the block, what a thread raises is not printed."""

    def __enter__(self) -> None:
        self._former, threading.excepthook = threading.excepthook, lambda _: None

    def __exit__(self, *_: object) -> None:
        threading.excepthook = self._former


def test_a_condition_excludes_wakes_and_gives_up() -> None:
    """As `threading.Condition`, in turns: one holds it, who waits is woken, a limit ends a wait."""
    for seed in range(20):
        scenario = Nothing()
        sim = Sim(scenario, seed, replicas=3)
        condition = Turned(sim)
        inside, seen, done = [0], list[str](), [False]

        def hold(inside: list[int] = inside, sim: Sim = sim, condition: Turned = condition) -> None:
            for _ in range(5):
                with condition, condition:
                    inside[0] += 1
                    assert inside[0] == 1
                    sim.turn()
                    inside[0] -= 1

        def await_it(seen: list[str] = seen, done: list[bool] = done, condition: Turned = condition) -> None:
            with condition:
                while not done[0]:
                    condition.wait()
                seen.append("woken")
            with condition:
                assert not condition.wait_for(lambda: False, timeout=0.01)
                seen.append("gave up")

        def wake(done: list[bool] = done, sim: Sim = sim, condition: Turned = condition) -> None:
            for _ in range(sim.chance.randrange(30)):
                sim.turn()
            with condition:
                done[0] = True
                condition.notify_all()

        scenario.more = {"a": hold, "b": hold, "c": await_it, "d": wake}
        sim.run()
        assert seen == ["woken", "gave up"]
