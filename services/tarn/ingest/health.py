"""Health of the service: checks of its dependencies, and what keeps it from working.

A check is a real request that needs a real response, so a frozen process with an open port and a revoked key
are noticed even while no records arrive.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

import structlog

from tarn.core.errors import NotFoundError, TarnError
from tarn.core.object_store import ObjectStore
from tarn.core.table_catalog import TableCatalog, TableName
from tarn.ingest.status import State, StatusRegistry

log = structlog.get_logger()

LOOK_EVERY_S = 5.0
LOOK_AGAIN_S = 1.0
PROBE_KEY = "warehouse/_health/ingest"
PROBE_TABLE = TableName(("ops",), "canary")

LOOK_AGE_S_MAX = 25.0
BEAT_AGE_S_MAX = 60.0
FOR_A_PERSON = ("NoSuchTopic", "NoMessages", "CannotStart", "CrashLoop")
PROGRESS_AGE_S_MAX = 120.0
HANGING_S_MIN = 300.0
CONTROLLER = "controller"
"""Name under which the controller shows its passes, as if it were a dependency."""


class DependencyMonitor:
    """Runs each check on a thread of its own, so that a frozen dependency does not hide another.

    Args:
        looks: dependency name to check; a check raises if the dependency is not usable.
        registry: status registry that receives the results.
        stop: ends the threads when set.
    """

    def __init__(
        self, looks: Mapping[str, Callable[[], None]], registry: StatusRegistry, stop: threading.Event
    ) -> None:
        self._looks = dict(looks)
        self._registry = registry
        self._stop = stop

    def start(self) -> None:
        """Start the threads."""
        for name, look in self._looks.items():
            threading.Thread(target=self._run, args=(name, look), name=f"watch-{name}", daemon=True).start()

    def _run(self, name: str, look: Callable[[], None]) -> None:
        before: bool | None = None
        while not self._stop.is_set():
            ok, message = True, "answers"
            try:
                look()
            except TarnError as e:
                ok, message = False, e.message
            except Exception as e:  # noqa: BLE001 - whatever a look raises means: not usable
                ok, message = False, f"{type(e).__name__}: {e}"
            self._registry.record_check(name, ok=ok, message=message, looked_s=time.monotonic())
            if ok is not before:
                (log.info if ok else log.warning)("dependency", name=name, usable=ok, message=message)
                before = ok
            self._stop.wait(LOOK_EVERY_S if ok else LOOK_AGAIN_S)


def check_store(store: ObjectStore) -> Callable[[], None]:
    """A check that reads a key with the service's own credentials; a missing key passes."""

    def look() -> None:
        store.get(PROBE_KEY)

    return look


def write_to_store(store: ObjectStore, key: str = PROBE_KEY) -> list[str]:
    """Write a key below the warehouse with the service's own credentials and read it back.

    Args:
        store: object store client of the service.
        key: the key, one per service.

    Returns:
        The faults; empty if the store works.
    """
    stamp = str(time.time_ns()).encode()
    try:
        store.put(key, stamp)
        found = store.get(key)
    except TarnError as e:
        return [f"store: {e.message}"]
    # Another replica may have written in between: any stamp at least as new as this one passes.
    if found is None or int(found.data) < int(stamp):
        return [f"store: {key} was written and cannot be read back"]
    return []


def check_catalog(catalog: TableCatalog) -> Callable[[], None]:
    """A check that loads a table as the service's own principal; a missing table passes."""

    def look() -> None:
        try:
            catalog.load(PROBE_TABLE)
        except NotFoundError:
            return

    return look


def faults(registry: StatusRegistry, *, now_s: float, deep: bool = False) -> list[str]:
    """Why the service cannot work now; empty if it can. The deep check also requires lag to shrink.

    A stopped or invalid ingestor, or one whose topic does not exist, appears on the status page and in the
    metrics only: it needs a person, and restarting the service would not help.

    Args:
        registry: status registry.
        now_s: monotonic time in seconds.
        deep: whether to require progress while there is lag.
    """
    found = []
    seen = registry.dependencies()
    if not seen:
        found.append("no dependency was looked at yet")
    for name, look in seen.items():
        if not look.ok:
            found.append(f"{name}: {look.message}")
        elif now_s - look.looked_s > LOOK_AGE_S_MAX:
            found.append(f"{name}: no answer for {now_s - look.looked_s:.0f} s")
    for name, status in registry.readers().items():
        if status.state is State.WAITING and status.reason in FOR_A_PERSON:
            continue
        if status.state in (State.STARTING, State.WAITING):
            found.append(f"ingestor {name}: {status.state.value}: {status.message or 'not ready yet'}")
        elif status.state is State.RUNNING and now_s - status.beat_s > BEAT_AGE_S_MAX:
            found.append(f"ingestor {name}: no sign of life for {now_s - status.beat_s:.0f} s")
        elif (
            deep
            and status.state is State.RUNNING
            and status.lag
            and now_s - status.progress_s > PROGRESS_AGE_S_MAX
        ):
            found.append(
                f"ingestor {name}: {status.lag} behind, no commit for {now_s - status.progress_s:.0f} s"
            )
    return found


def hanging(registry: StatusRegistry, *, now_s: float) -> list[str]:
    """What makes no progress although every dependency works: only a restart helps."""
    seen = registry.dependencies()
    controller = seen.pop(CONTROLLER, None)
    if not seen or any(not look.ok or now_s - look.looked_s > LOOK_AGE_S_MAX for look in seen.values()):
        return []
    found = []
    if controller is not None and now_s - controller.looked_s > HANGING_S_MIN:
        found.append(f"controller hangs: no pass for {now_s - controller.looked_s:.0f} s")
    return found + [
        f"ingestor {name} hangs: no sign of life for {now_s - status.beat_s:.0f} s"
        for name, status in registry.readers().items()
        if status.state is State.RUNNING and now_s - status.beat_s > HANGING_S_MIN
    ]
