"""What ends first when a test of a suite has ended."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tarn_testkit import plugin


class Declared:
    """A lake with an ingestor that a test declared, which may not be deletable."""

    def __init__(self, steps: list[str], error: Exception | None = None) -> None:
        self._steps = steps
        self._error = error

    def end_of_test(self) -> None:
        self._steps.append("ingestors")
        if self._error is not None:
            raise self._error


def torn_down(lake: Declared | None, steps: list[str], error: Exception | None = None) -> None:
    """Run the hook as pytest does, around the end of the fixtures."""
    stash: dict[Any, Any] = {} if lake is None else {plugin.LAKE: lake}
    item: Any = SimpleNamespace(config=SimpleNamespace(stash=stash))
    hook = plugin.pytest_runtest_teardown(item)
    next(hook)
    steps.append("fixtures")
    end = hook.throw if error is not None else hook.send
    with pytest.raises(StopIteration):
        end(error)


def test_ingestors_are_deleted_before_the_namespace_that_they_write_into() -> None:
    steps = list[str]()
    torn_down(Declared(steps), steps)
    assert steps == ["ingestors", "fixtures"]


def test_a_test_without_a_lake_ends_with_its_fixtures() -> None:
    steps = list[str]()
    torn_down(None, steps)
    assert steps == ["fixtures"]


def test_fixtures_end_though_an_ingestor_cannot_be_deleted() -> None:
    steps = list[str]()
    with pytest.raises(OSError, match="no answer"):
        torn_down(Declared(steps, OSError("no answer")), steps)
    assert steps == ["ingestors", "fixtures"]


def test_an_error_of_a_fixture_is_that_of_the_test() -> None:
    steps = list[str]()
    with pytest.raises(ValueError, match="of a fixture"):
        torn_down(Declared(steps), steps, ValueError("of a fixture"))
    with pytest.raises(ValueError, match="of a fixture") as both:
        torn_down(Declared(steps, OSError("no answer")), steps, ValueError("of a fixture"))
    assert isinstance(both.value.__context__, OSError), "and neither is lost"
