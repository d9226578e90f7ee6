"""The page about the year of flights is a function of the raw results; what is too slow or grows is said."""

from __future__ import annotations

from typing import Any

import pytest
from tarn_host.bench import command, flights


def step(number: int, **changes: Any) -> dict[str, Any]:
    found = {"step": number, "steps": 20, "messages": 50_000, "offsets": 50_000, "commits": 5}
    found |= {"bronze_s": 1.5, "silver_s": 4.0, "gold_s": 3.0, "cycle_s": 7.5}
    found |= {"silver_rows": 1_000 * number, "silver_files": 12, "silver_snapshots": 20, "bronze_files": 9}
    return {**found, **changes}


def run(*, last: dict[str, Any] | None = None, first: dict[str, Any] | None = None) -> dict[str, Any]:
    steps = [step(number, **(first or {})) for number in range(1, 5)]
    steps += [step(number) for number in range(5, 19)]
    steps += [step(number, **(last or {})) for number in (19, 20)]
    load = {"messages": 1_000_000, "produced_s": 9.0, "bronze_s": 12.5, "silver_s": 40.0, "gold_s": 55.5}
    loads = [load, {**load, "gold_s": 61.0}, {**load, "gold_s": 50.0}]
    options = {"loads": 3, "steps": 20, "flights": 336_776}
    return {"options": options, "loads": loads, "tenths": flights.tenths(steps)}


def missed(found: dict[str, Any]) -> list[str]:
    return [words for ok, words in flights.verdict(found) if not ok]


def test_a_run_without_a_change_has_reached_everything() -> None:
    assert not missed(run())
    text = flights.section([run()])
    assert "336,776 flights in some 1,000,000 messages" in text
    for words, floor in flights.METRICS.values():
        assert f"{words}: {floor:g}; " in text, "what is no growth is said"
    assert "the same year in 20 equal parts" in text
    assert "- reached: gold complete after 55.5 s (50.0 to 61.0) of 60.\n" in text
    assert "- reached: silver, s of a cycle, third and last tenth: 4.00 to 4.00.\n" in text
    assert "| load 2 | 9.0 | 12.5 | 40.0 | 61.0 |\n" in text
    assert "| 10 | 100,000 | 1.50 | 4.00 | 3.00 | 7.50 | 20,000 | 12 | 20 | 9 |\n" in text


def test_a_slow_load_is_missed() -> None:
    found = run()
    found["loads"][0]["gold_s"] = 60.1
    assert missed(found) == ["gold complete after 60.1 s (50.0 to 61.0) of 60"]


@pytest.mark.parametrize(
    ("last", "words"),
    [
        ({"silver_s": 4.85}, "silver, s of a cycle, third and last tenth: 4.00 to 4.85"),
        ({"gold_s": 3.65}, "gold, s of a cycle, third and last tenth: 3.00 to 3.65"),
        ({"bronze_s": 2.1}, "sent and in bronze, s of a step, third and last tenth: 1.50 to 2.10"),
        ({"silver_files": 25}, "data files of silver, third and last tenth: 12 to 25"),
    ],
)
def test_what_grows_is_missed(last: dict[str, Any], words: str) -> None:
    assert missed(run(last=last)) == [words]


def test_a_fifth_or_less_than_two_samples_differ_is_no_growth() -> None:
    kept = {"silver_s": 4.8, "gold_s": 3.59, "bronze_s": 2.0, "silver_files": 24}
    assert not missed(run(last=kept))


def test_the_first_two_tenths_are_shown_and_not_compared() -> None:
    cold = {"silver_s": 30.0, "gold_s": 20.0}
    assert missed(run(first=cold, last={"gold_s": 6.0})) == [
        "gold, s of a cycle, third and last tenth: 3.00 to 6.00"
    ]
    assert "| 2 | 100,000 | 1.50 | 30.00 | 20.00 |" in flights.section([run(first=cold)])


def test_a_tenth_has_the_median_of_its_seconds_and_the_last_of_its_sizes() -> None:
    steps = [step(number, gold_s=float(number), silver_rows=number) for number in range(1, 31)]
    third = flights.tenths(steps)[2]
    assert (third["gold_s"], third["silver_rows"], third["messages"]) == (8.0, 9, 150_000)
    assert flights.tenths([]) == []


def test_either_run_may_be_left_out() -> None:
    found = run()
    found["tenths"] = []
    assert len(flights.verdict(found)) == 1
    assert "tenth | messages" not in flights.section([found])
    found = run()
    found["loads"] = []
    assert "load 1" not in flights.section([found])
    assert "in some 1,000,000 messages" in flights.section([found])


@pytest.mark.parametrize(
    "words",
    [
        ["--steps", "15"],
        ["--steps", "210"],
        ["--steps", "-10"],
        ["--loads", "21"],
        ["--loads", "-1"],
        ["--loads", "0", "--steps", "0"],
        ["--flights", "999"],
        ["--flights", "336777"],
    ],
)
def test_sizes_out_of_range_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["flights", *words]) == 2
    assert "no such benchmark" in capsys.readouterr().err


def test_the_command_is_one_of_scripts_bench() -> None:
    assert command.MEASURED["flights"] is flights
    assert command.SECTIONS["flights"] is flights.section
    assert "flights" in command.ABOUT
    assert flights.Options().words() == "--loads 3 --steps 40 --flights 336776"
