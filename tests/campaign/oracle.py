"""What must hold at the end of a run: the ledger is the table, and the shipped audit and fsck agree."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tarn.adapters import manifest_audit
from tarn.adapters.bulk import PlainBulk
from tarn.adapters.origins import ParquetOrigins
from tarn.core.audit.model import Kind
from tarn.core.errors import TarnError
from tarn.core.table_state import TableState
from tarn.ingest.audit import audit
from tarn.ingest.batch_commit import offsets_in
from tarn.ingest.lake_files import LakePorts
from tarn.ingest.lake_ports import Clock
from tarn.keeper.fsck import fsck
from tarn.keeper.walk import Places
from tests.campaign.world import Sim
from tests.support.lake import BUCKET, TABLE, Lake

LETTERS = "ops.dead_letters"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a run ended with.

    Attributes:
        rows: number of rows in the table.
        lost: records of the ledger that are in neither table.
        doubled: rows and dead letters in excess of the ledger.
        problems: all that does not hold, in words; empty if all is well.
    """

    rows: int
    lost: int
    doubled: int
    problems: tuple[str, ...]


@dataclass(frozen=True)
class _Tables:
    lake: Lake

    def tables(self) -> list[str]:
        return [TABLE, LETTERS]

    def state(self, table: str) -> TableState:
        return self.lake.table(table)


def judge(sim: Sim, pool: ThreadPoolExecutor) -> Verdict:
    """Compare a finished run with its ledger.

    Args:
        sim: the run, healed.
        pool: executor for the audit.
    """
    problems = list(sim.watch.problems)
    lake, deleted = sim.lake, sim.scenario.deleted
    try:
        rows = lake.rows()
        letters = lake.rows(LETTERS)
    except (TarnError, AssertionError) as e:
        return Verdict(rows=0, lost=0, doubled=0, problems=(*problems, f"the table cannot be read: {e}"))
    found = Counter((r["_tarn"]["partition"], r["_tarn"]["offset"], r["id"]) for r in rows)
    places = [(p, o, sent.id) for p, records in sim.ledger.items() for o, sent in records.items()]
    places += sim.scenario.former
    wanted = Counter((p, o, n) for p, o, n in places if n is not None and (p, o) not in deleted)
    dead = Counter((r["partition"], r["offset"]) for r in letters)
    bad = Counter((p, o) for p, o, n in places if n is None)
    lost = (wanted - found).total() + (bad - dead).total()
    doubled = (found - wanted).total() + (dead - bad).total()
    if lost or doubled:
        problems.append(
            f"lost {sorted(wanted - found)} and dead letters {sorted(bad - dead)}; in excess "
            f"{sorted(found - wanted)} and dead letters {sorted(dead - bad)}"
        )
    if not sim.caught_up():
        problems.append(f"not healed: offsets {sim.watch.next}, the log ends at {_ends(sim)}")
    held = offsets_in(lake.table(), sim.spec.stream)
    if held is not None and dict(held.next) != {p: o for p, o in _ends(sim).items() if p in held.next}:
        problems.append(f"the table's offsets are {dict(held.next)}, the log ends at {_ends(sim)}")
    unexpected = sim.stops - sim.scenario.stops
    if unexpected:
        problems.append(f"an engine stopped: {sorted(sim.why[reason] for reason in unexpected)}")
    with sim.undisturbed():
        problems += shipped(sim, pool)
    try:
        sim.scenario.check()
    except AssertionError as e:
        problems.append(f"{e}")
    return Verdict(rows=len(rows), lost=lost, doubled=doubled, problems=tuple(problems))


def _ends(sim: Sim) -> dict[int, int]:
    return {p: len(log) for p, log in sim.topic.logs.items()}


def shipped(sim: Sim, pool: ThreadPoolExecutor) -> list[str]:
    """What `tarn audit` and `tarn fsck` find; they run as they are shipped."""
    store = PlainBulk(sim.store)
    ports = LakePorts(
        tables=_Tables(sim.lake),
        store=store,
        manifests=manifest_audit,
        origins=ParquetOrigins(store, Places(BUCKET).key),
        topics=sim.lake.sources,
        bucket=BUCKET,
        pool=pool,
        clock=Clock(now_s=sim.lake.clock),
        tell=lambda _: None,
    )
    sim.lake.sources.topics = sim.topics
    problems = []
    try:
        report = audit(TABLE, ports)
        missing = {(a.partition, offset) for a in report.accounts for offset in a.missing}
        known = missing <= sim.scenario.deleted
        problems += [
            f"audit: {finding.what}"
            for finding in report.findings
            if finding.damage and not (known and finding.kind is Kind.OFFSETS_MISSING)
        ]
    except TarnError as e:
        problems.append(f"audit: {e}")
    checked = fsck(store, manifest_audit, bucket=BUCKET, tell=lambda _: None, sleep=lambda _: None)
    problems += [f"fsck: {finding.where}: {finding.what}" for finding in checked.damage]
    return problems
