"""The soak benchmark's parsers and conclusions; the runs themselves take hours."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from tarn_host.bench import command, soak, soak_look, soak_page
from tarn_host.bench.soak_look import MIB
from tarn_host.console import StopError

V1 = """stat cache 1000
stat rss 5000
stat inactive_file 1
stat total_rss 31457280
stat total_shmem 1048576
stat total_swap 2097152
stat total_inactive_file 4194304
file memory/memory.usage_in_bytes 41943040
threads 12
open 34
"""
V2 = """stat anon 31457280
stat shmem 1048576
stat inactive_file 4194304
file memory.current 41943040
file memory.swap.current 2097152
threads 12
open 34
"""


@pytest.mark.parametrize("text", [V1, V2], ids=["cgroup 1", "cgroup 2"])
def test_memory_threads_and_files_are_read_from_both_kinds_of_cgroup(text: str) -> None:
    assert soak_look.parse_inside(text) == {
        "anon": 30 * MIB,
        "working": 36 * MIB,
        "shmem": MIB,
        "swap": 2 * MIB,
        "threads": 12,
        "open": 34,
    }


def test_a_container_that_says_nothing_useful_is_no_look() -> None:
    with pytest.raises(ValueError, match="no memory and threads"):
        soak_look.parse_inside("Error response from daemon: is not running")


def test_restarts_are_by_container() -> None:
    text = "0123456789abcdef\t2\nfedcba9876543210\t0\nError: no such object\n"
    assert soak_look.parse_inspect(text) == {"0123456789ab": 2, "fedcba987654": 0}


def test_the_store_is_split_by_table_and_kind() -> None:
    uuid = "391a79e1-a16c-47b4-b0f9-21aa01df5a94"
    text = (
        f"100\t4\ttarn/warehouse/silver/flights-{uuid}/data\n"
        f"30\t3\ttarn/warehouse/silver/flights-{uuid}/metadata\n"
        f"7\t1\ttarn/warehouse/silver/flights-{uuid.replace('-', '')}/metadata\n"
        "5\t2\ttarn/catalog\n9\t9\t.minio.sys/tmp\nfind: nothing\n"
    )
    assert soak_look.parse_store(text) == {
        "bytes": 151,
        "files": 19,
        "catalog": 5,
        "other": 9,
        "tables": {"silver.flights": {"data": 100, "metadata": 37}},
    }


def test_answers_are_a_spread_and_a_count_of_failures() -> None:
    answers: list[dict[str, Any]] = [{"ms": float(n)} for n in range(1, 101)]
    found = soak_look.answered([*answers, {"error": "away"}])
    assert found == {
        "n": 100, "p50_ms": 50.0, "p95_ms": 95.0, "max_ms": 100.0, "errors": 1, "reason": "away"
    }  # fmt: skip
    assert soak_look.answered([]) == {"n": 0, "errors": 0}
    assert soak_look.parse_answers(["Container started", '{"ms": 1.5}', "{broken"]) == [{"ms": 1.5}]


def look(mib: int, threads: int = 10) -> dict[str, int]:
    size = mib * MIB
    return {"anon": size, "working": size, "shmem": 0, "swap": 0, "threads": threads, "open": 20}


def test_a_period_is_the_median_of_each_and_the_largest_sum_of_one_moment() -> None:
    found = soak_look.period(
        [{"a": look(100), "b": look(10)}, {"a": look(300), "b": look(10)}, {"a": look(200), "b": look(400)}]
    )
    assert found["services"]["a"]["anon_mib"] == 200.0
    assert found["services"]["b"]["anon_mib"] == 10.0
    assert found["services"]["b"]["working_max_mib"] == 400.0
    assert found["all"] == {"working_mib": 310, "max_mib": 600, "swap_mib": 0}


def test_what_runs_at_the_end_of_a_period_is_in_one_of_its_last_two_looks() -> None:
    both, one, other = {"a": look(1), "b": look(1)}, {"a": look(1)}, {"b": look(1)}
    for looks, running in (
        ([both, one, one], ["a"]),
        ([one, both, one], ["a", "b"]),
        ([both, one, other], ["a", "b"]),
        ([both], ["a", "b"]),
    ):
        found = soak_look.period(looks)
        assert (found["running"], sorted(found["services"])) == (running, ["a", "b"])


def records(count: int = 13) -> list[dict[str, Any]]:
    """A run in which only the rows grow, with a record every ten minutes."""
    one = {"n": 9, "p50_ms": 20.0, "p95_ms": 30.0, "max_ms": 40.0, "errors": 0}
    found = []
    for place in range(count):
        services = soak_look.period([{"spark": look(900), "catalog": look(80)}])["services"]
        for entry in services.values():
            entry.update(restarts=0, oom_kills=0)
        found.append(
            {
                "at_s": place * 600,
                "services": services,
                "all": {"working_mib": 2900, "max_mib": 3000, "swap_mib": 0},
                **{name: dict(one) for name in ("commit", "trino", "spark", "kernel")},
                "store": {
                    "bytes": 90_000_000 + place * 9_000_000,
                    "files": 10,
                    "catalog": 1,
                    "other": 1,
                    "tables": {"silver.flights": {"data": 1, "metadata": 2_000_000}},
                },
                "lake": {"silver.flights": {"rows": place * 1_000, "live_bytes": place * 5_000_000}},
            }
        )
    return found


def missed(seen: list[dict[str, Any]]) -> list[str]:
    return [words for ok, words in soak_page.verdict(seen) if not ok]


def test_a_lake_in_which_only_the_rows_grow_reaches_every_aim() -> None:
    assert missed(records()) == []


def test_the_last_hour_is_what_counts() -> None:
    seen = records()
    for record in seen[:3]:
        record["services"]["spark"]["anon_mib"] = 500.0
    assert missed(seen) == [], "warming up in the first hour is no growth"
    seen[-1]["services"]["spark"]["anon_mib"] = 946.0
    assert missed(seen) == [
        "in the last 60 minutes nothing but the rows grew by more than 5% and than two samples differ, "
        "except spark: memory, MiB 900 to 946"
    ]
    seen[-1]["services"]["spark"]["anon_mib"] = 944.0
    assert missed(seen) == []


def test_growth_below_what_two_looks_differ_by_is_none() -> None:
    seen = records()
    seen[-1]["services"]["catalog"].update(anon_mib=87.0, threads=17)
    assert missed(seen) == []
    seen[-1]["services"]["catalog"].update(anon_mib=89.0)
    assert "catalog: memory, MiB 80 to 89" in missed(seen)[0]


def test_a_short_run_is_judged_from_its_first_whole_period_on() -> None:
    seen = records(3)
    seen[0]["services"]["spark"]["threads"] = 1
    seen[1]["services"]["spark"]["threads"] = 100
    seen[2]["services"]["spark"]["threads"] = 200
    assert missed(seen) == [
        "in the last 10 minutes nothing but the rows grew by more than 5% and than two samples differ, "
        "except spark: threads 100 to 200"
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r: r["services"]["spark"].update(oom_kills=2), "killed for its memory, except spark 2"),
        (lambda r: r["services"]["trino"].update(restarts=1), "started again, except trino 1"),
        (lambda r: r["services"].pop("trino"), "every service ran until the end, except trino"),
        (lambda r: r["all"].update(max_mib=3585), "at most 3,585 of 3,584 MiB"),
        (lambda r: r["all"].update(swap_mib=3), "nothing in swap (most: 3 MiB)"),
        (lambda r: r["store"].update(bytes=381_000_000), "MB: 381 of 380 MB"),
        (lambda r: r["spark"].update(errors=4), "every question was answered, except spark 4"),
        (lambda r: r["commit"].update(p50_ms=26.0), "commit: p50, ms 20 to 26"),
    ],
)
def test_each_aim_can_be_missed(change: Any, words: str) -> None:
    seen = records()
    for record in seen:
        record["services"]["trino"] = copy.deepcopy(record["services"]["catalog"])
    change(seen[-1])
    found = missed(seen)
    assert len(found) == 1
    assert words in found[0]


def test_a_service_that_ends_in_the_last_period_has_not_run_until_the_end() -> None:
    seen = records()
    seen[-1]["running"] = ["catalog", "spark"]
    assert missed(seen) == []
    seen[-1]["running"] = ["catalog"]
    assert missed(seen) == ["every service ran until the end, except spark"]


def test_the_replay_may_end_as_it_has_no_more_flights() -> None:
    seen = records()
    for record in seen[:-1]:
        record["services"]["replay"] = copy.deepcopy(record["services"]["catalog"])
    assert missed(seen) == []


def test_the_page_shows_the_verdict_and_every_record() -> None:
    run = {"seconds": 7200, "pause_s": 8.0, "kernel_every_s": 300.0, "look_every_s": 30.0}
    facts = {"command": "c", "commit": "abc", "date": "2026-01-02", "machine": "2 cores", "engine": "20"}
    text = command.report([{"bench": "soak", **facts, "runs": [{**run, "records": records()}]}])
    assert "- reached: all together at most 3,000 of 3,584 MiB." in text
    assert (
        "more than 5% and more than two samples differ (memory, MiB: 8; threads: 8; open files: 16; "
        "commit: p50, ms: 5; trino: p50, ms: 100; spark: p50, ms: 200)" in text
    )
    assert "| MiB, anon | catalog | spark | all, with cache | swap |" in text
    assert "| 2:00 | 80 | 900 | 3,000 | 0 |" in text
    assert "| 2:00 | 20 (30) | 20 (30) | 20 (30) | 20 (30) | 12,000 | 198 | 60 | 2 |" in text
    assert "| spark: threads | 10 | 10 | +0%  |" in text


def test_who_watches_sees_a_line_for_each_record() -> None:
    record = records()[6]
    record["trino"] = {"n": 0, "errors": 2}
    assert soak_page.summary(record, 7200) == (
        "1:00 of 2:00; 3,000 MiB; commit 20 ms; trino \u2013; spark 20 ms; "
        "6,000 rows, 144 MB stored, 30 MB live; 2 questions failed"
    )


def test_the_time_is_given_in_hours_or_minutes() -> None:
    assert soak.seconds_of(None, None) == 7200
    assert soak.seconds_of(0.5, None) == 1800
    assert soak.seconds_of(None, 5) == 300
    for hours, minutes in ((1.0, 5.0), (None, 0.5), (200.0, None)):
        with pytest.raises(StopError):
            soak.seconds_of(hours, minutes)


def test_records_are_due_at_a_steady_pace_and_at_the_end() -> None:
    assert soak.schedule(7200, 600) == [600.0 * n for n in range(1, 13)]
    assert soak.schedule(1500, 600) == [600, 1200, 1500]
    assert soak.schedule(240, 600) == [240]


def test_a_tally_is_empty_once_it_was_read() -> None:
    tally = soak.Tally()
    tally.add("spark", {"ms": 1})
    tally.add("spark", {"ms": 2})
    assert tally.empty() == {"spark": [{"ms": 1}, {"ms": 2}]}
    assert tally.empty() == {}
