"""Audits every ingested table at an interval, with a small share of the time, beside the ingestors.

An audit accounts for every offset of the table's streams each time, but it reads only the data files that no
earlier audit of this process has read. Once in a longer interval, and whenever it finds something that it had
not found before, it reads all of them: that finds files that were lost or damaged since, and looks into the
table's history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TypeAlias, TypeVar

import structlog
from pyroaring import BitMap64

from tarn.core.audit.manifests import ManifestReader, TraceIds
from tarn.core.audit.model import FileEntry, Finding, Kind, ManifestEntry
from tarn.core.errors import InvalidError, NotFoundError, TarnError
from tarn.core.table_state import TableState
from tarn.ingest.audit import Report, audit
from tarn.ingest.audit_memory import AuditMemory, RememberingOrigins
from tarn.ingest.context import StoppedError
from tarn.ingest.lake_files import KnownRemovals, LakePorts
from tarn.ingest.status import State, StatusRegistry

log = structlog.get_logger()

SHARE = 0.1
"""Share of the time that an audit reads files; the rest of it, it rests."""
REST_S_MAX = 10.0
MANIFESTS_S = 0.02
"""Seconds of reading manifests after which it rests; one takes a few milliseconds."""
FILES_MAX = 50_000
"""Data files up to which a table and its dead-letter tables are audited here; about 1 kB of memory each."""
FINDINGS_MAX = 20
FOREIGN = frozenset({Kind.STREAMS_DOUBLED, Kind.STREAMS_SAME})

T = TypeVar("T")
Damage: TypeAlias = tuple[frozenset[tuple[str, str]], dict[tuple[str, str, int], BitMap64]]
"""Kinds and places of findings, and offsets by what is wrong with them: to compare two audits."""
WHOLE: Damage = (frozenset(), {})


@dataclass(slots=True, kw_only=True)
class _Table:
    """What is known of one table from audit to audit.

    Attributes:
        uuid: UUID of the table; another one is another table.
        memory: what was read.
        whole_s: monotonic time of the last audit that read every file; None before it.
        confirmed: the damage that reading every file confirmed.
        words: that damage, as it is shown.
        logged: damage that is in the log.
    """

    uuid: str = ""
    memory: AuditMemory = field(default_factory=AuditMemory)
    whole_s: float | None = None
    confirmed: Damage = WHOLE
    words: tuple[Finding, ...] = ()
    logged: frozenset[str] = frozenset()


class RestingManifests:
    """A `ManifestReader` that rests after it took some time; manifests are read by each audit.

    Args:
        reader: reads them.
        rest: called with the seconds that reading took.
        now_s: monotonic time in seconds.
    """

    def __init__(
        self, reader: ManifestReader, *, rest: Callable[[float], None], now_s: Callable[[], float]
    ) -> None:
        self._reader = reader
        self._rest = rest
        self._now_s = now_s
        self._took_s = 0.0

    def list_sequences(self, data: bytes) -> list[tuple[str, int, int]]:
        """See `ManifestReader.list_sequences`."""
        return self._paced(lambda: self._reader.list_sequences(data))

    def list_entries(self, data: bytes) -> list[tuple[ManifestEntry, int | None]]:
        """See `ManifestReader.list_entries`."""
        return self._paced(lambda: self._reader.list_entries(data))

    def file_entries(
        self, data: bytes, *, added_snapshot_id: int | None, trace: TraceIds | None, most: int | None = None
    ) -> tuple[FileEntry, ...]:
        """See `ManifestReader.file_entries`."""
        return self._paced(
            lambda: self._reader.file_entries(
                data, added_snapshot_id=added_snapshot_id, trace=trace, most=most
            )
        )

    def _paced(self, read: Callable[[], T]) -> T:
        began_s = self._now_s()
        found = read()
        self._took_s += self._now_s() - began_s
        if self._took_s >= MANIFESTS_S:
            took_s, self._took_s = self._took_s, 0.0
            self._rest(took_s)
        return found


class AuditSchedule:
    """Audits the tables of the running ingestors; one thread, one table and one file at a time.

    Args:
        ports: makes what one audit reads with; entered for each audit.
        registry: status registry, which names the tables and takes the results.
        every_s: interval between two audits of a table, in seconds.
        all_files_s: interval after which an audit reads all files again, in seconds.
        now_s: monotonic time in seconds.
        now_ms: wall-clock time in milliseconds since the epoch.
        sleep: waits; raises StoppedError when the process is asked to stop.
    """

    def __init__(
        self,
        ports: Callable[[], AbstractContextManager[LakePorts]],
        registry: StatusRegistry,
        *,
        every_s: float,
        all_files_s: float,
        now_s: Callable[[], float],
        now_ms: Callable[[], int],
        sleep: Callable[[float], None],
    ) -> None:
        self._ports = ports
        self._registry = registry
        self._every_s = every_s
        self._all_files_s = all_files_s
        self._now_s = now_s
        self._now_ms = now_ms
        self._sleep = sleep
        self._tables: dict[str, _Table] = {}

    def run(self) -> None:
        """Audit until the process stops; a failure ends one audit only."""
        due_s = self._now_s() + self._every_s
        try:
            while True:
                self._sleep(max(0.0, due_s - self._now_s()))
                due_s = self._now_s() + self._every_s
                tables = self.tables()
                for gone in self._registry.audits().keys() - set(tables):
                    self._tables.pop(gone, None)
                    self._registry.remove_audit(gone)
                for table in tables:
                    self.look(table)
        except StoppedError:
            return

    def tables(self) -> Sequence[str]:
        """Names of the tables that ingestors fill."""
        ingestors = self._registry.ingestors().values()
        return sorted({one.table for one in ingestors if one.table and one.state is not State.INVALID})

    def look(self, table: str) -> None:
        """Audit one table, and show the result.

        Raises:
            StoppedError: the process was asked to stop.
        """
        known = self._tables.setdefault(table, _Table())
        began_s = self._now_s()
        every = known.whole_s is None or began_s - known.whole_s >= self._all_files_s
        try:
            report, read = self._audit(table, known, every=every)
            if not every and _damage(report) not in (WHOLE, known.confirmed):
                # Nothing is reported that reading everything does not confirm.
                every = True
                report, read = self._audit(table, known, every=True)
            if _damage(report) not in (WHOLE, known.confirmed):
                # Reading everything takes long: files may have been merged and deleted meanwhile. What is
                # damaged still is so in the table as it is now; only files that were not read are read.
                report, more = self._audit(table, known, history=True)
                read += more
        except StoppedError:
            raise
        except NotFoundError:
            self._tables.pop(table, None)
            self._registry.remove_audit(table)
            return
        except InvalidError as e:
            self._cannot(table, e.message)
            return
        except TarnError as e:
            self._failed(table, e.message)
            return
        except Exception as e:
            log.error("audit failed", table=table, exc_info=e)
            self._failed(table, f"{type(e).__name__}: {e}; a defect of Tarn, please report it")
            return
        if every:
            known.whole_s = began_s
        if every or report.whole:
            known.confirmed, known.words = _damage(report), tuple(f for f in report.findings if f.damage)
        self._show(table, known, report, read, every=every, seconds=self._now_s() - began_s)

    def _audit(
        self, table: str, known: _Table, *, every: bool = False, history: bool = False
    ) -> tuple[Report, int]:
        with self._ports() as ports:
            state = ports.tables.state(table)
            _require_small(state, table)
            if known.uuid != state.uuid:
                known.memory, known.uuid = AuditMemory(), state.uuid
            if every:
                taken = known.memory.removals.taken
                known.memory = AuditMemory(removals=KnownRemovals(taken=taken))
            origins = RememberingOrigins(ports.origins, known.memory, rest=self._rest, now_s=self._now_s)
            report = audit(
                table,
                replace(
                    ports,
                    origins=origins,
                    without_record=known.memory.without_record,
                    known=known.memory.removals,
                    history=every or history,
                    files_max=FILES_MAX,
                    manifests=RestingManifests(ports.manifests, rest=self._rest, now_s=self._now_s),
                ),
            )
        known.memory.sweep()
        return report, origins.reads

    def _rest(self, took_s: float) -> None:
        self._sleep(min(REST_S_MAX, took_s * (1.0 / SHARE - 1.0)))

    def _cannot(self, table: str, reason: str) -> None:
        """Show why a table cannot be audited at all, such as one without a commit or without origins.

        Earlier results are not shown any more: nobody looks whether they still hold.
        """
        before = self._registry.audits().get(table)
        failures = 1 + (before.failures if before is not None else 0)
        if before is None or before.reason != reason:
            log.info("table is not audited", table=table, reason=reason)
        self._registry.remove_audit(table)
        self._registry.update_audit(table, reason=reason, failures=failures)

    def _failed(self, table: str, reason: str) -> None:
        before = self._registry.audits().get(table)
        if before is None or before.reason != reason:
            log.warning("table could not be audited; it is tried again", table=table, reason=reason)
        failures = 1 + (before.failures if before is not None else 0)
        self._registry.update_audit(table, reason=reason, failures=failures)

    def _show(
        self, table: str, known: _Table, report: Report, read: int, *, every: bool, seconds: float
    ) -> None:
        damage = known.words
        at_ms = self._now_ms()
        changes = {"whole_at_ms": at_ms} if every else {}
        self._registry.update_audit(
            table,
            at_ms=at_ms,
            seconds=seconds,
            snapshot_id=report.snapshot_id,
            files=report.files,
            read=read,
            missing=sum(len(account.missing) for account in report.accounts),
            doubled=sum(len(account.doubled) for account in report.accounts),
            unknown=sum(len(account.unknown) for account in report.accounts),
            foreign=sum(finding.kind in FOREIGN for finding in report.findings),
            findings=tuple(_words(damage)),
            reason="",
            **changes,
        )
        found = frozenset(_words(damage))
        for finding in damage[:FINDINGS_MAX] if found != known.logged else ():
            log.error(
                "audit: rows of the table are not what was committed",
                table=table,
                kind=finding.kind.value,
                what=finding.what,
                do=f"scripts/tarn audit {table} shows all of it; {finding.fix}",
            )
        if known.logged and not found:
            log.info("audit: nothing is wrong any more", table=table)
        known.logged = found
        log.debug(
            "table audited",
            table=table,
            files=report.files,
            read=read,
            all_files=every,
            seconds=round(seconds, 3),
        )


def _damage(report: Report) -> Damage:
    """The damage in a report, without what changes while it stays the same."""
    offsets: dict[tuple[str, str, int], BitMap64] = {}
    for account in report.accounts:
        wrong = {"missing": account.missing, "doubled": account.doubled, "beyond": account.beyond}
        offsets |= {(what, account.topic, account.partition): found for what, found in wrong.items() if found}
    return frozenset((one.kind.value, one.where) for one in report.findings if one.damage), offsets


def _words(damage: Sequence[Finding]) -> Iterator[str]:
    for finding in damage[:FINDINGS_MAX]:
        yield f"{finding.kind.value}: {finding.what}. What to do: {finding.fix}"


def _require_small(state: TableState, table: str) -> None:
    """Refuse a table of many files before anything is read; without a total, they are counted while read."""
    files = state.total("data-files")
    if files is not None and files > FILES_MAX:
        raise InvalidError(
            f"{table} has {files} data files, and is audited here up to {FILES_MAX}: run scripts/tarn audit "
            f"{table}, or compact the table",
            table=table,
            files=files,
        )
