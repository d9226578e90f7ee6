"""Records of fsck for tests of what shows them."""

from __future__ import annotations

from typing import Any

from tarn.core.audit.model import Finding, Kind
from tarn.core.fsck_record import FsckResult, FsckRun, RunState, recorded_findings
from tarn.ingest.fsck_look import FsckSeen
from tarn.keeper.fsck_record import FsckRecord

AT_MS = 1_764_000_000_000


def finding(
    kind: Kind = Kind.FILE, where: str = "bronze.orders", what: str = "1 missing: s3://t/x"
) -> Finding:
    """A finding."""
    return Finding(kind=kind, where=where, what=what, fix="restore a backup")


def a_result(*found: Finding, began_ms: int = AT_MS, **fields: Any) -> FsckResult:
    """The result of a run that found this."""
    kinds, findings = recorded_findings(found)
    figures: dict[str, Any] = {"tables": 3, "snapshots": 9, "files": 40, "bytes": 5_000}
    rest: dict[str, Any] = {"namespaces": 2, "orphans": 4, "orphan_bytes": 70, "run": "r", "version": "1"}
    return FsckResult(
        **{**figures, **rest, **fields},
        began_ms=began_ms,
        ended_ms=began_ms + 2_500,
        seconds=2.5,
        damage=sum(one.damage for one in found),
        notes=sum(not one.damage for one in found),
        kinds=kinds,
        findings=findings,
    )


def a_run(state: RunState = RunState.RUNNING, *, began_ms: int = AT_MS, **fields: Any) -> FsckRun:
    """A run that says how it is doing."""
    return FsckRun(**{"run": "r", "began_ms": began_ms, "said_ms": began_ms, "state": state, **fields})


def seen(result: FsckResult | None = None, run: FsckRun | None = None, *faults: str) -> FsckSeen:
    """What was read of the store."""
    return FsckSeen(record=FsckRecord(result=result, run=run, faults=faults), looked_ms=AT_MS)
