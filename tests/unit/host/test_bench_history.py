"""`scripts/bench history`: the spec, what counts as growth, and the page."""

from __future__ import annotations

from typing import Any

import pytest
from tarn_host.bench import command, history

from tarn.core.spec import parse_spec
from tarn_demo.bench import peers as messages

STEADY = dict.fromkeys([*history.METRICS, *(f"{name}_most" for name in history.SAWTEETH)], 100.0)


def tenth(number: int, **changed: float | None) -> dict[str, Any]:
    other = {"commits": 180 * number, "at_s": 180.0 * number, "objects": 900, "stored_bytes": 2_000_000}
    return {**STEADY, **other, "tenth": number, "questions": 5, "failed": 0, **changed}


def run(*, stored: int = 2_000_000, **last: float | None) -> dict[str, Any]:
    return {
        "kind": "steady",
        "options": {"minutes": 30.0, "commits": 10_000, "rate": 1_000.0, "settle_minutes": 25.0},
        "sent": 1_800_000,
        "rows": 1_764_000,
        "tenths": [*(tenth(n) for n in range(1, 10)), tenth(10, **last)],
        "settled": {"stored_bytes": stored, "live_bytes": 1_000_000, "objects": 90, "after_s": 600},
    }


def missed(found: dict[str, Any]) -> list[str]:
    return [words for ok, words in history.verdict(found) if not ok]


def test_a_flat_run_reaches_everything() -> None:
    assert missed(run()) == []


@pytest.mark.parametrize("name", list(history.METRICS))
def test_each_metric_may_grow_by_a_fifth(name: str) -> None:
    words, floor = history.METRICS[name]
    grown = max(121.0, 101.0 + floor)
    assert missed(run(**{name: 100.0 + max(20.0, floor)})) == []
    assert missed(run(**{name: grown})) == [f"{words}: 100 to {grown:,.0f}, {grown / 100:.2f} times"]


@pytest.mark.parametrize("name", ["planning_ms", "count_ms"])
def test_the_minutes_in_which_trino_compiles_hide_no_growth(name: str) -> None:
    found = run(**{name: 200.0})
    for each in found["tenths"][:2]:
        each[name] = 900.0
    assert missed(found) == [f"{history.METRICS[name][0]}: 100 to 200, 2.00 times"]


@pytest.mark.parametrize("name", history.SAWTEETH)
def test_the_most_in_either_half_is_compared_where_a_merge_makes_teeth(name: str) -> None:
    words = f"{history.METRICS[name][0]}, the most in either half: "
    found = run(**{f"{name}_most": 130.0})
    assert missed(found) == [f"{words}100 and 130"]
    found["tenths"][4][f"{name}_most"] = 108.0
    assert missed(found) == [f"{words}108 and 130"]
    found["tenths"][0][f"{name}_most"] = 109.0
    assert (True, f"{words}109 and 130") in history.verdict(found)
    found["tenths"][5][f"{name}_most"] = 131.0
    assert missed(found) == [f"{words}109 and 131"]


def test_a_run_without_looks_has_the_ends_of_its_tenths() -> None:
    found = run()
    assert history.LOOKS in history.section([found])
    for each in found["tenths"]:
        del each["files_most"]
    found["tenths"][7]["files"] = 130.0
    assert missed(found) == ["data files, the most in either half: 100 and 130"]
    assert history.LOOKS not in history.section([found])


def test_what_was_not_measured_is_not_reached() -> None:
    assert missed(run(count_ms=None)) == ["Trino: count(*), p50 ms: not measured"]


def test_more_than_three_times_the_live_bytes_and_failed_questions_are_named() -> None:
    assert missed(run(stored=3_000_000)) == []
    assert missed(run(stored=3_100_000)) == [
        "stored 600 s after the run: 3.1 times the live bytes (3.1 of 1.0 MB)"
    ]
    assert missed(run(failed=2)) == ["50 pairs of questions to Trino answered, 2 failed"]


def test_the_page_has_a_row_per_tenth_and_the_verdict() -> None:
    page = history.section([run(files=500.0)])
    floors = "; ".join(f"{words}: {floor:,.0f}" for words, floor in history.METRICS.values())
    assert f"by as much as two samples differ ({floors})." in page
    assert "- **missed**: data files: 100 to 500, 5.00 times.\n" in page
    assert "Steady: 1,800 commits in 30.0 minutes, 1,800,000 messages.\n" in page
    assert "The table is committed to once a second for 30 minutes." in page
    fast = history.section([{**run(), "kind": "fast"}])
    assert "`maxLatencySeconds: 0.05` and the machine let it, 10,000 times." in fast
    assert "Fast: 1,800 commits" in fast
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    assert len(rows) == 1 + history.TENTHS
    assert len({row.count("|") for row in rows}) == 1


def test_each_run_is_kept_for_itself() -> None:
    """So that one of them can be made again."""
    runs = [run(), {**run(), "kind": "fast"}]
    kept = command.kept_as("history", runs)
    assert kept == [("history-steady", [runs[0]]), ("history-fast", [runs[1]])]
    assert all(kind in command.ABOUT and kind in command.SECTIONS for kind, _ in kept)
    assert command.kept_as("ingest", runs) == [("ingest", runs)]


@pytest.mark.parametrize("kind", list(history.LATENCY_S))
def test_the_specs_are_valid(kind: str) -> None:
    found = parse_spec(
        history.spec(f"history-{kind}", f"history-{kind}", history.LATENCY_S[kind]), file="x.yaml"
    )
    assert found.name == f"history-{kind}"
    assert found.spec.batching.max_latency_seconds == history.LATENCY_S[kind]


def test_the_good_messages_are_counted_as_they_are_made() -> None:
    for sent in (0, 1, 49, 50, 51, 500):
        assert history.good_of(sent) == sum(good is not None for good, _ in messages.messages(sent, 200))


def test_a_fast_run_has_time_for_all_of_its_commits() -> None:
    assert history.seconds_of("steady", history.Options(minutes=2.0)) == 120.0
    for commits in (10_000, 100_000):
        most = history.seconds_of("fast", history.Options(commits=commits))
        assert most > 2 * commits * history.LATENCY_S["fast"]
    assert history.seconds_of("fast", history.Options(commits=1)) == 600.0
