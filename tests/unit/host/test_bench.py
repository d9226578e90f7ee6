"""The benchmark page is a function of the raw numbers, and the page here is that function's value."""

from __future__ import annotations

import json
from typing import Any

from tarn_host import bench


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


def test_one_run_shows_its_numbers_with_the_command() -> None:
    text = bench.report([raw("up-cold", [600.0])])
    assert "| build | 599.0 |" in text
    assert "| **total** | **600.0** |" in text
    assert "`scripts/bench up` on 2026-01-02, commit abc" in text
    assert "minio 9 s" in text


def test_several_runs_show_median_and_ends() -> None:
    assert "| **total** | **70.0 (60.0 to 90.0)** |" in bench.report([raw("up-warm", [90.0, 60.0, 70.0])])


def test_the_page_is_what_the_raw_files_say() -> None:
    files = sorted(bench.RAW.glob("up-*.json"))
    if not files:
        assert not bench.REPORT.exists(), "a page without raw numbers behind it"
        return
    assert bench.REPORT.read_text() == bench.report([json.loads(file.read_text()) for file in files])


def test_the_engine_told_is_the_one_that_the_run_used() -> None:
    phases = [{"name": "checks", "note": "all well"}, {"name": "engine", "note": "engine 1.2, Compose 3.4"}]
    assert bench._engine_of([{"phases": phases}]) == "1.2, Compose 3.4"
    assert bench._engine_of([{"phases": [{"name": "engine", "note": ""}]}]) == "not told"
