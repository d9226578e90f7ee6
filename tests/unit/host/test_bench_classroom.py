"""scripts/bench classroom: what counts as crosstalk, and what stands in the section."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from tarn_host.bench import classroom
from tarn_host.bench.command import main

SAID = "✓ yes\n12 facts checked on this lake, all of them hold; 2 of 2 exercises solved\n"


def one(seconds: float = 10.0, said: str = SAID) -> dict[str, Any]:
    return {"seconds": seconds, "fault": "", "said": said}


def run() -> dict[str, Any]:
    held = {"jupyter": {"limit_mib": 6144, "median_mib": 900, "max_mib": 1200}}
    return {
        "students": 2,
        "notebook": "02",
        "size": "small",
        "alone": {"students": {"alone": one(5.0)}, "left": {"alone": {"orders": 16}}},
        "together": {
            "students": {"s01": one(20.0), "s02": one(30.0)},
            "left": {"s01": {"orders": 16}, "s02": {"orders": 16}},
        },
        "memory": {"services": held, "all": {"median_mib": 3000, "max_mib": 3300}},
    }


def test_a_class_that_agrees_with_the_student_alone_is_well() -> None:
    assert classroom.crosstalk(run()) == []


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (
            ("students", "s02", "said"),
            "11 facts checked on this lake, all of them hold",
            "s02: 11 facts of 12",
        ),
        (("students", "s01", "said"), "", "s01: None facts of 12"),
        (("left", "s02"), {"orders": 17}, "s02 has {'orders': 17}"),
        (("left", "s01"), {"orders": 16, "carts": 1}, "s01 has"),
    ],
)
def test_other_facts_and_other_tables_are_faults(path: tuple[str, ...], value: object, words: str) -> None:
    found = copy.deepcopy(run())
    *steps, last = path
    place = found["together"]
    for step in steps:
        place = place[step]
    place[last] = value
    (fault,) = classroom.crosstalk(found)
    assert words in fault


def test_a_student_alone_who_fails_is_a_fault() -> None:
    found = run()
    found["alone"]["students"]["alone"] = {**one(said=""), "fault": "CellExecutionError: no"}
    assert "alone: CellExecutionError: no" in classroom.crosstalk(found)


def test_the_section_has_times_facts_and_memory() -> None:
    text = classroom.section([run()])
    assert (
        "alone: 5.0 s; together: the first after 20.0 s, half of them after 30.0 s, the last after 30.0 s"
        in text
    )
    assert "facts: 12 each" in text
    assert "| jupyter | 6144 | 900 | 1200 |" in text


@pytest.mark.parametrize("words", [("--students", "0"), ("--notebook", "77"), ("--size", "huge")])
def test_a_class_that_makes_no_sense_is_refused(
    words: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["classroom", "--notebook", "00", *words]) == 2
    assert "no such benchmark" in capsys.readouterr().err
