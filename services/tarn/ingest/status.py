"""Status of the service for people, probes and metrics. Written by threads, read by the HTTP server."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import reduce
from typing import Any

import structlog

from tarn.core.errors import TarnError, UnavailableError
from tarn.core.watermark import as_text
from tarn.ingest.commit_ring import CommitRing
from tarn.ingest.figures import TableFigures, newest

log = structlog.get_logger()


class State(StrEnum):
    """State of an ingestor."""

    STARTING = "Starting"
    RUNNING = "Running"
    WAITING = "Waiting"
    STOPPED = "Stopped"
    INVALID = "Invalid"
    FINISHED = "Finished"


FRESHNESS_S = (0.1, 0.25, 0.5, 1.0, 1.5, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)
"""Upper bounds of the buckets of a histogram, in seconds; the last bucket has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Durations counted by bucket.

    Attributes:
        counts: number of durations per bucket of `FRESHNESS_S`, and beyond the last bound.
        sum_s: sum of all durations, in seconds.
    """

    counts: tuple[int, ...] = (0,) * (len(FRESHNESS_S) + 1)
    sum_s: float = 0.0

    def joined(self, other: Histogram) -> Histogram:
        """The durations of both."""
        counts = tuple(one + more for one, more in zip(self.counts, other.counts, strict=True))
        return Histogram(counts=counts, sum_s=self.sum_s + other.sum_s)

    def plus(self, seconds: float) -> Histogram:
        """The histogram with one more duration."""
        at = bisect_left(FRESHNESS_S, seconds)
        counts = (*self.counts[:at], self.counts[at] + 1, *self.counts[at + 1 :])
        return Histogram(counts=counts, sum_s=self.sum_s + seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestorStatus:
    """Status of one ingestor.

    Attributes:
        state: lifecycle state.
        reason: short code for the state, as in the error tree; empty while running.
        message: what happened and what to do, for people.
        since_ms: wall-clock time of the last change of state or reason, in milliseconds since the epoch.
        beat_s: monotonic time of the last iteration of its loop, in seconds.
        progress_s: monotonic time of the last commit, or of the last check that found nothing to commit.
        table: name of the table that it writes.
        topic: name of the topic that it reads.
        stream: name under which the table keeps its offsets.
        measured: whether `committed` and `ends` were refreshed since the loop last began or waited.
        committed: partition to next offset, as in the table.
        ends: partition to log end offset, as last read.
        rows: rows committed since the process started.
        bad_records: bad records since the process started.
        commits: batches committed since the process started.
        snapshots: snapshots with these batches; one that holds batches of several readers counts for one.
        merges: commits that merged small files since the process started.
        bytes: bytes of the data files committed since the process started, without merged ones.
        conflicts: commit requests that another writer's commit refused since the process started.
        unknowns: commit requests without a usable answer since the process started.
        resolved: those of them whose outcome was found out since.
        retries: commit requests that were sent because an earlier one of the same commit had not succeeded.
        events: events about complete partitions that were sent since the process started.
        events_failed: tries to send such events that failed.
        retired_rows: rows that were dropped by age since the process started.
        retired_files: data files that were dropped with them.
        freshness: age of the oldest record of each batch when its commit was done.
        commit_ms: duration of the last commit in milliseconds, including its files.
        commit_at_ms: wall-clock time of the last commit, in milliseconds since the epoch.
        freshness_s: age of the oldest record of the last batch, in seconds; None while unknown.
        commit_snapshot_id: snapshot that holds that commit; None if it is not known.
        snapshot_id: the table's current snapshot, as last seen.
        figures: the table after its last commit of any kind, in numbers; None before it.
        figures_at_ms: wall-clock time of that commit, in milliseconds since the epoch.
        event_column: column of the event time; empty if the spec names none.
        watermark_us: the watermark, in microseconds since the epoch; None while unknown.
        complete_us: the same, floored to the table's partitions; None if they are not by that time.
        replica_of: name of the ingestor, if several readers share its topic; empty for the only one.
        replicas: number of these readers.
        ready: number of them that run.
        missing: number of them that are not there: their writers died, or were not started yet.
    """

    state: State = State.STARTING
    reason: str = ""
    message: str = ""
    since_ms: int = 0
    beat_s: float = 0.0
    progress_s: float = 0.0
    table: str = ""
    topic: str = ""
    stream: str = ""
    measured: bool = False
    committed: Mapping[int, int] = field(default_factory=dict)
    ends: Mapping[int, int] = field(default_factory=dict)
    rows: int = 0
    bad_records: int = 0
    commits: int = 0
    snapshots: int = 0
    merges: int = 0
    bytes: int = 0
    conflicts: int = 0
    unknowns: int = 0
    resolved: int = 0
    retries: int = 0
    retired_rows: int = 0
    retired_files: int = 0
    events: int = 0
    events_failed: int = 0
    freshness: Histogram = field(default_factory=Histogram)
    commit_ms: float = 0.0
    commit_at_ms: int = 0
    freshness_s: float | None = None
    commit_snapshot_id: int | None = None
    snapshot_id: int | None = None
    figures: TableFigures | None = None
    figures_at_ms: int | None = None
    event_column: str = ""
    watermark_us: int | None = None
    complete_us: int | None = None
    held_by: tuple[str, ...] = ()
    replica_of: str = ""
    replicas: int = 1
    ready: int = 0
    missing: int = 0

    @property
    def lag(self) -> int | None:
        """Offsets from the table to the log end, summed over all partitions; None while unknown."""
        if self.missing or not self.measured or set(self.ends) - set(self.committed):
            return None
        return sum(max(0, end - self.committed[p]) for p, end in self.ends.items())

    @property
    def lag_reason(self) -> str:
        """Why the lag is unknown; empty if it is known."""
        if self.lag is not None:
            return ""
        if self.missing:
            return _away(self.missing, self.replicas)
        return f"the table or the topic could not be asked: {self.message or 'not yet'}"

    def to_json(self) -> dict[str, Any]:
        """JSON of the status page."""
        return {
            "state": self.state.value,
            "conditions": [
                {
                    "type": "Ready",
                    "status": self.state is State.RUNNING,
                    "reason": self.reason or self.state.value,
                    "message": self.message,
                    "sinceMs": self.since_ms,
                }
            ],
            "replicas": self.replicas,
            "readyReplicas": self.ready,
            "table": self.table,
            "topic": self.topic,
            "stream": self.stream,
            "partitions": sorted(self.committed),
            "committedOffsets": {str(p): o for p, o in sorted(self.committed.items())},
            "endOffsets": {str(p): o for p, o in sorted(self.ends.items())},
            "lag": self.lag,
            "lagReason": self.lag_reason,
            "rows": self.rows,
            "badRecords": self.bad_records,
            "commits": self.commits,
            "eventTime": {
                "column": self.event_column,
                "watermark": as_text(self.watermark_us) or None,
                "completeThrough": as_text(self.complete_us) or None,
                "heldBackBy": list(self.held_by),
            }
            if self.event_column
            else None,
            "lastCommit": {
                "atMs": self.commit_at_ms,
                "durationMs": round(self.commit_ms, 3),
                "snapshotId": self.snapshot_id,
            },
        }


_WORST_FIRST = (State.INVALID, State.STOPPED, State.WAITING, State.STARTING, State.RUNNING, State.FINISHED)


def as_one(statuses: Sequence[IngestorStatus]) -> IngestorStatus:
    """The status of an ingestor, from those of its readers: the worst state, and the sums.

    Args:
        statuses: status of each reader; at least one.
    """
    if len(statuses) == 1:
        return statuses[0]
    shown = min(statuses, key=lambda one: _WORST_FIRST.index(one.state))
    last = max(statuses, key=lambda one: one.commit_at_ms)
    figures = newest(*(one.figures for one in statuses))
    seen_ms = [one.figures_at_ms for one in statuses if one.figures_at_ms and one.figures == figures]
    marks = [one.watermark_us for one in statuses if one.watermark_us is not None]
    complete = [one.complete_us for one in statuses if one.complete_us is not None]
    return replace(
        last,
        state=shown.state,
        reason=shown.reason,
        message=shown.message,
        since_ms=shown.since_ms,
        beat_s=min(one.beat_s for one in statuses),
        progress_s=min(one.progress_s for one in statuses),
        measured=all(one.measured for one in statuses),
        committed=_union([one.committed for one in statuses]),
        ends=_union([one.ends for one in statuses]),
        rows=sum(one.rows for one in statuses),
        bad_records=sum(one.bad_records for one in statuses),
        commits=sum(one.commits for one in statuses),
        snapshots=sum(one.snapshots for one in statuses),
        merges=sum(one.merges for one in statuses),
        bytes=sum(one.bytes for one in statuses),
        conflicts=sum(one.conflicts for one in statuses),
        unknowns=sum(one.unknowns for one in statuses),
        resolved=sum(one.resolved for one in statuses),
        retries=sum(one.retries for one in statuses),
        events=sum(one.events for one in statuses),
        events_failed=sum(one.events_failed for one in statuses),
        retired_rows=sum(one.retired_rows for one in statuses),
        retired_files=sum(one.retired_files for one in statuses),
        figures=figures,
        figures_at_ms=max(seen_ms, default=None),
        freshness=reduce(lambda sums, one: sums.joined(one), (one.freshness for one in statuses)),
        watermark_us=max(marks, default=None),
        complete_us=max(complete, default=None),
        held_by=tuple(sorted({stream for one in statuses for stream in one.held_by})),
        ready=sum(one.ready for one in statuses),
    )


def _whole(found: IngestorStatus, readers: int) -> IngestorStatus:
    """The status of an ingestor with so many of its readers: with fewer than all, it does not run."""
    missing = max(0, found.replicas - readers)
    if not missing:
        return found
    if found.state in (State.RUNNING, State.FINISHED):
        found = replace(found, state=State.STARTING, reason="", message=_away(missing, found.replicas))
    return replace(found, missing=missing)


def _away(missing: int, replicas: int) -> str:
    return f"{missing} of {replicas} readers {'does' if missing == 1 else 'do'} not run"


def _union(maps: Sequence[Mapping[int, int]]) -> dict[int, int]:
    return {partition: offset for one in maps for partition, offset in one.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditStatus:
    """Result of the last scheduled audit of a table.

    Attributes:
        at_ms: wall-clock time of its end, in milliseconds since the epoch; 0 before the first one.
        whole_at_ms: likewise of the last one that read every file.
        seconds: duration.
        snapshot_id: snapshot that was read.
        files: data files of the table.
        read: files that were read; the others were read by an earlier audit.
        missing: offsets without row and dead letter although there is evidence of a record.
        doubled: offsets with more than one row.
        unknown: offsets without row and dead letter about which nothing more is known.
        foreign: further streams over the same topic.
        findings: damage: what is wrong and what to do.
        reason: why the last audit was not finished; empty if it was.
        failures: audits that were not finished since the process started.
    """

    at_ms: int = 0
    whole_at_ms: int = 0
    seconds: float = 0.0
    snapshot_id: int | None = None
    files: int = 0
    read: int = 0
    missing: int = 0
    doubled: int = 0
    unknown: int = 0
    foreign: int = 0
    findings: tuple[str, ...] = ()
    reason: str = ""
    failures: int = 0

    def to_json(self) -> dict[str, Any]:
        """JSON of the status page; whether the table is whole is unknown after an unfinished audit."""
        return {
            "whole": None if not self.at_ms or (self.reason and not self.findings) else not self.findings,
            "atMs": self.at_ms or None,
            "allFilesAtMs": self.whole_at_ms or None,
            "seconds": round(self.seconds, 3),
            "snapshotId": self.snapshot_id,
            "files": self.files,
            "filesRead": self.read,
            "missing": self.missing,
            "doubled": self.doubled,
            "unknown": self.unknown,
            "foreignStreams": self.foreign,
            "findings": list(self.findings),
            "reason": self.reason,
            "failures": self.failures,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependency:
    """Result of the last check of a dependency."""

    ok: bool
    message: str
    looked_s: float


class StatusRegistry:
    """Statuses of all readers and dependencies. Thread-safe.

    Args:
        since_ms: wall-clock time of its first use, in milliseconds since the epoch.
        of_one: whether it has one reader alone, as in a writer's process: then it does not know whether the
            other ones run.

    Attributes:
        commits: the last commits of all readers.
    """

    def __init__(self, *, since_ms: int = 0, of_one: bool = False) -> None:
        self._of_one = of_one
        self.commits = CommitRing(since_ms=since_ms)
        self._lock = threading.Lock()
        self._ingestors: dict[str, IngestorStatus] = {}
        self._dependencies: dict[str, Dependency] = {}
        self._audits: dict[str, AuditStatus] = {}

    def update(self, name: str, **changes: Any) -> IngestorStatus:
        """Set fields of an ingestor's status; returns the new status."""
        with self._lock:
            found = self._ingestors.get(name) or IngestorStatus()
            changes["ready"] = int(changes.get("state", found.state) is State.RUNNING)
            # A status has many fields, and each turn of a loop says what is true already.
            if any(getattr(found, field) != value for field, value in changes.items()):
                found = replace(found, **changes)
            self._ingestors[name] = found
            return found

    def add(self, name: str, **amounts: int) -> IngestorStatus:
        """Increment counters of an ingestor's status; returns the new status."""
        with self._lock:
            found = self._ingestors.get(name, IngestorStatus())
            found = replace(found, **{k: getattr(found, k) + v for k, v in amounts.items()})
            self._ingestors[name] = found
            return found

    def observe(self, name: str, freshness_s: float) -> None:
        """Count the age of a batch's oldest record, in seconds."""
        with self._lock:
            found = self._ingestors.get(name, IngestorStatus())
            self._ingestors[name] = replace(found, freshness=found.freshness.plus(freshness_s))

    def put(self, name: str, status: IngestorStatus) -> None:
        """Set the whole status of a reader, as another process reports it."""
        with self._lock:
            self._ingestors[name] = status

    def remove(self, name: str) -> None:
        """Remove an ingestor."""
        with self._lock:
            self._ingestors.pop(name, None)

    def advance(self, name: str, after: Mapping[int, int]) -> None:
        """Record committed offsets; an end offset known to be lower follows.

        Args:
            name: name of the ingestor.
            after: partition to next offset.
        """
        with self._lock:
            found = self._ingestors.get(name, IngestorStatus())
            ends = {p: max(end, after.get(p, end)) for p, end in found.ends.items()}
            self._ingestors[name] = replace(found, committed={**found.committed, **after}, ends=ends)

    def get(self, name: str) -> IngestorStatus:
        """Status of one ingestor, or of one of its readers."""
        return (self.readers() | self.ingestors()).get(name, IngestorStatus())

    def ingestors(self) -> dict[str, IngestorStatus]:
        """Statuses of all ingestors, by name; that of one with several readers sums theirs up."""
        found: dict[str, list[IngestorStatus]] = {}
        for name, status in self.readers().items():
            found.setdefault(status.replica_of or name, []).append(status)
        whole = {name: as_one(statuses) for name, statuses in sorted(found.items())}
        if self._of_one:
            return whole
        return {name: _whole(one, len(found[name])) for name, one in whole.items()}

    def readers(self) -> dict[str, IngestorStatus]:
        """Statuses of all readers, by name: an ingestor has one, or as many as its spec has replicas."""
        with self._lock:
            return dict(sorted(self._ingestors.items()))

    def record_check(self, dependency: str, *, ok: bool, message: str, looked_s: float) -> None:
        """Record the result of a dependency check.

        Args:
            dependency: name of the dependency.
            ok: whether it is usable.
            message: reason if it is not.
            looked_s: monotonic time of the check in seconds.
        """
        with self._lock:
            self._dependencies[dependency] = Dependency(ok=ok, message=message, looked_s=looked_s)

    def update_audit(self, table: str, **changes: Any) -> AuditStatus:
        """Set fields of the audit of a table; returns the new status."""
        with self._lock:
            found = replace(self._audits.get(table, AuditStatus()), **changes)
            self._audits[table] = found
            return found

    def remove_audit(self, table: str) -> None:
        """Remove the results of a table's audits."""
        with self._lock:
            self._audits.pop(table, None)

    def audits(self) -> dict[str, AuditStatus]:
        """The last scheduled audit of each table, by name."""
        with self._lock:
            return dict(sorted(self._audits.items()))

    def dependencies(self) -> dict[str, Dependency]:
        """Results of the last dependency checks, by name."""
        with self._lock:
            return dict(sorted(self._dependencies.items()))


class StatusReporter:
    """Reports the status of one ingestor: always in the registry, in the log on change.

    Args:
        name: name of the ingestor.
        registry: status registry.
        clock: monotonic time in seconds.
        now_ms: wall-clock time in milliseconds since the epoch.
    """

    def __init__(
        self, name: str, registry: StatusRegistry, *, clock: Callable[[], float], now_ms: Callable[[], int]
    ) -> None:
        self._name = name
        self._registry = registry
        self._clock = clock
        self._now_ms = now_ms
        self._shown: tuple[State, str, str] | None = None

    def tell(self, state: State, error: TarnError | None = None) -> None:
        """Record the state; log it if it changed."""
        reason = type(error).__name__.removesuffix("Error") if error is not None else ""
        message = error.message if error is not None else ""
        changes: dict[str, object] = {"state": state, "reason": reason, "message": message}
        changes["beat_s"] = self._clock()
        before, self._shown = self._shown, (state, reason, "" if state is State.WAITING else message)
        if before != self._shown:
            changes["since_ms"] = self._now_ms()
            if state is State.STOPPED:
                log.error("ingestor stopped", ingestor=self._name, reason=reason, message=message)
            elif state is State.WAITING:
                log.warning("ingestor waits", ingestor=self._name, reason=reason, message=message)
            else:
                log.info("ingestor runs", ingestor=self._name)
        self._registry.update(self._name, **changes)

    def tell_wait(self, reason: str) -> None:
        """Record that the ingestor waits; the lag is unknown meanwhile."""
        self._registry.update(self._name, measured=False)
        self.tell(State.WAITING, UnavailableError(reason))

    def tell_defect(self, error: Exception) -> None:
        """Record and log an unexpected exception of this ingestor."""
        message = f"{type(error).__name__}: {error}; a defect of Tarn, please report it"
        log.error("ingestor failed", ingestor=self._name, exc_info=error)
        self._shown = (State.STOPPED, "Defect", message)
        self._registry.update(
            self._name,
            state=State.STOPPED,
            reason="Defect",
            message=message,
            since_ms=self._now_ms(),
        )
