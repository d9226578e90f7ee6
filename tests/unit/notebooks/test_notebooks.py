"""Committed notebooks: no outputs, fixed metadata, exercises with checkers and solutions, a last cell."""

from __future__ import annotations

import ast
import importlib
import json
import re
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest

from tarn.workshop.notebooks import NOTEBOOKS, start_page
from tests.support.workshop import FILES, FOLDER, ROOT, Book, check_of, exercises, expected, read, source

METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
EACH = pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
NAMED = re.compile(r"lab\.(?:name|topic|ingestor)\(\"([^\"]+)\"\)")
PART = re.compile(r"^## \d\. (?!Your turn).*$", re.MULTILINE)
SECTION = re.compile(r"^## (\d\d) ", re.MULTILINE)


def number(path: Path) -> str:
    return path.name[:2]


def code(book: Book) -> list[dict[str, Any]]:
    return [cell for cell in book["cells"] if cell["cell_type"] == "code"]


def test_there_is_a_tour() -> None:
    assert FILES[0].name == "00_tour.ipynb"


@EACH
def test_nothing_of_a_run_is_committed(path: Path) -> None:
    found = read(path.name)
    assert set(found) == {"cells", "metadata", "nbformat", "nbformat_minor"}
    assert (found["nbformat"], found["nbformat_minor"]) == (4, 5)
    assert found["metadata"] == METADATA
    for cell in found["cells"]:
        assert cell["metadata"] == {}, cell["id"]
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [], cell["id"]
            assert cell["execution_count"] is None, cell["id"]
    text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
    assert path.read_text(encoding="utf-8") == text, "written in another way: a diff would show what is none"


@EACH
def test_cells_have_names_and_code_that_parses(path: Path) -> None:
    cells = read(path.name)["cells"]
    names = [cell["id"] for cell in cells]
    assert len(set(names)) == len(names)
    assert cells[0]["cell_type"] == "markdown"
    assert source(cells[0]).startswith("# ")
    for cell in cells:
        assert source(cell).strip(), cell["id"]
        if cell["cell_type"] == "code":
            ast.parse(source(cell))
    assert source(cells[-1]).rstrip().endswith("lab.done()")


@EACH
def test_facts_are_checked_in_words(path: Path) -> None:
    """Every bare `assert` prints the actual value; facts go through `lab.fact`, which counts them."""
    for cell in code(read(path.name)):
        for node in ast.walk(ast.parse(source(cell))):
            if isinstance(node, ast.Assert):
                assert node.msg is not None, cell["id"]


@EACH
def test_the_list_of_notebooks_has_it(path: Path) -> None:
    about = NOTEBOOKS[number(path)]
    book = read(path.name)
    assert path.name == about.file
    assert source(book["cells"][0]).splitlines()[0] == f"# {about.title}"
    assert f'workshop.open("{about.number}")' in "".join(source(cell) for cell in code(book))


@EACH
def test_exercises_have_a_checker_solutions_and_wrong_answers(path: Path) -> None:
    book, wanted = read(path.name), expected(path.name)
    found = exercises(book)
    assert found == [f"exercise-{n}" for n in range(1, len(found) + 1)]
    assert 2 <= len(found) <= 4
    assert set(wanted.solutions) == set(wanted.wrong) == set(found)
    assert set(wanted.also) <= set(found)
    by_id = {cell["id"]: source(cell) for cell in book["cells"]}
    after = dict(pairwise(by_id))
    for exercise in found:
        at = exercise.rpartition("-")[2]
        assert re.search(r"^answer = \.\.\.", by_id[exercise], re.MULTILINE), exercise
        assert after[exercise] == check_of(exercise)
        assert by_id[check_of(exercise)].strip() == f'lab.check("{at}", answer)'
        assert wanted.wrong[exercise], f"{exercise} has no wrong answer"
        right = (wanted.solutions[exercise], *wanted.also.get(exercise, ()))
        for text in (*right, *(wrong for wrong, _ in wanted.wrong[exercise])):
            ast.parse(text)
        assert all(words for _, words in wanted.wrong[exercise])
    if found:
        checks = importlib.import_module(f"tarn.workshop.checks.nb{number(path)}")
        checkers = {name for name in vars(checks) if name.startswith("exercise_")}
        assert checkers == {name.replace("-", "_") for name in found}


@EACH
def test_it_begins_with_its_aim_its_time_and_what_it_needs(path: Path) -> None:
    first = source(read(path.name)["cells"][0])
    assert "**Aim.** " in first
    (minutes,) = re.findall(r"\*\*Time\.\*\* (\d+) minutes", first)
    assert int(minutes) == NOTEBOOKS[number(path)].minutes
    assert "**Needs.** " in first or "**You need** " in first


@EACH
def test_each_part_says_what_one_should_see(path: Path) -> None:
    """A reader alone at home knows by it whether things go as they should."""
    cells = [source(cell) for cell in read(path.name)["cells"] if cell["cell_type"] == "markdown"]
    parts = [(part, "**You should see** " in text) for text in cells for part in PART.findall(text)]
    assert len(parts) >= 4
    silent = [part for part, says in parts if not says]
    assert silent == []


@EACH
def test_a_reset_knows_what_it_makes(path: Path) -> None:
    """Names that a notebook gives are in the list of notebooks, by which a reset after a restart goes."""
    book = read(path.name)
    text = "\n".join(source(cell) for cell in code(book))
    assert set(NAMED.findall(text)) <= set(NOTEBOOKS[number(path)].names)
    assert "lab.reset()" in text


def test_no_two_notebooks_make_things_of_one_name() -> None:
    for one, other in combinations(NOTEBOOKS.values(), 2):
        assert not set(one.names) & set(other.names), (one.number, other.number)


def test_the_start_page_has_every_notebook() -> None:
    page = (FOLDER / "start.md").read_text(encoding="utf-8")
    assert page == start_page([path.name for path in FILES]), (
        "write it again: see services/tarn/workshop/notebooks.py"
    )
    for path in FILES:
        assert f"]({path.name})" in page


def test_the_teacher_has_a_section_for_every_notebook() -> None:
    text = (ROOT / "docs" / "teacher.md").read_text(encoding="utf-8")
    assert SECTION.findall(text) == [number(path) for path in FILES]


def test_there_is_no_solution_without_its_notebook() -> None:
    assert sorted(path.stem for path in (FOLDER / "solutions").glob("*.py")) == [
        number(path) for path in FILES
    ]
