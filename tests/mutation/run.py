"""One mutant against its tests, in a forked process: killed, timed out, survived or not covered."""

from __future__ import annotations

import ast
import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import Phase, settings

from tests.mutation.code import Mutant
from tests.mutation.coverage import ROOT

TEST_S_MIN, TEST_TIMES_MAX = 20.0, 20.0
# Pytest was used wrongly, or none of the tests exists any more: that kills no mutant.
NOTHING_RAN = (4, 5)
WHOLE_S_MIN, WHOLE_TIMES_MAX = 60.0, 8.0
FIRST_FILES, FIRST_TEST_S, FIRST_S = 2, 1.0, 15.0
POLL_S = 0.02
KILLED, TIMED_OUT, SURVIVED, NOT_COVERED = "killed", "timed out", "survived", "not covered"
OPTIONS = [
    *("-q", "-p", "no:cacheprovider", "-p", "no:xdist"),
    # The libraries of the tests are imported before pytest starts.
    *("-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"),
]
"""Of every run of pytest here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of a mutant.

    Attributes:
        outcome: `killed`, `timed out` (counts as killed), `survived`, or `not covered` (counts as survived).
        by: id of the test that failed first, or empty.
        tests: number of tests that it was run against, at most.
        seconds: duration.
    """

    outcome: str
    by: str
    tests: int
    seconds: float

    @property
    def is_killed(self) -> bool:
        """Whether a test noticed it."""
        return self.outcome in (KILLED, TIMED_OUT)


def module_name(file: str) -> str:
    """`catalog/tarn_catalog/state/claim.py` -> `tarn_catalog.state.claim`."""
    parts = Path(file).with_suffix("").parts
    start = next(at for at, part in enumerate(parts) if part.startswith("tarn"))
    return ".".join(parts[start:])


class _Loader(importlib.abc.Loader):
    def __init__(self, tree: ast.Module, path: str) -> None:
        self._tree, self._path = tree, path

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._tree, self._path, "exec"), module.__dict__)


class _Finder(importlib.abc.MetaPathFinder):
    """Serves one module from a changed tree, everything else as usual."""

    def __init__(self, name: str, tree: ast.Module, path: str) -> None:
        self._name, self._loader, self._path = name, _Loader(tree, path), path

    def find_spec(
        self, fullname: str, path: object, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        return importlib.util.spec_from_file_location(fullname, self._path, loader=self._loader)


class _Bounds:
    """Plugin: the tests in the order given, each with a time limit; remembers what failed first."""

    def __init__(self, tests: Sequence[str], seconds: dict[str, float], report: int) -> None:
        self._order = {test: at for at, test in enumerate(tests)}
        self._seconds = seconds
        self._report = report

    def pytest_configure(self, config: pytest.Config) -> None:
        """Hypothesis stops at the first counter-example and draws the same examples for every mutant."""
        phases = [Phase.explicit, Phase.generate]
        settings.register_profile("mutation", settings(), phases=phases, derandomize=True, database=None)
        settings.load_profile("mutation")

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((i for i in items if i.nodeid in self._order), key=lambda i: self._order[i.nodeid])
        for item in items:
            limit_s = max(TEST_S_MIN, TEST_TIMES_MAX * self._seconds[item.nodeid])
            item.add_marker(pytest.mark.timeout(limit_s, method="signal"))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            late = "\ntimed out" if "Timeout (>" in str(report.longrepr) else ""
            os.write(self._report, (report.nodeid + late).encode()[:4_000])


def tried(mutant: Mutant, tests: Sequence[str], seconds: dict[str, float]) -> Result:
    """Run the tests, quickest first, until one fails.

    Args:
        mutant: the changed module; no module of the product may be imported in this process.
        tests: ids of the tests that cover its line, in the order to run them.
        seconds: test id -> its usual duration, in seconds.
    """
    begin = time.monotonic()
    outcome, by = NOT_COVERED, ""
    for part in parts(tests, seconds):
        outcome, by = _tried(mutant, part, seconds)
        if outcome != SURVIVED:
            break
    return Result(outcome=outcome, by=by, tests=len(tests), seconds=round(time.monotonic() - begin, 1))


def parts(tests: Sequence[str], seconds: dict[str, float]) -> list[list[str]]:
    """The tests in one or two parts: first quick ones of few files, since importing files takes longest."""
    quick: dict[str, list[str]] = {}
    for test in tests:
        if seconds[test] <= FIRST_TEST_S:
            quick.setdefault(test.partition("::")[0], []).append(test)
    first: list[str] = []
    for file in sorted(quick, key=lambda file: -len(quick[file]))[:FIRST_FILES]:
        first += quick[file]
    while first and sum(seconds[test] for test in first) > FIRST_S:
        first.pop()
    chosen = set(first)
    rest = [test for test in tests if test not in chosen]
    return [part for part in (first, rest) if part]


def _tried(mutant: Mutant, tests: Sequence[str], seconds: dict[str, float]) -> tuple[str, str]:
    """Outcome and first failed test of one process."""
    limit_s = WHOLE_S_MIN + WHOLE_TIMES_MAX * sum(seconds[test] for test in tests)
    outlet, inlet = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(outlet)
        os.setsid()
        os._exit(_child(mutant, tests, seconds, inlet))
    os.close(inlet)
    status = _waited(child, limit_s)
    with os.fdopen(outlet, "rb") as report:
        by, _, late = report.read().decode(errors="replace").partition("\n")
    outcome = SURVIVED if status == 0 else KILLED
    if status is None or late:
        outcome = TIMED_OUT
    if outcome == KILLED and status in NOTHING_RAN:
        raise SystemExit(f"no test ran for {mutant} (pytest's exit code {status}): run --map again")
    if outcome == KILLED and not by:
        by = f"(exit code {status}: the module cannot be imported, or the process died)"
    return outcome, by


def _child(mutant: Mutant, tests: Sequence[str], seconds: dict[str, float], report: int) -> int:
    """Exit code of pytest over the tests with the mutant in place."""
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silence, stream)
    path = str(ROOT / mutant.file)
    sys.meta_path.insert(0, _Finder(module_name(mutant.file), mutant.tree, path))
    # Whole files are collected and then filtered: an id may hold text that the command line would split.
    files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
    try:
        return int(
            pytest.main([*OPTIONS, "-x", "--tb=line", *files], plugins=[_Bounds(tests, seconds, report)])
        )
    except BaseException:  # noqa: BLE001 - whatever ends the process, the mutant was noticed
        return 99


def _waited(child: int, limit_s: float) -> int | None:
    """Exit code of a process, or None if it was killed at the limit; its whole group ends with it."""
    end = time.monotonic() + limit_s
    try:
        while time.monotonic() < end:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(POLL_S)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
