"""Records what fsck finds, so that others can show it, and reads that; see ADR 45.

A run that is killed has written that it began, and nothing after it: it never looks like one that found
nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from tarn.core.errors import ConflictError, CorruptStateError, OutcomeUnknownError, TarnError
from tarn.core.fsck_record import (
    RECORD_BYTES_MAX,
    RESULT_KEY,
    RUN_KEY,
    SAYS_EVERY_S,
    FsckResult,
    FsckRun,
    RunState,
    bounded,
    recorded_findings,
    result_of,
    run_of,
    to_bytes,
)
from tarn.core.object_store import PART_BYTES, ObjectBody, Stored
from tarn.keeper.fsck import Report, Tell

ATTEMPTS_MAX = 5
JOIN_S = 70.0
"""How long the end waits for a request of the thread that says that the run goes on, in seconds."""
T = TypeVar("T")
BREAK_S = 2.0
"""The same for somebody who broke the run off."""
UNSEEN = "the status API and the page do not show it"


class Writes(Protocol):
    """Store operations of the recorder."""

    def get(self, key: str) -> Stored | None:
        """Read an object; see `ObjectStore.get`."""

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None) -> str:
        """Write an object; see `ObjectStore.put`."""


class Opens(Protocol):
    """Store operation of `read_record`."""

    def open(self, key: str, *, bytes_max: int = PART_BYTES) -> ObjectBody | None:
        """Read a small object; see `BulkStore.open`."""


class Recording:
    """One run that is recorded while it goes on; nothing here fails because the store refuses a record.

    Args:
        store: object store, with permission to write the records.
        run: id of the run.
        version: version of Tarn.
        now_ms: wall-clock time in milliseconds since the epoch.
        tell: called with messages for people.
        every_s: interval at which it says that it goes on, in seconds.
    """

    def __init__(
        self,
        store: Writes,
        *,
        run: str,
        version: str,
        now_ms: Callable[[], int],
        tell: Tell,
        every_s: float = SAYS_EVERY_S,
    ) -> None:
        self._store = store
        self._run = run
        self._version = version
        self._now_ms = now_ms
        self._out = tell
        self._every_s = every_s
        self._began_ms = now_ms()
        self._progress = ""
        self._over = threading.Event()
        # A thread says it, as a large table keeps the run busy for long; it is also the first to write.
        self._thread = threading.Thread(target=self._go_on, name="fsck-record", daemon=True)

    def start(self) -> None:
        """Begin to say that the run goes on."""
        self._thread.start()

    def tell(self, text: str) -> None:
        """Pass on a progress message, and remember it for the record."""
        self._progress = text
        self._out(text)

    def broken(self, state: RunState, reason: str = "") -> None:
        """Write that the run came to no end, and why; the result before it stays.

        If a request of the thread hangs, nothing more is written: its silence says it after a minute.
        """
        if self._stop(BREAK_S):
            self._say(state, reason)

    def done(self, report: Report) -> bool:
        """Write the result of a run that came to its end; returns whether it is known to be recorded."""
        self._stop(JOIN_S)
        try:
            written = self._put(self._result(report))
        except OutcomeUnknownError as error:
            # If the result is there after all, it is shown, and hides what is said of this run.
            self._out(f"it is not known whether this result was recorded: {error.message}; run fsck again")
            self._say(
                RunState.FAILED, f"it ended, and whether its result was recorded is unknown: {error.message}"
            )
            return False
        except TarnError as error:
            self._out(f"this result could not be recorded, so {UNSEEN}: {error.message}")
            self._say(RunState.FAILED, f"it ended, and its result could not be recorded: {error.message}")
            return False
        if not written:
            self._out(f"a run that began later has recorded its result; this one is older, so {UNSEEN}")
        self._say(RunState.DONE)
        return written

    def _result(self, report: Report) -> FsckResult:
        kinds, findings = recorded_findings(report.findings)
        return FsckResult(
            run=self._run,
            version=bounded(self._version),
            began_ms=self._began_ms,
            ended_ms=self._now_ms(),
            seconds=round(report.seconds, 2),
            namespaces=report.namespaces,
            tables=report.tables,
            snapshots=report.snapshots,
            files=report.files,
            bytes=report.bytes,
            orphans=report.orphans,
            orphan_bytes=report.orphan_bytes,
            damage=len(report.damage),
            notes=len(report.notes),
            kinds=kinds,
            findings=findings,
        )

    def _go_on(self) -> None:
        while True:
            self._say(RunState.RUNNING)
            if self._over.wait(self._every_s):
                return

    def _stop(self, wait_s: float) -> bool:
        """End the thread; returns whether it has ended in time."""
        self._over.set()
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    def _say(self, state: RunState, reason: str = "") -> None:
        """Write how the run is doing; what the store refuses is left out."""
        run = FsckRun(
            run=self._run,
            began_ms=self._began_ms,
            said_ms=self._now_ms(),
            state=state,
            progress=bounded(self._progress),
            reason=bounded(reason),
        )
        try:
            self._store.put(RUN_KEY, to_bytes(run))
        except TarnError:
            return  # the end of the run says whether its result could be written

    def _put(self, result: FsckResult) -> bool:
        """Write the result, unless a run that began later has written its own.

        Raises:
            TarnError: the store refuses it, or does not answer.
        """
        data = to_bytes(result)
        for attempt in range(1, ATTEMPTS_MAX + 1):
            before = self._store.get(RESULT_KEY)
            if before is not None and before.data == data:
                return True  # a request of this run whose answer was lost
            if before is not None and self._later(before):
                return False
            try:
                if before is None:
                    self._store.put(RESULT_KEY, data, if_absent=True)
                else:
                    self._store.put(RESULT_KEY, data, if_match=before.etag)
            except (ConflictError, OutcomeUnknownError):
                if attempt == ATTEMPTS_MAX:
                    raise
            else:
                return True
        raise AssertionError("unreachable")

    def _later(self, before: Stored) -> bool:
        """Whether a run that began later wrote this, and not by a clock that has been set back since."""
        try:
            other = result_of(before.data)
        except TarnError:
            return False
        return self._began_ms < other.began_ms <= self._now_ms()


@contextmanager
def recorded(run: Recording) -> Iterator[Recording]:
    """Context manager of a run that calls `done` with its report; any other end is recorded too."""
    run.start()
    try:
        yield run
    except TarnError as error:
        run.broken(RunState.FAILED, error.message)
        raise
    except Exception as error:
        run.broken(RunState.FAILED, f"{type(error).__name__}: {error}; a defect of Tarn")
        raise
    except BaseException:
        run.broken(RunState.INTERRUPTED)
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class FsckRecord:
    """What the store says about fsck.

    Attributes:
        result: the last result; None if there is none, or if it cannot be used.
        run: the last run; likewise.
        faults: what of it cannot be used, and what to do.
    """

    result: FsckResult | None = None
    run: FsckRun | None = None
    faults: tuple[str, ...] = ()


def read_record(store: Opens) -> FsckRecord:
    """What the store says about fsck; a record that cannot be used hides no other.

    Raises:
        StoreUnavailableError: the store does not respond.
        StoreDeniedError: the credentials lack permission.
    """
    faults: list[str] = []

    def read(key: str, parse: Callable[[bytes | None], T]) -> T | None:
        body = store.open(key, bytes_max=RECORD_BYTES_MAX)
        if body is None:
            return None
        try:
            return parse(body.data)
        except CorruptStateError as error:
            faults.append(error.message)
            return None

    result, run = read(RESULT_KEY, result_of), read(RUN_KEY, run_of)
    return FsckRecord(result=result, run=run, faults=tuple(faults))
