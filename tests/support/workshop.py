"""The workshop's notebooks with answers in their exercises, for the tests that run them."""

from __future__ import annotations

import copy
import json
import re
import runpy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "notebooks"
FILES = sorted(FOLDER.glob("*.ipynb"))

Cell = dict[str, Any]
Book = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a notebook shows when it runs; from notebooks/solutions.

    Attributes:
        facts: how many facts are checked.
        pictures: how many plots are drawn.
        solutions: id of each exercise's cell to the source that solves it.
        also: id of the cell to sources that solve it in other ways; their checkers must take them too.
        wrong: id of the cell to pairs of a wrong answer's source and words that the checker must say.
    """

    facts: int
    pictures: int
    solutions: dict[str, str]
    also: dict[str, list[str]]
    wrong: dict[str, list[tuple[str, str]]]


def expected(name: str) -> Expected:
    """What the notebook of this file name shows."""
    found = runpy.run_path(str(FOLDER / "solutions" / f"{name[:2]}.py"))
    return Expected(
        facts=found["FACTS"],
        pictures=found["PICTURES"],
        solutions=found["SOLUTIONS"],
        also=found.get("ALSO", {}),
        wrong=found["WRONG"],
    )


def read(name: str) -> Book:
    found: Book = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    return found


def source(cell: Cell) -> str:
    return "".join(cell["source"])


def exercises(book: Book) -> list[str]:
    """Ids of the cells of exercises, in order."""
    return [cell["id"] for cell in book["cells"] if re.fullmatch(r"exercise-\d+", cell["id"])]


def check_of(exercise: str) -> str:
    """The id of the cell that checks an exercise."""
    return exercise.replace("exercise", "check")


def answered(book: Book, found: Expected) -> Book:
    """The notebook with each exercise first as it is, then answered wrong in each way, then solved in each.

    The cells that are added are named `exercise-1-wrong-0`, `check-1-wrong-0`, …, `exercise-1-also-0`, …,
    `exercise-1-solved`.
    """
    made = copy.deepcopy(book)
    cells: list[Cell] = []
    for cell in made["cells"]:
        cells.append(cell)
        if not re.fullmatch(r"check-\d+", cell["id"]):
            continue
        exercise = cell["id"].replace("check", "exercise")
        answers = [(f"wrong-{n}", text) for n, (text, _) in enumerate(found.wrong[exercise])]
        answers += [(f"also-{n}", text) for n, text in enumerate(found.also.get(exercise, ()))]
        for suffix, text in (*answers, ("solved", found.solutions[exercise])):
            cells.append(_cell(f"{exercise}-{suffix}", text))
            cells.append(_cell(f"{cell['id']}-{suffix}", source(cell)))
    made["cells"] = cells
    return made


def _cell(name: str, text: str) -> Cell:
    return {
        "cell_type": "code",
        "execution_count": None,
        "id": name,
        "metadata": {},
        "outputs": [],
        "source": text,
    }


def outputs(book: Book) -> Iterator[tuple[str, dict[str, Any]]]:
    for cell in book["cells"]:
        for output in cell.get("outputs", []):
            yield cell["id"], output


def errors(book: Book) -> list[str]:
    return [f"{at}: {o['ename']}: {o['evalue']}" for at, o in outputs(book) if o["output_type"] == "error"]


def printed(book: Book, cell: str | None = None) -> str:
    """What was printed, by one cell or by all."""
    found = (o for at, o in outputs(book) if cell in (None, at) and o.get("name") == "stdout")
    return "".join("".join(o["text"]) for o in found)


def noise(book: Book) -> list[str]:
    """What was written to stderr: a notebook for teaching warns about nothing."""
    return [f"{at}: {''.join(o['text'])[:300]}" for at, o in outputs(book) if o.get("name") == "stderr"]


def pictures(book: Book) -> int:
    return sum(1 for _, o in outputs(book) if "image/png" in o.get("data", {}))
