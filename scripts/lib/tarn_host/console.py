"""Console output: phases with their duration, progress lines, and errors that name the fix."""

from __future__ import annotations

import errno
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class StopError(Exception):
    """Raised when the script cannot continue.

    Args:
        what: what happened, with the values.
        fix: what to do.
        code: the exit code, never 0.
    """

    def __init__(self, what: str, fix: str = "", code: int = 1) -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix
        self.code = code


@dataclass(frozen=True)
class Problem:
    """One obstacle: what it is, with its values, and how to fix it."""

    what: str
    fix: str


@dataclass(frozen=True)
class PhaseTime:
    """Duration of one phase in seconds, and its outcome: done, skipped or failed."""

    name: str
    seconds: float
    outcome: str
    note: str


def line(text: str) -> None:
    """Print one line and flush, even if the output is a pipe."""
    print(text, flush=True)


def is_full(error: OSError) -> bool:
    """Whether the error is that of a full disk, or of a quota."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def no_room(error: OSError) -> StopError:
    """A StopError for a full disk of this clone; any other error is raised again."""
    if not is_full(error):
        raise error
    where = f" ({error.filename})" if error.filename else ""
    return StopError(
        f"the disk of this clone is full{where}: {error.strerror}",
        "free some space, then run this again: what runs stays as it is, and finished steps are kept",
    )


def problem(item: Problem) -> None:
    """Print one problem with its fix to stderr."""
    print(f"  x {item.what}\n    -> {item.fix}", file=sys.stderr, flush=True)


def stopped(error: StopError) -> int:
    """Print why the script stops and return its exit code."""
    print(f"\nerror: {error.what}", file=sys.stderr, flush=True)
    if error.fix:
        print(f"  -> {error.fix}", file=sys.stderr, flush=True)
    return error.code


@dataclass
class Phases:
    """The phases of one run; each is printed with its duration when it ends."""

    started: float = field(default_factory=time.monotonic)
    times: list[PhaseTime] = field(default_factory=list)

    @contextmanager
    def phase(self, name: str) -> Iterator[list[str]]:
        """Time a block; what the block appends to the list is printed beside its duration."""
        line(f"[{self.elapsed_s():6.1f} s] {name} ...")
        begin = time.monotonic()
        notes: list[str] = []
        outcome = "failed"
        try:
            yield notes
            outcome = "done"
        finally:
            seconds = time.monotonic() - begin
            self.times.append(PhaseTime(name, round(seconds, 2), outcome, "; ".join(notes)))
            tail = f": {'; '.join(notes)}" if notes else ""
            line(f"[{self.elapsed_s():6.1f} s] {name} {outcome} in {seconds:.1f} s{tail}")

    def elapsed_s(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.started

    def table(self) -> list[str]:
        """The phases and their total as table rows."""
        width = max([len(t.name) for t in self.times] + [5])
        rows = [f"  {t.name:<{width}}  {t.seconds:8.1f} s" for t in self.times]
        return [*rows, f"  {'total':<{width}}  {self.elapsed_s():8.1f} s"]

    def write(self, path: Path, **facts: Any) -> None:
        """Write the durations as JSON: the given facts, `phases` and `total_s`."""
        phases = [t.__dict__ for t in self.times]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            json.dumps({**facts, "phases": phases, "total_s": round(self.elapsed_s(), 2)}, indent=2) + "\n"
        )


def is_terminal() -> bool:
    """Whether a user can be asked: stdin and stdout are a terminal."""
    return bool(sys.stdin and sys.stdin.isatty() and sys.stdout.isatty())


def agree(question: str, assume_yes: bool) -> bool:
    """Ask for consent on a terminal; without one, or with --yes, continue. Not sufficient to remove data."""
    if assume_yes or not is_terminal():
        return True
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False
