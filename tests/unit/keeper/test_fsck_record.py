"""The record of fsck: what it keeps, its bounds, and that nothing half or foreign looks like a clean lake."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tarn.core.audit.model import Finding, Kind
from tarn.core.errors import CorruptStateError
from tarn.core.fsck_record import (
    FINDINGS_MAX,
    FORMAT,
    RECORD_BYTES_MAX,
    SAYS_EVERY_S,
    SILENT_MS_MAX,
    TEXT_CHARS_MAX,
    FsckResult,
    FsckRun,
    RunState,
    age_seconds,
    bounded,
    recorded_findings,
    result_of,
    run_of,
    to_bytes,
)
from tests.support.fsck_records import AT_MS, a_result, a_run, finding

FILE, HOLE = Kind.FILE, Kind.OFFSETS_HOLE


def changed(record: FsckResult | FsckRun, **fields: Any) -> bytes:
    """A record with other fields, by their names in the store; None leaves one out."""
    value = {**orjson.loads(to_bytes(record)), **fields}
    return orjson.dumps({name: one for name, one in value.items() if one is not None})


def test_a_record_is_read_as_it_was_written() -> None:
    for result in (a_result(), a_result(finding(HOLE), finding(FILE))):
        assert result_of(to_bytes(result)) == result
    run = a_run(RunState.FAILED, reason="no answer", progress="table 1 of 2")
    assert run_of(to_bytes(run)) == run
    assert orjson.loads(to_bytes(run)) == {
        "format": FORMAT,
        "run": "r",
        "began-ms": AT_MS,
        "said-ms": AT_MS,
        "state": "failed",
        "progress": "table 1 of 2",
        "reason": "no answer",
    }


def test_damage_comes_first_and_all_is_counted() -> None:
    notes = [finding(HOLE, f"bronze.n{n}") for n in range(FINDINGS_MAX)]
    damage = [finding(FILE, f"bronze.d{n}") for n in range(3)]
    result = a_result(*notes, *damage)
    assert (result.damage, result.notes, result.clean) == (3, FINDINGS_MAX, False)
    assert [one.where for one in result.findings[:4]] == ["bronze.d0", "bronze.d1", "bronze.d2", "bronze.n0"]
    assert len(result.findings) == FINDINGS_MAX
    assert [(one.severity, one.kind, one.count) for one in result.kinds] == [
        ("damage", FILE.value, 3),
        ("note", HOLE.value, FINDINGS_MAX),
    ]
    assert a_result(*notes).clean, "notes are no damage"
    assert result_of(to_bytes(result)) == result


def test_the_largest_record_is_within_its_limit() -> None:
    worst = "\x01" * (2 * TEXT_CHARS_MAX)
    found = [Finding(kind=FILE, where=worst, what=worst, fix=worst) for _ in range(3 * FINDINGS_MAX)]
    result = a_result(*found)
    data = to_bytes(result)
    assert RECORD_BYTES_MAX / 2 < len(data) <= RECORD_BYTES_MAX
    assert result_of(data) == result
    assert bounded("x" * TEXT_CHARS_MAX) == "x" * TEXT_CHARS_MAX
    assert bounded("x" * (TEXT_CHARS_MAX + 1)) == "x" * (TEXT_CHARS_MAX - 1) + "\u2026"
    odd = Finding(kind=FILE, where="\udcff", what="w", fix="f")
    assert recorded_findings([odd])[1][0].where == "?"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (None, f"it has more than {RECORD_BYTES_MAX >> 10} KiB"),
        (b" " * (RECORD_BYTES_MAX + 1), f"it has more than {RECORD_BYTES_MAX >> 10} KiB"),
        (b"", "it is no JSON"),
        (b"\xff{", "it is no JSON"),
        (to_bytes(a_result())[:-9], "it is no JSON"),
        (b"[]", "it has no format"),
        (b"null", "it has no format"),
        (b"{}", "it has no format"),
        (b"[" * 5_000, "it is no JSON"),
        (changed(a_result(), format=True), "it has no format"),
        (changed(a_result(), damage=None), "damage"),
        (changed(a_result(), tables=-1), "tables"),
        (changed(a_result(), tables="3"), "tables"),
        (changed(a_result(), **{"began-ms": 10**18}), "began-ms"),
        (changed(a_result(), **{"began-ms": 1.5}), "began-ms"),
        (changed(a_result(), kinds=[{}] * 201), "kinds"),
        (changed(a_result(finding(FILE)), damage=0), "kinds of damage do not add up to 0"),
        (changed(a_result(finding(FILE)), damage=0, kinds=[]), "it lists 1 of 0 findings"),
        (changed(a_result(finding(FILE)), findings=[]), "it lists 0 of 1 findings"),
        (
            changed(
                a_result(finding(FILE)),
                damage=0,
                notes=1,
                kinds=[{"severity": "note", "kind": "k", "count": 1}],
            ),
            "it does not list its damage first",
        ),
    ],
)
def test_a_damaged_result_is_refused_and_the_message_says_what_to_do(data: bytes | None, why: str) -> None:
    with pytest.raises(CorruptStateError) as caught:
        result_of(data)
    assert why in caught.value.message
    assert "scripts/tarn fsck" in caught.value.message
    assert len(caught.value.message) < 1_000


def test_another_releases_record_is_named_as_such_and_more_fields_are_no_harm() -> None:
    for data in (changed(a_result(), format=2), b'{"format": 2, "else": 1}'):
        with pytest.raises(CorruptStateError, match="has format 2, which another release wrote"):
            result_of(data)
    with pytest.raises(CorruptStateError, match=r"fsck/v1/run\.json has format 7"):
        run_of(b'{"format": 7}')
    with pytest.raises(CorruptStateError, match="state"):
        run_of(changed(a_run(), state="resting"))
    assert result_of(changed(a_result(), more=[1])) == a_result()


def test_a_run_that_says_nothing_for_a_minute_is_silent() -> None:
    run = a_run(RunState.RUNNING)
    assert not run.silent(AT_MS)
    assert not run.silent(AT_MS + SILENT_MS_MAX)
    assert run.silent(AT_MS + SILENT_MS_MAX + 1)
    assert run.silent(AT_MS - SILENT_MS_MAX - 1), "the clock was set back"
    assert not a_run(RunState.FAILED).silent(AT_MS + 10 * SILENT_MS_MAX), "it has said how it ended"
    assert SAYS_EVERY_S * 1_000 * 3 <= SILENT_MS_MAX, "one that is missed, or late, ends nothing"


def test_the_age_counts_from_the_begin_and_is_never_negative() -> None:
    assert age_seconds(a_result(), AT_MS + 3_600_000) == 3_600.0
    assert age_seconds(a_result(), AT_MS - 5_000) == 0.0
