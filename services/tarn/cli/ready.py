"""Readiness of services, as reported by another process."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable

WAIT_S_MAX = 1_800.0


class Ready:
    """Services become ready by name; at the end of the input, all of them are.

    Args:
        ready_names: names, one per line; read in a thread of its own.
        later: names of the services that are not ready at the start.
    """

    def __init__(self, ready_names: Iterable[str], *, later: Collection[str]) -> None:
        self._ready = {name: threading.Event() for name in later}
        threading.Thread(target=self._hear, args=(ready_names,), daemon=True).start()

    def wait_for(self, service: str) -> None:
        """Wait until the service is ready, at most `WAIT_S_MAX` seconds; its use then shows what is wrong."""
        event = self._ready.get(service)
        if event is not None:
            event.wait(WAIT_S_MAX)

    def _hear(self, ready_names: Iterable[str]) -> None:
        try:
            for line in ready_names:
                event = self._ready.get(line.strip())
                if event is not None:
                    event.set()
        finally:
            for event in self._ready.values():
                event.set()
