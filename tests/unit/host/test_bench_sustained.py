"""The page about sustained writes is a function of the raw results; what gets worse is said."""

from __future__ import annotations

from typing import Any

import pytest
from tarn_host.bench import command, sustained


def tenth(number: int, **changes: Any) -> dict[str, Any]:
    found = {"tenth": number, "seconds": 180.0, "acked": 288_000, "p50_ms": 36.5, "p99_ms": 120.25}
    found |= {"commits": 4_500, "files": 180, "live_bytes": 5_000_000, "snapshots": 80}
    found |= {"metadata_bytes": 91_000, "gateway": 150.4, "catalog": 52.0, "minio": 130.0, "reaper": 70.0}
    return {**found, "objects": 9_000, "stored_bytes": 9_500_000, **changes}


def run(*, last: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    tenths = [tenth(number) for number in range(1, 10)] + [tenth(10, **(last or {}))]
    whole = {"producers": 64, "seconds": 1_800.2, "acked": 2_880_000, "p50_ms": 36.0, "p99_ms": 121.0}
    whole |= {"slowest": 44_000, "fastest": 46_000, "refused": 3, "failed": 0, "bytes": 15_840_000_000}
    return {"options": {"producers": 64, "minutes": 30.0}, "tenths": tenths, "whole": {**whole, **changes}}


def missed(found: dict[str, Any]) -> list[str]:
    return [words for ok, words in sustained.verdict(found) if not ok]


def test_a_run_without_a_change_has_reached_everything() -> None:
    assert not missed(run())
    text = sustained.section([run()])
    assert "- reached: writes a second: 1,600 to 1,600.\n" in text
    assert (
        "| 10 | 1,600 | 36.5 | 120.25 | 25.0 | 180 | 5 | 10 | 9,000 | 80 | 91,000 | 150 | 52 | 130 | 70 |"
        in text
    )
    assert "64 producers as above write for 30 minutes into one table" in text
    assert "and by more than samples differ (p50, ms: 2; p99, ms: 20; metadata" in text
    assert "All of it: 1,600 writes a second, p50 36.0 and p99 121.0 ms; slowest and fastest" in text


@pytest.mark.parametrize(
    ("last", "words"),
    [
        ({"acked": 239_000}, "writes a second: 1,600 to 1,328"),
        ({"p50_ms": 43.9}, "p50, ms: 36 to 44"),
        ({"p99_ms": 144.4}, "p99, ms: 120 to 144"),
        ({"files": 217}, "MB of a data file, on average: 0.03 to 0.02"),
        ({"metadata_bytes": 109_300}, "metadata.json, bytes: 91,000 to 109,300"),
        ({"gateway": 181.0}, "gateway's memory, MiB: 150 to 181"),
        ({"catalog": 63.0}, "catalog's memory, MiB: 52 to 63"),
        ({"p99_ms": None}, "p99, ms: not measured"),
    ],
)
def test_what_is_worse_in_the_last_tenth_is_missed(last: dict[str, Any], words: str) -> None:
    assert missed(run(last=last)) == [words]


def test_a_fifth_or_less_than_samples_differ_is_no_growth() -> None:
    kept = {
        "acked": 240_010,
        "p50_ms": 43.79,
        "p99_ms": 144.2,
        "files": 215,
        "gateway": 180.4,
        "catalog": 62.4,
    }
    assert not missed(run(last=kept))


def test_a_producer_that_failed_is_missed() -> None:
    assert missed(run(failed=1)) == ["2,880,000 writes answered, 1 producers failed"]


@pytest.mark.parametrize("words", [["--producers", "0"], ["--producers", "257"], ["--minutes", "0.05"]])
def test_sizes_out_of_range_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["sustained", *words]) == 2
    assert "no such benchmark" in capsys.readouterr().err


def test_the_options_are_those_of_the_command() -> None:
    assert sustained.Options().words() == "--producers 64 --minutes 30"


def test_the_command_is_one_of_scripts_bench() -> None:
    assert command.MEASURED["sustained"] is sustained
    assert command.SECTIONS["sustained"] is sustained.section
    assert "sustained" in command.ABOUT
