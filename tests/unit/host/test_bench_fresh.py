"""`scripts/bench fresh`: options, specs, what is reached, and the page."""

from __future__ import annotations

import argparse
from typing import Any

import pytest
from tarn_host import shell
from tarn_host.bench import fresh, ingest, peers
from tarn_host.console import StopError

from tarn.core.spec import parse_spec


def shares(p95_ms: int) -> dict[str, int]:
    return {"n": 10, "p50_ms": 500, "p95_ms": p95_ms, "p99_ms": p95_ms, "max_ms": p95_ms}


def part(visible_s: float, planning_ms: float, commits: int) -> list[dict[str, Any]]:
    other = {"sent_s": 2.0, "count_ms": 90.0, "files": 12, "commits_before": commits}
    return [{"visible_s": visible_s + n, "planning_ms": planning_ms, **other} for n in (0, 1, 2)]


def run(*, p95_ms: int = 1_500, aged_s: float = 4.5, planning_ms: float = 44.0) -> dict[str, Any]:
    return {
        "options": vars(fresh.Options()),
        "rates": [
            {"rate": rate, "sent_per_s": rate, "trino": shares(p95_ms), "catalog": shares(900)}
            for rate in (1_000.0, 10_000.0)
        ],
        "young": part(4.0, 40.0, 20),
        "aged": part(aged_s, planning_ms, 10_020),
    }


def missed(found: dict[str, Any]) -> list[str]:
    return [words for ok, words in fresh.verdict(found) if not ok]


def test_what_is_within_the_aims_is_reached() -> None:
    assert missed(run()) == []
    assert len(fresh.verdict(run())) == 3


def test_each_aim_can_be_missed() -> None:
    assert missed(run(p95_ms=1_501)) == ["p95 at 10,000 a second: 1,501 ms"]
    assert missed(run(aged_s=4.6)) == ["a round until its last row is counted, aged beside young: 1.12 times"]
    slow = run()
    slow["rates"][1]["sent_per_s"] = 9_499.0
    assert missed(slow) == ["p95 at 10,000 a second: 1,500 ms, of 9,499 that were sent"]
    assert missed(run(planning_ms=45.0)) == ["planning, aged beside young: 1.12 times"]


def test_the_page_has_a_row_per_rate_and_per_part() -> None:
    page = fresh.section([run()])
    assert "| 10,000 | 10,000 | 500 | 1,500 | 1,500 | 1,500 | 500 | 900 | 900 | 900 |\n" in page
    assert "| aged | 10,020 | 2.00 (2.00 to 2.00) | 5.50 (4.50 to 6.50) | " in page
    without = run()
    del without["young"], without["aged"]
    assert "rounds of writers" not in fresh.section([without])


def test_rows_that_came_while_the_table_was_aged_are_those_that_were_sent() -> None:
    def aged(rows_before: int) -> dict[str, Any]:
        young = [{"rows_before": 10, "messages": 10}, {"rows_before": 20, "messages": 10}]
        return {
            "young": young,
            "history": {"sent": 101},
            "aged": [{"rows_before": rows_before, "messages": 10}],
        }

    fresh.require_same(aged(30 + 98 + 10))
    for wrong in (137, 139):
        with pytest.raises(StopError, match="rows of 128 after the table was aged"):
            fresh.require_same(aged(wrong))


def test_what_a_verb_says_is_shown_and_what_it_failed_with_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = ingest.Own(env={})
    asked: list[str] = []

    def running(script: str) -> None:
        real = shell.Running

        def started(command: list[str], **more: Any) -> Any:
            asked[:] = command
            return real(["sh", "-c", script], **more)

        monkeypatch.setattr(shell, "Running", started)

    running('echo "30 of 100 commits" >&2; echo \'{"commits": 100}\'')
    assert fresh._verb(own, "age", "s", "bench.t", commits=100) == [{"commits": 100}]
    assert "30 of 100 commits" in capsys.readouterr().out
    assert asked[-2:] == ["--commits", "100"]
    monkeypatch.undo()
    running("echo no table >&2; exit 3")
    with pytest.raises(StopError, match="exit code 3: no table") as failed:
        fresh._verb(own, "age", "s", "bench.t")
    assert "bench-ingest.log" in failed.value.fix


def given(*words: str) -> fresh.Options:
    parser = argparse.ArgumentParser()
    fresh.add(parser.add_subparsers())
    return fresh.options_of(parser.parse_args(["fresh", *words]))


def test_options() -> None:
    assert given() == fresh.Options()
    assert given("--rates", "500,100", "--rounds", "0").rates == (100, 500)
    assert given("--rounds", "0", "--quick").rounds == 0
    assert given().words() == "--rates 1000,10000,50000 --seconds 60 --rounds 5 --commits 10000"


@pytest.mark.parametrize(
    "words",
    [["--rates", "0"], ["--rates", "100001"], ["--seconds", "0"], ["--rounds", "-1"], ["--commits", "0"]],
)
def test_sizes_out_of_range_are_refused(words: list[str]) -> None:
    with pytest.raises(StopError, match="no such benchmark"):
        given(*words)


def test_the_specs_are_valid() -> None:
    for batching in ("{}", "{maxLatencySeconds: 0.05}"):
        assert parse_spec(peers.events_spec("writers", "writers", "writers", batching), file="x.yaml")
