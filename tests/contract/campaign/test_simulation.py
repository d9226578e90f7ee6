"""A rotating share of the simulated fault campaign; and rules that are taken out, which must be noticed."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.campaign.faults import FAULTS, NUMBERS
from tests.campaign.mutants import MUTANTS, Mutant, without
from tests.campaign.oracle import judge
from tests.campaign.runs import one
from tests.campaign.scenario import Scenario
from tests.campaign.sources import ROOT
from tests.campaign.world import Sim
from tests.support.plays import seeds
from tests.support.turns import one_after_the_other

SHARE = 5
"""Seeds of each fault in a usual run."""
HAPPENS_MIN = 0.2
MUTANT_SEEDS_MAX = 80


def first_seed() -> int:
    """The first seed of this run: other ones with each commit."""
    done = subprocess.run(
        ["git", "rev-list", "--count", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return (int(done.stdout) if done.returncode == 0 else 0) * SHARE


@pytest.mark.plays
@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("fault", NUMBERS)
def test_nothing_is_lost_or_doubled_whatever_breaks(
    fault: int, replicas: int, pool: ThreadPoolExecutor
) -> None:
    first, share = first_seed(), len(seeds(SHARE))
    runs = [one(fault, seed, pool, replicas=replicas) for seed in range(first, first + share)]
    failed = {run.seed: run.problems for run in runs if run.problems}
    assert not failed, f"fault {fault}: {failed}"
    assert sum(run.lost + run.doubled for run in runs) == 0
    assert share < 20 or sum(run.happened > 0 for run in runs) > HAPPENS_MIN * share


MUTANTS_IN_TURN = one_after_the_other(
    [mutant for mutant in MUTANTS if not mutant.always],
    "a simulated fault does not notice a rule that is gone",
)


@pytest.mark.parametrize(
    "mutant", [pytest.param(m, id=m.name, marks=MUTANTS_IN_TURN.get(m, ())) for m in MUTANTS]
)
def test_a_rule_that_is_taken_out_is_noticed(mutant: Mutant, pool: ThreadPoolExecutor) -> None:
    with without(mutant):
        for seed in range(mutant.seed, mutant.seed + MUTANT_SEEDS_MAX):
            if one(mutant.faults[0], seed, pool, replicas=mutant.replicas).problems:
                return
    pytest.fail(f"{mutant.name} survived {MUTANT_SEEDS_MAX} seeds of fault {mutant.faults[0]}")


def test_every_fault_has_a_rule_that_it_notices() -> None:
    assert {fault for mutant in MUTANTS for fault in mutant.faults} == set(FAULTS)


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("fault", [4, 20])
def test_the_same_seed_is_the_same_run(fault: int, replicas: int, pool: ThreadPoolExecutor) -> None:
    seen = []
    for _ in range(2):
        sim = Sim(FAULTS[fault](), 11, replicas=replicas)
        sim.run()
        moves = [(v.head, dict(v.next)) for v in sim.watch.versions]
        seen.append((sim.turns, sim.reads, sim.scenario.happened, judge(sim, pool).rows, len(moves)))
    assert seen[0] == seen[1]


def test_a_row_that_is_lost_or_doubled_is_counted(pool: ThreadPoolExecutor) -> None:
    """Control: the oracle itself, with a ledger that says something else."""
    sim = Sim(FAULTS[1](), 3)
    sim.run()
    assert judge(sim, pool).problems == ()
    partition, records = next(
        (p, r) for p, r in sim.ledger.items() if any(s.id is not None for s in r.values())
    )
    offset = next(o for o, sent in records.items() if sent.id is not None)
    sent = records.pop(offset)
    more = judge(sim, pool)
    assert (more.lost, more.doubled) == (0, 1)
    records[offset] = sent
    records[10**6] = sent
    less = judge(sim, pool)
    assert (less.lost, less.doubled) == (1, 0)
    assert f"lost [({partition}, 1000000, {sent.id})]" in less.problems[0]


def test_a_run_without_its_fault_is_no_run_of_the_fault(pool: ThreadPoolExecutor) -> None:
    class Nothing(Scenario):
        pass

    Nothing.number = 99
    sim = Sim(Nothing(), 1)
    sim.run()
    assert sim.scenario.happened == 0
    assert judge(sim, pool).problems == ()
