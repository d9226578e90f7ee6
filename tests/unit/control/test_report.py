"""What is reported of an ingestor: conditions, their reasons and times, and what is worth a write."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest

from tarn.core.control.model import Crash, Crashes, Wanted, Wish, WorkerSeen
from tarn.core.control.report import WORKERS_SHOWN_MAX, Facts, Report, parse_report, report
from tarn.core.errors import CorruptStateError
from tests.unit.control.test_plan import NOW_S, TIMING, seen, wanted

RUNS = Facts(state="Running", lag=0, rows=7, commit_at_ms=5, snapshot_id=9)


def made(
    want: Wanted,
    workers: list[WorkerSeen],
    facts: Facts = RUNS,
    crashes: Crashes | None = None,
    former: Report | None = None,
    now_ms: int = 1_000,
) -> Report:
    return report(want, workers, crashes or {}, facts, former=former, now_ms=now_ms, timing=TIMING)


def up(text: str) -> WorkerSeen:
    return replace(seen(text), ready=True)


DEAD = {
    seen("a/t/0@r1 Ended").id: Crash(count=3, last_s=NOW_S, reason="Exit", message="it ended with code 1")
}
GOLDEN: dict[str, tuple[Report, tuple[bool, str], tuple[bool, str], str]] = {
    "runs": (made(wanted(), [up("a/t/0@r1 Running")]), (True, "Accepted"), (True, "Running"), ""),
    "starts": (
        made(wanted(replicas=2), [up("a/t/0@r1 Running"), seen("a/t/1@r1 Running")]),
        (True, "Accepted"),
        (False, "Starting"),
        "1 of 2 readers run",
    ),
    "a reader says why": (
        made(
            wanted(),
            [seen("a/t/0@r1 Running")],
            Facts(state="Stopped", reason="OffsetGap", message="restore the log"),
        ),
        (True, "Accepted"),
        (False, "OffsetGap"),
        "restore the log",
    ),
    "a former version ends": (
        made(wanted(revision="r2"), [up("a/t/0@r1 Draining")]),
        (True, "Accepted"),
        (False, "Updating"),
        "1 writers of an earlier version",
    ),
    "died once": (
        made(wanted(), [], crashes={id_: replace(crash, count=1) for id_, crash in DEAD.items()}),
        (True, "Accepted"),
        (False, "Restarting"),
        "writer a/t/0@r1 ended 1 times in a row, 1 s before its next start: Exit: it ended with code 1",
    ),
    "died again and again": (
        made(wanted(), [], crashes=DEAD),
        (True, "Accepted"),
        (False, "CrashLoop"),
        "writer a/t/0@r1 ended 3 times in a row, 4 s before its next start: Exit: it ended with code 1",
    ),
    "runs again": (
        made(wanted(), [up("a/t/0@r1 Running")], crashes=DEAD),
        (True, "Accepted"),
        (True, "Running"),
        "",
    ),
    "deleting": (
        made(wanted(wish=Wish.DELETE, reason="Deleting"), [up("a/t/0@r1 Draining")]),
        (True, "Accepted"),
        (False, "Deleting"),
        "1 writers have not ended yet",
    ),
    "lost a clash": (
        made(wanted(wish=Wish.STOP, reason="Clash", message="b goes on"), []),
        (False, "Clash"),
        (False, "Clash"),
        "b goes on",
    ),
    "no topic": (made(wanted(topics=None), [], Facts()), (True, "Accepted"), (False, "NoTopic"), "no topic"),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_reports(name: str) -> None:
    found, accepted, ready, message = GOLDEN[name]
    shown = {one.type: (one.status, one.reason) for one in found.conditions}
    assert shown == {"Accepted": accepted, "Ready": ready}
    assert message in found.condition("Ready").message
    assert bool(message) == bool(found.condition("Ready").message)


def test_a_writer_of_a_former_version_is_not_ready() -> None:
    found = made(wanted(revision="r2"), [up("a/t/0@r1 Running")])
    assert (found.replicas, found.ready_replicas) == (1, 0)


def test_a_writer_that_ends_is_not_ready_although_it_still_says_so() -> None:
    found = made(wanted(), [up("a/t/0@r1 Draining")])
    assert (found.ready_replicas, found.condition("Ready").reason) == (0, "Starting")


def test_a_condition_keeps_its_time_while_status_and_reason_hold() -> None:
    first = made(wanted(), [up("a/t/0@r1 Running")])
    again = made(wanted(), [up("a/t/0@r1 Running")], former=first, now_ms=2_000)
    assert [one.since_ms for one in again.conditions] == [1_000, 1_000]
    other = made(wanted(revision="r2"), [up("a/t/0@r1 Running")], former=again, now_ms=3_000)
    assert [one.since_ms for one in other.conditions] == [1_000, 3_000]


def test_the_lag_is_unknown_while_a_reader_is_away() -> None:
    both = [up("a/t/0@r1 Running"), up("a/t/1@r1 Running")]
    assert made(wanted(replicas=2), both).facts == RUNS
    for away in ([both[0]], [both[0], seen("a/t/1@r1 Ended")]):
        assert made(wanted(replicas=2), away).facts == replace(RUNS, lag=None)


def test_figures_alone_are_not_worth_a_write_at_once() -> None:
    first = made(wanted(), [up("a/t/0@r1 Running")])
    figures = made(wanted(), [up("a/t/0@r1 Running")], replace(RUNS, rows=8), former=first, now_ms=2_000)
    assert figures.standing == first.standing
    changed: list[dict[str, Any]] = [
        {"generation": 2},
        {"topics": ("t", "u")},
        {"wish": Wish.DELETE},
        {"uid": "another"},
    ]
    for more in changed:
        assert made(wanted(**more), [up("a/t/0@r1 Running")]).standing != first.standing, more
    assert made(wanted(), [seen("a/t/0@r1 Running")]).standing != first.standing


def test_a_report_is_stored_and_read() -> None:
    found = made(wanted(), [up("a/t/0@r1 Running")])
    value = parse_report(found.to_bytes(), key="x")
    assert (value["observedGeneration"], value["readyReplicas"], value["lag"], value["rows"]) == (1, 1, 0, 7)
    assert value["lastCommit"] == {"atMs": 5, "snapshotId": 9}
    assert value["writers"] == [{"id": "a/t/0@r1", "phase": "Running", "died": 0}]
    writers = [up(f"a/{topic}/{n}@r1 Running") for topic in "tuvw" for n in range(64)]
    many = made(wanted(replicas=64, topics=tuple("tuvw")), writers)
    shown = parse_report(many.to_bytes(), key="x")
    assert (shown["readyReplicas"], len(shown["writers"])) == (256, WORKERS_SHOWN_MAX)
    for bad in (b"{", b"[]", orjson.dumps({"v": 2}), orjson.dumps({"v": 1})):
        with pytest.raises(CorruptStateError, match="specs/v1/status"):
            parse_report(bad, key="specs/v1/status/a.json")
