"""Each long test that takes turns is in exactly one of them, and every other test in all."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tarn_host.testing.tiers import TURNS

from tests.support.tiers import TESTS_DIR, last_in_their_folders
from tests.support.turns import of_other_turns, one_after_the_other

ALL = [str(n + 1) for n in range(TURNS)]


def item(name: str, mark: pytest.MarkDecorator | None) -> Any:
    """A test as pytest collects it."""
    return SimpleNamespace(nodeid=name, get_closest_marker=lambda _: mark and mark.mark)


def test_a_marked_test_is_in_one_turn_and_the_others_in_all() -> None:
    items = [
        *(item(str(value), mark) for value, mark in one_after_the_other(range(7), "a reason").items()),
        item("plain", None),
    ]
    turns = {one.nodeid: [turn for turn in ALL if one not in of_other_turns(items, turn)] for one in items}
    assert turns.pop("plain") == ALL
    assert list(turns.values()) == [["1"], ["2"], ["3"], ["4"], ["5"], ["6"], ["1"]]
    assert of_other_turns(items, "") == []


def test_a_test_can_be_in_several_turns() -> None:
    items = [
        item(str(value), mark) for value, mark in one_after_the_other(range(4), "a reason", times=2).items()
    ]
    turns = [[turn for turn in ALL if one not in of_other_turns(items, turn)] for one in items]
    assert turns == [["1", "4"], ["2", "5"], ["3", "6"], ["1", "4"]]


def test_a_turn_that_does_not_exist_is_an_error() -> None:
    for number in (0, TURNS + 1):
        with pytest.raises(pytest.UsageError, match=f"in_turn\\({number}\\)"):
            of_other_turns([item("a", pytest.mark.in_turn(number, "a reason"))], "1")
        with pytest.raises(pytest.UsageError, match=f"in_turn\\({number}\\)"):
            of_other_turns([item("a", pytest.mark.in_turn((1, number), "a reason"))], "1")


def reasons() -> dict[str, set[str]]:
    """Test file -> the reasons of its marks, for marks with a constant number and of tables of parameters."""
    found: dict[str, set[str]] = {}
    for path in sorted(TESTS_DIR.rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if path.name == "test_turns.py" or not ("in_turn(" in text or "one_after_the_other(" in text):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                "pytest.mark.in_turn",
                "one_after_the_other",
            ):
                reason = node.args[1]
                assert isinstance(reason, ast.Constant), f"{path.name}:{node.lineno}: the reason is no text"
                found.setdefault(path.name, set()).add(str(reason.value))
    return found


@pytest.mark.long
def test_the_docs_name_what_the_other_turns_miss() -> None:
    """The table of docs/testing.md has a row for each file and reason."""
    text = (TESTS_DIR.parent / "docs" / "testing.md").read_text(encoding="utf-8")
    section = text.partition("## In turn")[2].partition("\n## ")[0]
    rows = [row.strip("| ").split(" | ") for row in section.splitlines() if row.startswith("| `")]
    written: dict[str, set[str]] = {}
    for file, reason in rows:
        written.setdefault(file.strip("`"), set()).add(reason)
    assert written == reasons() != {}


def test_tests_marked_last_come_after_the_others_of_their_folder() -> None:
    def at(folder: str, name: str, *, last: bool = False) -> Any:
        mark = pytest.mark.runs_last if last else None
        return SimpleNamespace(
            nodeid=name, path=Path(folder) / "test_x.py", get_closest_marker=lambda _: mark and mark.mark
        )

    items = [at("a", "1", last=True), at("a", "2"), at("b", "3", last=True), at("a", "4"), at("b", "5")]
    assert [item.nodeid for item in last_in_their_folders(items)] == ["2", "4", "1", "5", "3"]
