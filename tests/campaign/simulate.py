"""Runs seeds of simulated faults in processes of their own, and adds up what they found."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from unittest.mock import patch

import structlog

from tests.campaign import results
from tests.campaign.results import Counts, Result
from tests.contract.catalog.schedule import POOLS, Alone

CHUNK = 20
"""Seeds of one fault that a process runs before it reports."""
WITHOUT_MAX = 3
"""A fault for which more than this many runs per wanted seed pass without it is given up."""
RUNS_PER_PROCESS = 40
"""Chunks after which a process is replaced: what libraries cache does not grow without end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of one fault, as a process reports it."""

    fault: int
    seed: int
    happened: int
    turns: int
    reads: int
    rows: int
    lost: int
    doubled: int
    problems: tuple[str, ...]
    heal_s: float | None
    seconds: float


def one(fault: int, seed: int, pool: ThreadPoolExecutor, *, replicas: int = 1) -> Run:
    """Run one seed of one fault.

    Args:
        fault: number of the fault.
        seed: the seed.
        pool: executor for the audit.
        replicas: number of processes of each ingest engine.
    """
    from tests.campaign.faults import FAULTS
    from tests.campaign.oracle import judge
    from tests.campaign.world import Sim

    began_s = time.perf_counter()
    sim = Sim(FAULTS[fault](), seed, replicas=replicas)
    problems: tuple[str, ...] = ()
    rows = lost = doubled = 0
    try:
        with ExitStack() as alone:
            for name in POOLS:
                alone.enter_context(patch(name, Alone))
            sim.run()
        verdict = judge(sim, pool)
        rows, lost, doubled, problems = verdict.rows, verdict.lost, verdict.doubled, verdict.problems
    except Exception as e:  # noqa: BLE001 - a run that cannot end is a finding, not the end of the campaign
        problems = (f"{type(e).__name__}: {e}",)
    heal_s = None if sim.fault_s is None else round(max(0.0, sim.caught_up_s - sim.fault_s), 2)
    return Run(
        fault=fault,
        seed=seed,
        happened=sim.scenario.happened,
        turns=sim.turns,
        reads=sim.reads,
        rows=rows,
        lost=lost,
        doubled=doubled,
        problems=problems,
        heal_s=heal_s,
        seconds=time.perf_counter() - began_s,
    )


def chunk(fault: int, seeds: Sequence[int], replicas: int) -> list[Run]:
    """Run some seeds of one fault; what a process of the campaign does."""
    quiet()
    with ThreadPoolExecutor(max_workers=2) as pool:
        return [one(fault, seed, pool, replicas=replicas) for seed in seeds]


def quiet() -> None:
    """Leave the product's log out: thousands of faults are logged as they should be."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))


def add(counts: Counts, run: Run) -> None:
    """Add a run to the counts of its fault; one in which the fault did not happen only if it failed."""
    counts.seconds += run.seconds
    if run.problems:
        counts.failed.append(run.seed)
        counts.problems += [f"seed {run.seed}: {text}"[:500] for text in run.problems]
        del counts.problems[results.PROBLEMS_MAX :]
    if run.happened == 0:
        counts.without += 1
        return
    counts.seeds.append(run.seed)
    counts.faults += run.happened
    counts.turns += run.turns
    counts.reads += run.reads
    counts.rows += run.rows
    counts.lost += run.lost
    counts.doubled += run.doubled
    if run.heal_s is not None:
        counts.heal_s.append(run.heal_s)


def simulate(
    faults: Sequence[int],
    *,
    seeds: int,
    first: int,
    file: Path,
    processes: int,
    minutes: float,
    replicas: int = 1,
) -> Result:
    """Run the campaign until every fault has its seeds, or the time is over; goes on with an existing file.

    Args:
        faults: numbers of the faults.
        seeds: seeds per fault in which it happened.
        first: the first seed.
        file: result file; written after every chunk.
        processes: number of processes.
        minutes: limit of this call.
        replicas: number of processes of each ingest engine.

    Raises:
        ValueError: the file is of another commit, or of a real run.
    """
    result = results.begun("simulated", seeds, replicas=replicas)
    if file.exists():
        former = results.read(file)
        if (former.kind, former.commit, former.changed) != ("simulated", result.commit, result.changed):
            raise ValueError(
                f"{file} is of commit {former.commit} ({former.kind}), this is {result.commit}: counts of "
                "two versions are not added; give another --out"
            )
        former.seeds_wanted = seeds
        result = former
    until_s = time.monotonic() + minutes * 60
    for fault in faults:
        result.counts.setdefault(fault, Counts(fault=fault))
        result.next_seed.setdefault(fault, first)
    environment = get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=environment, max_tasks_per_child=RUNS_PER_PROCESS) as pool:
        waiting: set[Future[list[Run]]] = set()
        work = _work(result, faults, seeds)
        while True:
            while len(waiting) < processes and time.monotonic() < until_s:
                task = next(work, None)
                if task is None:
                    break
                waiting.add(pool.submit(chunk, *task, replicas))
            if not waiting:
                break
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                runs = future.result()
                for run in runs:
                    add(result.counts[run.fault], run)
                _progress(result.counts[runs[0].fault], seeds)
            result.write(file)
    result.write(file)
    return result


def _work(result: Result, faults: Sequence[int], seeds: int) -> Iterator[tuple[int, list[int]]]:
    """Chunks of seeds, the fault with the fewest first, until all have enough."""
    asked = {fault: len(result.counts[fault].seeds) for fault in faults}
    while True:
        left = [
            n
            for n in faults
            if len(result.counts[n].seeds) < seeds and not _hopeless(result.counts[n], seeds)
        ]
        if not left:
            return
        fault = min(left, key=lambda n: (asked[n], n))
        first = result.next_seed[fault]
        number = min(CHUNK, max(1, seeds - len(result.counts[fault].seeds)))
        result.next_seed[fault] = first + number
        asked[fault] += number
        yield fault, list(range(first, first + number))


def _hopeless(counts: Counts, seeds: int) -> bool:
    return counts.without > WITHOUT_MAX * max(seeds, 10)


def _progress(counts: Counts, seeds: int) -> None:
    sys.stderr.write(
        f"fault {counts.fault:>2}: {len(counts.seeds):>5} of {seeds} seeds, {counts.faults} faults, "
        f"{counts.rows} rows, {counts.lost} lost, {counts.doubled} doubled, {len(counts.failed)} failed\n"
    )
    sys.stderr.flush()


def with_fixed_hashes() -> None:
    """Start this program again if the order of sets would differ from run to run."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.campaign", *sys.argv[1:]])
