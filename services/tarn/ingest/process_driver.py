"""Writers as processes of their own, with limits: `python -m tarn.ingest.worker`, spoken to by its pipes.

stdin    one line of JSON (what to run); then `{"dropNext": seconds}`, where faults by hand are allowed, any
         number of times. Any other line, or the end, means drain: the controller asks for it, or is gone
stdout   lines of JSON: each second the reader's last commits and its status; an answer that it lost on
         purpose; before a failure, what it is
stderr   the log
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import structlog

from tarn.core.control.model import Phase, WorkerId, WorkerSeen
from tarn.core.spec import IngestorSpec
from tarn.ingest.commit_ring import CommitKind, CommitOutcome, CommitSeen
from tarn.ingest.drivers import Writer, cannot_start, has_ended, reader_of
from tarn.ingest.figures import TableFigures
from tarn.ingest.lost_replies import Traps, lost_of
from tarn.ingest.status import Histogram, IngestorStatus, State, StatusRegistry

log = structlog.get_logger()

WATCH_S = 0.5
"""How often the memory of the processes is looked at."""
LINE_BYTES_MAX = 4 * 1024 * 1024


@dataclass(slots=True, kw_only=True)
class _Writer(Writer):
    """A process, and what is known of it."""

    process: subprocess.Popen[bytes]
    memory_bytes: int | None
    ready: bool = False


class ProcessDriver:
    """A `WriterDriver` of processes, which end when this one does.

    Args:
        registry: receives the status of the readers.
        command: what is run.
        clock: monotonic time in seconds.
        memory_of: resident bytes of a process by its id; None if it is gone.
        traps: what an answer is reported to that a process lost on purpose.
    """

    def __init__(
        self,
        registry: StatusRegistry,
        *,
        command: Sequence[str] = (sys.executable, "-m", "tarn.ingest.worker"),
        clock: Callable[[], float] = time.monotonic,
        memory_of: Callable[[int], int | None] | None = None,
        traps: Traps | None = None,
    ) -> None:
        self._registry = registry
        self._command = tuple(command)
        self._clock = clock
        self._traps = traps or Traps()
        self._memory_of = memory_of or resident_bytes
        self._lock = threading.Lock()
        self._writers: dict[WorkerId, _Writer] = {}
        self._changed: Callable[[], None] = lambda: None
        self._watching = False

    def on_change(self, call: Callable[[], None]) -> None:
        """See `Driver.on_change`."""
        self._changed = call

    def list(self) -> Sequence[WorkerSeen]:
        """See `Driver.list`."""
        with self._lock:
            return [one.seen(id_, ready=one.ready) for id_, one in self._writers.items()]

    def start(self, id_: WorkerId, spec: IngestorSpec) -> None:
        """See `Driver.start`."""
        with self._lock:
            if id_ in self._writers:
                return
            resources = spec.spec.worker_template.resources
            order = {
                "spec": spec.model_dump(mode="json", by_alias=True, exclude_unset=True),
                "topic": id_.topic,
                "replica": id_.replica,
                "memoryBytes": resources.memory_bytes,
                "threads": resources.threads,
            }
            try:
                if not self._watching:
                    threading.Thread(target=self._watch, name="writers-memory", daemon=True).start()
                    self._watching = True
                process = subprocess.Popen(  # noqa: S603 - the command is Tarn's own
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env={**os.environ, **_environment(resources.threads)},
                )
            except (OSError, RuntimeError) as e:
                raise cannot_start(id_, e) from e
            one, reader = reader_of(id_, spec)
            try:
                threading.Thread(
                    target=self._follow, args=(id_, process, order), name=f"writer-{reader}", daemon=True
                ).start()
            except RuntimeError as e:
                # Nobody would say what it is to run, or notice that it ends.
                with process:
                    process.kill()
                raise cannot_start(id_, e) from e
            now_s = self._clock()
            self._writers[id_] = _Writer(
                reader=reader,
                started_s=now_s,
                since_s=now_s,
                process=process,
                memory_bytes=resources.memory_bytes,
            )
            # A process that hangs before it says anything must not be unknown to the health check.
            self._registry.put(
                reader,
                IngestorStatus(
                    table=str(spec.spec.table),
                    topic=id_.topic,
                    stream=one.stream,
                    replica_of=one.name if spec.spec.replicas > 1 else "",
                    replicas=spec.spec.replicas,
                ),
            )

    def drain(self, id_: WorkerId) -> None:
        """See `Driver.drain`."""
        with self._lock:
            one = self._writers.get(id_)
            if one is None or one.phase is not Phase.RUNNING:
                return
            one.phase, one.since_s = Phase.DRAINING, self._clock()
        # A process that hangs before it has read its order would hold up whoever closes the pipe.
        threading.Thread(target=_close, args=(one.process,), name=f"drain-{one.reader}", daemon=True).start()

    def kill(self, id_: WorkerId) -> None:
        """See `Driver.kill`."""
        with self._lock:
            one = self._writers.pop(id_, None)
        if one is not None:
            one.process.kill()
            self._registry.remove(one.reader)

    def is_process(self, id_: WorkerId) -> bool:
        """See `WriterDriver.is_process`."""
        with self._lock:
            return id_ in self._writers

    def crash(self, id_: WorkerId) -> str:
        """See `WriterDriver.crash`: SIGKILL."""
        with self._lock:
            one = self._writers.get(id_)
            if one is None or one.phase is not Phase.RUNNING:
                raise has_ended(id_)
            one.process.kill()
        return f"writer {one.reader}, process {one.process.pid}, was ended by SIGKILL"

    def drop_next(self, id_: WorkerId, *, within_s: float) -> None:
        """See `WriterDriver.drop_next`."""
        with self._lock:
            one = self._writers.get(id_)
        if one is None or one.phase is not Phase.RUNNING or one.process.stdin is None:
            return
        # A process that is just ending loses no answer.
        with suppress(OSError, ValueError):
            one.process.stdin.write(orjson.dumps({"dropNext": within_s}) + b"\n")
            one.process.stdin.flush()

    def collect(self, id_: WorkerId) -> None:
        """See `Driver.collect`."""
        with self._lock:
            one = self._writers.get(id_)
            if one is None or one.phase is not Phase.ENDED:
                return
            del self._writers[id_]
        self._registry.remove(one.reader)

    def drain_all(self) -> None:
        """See `WriterDriver.drain_all`."""
        for one in self.list():
            self.drain(one.id)

    def join(self, timeout_s: float) -> bool:
        """See `WriterDriver.join`; what has not ended in time is killed, as it would outlive this process."""
        until_s = self._clock() + timeout_s
        with self._lock:
            writers = list(self._writers.values())
        ended = True
        for one in writers:
            try:
                one.process.wait(max(0.0, until_s - self._clock()))
            except subprocess.TimeoutExpired:
                one.process.kill()
                ended = False
        return ended

    def _follow(self, id_: WorkerId, process: subprocess.Popen[bytes], order: Mapping[str, Any]) -> None:
        """Say what to run, take the status lines, and see how the process ends."""
        assert process.stdin is not None
        assert process.stdout is not None
        failure: tuple[str, str] | None = None
        # It may have ended already, or be drained.
        with suppress(OSError, ValueError):
            process.stdin.write(orjson.dumps(order) + b"\n")
            process.stdin.flush()
        while line := process.stdout.readline(LINE_BYTES_MAX):
            failure = self._take(id_, process, line) or failure
        process.stdout.close()
        code = process.wait()
        _close(process)
        with self._lock:
            one = self._writers.get(id_)
            if one is None or one.process is not process:
                return
            asked = one.phase is Phase.DRAINING
            one.phase, one.since_s, one.ready = Phase.ENDED, self._clock(), False
            if not one.reason and not (asked and code == 0):
                one.reason, one.message = failure or _how(code)
            if one.reason and not asked:
                log.warning("writer died", writer=str(id_), reason=one.reason, message=one.message)
        self._changed()

    def _take(self, id_: WorkerId, process: subprocess.Popen[bytes], line: bytes) -> tuple[str, str] | None:
        """Take one line of a process; returns what it says of its failure."""
        try:
            value = orjson.loads(line)
            if "failure" in value:
                return str(value["failure"]), str(value["message"])
            if "lost" in value:
                self._traps.tell(lost_of(value["lost"]))
                return None
            if "seen" in value:
                for one in value["seen"]:
                    self._registry.commits.add(commit_of(one))
                return None
            status = status_of(value)
        except (ValueError, KeyError, TypeError) as e:
            log.warning("a writer's status is unreadable", writer=str(id_), error=f"{e}")
            return None
        with self._lock:
            one = self._writers.get(id_)
            if one is None or one.process is not process:
                return None
            before, one.ready = one.ready, status.state is State.RUNNING
            self._registry.put(one.reader, status)
        if before != one.ready:
            self._changed()
        return None

    def _watch(self) -> None:
        """Kill processes that take more memory than their spec allows."""
        while True:
            time.sleep(WATCH_S)
            with self._lock:
                limited = [
                    (i, w) for i, w in self._writers.items() if w.memory_bytes and w.phase is not Phase.ENDED
                ]
            for id_, one in limited:
                taken = self._memory_of(one.process.pid)
                if taken is not None and one.memory_bytes is not None and taken > one.memory_bytes:
                    one.reason = "OutOfMemory"
                    one.message = (
                        f"it took {taken >> 20} MiB, and workerTemplate.resources.memory allows "
                        f"{one.memory_bytes >> 20} MiB; raise that, or lower batching.maxBytes"
                    )
                    log.warning("writer takes too much memory", writer=str(id_), message=one.message)
                    one.process.kill()


def status_of(value: Mapping[str, Any]) -> IngestorStatus:
    """A status from the JSON of `orjson.dumps(status)`.

    Raises:
        ValueError, KeyError, TypeError: it is none.
    """
    fields = dict(value)
    for name in ("committed", "ends"):
        fields[name] = {int(p): int(o) for p, o in fields[name].items()}
    figures = fields["figures"]
    fields["figures"] = None if figures is None else TableFigures(**figures)
    freshness = fields["freshness"]
    fields["freshness"] = Histogram(counts=tuple(freshness["counts"]), sum_s=float(freshness["sum_s"]))
    return IngestorStatus(**{**fields, "state": State(fields["state"]), "held_by": tuple(fields["held_by"])})


def commit_of(value: Mapping[str, Any]) -> CommitSeen:
    """A commit from the JSON of `orjson.dumps(commit)`.

    Raises:
        ValueError, KeyError, TypeError: it is none.
    """
    kind, outcome = CommitKind(value["kind"]), CommitOutcome(value["outcome"])
    return CommitSeen(**{**value, "kind": kind, "outcome": outcome})


def resident_bytes(pid: int) -> int | None:
    """Resident memory of a process in bytes; None if it is gone, or this system does not say."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def _environment(threads: int | None) -> dict[str, str]:
    """Variables that limit the threads of libraries, which read them when they are loaded."""
    if threads is None:
        return {}
    return dict.fromkeys(("OMP_NUM_THREADS", "TOKIO_WORKER_THREADS", "ARROW_IO_THREADS"), str(threads))


def _close(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    # What was not written yet is for a process that has ended.
    with suppress(OSError):
        process.stdin.close()


def _how(code: int) -> tuple[str, str]:
    if code == 0:
        return "Ended", "it ended although nobody asked it to"
    if code < 0:
        return "Killed", f"signal {-code} ended it; 9 may be the system's, when memory is short"
    return "Exit", f"it ended with code {code}; the log of ingest says more"
