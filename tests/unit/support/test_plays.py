"""Random plays and Hypothesis: how many, and nothing that depends on how busy the machine is."""

from __future__ import annotations

import ast
import re

import pytest
from hypothesis import HealthCheck, settings

from tests.support import plays
from tests.support.tiers import TESTS_DIR


@pytest.mark.parametrize(("times", "count"), [(1, 12), (20, 240)])
def test_nightly_runs_a_multiple_of_the_seeds(
    times: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plays, "TIMES", times)
    assert plays.seeds(12) == range(count)


def test_the_docs_name_what_each_test_left_to_the_night_would_catch() -> None:
    """The second column of the table in docs/testing.md is the argument of the marker."""
    marked = {
        reason
        for path in TESTS_DIR.rglob("*.py")
        for reason in re.findall(r'pytest\.mark\.nightly\(\s*"([^"]+)"', path.read_text(encoding="utf-8"))
    }
    text = (TESTS_DIR.parent / "docs" / "testing.md").read_text(encoding="utf-8")
    section = text.partition("## Only in `nightly-stack`")[2].partition("\n## ")[0]
    rows = [row.split(" | ") for row in section.splitlines() if row.startswith("| `")]
    assert {row[1] for row in rows} == marked != set()
    for row in rows:
        (name,) = re.findall(r"`(test_\w+)`", row[0])
        assert any(
            f"def {name}(" in path.read_text(encoding="utf-8") for path in TESTS_DIR.rglob("test_*.py")
        )


def test_hypothesis_has_no_deadline() -> None:
    assert settings().deadline is None
    assert HealthCheck.too_slow in settings().suppress_health_check


@pytest.mark.long
def test_no_test_sets_a_deadline_of_its_own() -> None:
    found = []
    for path in sorted(TESTS_DIR.rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "settings(" in text else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "settings":
                found += [
                    f"{path.name}:{node.lineno}"
                    for option in node.keywords
                    if option.arg == "deadline" and ast.unparse(option.value) != "None"
                ]
    assert found == []
