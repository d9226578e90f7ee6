"""One run of one fault, and what a process of the campaign does: it loads what it needs, then runs seeds."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import structlog

from tests.campaign import sources
from tests.campaign.sources import Sources
from tests.campaign.through import Through

if TYPE_CHECKING:
    from tests.campaign.oracle import Verdict
    from tests.campaign.world import Sim

COLLECTED_AFTER = (5_000, 20, 20)
"""How many objects are made before Python looks for cycles, and how often it looks at older ones."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Some runs of one fault, and the code that made them.

    Attributes:
        runs: the runs.
        sources: what the process had loaded before its first run.
        beside: files of this repository that it loaded later.
    """

    runs: list[Run]
    sources: Sources
    beside: list[str]


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
    began_s, cpu_s = time.perf_counter(), time.process_time()
    sim = world(fault, seed, replicas=replicas, through=through)
    problems: tuple[str, ...] = ()
    rows = lost = doubled = 0
    try:
        sim.run()
        verdict = judged(sim, pool, through)
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
    """The world of one run; see `one`. A run through one of the ways loads nothing of the others."""
    if through == "log":
        from tests.campaign.gateway_log import LOG_FAULTS, LogSim

        return LogSim(LOG_FAULTS[fault](), seed, gateways=replicas)
    if through == "gateway":
        from tests.campaign.gateway_faults import GATEWAY_FAULTS
        from tests.campaign.gateway_world import GatewaySim

        return GatewaySim(GATEWAY_FAULTS[fault](), seed, gateways=replicas)
    from tests.campaign.faults import FAULTS
    from tests.campaign.world import Sim

    return Sim(FAULTS[fault](), seed, replicas=replicas)


def judged(sim: Sim, pool: ThreadPoolExecutor, through: Through) -> Verdict:
    """What the oracle of this way says about a finished run."""
    if through == "ingest":
        from tests.campaign.oracle import judge

        return judge(sim, pool)
    from tests.campaign.gateway_oracle import judge as judge_gateways
    from tests.campaign.gateway_world import GatewaySim

    assert isinstance(sim, GatewaySim)
    return judge_gateways(sim, pool)


@cache
def prepared(through: Through) -> Sources:
    """Load all that runs through this way need, once in a process; returns the files and their hashes."""
    if through == "ingest":
        from tests.campaign import faults, oracle  # noqa: F401
    elif through == "gateway":
        from tests.campaign import gateway_faults, gateway_oracle  # noqa: F401
    else:
        from tests.campaign import gateway_log, gateway_oracle  # noqa: F401
    quick()
    return sources.hashed()


def quick() -> None:
    """Let this process spend its time on runs.

    What is loaded stays: the collector need not look at it again and again. A thread that hands its turn to
    another one is about to wait; the other one need not take the processor from it before.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTED_AFTER)
    if hasattr(os, "SCHED_BATCH"):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def chunk(through: Through, replicas: int, fault: int, seeds: Sequence[int]) -> Chunk:
    """Run some seeds of one fault; what a process of the campaign does."""
    ready = prepared(through)
    quiet()
    with ThreadPoolExecutor(max_workers=2) as pool:
        runs = [one(fault, seed, pool, replicas=replicas, through=through) for seed in seeds]
    return Chunk(runs=runs, sources=ready, beside=sorted(sources.loaded() - set(ready)))


def quiet() -> None:
    """Leave the product's log out: thousands of faults are logged as they should be."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
