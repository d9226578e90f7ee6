"""What the lake looks like right now: who answers, which tables there are, how fresh they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from typing import Any

from tarn.cli.ports import Clock, Lake, TableFacts
from tarn.core.errors import TarnError

AT_ONCE_MAX = 8
STUCK = frozenset({"Stopped", "Invalid", "Waiting"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How to look at one service.

    Attributes:
        service: its name in docker-compose.yml.
        address: where it is looked for.
        look: returns what was seen; raises TarnError if it cannot be used.
    """

    service: str
    address: str
    look: Callable[[], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceState:
    """What a look at a service saw."""

    service: str
    address: str
    ok: bool
    detail: str
    milliseconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestorFacts:
    """What ingest says about one ingestor, in words for people."""

    name: str
    state: str
    topic: str
    table: str
    lag: int
    rows: int
    bad_records: int
    commits: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The state of the lake at one moment.

    Attributes:
        at: when.
        services: one state per service.
        tables: the tables, or empty if the catalog cannot be asked.
        faults: what is wrong besides, by name: a table that cannot be read, `catalog` if none could be
            listed, an `ingestor <name>` that does not run.
        ingest: what ingest says about itself; None if it does not answer.
    """

    at: datetime
    services: tuple[ServiceState, ...]
    tables: tuple[TableFacts, ...]
    faults: Mapping[str, str]
    ingest: Any

    @property
    def ok(self) -> bool:
        """Whether every service answers and every table can be read."""
        return all(service.ok for service in self.services) and not self.faults


def gather(
    looks: Sequence[Look], lake: Lake, ingest: Callable[[], Any], *, clock: Clock, at: datetime
) -> Status:
    """Look at everything at once and return what was seen; a fault is part of it, never an exception."""
    with ThreadPoolExecutor(max_workers=AT_ONCE_MAX) as pool:
        seen = [pool.submit(_look, look, clock) for look in looks]
        listed = pool.submit(_or_fault, lake.tables)
        said = pool.submit(_or_fault, ingest)
        names, fault = listed.result()
        described = {name: pool.submit(_or_fault, partial(lake.facts, name)) for name in names or ()}
        facts = {name: future.result() for name, future in described.items()}
    faults = {name: fault for name, (_, fault) in facts.items() if fault is not None}
    if fault is not None:
        faults["catalog"] = fault
    ingest_says = said.result()[0]
    for ingestor in ingestors(ingest_says):
        if ingestor.state in STUCK:
            faults[f"ingestor {ingestor.name}"] = f"{ingestor.state}: {ingestor.message}"
    return Status(
        at=at,
        services=tuple(future.result() for future in seen),
        tables=tuple(fact for fact, _ in facts.values() if fact is not None),
        faults=faults,
        ingest=ingest_says,
    )


def ingestors(ingest: Any) -> tuple[IngestorFacts, ...]:
    """Return what the status page of ingest says, one entry per ingestor; empty if it is another page."""
    listed = ingest.get("ingestors") if isinstance(ingest, dict) else None
    if not isinstance(listed, dict):
        return ()
    return tuple(
        IngestorFacts(
            name=name,
            state=str(entry.get("state", "?")),
            topic=str(entry.get("topic", "?")),
            table=str(entry.get("table", "?")),
            lag=int(entry.get("lag", 0)),
            rows=int(entry.get("rows", 0)),
            bad_records=int(entry.get("badRecords", 0)),
            commits=int(entry.get("commits", 0)),
            message="; ".join(c["message"] for c in entry.get("conditions", ()) if c.get("message")),
        )
        for name, entry in sorted(listed.items())
        if isinstance(entry, dict)
    )


def freshness_s(facts: TableFacts, at: datetime) -> float | None:
    """Return the seconds since the last commit; None if there was none."""
    return None if facts.last_commit is None else max(0.0, (at - facts.last_commit).total_seconds())


def as_data(status: Status) -> dict[str, Any]:
    """Return the status as plain data; the form of `tarn status --json`."""
    return {
        "ok": status.ok,
        "at": status.at.isoformat(),
        "services": [asdict(service) for service in status.services],
        "tables": [
            {
                **asdict(facts),
                "last_commit": facts.last_commit.isoformat() if facts.last_commit else None,
                "freshness_s": freshness_s(facts, status.at),
            }
            for facts in status.tables
        ],
        "faults": dict(status.faults),
        "ingest": status.ingest,
    }


def _look(look: Look, clock: Clock) -> ServiceState:
    start_s = clock.now_s()
    detail, fault = _or_fault(look.look)
    return ServiceState(
        service=look.service,
        address=look.address,
        ok=fault is None,
        detail=detail if fault is None and detail is not None else str(fault),
        milliseconds=round((clock.now_s() - start_s) * 1000),
    )


def _or_fault(work: Callable[[], Any]) -> tuple[Any, str | None]:
    try:
        return work(), None
    except TarnError as error:
        return None, error.message
