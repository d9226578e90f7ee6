"""Health of the gateway: whether its store and its catalog answer it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tarn.core.object_store import ObjectStore
from tarn.core.table_catalog import TableCatalog
from tarn.ingest.health import DependencyMonitor, check_catalog, check_store, faults, write_to_store
from tarn.ingest.status import StatusRegistry

PROBE_KEY = "warehouse/_health/gateway"


class Health:
    """Asks the dependencies every few seconds, on threads of their own, once it is started.

    Args:
        store: object store client with short timeouts.
        catalog: catalog client with short timeouts.
        stop: ends the threads when set.
        clock: monotonic time in seconds.
    """

    def __init__(
        self,
        store: ObjectStore,
        catalog: TableCatalog,
        stop: threading.Event,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._clock = clock
        self._registry = StatusRegistry()
        looks = {"store": check_store(store), "catalog": check_catalog(catalog)}
        self._monitor = DependencyMonitor(looks, self._registry, stop)

    def start(self) -> None:
        """Begin to ask."""
        self._monitor.start()

    def faults(self, *, deep: bool = False) -> list[str]:
        """Why the gateway cannot work now; empty if it can.

        Args:
            deep: write to the store as well; this blocks.
        """
        found = faults(self._registry, now_s=self._clock())
        return found or (write_to_store(self._store, PROBE_KEY) if deep else [])
