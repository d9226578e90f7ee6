"""Interface of what runs writers: threads, processes, or containers elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tarn.core.control.model import WorkerId, WorkerSeen
from tarn.core.spec import IngestorSpec


class Driver(Protocol):
    """Runs writers. No call waits for a writer; every call may be repeated.

    A driver may outlive the controller, as one of containers does: then `list` has writers of an earlier one.
    """

    def list(self) -> Sequence[WorkerSeen]:
        """Return every writer that was started and not collected.

        Raises:
            UnavailableError: the driver cannot say.
        """

    def start(self, id_: WorkerId, spec: IngestorSpec) -> None:
        """Start a writer; nothing happens if there is one of this id.

        Args:
            id_: the writer.
            spec: the spec of its ingestor; it reads `id_.topic` of it.

        Raises:
            UnavailableError: it cannot be started now.
        """

    def drain(self, id_: WorkerId) -> None:
        """Ask a writer to finish its commit and end; nothing happens if there is none."""

    def kill(self, id_: WorkerId) -> None:
        """End a writer at once, and collect it."""

    def collect(self, id_: WorkerId) -> None:
        """Forget a writer that has ended; nothing happens if it has not."""

    def on_change(self, call: Callable[[], None]) -> None:
        """Have this called, from any thread, when the phase of a writer changes."""
