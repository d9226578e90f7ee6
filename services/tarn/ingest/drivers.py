"""Which driver runs a writer: a process of its own where the spec limits its resources, else a thread.

Also what both drivers know of a writer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tarn.core.control.driver import Driver
from tarn.core.control.model import Phase, WorkerId, WorkerSeen
from tarn.core.errors import UnavailableError
from tarn.core.spec import IngestorSpec
from tarn.ingest.replicas import Replica


class WriterDriver(Driver, Protocol):
    """A driver whose writers end with this service."""

    def drain_all(self) -> None:
        """Ask every writer to end."""

    def join(self, timeout_s: float) -> bool:
        """Wait until all writers have ended; False if some have not in time."""

    def is_process(self, id_: WorkerId) -> bool:
        """Whether the writer is a process of its own."""

    def crash(self, id_: WorkerId) -> str:
        """End a writer as a crash does, on purpose; returns what was done, for people.

        Unlike one that is killed by the controller, it counts as dead, with a reason.

        Raises:
            UnavailableError: it has ended meanwhile.
        """

    def drop_next(self, id_: WorkerId, *, within_s: float) -> None:
        """Have a writer that is a process lose the answer to its next commit (`Traps.drop_next`)."""


@dataclass(slots=True, kw_only=True)
class Writer:
    """What a driver knows of a writer, however it runs.

    Attributes:
        reader: name of its reader in the status registry.
        started_s: when it was started, in seconds of the driver's clock.
        since_s: when its phase began, likewise.
        phase: its phase.
        reason: why it ended, in one word; empty if nothing went wrong.
        message: the same, for people.
    """

    reader: str
    started_s: float
    since_s: float
    phase: Phase = Phase.RUNNING
    reason: str = ""
    message: str = ""

    def seen(self, id_: WorkerId, *, ready: bool) -> WorkerSeen:
        """The same for the controller, under its id."""
        return WorkerSeen(
            id=id_,
            phase=self.phase,
            since_s=self.since_s,
            started_s=self.started_s,
            ready=ready,
            reason=self.reason,
            message=self.message,
        )


def reader_of(id_: WorkerId, spec: IngestorSpec) -> tuple[IngestorSpec, str]:
    """The spec of a writer's own topic, and the name of its reader."""
    (own,) = spec.per_topic([id_.topic])
    return own, Replica(index=id_.replica, count=spec.spec.replicas).name(own.name)


def cannot_start(id_: WorkerId, error: Exception) -> UnavailableError:
    """Why a writer cannot be started now; it is tried again."""
    return UnavailableError(
        f"writer {id_} cannot be started: {error}; there may be too many threads, or no memory left (raise "
        "TARN_MEM_INGEST, or have fewer readers); it is tried again"
    )


class ByResources:
    """A `WriterDriver` over two others.

    Args:
        shared: runs writers without limits.
        limited: runs writers with limits, or all of them.
        all_limited: whether it runs all.
    """

    def __init__(self, shared: WriterDriver, limited: WriterDriver, *, all_limited: bool = False) -> None:
        self._shared = shared
        self._limited = limited
        self._all_limited = all_limited

    def list(self) -> Sequence[WorkerSeen]:
        """See `Driver.list`."""
        return [*self._shared.list(), *self._limited.list()]

    def start(self, id_: WorkerId, spec: IngestorSpec) -> None:
        """See `Driver.start`."""
        body = spec.spec
        # Whether a stream has stopped is for all of its readers to say (`IngestorBody`).
        together = body.event_time is not None and body.replicas > 1
        limited = body.worker_template.resources.limited or (self._all_limited and not together)
        (self._limited if limited else self._shared).start(id_, spec)

    def drain(self, id_: WorkerId) -> None:
        """See `Driver.drain`."""
        self._shared.drain(id_)
        self._limited.drain(id_)

    def kill(self, id_: WorkerId) -> None:
        """See `Driver.kill`."""
        self._shared.kill(id_)
        self._limited.kill(id_)

    def collect(self, id_: WorkerId) -> None:
        """See `Driver.collect`."""
        self._shared.collect(id_)
        self._limited.collect(id_)

    def on_change(self, call: Callable[[], None]) -> None:
        """See `Driver.on_change`."""
        self._shared.on_change(call)
        self._limited.on_change(call)

    def drain_all(self) -> None:
        """See `WriterDriver.drain_all`."""
        self._shared.drain_all()
        self._limited.drain_all()

    def join(self, timeout_s: float) -> bool:
        """See `WriterDriver.join`."""
        until_s = time.monotonic() + timeout_s
        ended = self._shared.join(timeout_s)
        return self._limited.join(max(0.0, until_s - time.monotonic())) and ended

    def is_process(self, id_: WorkerId) -> bool:
        """See `WriterDriver.is_process`."""
        return self._limited.is_process(id_)

    def crash(self, id_: WorkerId) -> str:
        """See `WriterDriver.crash`."""
        return (self._limited if self._limited.is_process(id_) else self._shared).crash(id_)

    def drop_next(self, id_: WorkerId, *, within_s: float) -> None:
        """See `WriterDriver.drop_next`."""
        self._limited.drop_next(id_, within_s=within_s)


def has_ended(id_: WorkerId) -> UnavailableError:
    """A writer that is to be struck is gone."""
    return UnavailableError(f"writer {id_} has ended meanwhile; strike again")
