"""Writers as threads of this process: they share its memory, its bookkeepers and its status registry."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog

from tarn.core.control.model import Phase, WorkerId, WorkerSeen
from tarn.core.errors import TarnError
from tarn.core.spec import IngestorSpec
from tarn.ingest.commit_ring import CommitRing
from tarn.ingest.context import IngestContext, StoppedError
from tarn.ingest.drivers import Writer, cannot_start, has_ended, reader_of
from tarn.ingest.ingestor import Ingestor
from tarn.ingest.status import IngestorStatus, State, StatusRegistry

log = structlog.get_logger()

Sleeps = Callable[[threading.Event], Callable[[float], None]]
"""Makes a sleep function that raises StoppedError as soon as the event is set."""


class _View(StatusRegistry):
    """The status registry as one writer sees it; one that is left behind changes nothing there."""

    def __init__(self, inner: StatusRegistry) -> None:
        super().__init__()
        self._inner = inner
        self._using = threading.Lock()

    @property
    def commits(self) -> CommitRing:
        """Those of the registry."""
        return self._inner.commits

    @commits.setter
    def commits(self, _own: CommitRing) -> None:
        """Its own ones are not used."""

    def detach(self) -> None:
        """Go on with a registry that nobody reads; no change is under way in the former one afterwards."""
        with self._using:
            self._inner = StatusRegistry()

    def update(self, name: str, **changes: Any) -> IngestorStatus:
        with self._using:
            return self._inner.update(name, **changes)

    def add(self, name: str, **amounts: int) -> IngestorStatus:
        with self._using:
            return self._inner.add(name, **amounts)

    def observe(self, name: str, freshness_s: float) -> None:
        with self._using:
            self._inner.observe(name, freshness_s)

    def remove(self, name: str) -> None:
        with self._using:
            self._inner.remove(name)

    def advance(self, name: str, after: Mapping[int, int]) -> None:
        with self._using:
            self._inner.advance(name, after)

    def readers(self) -> dict[str, IngestorStatus]:
        return self._inner.readers()


@dataclass(slots=True, kw_only=True)
class _Writer(Writer):
    """A writer: the thread, and what is known of it."""

    thread: threading.Thread
    stop: threading.Event
    view: _View


class ThreadDriver:
    """A `Driver` of threads.

    A thread cannot be ended from outside: one that is killed is left alone and forgotten. If it wakes up
    later, it finds that the table is ahead of it, and ends.

    Args:
        context: dependencies of the ingestors.
        sleeps: makes the sleep function of a writer; by default it looks for a stop before and after each
            sleep.
        clock: monotonic time in seconds.
    """

    def __init__(
        self,
        context: IngestContext,
        *,
        sleeps: Sleeps | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._context = context
        self._sleeps = sleeps or self._sleep
        self._clock = clock
        self._lock = threading.Lock()
        self._writers: dict[WorkerId, _Writer] = {}
        self._changed: Callable[[], None] = lambda: None

    def on_change(self, call: Callable[[], None]) -> None:
        """See `Driver.on_change`."""
        self._changed = call

    def list(self) -> Sequence[WorkerSeen]:
        """See `Driver.list`."""
        readers = self._context.registry.readers()
        with self._lock:
            return [
                one.seen(id_, ready=one.reader in readers and readers[one.reader].state is State.RUNNING)
                for id_, one in self._writers.items()
            ]

    def start(self, id_: WorkerId, spec: IngestorSpec) -> None:
        """See `Driver.start`."""
        with self._lock:
            if id_ in self._writers:
                return
            stop, view, now_s = threading.Event(), _View(self._context.registry), self._clock()
            context = self._context
            one, reader = reader_of(id_, spec)
            own = replace(
                context,
                registry=view,
                stopping=lambda: stop.is_set() or context.stopping(),
                ports=replace(context.ports, sleep=self._sleeps(stop)),
                shared_ports=context.shared_ports or context.ports,
            )
            thread = threading.Thread(target=self._run, args=(id_, one, own), name=reader, daemon=True)
            try:
                thread.start()
            except RuntimeError as e:
                raise cannot_start(id_, e) from e
            # It looks for itself here when it ends, and waits for this lock.
            self._writers[id_] = _Writer(
                reader=reader, started_s=now_s, since_s=now_s, thread=thread, stop=stop, view=view
            )

    def drain(self, id_: WorkerId) -> None:
        """See `Driver.drain`."""
        with self._lock:
            one = self._writers.get(id_)
            if one is None or one.phase is not Phase.RUNNING:
                return
            one.phase, one.since_s = Phase.DRAINING, self._clock()
            one.stop.set()

    def kill(self, id_: WorkerId) -> None:
        """See `Driver.kill`."""
        with self._lock:
            one = self._writers.pop(id_, None)
        if one is not None:
            one.stop.set()
            one.view.detach()
            self._context.registry.remove(one.reader)
            log.warning("a thread that does not end is left behind", writer=str(id_))

    def is_process(self, id_: WorkerId) -> bool:
        """See `WriterDriver.is_process`."""
        return False

    def drop_next(self, id_: WorkerId, *, within_s: float) -> None:
        """See `WriterDriver.drop_next`: threads commit by the catalog of this process."""

    def crash(self, id_: WorkerId) -> str:
        """See `WriterDriver.crash`: the thread is left behind, and what it has not committed is forgotten."""
        with self._lock:
            one = self._writers.get(id_)
            if one is None or one.phase is not Phase.RUNNING:
                raise has_ended(id_)
            one.phase, one.since_s = Phase.ENDED, self._clock()
            one.reason, one.message = "Killed", "it was left behind in the middle of its batch, by hand"
        one.stop.set()
        one.view.detach()
        self._changed()
        return f"writer {one.reader} was left behind where its batch was written and not committed"

    def collect(self, id_: WorkerId) -> None:
        """See `Driver.collect`."""
        with self._lock:
            one = self._writers.get(id_)
            if one is None or one.phase is not Phase.ENDED:
                return
            del self._writers[id_]
        self._context.registry.remove(one.reader)

    def drain_all(self) -> None:
        """Ask every writer to end."""
        for one in self.list():
            self.drain(one.id)

    def join(self, timeout_s: float) -> bool:
        """Wait until all writers have ended; False if some have not in time."""
        until_s = self._clock() + timeout_s
        with self._lock:
            threads = [one.thread for one in self._writers.values()]
        for thread in threads:
            thread.join(max(0.0, until_s - self._clock()))
        return not any(thread.is_alive() for thread in threads)

    def _run(self, id_: WorkerId, spec: IngestorSpec, context: IngestContext) -> None:
        reason = message = ""
        try:
            Ingestor(spec, context, replica=id_.replica).run()
        except TarnError as e:
            reason, message = type(e).__name__.removesuffix("Error"), e.message
            log.warning("writer died", writer=str(id_), reason=reason, message=message)
        except BaseException as e:
            # Whatever it is, the writer is dead, and the controller must see that.
            reason, message = type(e).__name__, f"{e}; a defect of Tarn, please report it"
            log.error("writer failed", writer=str(id_), exc_info=e)
        with self._lock:
            one = self._writers.get(id_)
            left = one is not None and one.phase is Phase.ENDED
            if one is not None and not left and one.thread is threading.current_thread():
                if one.phase is Phase.RUNNING and not reason and not self._context.stopping():
                    reason, message = "Ended", "it ended although nobody asked it to"
                one.phase, one.since_s = Phase.ENDED, self._clock()
                one.reason, one.message = reason, message
        self._changed()

    def _sleep(self, stop: threading.Event) -> Callable[[float], None]:
        inner = self._context.ports.sleep

        def sleep(seconds: float) -> None:
            if stop.is_set():
                raise StoppedError
            inner(seconds)
            if stop.is_set():
                raise StoppedError

        return sleep
