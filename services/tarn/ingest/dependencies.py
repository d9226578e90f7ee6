"""Looks at what the service needs, every few seconds, with the service's own keys.

A look is a real request that needs a real answer: a frozen process with its port open and a revoked key show
here, also while no record comes.
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
    """Looks on a thread per dependency, so that a frozen one hides no other.

    Args:
        looks: by name; a look raises if the dependency is not usable.
        registry: where to tell.
        stop: ends the threads.
    """

    def __init__(
        self, looks: Mapping[str, Callable[[], None]], registry: StatusRegistry, stop: threading.Event
    ) -> None:
        self._looks = dict(looks)
        self._registry = registry
        self._stop = stop

    def start(self) -> None:
        """Starts looking."""
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
    """Reads a key with the service's own credentials; absent is fine."""

    def look() -> None:
        store.get(PROBE_KEY)

    return look


def write_to_store(store: ObjectStore) -> list[str]:
    """Writes a key where tables are, with the service's own credentials, and reads it back; the faults."""
    stamp = str(time.time_ns()).encode()
    try:
        store.put(PROBE_KEY, stamp)
        found = store.get(PROBE_KEY)
    except TarnError as e:
        return [f"store: {e.message}"]
    # A second replica may have written in between: any stamp not older than ours is an answer.
    if found is None or int(found.data) < int(stamp):
        return [f"store: {PROBE_KEY} was written and cannot be read back"]
    return []


def check_catalog(catalog: RestCatalog) -> Callable[[], None]:
    """Loads a table as the service's own principal; absent is fine."""

    def look() -> None:
        try:
            catalog.load(PROBE_TABLE)
        except NotFoundError:
            return

    return look


def check_kafka(bootstrap: str, login: Callable[[], Login]) -> Callable[[], None]:
    """Asks the cluster who it is, logged in as the service's own user with what its secret files say now."""

    def look() -> None:
        cluster_id(bootstrap, login())

    return look
