"""A test that goes on after its time is over is named, and does not keep the whole run."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Generator
from pathlib import Path

import pytest

ENDS_WITHIN_S = 180


class Ender:
    """Pytest plugin: ends the process of a test whose time limit did not end it.

    Its clean-up waits for something, or the error of the limit was kept back (in a task of asyncio, say).
    Where each thread stands is printed. Beside others (xdist) the test fails with its name and the rest is
    run; in a process of its own the run ends.

    Args:
        grace_s: how long clean-up may take after the test's time limit, in seconds.
    """

    def __init__(self, grace_s: float = ENDS_WITHIN_S) -> None:
        self._grace_s = grace_s
        # What a test prints is captured: only until then is this the terminal.
        self._terminal = os.dup(2)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Set the limit before the test's fixtures, take it away after them."""
        marker = item.get_closest_marker("timeout")
        assert marker is not None, f"{item.nodeid} has no time limit"
        faulthandler.dump_traceback_later(
            float(marker.args[0]) + self._grace_s, exit=True, file=self._terminal
        )
        try:
            return (yield)
        finally:
            faulthandler.cancel_dump_traceback_later()


class Unended:
    """Pytest plugin: names the tests that were running when the run was stopped.

    Args:
        file: receives their names, one per line; not written if all have ended.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._running: dict[str, None] = {}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test begins, here or in one of xdist's processes."""
        self._running[nodeid] = None

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """It has ended."""
        self._running.pop(nodeid, None)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Write the names."""
        if self._running:
            self._file.write_text("".join(f"{nodeid}\n" for nodeid in self._running), encoding="utf-8")
