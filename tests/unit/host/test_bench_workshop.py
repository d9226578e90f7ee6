"""scripts/bench workshop: the timetable, what a student runs, and what makes the verdict red."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from tarn_host.bench import classroom, workshop, workshop_page
from tarn_host.bench.command import main, report
from tarn_host.bench.workshop_student import CODE
from tarn_host.console import StopError

NOTES = """# Notes

| 99 | 11 elsewhere | |

## Two hours
| minutes | notebook | |
|---|---|---|
| 10 | 00 tour | together |
| 5 | | pause |
| 15 | 06 time travel, or 05 pipeline | |

## After
| 99 | 10 small files | |
"""
BOOK: dict[str, Any] = {
    "cells": [
        {"cell_type": "markdown", "id": "a", "source": ["text"]},
        {"cell_type": "code", "id": "b", "source": ["x = 1\n", 'lab = workshop.open("02")']},
        {"cell_type": "code", "id": "exercise-1", "source": "answer = ..."},
        {"cell_type": "code", "id": "check-1", "source": 'lab.check("1", answer)'},
        {"cell_type": "code", "id": "c", "source": "lab.done()"},
    ]
}
LAST = "12 facts checked on this lake, all of them hold; 1 of 1 exercises solved\n"


def cell(name: str, said: str = "", *, seconds: float = 1.0, error: str = "") -> dict[str, Any]:
    return {"cell": name, "seconds": seconds, "said": said, "error": error}


CELLS = [
    cell("b", "✓ yes\n", seconds=3.04),
    cell("exercise-1"),
    cell("check-1", "○ exercise 1: not answered yet\n"),
    cell("exercise-1-wrong"),
    cell("check-1-wrong", "✗ exercise 1: no\n"),
    cell("exercise-1-solved"),
    cell("check-1-solved", "★ exercise 1: right. Well.\n"),
    cell("c", LAST),
]


def student() -> dict[str, Any]:
    """The names of the program that runs in JupyterLab's container."""
    found: dict[str, Any] = {"__name__": "student"}
    exec(CODE, found)
    return found


def book(number: str = "02", **changed: object) -> dict[str, Any]:
    return {
        **workshop.outcome(CELLS),
        "notebook": number,
        "student": "ada",
        "due_s": 600.0,
        "until_s": 1800.0,
        "begun_s": 600.4,
        "ended_s": 1571.0,
        "facts_wanted": 12,
        "exercises": 1,
        **changed,
    }


def sample(at_s: int, mib: int, rows: int, behind: int = 3) -> dict[str, Any]:
    layers = {"bronze": {"rows": 2 * rows, "behind": 0}, "silver": {"rows": rows, "behind": behind}}
    return {"at_s": at_s, "memory": {"jupyter": mib, "spark": 900}, "layers": layers}


def run() -> dict[str, Any]:
    return {
        "minutes": 120.0,
        "size": "full",
        "share": 0.8,
        "notebooks": [book("02"), book("03")],
        "samples": [sample(0, 100, 5), sample(590, 400, 7, 40), sample(660, 300, 8), sample(700, 310, 9)],
        "unseen": 0,
        "ends": [
            {"command": "scripts/tarn fsck", "code": 0, "said": "fine", "judged": True},
            {"command": "scripts/tarn audit ws_ada.prices", "code": 1, "said": "", "judged": False},
        ],
        "kernels": ["tarn/02.ipynb", "tarn/03.ipynb"],
        "limits": {"jupyter": 1024, "spark": 2048},
        "restarts": {"jupyter": 0},
        "ooms": {},
    }


def test_the_timetable_is_the_one_of_the_section() -> None:
    assert workshop.timetable(NOTES) == [
        workshop.Slot(0, 600, ("00",)),
        workshop.Slot(600, 300, ()),
        workshop.Slot(900, 900, ("06", "05")),
    ]


def test_the_teachers_notes_have_two_hours_of_notebooks_with_answers() -> None:
    slots = workshop.timetable(workshop.NOTES.read_text(encoding="utf-8"))
    assert slots[-1].at_s + slots[-1].seconds == workshop.Options().minutes * 60
    for notebook in [number for slot in slots for number in slot.notebooks]:
        assert len(list(classroom.FOLDER.glob(f"{notebook}_*.ipynb"))) == 1
        known = classroom.answers(notebook)
        assert set(known.get("WRONG", {})) == set(known["SOLUTIONS"])
    assert max(len(slot.notebooks) for slot in slots) <= len(workshop.STUDENTS)


@pytest.mark.parametrize("notes", [NOTES.replace("pause", "rest"), NOTES.replace("Two hours", "Three hours")])
def test_notes_without_a_clear_timetable_are_refused(notes: str) -> None:
    with pytest.raises(StopError, match=r"teacher\.md"):
        workshop.timetable(notes)


def test_the_timetable_is_shrunk_as_a_whole() -> None:
    slots = workshop.schedule(workshop.timetable(NOTES), 3)
    assert [(slot.at_s, slot.seconds) for slot in slots] == [(0, 60), (60, 30), (90, 90)]


def test_a_student_answers_wrong_and_then_right() -> None:
    steps = student()["steps"](
        BOOK, {"exercise-1": "answer = 2"}, {"exercise-1": [("answer = 3", "no")]}, "ada", "full"
    )
    assert steps == [
        ("b", 'x = 1\nlab = workshop.open("02", student="ada")'),
        ("exercise-1", "answer = ..."),
        ("check-1", 'lab.check("1", answer)'),
        ("exercise-1-wrong", "answer = 3"),
        ("check-1-wrong", 'lab.check("1", answer)'),
        ("exercise-1-solved", "answer = 2"),
        ("check-1-solved", 'lab.check("1", answer)'),
        ("c", "lab.done()"),
    ]


def test_a_small_notebook_is_told_so_before_its_first_cell() -> None:
    (first, *rest) = student()["steps"](BOOK, {"exercise-1": ""}, {"exercise-1": [("", "")]}, "ada", "small")
    assert first == ("size", "import os; os.environ['TARN_WORKSHOP_SIZE'] = 'small'")
    assert len(rest) == 8


def test_every_notebook_of_the_timetable_names_its_student() -> None:
    """The first cell is found and changed; else all of them would work under one name."""
    for slot in workshop.timetable(workshop.NOTES.read_text(encoding="utf-8")):
        for number in slot.notebooks:
            (path,) = classroom.FOLDER.glob(f"{number}_*.ipynb")
            known = classroom.answers(number)
            found = json.loads(path.read_text(encoding="utf-8"))
            steps = student()["steps"](found, known["SOLUTIONS"], known.get("WRONG", {}), "ben", "full")
            opened = [source for _, source in steps if "workshop.open(" in source]
            assert len(opened) == 1
            assert f'workshop.open("{number}", student="ben")' in opened[0]


def test_the_cells_are_spread_over_the_time() -> None:
    due = student()["due"]
    assert [due(1000.0, 80.0, place, 4) for place in range(4)] == [1000.0, 1020.0, 1040.0, 1060.0]


def test_a_notebook_is_judged_by_what_its_cells_say() -> None:
    found = workshop.outcome(CELLS)
    assert found == {
        "cells": 8,
        "busy_s": 10.0,
        "slowest": {"cell": "b", "seconds": 3.0},
        "facts": 12,
        "solved": 1,
        "refused": 1,
        "accepted": 1,
        "errors": [],
    }


def test_a_wrong_answer_that_is_accepted_is_not_refused() -> None:
    cells = [cell("check-1-wrong", "★ exercise 1: right.\n"), cell("check-1-solved", "✗ exercise 1: no\n")]
    found = workshop.outcome([*cells, cell("d", error="AssertionError: not so: x")])
    assert (found["refused"], found["accepted"], found["facts"]) == (0, 0, None)
    assert found["errors"] == ["d: AssertionError: not so: x"]
    assert workshop.outcome([])["facts"] is None


def test_a_walk_without_a_fault_reaches_every_aim() -> None:
    assert [words for ok, words in workshop_page.verdict(run()) if not ok] == []


def spoiled(**changed: object) -> Callable[[dict[str, Any]], None]:
    return lambda found: found.update(changed)


def notebook(**changed: object) -> Callable[[dict[str, Any]], None]:
    return lambda found: found["notebooks"][1].update(changed)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (notebook(ended_s=1830.0), "except 03 by 30 s"),
        (notebook(errors=["c: NameError: x"]), "except 03, c: NameError: x"),
        (notebook(facts=11), "except 03 11 of 12"),
        (notebook(facts=None), "except 03 0 of 12"),
        (notebook(refused=0), "refused, except 03 0 of 1"),
        (notebook(accepted=0), "accepted, except 03 0 of 1"),
        (notebook(solved=0), "accepted, except 03 0 of 1"),
        (spoiled(kernels=["tarn/02.ipynb"]), "1 of 2 kernels"),
        (spoiled(restarts={"spark": 1}), "started again, except spark 1"),
        (spoiled(ooms={"jupyter": 2}), "except jupyter 2"),
        (spoiled(samples=[sample(0, 1, 5), sample(60, 1, 5)]), "5 to 5 rows in silver"),
        (spoiled(samples=[]), "no rows in silver"),
        (spoiled(unseen=1), "(4 of 5)"),
        (
            spoiled(ends=[{"command": "scripts/doctor", "code": 1, "said": "", "judged": True}]),
            "scripts/doctor ended with 1",
        ),
    ],
)
def test_each_fault_is_a_miss_and_named(spoil: Callable[[dict[str, Any]], None], words: str) -> None:
    found = copy.deepcopy(run())
    spoil(found)
    (missed,) = [said for ok, said in workshop_page.verdict(found) if not ok]
    assert words in missed
    assert f"- **missed**: {missed}.\n" in workshop_page.section([found])


def test_the_page_has_the_times_and_the_memory_of_every_ten_minutes() -> None:
    raw = {"bench": "workshop", "command": "scripts/bench workshop", "date": "2026-01-01", "commit": "abc"}
    text = report([{**raw, "machine": "2 cores", "engine": "1", "runs": [run()]}])
    assert "## The workshop by the clock" in text
    assert "| 02 | ada | 10:00 | 10:00 | 26:11 | 30:00 | 10.0 | b 3.0 | 12 of 12 | 1 of 1 | 1 of 1 |" in text
    assert "| MiB | limit | 0:00 | 0:11 | 0:11 | largest |" in text
    assert "| jupyter | 1024 | 100 | 300 | 310 | 400 |" in text
    assert "| **all** | | 1,000 | 1,200 | 1,210 | 1,300 |" in text
    assert "- `scripts/tarn audit ws_ada.prices`, a table of a student's: exit code 1.\n" in text
    assert "| silver | 5 (3) | 8 (3) | 9 (3) | 40 |" in text
    assert "*Own*" not in text


def test_the_page_has_the_memory_of_processes_beside_that_with_the_cache_of_files() -> None:
    found = run()
    for n, one in enumerate(found["samples"]):
        one["own"] = {"jupyter": 80 + n}
    text = workshop_page.section([found])
    head = "| MiB | limit | 0:00 | 0:11 | 0:11 | largest | own, first and last |"
    assert f"{head}\n|---|---|---|---|---|---|---|\n" in text
    assert "| jupyter | 1024 | 100 | 300 | 310 | 400 | 80 and 83 |" in text
    assert f"| 900 | {workshop_page.DASH} |" in text
    assert "| **all** | | 1,000 | 1,200 | 1,210 | 1,300 | |" in text
    assert "*Own*" in text


def test_every_table_that_is_filled_from_a_topic_is_audited() -> None:
    ingestors = {
        "flights": {"table": "bronze.flight_events", "topic": "flight-events"},
        "again": {"table": "bronze.flight_events", "topic": "flight-events-2"},
        "ws-ada-orders": {"table": "ws_ada.orders", "topic": "workshop.ada.orders"},
        "tarn-audit": {"table": "ops.audit", "topic": "_tarn_trail.audit"},
    }
    assert workshop.ingested({"ingestors": ingestors}) == ["bronze.flight_events", "ws_ada.orders"]


@pytest.mark.parametrize("words", [("--minutes", "4"), ("--size", "huge")])
def test_a_walk_that_makes_no_sense_is_refused(
    words: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["workshop", *words]) == 2
    assert "no such benchmark" in capsys.readouterr().err


def test_a_record_does_not_name_the_folder_of_the_clone() -> None:
    said = f"tarn-1 in {workshop.ROOT}: nothing is wrong; {workshop.ROOT}/scripts/up"
    assert workshop.without_folder(said) == "tarn-1: nothing is wrong; ./scripts/up"
