"""What fsck found, as the status API answers it: with its age, what to run next, never better than it is."""

from __future__ import annotations

from typing import Any

import pytest

from tarn.adapters.bulk import PlainBulk
from tarn.adapters.store import MemoryStore
from tarn.core.audit.model import Kind
from tarn.core.errors import UnavailableError
from tarn.core.fsck_record import FINDINGS_MAX, RESULT_KEY, RUN_KEY, SILENT_MS_MAX, RunState, to_bytes
from tarn.ingest.context import StoppedError
from tarn.ingest.fsck_look import EVERY_S, FsckLook, FsckSeen
from tarn.ingest.status import StatusRegistry
from tarn.ingest.status_api.fsck_view import OLD_S
from tarn.keeper.fsck_record import read_record
from tests.support.fsck_records import AT_MS, a_result, a_run, finding, seen
from tests.support.status_api import served

HOUR_MS = 3_600_000
OLD_MS = round(OLD_S * 1_000)


def answer(found: FsckSeen, *, after_ms: int = HOUR_MS) -> Any:
    with served(StatusRegistry(), fsck=lambda: found, now_ms=lambda: AT_MS + after_ms) as client:
        return client.get("/v1/fsck")


def test_without_a_run_it_says_how_to_make_one() -> None:
    page = answer(seen())
    assert (page["verdict"], page["result"], page["run"], page["fault"]) == ("never", None, None, None)
    assert page["next"].startswith("scripts/tarn fsck looks at the whole lake")
    page = answer(FsckSeen())
    assert (page["verdict"], page["lookedAt"]) == ("unknown", None), "nobody has looked yet"
    page = answer(FsckSeen(fault="may not read fsck/v1/result.json"))
    assert (page["verdict"], page["fault"]) == ("unknown", "may not read fsck/v1/result.json")


def test_a_clean_result_is_shown_with_its_age() -> None:
    page = answer(seen(a_result(), a_run(RunState.DONE)))
    assert (page["verdict"], page["run"]) == ("clean", None)
    result = page["result"]
    assert (result["clean"], result["old"], result["ageSeconds"]) == (True, False, 3_600.0)
    assert (result["beganAt"], result["endedAt"]) == ("2025-11-24T16:00:00Z", "2025-11-24T16:00:02.500000Z")
    figures = "namespaces tables snapshots files bytes orphans orphanBytes seconds damage notes"
    assert [result[name] for name in figures.split()] == [2, 3, 9, 40, 5_000, 4, 70, 2.5, 0, 0]
    assert (result["kinds"], result["findings"]) == ([], [])
    assert page["next"] == "nothing; scripts/tarn fsck looks again"


@pytest.mark.parametrize(("after_ms", "old"), [(OLD_MS, False), (OLD_MS + 100, True), (-61_000, True)])
def test_an_old_result_and_one_of_the_future_are_said_to_be_old(after_ms: int, old: bool) -> None:
    page = answer(seen(a_result()), after_ms=after_ms)
    assert page["result"]["old"] is old
    assert page["result"]["ageSeconds"] == max(0, after_ms / 1_000)
    assert ("run scripts/tarn fsck again" in page["next"]) == old
    page = answer(seen(a_result(finding())), after_ms=after_ms)
    assert (page["verdict"], page["result"]["old"]) == ("damaged", old)
    assert page["next"].startswith("do as each finding says")


def test_findings_are_listed_damage_first_and_all_are_counted() -> None:
    notes = [finding(Kind.OFFSETS_HOLE, f"a.t{n}") for n in range(FINDINGS_MAX + 5)]
    page = answer(seen(a_result(*notes, finding(Kind.FILE, "bronze.orders"))))
    result = page["result"]
    assert (page["verdict"], result["damage"], result["notes"]) == ("damaged", 1, FINDINGS_MAX + 5)
    assert len(result["findings"]) == FINDINGS_MAX
    assert result["findings"][0] == {
        "severity": "damage",
        "kind": "data file missing",
        "where": "bronze.orders",
        "what": "1 missing: s3://t/x",
        "fix": "restore a backup",
    }
    assert result["kinds"] == [
        {"severity": "damage", "kind": "data file missing", "count": 1},
        {"severity": "note", "kind": "offsets without a row", "count": FINDINGS_MAX + 5},
    ]
    assert answer(seen(a_result(*notes)))["verdict"] == "clean", "notes are no damage"


def test_values_of_partitions_in_the_names_of_folders_are_left_out() -> None:
    path = "s3://tarn/warehouse/a/t-1/data/day=2026-11-25/who=Ann Lee/00.parquet"
    for what in (f"2 missing: {path}, {path}", f"{path}: broken", path[:40], path[:54]):
        (found,) = answer(seen(a_result(finding(what=what))))["result"]["findings"]
        assert "2026" not in found["what"]
        assert "Ann" not in found["what"]
        assert "data/day=\u2026" in found["what"]
    (found,) = answer(seen(a_result(finding(what=f"2 missing: {path}, {path}"))))["result"]["findings"]
    assert found["what"].count("/day=\u2026/who=\u2026/00.parquet") == 2
    run = a_run(RunState.FAILED, reason=f"could not read {path}")
    assert "Ann" not in answer(seen(None, run))["run"]["reason"]


def run_after(state: RunState, *, after_ms: int = 1_000, said_ms: int = 1_000, **fields: Any) -> Any:
    began_ms = AT_MS + after_ms
    return a_run(state, run="two", began_ms=began_ms, **{"said_ms": AT_MS + said_ms, **fields})


def test_a_run_without_a_result_is_shown_beside_the_result_before_it() -> None:
    now_ms = 10_000
    going_on = run_after(RunState.RUNNING, said_ms=9_000, progress="table 2 of 9: a.b")
    page = answer(seen(a_result(finding()), going_on), after_ms=now_ms)
    assert (page["verdict"], page["run"]["state"]) == ("damaged", "running")
    assert (page["run"]["progress"], page["next"]) == ("table 2 of 9: a.b", "wait for the run to end")

    page = answer(seen(a_result(), going_on), after_ms=9_000 + SILENT_MS_MAX + 1)
    assert (page["verdict"], page["run"]["state"]) == ("clean", "interrupted"), (
        "killed: it says nothing any more"
    )
    assert page["next"] == "run scripts/tarn fsck again"

    page = answer(seen(None, run_after(RunState.INTERRUPTED)))
    assert (page["verdict"], page["run"]["state"]) == ("never", "interrupted")

    page = answer(seen(a_result(), run_after(RunState.FAILED, reason="the store is away")))
    assert (page["run"]["state"], page["run"]["reason"]) == ("failed", "the store is away")


def test_a_run_that_a_later_result_makes_meaningless_is_not_shown() -> None:
    result = a_result(run="three", began_ms=AT_MS + 5_000)
    for state in (RunState.FAILED, RunState.INTERRUPTED, RunState.DONE):
        assert answer(seen(result, run_after(state)))["run"] is None, state
    silent = run_after(RunState.RUNNING)
    assert answer(seen(result, silent))["run"] is None, "it was killed, and another one has looked since"
    going_on = run_after(RunState.RUNNING, said_ms=HOUR_MS)
    assert answer(seen(result, going_on))["run"]["state"] == "running"
    own = run_after(RunState.RUNNING, said_ms=HOUR_MS)
    assert answer(seen(a_result(run="two"), own))["run"] is None, (
        "its last word was lost; its result is there"
    )


def test_a_record_that_cannot_be_used_is_no_clean_lake_and_no_fault_of_others() -> None:
    page = answer(seen(None, a_run(RunState.DONE), "fsck/v1/result.json cannot be used: it is no JSON"))
    assert (page["verdict"], page["result"], page["run"]) == ("unknown", None, None)
    assert page["fault"].startswith("fsck/v1/result.json cannot be used")
    found = FsckSeen(record=seen(a_result()).record, looked_ms=AT_MS, fault="the store does not respond")
    page = answer(found)
    assert (page["verdict"], page["fault"]) == ("clean", "the store does not respond")
    assert page["lookedAt"] == "2025-11-24T16:00:00Z"


def a_look(store: MemoryStore, **options: Any) -> FsckLook:
    options = {"now_ms": lambda: AT_MS, "sleep": lambda _s: None} | options
    return FsckLook(lambda: read_record(PlainBulk(store)), **options)


def test_the_look_reads_what_is_there_and_keeps_it_while_the_store_is_away(logged: list[Any]) -> None:
    store, away = MemoryStore(), UnavailableError("the store does not respond; wait")
    look = a_look(store)
    assert look.seen() == FsckSeen()
    look.look()
    assert look.seen() == seen()
    store.put(RESULT_KEY, to_bytes(a_result()))
    store.put(RUN_KEY, to_bytes(a_run(RunState.DONE)))
    look.look()
    before = look.seen()
    assert before == seen(a_result(), a_run(RunState.DONE))

    def broken(*_: Any, **__: Any) -> Any:
        raise away

    store.get = broken  # type: ignore[method-assign]
    look.look()
    assert look.seen() == FsckSeen(record=before.record, looked_ms=AT_MS, fault=away.message)
    del store.get
    store.put(RESULT_KEY, b"{}")
    for _ in range(3):
        look.look()
    assert look.seen().record.result is None
    assert look.seen().record.run == a_run(RunState.DONE)
    assert look.seen().fault == ""
    assert [line["event"] for line in logged] == ["a record of fsck cannot be used"], "once"


def test_a_defect_of_reading_ends_nothing_and_is_logged_once(logged: list[Any]) -> None:
    rested: list[float] = []

    def sleep(seconds: float) -> None:
        rested.append(seconds)
        if len(rested) == 3:
            raise StoppedError("stop")

    def broken() -> Any:
        raise KeyError("x")

    look = FsckLook(broken, now_ms=lambda: AT_MS, sleep=sleep)
    look.run()
    assert rested == [EVERY_S] * 3
    assert look.seen().fault == "KeyError: 'x'; a defect of Tarn"
    assert len(logged) == 1
    logged.clear()
