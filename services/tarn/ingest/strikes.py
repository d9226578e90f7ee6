"""Faults by hand: one strike at a time, what it did, how it was resolved, and an audit of the table after it.

    waiting -> struck -> auditing -> done
    any of the first three -> failed

Only where `TARN_FAULTS` is on. A strike is made of an ingestor that runs; its table's next commit shows it.
"""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar

import structlog

from tarn.core.control.model import Phase, WorkerId
from tarn.core.errors import ConflictError, NotFoundError, TarnError
from tarn.ingest.audit import Report
from tarn.ingest.commit_ring import CommitOutcome, CommitSeen
from tarn.ingest.context import StoppedError
from tarn.ingest.drivers import WriterDriver
from tarn.ingest.lost_replies import LostReply, Traps
from tarn.ingest.replicas import Replica
from tarn.ingest.status import State, StatusRegistry

log = structlog.get_logger()

STRIKE_S_MAX = 60.0
"""How long a strike waits for the commit that it strikes, in seconds."""
HEAL_S_MAX = 120.0
"""How long it waits until that is healed, in seconds."""
LOOK_S = 0.05
STRIKES_KEPT = 20
FINDINGS_MAX = 5

T = TypeVar("T")


class StrikeKind(StrEnum):
    """What is struck."""

    DROP_REPLY = "drop-reply"
    KILL_WRITER = "kill-writer"


class StrikeState(StrEnum):
    """How far a strike is."""

    WAITING = "waiting"
    STRUCK = "struck"
    AUDITING = "auditing"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class StrikeAudit:
    """What the audit after a strike found; counts are offsets, but for files.

    Attributes:
        whole: whether nothing is damaged.
        accounted: offsets with a row or a dead letter.
        missing: offsets without either.
        doubled: offsets with more than one row.
        unknown: offsets about which nothing more is known.
        files: data files.
        seconds: its duration.
        snapshot_id: snapshot that it read.
        findings: damage, the first few.
    """

    whole: bool
    accounted: int
    missing: int
    doubled: int
    unknown: int
    files: int
    seconds: float
    snapshot_id: int | None
    findings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """A fault by hand.

    Attributes:
        number: its number, from 1.
        kind: what is struck.
        ingestor: name of the ingestor.
        table: name of its table.
        asked_ms: when it was asked for, in milliseconds since the epoch.
        state: how far it is.
        struck_ms: when it struck, likewise; None before.
        what: what was struck, for people.
        healed_ms: when the commit was known that shows it healed, likewise; None before.
        resolution: how it was resolved, for people.
        commit_id: that commit.
        snapshot_id: snapshot that holds it.
        outcome: how it is known that the table holds it.
        audit: what the audit found; None before.
        ended_ms: when it was over, likewise.
        reason: why it failed; empty if it did not.
    """

    number: int
    kind: StrikeKind
    ingestor: str
    table: str
    asked_ms: int
    state: StrikeState = StrikeState.WAITING
    struck_ms: int | None = None
    what: str = ""
    healed_ms: int | None = None
    resolution: str = ""
    commit_id: str | None = None
    snapshot_id: int | None = None
    outcome: CommitOutcome | None = None
    audit: StrikeAudit | None = None
    ended_ms: int | None = None
    reason: str = ""

    @property
    def running(self) -> bool:
        """Whether it is under way."""
        return self.state not in (StrikeState.DONE, StrikeState.FAILED)


class _NotHealedError(Exception):
    """A strike came to nothing in its time."""


class Strikes:
    """Makes strikes, one at a time, each in a thread; any number of threads look at them.

    Args:
        registry: status registry, with the commits.
        driver: runs the writers.
        traps: what is armed in the catalog client of this process.
        audit: audits a table now.
        now_ms: wall-clock time in milliseconds since the epoch.
        sleep: waits; raises StoppedError when the process is asked to stop.
        strike_s_max: see STRIKE_S_MAX.
        heal_s_max: see HEAL_S_MAX.
    """

    def __init__(
        self,
        registry: StatusRegistry,
        driver: WriterDriver,
        traps: Traps,
        *,
        audit: Callable[[str], Report],
        now_ms: Callable[[], int],
        sleep: Callable[[float], None],
        strike_s_max: float = STRIKE_S_MAX,
        heal_s_max: float = HEAL_S_MAX,
    ) -> None:
        self._registry = registry
        self._driver = driver
        self._traps = traps
        self._audit = audit
        self._now_ms = now_ms
        self._sleep = sleep
        self._strike_s_max = strike_s_max
        self._heal_s_max = heal_s_max
        self._lock = threading.Lock()
        self._kept: deque[Strike] = deque(maxlen=STRIKES_KEPT)
        self._lost: list[LostReply] = []
        self._made = 0
        self.token = secrets.token_urlsafe(24)
        traps.on_lost(self._hear)

    def all(self) -> Sequence[Strike]:
        """The last strikes, newest first."""
        with self._lock:
            return [*reversed(self._kept)]

    def begin(self, kind: StrikeKind, ingestor: str) -> Strike:
        """Begin a strike; it goes on in a thread.

        Raises:
            NotFoundError: there is no such ingestor.
            ConflictError: it does not run, or a strike is under way.
        """
        status = self._registry.ingestors().get(ingestor)
        if status is None:
            raise NotFoundError(
                f"there is no ingestor {ingestor[:200]!r}; GET /v1/ingestors lists those that there are",
                field="ingestor",
                value=ingestor[:200],
                fix="GET /v1/ingestors lists those that there are",
            )
        if status.state is not State.RUNNING:
            raise ConflictError(f"ingestor {ingestor} is {status.state}: only one that runs is struck")
        with self._lock:
            if any(one.running for one in self._kept):
                raise ConflictError("a strike is under way; wait until it is over")
            self._made += 1
            made = Strike(
                number=self._made,
                kind=kind,
                ingestor=ingestor,
                table=status.table,
                asked_ms=self._now_ms(),
            )
            self._kept.append(made)
            self._lost.clear()
        log.warning("fault by hand", kind=kind, ingestor=ingestor, table=status.table)
        threading.Thread(target=self._run, args=(made,), name="strike", daemon=True).start()
        return made

    def _run(self, made: Strike) -> None:
        try:
            strike = self._drop(made) if made.kind is StrikeKind.DROP_REPLY else self._kill(made)
            strike = self._note(strike, state=StrikeState.AUDITING)
            found = _audited(self._audit(made.table))
            self._note(strike, audit=found, state=StrikeState.DONE, ended_ms=self._now_ms())
        except StoppedError:
            return
        except (_NotHealedError, TarnError) as e:
            reason = e.message if isinstance(e, TarnError) else str(e)
            log.warning("fault by hand came to no end", number=made.number, reason=reason)
            self._fail(made.number, reason)
        except Exception as e:
            log.exception("fault by hand broke", number=made.number)
            self._fail(made.number, f"{type(e).__name__}: {e}; a defect of Tarn, please report it")

    def _drop(self, made: Strike) -> Strike:
        before = self._registry.commits.last(1).next
        self._traps.drop_next(made.table, within_s=self._strike_s_max)
        for id_ in self._writers(made.ingestor)[:1]:
            self._driver.drop_next(id_, within_s=self._strike_s_max)
        try:
            lost = self._until(
                # Not that of another table, armed by a strike before that came to nothing.
                lambda: next((one for one in self._lost if one.table == made.table), None),
                self._strike_s_max,
                self._nothing_came(made.table),
            )
        finally:
            self._traps.disarm(made.table)
        strike = self._note(
            made,
            state=StrikeState.STRUCK,
            struck_ms=lost.at_ms,
            snapshot_id=lost.snapshot_id,
            commit_id=next(iter(lost.commit_ids), None),
            what=f"the catalog applied snapshot {lost.snapshot_id}, and its answer was dropped: for the "
            "writer the outcome is unknown",
        )

        def healed() -> CommitSeen | None:
            return next(
                (one for one in self._after(before) if one.commit_id in lost.commit_ids),
                None,
            )

        seen = self._until(healed, self._heal_s_max, f"no outcome within {self._heal_s_max:.0f} s")
        return self._heal(
            strike,
            seen,
            "the writer looked for its own commit before anything else, found it in snapshot "
            f"{seen.snapshot_id}, and sent nothing again: unknown, then {seen.outcome}",
        )

    def _kill(self, made: Strike) -> Strike:
        writers = self._writers(made.ingestor)
        if not writers:
            raise _NotHealedError(f"ingestor {made.ingestor} has no writer now; wait until one runs")
        id_, struck = writers[0], list[str]()
        reader = self._reader(made.ingestor, id_)
        if self._driver.is_process(id_):
            struck.append(self._driver.crash(id_))
        else:
            # A thread cannot be killed: it is left behind where its batch is written and not committed.

            def crash() -> None:
                struck.append(self._driver.crash(id_))
                raise StoppedError

            self._traps.crash_next(made.table, crash, within_s=self._strike_s_max)
        try:
            what = self._until(
                lambda: struck[0] if struck else None,
                self._strike_s_max,
                self._nothing_came(made.table),
            )
        finally:
            self._traps.disarm(made.table)
        before, struck_ms = self._registry.commits.last(1).next, self._now_ms()
        strike = self._note(made, state=StrikeState.STRUCK, struck_ms=struck_ms, what=what)

        def healed() -> CommitSeen | None:
            # Not of another replica, nor one that the process made before it was ended, and is known now.
            mine = (one for one in self._after(before) if one.reader == reader)
            return next((one for one in mine if one.at_ms >= struck_ms), None)

        seen = self._until(
            healed, self._heal_s_max, f"no commit of another writer within {self._heal_s_max:.0f} s"
        )
        return self._heal(
            strike,
            seen,
            "the controller started another writer, which read on where the table's own offsets end, and "
            f"committed {seen.rows} rows in snapshot {seen.snapshot_id}",
        )

    def _nothing_came(self, table: str) -> str:
        return f"no commit to {table} came within {self._strike_s_max:.0f} s; send rows, and strike again"

    def _heal(self, strike: Strike, seen: CommitSeen, resolution: str) -> Strike:
        return self._note(
            strike,
            healed_ms=max(seen.at_ms, strike.struck_ms or 0),
            resolution=resolution,
            commit_id=seen.commit_id,
            snapshot_id=seen.snapshot_id,
            outcome=seen.outcome,
        )

    def _writers(self, ingestor: str) -> list[WorkerId]:
        return sorted(
            one.id
            for one in self._driver.list()
            # One of several topics is listed by a name of its own.
            if ingestor in (one.id.ingestor, f"{one.id.ingestor}.{one.id.topic}")
            and one.phase is Phase.RUNNING
            and one.ready
        )

    def _reader(self, ingestor: str, id_: WorkerId) -> str:
        """Name of a writer's reader."""
        status = self._registry.ingestors().get(ingestor)
        replicas = 1 if status is None else status.replicas
        return Replica(index=id_.replica, count=max(replicas, id_.replica + 1)).name(ingestor)

    def _after(self, number: int) -> Sequence[CommitSeen]:
        return self._registry.commits.after(number, 10_000).commits

    def _until(self, look: Callable[[], T | None], within_s: float, otherwise: str) -> T:
        """What is looked for, as soon as it is there.

        Raises:
            _NotHealedError: it is not there in time.
            StoppedError: the process was asked to stop.
        """
        for _ in range(max(1, round(within_s / LOOK_S))):
            found = look()
            if found is not None:
                return found
            self._sleep(LOOK_S)
        raise _NotHealedError(otherwise)

    def _hear(self, lost: LostReply) -> None:
        self._lost.append(lost)

    def _note(self, strike: Strike, **changes: object) -> Strike:
        changed = replace(strike, **changes)  # type: ignore[arg-type]
        with self._lock:
            for place, one in enumerate(self._kept):
                if one.number == strike.number:
                    self._kept[place] = changed
        return changed

    def _fail(self, number: int, reason: str) -> None:
        (strike,) = (one for one in self.all() if one.number == number)
        self._note(strike, state=StrikeState.FAILED, reason=reason, ended_ms=self._now_ms())


def _audited(report: Report) -> StrikeAudit:
    damage = [one for one in report.findings if one.damage]
    return StrikeAudit(
        whole=report.whole,
        accounted=sum(len(one.present) for one in report.accounts),
        missing=sum(len(one.missing) for one in report.accounts),
        doubled=sum(len(one.doubled) for one in report.accounts),
        unknown=sum(len(one.unknown) for one in report.accounts),
        files=report.files,
        seconds=report.seconds,
        snapshot_id=report.snapshot_id,
        findings=tuple(f"{one.kind.value}: {one.what}" for one in damage[:FINDINGS_MAX]),
    )
