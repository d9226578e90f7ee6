"""What must hold at the end of a run through gateways: the ledger of all clients is the table."""

from __future__ import annotations

from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor

from tarn.core.errors import TarnError
from tarn.gateway.rows_commit import book_in
from tarn.ingest.batch_commit import offsets_in
from tests.campaign.gateway_world import STREAM, GatewaySim
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
    _sequences(sim, rows)
    ends = dict(found_offsets.next) if (found_offsets := offsets_in(state, STREAM)) is not None else {}
    sim.problems_of(rows, ends)
    with sim.undisturbed():
        for text in shipped(sim, pool):
            sim.problem(text)
    try:
        sim.scenario.check()
    except AssertionError as e:
        sim.problem(f"{e}")
    return Verdict(rows=len(rows), lost=lost, doubled=doubled, problems=tuple(problems))


def _sequences(sim: GatewaySim, rows: list[dict[str, object]]) -> None:
    """Each producer's rows are where it numbered them, and the table wants the next one."""
    state = sim.lake.table()
    book, offsets = book_in(state), offsets_in(state, STREAM)
    places: dict[int, set[int]] = defaultdict(set)
    for row in rows:
        trace = row["_tarn"]
        assert isinstance(trace, dict)
        places[trace["partition"]].add(trace["offset"])
    for client in sorted({entry.client for entry in sim.entries if entry.kind == "numbered"}):
        own = [entry for entry in sim.entries if entry.client == client]
        producer = book.producers.get(f"{client}/{client}")
        if producer is None or offsets is None:
            sim.problem(f"the table does not know producer {client}")
            continue
        wanted = {entry.sequence + at for entry in own for at in entry.good}
        end = own[-1].sequence + len(own[-1].rows)
        there, following = places[producer.number], offsets.next.get(producer.number)
        if there != wanted or following != end:
            sim.problem(
                f"{client}: rows {sorted(there)}, next {following}; it sent {sorted(wanted)}, next {end}"
            )
