"""The page about commits is a function of the raw results; the options and the pins are what they say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tarn_host.bench import catalog, command, commit, commit_command, commit_page
from tarn_host.stack.project import ROOT

HERE = Path(commit.__file__).parent


def cell(contender: str, depth: int, *rounds: list[float], snapshots: int = 90) -> dict[str, Any]:
    return {
        **{"contender": contender, "depth": depth, "snapshots": snapshots, "metadata_bytes": 48_123},
        "times_ms": list(rounds),
    }


def crowd(contender: str, writers: int, **changes: Any) -> dict[str, Any]:
    found = {"contender": contender, "writers": writers, "seconds": 5.0, "acked": 100, "rows": 100_000}
    found |= {"slowest": 1, "fastest": 7, "conflicts": 50, "refused": 0, "unknown": 0, "errors": []}
    found |= {"metadata_files": 105, "wrong_rows": 0}
    return {**found, **changes}


def loads(contender: str, p99_ms: float) -> dict[str, Any]:
    times = {"loads": 1_000, "per_s": 200.0, "p50_ms": 1.0, "p99_ms": p99_ms}
    return {"contender": contender, "depth": 200, "paced": times, "flat_out": {**times, "per_s": 1_234.0}}


def run(**changes: Any) -> dict[str, Any]:
    depths = [
        cell("tarn", 0, [9.0, 10.0, 11.0], [8.0, 8.0, 8.0], [30.0, 12.0, 12.0]),
        cell("tarn", 200, [10.0]),
        cell("tarn", 10_000, [11.5]),
        cell("pyiceberg, SQLite", 200, [120.0], snapshots=202),
    ]
    found: dict[str, Any] = {"commits": 9, "depths": depths, "missing": {}, "left_out": []}
    found |= {"contention": [crowd("tarn", 4), crowd("tarn", 64)], "loads": [loads("tarn", 4.0)]}
    return {**found, **changes}


def test_a_row_shows_the_medians_of_the_rounds_and_what_the_table_holds() -> None:
    text = commit_page.section([run()])
    row = "| 0 commits | tarn | 90 | 48,123 | 9 | 10.0 (8.0 to 12.0) | 30.0 |"
    assert row in text
    assert "| 200 commits | pyiceberg, SQLite | 202 | 48,123 | 1 | 120.0 | 120.0 |" in text


def test_the_median_of_two_rounds_is_between_them() -> None:
    text = commit_page.section([run(depths=[cell("tarn", 0, [10.0], [13.0])])])
    assert "- reached: p50 at the start 11.5 of 12 ms." in text
    assert "| 0 commits | tarn | 90 | 48,123 | 2 | 11.5 (10.0 to 13.0) | 13.0 |" in text


def test_the_aims_are_reached_at_their_bounds() -> None:
    assert commit_page.aims(run()) == [
        "reached: p50 at the start 10.0 of 12 ms.",
        "reached: after 10,000 commits 1.15 times that, of 1.2.",
        "reached: after 200 commits 12.0 times as fast as pyiceberg, SQLite of 10.",
        "reached: 64 writers: 0 refusals of 0.",
        "reached: 64 writers: 1.05 metadata files per commit of 1.1.",
        "reached: loads by 10 clients: p99 4.0 of 5 ms.",
    ]


def test_what_is_missed_is_said_of_the_most_writers_and_the_worst_loads() -> None:
    depths = [cell("tarn", 0, [12.1]), cell("tarn", 200, [15.0]), cell("pyiceberg, SQLite", 200, [149.0])]
    bad = run(
        depths=depths,
        contention=[
            crowd("tarn", 4),
            crowd("tarn", 64, refused=3, metadata_files=111),
            crowd("deltalake", 64, wrong_rows=-3_000),
        ],
        loads=[loads("tarn", 4.0), loads("tarn", 5.1), loads("reference server", 1.0)],
    )
    assert commit_page.aims(bad) == [
        "**missed**: p50 at the start 12.1 of 12 ms.",
        "**missed**: after 200 commits 1.24 times that, of 1.2.",
        "**missed**: after 200 commits 9.9 times as fast as pyiceberg, SQLite of 10.",
        "**missed**: 64 writers: 3 refusals of 0.",
        "**missed**: 64 writers: 1.11 metadata files per commit of 1.1.",
        "**missed**: loads by 10 clients: p99 5.1 of 5 ms.",
    ]
    text = commit_page.section([bad])
    assert "- **missed**: 64 writers: 3 refusals of 0.\n" in text
    assert "| 64 | tarn | 20.0 | 1 and 7 | 0.50 | 0.03 | 1.11 | 0 |" in text
    assert "| 64 | deltalake | 20.0 | 1 and 7 | 0.50 | 0.00 | 1.05 | -3,000 |" in text
    assert "| reference server, after 200 commits | 1.0 | 1.0 | 1,234 | 1.0 | 1.0 |" in text


def test_writers_that_ended_early_are_named_and_miss_the_aim() -> None:
    died = run(contention=[crowd("tarn", 64, errors=["503: away"]), crowd("deltalake", 4, errors=["a", "b"])])
    aims = commit_page.aims(died)
    assert "**missed**: 64 writers: 0 refusals of 0, and writers that ended early." in aims
    text = commit_page.section([died])
    assert "\nOf 64 writers, tarn, some ended early: 503: away\n" in text
    assert "\nOf 4 writers, deltalake, some ended early: a; b\n" in text
    assert "ended early" not in commit_page.section([run()])


def test_growth_is_that_over_a_new_table_in_turns_if_that_was_measured() -> None:
    found = run(
        aging={"depth": 10_000, "young_ms": [[10.0], [9.0], [20.0]], "aged_ms": [[11.0], [13.0], [12.5]]}
    )
    assert commit_page.aims(found)[1] == (
        "**missed**: after 10,000 commits 1.25 times a new table in turns with it, of 1.2."
    )
    text = commit_page.section([found])
    assert (
        "of 10,000 commits, one after the other: p50 10.0 (9.0 to 20.0) ms and 12.5 (11.0 to 13.0) ms."
        in text
    )


def test_loads_in_rounds_show_the_spread_and_how_late_the_clients_were() -> None:
    one = loads("tarn", 4.0)
    one["paced"] |= {"p99_rounds_ms": [4.0, 3.5, 40.0], "late_p99_rounds_ms": [0.2, 0.1, 35.0]}
    text = commit_page.section([run(loads=[one])])
    assert "| tarn, after 200 commits | 1.0 | 4.0 (3.5 to 40.0) | 1,234 | 1.0 | 4.0 |" in text
    assert "began at most 0.2 (0.1 to 35.0) ms later than planned" in text
    assert "later than planned" not in commit_page.section([run()])


@pytest.mark.parametrize(
    ("module", "options"),
    [(commit, commit.Options()), (catalog, catalog.Options(calls=1, rounds=1, commits=0))],
)
def test_the_catalog_is_measured_with_the_log_level_that_users_have(
    module: Any, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def started(**wanted: Any) -> None:
        asked.update(wanted)
        raise InterruptedError

    monkeypatch.setattr(module, "own_stack", started)
    if module is commit:
        monkeypatch.setattr(commit, "site", lambda: "")
        monkeypatch.setattr(commit.python, "ensure", lambda: "")
    with pytest.raises(InterruptedError):
        module.measure(options)
    assert asked == {"log_level": "info"}
    compose = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    assert "TARN_LOG_LEVEL: ${TARN_LOG_LEVEL:-info}" in compose


def test_an_aim_that_was_not_measured_is_not_said_to_be_reached() -> None:
    assert commit_page.aims(run(depths=[], contention=[], loads=[])) == []
    assert commit_page.aims(run(depths=[cell("tarn", 0, [9.0])], contention=[], loads=[])) == [
        "reached: p50 at the start 9.0 of 12 ms."
    ]


def test_who_is_missing_is_named_with_the_reason() -> None:
    left_out = [
        {"contender": "deltalake", "writers": 64, "why": "too slow"},
        {"contender": "pyiceberg, Nessie", "depth": 2_000, "why": "ServerError: full"},
    ]
    text = commit_page.section([run(missing={"pyiceberg, SQLite": "no network"}, left_out=left_out)])
    assert "\nNot measured: pyiceberg, SQLite: no network\n" in text
    assert "\nLeft out: deltalake with 64 writers: too slow\n" in text
    assert "\nLeft out: pyiceberg, Nessie after 2,000 commits: ServerError: full\n" in text


def test_the_parts_of_a_commit_are_in_the_order_of_their_begin() -> None:
    parts = [
        {"part": "the whole append", "appends": 9, "begins_ms": 0.0, "takes_ms": 11.24},
        {"part": "data file", "appends": 9, "begins_ms": 1.26, "takes_ms": 3.0},
    ]
    found = {"commits": 9, "parts": parts, "two_writes_ms": 4.2, "metadata_bytes": 72_982}
    text = commit_page.section([run(parts=found)])
    assert "| the whole append | 0.0 | 11.2 |\n| data file | 1.3 | 3.0 |\n" in text
    assert "72,982 bytes and 500: 4.2 ms" in text
    assert "| part |" not in commit_page.section([run()]), "an older run has none"


def test_the_report_has_the_section_with_the_command() -> None:
    raw = {"bench": "commit", "command": "scripts/bench commit", "commit": "abc", "date": "2026-01-02"}
    text = command.report([{**raw, "machine": "2 cores", "engine": "20", "runs": [run()]}])
    assert "## Commits, beside others" in text
    assert "`scripts/bench commit` on 2026-01-02, commit abc" in text
    assert "reached: p50 at the start 10.0 of 12 ms." in text


@pytest.mark.parametrize(
    "words",
    [
        *(["--commits", "0"], ["--rounds", "0"], ["--commits", "4"], ["--seconds", "0"]),
        *(["--writers", "0,4"], ["--depths", "-1"], ["--depths", "0,100001"]),
    ],
)
def test_numbers_that_make_no_sense_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["commit", *words]) == 2
    assert "no such benchmark" in capsys.readouterr().err


def test_a_quick_run_is_printed_and_kept_nowhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def measured(options: commit.Options) -> list[dict[str, Any]]:
        asked.append(options)
        return [run()]

    monkeypatch.setattr(commit_command, "measure", measured)
    before = {file.name: file.read_bytes() for file in command.RAW.glob("*.json")}
    page = command.REPORT.read_bytes()
    assert command.main(["commit", "--quick"]) == 0
    assert asked == [commit.Options().small()]
    assert "| 0 commits | tarn |" in capsys.readouterr().out
    assert {file.name: file.read_bytes() for file in command.RAW.glob("*.json")} == before
    assert command.REPORT.read_bytes() == page


def test_the_command_in_the_report_measures_the_same_again() -> None:
    wanted = "--commits 50 --rounds 5 --seconds 40 --depths 0,200,2000,10000 --writers 1,4,16,64"
    assert commit.Options().words() == wanted
    assert commit.Options().small().words() == "--quick"


def test_whole_histories_are_measured_where_retention_would_thin_them() -> None:
    assert commit.Options().live == (2_000, 10_000)
    assert commit.Options().small().live == (50,)
    assert commit.Options(depths=(0,)).live == ()


def test_numbers_are_given_with_commas_and_anything_else_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []
    monkeypatch.setattr(commit_command, "measure", lambda options: asked.append(options) or [run()])
    monkeypatch.setattr(command, "_keep", lambda *_words: None)
    (ROOT / ".tarn").mkdir(exist_ok=True)  # a fresh clone has none
    monkeypatch.setattr(command, "REPORT", ROOT / ".tarn/test-report.md")
    assert command.main(["commit", "--depths", "200,0,200", "--writers", "8"]) == 0
    assert (asked[0].depths, asked[0].writers) == ((0, 200), (8,))
    with pytest.raises(SystemExit):
        command.main(["commit", "--depths", "many"])
    assert "invalid counts value: 'many'" in capsys.readouterr().err


def test_the_peers_are_pinned_by_hash_and_no_dependencies_of_tarn() -> None:
    pinned = re.findall(r"^([a-z0-9-]+)==", commit.PINS.read_text(), re.MULTILINE)
    assert {"deltalake", "sqlalchemy"} <= set(pinned)
    for block in re.split(r"^(?=[a-z0-9-]+==)", commit.PINS.read_text(), flags=re.MULTILINE)[1:]:
        assert "--hash=sha256:" in block
    text = (ROOT / "uv.lock").read_text()
    assert 'name = "deltalake"' not in text
    assert 'name = "sqlalchemy"' not in text
    assert re.search(r"^ARG SHA256=[0-9a-f]{64}$", (HERE / "nessie/Dockerfile").read_text(), re.MULTILINE)


def test_the_peers_are_hardened_and_published_on_loopback() -> None:
    services = yaml.safe_load(commit.PEERS_FILE.read_text())["services"]
    assert set(services) == set(commit.PEERS)
    for name, service in services.items():
        variable = commit.PEERS[name][0]
        assert re.fullmatch(rf"127\.0\.0\.1:\$\{{{variable}:-\d+\}}:\d+", service["ports"][0])
        assert service["cap_drop"] == ["ALL"]
        assert service["read_only"] is True
        assert service["mem_limit"] == service["memswap_limit"]
