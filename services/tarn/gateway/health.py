"""Health of the gateway: whether its store and its catalog answer it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Protocol

import anyio.to_thread

from tarn.core.object_store import ObjectStore
from tarn.core.table_catalog import TableCatalog
from tarn.ingest.health import DependencyMonitor, check_catalog, check_store, faults, write_to_store
from tarn.ingest.status import StatusRegistry

PROBE_KEY = "warehouse/_health/gateway"
DEEP_KEPT_S = 3.0
"""How long the result of a deep check is the answer to everybody, in seconds: anyone may ask for one."""


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


class Looks(Protocol):
    """Finds what is wrong, as `Health` does."""

    def faults(self, *, deep: bool = False) -> list[str]:
        """Why the gateway cannot work now; empty if it can. With `deep` it blocks."""


class OneDeepLook:
    """Deep checks for whoever asks, without a token: one at a time, its result for all. On the event loop.

    Args:
        looks: finds what is wrong.
        clock: monotonic time in seconds.
    """

    def __init__(self, looks: Looks, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._looks = looks
        self._clock = clock
        self._task: asyncio.Task[list[str]] | None = None
        self._until_s = float("-inf")

    async def faults(self) -> list[str]:
        """What the check under way finds, or the last one if it ended just now."""
        if self._task is None or (self._task.done() and self._clock() >= self._until_s):
            self._task = asyncio.ensure_future(self._look())
        return await asyncio.shield(self._task)

    async def _look(self) -> list[str]:
        try:
            return await anyio.to_thread.run_sync(lambda: self._looks.faults(deep=True))
        finally:
            self._until_s = self._clock() + DEEP_KEPT_S
