"""Periodic checks of the service's dependencies, with the service's own credentials.

A check is a real request that needs a real response, so a frozen process with an open port and a revoked key
are noticed even while no records arrive.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

import structlog

from tarn.adapters.catalog_client import RestCatalog, TableName
from tarn.adapters.kafka import cluster_id
from tarn.adapters.kafka_login import Login
from tarn.adapters.store import ObjectStore
from tarn.core.errors import NotFoundError, TarnError
from tarn.ingest.status import StatusRegistry

log = structlog.get_logger()

LOOK_EVERY_S = 5.0
LOOK_AGAIN_S = 1.0
PROBE_KEY = "warehouse/_health/ingest"
PROBE_TABLE = TableName(("ops",), "canary")


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


def write_to_store(store: ObjectStore) -> list[str]:
    """Write a key below the warehouse with the service's own credentials and read it back.

    Returns:
        The faults; empty if the store works.
    """
    stamp = str(time.time_ns()).encode()
    try:
        store.put(PROBE_KEY, stamp)
        found = store.get(PROBE_KEY)
    except TarnError as e:
        return [f"store: {e.message}"]
    # Another replica may have written in between: any stamp at least as new as this one passes.
    if found is None or int(found.data) < int(stamp):
        return [f"store: {PROBE_KEY} was written and cannot be read back"]
    return []


def check_catalog(catalog: RestCatalog) -> Callable[[], None]:
    """A check that loads a table as the service's own principal; a missing table passes."""

    def look() -> None:
        try:
            catalog.load(PROBE_TABLE)
        except NotFoundError:
            return

    return look


def check_kafka(bootstrap: str, login: Callable[[], Login]) -> Callable[[], None]:
    """A check that asks for the cluster id, logged in with the current content of the secret files."""

    def look() -> None:
        cluster_id(bootstrap, login())

    return look
