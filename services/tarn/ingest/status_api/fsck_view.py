"""What the status API answers about fsck: the last result with its age, and what to run next."""

from __future__ import annotations

from typing import Any

from tarn.core.fsck_record import SILENT_MS_MAX, FsckResult, FsckRun, RunState, age_seconds
from tarn.ingest.fsck_look import EVERY_S, FsckSeen
from tarn.ingest.status_api import models
from tarn.ingest.status_api.models import FsckRunState, FsckVerdict
from tarn.ingest.status_api.shapes import cut, maybe_time, time_of
from tarn.ingest.status_api.views import Engine
from tarn.ingest.table_look import without_values

OLD_S = 86_400.0
"""Age in seconds from which a result is called old."""
COMMAND = "scripts/tarn fsck"

_NEXT = {
    FsckVerdict.UNKNOWN: f"wait {EVERY_S:.0f} seconds; if it stays so, do as the fault says",
    FsckVerdict.NEVER: f"{COMMAND} looks at the whole lake, changes nothing, and its result is shown here",
    FsckVerdict.CLEAN: f"nothing; {COMMAND} looks again",
    FsckVerdict.DAMAGED: f"do as each finding says, then run {COMMAND} again",
}


def fsck(engine: Engine) -> models.Fsck:
    """What fsck found last, and how old that is."""
    seen, now_ms = engine.fsck(), engine.now_ms()
    result, run = seen.record.result, _open_run(seen, now_ms)
    verdict = _verdict(seen)
    shown = None if result is None else _result(result, now_ms)
    todo = _NEXT[verdict]
    if run is not None:
        going_on = run.state is RunState.RUNNING and not run.silent(now_ms)
        todo = "wait for the run to end" if going_on else f"run {COMMAND} again"
    elif shown is not None and shown.old and shown.clean:
        todo = f"run {COMMAND} again: the lake may have changed since"
    faults = [seen.fault] if seen.fault else []
    return models.Fsck(
        at=time_of(now_ms),
        looked_at=maybe_time(seen.looked_ms),
        fault=cut("; ".join([*faults, *seen.record.faults])) or None,
        verdict=verdict,
        result=shown,
        run=None if run is None else _run(run, now_ms),
        next=todo,
    )


def _verdict(seen: FsckSeen) -> FsckVerdict:
    result = seen.record.result
    if result is not None:
        return FsckVerdict.CLEAN if result.clean else FsckVerdict.DAMAGED
    if seen.looked_ms is None or seen.record.faults:
        return FsckVerdict.UNKNOWN
    return FsckVerdict.NEVER


def _open_run(seen: FsckSeen, now_ms: int) -> FsckRun | None:
    """The last run, if the last result is not its own and not of a later one."""
    run, result = seen.record.run, seen.record.result
    if run is None or run.state is RunState.DONE:
        return None
    if result is None:
        return run
    going_on = run.state is RunState.RUNNING and not run.silent(now_ms)
    own, later = run.run == result.run, run.began_ms > result.began_ms
    return run if not own and (going_on or later) else None


def _result(result: FsckResult, now_ms: int) -> models.FsckResult:
    age_s = age_seconds(result, now_ms)
    same: dict[str, Any] = result.model_dump(
        exclude={"format", "run", "began_ms", "ended_ms", "kinds", "findings"}
    )
    return models.FsckResult(
        **same,
        clean=result.clean,
        began_at=time_of(result.began_ms),
        ended_at=time_of(result.ended_ms),
        age_seconds=age_s,
        old=age_s > OLD_S or result.began_ms > now_ms + SILENT_MS_MAX,
        kinds=[
            models.FsckKind(severity=one.severity, kind=one.kind, count=one.count) for one in result.kinds
        ],
        findings=[
            models.FsckFinding(
                severity=one.severity,
                kind=one.kind,
                where=without_values(one.where),
                what=without_values(one.what),
                fix=without_values(one.fix),
            )
            for one in result.findings
        ],
    )


def _run(run: FsckRun, now_ms: int) -> models.FsckRun:
    state = FsckRunState.INTERRUPTED if run.silent(now_ms) else FsckRunState(run.state.value)
    return models.FsckRun(
        state=state,
        began_at=time_of(run.began_ms),
        said_at=time_of(run.said_ms),
        progress=run.progress or None,
        reason=cut(without_values(run.reason)) or None,
    )
