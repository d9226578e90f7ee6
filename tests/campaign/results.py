"""Result files: what a run of the campaign wrote down. Simulated and real runs never mix."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from tests.campaign.sources import ROOT, Sources, differing, digest, named
from tests.campaign.through import UNITS, Through

FORMAT = 3
_NUMBERS = re.compile(r"\[(\s[-+.,\d\seE]+)\]")
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
        groups: snapshots that hold the batches of several readers (simulated runs).
        reads: reads of the table beside the writers that were compared with its history.
        rows: rows in the tables at the end.
        lost: records of the ledger that are nowhere.
        doubled: rows and dead letters in excess of the ledger.
        failed: seeds of runs in which anything did not hold.
        problems: what did not hold, with its seed; the first ones.
        heal_s: for each run, seconds from its last fault to a table that has everything: by the simulation's
            clock in simulated runs, by the wall clock in real ones.
        seconds: duration of all runs.
        cpu_s: processor time of all runs (simulated runs).
    """

    fault: int
    seeds: list[int] = field(default_factory=list)
    without: int = 0
    faults: int = 0
    turns: int = 0
    groups: int = 0
    reads: int = 0
    rows: int = 0
    lost: int = 0
    doubled: int = 0
    failed: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    heal_s: list[float] = field(default_factory=list)
    seconds: float = 0.0
    cpu_s: float = 0.0


def ended(
    counts: Counts, *, seed: int, problems: Sequence[str], logs: Sequence[str], happened: int, began_s: float
) -> tuple[Counts, float]:
    """The counts of a real round that has ended, and the seconds that it took.

    Args:
        counts: what was counted so far.
        seed: its seed.
        problems: what did not hold.
        logs: the last words of its containers, said with them.
        happened: how often the fault happened.
        began_s: when it began, on the monotonic clock.
    """
    if problems:
        counts.failed.append(seed)
        counts.problems += [f"seed {seed}: {text}"[:800] for text in (*problems, *logs)]
    if happened:
        counts.seeds.append(seed)
        counts.faults = happened
    else:
        counts.without = 1
    counts.seconds = time.monotonic() - began_s
    return counts, counts.seconds


@dataclass(slots=True, kw_only=True)
class Added:
    """Runs that were added to a result while the clone was at one commit.

    Attributes:
        commit: the commit.
        changed: whether files differed from it: tracked ones, or sources that are not tracked.
        runs: number of runs, with those in which the fault did not happen.
    """

    commit: str
    changed: bool
    runs: int = 0


@dataclass(slots=True, kw_only=True)
class Result:
    """One result file.

    Attributes:
        kind: `simulated` or `real`.
        commits: at which commits runs were added, in that order.
        start: when the first run began, UTC.
        end: when the file was last written, UTC.
        seeds_wanted: number of seeds per fault that was asked for.
        engines: numbers of ingest engines on one table that runs draw from.
        counts: number of readers per engine (`replicas`) -> fault -> its counts.
        next_seed: likewise, to the seed that comes next, for going on.
        through: what writes: ingest engines, or gateways; then `counts` is by their number.
        sources: what ran in all of them, by file (simulated runs); empty in files of older formats.
    """

    kind: Kind
    commits: list[Added]
    start: str
    end: str
    seeds_wanted: int
    engines: tuple[int, ...] = (1, 2)
    counts: dict[int, dict[int, Counts]] = field(default_factory=dict)
    next_seed: dict[int, dict[int, int]] = field(default_factory=dict)
    through: Through = "ingest"
    sources: Sources = field(default_factory=dict)

    def want(self, replicas: Sequence[int], faults: Sequence[int], first: int) -> None:
        """Make room for the counts of these faults, from the seed `first` on."""
        for count in replicas:
            for fault in faults:
                self.counts.setdefault(count, {}).setdefault(fault, Counts(fault=fault))
                self.next_seed.setdefault(count, {}).setdefault(fault, first)

    def take(self, replicas: int, fault: int, number: int = 1) -> list[int]:
        """The next seeds of a fault; each is given once."""
        first = self.next_seed[replicas][fault]
        self.next_seed[replicas][fault] = first + number
        return list(range(first, first + number))

    def all(self) -> list[tuple[int, Counts]]:
        """Number of readers and counts of every fault."""
        return [(count, counts) for count, by_fault in self.counts.items() for counts in by_fault.values()]

    def failures(self) -> list[str]:
        """What failed, in words."""
        return [
            f"fault {counts.fault} with {count} {UNITS[self.through]} failed with seeds {counts.failed}: "
            f"{counts.problems}"
            for count, counts in self.all()
            if counts.failed
        ]

    def short(self) -> list[str]:
        """Faults with fewer seeds than asked for."""
        return [
            f"{counts.fault} ({count} {UNITS[self.through]}: {len(counts.seeds)})"
            for count, counts in self.all()
            if len(counts.seeds) < self.seeds_wanted
        ]

    def write(self, file: Path) -> None:
        """Write the file, whole or not at all."""
        self.end = now()
        data = {"format": FORMAT, "digest": digest(self.sources) if self.sources else "", **asdict(self)}
        part = file.with_suffix(".part")
        part.write_text(in_lines(data) + "\n")
        part.replace(file)


def in_lines(data: Any) -> str:
    """JSON with a line for each value, but one for each list of numbers: there are a thousand in some."""
    text = json.dumps(data, indent=1)
    return _NUMBERS.sub(lambda found: "[" + re.sub(r"\s+", " ", found[1].strip()) + "]", text)


def now() -> str:
    """The time, UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def commit(sources: Sources | None = None) -> tuple[str, bool]:
    """The commit of this clone, and whether files differ from it: tracked ones, or untracked sources."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    changed = bool(git("status", "--porcelain", "--untracked-files=no"))
    untracked = set(sources or ()) - set(git("ls-files").splitlines())
    return git("rev-parse", "--short=12", "HEAD"), changed or bool(untracked)


def begun(
    kind: Kind, seeds: int, file: Path, *, through: Through = "ingest", sources: Sources | None = None
) -> Result:
    """The result of an existing file, to go on with, or a new one with the commit and the time.

    Args:
        kind: of the runs.
        seeds: seeds per fault that are asked for.
        file: result file.
        through: what writes.
        sources: what runs, in simulation.

    Raises:
        ValueError: the file is of another kind or format, of other writers, of other sources (simulated
            runs), or of another commit (real ones).
    """
    at, changed = commit(sources)
    here = Added(commit=at, changed=changed)
    if not file.exists():
        return Result(
            kind=kind,
            commits=[here],
            start=now(),
            end=now(),
            seeds_wanted=seeds,
            through=through,
            sources=sources or {},
        )
    former = read(file)
    if (former.kind, former.through) != (kind, through):
        raise ValueError(
            f"{file} is of {former.kind} runs through {former.through}, these are {kind} through {through}: "
            "their counts are not added; give another --out"
        )
    last = former.commits[-1]
    if kind == "simulated":
        require_same(former.sources, sources or {}, of=f"{file} is of")
    elif (last.commit, last.changed) != (at, changed):
        raise ValueError(
            f"{file} is of commit {last.commit}{', changed' * last.changed}, this is {at}"
            f"{', changed' * changed}: counts of two versions are not added; give another --out"
        )
    former.commits = [one for one in former.commits if one.runs]
    if not former.commits or (former.commits[-1].commit, former.commits[-1].changed) != (at, changed):
        former.commits.append(here)
    former.seeds_wanted = seeds
    return former


def require_same(wanted: Sources, found: Sources, *, of: str) -> None:
    """Require that the code of some runs is the one of a result.

    Args:
        wanted: the sources of the result.
        found: those of the runs.
        of: who they are of, for the message.

    Raises:
        ValueError: they differ.
    """
    if not wanted:
        raise ValueError(f"{of} an older format, which does not say what ran; give another --out")
    if paths := differing(wanted, found):
        raise ValueError(
            f"{of} other sources ({digest(wanted)[:12]}, now {digest(found)[:12]}): {named(paths)} differ; "
            "counts of two versions are not added; give another --out"
        )


def read(file: Path) -> Result:
    """Read a result file.

    Raises:
        ValueError: it is of another format, or its digest is not that of its sources.
    """
    data: dict[str, Any] = json.loads(file.read_text())
    found = data.pop("format")
    if found not in (1, 2, FORMAT):
        raise ValueError(f"{file} is of another format than {FORMAT}; run the campaign again")
    if found == 1:
        # As it was while engines had one reader.
        count = data.pop("replicas")
        data["counts"], data["next_seed"] = {count: data["counts"]}, {count: data["next_seed"]}
    data["counts"] = {
        int(count): {int(n): Counts(**counts) for n, counts in by_fault.items()}
        for count, by_fault in data["counts"].items()
    }
    data["next_seed"] = {
        int(count): {int(n): seed for n, seed in by_fault.items()}
        for count, by_fault in data["next_seed"].items()
    }
    if found == FORMAT:
        written, sources = data.pop("digest"), data["sources"]
        if sources and written != digest(sources):
            raise ValueError(f"{file} has another digest than its sources: it was changed by hand")
        data["commits"] = [Added(**one) for one in data["commits"]]
    else:
        # As it was while all runs of a file were of one commit.
        every = [counts for by_fault in data["counts"].values() for counts in by_fault.values()]
        runs = sum(len(counts.seeds) + counts.without for counts in every)
        data["commits"] = [Added(commit=data.pop("commit"), changed=data.pop("changed"), runs=runs)]
    data["engines"] = tuple(data["engines"])
    return Result(**data)
