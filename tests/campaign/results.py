"""Result files: what a run of the campaign wrote down. Simulated and real runs never mix."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).parents[2]
FORMAT = 1
PROBLEMS_MAX = 20

Kind = Literal["simulated", "real"]


@dataclass(slots=True, kw_only=True)
class Counts:
    """What the runs of one fault add up to.

    Attributes:
        fault: its number.
        seeds: seeds of runs in which the fault happened; only these count.
        without: number of runs in which it did not happen.
        faults: how often it happened.
        turns: steps of all actors (simulated runs).
        reads: reads of the table beside the writers that were compared with its history.
        rows: rows in the tables at the end.
        lost: records of the ledger that are nowhere.
        doubled: rows and dead letters in excess of the ledger.
        failed: seeds of runs in which anything did not hold.
        problems: what did not hold, with its seed; the first ones.
        heal_s: for each run, seconds from its last fault to a table that has everything: by the simulation's
            clock in simulated runs, by the wall clock in real ones.
        seconds: duration of all runs.
    """

    fault: int
    seeds: list[int] = field(default_factory=list)
    without: int = 0
    faults: int = 0
    turns: int = 0
    reads: int = 0
    rows: int = 0
    lost: int = 0
    doubled: int = 0
    failed: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    heal_s: list[float] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(slots=True, kw_only=True)
class Result:
    """One result file.

    Attributes:
        kind: `simulated` or `real`.
        commit: commit of the code that ran.
        changed: whether tracked files differed from it.
        start: when it began, UTC.
        end: when it was last written, UTC.
        seeds_wanted: seeds per fault that were asked for.
        engines: numbers of ingest engines on one table that were drawn.
        replicas: number of processes of each engine.
        counts: fault number to its counts.
        next_seed: fault number to the seed that comes next, for going on.
    """

    kind: Kind
    commit: str
    changed: bool
    start: str
    end: str
    seeds_wanted: int
    engines: tuple[int, ...] = (1, 2)
    replicas: int = 1
    counts: dict[int, Counts] = field(default_factory=dict)
    next_seed: dict[int, int] = field(default_factory=dict)

    def write(self, file: Path) -> None:
        """Write the file, whole or not at all."""
        self.end = now()
        data = {"format": FORMAT, **asdict(self)}
        part = file.with_suffix(".part")
        part.write_text(json.dumps(data, indent=1) + "\n")
        part.replace(file)


def now() -> str:
    """The time, UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def commit() -> tuple[str, bool]:
    """The commit of this clone, and whether tracked files differ from it."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    return git("rev-parse", "--short=12", "HEAD"), bool(git("status", "--porcelain", "--untracked-files=no"))


def begun(kind: Kind, seeds: int, *, replicas: int = 1) -> Result:
    """A new result, with the commit and the time."""
    at, changed = commit()
    return Result(
        kind=kind,
        commit=at,
        changed=changed,
        start=now(),
        end=now(),
        seeds_wanted=seeds,
        replicas=replicas,
    )


def read(file: Path) -> Result:
    """Read a result file.

    Raises:
        ValueError: it is of another format.
    """
    data: dict[str, Any] = json.loads(file.read_text())
    if data.pop("format") != FORMAT:
        raise ValueError(f"{file} is of another format than {FORMAT}; run the campaign again")
    data["counts"] = {int(n): Counts(**counts) for n, counts in data["counts"].items()}
    data["next_seed"] = {int(n): seed for n, seed in data["next_seed"].items()}
    data["engines"] = tuple(data["engines"])
    return Result(**data)
