"""The page about small writes is a function of the raw results; the options are what they say."""

from __future__ import annotations

from typing import Any

import pytest
from tarn_host.bench import command, small_writes


def cell(producers: int, per_s: float, p99_ms: float, **changes: Any) -> dict[str, Any]:
    found = {"producers": producers, "seconds": 10.0, "acked": int(per_s * 10), "bytes": 4_000_000}
    found |= {"p50_ms": 20.04, "p99_ms": p99_ms, "slowest": 3, "fastest": 1_200, "refused": 2, "delayed": 0}
    found |= {"errors": [], "commits": 213, "data_files": 17, "objects": 640}
    return {**found, "stored_bytes": 9_000_000, "stored_data_bytes": 5_500_000, **changes}


def run(*cells: dict[str, Any], **changes: Any) -> dict[str, Any]:
    peer = {"contender": "deltalake", "writers": 4, "seconds": 10.0, "acked": 40, "p50_ms": 90.0}
    peer |= {"p99_ms": 1_400.0, "slowest": 1, "fastest": 22, "refused": 10}
    found = {"seconds": 10.0, "bytes_min": 1_000, "bytes_max": 10_000, "memory_peak_mib": 201.4}
    return {**found, "lake": list(cells), "peers": [peer], "missing": {}, **changes}


def test_a_row_has_what_was_measured() -> None:
    text = small_writes.section([run(cell(4, 812.0, 55.06))])
    assert "one row of 1,000 to 10,000 bytes" in text
    assert "| 4 | 812 | 20.0 | 55.1 | 3 and 1,200 | 2 | 21.3 | 17 | 640 | 4.0 | 5.5 | 9.0 |" in text
    assert "| 4 | deltalake | 4.0 | 90.0 | 1,400.0 | 1 and 22 | 0.25 | not counted |" in text
    counted = run(cell(4, 812.0, 55.0))
    counted["peers"][0]["wrong_rows"] = -50
    assert "| 1 and 22 | 0.25 | -50 |" in small_writes.section([counted])
    assert "Most memory of the gateway's container: 201 MiB." in text
    counted["peers"][0] |= {"failed": 3, "errors": ["no", "cut off"]}
    early = "\nOf 4 writers of deltalake 3 ended early: no; cut off\n"
    assert early in small_writes.section([counted])
    assert "ended early" not in text


def test_the_aims_are_reached_at_their_bounds_and_else_missed() -> None:
    assert small_writes.aims(run(cell(64, 2_000, 80.0), cell(256, 5_000, 150.0), cell(16, 1, 1.0))) == [
        "reached: 64 producers: 2,000 of 2,000 writes a second, at p99 80 of 80 ms.",
        "reached: 256 producers: 5,000 of 5,000 writes a second, at p99 150 of 150 ms.",
    ]
    died = cell(64, 2_000, 80.0, failed=2, errors=["500: no", "cut off"])
    assert small_writes.aims(run(died))[0].startswith("**missed**")
    assert "\nOf 64 producers 2 ended early: 500: no; cut off\n" in small_writes.section([run(died)])
    for per_s, p99_ms in ((1_999, 80.0), (2_000, 80.1)):
        (found,) = small_writes.aims(run(cell(64, per_s, p99_ms)))
        assert found.startswith("**missed**")


def log_cell(producers: int, per_s: float, p99_ms: float) -> dict[str, Any]:
    return cell(producers, per_s, p99_ms) | {"landed_s": 2.5}


def test_rows_of_the_log_are_a_table_and_an_aim_of_their_own() -> None:
    text = small_writes.section([run(cell(4, 812.0, 55.06), log=[log_cell(4, 900.0, 12.34)])])
    assert "| 4 | 900 | 20.0 | 12.3 | 3 and 1,200 | 2 | 2.5 |" in text
    assert "- **missed**: `log`, 4 producers: 900 of 5,000 writes a second, at p99 12 of 50 ms." in text
    assert "all in the table after" not in small_writes.section([run(cell(4, 812.0, 55.06))])


@pytest.mark.parametrize(
    ("cells", "begins"),
    [
        ([log_cell(64, 5_000, 50.0)], "reached: `log`, 64 producers: 5,000 of 5,000"),
        ([log_cell(64, 4_999, 50.0)], "**missed**: `log`, 64 producers: 4,999"),
        ([log_cell(64, 5_000, 50.1)], "**missed**: `log`, 64 producers: 5,000"),
        ([log_cell(64, 9_000, 60.0), log_cell(16, 4_000, 40.0)], "**missed**: `log`, 16 producers: 4,000"),
        (
            [log_cell(64, 9_000, 40.0) | {"failed": 1}, log_cell(4, 10, 40.0)],
            "**missed**: `log`, 4 producers",
        ),
    ],
)
def test_the_aim_of_the_log_is_that_of_the_fastest_in_time(cells: list[dict[str, Any]], begins: str) -> None:
    (found,) = small_writes.aims(run(log=cells))
    assert found.startswith(begins)


def test_nothing_acknowledged_is_no_division_and_who_is_missing_is_named() -> None:
    nothing = cell(64, 0, 0.0) | {"p50_ms": None, "p99_ms": None}
    bad = run(nothing, peers=[], missing={"deltalake": "no network"})
    assert small_writes.aims(bad) == ["**missed**: 64 producers: no write was answered."]
    silent = log_cell(64, 0, 0.0) | {"p50_ms": None, "p99_ms": None, "failed": 64}
    assert small_writes.aims(run(log=[silent])) == ["**missed**: `log`: no number of producers ended well."]
    failing = log_cell(64, 9_000, 40.0) | {"failed": 1}
    assert small_writes.aims(run(log=[failing])) == ["**missed**: `log`: no number of producers ended well."]
    assert small_writes.aims(run()) == [], "what was not measured is left out"
    text = small_writes.section([bad])
    assert "| 64 | 0 | none | none |" in text
    assert "\nNot measured: deltalake: no network\n" in text
    assert "| writers | peer |" not in text


def test_the_report_has_the_section_with_the_command() -> None:
    raw = {"bench": "small-writes", "command": "scripts/bench small-writes", "commit": "abc"}
    raw |= {"date": "2026-01-02", "machine": "2 cores", "engine": "20"}
    text = command.report([{**raw, "runs": [run(cell(64, 2_000, 80.0))]}])
    assert "## Small writes over HTTP" in text
    assert "- reached: 64 producers" in text


@pytest.mark.parametrize(
    "words",
    [
        ["--producers", "0,4"],
        ["--producers", "257"],
        ["--seconds", "0"],
        ["--seconds", "7201"],
        ["--writers", "257"],
    ],
)
def test_sizes_out_of_range_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["small-writes", *words]) == 2
    assert "no such benchmark" in capsys.readouterr().err


def test_a_quick_run_is_small_printed_and_kept_nowhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[small_writes.Options] = []

    def measure(options: small_writes.Options) -> list[dict[str, Any]]:
        asked.append(options)
        return [run(cell(4, 812.0, 55.0))]

    monkeypatch.setattr(small_writes, "measure", measure)
    monkeypatch.setattr(command, "_keep", lambda *_: pytest.fail("it was kept"))
    assert command.main(["small-writes", "--quick"]) == 0
    assert asked == [small_writes.Options().small()]
    assert "nothing was kept" in capsys.readouterr().out


def test_the_words_are_the_options() -> None:
    words = small_writes.Options(producers=(4, 64), seconds=5, writers=()).words()
    assert words == "--producers 4,64 --seconds 5 --writers 0"
    without = small_writes.Options(producers=(4,), seconds=5, writers=(), log=False)
    assert without.words() == "--producers 4 --seconds 5 --writers 0 --no-log"
    assert small_writes.Options().small().log
