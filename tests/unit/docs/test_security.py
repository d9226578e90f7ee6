"""docs/security.md names all 25 checks; what it calls done is held by tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ROWS = re.findall(
    r"^\| (\d+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$",
    (ROOT / "docs/security.md").read_text(encoding="utf-8"),
    re.MULTILINE,
)
DONE_NOW = {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 14, 15, 16, 17, 19, 20, 21, 23}


def test_every_check_is_there_once_and_in_order() -> None:
    assert [int(number) for number, *_ in ROWS] == list(range(1, 26))


def test_what_must_hold_now_is_done() -> None:
    assert {int(number) for number, _, state, _ in ROWS if state.strip() == "done"} == DONE_NOW


@pytest.mark.parametrize(("number", "_check", "state", "held"), ROWS)
def test_what_is_held_is_held_by_tests_that_exist(number: str, _check: str, state: str, held: str) -> None:
    if state.startswith("later: "):
        assert held.strip() == "\u2013", number
        return
    names = held.split(", ")
    assert state.startswith(("done", "part: ")), number
    for name in names:
        path, _, function = name.strip().partition("::")
        text = (ROOT / path).read_text(encoding="utf-8")
        assert not function or re.search(rf"^def {function}\(", text, re.MULTILINE), name
