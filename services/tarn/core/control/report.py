"""What is reported of a declared ingestor: conditions with reasons, writers, lag. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from tarn.core import versioned_json
from tarn.core.control.model import Crashes, Phase, Timing, Wanted, Wish, WorkerSeen
from tarn.core.control.plan import targets, waits
from tarn.core.errors import CorruptStateError

FORMAT = 1
WORKERS_SHOWN_MAX = 200
CRASH_LOOP = "CrashLoop"
"""Reason of an ingestor whose writer died again and again."""
CANNOT_START = "CannotStart"
"""Reason of an ingestor one of whose writers could not be started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the readers of an ingestor say of themselves, summed up.

    Attributes:
        state: the worst of their states, in one word.
        reason: why, in one word; empty while they run.
        message: the same, for people.
        lag: offsets from the table to the end of the log; None while unknown.
        rows: rows committed since the readers started.
        bad_records: bad records likewise.
        commit_at_ms: wall-clock time of the last commit, in milliseconds since the epoch; 0 before the first.
        snapshot_id: snapshot of that commit.
    """

    state: str = ""
    reason: str = ""
    message: str = ""
    lag: int | None = None
    rows: int = 0
    bad_records: int = 0
    commit_at_ms: int = 0
    snapshot_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One statement about an ingestor.

    Attributes:
        type: what it is about: `Accepted` or `Ready`.
        status: whether that holds.
        reason: why, in one word.
        message: the same, for people; what to do, if something is to be done.
        since_ms: since when status and reason are these, in milliseconds since the epoch.
    """

    type: str
    status: bool
    reason: str
    message: str = ""
    since_ms: int = 0

    def to_json(self) -> dict[str, Any]:
        """JSON, as in the status object."""
        return {
            "type": self.type,
            "status": self.status,
            "reason": self.reason,
            "message": self.message,
            "sinceMs": self.since_ms,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Status of a declared ingestor.

    Attributes:
        name: name of the ingestor.
        uid: uid of its object.
        observed_generation: version of the spec that this is about.
        replicas: readers that it is to have, of all topics.
        ready_replicas: those of them that read and commit.
        topics: topics that it reads.
        table: table that it writes.
        conditions: `Accepted`, then `Ready`.
        workers: its writers: id, phase, and how often each died in a row.
        facts: what its readers say.
        at_ms: when this was made, in milliseconds since the epoch.
    """

    name: str
    uid: str
    observed_generation: int
    replicas: int
    ready_replicas: int
    topics: tuple[str, ...]
    table: str
    conditions: tuple[Condition, ...]
    workers: tuple[tuple[str, str, int], ...]
    facts: Facts
    at_ms: int

    def condition(self, type_: str) -> Condition:
        """The condition of a type."""
        return next(one for one in self.conditions if one.type == type_)

    @property
    def standing(self) -> tuple[object, ...]:
        """What is worth a write at once when it changes; lag and rows are not."""
        return (
            self.uid,
            self.observed_generation,
            self.replicas,
            self.ready_replicas,
            self.topics,
            tuple((one.type, one.status, one.reason, one.message) for one in self.conditions),
            self.workers,
        )

    def to_bytes(self) -> bytes:
        """JSON, as stored."""
        facts = self.facts
        return orjson.dumps(
            {
                "v": FORMAT,
                "name": self.name,
                "uid": self.uid,
                "observedGeneration": self.observed_generation,
                "replicas": self.replicas,
                "readyReplicas": self.ready_replicas,
                "topics": list(self.topics),
                "table": self.table,
                "state": facts.state,
                "lag": facts.lag,
                "rows": facts.rows,
                "badRecords": facts.bad_records,
                "lastCommit": {"atMs": facts.commit_at_ms or None, "snapshotId": facts.snapshot_id},
                "conditions": [one.to_json() for one in self.conditions],
                "writers": [
                    {"id": id_, "phase": phase, "died": died}
                    for id_, phase, died in self.workers[:WORKERS_SHOWN_MAX]
                ],
                "atMs": self.at_ms,
            },
            option=orjson.OPT_INDENT_2,
        )


def parse_report(data: bytes, *, key: str) -> dict[str, Any]:
    """Parse the result of `Report.to_bytes`, as JSON types.

    Raises:
        CorruptStateError: the object is not of this form.
    """
    try:
        value: dict[str, Any] = versioned_json.read(data, FORMAT)
        for field in ("name", "uid", "observedGeneration", "conditions", "atMs"):
            _ = value[field]
    except (ValueError, KeyError, TypeError) as e:
        raise CorruptStateError(
            f"{key} is not the status of an ingestor ({e}); ingest writes it again"
        ) from e
    return value


def report(
    wanted: Wanted,
    workers: Sequence[WorkerSeen],
    crashes: Crashes,
    facts: Facts,
    *,
    unstarted: str = "",
    former: Report | None,
    now_ms: int,
    timing: Timing | None = None,
) -> Report:
    """The status of an ingestor.

    Args:
        wanted: the ingestor.
        workers: its writers.
        crashes: what is known of writers that died.
        facts: what its readers say.
        unstarted: why a writer could not be started in this pass; empty if all could.
        former: the status before; a condition that holds on keeps its time.
        now_ms: wall-clock time in milliseconds since the epoch.
        timing: times of the planner; the usual ones by default.
    """
    timing = timing or Timing()
    goal = frozenset(targets(wanted))
    if goal - {one.id for one in workers if one.phase is not Phase.ENDED}:
        facts = replace(facts, lag=None)  # of the partitions that nobody reads now, nothing is known
    ready = sum(one.ready and one.phase is Phase.RUNNING and one.id in goal for one in workers)
    refused = wanted.wish in (Wish.HOLD, Wish.STOP)
    found = (
        Condition(
            type="Accepted",
            status=not refused,
            reason=wanted.reason if refused else "Accepted",
            message=wanted.message if refused else "",
        ),
        _ready(
            wanted,
            workers,
            crashes,
            facts,
            unstarted=unstarted,
            goal_count=len(goal),
            ready=ready,
            timing=timing,
        ),
    )
    return Report(
        name=wanted.name,
        uid=wanted.uid,
        observed_generation=wanted.generation,
        replicas=len(goal),
        ready_replicas=ready,
        topics=wanted.topics or (),
        table=str(wanted.spec.spec.table) if wanted.spec is not None else "",
        conditions=tuple(_since(found, former, now_ms)),
        workers=tuple(
            (str(one.id), one.phase.value, crashes[one.id].count if one.id in crashes else 0)
            for one in sorted(workers, key=lambda one: one.id)
        ),
        facts=facts,
        at_ms=now_ms,
    )


def crashed(
    wanted: Wanted, workers: Sequence[WorkerSeen], crashes: Crashes, *, timing: Timing | None = None
) -> tuple[str, str] | None:
    """Why a writer that is wanted does not run: reason and message of the one that died most often in a row.

    Args:
        wanted: the ingestor.
        workers: its writers.
        crashes: what is known of writers that died.
        timing: times of the planner; the usual ones by default.

    Returns:
        `Restarting` or `CrashLoop` with the message; None if none died, or all of them run again.
    """
    timing = timing or Timing()
    alive = {one.id for one in workers if one.phase is not Phase.ENDED}
    dead = sorted(waits(wanted, crashes, timing).keys() - alive)
    if not dead:
        return None
    worst = max(dead, key=lambda id_: crashes[id_].count)
    crash = crashes[worst]
    return (
        CRASH_LOOP if crash.count > 1 else "Restarting",
        f"writer {worst} ended {crash.count} times in a row, {timing.wait_s(crash.count):g} s before its "
        f"next start: {crash.reason}: {crash.message}",
    )


def _ready(
    wanted: Wanted,
    workers: Sequence[WorkerSeen],
    crashes: Crashes,
    facts: Facts,
    *,
    unstarted: str,
    goal_count: int,
    ready: int,
    timing: Timing,
) -> Condition:
    def no(reason: str, message: str) -> Condition:
        return Condition(type="Ready", status=False, reason=reason, message=message)

    alive = [one for one in workers if one.phase is not Phase.ENDED]
    if wanted.wish is Wish.DELETE:
        return no(
            "Deleting", f"{len(alive)} writers have not ended yet" if alive else "its writers have ended"
        )
    if wanted.wish is not Wish.RUN:
        return no(wanted.reason, wanted.message)
    if unstarted:
        return no(CANNOT_START, unstarted)
    dead = crashed(wanted, workers, crashes, timing=timing)
    if dead is not None:
        return no(*dead)
    old = [one for one in alive if one.id.revision != wanted.revision]
    if old:
        return no("Updating", f"{len(old)} writers of an earlier version of the spec end first")
    if not wanted.topics:
        return no(facts.reason or "NoTopic", facts.message or "no topic was found yet")
    if ready == goal_count:
        return Condition(type="Ready", status=True, reason="Running")
    if facts.reason:
        return no(facts.reason, facts.message)
    return no("Starting", f"{ready} of {goal_count} readers run")


def _since(found: Sequence[Condition], former: Report | None, now_ms: int) -> Iterator[Condition]:
    before: Mapping[str, Condition] = (
        {one.type: one for one in former.conditions} if former is not None else {}
    )
    for one in found:
        last = before.get(one.type)
        holds_on = last is not None and (last.status, last.reason) == (one.status, one.reason)
        yield replace(one, since_ms=last.since_ms if holds_on and last is not None else now_ms)
