"""The benchmark page is a function of the raw results, and the committed page equals its output."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tarn_host.bench import catalog, command, ingest, ingest_page
from tarn_host.console import StopError


def raw(kind: str, totals: list[float]) -> dict[str, Any]:
    runs = [
        {
            "phases": [{"name": "build", "seconds": t - 1, "outcome": "done", "note": "minio 9 s"}],
            "total_s": t,
        }
        for t in totals
    ]
    facts = {
        "command": "scripts/bench up",
        "commit": "abc",
        "date": "2026-01-02",
        "machine": "2 cores",
        "engine": "20",
    }
    return {"bench": kind, **facts, "runs": runs}


@pytest.mark.parametrize("rounds", ["0", "-1", "101"])
def test_rounds_that_make_no_sense_are_refused_before_anything_starts(
    rounds: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "warm", lambda *_, **__: pytest.fail("it began"))
    assert command.main(["up", "--warm", "--rounds", rounds]) == 2
    assert f"--rounds {rounds}: no such benchmark" in capsys.readouterr().err


def test_one_run_shows_its_numbers_with_the_command() -> None:
    text = command.report([raw("up-cold", [600.0])])
    assert "| build | 599.0 |" in text
    assert "| **total** | **600.0** |" in text
    assert "`scripts/bench up` on 2026-01-02, commit abc" in text
    assert "minio 9 s" in text


def test_several_runs_show_median_and_ends() -> None:
    assert "| **total** | **70.0 (60.0 to 90.0)** |" in command.report([raw("up-warm", [90.0, 60.0, 70.0])])


def test_the_median_of_two_is_between_them() -> None:
    assert "| **total** | **75.0 (60.0 to 90.0)** |" in command.report([raw("up-warm", [90.0, 60.0])])
    assert ingest_page.spread([3.0, 1.0], ".1f") == "2.0 (1.0 to 3.0)"


def test_the_commit_is_the_one_before_the_run_and_changes_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=no"]
    kept = tmp_path / "docs/benchmarks/raw"
    kept.mkdir(parents=True)
    code = tmp_path / "code.py"
    code.write_text("1")
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "one"]):
        subprocess.run([*git, *words], check=True)
    head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], check=True, capture_output=True, text=True)
    commit = head.stdout.strip()
    monkeypatch.setattr(command, "ROOT", tmp_path)
    monkeypatch.setattr(command, "RAW", kept)
    monkeypatch.setattr(command, "REPORT", tmp_path / "docs/benchmarks.md")
    monkeypatch.setattr(command, "_raw_files", list)
    monkeypatch.setattr(command, "_engine_of", lambda _: "none")
    taken = iter(["2", "3"])

    def measured() -> list[dict[str, Any]]:
        code.write_text(next(taken))
        return []

    monkeypatch.setattr(command.memory, "measure", measured)
    for stated in (commit, f"{commit} with changes"):
        assert command.main(["memory"]) == 0
        assert json.loads((kept / "memory.json").read_text())["commit"] == stated


def test_the_page_is_what_the_raw_files_say() -> None:
    raws = command._raw_files()
    assert {raw["bench"] for raw in raws} == {file.stem for file in command.RAW.glob("*.json")}
    assert command.REPORT.read_text() == command.report(raws)


def test_the_engine_told_is_the_one_that_the_run_used() -> None:
    phases = [{"name": "checks", "note": "all well"}, {"name": "engine", "note": "engine 1.2, Compose 3.4"}]
    assert command._engine_of([{"phases": phases}]) == "1.2, Compose 3.4"
    assert command._engine_of([{"phases": [{"name": "engine", "note": ""}]}]) == "not told"


COMMIT = (
    '{"ingestor": "%s", "rows": 9, "ms": %s, "decode_ms": 4.0, "write_ms": 1.0, "event": "batch committed", '
    '"timestamp": "2026-01-02T03:04:%sZ"}'
)


def test_commits_are_those_of_flights_since_a_time() -> None:
    log = "\n".join(
        [
            COMMIT % ("flights", 10.0, "05.250000"),
            "\x1b[2K" + COMMIT % ("flights", 20.0, "06.500000"),
            COMMIT % ("canary", 30.0, "07.000000"),
            '{"event": "ingestor runs", "timestamp": "2026-01-02T03:04:08.000000Z"}',
            "no JSON at all",
        ]
    )
    found = ingest.parse_commits(log, 1767323046.0)
    assert [(c["ms"], c["at_unix"]) for c in found] == [(20.0, 1767323046.5)]
    assert len(ingest.parse_commits(log, 0.0)) == 2


def test_processor_time_is_read_from_both_kinds_of_cgroup() -> None:
    assert ingest.parse_cpu("usage_usec 2500000\nuser_usec 9\n") == 2.5
    assert ingest.parse_cpu("2690629524\n") == 2.690629524
    with pytest.raises(StopError, match="cannot be read: 'cat: no"):
        ingest.parse_cpu("cat: no such file")


def test_a_share_of_ordered_values_is_one_of_them() -> None:
    values = [float(n) for n in range(1, 101)]
    assert [ingest.at_share(values, s) for s in (0.5, 0.95, 1.0)] == [50.0, 95.0, 100.0]
    assert ingest.at_share([7.0], 0.5) == ingest.at_share([7.0], 0.95) == 7.0


def test_a_lost_or_doubled_row_ends_the_benchmark() -> None:
    ingest.require_exact({"offsets": 10, "rows": 8, "dead_letters": 2})
    for rows in (7, 9):
        with pytest.raises(StopError, match=f"{rows} rows and 2 dead letters of 10 offsets"):
            ingest.require_exact({"offsets": 10, "rows": rows, "dead_letters": 2})


def test_the_section_about_ingestion_shows_medians_and_ends() -> None:
    def run(scale: float) -> dict[str, Any]:
        paths = [
            path
            for rows in (
                ingest_page.AS_THEY_COME,
                ingest_page.CATCHING_UP,
                ingest_page.SIDE_BY_SIDE,
                ingest_page.FRESHNESS,
            )
            for _, path, _ in rows
            if "." in path
        ]
        made: dict[str, Any] = {"events": 500_000, "count": {"offsets": 12, "rows": 10, "dead_letters": 2}}
        for path in paths:
            part, _, name = path.partition(".")
            made.setdefault(part, {})[name] = 1_000.0 * scale
        made["reading_only"]["rows_per_cpu_s"] = 4_000.0 * scale
        made["freshness"].update(rate=1_000.0, seconds=60.0, look_ms=50.0)
        return made

    text = ingest_page.section([run(1.0), run(3.0), run(2.0)])
    assert "500,000 messages per measurement, rounds: 3." in text
    assert "| rows in bronze, per second | 2,000 (1,000 to 3,000) |" in text
    assert "| ingest's share of that, by processor time, % | 25 (25 to 25) |" in text
    assert "| freshness at 1,000 messages a second for 60 s | |" in text
    assert "12 offsets in the topic = 10 rows + 2 dead letters." in text
    assert "it looks every 50 ms" in text


def test_the_section_about_the_catalog_shows_medians_ends_and_memory() -> None:
    def run(scale: float) -> dict[str, Any]:
        made: dict[str, Any] = {"calls": 300}
        for length in catalog.HISTORIES:
            made[f"metadata_{length}_bytes"] = length * 1_000
        for kind in ("config", *(f"{k}_{n}" for k in ("load", "commit") for n in catalog.HISTORIES)):
            for words in ("kept", "new"):
                made[f"{kind}_{words}"] = {"p50_ms": 1.0 * scale, "p99_ms": 4.0 * scale}
        for kind in ("store_read", "store_unchanged", "store_write"):
            made[kind] = {"p50_ms": 0.5 * scale, "p99_ms": 1.0 * scale}
        return made

    runs = [run(1.0), run(3.0), run(2.0)]
    assert catalog._words(runs[0]).endswith("store_read 0.50, store_unchanged 0.50, store_write 0.50")
    text = catalog.section(runs)
    cells = "2.00 (1.00 to 3.00) | 8.00 (4.00 to 12.00)"
    assert f"| GET config | {cells} | {cells} |" in text
    assert f"| load a table of 100 snapshots (100,000 bytes) | {cells} | {cells} |" in text
    cells = "1.00 (0.50 to 1.50) | 2.00 (1.00 to 3.00)"
    assert f"| the store alone: a pointer read | {cells} | | |" in text
    assert f"| the store alone: a read of a pointer that has not changed, as a load's | {cells} | | |" in text
    for old in runs:
        del old["store_unchanged"]
    assert "has not changed" not in catalog.section(runs)
    assert "300 calls of each kind per round, rounds: 3." in text
    assert "Memory" not in text
    runs[-1]["memory"] = {"commits": 20_000, "seconds": 60.4, "refused": 1_234, "mib": [80.2, 90.7]}
    text = catalog.section(runs)
    assert "4 clients made 20,000 commits, each to a table of 100 snapshots, in 60 s" in text
    assert "(1,234 were refused)" in text
    assert text.endswith("MiB: 80, 91.\n")


def test_a_commit_of_the_benchmark_keeps_the_history_as_long_as_it_was() -> None:
    table = catalog.History("t", uuid="u", location="s3://tarn/warehouse/ns/t-u")
    first = json.loads(table.append(drop=False))
    assert first["requirements"][1]["snapshot-id"] is None
    assert "parent-snapshot-id" not in first["updates"][0]["snapshot"]
    second = json.loads(table.append())
    (kept,) = table.snapshots
    assert second["requirements"][1]["snapshot-id"] == first["updates"][0]["snapshot"]["snapshot-id"]
    assert second["updates"][1]["snapshot-id"] == kept
    assert second["updates"][2]["snapshot-ids"] == [first["updates"][0]["snapshot"]["snapshot-id"]]


@pytest.mark.parametrize("words", [["--calls", "0"], ["--rounds", "0"], ["--commits", "-1"]])
def test_numbers_that_make_no_sense_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["catalog", *words]) == 2
    assert "no such benchmark" in capsys.readouterr().err
