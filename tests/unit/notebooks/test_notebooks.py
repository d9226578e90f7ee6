"""Committed notebooks: no outputs, fixed metadata, a last cell that reports what was checked."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[3] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def book(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def test_there_is_a_tour() -> None:
    assert next(path.name for path in NOTEBOOKS) == "00_tour.ipynb"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_nothing_of_a_run_is_committed(path: Path) -> None:
    found = book(path)
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


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_cells_have_names_and_code_that_parses(path: Path) -> None:
    cells = book(path)["cells"]
    names = [cell["id"] for cell in cells]
    assert len(set(names)) == len(names)
    assert cells[0]["cell_type"] == "markdown"
    assert "".join(cells[0]["source"]).startswith("# ")
    for cell in cells:
        source = "".join(cell["source"])
        assert source.strip(), cell["id"]
        if cell["cell_type"] == "code":
            ast.parse(source)
    assert "facts checked on this lake, all of them hold" in "".join(cells[-1]["source"])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_facts_are_checked_in_words(path: Path) -> None:
    """Every bare `assert` prints the actual value; facts go through `check`, which counts them."""
    for cell in book(path)["cells"]:
        if cell["cell_type"] != "code":
            continue
        for node in ast.walk(ast.parse("".join(cell["source"]))):
            if isinstance(node, ast.Assert):
                assert node.msg is not None, cell["id"]
