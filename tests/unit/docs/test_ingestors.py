"""docs/ingestors.md: commands, reasons, times and limits are the code's own."""

from __future__ import annotations

import inspect
import re

import typer.main

from tarn.cli.main import app
from tarn.controller import loop, settle
from tarn.core import errors
from tarn.core.control import report
from tarn.core.control.driver import Driver
from tarn.core.control.model import Timing
from tarn.ingest import process_driver, worker
from tests.support.pages import section, tables, text_of

PAGE = text_of("docs/ingestors.md")
QUOTED = re.compile(r"`([^`]+)`")


def test_the_commands_are_those_of_the_command_line() -> None:
    known = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    rows = tables(PAGE)[0]
    found = [QUOTED.findall(row["command"])[0].removeprefix("scripts/tarn ").split()[0] for row in rows]
    assert found == ["apply", "get", "describe", "scale", "delete", "init"]
    assert set(found) <= known


def test_each_reason_is_one_that_the_code_gives() -> None:
    rows = tables(section(PAGE, "Status"))[0]
    reasons = {one for row in rows for one in QUOTED.findall(row["reason"])}
    source = "".join(inspect.getsource(module) for module in (loop, settle, report))
    given = {one for one in reasons if f'"{one}"' in source}
    assert reasons - given == {"NotSeen"}
    others = QUOTED.findall(next(row["meaning"] for row in rows if row["reason"] == "any other"))
    assert all(hasattr(errors, f"{one}Error") for one in others if one == "OffsetGap")
    assert "OffsetGap" in others
    said = set(re.findall(r'(?:no\(|reason=)\s*"(\w+)"', inspect.getsource(report)))
    more = set(re.findall(r'"(CannotStart|CrashLoop|Restarting|Accepted|Unreadable|InvalidSpec)"', source))
    assert (said | more) - {"Ready"} <= reasons


def test_times_and_limits() -> None:
    timing = Timing()
    waits = [timing.wait_s(n) for n in (1, 2, 3)]
    assert (waits, timing.backoff_s_max, timing.stable_s) == ([1, 2, 4], 300, 60)
    assert "after 1 s, 2 s, 4 s, … 5 min if it died within a minute of its start" in PAGE
    assert f"does not end within {timing.drain_s_max:.0f} s" in PAGE
    assert loop.POLL_S == 2
    assert "it looks every two seconds" in PAGE
    assert loop.REPORT_S == 10
    assert process_driver.WATCH_S == 0.5
    assert (worker.DATA_SHARE, worker.DATA_EXTRA_BYTES) == (2, 512 << 20)
    calls = [name for name, _ in inspect.getmembers(Driver, inspect.isfunction) if not name.startswith("_")]
    assert len(calls) == 6
    assert "an interface of six calls" in PAGE
