"""A rotating share of the simulated fault campaign; and rules that are taken out, which must be noticed."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from tests.campaign.faults import FAULTS, NUMBERS
from tests.campaign.mutants import MUTANTS, Mutant, without
from tests.campaign.oracle import judge
from tests.campaign.runs import Run, one
from tests.campaign.scenario import Scenario
from tests.campaign.sources import ROOT
from tests.campaign.world import Sim
from tests.support.plays import seeds
from tests.support.turns import one_after_the_other

SHARE = 5
"""Seeds of each fault in a usual run."""
HAPPENS_MIN = 0.2
HAPPENS_WITHIN = 40
"""Seeds within which a fault has to happen once, where a run has fewer than 20 of its own."""
MUTANT_SEEDS_MAX = 80
BROKEN = re.compile(r"\b(Type|Attribute|Name|Key|Index)Error\b")
"""What a mutant that was made for other code raises itself."""


def first_seed() -> int:
    """The first seed of this run: other ones with each commit."""
    done = subprocess.run(
        ["git", "rev-list", "--count", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return (int(done.stdout) if done.returncode == 0 else 0) * SHARE


def require_that_it_happens(runs: Sequence[Run], again: Callable[[int], Run]) -> None:
    """Require that the fault happened in the runs: in more than a fifth of many, and in one of few.

    Args:
        runs: the runs, of seeds that follow each other.
        again: makes the run of a seed: further ones are asked for while the fault did not happen.
    """
    if len(runs) >= 20:
        assert sum(run.happened > 0 for run in runs) > HAPPENS_MIN * len(runs)
        return
    seeds = range(runs[-1].seed + 1, runs[0].seed + HAPPENS_WITHIN)
    if not any(run.happened for run in runs) and not any(again(seed).happened for seed in seeds):
        pytest.fail(f"fault {runs[0].fault} happened with none of {HAPPENS_WITHIN} seeds")


@pytest.mark.plays
@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("fault", NUMBERS)
def test_nothing_is_lost_or_doubled_whatever_breaks(
    fault: int, replicas: int, pool: ThreadPoolExecutor
) -> None:
    first, share = first_seed(), len(seeds(SHARE))
    play = partial(one, fault, pool=pool, replicas=replicas)
    runs = [play(seed) for seed in range(first, first + share)]
    failed = {run.seed: run.problems for run in runs if run.problems}
    assert not failed, f"fault {fault}: {failed}"
    assert sum(run.lost + run.doubled for run in runs) == 0
    require_that_it_happens(runs, play)


def by_fault(mutants: Iterable[Mutant]) -> list[tuple[Mutant, int]]:
    """Each mutant with each of its faults."""
    return [(mutant, fault) for mutant in mutants for fault in mutant.faults]


def of_some_turns(mutants: Iterable[Mutant]) -> list[tuple[Mutant, int]]:
    """Those that not every run has."""
    return by_fault(mutant for mutant in mutants if not mutant.always)


def marked(mutants: Iterable[Mutant], marks: Mapping[tuple[Mutant, int], pytest.MarkDecorator]) -> list[Any]:
    """The parameters `mutant` and `fault`."""
    return [
        pytest.param(*pair, id=f"{pair[0].name}, {pair[1]}", marks=marks.get(pair, ()))
        for pair in by_fault(mutants)
    ]


TURN_OF = one_after_the_other(of_some_turns(MUTANTS), "a simulated fault does not notice a rule that is gone")


def require_that_it_is_noticed(mutant: Mutant, fault: int, pool: ThreadPoolExecutor) -> None:
    """Require that a fault notices that a rule is gone: by what goes wrong, not by an error of the mutant."""
    with without(mutant):
        for seed in range(mutant.seed, mutant.seed + MUTANT_SEEDS_MAX):
            run = one(fault, seed, pool, replicas=mutant.replicas, through=mutant.through)
            if run.problems:
                assert not [text for text in run.problems if BROKEN.search(text)], "the mutant does not run"
                return
    pytest.fail(f"{mutant.name} survived {MUTANT_SEEDS_MAX} seeds of fault {fault}")


@pytest.mark.parametrize(("mutant", "fault"), marked(MUTANTS, TURN_OF))
def test_a_rule_that_is_taken_out_is_noticed(mutant: Mutant, fault: int, pool: ThreadPoolExecutor) -> None:
    require_that_it_is_noticed(mutant, fault, pool)


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
