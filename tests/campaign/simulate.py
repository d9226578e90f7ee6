"""Runs seeds of simulated faults in processes of their own, and adds up what they found."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from tests.campaign import results
from tests.campaign.results import UNITS, Counts, Result, Through

if TYPE_CHECKING:
    from tests.campaign.world import Sim

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
    replicas: int
    seed: int
    happened: int
    turns: int
    groups: int
    reads: int
    rows: int
    lost: int
    doubled: int
    problems: tuple[str, ...]
    heal_s: float | None
    seconds: float
    cpu_s: float


def one(
    fault: int, seed: int, pool: ThreadPoolExecutor, *, replicas: int = 1, through: Through = "ingest"
) -> Run:
    """Run one seed of one fault.

    Args:
        fault: number of the fault.
        seed: the seed.
        pool: executor for the audit.
        replicas: number of readers (threads) of each ingest engine, or of gateways.
        through: what writes.
    """
    from tests.campaign.gateway_oracle import judge as judge_gateways
    from tests.campaign.gateway_world import GatewaySim
    from tests.campaign.oracle import judge

    began_s, cpu_s = time.perf_counter(), time.process_time()
    sim = world(fault, seed, replicas=replicas, through=through)
    problems: tuple[str, ...] = ()
    rows = lost = doubled = 0
    try:
        sim.run()
        verdict = judge_gateways(sim, pool) if isinstance(sim, GatewaySim) else judge(sim, pool)
        rows, lost, doubled, problems = verdict.rows, verdict.lost, verdict.doubled, verdict.problems
    except Exception as e:  # noqa: BLE001 - a run that cannot end is a finding, not the end of the campaign
        problems = (f"{type(e).__name__}: {e}", *sim.watch.problems[:3])
    heal_s = None if sim.fault_s is None else round(max(0.0, sim.caught_up_s - sim.fault_s), 2)
    return Run(
        fault=fault,
        replicas=replicas,
        seed=seed,
        happened=sim.scenario.happened,
        turns=sim.turns,
        groups=sim.watch.groups,
        reads=sim.reads,
        rows=rows,
        lost=lost,
        doubled=doubled,
        problems=problems,
        heal_s=heal_s,
        seconds=time.perf_counter() - began_s,
        cpu_s=time.process_time() - cpu_s,
    )


def world(fault: int, seed: int, *, replicas: int, through: Through) -> Sim:
    """The world of one run; see `one`."""
    from tests.campaign.faults import FAULTS
    from tests.campaign.gateway_faults import GATEWAY_FAULTS
    from tests.campaign.gateway_log import LOG_FAULTS, LogSim
    from tests.campaign.gateway_world import GatewaySim
    from tests.campaign.world import Sim

    if through == "log":
        return LogSim(LOG_FAULTS[fault](), seed, gateways=replicas)
    if through == "gateway":
        return GatewaySim(GATEWAY_FAULTS[fault](), seed, gateways=replicas)
    return Sim(FAULTS[fault](), seed, replicas=replicas)


def chunk(through: Through, replicas: int, fault: int, seeds: Sequence[int]) -> list[Run]:
    """Run some seeds of one fault; what a process of the campaign does."""
    quiet()
    with ThreadPoolExecutor(max_workers=2) as pool:
        return [one(fault, seed, pool, replicas=replicas, through=through) for seed in seeds]


def quiet() -> None:
    """Leave the product's log out: thousands of faults are logged as they should be."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))


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
        ValueError: the file is of another commit, of a real run, or of other writers.
    """
    result = results.begun("simulated", seeds, file, through=through)
    until_s = time.monotonic() + minutes * 60
    for count in replicas:
        result.want([count], [fault for fault in faults if happens(fault, count, through)], first)
    environment = get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=environment, max_tasks_per_child=RUNS_PER_PROCESS) as pool:
        waiting: set[Future[list[Run]]] = set()
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
                runs = future.result()
                for run in runs:
                    add(result.counts[run.replicas][run.fault], run)
                counts = result.counts[runs[0].replicas][runs[0].fault]
                _progress(f"{UNITS[through]} {runs[0].replicas}", counts, seeds)
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


def with_fixed_hashes() -> None:
    """Start this program again if the order of sets would differ from run to run."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.campaign", *sys.argv[1:]])
