"""What the status API answers: views on what is in memory. Nothing is asked of anybody."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import reduce
from typing import Any, TypeVar

from tarn.core.errors import ForbiddenError, NotFoundError
from tarn.ingest.commit_ring import CommitSeen
from tarn.ingest.figures import TableFigures, newest, same_version
from tarn.ingest.fsck_look import FsckSeen
from tarn.ingest.health import faults, hanging
from tarn.ingest.lake_look import LakeSeen
from tarn.ingest.status import (
    FRESHNESS_S,
    AuditStatus,
    Histogram,
    IngestorStatus,
    State,
    StatusRegistry,
)
from tarn.ingest.status_api import models
from tarn.ingest.status_api.shapes import (
    LIMIT,
    Query,
    cut,
    id_text,
    maybe_time,
    page_of,
    time_of,
    time_of_us,
)
from tarn.ingest.strikes import Strike, StrikeKind, Strikes
from tarn.ingest.table_look import TableLook

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What the views are on.

    Attributes:
        registry: status of the ingestors.
        lake: what was seen of the lake last.
        clock: monotonic time in seconds, that of the registry's writers.
        now_ms: wall-clock time in milliseconds since the epoch.
        started_ms: start of the process, in milliseconds since the epoch.
        version: version of Tarn.
        look: looks into a table; None: there is no catalog to ask.
        stream_url: address of the service stream; empty if there is none.
        strikes: makes faults by hand; None: nobody may.
        fsck: what fsck found last.
    """

    registry: StatusRegistry
    lake: Callable[[], LakeSeen]
    clock: Callable[[], float]
    now_ms: Callable[[], int]
    started_ms: int
    version: str
    look: TableLook | None = None
    stream_url: str = ""
    strikes: Strikes | None = None
    fsck: Callable[[], FsckSeen] = FsckSeen

    @property
    def at(self) -> datetime:
        """Now."""
        return time_of(self.now_ms())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """Everything that is known of a table."""

    figures: TableFigures | None = None
    seen_ms: int | None = None
    writers: Mapping[str, IngestorStatus] = field(default_factory=dict)


def index(engine: Engine, endpoints: Iterable[tuple[str, str]]) -> models.Index:
    """What there is: paths with their summaries."""
    found = faults(engine.registry, now_s=engine.clock())
    return models.Index(
        at=engine.at,
        service="ingest",
        version=engine.version,
        started_at=time_of(engine.started_ms),
        healthy=not found,
        faults=[cut(one) for one in found],
        endpoints=[models.Endpoint(path=path, summary=summary) for path, summary in endpoints],
    )


def ingestors(engine: Engine, query: Query) -> models.Ingestors:
    """Ingestors by name."""
    known = engine.registry.ingestors()
    names, after = page_of(known, query)
    return models.Ingestors(
        at=engine.at,
        ingestors=[models.IngestorItem(**_ingestor(name, known[name])) for name in names],
        total=len(known),
        next=after,
    )


def ingestor(engine: Engine, name: str) -> models.Ingestor:
    """One ingestor.

    Raises:
        NotFoundError: there is none of this name.
    """
    known = engine.registry.ingestors()
    if name not in known:
        raise _not_found("ingestor", name, "/v1/ingestors")
    status = known[name]
    readers = {
        reader: one for reader, one in engine.registry.readers().items() if (one.replica_of or reader) == name
    }
    partitions = sorted(status.committed.keys() | status.ends.keys())
    return models.Ingestor(
        **_ingestor(name, status),
        at=engine.at,
        partitions=[_partition(status, number) for number in partitions[: models.PARTS_SHOWN_MAX]],
        partitions_total=len(partitions),
        event_time=_event_time(status),
        freshness=_freshness(status.freshness),
        retired_rows=status.retired_rows,
        retired_files=status.retired_files,
        events=status.events,
        events_failed=status.events_failed,
        readers=[_reader(*one) for one in list(readers.items())[: models.PARTS_SHOWN_MAX]],
        readers_total=len(readers),
    )


def tables(engine: Engine, query: Query) -> models.Tables:
    """Tables by name: those that the last look found, and those that ingestors write."""
    lake = engine.lake()
    writers = _writers(engine)
    every = lake.tables.keys() | writers.keys()
    names, after = page_of(every, query)
    return models.Tables(
        at=engine.at,
        looked_at=maybe_time(lake.looked_ms),
        fault=cut(lake.fault) or None,
        tables=[models.TableItem(**_table(name, _known(name, lake, writers))) for name in names],
        total=len(every),
        next=after,
    )


def table(engine: Engine, name: str) -> models.Table:
    """One table.

    Raises:
        NotFoundError: there is none of this name.
    """
    lake, writing = engine.lake(), _writers(engine)
    if name not in lake.tables and name not in writing:
        raise _not_found("table", name, "/v1/tables")
    found = _known(name, lake, writing)
    figures, audit = found.figures, engine.registry.audits().get(name)
    writers = found.writers.values()
    return models.Table(
        **_table(name, found),
        at=engine.at,
        uuid=figures and figures.uuid,
        format_version=figures and figures.format_version,
        freshness=_freshness(reduce(Histogram.joined, (one.freshness for one in writers), Histogram())),
        storage=_storage(name, figures, lake),
        audit=None if audit is None else _audit(audit),
    )


def require_table(engine: Engine, name: str) -> None:
    """Require that a table was seen, as `table` shows it.

    Raises:
        NotFoundError: it was not.
    """
    if name not in engine.lake().tables and name not in _writers(engine):
        raise _not_found("table", name, "/v1/tables")


def storage(engine: Engine, query: Query) -> models.Storage:
    """What the tables take in the store, by name."""
    lake = engine.lake()
    writers = _writers(engine)
    every = lake.tables.keys() | writers.keys() | lake.sizes.keys()
    names, after = page_of(every, query)
    waiting = [one.to_be_removed for one in lake.sizes.values()]
    stored = [(one.live or 0) + one.history + one.to_be_removed for one in lake.sizes.values()]
    return models.Storage(
        at=engine.at,
        looked_at=maybe_time(lake.sizes_ms),
        fault=cut(lake.sizes_fault) or None,
        measured_tables=len(lake.sizes),
        stored_bytes=sum(stored) if stored else None,
        waiting_bytes=sum(waiting) if waiting else None,
        tables=[_storage(name, _known(name, lake, writers).figures, lake) for name in names],
        total=len(every),
        next=after,
    )


def commits(engine: Engine, query: Query) -> models.Commits:
    """The last commits, or the first ones after a number."""
    ring, limit = engine.registry.commits, query.limit or LIMIT
    page = ring.last(limit) if query.since is None else ring.after(query.since, limit)
    return models.Commits(
        at=engine.at, commits=[_commit(one) for one in page.commits], next=page.next, missed=page.missed
    )


def audits(engine: Engine, query: Query) -> models.Audits:
    """The last audit of each table, by name."""
    known = engine.registry.audits()
    names, after = page_of(known, query)
    return models.Audits(
        at=engine.at,
        audits=[models.TableAudit(table=name, **dict(_audit(known[name]))) for name in names],
        total=len(known),
        next=after,
    )


def page(engine: Engine) -> models.Page:
    """What the page has to know."""
    return models.Page(at=engine.at, stream_url=engine.stream_url or None, faults=engine.strikes is not None)


def strikes(engine: Engine) -> models.Faults:
    """The last faults by hand, newest first, and what a page sends to make one."""
    made = engine.strikes
    found = () if made is None else made.all()
    return models.Faults(
        at=engine.at,
        enabled=made is not None,
        token=None if made is None else made.token,
        running=any(one.running for one in found),
        strikes=[_strike(one) for one in found],
    )


def strike(engine: Engine, kind: str, query: Query) -> models.Strike:
    """Begin a fault by hand.

    Raises:
        ForbiddenError: nobody may make one here.
        NotFoundError: there is no such kind or ingestor.
        ConflictError: the ingestor does not run, or one is under way.
    """
    if engine.strikes is None:
        raise ForbiddenError("faults are not made here; scripts/up with TARN_FAULTS=on in .env allows them")
    if kind not in [*StrikeKind]:
        raise NotFoundError(
            f"there is no fault {kind[:200]!r}",
            field="kind",
            value=kind[:200],
            fix=f"POST /v1/faults/{' or '.join(StrikeKind)}",
        )
    return _strike(engine.strikes.begin(StrikeKind(kind), query.ingestor or ""))


def services(engine: Engine) -> models.Services:
    """What ingest needs, as it was looked at last."""
    now_s, now_ms = engine.clock(), engine.now_ms()
    found = faults(engine.registry, now_s=now_s)
    return models.Services(
        at=time_of(now_ms),
        healthy=not found,
        faults=[cut(one) for one in found],
        hanging=[cut(one) for one in hanging(engine.registry, now_s=now_s)],
        services=[
            models.ServiceItem(
                name=name,
                ok=one.ok,
                message=cut(one.message),
                looked_at=time_of(now_ms - max(0, round((now_s - one.looked_s) * 1_000))),
            )
            for name, one in engine.registry.dependencies().items()
        ],
    )


def _not_found(what: str, name: str, listing: str) -> NotFoundError:
    return NotFoundError(
        f"there is no {what} {name[:200]!r}; GET {listing} lists those that there are",
        field=what,
        value=name[:200],
        fix=f"GET {listing} lists those that there are",
    )


def _ingestor(name: str, status: IngestorStatus) -> dict[str, Any]:
    last = None
    if status.commit_at_ms:
        last = models.LastCommit(
            at=time_of(status.commit_at_ms),
            milliseconds=round(status.commit_ms, 3),
            snapshot_id=id_text(status.commit_snapshot_id),
            freshness_seconds=status.freshness_s,
        )
    return {
        "name": name,
        "state": status.state,
        "reason": status.reason or None,
        "message": cut(status.message) or None,
        "since": maybe_time(status.since_ms or None),
        "table": status.table or None,
        "topic": status.topic or None,
        "stream": status.stream or None,
        "replicas": status.replicas,
        "ready_replicas": status.ready,
        "lag": status.lag,
        "lag_reason": cut(status.lag_reason) or None,
        "rows": status.rows,
        "bad_records": status.bad_records,
        "bytes": status.bytes,
        "commits": status.commits,
        "snapshots": status.snapshots,
        "merges": status.merges,
        "conflicts": status.conflicts,
        "unknowns": status.unknowns,
        "unknowns_resolved": status.resolved,
        "retries": status.retries,
        "last_commit": last,
    }


def _partition(status: IngestorStatus, number: int) -> models.Partition:
    committed, end = status.committed.get(number), status.ends.get(number)
    known = committed is not None and end is not None and status.measured
    return models.Partition(
        partition=number,
        committed_offset=committed,
        end_offset=end,
        lag=max(0, end - committed) if known and end is not None and committed is not None else None,
    )


def _event_time(status: IngestorStatus) -> models.EventTime | None:
    if not status.event_column:
        return None
    return models.EventTime(
        column=status.event_column,
        watermark=time_of_us(status.watermark_us),
        complete_through=time_of_us(status.complete_us),
        held_back_by=list(status.held_by),
    )


def _freshness(found: Histogram) -> models.Freshness:
    bounds = (*FRESHNESS_S, None)
    return models.Freshness(
        batches=sum(found.counts),
        sum_seconds=found.sum_s,
        buckets=[
            models.Bucket(at_most_seconds=bound, batches=count)
            for bound, count in zip(bounds, found.counts, strict=True)
        ],
    )


def _reader(name: str, status: IngestorStatus) -> models.Reader:
    return models.Reader(
        name=name,
        state=status.state,
        reason=status.reason or None,
        message=cut(status.message) or None,
        since=maybe_time(status.since_ms or None),
        rows=status.rows,
        commits=status.commits,
    )


def _writers(engine: Engine) -> dict[str, dict[str, IngestorStatus]]:
    """The ingestors of each table, by names."""
    found: dict[str, dict[str, IngestorStatus]] = {}
    for name, status in engine.registry.ingestors().items():
        if status.table and status.state is not State.INVALID:
            found.setdefault(status.table, {})[name] = status
    return found


def _known(name: str, lake: LakeSeen, writers: Mapping[str, Mapping[str, IngestorStatus]]) -> _Table:
    """What is known of a table: of what ingestors committed and what was looked at, the newest."""
    looked, mine = lake.tables.get(name), writers.get(name, {})
    seen = [(one.figures, one.figures_at_ms) for one in mine.values()]
    seen += [(looked.figures, looked.looked_ms)] if looked is not None else []
    figures = newest(*(one for one, _ in seen))
    # Whoever saw this version last says how old the figures are.
    at_ms = [ms for one, ms in seen if one and figures and ms and same_version(one, figures)]
    return _Table(figures=figures, seen_ms=max(at_ms, default=None), writers=mine)


def _table(name: str, found: _Table) -> dict[str, Any]:
    figures = found.figures
    last = max(found.writers.values(), key=lambda one: one.commit_at_ms, default=None)
    return {
        "name": name,
        "rows": figures and figures.rows,
        "files": figures and figures.files,
        "delete_files": figures and figures.delete_files,
        "bytes": figures and figures.bytes,
        "snapshots": figures and figures.snapshots,
        "manifests": figures and figures.manifests,
        "metadata_bytes": figures and figures.metadata_bytes,
        "snapshot_id": id_text(figures and figures.snapshot_id),
        "last_commit_at": maybe_time(figures and figures.commit_at_ms),
        "freshness_seconds": last and last.freshness_s,
        "ingestors": sorted(found.writers),
        "seen_at": maybe_time(found.seen_ms),
    }


def _storage(name: str, figures: TableFigures | None, lake: LakeSeen) -> models.StorageItem:
    sizes = lake.sizes.get(name)
    return models.StorageItem(
        table=name,
        data_bytes=figures and figures.bytes,
        metadata_bytes=figures and figures.metadata_bytes,
        objects=sizes and sizes.objects,
        stored_bytes=sizes and (sizes.live or 0) + sizes.history + sizes.to_be_removed,
        history_bytes=sizes and sizes.history,
        waiting_bytes=sizes and sizes.to_be_removed,
        measured_at=sizes and sizes.at,
    )


def _audit(found: AuditStatus) -> models.Audit:
    page = found.to_json()

    def known(value: T) -> T | None:
        return value if found.at_ms else None

    return models.Audit(
        whole=page["whole"],
        at=maybe_time(found.at_ms or None),
        all_files_at=maybe_time(found.whole_at_ms or None),
        seconds=known(round(found.seconds, 3)),
        snapshot_id=id_text(found.snapshot_id),
        files=known(found.files),
        files_read=known(found.read),
        missing=known(found.missing),
        doubled=known(found.doubled),
        unknown=known(found.unknown),
        foreign_streams=known(found.foreign),
        findings=[cut(one) for one in found.findings],
        reason=cut(found.reason) or None,
        failures=found.failures,
    )


def _strike(one: Strike) -> models.Strike:
    audit = one.audit
    healed = one.healed_ms is not None and one.struck_ms is not None
    return models.Strike(
        id=one.number,
        kind=one.kind,
        ingestor=one.ingestor,
        table=one.table,
        state=one.state,
        asked_at=time_of(one.asked_ms),
        struck_at=maybe_time(one.struck_ms),
        what=cut(one.what) or None,
        healed_at=maybe_time(one.healed_ms),
        heal_seconds=((one.healed_ms or 0) - (one.struck_ms or 0)) / 1_000 if healed else None,
        resolution=cut(one.resolution) or None,
        outcome=one.outcome,
        commit_id=one.commit_id,
        snapshot_id=id_text(one.snapshot_id),
        audit=None
        if audit is None
        else models.StrikeAudit(
            whole=audit.whole,
            accounted=audit.accounted,
            missing=audit.missing,
            doubled=audit.doubled,
            unknown=audit.unknown,
            files=audit.files,
            seconds=round(audit.seconds, 3),
            snapshot_id=id_text(audit.snapshot_id),
            findings=[cut(text) for text in audit.findings],
        ),
        ended_at=maybe_time(one.ended_ms),
        reason=cut(one.reason) or None,
    )


def _commit(seen: CommitSeen) -> models.CommitItem:
    age_ms = seen.oldest_age_ms
    return models.CommitItem(
        number=seen.number,
        at=time_of(seen.at_ms),
        ingestor=seen.ingestor,
        reader=seen.reader,
        table=seen.table,
        kind=seen.kind,
        outcome=seen.outcome,
        commit_id=seen.commit_id,
        snapshot_id=id_text(seen.snapshot_id),
        attempts=seen.attempts,
        rows=seen.rows,
        bad_records=seen.bad_records,
        rows_removed=seen.rows_removed,
        bytes=seen.bytes,
        milliseconds=round(seen.took_ms, 3),
        oldest_age_seconds=None if age_ms is None else age_ms / 1_000,
    )
