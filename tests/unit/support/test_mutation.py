"""Mutants: what is changed, what is left alone, and which tests run against them."""

from __future__ import annotations

import ast

import pytest

from tests.mutation.code import Mutant, lines, mutant
from tests.mutation.coverage import Coverage
from tests.mutation.run import FIRST_FILES, module_name, parts

SOURCE = '''
"""A module."""
import random

LIMIT = 8


class Table:
    """A class."""

    def add(self, number: int = 1) -> int:
        """Return the sum."""
        assert number > 0
        log.info("add", number=number + 1)
        if number > LIMIT and self.open:
            raise ValueError(f"{number + 1} is too much")
        for one in range(number):
            if not one:
                continue
            self.rows[one] = one % 2
        return self.total + number
'''


def made() -> list[Mutant]:
    tree = ast.parse(SOURCE)
    return [mutant(tree, "services/tarn/x.py", number) for number in range(len(lines(tree)))]


def test_each_mutant_is_one_change() -> None:
    found = {(one.before, one.after) for one in made()}
    assert found >= {
        ("LIMIT = 8", "LIMIT = 4"),
        ("def add(self, number: int=1): …", "def add(self, number: int=2): …"),
        ("if number > LIMIT and self.open: …", "if number >= LIMIT and self.open: …"),
        ("if number > LIMIT and self.open: …", "if number > LIMIT or self.open: …"),
        ("if number > LIMIT and self.open: …", "if not (number > LIMIT and self.open): …"),
        ("raise ValueError(f'{number + 1} is too much')", "pass"),
        ("continue", "break"),
        ("self.rows[one] = one % 2", "self.rows[one] = one // 2"),
        ("return self.total + number", "return self.total - number"),
        ("return self.total + number", "return None"),
    }
    for one in made():
        assert one.before != one.after
        compile(one.tree, one.file, "exec")


def test_log_lines_messages_and_assertions_are_left_alone() -> None:
    assert not [one for one in made() if "log" in one.before or "assert" in one.before]
    assert not [one for one in made() if "too much" in one.after]


def test_a_constant_belongs_to_the_tests_of_the_lines_that_name_it() -> None:
    by_before = {one.before: one for one in made()}
    limit, end = by_before["LIMIT = 8"], by_before["return self.total + number"]
    assert (limit.in_function, end.in_function) == (False, True)
    seconds = {"a": 2.0, "b": 1.0, "c": 3.0}
    covered = Coverage(lines={limit.file: {limit.used[0]: {"a", "b"}, end.line: {"b", "c"}}}, seconds=seconds)
    assert covered.covering(limit) == ["b", "a"]
    assert covered.covering(end) == ["b", "c"]
    assert covered.covering(end, total_s=3.5) == ["b"]


def test_tests_added_to_the_map_replace_their_own_lines_only() -> None:
    new = Coverage(lines={"x": {1: {"a"}}}, seconds={"a": 1.0})
    new.add(Coverage(lines={"x": {1: {"b"}, 2: {"a", "b"}}}, seconds={"a": 9.0, "b": 2.0}))
    assert new.lines == {"x": {1: {"a", "b"}, 2: {"b"}}}
    assert new.seconds == {"a": 1.0, "b": 2.0}


def test_quick_tests_of_few_files_come_first_and_no_test_is_left_out() -> None:
    seconds = {f"t{file}.py::test_{n}": 0.1 for file in range(4) for n in range(3)} | {"t0.py::slow": 30.0}
    tests = sorted(seconds, key=lambda test: seconds[test])
    first, rest = parts(tests, seconds)
    assert len({test.partition("::")[0] for test in first}) == FIRST_FILES
    assert sorted([*first, *rest]) == sorted(tests)
    assert "t0.py::slow" in rest


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("catalog/tarn_catalog/state/claim.py", "tarn_catalog.state.claim"),
        ("services/tarn/core/offsets.py", "tarn.core.offsets"),
        ("services/demo/tarn_demo/driver.py", "tarn_demo.driver"),
    ],
)
def test_the_name_of_a_module(file: str, name: str) -> None:
    assert module_name(file) == name
