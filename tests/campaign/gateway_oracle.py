"""What must hold at the end of a run through gateways: the ledger of all clients is the table."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from tarn.core.errors import TarnError
from tarn.ingest.batch_commit import offsets_in
from tests.campaign.gateway_world import GatewaySim
from tests.campaign.oracle import Verdict, shipped


def judge(sim: GatewaySim, pool: ThreadPoolExecutor) -> Verdict:
    """Compare a finished run with its ledger.

    Args:
        sim: the run, healed.
        pool: executor for the audit.
    """
    problems = sim.watch.problems
    try:
        state = sim.lake.table()
        rows = sim.lake.rows(state=state)
    except (TarnError, AssertionError) as e:
        return Verdict(rows=0, lost=0, doubled=0, problems=(*problems, f"the table cannot be read: {e}"))
    found = Counter(row["id"] for row in rows)
    lost = doubled = 0
    known = Counter[int]()
    for entry in sim.entries:
        counts = [found[one] for one in entry.good.values()]
        known.update(entry.good.values())
        doubled += sum(max(0, count - 1) for count in counts)
        if entry.answered:
            lost += counts.count(0)
        elif entry.kind != "plain":
            sim.problem(f"{entry}: not answered, though it was repeated after all faults")
        elif not entry.unknown and any(counts):
            sim.problem(f"{entry}: each answer said that nothing was written, and the table has {counts}")
        elif len({min(count, 1) for count in counts}) > 1:
            sim.problem(f"{entry}: the table has a part of it: {counts}")
    strange = +(found - Counter(known.keys()))
    strangers = {one: count for one, count in strange.items() if one not in known}
    doubled += sum(strangers.values())
    if lost or doubled:
        sim.problem(f"{lost} rows lost, {doubled} doubled or not sent: {dict(strange)}")
    sim.sequences(rows)
    offsets = offsets_in(state, sim.watch.stream)
    ends = dict(offsets.next) if offsets is not None else {}
    sim.problems_of(rows, ends)
    with sim.undisturbed():
        for text in shipped(sim, pool):
            sim.problem(text)
    try:
        sim.scenario.check()
    except AssertionError as e:
        sim.problem(f"{e}")
    return Verdict(rows=len(rows), lost=lost, doubled=doubled, problems=tuple(problems))
