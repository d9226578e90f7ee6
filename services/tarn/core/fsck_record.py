"""What fsck leaves in the store, for whoever shows it: the last result, and the last run. Pure. See ADR 45.

Two objects below `fsck/v1/`. `result.json` is the outcome of a look at the whole lake that came to its end,
and nothing else is ever written there. `run.json` says how the last run is doing, or how it ended.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tarn.core.audit.model import Finding
from tarn.core.errors import CorruptStateError

FSCK_PREFIX = "fsck/v1/"
RESULT_KEY = "fsck/v1/result.json"
RUN_KEY = "fsck/v1/run.json"
FORMAT = 1
FINDINGS_MAX = 50
"""Findings that a result lists, damage first; `damage` and `notes` count all of them."""
TEXT_CHARS_MAX = 500
RECORD_BYTES_MAX = 512 << 10
"""Size in bytes up to which a record is read; one with the longest texts, all of them escaped, has less."""
SAYS_EVERY_S = 10.0
"""Interval at which a run says that it goes on, in seconds."""
SILENT_MS_MAX = 60_000
"""Milliseconds after which a run that has said nothing counts as interrupted."""
AGAIN = "scripts/tarn fsck looks again and replaces it"

_NUMBER_MAX = 2**53 - 1
_TIME_MS_MAX = 253_402_300_799_999  # the end of the year 9999
_KINDS_MAX = 200

Count = Annotated[int, Field(ge=0, le=_NUMBER_MAX)]
TimeMs = Annotated[int, Field(ge=0, le=_TIME_MS_MAX)]
Text = Annotated[str, Field(max_length=TEXT_CHARS_MAX)]
Severity = Literal["damage", "note"]
Record = TypeVar("Record", "FsckResult", "FsckRun")


class RunState(StrEnum):
    """How a run is doing, as it said last."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


class _Part(BaseModel):
    """A part of a record; fields that a later release adds are ignored."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        populate_by_name=True,
        allow_inf_nan=False,
        alias_generator=lambda name: name.replace("_", "-"),
    )


class RecordedFinding(_Part):
    """A finding, its texts cut."""

    severity: Severity
    kind: Text
    where: Text
    what: Text
    fix: Text


class RecordedKind(_Part):
    """How many findings of a kind there are."""

    severity: Severity
    kind: Text
    count: Count


class FsckResult(_Part):
    """What a run that came to its end found.

    Attributes:
        format: version of this shape.
        run: id of the run.
        version: version of Tarn that looked.
        began_ms: begin, in milliseconds since the epoch.
        ended_ms: end, likewise.
        seconds: duration.
        namespaces: number of namespaces.
        tables: number of tables and views.
        snapshots: number of snapshots.
        files: number of files below `warehouse/` that they reach.
        bytes: total size of these files.
        orphans: number of files below `warehouse/` that nothing names.
        orphan_bytes: total size of these.
        damage: number of findings that are damage.
        notes: number of the others.
        kinds: kinds of findings, with their numbers.
        findings: the first findings, damage first.
    """

    format: Literal[1] = 1
    run: Text
    version: Text
    began_ms: TimeMs
    ended_ms: TimeMs
    seconds: Annotated[float, Field(ge=0)]
    namespaces: Count
    tables: Count
    snapshots: Count
    files: Count
    bytes: Count
    orphans: Count
    orphan_bytes: Count
    damage: Count
    notes: Count
    kinds: Annotated[tuple[RecordedKind, ...], Field(max_length=_KINDS_MAX)]
    findings: Annotated[tuple[RecordedFinding, ...], Field(max_length=FINDINGS_MAX)]

    @model_validator(mode="after")
    def _require_sums(self) -> FsckResult:
        """Refuse a result whose parts contradict each other: half of it must not look like a clean lake."""
        counted = {"damage": self.damage, "note": self.notes}
        for severity, number in counted.items():
            if sum(one.count for one in self.kinds if one.severity == severity) != number:
                raise ValueError(f"its kinds of {severity} do not add up to {number}")
        if len(self.findings) != min(FINDINGS_MAX, self.damage + self.notes):
            raise ValueError(f"it lists {len(self.findings)} of {self.damage + self.notes} findings")
        if sum(one.severity == "damage" for one in self.findings) != min(FINDINGS_MAX, self.damage):
            raise ValueError("it does not list its damage first")
        return self

    @property
    def clean(self) -> bool:
        """Whether no damage was found."""
        return self.damage == 0


class FsckRun(_Part):
    """How a run is doing, or how it ended.

    Attributes:
        format: version of this shape.
        run: id of the run.
        began_ms: begin, in milliseconds since the epoch.
        said_ms: when it said this, likewise.
        state: how it is doing.
        progress: what it did last, for people.
        reason: why it failed; empty otherwise.
    """

    format: Literal[1] = 1
    run: Text
    began_ms: TimeMs
    said_ms: TimeMs
    state: RunState
    progress: Text = ""
    reason: Text = ""

    def silent(self, now_ms: int) -> bool:
        """Whether it goes on, by what it said, and has said nothing for too long, by whichever clock."""
        return self.state is RunState.RUNNING and abs(now_ms - self.said_ms) > SILENT_MS_MAX


def bounded(text: str) -> str:
    """A text of a length that is recorded, and that is valid UTF-8."""
    text = text.encode("utf-8", errors="replace").decode()
    return text if len(text) <= TEXT_CHARS_MAX else f"{text[: TEXT_CHARS_MAX - 1]}\u2026"


def recorded_findings(
    found: Sequence[Finding],
) -> tuple[tuple[RecordedKind, ...], tuple[RecordedFinding, ...]]:
    """Kinds of the findings with their numbers, and the first findings; damage comes first in both."""
    found = sorted(found, key=lambda one: not one.damage)
    kinds = Counter((severity_of(one), one.kind.value) for one in found)
    return (
        tuple(
            RecordedKind(severity=severity, kind=kind, count=count)
            for (severity, kind), count in kinds.items()
        ),
        tuple(
            RecordedFinding(
                severity=severity_of(one),
                kind=bounded(one.kind.value),
                where=bounded(one.where),
                what=bounded(one.what),
                fix=bounded(one.fix),
            )
            for one in found[:FINDINGS_MAX]
        ),
    )


def severity_of(found: Finding) -> Severity:
    """Whether a finding is damage or a note."""
    return "damage" if found.damage else "note"


def to_bytes(record: FsckResult | FsckRun) -> bytes:
    """A record as it is stored."""
    return record.model_dump_json(by_alias=True).encode()


def result_of(data: bytes | None) -> FsckResult:
    """Parse a result; None is one that is too large to be read.

    Raises:
        CorruptStateError: it cannot be used; the message says why and what to do.
    """
    return _parsed(FsckResult, data, RESULT_KEY)


def run_of(data: bytes | None) -> FsckRun:
    """Parse what is known of the last run; None is one that is too large to be read.

    Raises:
        CorruptStateError: likewise.
    """
    return _parsed(FsckRun, data, RUN_KEY)


def _parsed(kind: type[Record], data: bytes | None, key: str) -> Record:
    if data is None or len(data) > RECORD_BYTES_MAX:
        raise _unusable(key, f"it has more than {RECORD_BYTES_MAX >> 10} KiB")
    try:
        value: Any = orjson.loads(data)
    except orjson.JSONDecodeError as e:
        raise _unusable(key, f"it is no JSON: {e}") from e
    found = value.get("format") if isinstance(value, dict) else None
    if not isinstance(found, int) or isinstance(found, bool):
        raise _unusable(key, "it is no record: it has no format")
    if found != FORMAT:
        raise CorruptStateError(
            f"{key} has format {found}, which another release wrote; this one reads format {FORMAT}. "
            f"Use that release, or this one's: {AGAIN}",
            key=key,
        )
    try:
        return kind.model_validate_json(data)
    except ValidationError as e:
        first = e.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise _unusable(key, f"{place}: {first['msg']}" if place else str(first["msg"])) from e


def _unusable(key: str, why: str) -> CorruptStateError:
    return CorruptStateError(f"{key} cannot be used: {bounded(why)}; {AGAIN}", key=key)


def age_seconds(result: FsckResult, now_ms: int) -> float:
    """How long ago the run began: what it saw first may have changed since. 0 if the clock was set back."""
    return max(0.0, math.floor((now_ms - result.began_ms) / 100) / 10)
