"""Runs seeds of simulated faults in processes of their own, and adds up what they found."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from pathlib import Path

from tests.campaign import results
from tests.campaign.results import Counts, Result
from tests.campaign.runs import Chunk, Run, chunk, prepared
from tests.campaign.sources import Sources, named
from tests.campaign.through import UNITS, Through

CHUNK = 20
"""Seeds of one fault that a process runs before it reports."""
WITHOUT_MAX = 3
"""A fault for which more than this many runs per wanted seed pass without it is given up."""
RUNS_PER_PROCESS = 40
"""Chunks after which a process is replaced: what libraries cache does not grow without end."""


def add(counts: Counts, run: Run) -> None:
    """Add a run to the counts of its fault; one in which the fault did not happen only if it failed."""
    counts.seconds += run.seconds
    counts.cpu_s += run.cpu_s
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
    counts.groups += run.groups
    counts.reads += run.reads
    counts.rows += run.rows
    counts.lost += run.lost
    counts.doubled += run.doubled
    if run.heal_s is not None:
        counts.heal_s.append(run.heal_s)


def add_chunk(result: Result, done: Chunk) -> tuple[Counts, int]:
    """Add the runs of a chunk; returns the counts of their fault, and the number of readers or gateways.

    Raises:
        ValueError: other code ran than what the result is of; none of the runs is added.
    """
    if done.beside:
        raise ValueError(
            f"runs loaded files that are not among the sources of the result: {named(done.beside)}; "
            "load them in `prepared` of tests/campaign/runs.py, before the first run"
        )
    results.require_same(result.sources, done.sources, of="a process began when the files changed: it ran")
    for run in done.runs:
        add(result.counts[run.replicas][run.fault], run)
    result.commits[-1].runs += len(done.runs)
    count = done.runs[0].replicas
    return result.counts[count][done.runs[0].fault], count


def sources_of(pool: Executor, through: Through) -> Sources:
    """What a process of the campaign runs; asked of one, as this process has loaded more."""
    return pool.submit(prepared, through).result()


def simulate(
    faults: Sequence[int],
    *,
    seeds: int,
    first: int,
    file: Path,
    processes: int,
    minutes: float,
    replicas: Sequence[int] = (1, 3),
    through: Through = "ingest",
) -> Result:
    """Run the campaign until every fault has its seeds, or the time is over; goes on with an existing file.

    Args:
        faults: numbers of the faults.
        seeds: seeds per fault in which it happened.
        first: the first seed.
        file: result file; written after every chunk.
        processes: number of processes.
        minutes: limit of this call.
        replicas: numbers of readers (threads) of each ingest engine, or of gateways; every fault is run with
            each with which it can happen.
        through: what writes.

    Raises:
        ValueError: the file is of other sources, of a real run, or of other writers; or sources changed
            meanwhile, and what was counted before is in the file.
    """
    until_s = time.monotonic() + minutes * 60
    environment = get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=environment, max_tasks_per_child=RUNS_PER_PROCESS) as pool:
        found = sources_of(pool, through)
        result = results.begun("simulated", seeds, file, through=through, sources=found)
        for count in replicas:
            result.want([count], [fault for fault in faults if happens(fault, count, through)], first)
        waiting: set[Future[Chunk]] = set()
        work = _work(result, replicas, faults, seeds)
        while True:
            while len(waiting) < processes and time.monotonic() < until_s:
                task = next(work, None)
                if task is None:
                    break
                waiting.add(pool.submit(chunk, through, *task))
            if not waiting:
                break
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                counts, count = add_chunk(result, future.result())
                _progress(f"{UNITS[through]} {count}", counts, seeds)
            result.write(file)
    result.write(file)
    return result


def _work(
    result: Result, replicas: Sequence[int], faults: Sequence[int], seeds: int
) -> Iterator[tuple[int, int, list[int]]]:
    """Chunks of seeds, the fault with the fewest first, until all have enough."""
    keys = [(count, fault) for count in replicas for fault in faults if fault in result.counts.get(count, {})]
    of = {(count, fault): result.counts[count][fault] for count, fault in keys}
    asked = {key: len(counts.seeds) for key, counts in of.items()}
    while True:
        left = [
            key for key, counts in of.items() if len(counts.seeds) < seeds and not _hopeless(counts, seeds)
        ]
        if not left:
            return
        key = min(left, key=lambda key: (asked[key], key))
        number = min(CHUNK, max(1, seeds - len(of[key].seeds)))
        asked[key] += number
        yield *key, result.take(*key, number)


def _hopeless(counts: Counts, seeds: int) -> bool:
    return counts.without > WITHOUT_MAX * max(seeds, 10)


def happens(fault: int, count: int, through: Through) -> bool:
    """Whether a fault can happen with so many readers or gateways."""
    from tests.campaign.gateway_log import SCENARIOS

    return through == "ingest" or count in SCENARIOS[through][fault].gateways


def _progress(who: str, counts: Counts, seeds: int) -> None:
    sys.stderr.write(
        f"fault {counts.fault:>2}, {who}: {len(counts.seeds):>5} of {seeds} seeds, "
        f"{counts.faults} faults, {counts.rows} rows, {counts.lost} lost, {counts.doubled} doubled, "
        f"{len(counts.failed)} failed\n"
    )
    sys.stderr.flush()
