"""What the lake looks like right now: who answers, which tables there are, how fresh they are, what is late.

Everything comes from metadata: counts from snapshot summaries, progress from the offset maps in them, ends
from Kafka. Whatever cannot be asked is a fault of its own part, and the others are still answered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from tarn.cli.layers import LayerState, judged, lag, layers_of
from tarn.cli.ports import Bounds, Clock, LogEnds, Sizes, TableFacts, Tables
from tarn.core.errors import NotFoundError, TarnError, UnavailableError

AT_ONCE_MAX = 12
STUCK = frozenset({"Stopped", "Invalid", "Waiting"})
AHEAD_MAX = timedelta(days=1)
"""A commit's time so far ahead is not that of a clock that is fast: the age of the commit is unknown."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A service's container, as the engine on the host sees it.

    Attributes:
        running: whether it runs at all.
        good: healthy, running where it has no health check, or ended with 0.
        words: its state as one phrase.
    """

    running: bool
    good: bool
    words: str


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
class Sources:
    """Where the status comes from.

    Attributes:
        looks: how to look at services over the network.
        lake: the tables.
        log: the topics.
        ingest: asks ingest for its status page.
        sizes: how large tables are, by name.
        containers: what the engine says of each service; None if it was not asked, as where the command was
            not started by scripts/tarn.
        one_shots: services that end when they are done; shown only if they failed.
    """

    looks: Sequence[Look]
    lake: Tables
    log: LogEnds
    ingest: Callable[[], Any]
    sizes: Callable[[], Mapping[str, Sizes]] = dict
    containers: Mapping[str, Container] | None = None
    one_shots: frozenset[str] = frozenset({"init", "bootstrap"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceState:
    """What a look at a service saw.

    Attributes:
        service: its name.
        address: where it was looked for; empty for one without an address.
        ok: it can be used, as far as can be seen.
        detail: what was seen, or what is wrong and what to do.
        milliseconds: how long the look took.
        container: the container's state as one phrase; empty if the engine was not asked.
    """

    service: str
    address: str
    ok: bool
    detail: str
    milliseconds: int
    container: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestorFacts:
    """One ingestor, in words for people.

    Attributes:
        name: of the ingestor.
        state: what ingest says, or `?` if it does not answer.
        topic, table: what it reads and writes.
        lag: offsets that the topic holds and the table does not; None if neither Kafka nor ingest reports it.
        rows, bad_records, commits: since ingest started; None if it does not answer.
        message: why it is not running.
        watermark: event time before which nothing more is expected; None if there is none.
        complete_through: the same, floored to the table's partitions; likewise.
    """

    name: str
    state: str
    topic: str
    table: str
    lag: int | None
    rows: int | None = None
    bad_records: int | None = None
    commits: int | None = None
    message: str = ""
    watermark: str | None = None
    complete_through: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The state of the lake at one moment.

    Attributes:
        at: when.
        services: one state per service.
        tables: the tables, or empty if the catalog cannot be asked.
        layers: topic by topic what is ingested, and what jobs make of it.
        ingestors: one per stream.
        sizes: how large tables are, by name, as far as the reaper measured them.
        faults: what is wrong besides, by name: `tables`, `offsets`, `sizes` or `ingest` for a part that could
            not be asked, a table that cannot be read, an `ingestor <name>` that does not run, an
            `audit of <table>` with findings.
        notes: what should be known besides and is no fault, by name: why the `audit of <table>` was not
            finished.
        ingest: what ingest says about itself; None if it does not answer.
        seconds: how long looking took.
    """

    at: datetime
    services: tuple[ServiceState, ...]
    tables: tuple[TableFacts, ...]
    layers: tuple[LayerState, ...] = ()
    ingestors: tuple[IngestorFacts, ...] = ()
    sizes: Mapping[str, Sizes] = field(default_factory=dict)
    faults: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    ingest: Any = None
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether every service answers and every table can be read."""
        return all(service.ok for service in self.services) and not self.faults


def gather(sources: Sources, *, clock: Clock, at: datetime) -> Status:
    """Look at everything at once and return what was seen; a fault is part of it, never an exception."""
    start_s = clock.now_s()
    with ThreadPoolExecutor(max_workers=AT_ONCE_MAX) as pool:
        looked = [pool.submit(_look, look, sources.containers, clock) for look in sources.looks]
        reached = pool.submit(_asked, sources, "kafka", sources.log.bounds)
        said = pool.submit(_asked, sources, "ingest", sources.ingest)
        measured = pool.submit(_or_fault, sources.sizes)
        names, no_tables = pool.submit(_asked, sources, "catalog", sources.lake.tables).result()
        described = {n: pool.submit(_or_fault, partial(_facts, sources.lake, n)) for n in names or ()}
        facts = {name: future.result() for name, future in described.items()}
        bounds, no_bounds = reached.result()
        page, no_page = said.result()
        sizes, no_sizes = measured.result()
        services = tuple(future.result() for future in looked) + _unlooked(sources)
    tables = tuple(fact for fact, _ in facts.values() if fact is not None)
    layers, no_times = _layers(sources.log, tables, bounds, at)
    ingestors = joined(page, tables, bounds)
    faults = {name: fault for name, (_, fault) in facts.items() if fault is not None}
    parts = {"tables": no_tables, "offsets": no_bounds or no_times, "ingest": no_page, "sizes": no_sizes}
    faults |= {part: fault for part, fault in parts.items() if fault is not None}
    faults |= {f"ingestor {i.name}": f"{i.state}: {i.message}" for i in ingestors if i.state in STUCK}
    faults |= {f"audit of {table}": found for table, found in audit_faults(page).items()}
    return Status(
        at=at,
        services=services,
        tables=tables,
        layers=layers,
        ingestors=ingestors,
        sizes=sizes or {},
        faults=faults,
        notes={f"audit of {table}": reason for table, reason in audit_reasons(page).items()},
        ingest=page,
        seconds=clock.now_s() - start_s,
    )


def joined(
    page: Any, tables: Sequence[TableFacts], bounds: Mapping[str, Bounds] | None
) -> tuple[IngestorFacts, ...]:
    """Return one entry per ingestor: what ingest says of it, and its lag, from tables and topics.

    A stream that a table knows is shown even if ingest does not answer; where Kafka does not, the lag is the
    one that ingest saw last.
    """
    found = {entry.name: entry for entry in ingestors(page)}
    for facts in tables:
        for stream, held in facts.streams.items():
            if page is None:
                found[stream] = IngestorFacts(
                    name=stream, state="?", topic=held.source.topic, table=facts.name, lag=None
                )
            entry = found.get(stream)
            reach = (bounds or {}).get(held.source.topic)
            if entry is not None and entry.table == facts.name and reach is not None:
                found[stream] = replace(entry, lag=lag(held.next, reach))
    return tuple(entry for _, entry in sorted(found.items()))


def ingestors(page: Any) -> tuple[IngestorFacts, ...]:
    """Return what the status page of ingest says, one entry per ingestor; empty if it is another page."""
    listed = page.get("ingestors") if isinstance(page, dict) else None
    if not isinstance(listed, dict):
        return ()
    return tuple(
        IngestorFacts(
            name=name,
            state=str(entry.get("state", "?")),
            topic=str(entry.get("topic", "?")),
            table=str(entry.get("table", "?")),
            lag=None if entry.get("lag") is None else int(entry["lag"]),
            rows=int(entry.get("rows", 0)),
            bad_records=int(entry.get("badRecords", 0)),
            commits=int(entry.get("commits", 0)),
            message="; ".join(c["message"] for c in entry.get("conditions", ()) if c.get("message")),
            watermark=(entry.get("eventTime") or {}).get("watermark"),
            complete_through=(entry.get("eventTime") or {}).get("completeThrough"),
        )
        for name, entry in sorted(listed.items())
        if isinstance(entry, dict)
    )


def audit_faults(page: Any) -> dict[str, str]:
    """What the audits of ingest found, by table; empty if it is another page."""
    return {
        table: "; ".join(str(one) for one in found["findings"])
        for table, found in _audits(page)
        if found.get("findings")
    }


def audit_reasons(page: Any) -> dict[str, str]:
    """Why the last audits of tables were not finished, by table; empty if it is another page."""
    return {
        table: f"the last one was not finished: {found['reason']}"
        for table, found in _audits(page)
        if found.get("reason")
    }


def _audits(page: Any) -> list[tuple[str, dict[str, Any]]]:
    audits = page.get("audits") if isinstance(page, dict) else None
    listed = sorted(audits.items()) if isinstance(audits, dict) else []
    return [(table, found) for table, found in listed if isinstance(found, dict)]


def age_s(facts: TableFacts, at: datetime) -> float | None:
    """Return the seconds since a table's last commit; None if there was none, or its time is no time of now.

    A writer may state any number as the time of its snapshot, such as one in microseconds.
    """
    if facts.last_commit is None or facts.last_commit - at > AHEAD_MAX:
        return None
    return max(0.0, (at - facts.last_commit).total_seconds())


def as_data(status: Status) -> dict[str, Any]:
    """Return the status as plain data; the form of `tarn status --json`."""
    return {
        "ok": status.ok,
        "at": status.at.isoformat(),
        "seconds": round(status.seconds, 3),
        "services": [asdict(service) for service in status.services],
        "layers": [
            {
                **asdict(layer),
                "progress": layer.progress.value,
                "newest": layer.newest.isoformat() if layer.newest else None,
            }
            for layer in status.layers
        ],
        "ingestors": [asdict(entry) for entry in status.ingestors],
        "tables": [_table_data(facts, status.at, status.sizes.get(facts.name)) for facts in status.tables],
        "faults": dict(status.faults),
        "notes": dict(status.notes),
        "ingest": status.ingest,
    }


def _table_data(facts: TableFacts, at: datetime, sizes: Sizes | None) -> dict[str, Any]:
    return {
        "name": facts.name,
        "format_version": facts.format_version,
        "rows": facts.rows,
        "data_files": facts.data_files,
        "delete_files": facts.delete_files,
        "snapshots": facts.snapshots,
        "last_commit": facts.last_commit.isoformat() if facts.last_commit else None,
        "age_s": age_s(facts, at),
        "streams": {
            stream: {"topic": held.source.topic, "next": _offsets(held.next)}
            for stream, held in facts.streams.items()
        },
        "position": None if facts.position is None else _offsets(facts.position.next),
        "bytes": None if sizes is None else {**asdict(sizes), "at": sizes.at.isoformat()},
    }


def _offsets(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): offset for partition, offset in sorted(offsets.items())}


def _layers(
    log: LogEnds, tables: Sequence[TableFacts], bounds: Mapping[str, Bounds] | None, at: datetime
) -> tuple[tuple[LayerState, ...], str | None]:
    held = layers_of(tables)
    newest: dict[tuple[str | None, str], datetime | None] = {}
    fault: str | None = None
    for topic in dict.fromkeys(layer.topic for layer in held):
        fed = [layer for layer in held if layer.topic == topic]
        reach = _reach(bounds, topic)
        if topic is None or reach is None or fault is not None:
            continue
        times, fault = _or_fault(partial(log.newest, topic, reach, [layer.next for layer in fed]))
        newest |= {(topic, layer.layer): time for layer, time in zip(fed, times or (), strict=False)}
    ingested = {layer.topic: layer.next for layer in held if layer.ingested}
    states = tuple(
        judged(
            layer,
            ingested.get(layer.topic, {}),
            _reach(bounds, layer.topic),
            newest.get((layer.topic, layer.layer)),
            at=at,
        )
        for layer in held
    )
    return states, fault


def _reach(bounds: Mapping[str, Bounds] | None, topic: str | None) -> Bounds | None:
    return None if bounds is None or topic is None else bounds.get(topic)


def _facts(lake: Tables, name: str) -> TableFacts | None:
    """What a table is like; None if it was dropped since it was listed."""
    try:
        return lake.facts(name)
    except NotFoundError:
        return None


def _look(look: Look, containers: Mapping[str, Container] | None, clock: Clock) -> ServiceState:
    start_s = clock.now_s()
    container = (containers or {}).get(look.service)
    fault = _not_there(containers, look.service)
    detail: str | None = None
    if fault is None:
        detail, fault = _or_fault(look.look)
    if fault is None and container is not None and not container.good and container.words != "starting":
        fault = f"{detail}, but its container is {container.words}; see docker compose logs {look.service}"
    return ServiceState(
        service=look.service,
        address=look.address,
        ok=fault is None,
        detail=str(detail if fault is None else fault),
        milliseconds=round((clock.now_s() - start_s) * 1000),
        container=container.words if container is not None else "",
    )


def _unlooked(sources: Sources) -> tuple[ServiceState, ...]:
    """The services that listen nowhere, from their containers' state."""
    known = {look.service for look in sources.looks}
    return tuple(
        ServiceState(
            service=service,
            address="",
            ok=container.good,
            detail="" if container.good else f"{container.words}; see docker compose logs {service}",
            milliseconds=0,
            container=container.words,
        )
        for service, container in sorted((sources.containers or {}).items())
        if service not in known and not (service in sources.one_shots and container.good)
    )


def _not_there(containers: Mapping[str, Container] | None, service: str) -> str | None:
    """Why a service cannot answer, if the engine knows it: nobody has to wait for it then."""
    if containers is None:
        return None
    container = containers.get(service)
    if container is None:
        return "has no container; scripts/up starts it"
    if not container.running:
        return f"its container is not running ({container.words}); see docker compose logs {service}"
    return None


def _asked(sources: Sources, service: str, work: Callable[[], T]) -> tuple[T | None, str | None]:
    def ask() -> T:
        reason = _not_there(sources.containers, service)
        if reason is not None:
            raise UnavailableError(f"{service} {reason}")
        return work()

    return _or_fault(ask)


def _or_fault(work: Callable[[], T]) -> tuple[T | None, str | None]:
    try:
        return work(), None
    except TarnError as error:
        return None, error.message
