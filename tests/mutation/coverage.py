"""Which tests run which line of the mutated files: a pytest plugin and the map that it writes."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.mutation.code import Mutant

ROOT = Path(__file__).resolve().parents[2]


@dataclass(slots=True)
class Coverage:
    """Lines and durations by test.

    Attributes:
        lines: file -> line -> ids of the tests that ran it; what a shared fixture runs counts for the test
            that set it up.
        seconds: test id -> duration, set-up included, in seconds.
    """

    lines: dict[str, dict[int, set[str]]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def covering(self, mutant: Mutant, *, total_s: float = 0.0) -> list[str]:
        """The tests of a mutant, the quickest first.

        Those that run its line, else the first line of its statement. Of a constant, those that run a line
        that names it; of other code that runs at import, all tests of the file.

        Args:
            mutant: the mutant.
            total_s: the limit of their duration, in seconds; 0: all of them.
        """
        by_line = self.lines.get(mutant.file, {})
        if mutant.in_function:
            found = by_line.get(mutant.line) or by_line.get(mutant.statement_line, set())
        else:
            found = set().union(*(by_line.get(line, set()) for line in mutant.used))
            found = found or set().union(*by_line.values())
        ordered, sum_s = [], 0.0
        for test in sorted(found, key=lambda test: (self.seconds[test], test)):
            sum_s += self.seconds[test]
            if total_s and sum_s > total_s:
                break
            ordered.append(test)
        return ordered

    def add(self, other: Coverage) -> None:
        """Add the lines and durations of another run; what both have is from this one."""
        for file, by_line in other.lines.items():
            for line, tests in by_line.items():
                old = {test for test in tests if test not in self.seconds}
                self.lines.setdefault(file, {}).setdefault(line, set()).update(old)
        self.seconds = {**other.seconds, **self.seconds}

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        lines = {
            f: {str(n): sorted(tests) for n, tests in sorted(by.items())} for f, by in self.lines.items()
        }
        path.write_text(json.dumps({"lines": lines, "seconds": self.seconds}), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Coverage:
        """What `save` wrote."""
        found = json.loads(path.read_text(encoding="utf-8"))
        lines = {f: {int(n): set(tests) for n, tests in by.items()} for f, by in found["lines"].items()}
        return cls(lines=lines, seconds=found["seconds"])


class Recorder:
    """Plugin that records the lines of the files by Python's trace function.

    Args:
        files: paths relative to the repository.
    """

    def __init__(self, files: list[str]) -> None:
        self.found = Coverage(lines={file: {} for file in files})
        self._names: dict[str, dict[int, set[str]] | None] = {
            str(ROOT / file): self.found.lines[file] for file in files
        }
        self._test = ""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Trace one test with its fixtures."""
        self._test = item.nodeid
        threading.settrace(self._call)
        sys.settrace(self._call)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add up the durations of set-up, call and teardown."""
        self.found.seconds[report.nodeid] = self.found.seconds.get(report.nodeid, 0.0) + report.duration

    def _call(self, frame: FrameType, event: str, argument: object) -> Any:
        lines = self._names.get(frame.f_code.co_filename)
        if lines is None:
            return None

        def line(frame: FrameType, event: str, argument: object) -> Any:
            if event == "line":
                lines.setdefault(frame.f_lineno, set()).add(self._test)
            return line

        return line
