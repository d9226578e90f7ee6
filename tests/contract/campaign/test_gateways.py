"""A rotating share of the simulated faults through gateways; and rules of the gateway that are taken out."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from tests.campaign.gateway_clients import Answered, Client
from tests.campaign.gateway_log import LOG_FAULTS, SCENARIOS, LogSim
from tests.campaign.gateway_mutants import GATEWAY_MUTANTS
from tests.campaign.gateway_oracle import judge
from tests.campaign.gateway_process import Gateway
from tests.campaign.gateway_scenario import GATEWAY_FAULTS, ThroughGateway
from tests.campaign.gateway_world import GatewaySim
from tests.campaign.mutant import Mutant
from tests.campaign.runs import one, world
from tests.campaign.sources import ROOT
from tests.campaign.through import Through
from tests.contract.campaign.test_simulation import (
    SHARE,
    first_seed,
    marked,
    of_some_turns,
    require_that_it_happens,
    require_that_it_is_noticed,
)
from tests.contract.campaign.test_threads import STARTS_OR_WAITS
from tests.support.plays import seeds
from tests.support.turns import one_after_the_other

GATEWAY_SHARE = 3
"""Seeds of each fault and number of gateways in a usual run."""
WAYS = [
    (through, fault, count)
    for through, faults in SCENARIOS.items()
    for fault, scenario in sorted(faults.items())
    for count in scenario.gateways
]
KNOWN = {
    "access.py": "asks for rights in a turn of its own, in place of a thread",
    "app.py": "its bodies are small: no thread takes them apart",
    "health.py": "not run: looks at dependencies, and the health page",
    "inboxes.py": "its threads are actors, its lock is a `Held`",
    "inbox.py": "its condition is a `Held`, its commits run in `Committing`",
    "key_memory.py": "nobody waits while its lock is held",
    "log_queue.py": "its condition is a `Held`",
    "merges.py": "nobody waits while its lock is held",
    "room.py": "its condition is a `Held`",
    "server.py": "not run: signals and sockets",
    "tables.py": "its thread is an actor, its event a `Flag`",
    "wiring.py": "not run: writes of files run in `Writers`",
}
"""Modules of the gateway that start threads or wait for them, and why that does not escape the schedule."""
TURN_OF = one_after_the_other(
    of_some_turns(GATEWAY_MUTANTS), "a simulated fault does not notice a rule of the gateway that is gone"
)


@pytest.mark.plays
@pytest.mark.parametrize(("through", "fault", "gateways"), WAYS)
def test_each_write_is_in_once_whatever_breaks(
    through: Through, fault: int, gateways: int, pool: ThreadPoolExecutor
) -> None:
    first, share = first_seed() // SHARE * GATEWAY_SHARE, len(seeds(GATEWAY_SHARE))
    play = partial(one, fault, pool=pool, replicas=gateways, through=through)
    runs = [play(seed) for seed in range(first, first + share)]
    failed = {run.seed: run.problems for run in runs if run.problems}
    assert not failed, f"fault {fault}: {failed}"
    assert sum(run.lost + run.doubled for run in runs) == 0
    require_that_it_happens(runs, play)


@pytest.mark.parametrize(("mutant", "fault"), marked(GATEWAY_MUTANTS, TURN_OF))
def test_a_rule_of_the_gateway_that_is_taken_out_is_noticed(
    mutant: Mutant, fault: int, pool: ThreadPoolExecutor
) -> None:
    require_that_it_is_noticed(mutant, fault, pool)


def test_every_fault_has_a_rule_of_the_gateway_that_it_notices() -> None:
    for through, faults in SCENARIOS.items():
        mutants = [mutant for mutant in GATEWAY_MUTANTS if mutant.through == through]
        assert {fault for mutant in mutants for fault in mutant.faults} == set(faults)


@pytest.mark.parametrize("through", ["gateway", "log"])
@pytest.mark.parametrize("fault", [4, 12])
def test_the_same_seed_is_the_same_run(through: Through, fault: int, pool: ThreadPoolExecutor) -> None:
    seen = []
    for _ in range(2):
        sim = world(fault, 11, replicas=2, through=through)
        assert isinstance(sim, GatewaySim)
        sim.run()
        heads = [version.head for version in sim.watch.versions]
        answers = [(str(entry), entry.sent, len(entry.answers)) for entry in sim.entries]
        seen.append((sim.turns, sim.reads, sim.scenario.happened, judge(sim, pool).rows, heads, answers))
    assert seen[0] == seen[1]


def test_a_row_that_is_lost_or_doubled_is_counted(pool: ThreadPoolExecutor) -> None:
    """Control: the oracle itself, with a ledger that says something else."""
    sim = GatewaySim(GATEWAY_FAULTS[4](), 3, gateways=1)
    sim.run()
    assert judge(sim, pool).problems == ()
    entry = next(one for one in sim.entries if one.kind == "plain" and one.good and one.answered)
    at, number = next(iter(entry.good.items()))
    entry.good[at] = 10**6
    wrong = judge(sim, pool)
    assert (wrong.lost, wrong.doubled) == (1, 1)
    entry.good[at] = number
    sim.watch.problems.clear()
    answers, entry.answers, entry.unknown = entry.answers, [], False
    assert "each answer said that nothing was written" in judge(sim, pool).problems[0]
    entry.answers = answers


def test_a_row_that_is_not_in_the_topic_is_noticed(pool: ThreadPoolExecutor) -> None:
    """Control: likewise, with `durability=log`."""
    sim = LogSim(LOG_FAULTS[4](), 3, gateways=2)
    sim.run()
    assert judge(sim, pool).problems == ()
    entry = next(one for one in sim.entries if one.good and one.answered)
    entry.good[next(iter(entry.good))] = 10**6
    sim.answered(entry, entry.answers[0])
    assert "{1000000: 0}" in sim.watch.problems[-1]


def test_an_answer_that_says_something_else_is_a_problem() -> None:
    sim = GatewaySim(GATEWAY_FAULTS[4](), 3, gateways=1)
    sim.run()
    entry = next(one for one in sim.entries if one.good and one.answered)
    first = entry.answers[0]
    client = Client(sim, "somebody", "keyed")
    for accepted, rejected, repeated, words in (
        (len(entry.good) + 1, entry.bad, True, "the table takes"),
        (len(entry.good), entry.bad, False, "answered as new again"),
    ):
        answer = Answered(
            accepted=accepted,
            rejected=rejected,
            repeated=repeated,
            snapshot_id=first.snapshot_id,
            versions=len(sim.watch.versions),
        )
        client.note(entry, answer)
        assert words in sim.watch.problems[-1]


@pytest.mark.parametrize(("dead", "noticed"), [(False, 1), (True, 0)])
def test_an_error_in_the_log_is_a_problem_while_its_process_lives(
    dead: bool, noticed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = GatewaySim(GATEWAY_FAULTS[16](), 0, gateways=1)
    process = Gateway(sim, 0, 0)
    process.dead = dead
    monkeypatch.setattr(sim, "process", lambda: process)
    sim._broke("commit of rows broke", table="bronze.orders")
    assert len(sim.watch.problems) == noticed


def test_a_run_without_its_fault_is_no_run_of_the_fault(pool: ThreadPoolExecutor) -> None:
    class Nothing(ThroughGateway):
        pass

    Nothing.number = 99
    sim = GatewaySim(Nothing(), 1, gateways=2)
    sim.run()
    assert sim.scenario.happened == 0
    assert judge(sim, pool).problems == ()


def test_every_module_of_the_gateway_that_starts_threads_or_waits_is_known() -> None:
    found = {
        path.name
        for path in (ROOT / "services/tarn/gateway").glob("*.py")
        if STARTS_OR_WAITS.search(path.read_text(encoding="utf-8"))
        or re.search(r"to_thread\b|\bthreading\b", path.read_text(encoding="utf-8"))
    }
    assert found == set(KNOWN), "say in KNOWN why the simulation still decides who runs, or make it so"
