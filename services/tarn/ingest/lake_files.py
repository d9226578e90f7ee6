"""What audit and trace read: a table's streams, files and dead letters, and the log that they came from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from pyroaring import BitMap64

from tarn.core.audit.accounts import Place, between, ranges
from tarn.core.audit.manifests import ManifestReader, trace_ids
from tarn.core.audit.model import FileEntry, Finding, Json, Kind, Table
from tarn.core.audit.offsets import KEEP
from tarn.core.audit.origins import OriginReader
from tarn.core.catalog_objects import LIVE, PointerValue
from tarn.core.dead_letter import MARKER_KEY, DeadLetterWatermark, unregistered, watermark_of
from tarn.core.errors import CorruptStateError, InvalidError, NotFoundError, TarnError
from tarn.core.object_store import BulkStore
from tarn.core.offsets import SUMMARY_PREFIX, TAG_PREFIX, OffsetMap, TopicIdentity
from tarn.core.source import TopicClient, TopicReader
from tarn.core.table_state import TableState, commit_ids, marker_property
from tarn.core.years import moment_of
from tarn.ingest.batch_commit import offsets_in, pending_in, retired_in, streams_named
from tarn.ingest.dead_letters import markers_in
from tarn.ingest.lake_ports import Clock, StateOfTables, Tell
from tarn.keeper.walk import FILES_MAX, IN_FLIGHT_MAX, Places, Walker, in_order

PROGRESS_EVERY_S = 5.0
LOG_S_MAX = 20.0
"""Seconds to read the log of one topic at most."""
LOG_RANGES_MAX = 1_000
"""Ranges of offsets that the log of one partition is asked about at most."""
LOG_APART_MAX = 500
"""Ranges that are this many offsets apart at most are read as one."""
POLL_RECORDS_MAX = 500
POLL_S = 1.0

T = TypeVar("T")


@dataclass(slots=True)
class KnownRemovals:
    """What earlier audits of a table found about absent offsets; it holds while they are absent.

    Attributes:
        missing: per topic and partition, offsets that are missing.
        taken: likewise, offsets of rows that another engine deleted, by its snapshot; until that is rolled
            back, and also after it is expired.
    """

    missing: dict[Place, BitMap64] = field(default_factory=dict)
    taken: dict[Place, dict[int, BitMap64]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LakePorts:
    """Interfaces of audit and trace to the outside.

    Attributes:
        tables: tables as the catalog has them.
        store: object store of the lake.
        manifests: reader of manifests.
        origins: reader of data files and dead-letter files.
        topics: Kafka.
        bucket: bucket of the lake.
        pool: executor for read-ahead.
        clock: time.
        tell: called with progress messages.
        without_record: per partition of a topic, offsets at which its log is known to have no record; grown
            by each audit, as a log gains no records there.
        history: whether absent offsets are looked for in the files of earlier snapshots.
        known: what such a search found for earlier audits.
        files_max: live files of a table up to which it is audited; None: those of `keeper.walk`.
    """

    tables: StateOfTables
    store: BulkStore
    manifests: ManifestReader
    origins: OriginReader
    topics: TopicClient
    bucket: str
    pool: ThreadPoolExecutor
    clock: Clock = field(default_factory=Clock)
    tell: Tell
    without_record: dict[tuple[TopicIdentity, int], BitMap64] = field(default_factory=dict)
    history: bool = True
    known: KnownRemovals = field(default_factory=KnownRemovals)
    files_max: int | None = None

    @property
    def walker(self) -> Walker:
        """Reader of manifest lists and manifests."""
        return Walker(self.store, self.manifests, Places(self.bucket), self.pool)


def streams_of(state: TableState, *, table: str) -> tuple[dict[str, OffsetMap], list[Finding]]:
    """Offset map of every stream in the current snapshot's history, and a finding for each unreadable one."""
    named = streams_named(state)
    named |= {tag.removeprefix(TAG_PREFIX) for tag in state.refs if tag.startswith(TAG_PREFIX)}
    for snapshot in state.ancestors():
        summary = snapshot.get("summary") or {}
        named |= {key.removeprefix(SUMMARY_PREFIX) for key in summary if key.startswith(SUMMARY_PREFIX)}
    found: dict[str, OffsetMap] = {}
    findings = []
    for stream in sorted(named):
        try:
            offsets = offsets_in(state, stream)
        except CorruptStateError as error:
            what = f"stream {stream}: {error.message}"
            findings.append(Finding(kind=Kind.OFFSETS_UNREADABLE, where=table, what=what, fix=KEEP))
            continue
        if offsets is not None:
            found[stream] = offsets
    return found, findings


class LiveFiles:
    """The files of a table's current snapshot, with the positions that delete files remove.

    Args:
        name: qualified name of the table.
        state: the table as the catalog has it.
        ports: interfaces to the outside.
        files_max: number of live files beyond which the table is refused; None: the one of `keeper.walk`.
        audited: name of the table whose audit they are read for, for messages; by default the table itself.

    Attributes:
        table: the table as an audited model, with its current snapshot only.
        data: live data files, each as often as manifests list it.

    Raises:
        CorruptStateError: a manifest list, manifest or delete file cannot be read.
        InvalidError: the table has equality deletes, or too many files.
    """

    def __init__(
        self,
        name: str,
        state: TableState,
        ports: LakePorts,
        *,
        files_max: int | None = None,
        audited: str = "",
    ) -> None:
        self._ports = ports
        self.state = state
        limit = FILES_MAX if files_max is None else files_max
        head = [state.head["manifest-list"]] if state.head is not None else []
        self.table = self._model(name, head, limit)
        if files_max is not None and sum(map(len, filter(None, self.table.manifests.values()))) > files_max:
            raise InvalidError(
                f"{name} has more than {files_max} data and delete files, the limit here: run scripts/tarn "
                f"audit {audited or name}, or compact {name}",
                table=name,
            )
        _require_whole(self.table)
        entries = [entry for snapshot in self.table.chain()[-1:] for entry in self.table.files_of(snapshot)]
        self.data = [entry for entry in entries if not entry.deletes]
        self._deleted: dict[str, BitMap64] = {}
        self._deleted_by: dict[str, set[int | None]] = {}
        # A Puffin file has vectors of several data files, and an entry for each.
        deletes = list({entry.path: entry for entry in entries if entry.deletes}.values())
        for entry, found in self.read(deletes, ports.origins.deleted, what="delete files"):
            if found is None:
                raise CorruptStateError(f"delete file {entry.path} of {name} is missing; {FSCK}")
            for path, positions in found.items():
                self._deleted[path] = self._deleted.get(path, BitMap64()) | positions
                self._deleted_by.setdefault(path, set()).add(entry.snapshot_id)

    def deleted(self, file: FileEntry) -> BitMap64:
        """Positions of a data file's rows that delete files remove."""
        return self._deleted.get(file.path, BitMap64())

    def deleted_by(self, file: FileEntry) -> list[int]:
        """Snapshots that added the delete files of a data file, as far as manifests say."""
        return sorted(number for number in self._deleted_by.get(file.path, ()) if number is not None)

    def former(self) -> Iterator[tuple[FileEntry, Json, Json | None]]:
        """Yield data files of kept ancestors that the current snapshot has no more.

        Yields:
            The file, the newest snapshot that has it, and the one after that.
        """
        chain = self.table.chain()
        model = self._model(self.table.name, [s["manifest-list"] for s in chain if s.get("manifest-list")])
        seen = {entry.path for entry in self.data}
        after: Json | None = None
        for snapshot in reversed(chain):
            for entry in model.files_of(snapshot):
                if not entry.deletes and entry.path not in seen:
                    seen.add(entry.path)
                    yield entry, snapshot, after
            after = snapshot

    def holding(self, topic: str, partition: int, offset: int) -> list[FileEntry]:
        """Live data files with a row of this offset, each as often as it is live or has such a row."""
        found: list[FileEntry] = []
        files = [entry for entry in self.data if may_hold(entry, partition, between(offset, offset + 1))]
        for entry, origins in self.read(files, self.origins, what="data files"):
            tally = origins.rows.get((topic, partition)) if origins is not None else None
            if tally is not None:
                found += [entry] * sum(offset in level for level in tally.levels)
        return found

    def origins(self, file: FileEntry) -> Any:
        """Where the rows of a data file come from; see `OriginReader.rows`."""
        return self._ports.origins.rows(file, self.deleted(file))

    def read(
        self, files: Sequence[FileEntry], work: Callable[[FileEntry], T], *, what: str
    ) -> Iterator[tuple[FileEntry, T]]:
        """Yield each file with its result, in order, with read-ahead and progress messages."""
        yield from read_files(self._ports, files, work, what=what)

    def _model(self, name: str, lists: Sequence[str], files_max: int = FILES_MAX) -> Table:
        state = self.state
        found, manifests, unreadable = self._ports.walker.listed(state.metadata, lists, files_max=files_max)
        *namespace, last = name.split(".")
        pointer = PointerValue(
            key="",
            kind="table",
            state=LIVE,
            namespace=tuple(namespace),
            name=last,
            uuid=state.uuid,
            version=0,
            metadata=state.location,
            written_ms=None,
        )
        return Table(
            pointer=pointer, metadata=state.metadata, lists=found, manifests=manifests, unreadable=unreadable
        )


FSCK = "scripts/tarn fsck says what else is damaged"


def _require_whole(table: Table) -> None:
    for what, objects in (("manifest list", table.lists), ("manifest", table.manifests)):
        for location, content in objects.items():
            if content is None:
                reason = table.unreadable.get(location, "it is not in the store")
                raise CorruptStateError(
                    f"{what} {location} of {table.name} cannot be read: {reason}; {FSCK}", table=table.name
                )


def read_files(
    ports: LakePorts,
    files: Sequence[FileEntry],
    work: Callable[[FileEntry], T],
    *,
    what: str,
    ahead: int = IN_FLIGHT_MAX,
) -> Iterator[tuple[FileEntry, T]]:
    """Yield each file with its result, in order, with `ahead` files in progress, and progress messages."""
    last_s = ports.clock.now_s()
    for number, (entry, found) in enumerate(in_order(ports.pool, files, work, ahead)):
        if ports.clock.now_s() - last_s > PROGRESS_EVERY_S:
            last_s = ports.clock.now_s()
            ports.tell(f"{number} of {len(files)} {what} read")
        yield entry, found


def may_hold(file: FileEntry, partition: int, offsets: BitMap64) -> bool:
    """Whether the file's bounds allow a row of the partition at one of the offsets."""
    bounds = file.bounds
    if bounds is None:
        return bool(offsets)
    if not bounds.partition_min <= partition <= bounds.partition_max:
        return False
    return offsets.range_cardinality(bounds.offset_min, bounds.offset_max + 1) > 0


def require_traced(state: TableState, *, table: str) -> None:
    """Require that the table has the trace column.

    Raises:
        InvalidError: it has none.
    """
    if trace_ids(state.metadata) is None:
        raise InvalidError(
            f"table {table} has no column _tarn (spec.trace: false), so its rows do not say which message "
            "they are; scripts/tarn fsck compares at least their number with the offsets",
            table=table,
        )


def letter_files(
    ports: LakePorts, state: TableState, streams: Sequence[str], *, audited: str = ""
) -> tuple[list[FileEntry], list[str]]:
    """Files with dead letters of a table's streams: live in dead-letter tables, or not registered yet.

    Args:
        ports: interfaces to the outside; its `files_max` holds for each dead-letter table.
        state: the table.
        streams: names of the streams.
        audited: name of the table, for messages.

    Returns:
        The files, and the names of the dead-letter tables.

    Raises:
        TarnError: a dead-letter table cannot be read, or has too many files.
    """
    files: dict[str, FileEntry] = {}
    homes: list[str] = []
    markers: dict[str, DeadLetterWatermark] = {}
    for name, found in all_tables(ports):
        if marker_property(MARKER_KEY) not in found.properties and MARKER_KEY not in _summary_keys(found):
            continue
        known = markers_in(found)
        if not set(streams) & set(known):
            continue
        homes.append(name)
        live = LiveFiles(name, found, ports, files_max=ports.files_max, audited=audited)
        files.update({entry.path: entry for entry in live.data})
        for stream, marks in known.items():
            marker = watermark_of(marks, state.uuid)
            if marker is not None:
                newest = markers.get(stream)
                markers[stream] = marker if newest is None or marker.sequence > newest.sequence else newest
    for stream in streams:
        waiting = unregistered(pending_in(state, stream), markers.get(stream), table_uuid=state.uuid)
        for pending in waiting:
            files.setdefault(pending.path, FileEntry(pending.path, pending.bytes, pending.records))
    return list(files.values()), homes


def all_tables(ports: LakePorts) -> Iterator[tuple[str, TableState]]:
    """Yield every table of the catalog; one that was dropped a moment ago is left out."""

    def load(name: str) -> TableState | None:
        try:
            return ports.tables.state(name)
        except NotFoundError:
            return None

    last_s = ports.clock.now_s()
    names = ports.tables.tables()
    for number, (name, state) in enumerate(in_order(ports.pool, names, load)):
        if ports.clock.now_s() - last_s > PROGRESS_EVERY_S:
            last_s = ports.clock.now_s()
            ports.tell(f"{number} of {len(names)} tables looked at")
        if state is not None:
            yield name, state


def _summary_keys(state: TableState) -> set[str]:
    head = state.head
    return set((head.get("summary") or {}) if head is not None else ())


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitFacts:
    """The commit that added a file.

    Attributes:
        snapshot_id: id of its snapshot; None if the manifest does not say.
        commit_id: Tarn's commit id, of a group commit those of all members, separated by spaces; None if
            another writer made it, or history no longer has the snapshot.
        at: time of the commit; None if history no longer has the snapshot.
        operation: the snapshot's operation; empty if history no longer has it.
    """

    snapshot_id: int | None
    commit_id: str | None = None
    at: datetime | None = None
    operation: str = ""


def commit_of(state: TableState, snapshot_id: int | None) -> CommitFacts:
    """What the table's metadata still say about a snapshot."""
    for snapshot in state.metadata.get("snapshots") or ():
        if snapshot["snapshot-id"] == snapshot_id:
            summary: Mapping[str, str] = snapshot.get("summary") or {}
            return CommitFacts(
                snapshot_id=snapshot_id,
                commit_id=" ".join(commit_ids(summary)) or None,
                at=moment_of(int(snapshot["timestamp-ms"])),
                operation=str(summary.get("operation", "")),
            )
    return CommitFacts(snapshot_id=snapshot_id)


DELETES = frozenset({"delete", "overwrite"})
"""Operations of a snapshot by which an engine deletes rows; a compaction is a `replace`."""


def deleted_on_purpose(commit: CommitFacts) -> bool:
    """Whether another engine's kept snapshot is one that deletes rows."""
    return commit.commit_id is None and commit.operation in DELETES


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRecords:
    """What the log of a partition says about some offsets.

    Attributes:
        start: first offset of the log.
        asked: offsets whose records were asked for.
        held: those of them with a record.
    """

    start: int
    asked: BitMap64
    held: BitMap64


def retired_offsets(state: TableState, stream: str) -> dict[int, BitMap64]:
    """Partition to the offsets of the stream's rows that retention dropped.

    Raises:
        CorruptStateError: the statement in the summary cannot be read.
    """
    found = retired_in(state, stream)
    dropped: dict[int, BitMap64] = {}
    for partition, runs in (found.runs if found is not None else {}).items():
        for start, end in runs:
            dropped[partition] = dropped.get(partition, BitMap64()) | between(start, end)
    return dropped


def _joined(found: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the ranges, those that are close to each other as one."""
    last: tuple[int, int] | None = None
    for start, end in found:
        if last is not None and start - last[1] <= LOG_APART_MAX:
            last = last[0], end
            continue
        if last is not None:
            yield last
        last = start, end
    if last is not None:
        yield last


class Log:
    """A topic's log as evidence; it is asked only if it is the very topic that the table was filled from.

    Args:
        topics: Kafka.
        source: identity of the topic that the table was filled from.
        clock: time.

    Attributes:
        reason: why the log cannot be asked; empty if it can.
    """

    def __init__(self, topics: TopicClient, source: TopicIdentity, clock: Clock) -> None:
        self._clock = clock
        self._until_s = clock.now_s() + LOG_S_MAX
        self._reader: TopicReader | None = None
        self._bounds: dict[int, tuple[int, int]] = {}
        self.reason = ""
        try:
            self._reader = topics.open(source.topic, stream="audit")
            found = self._reader.identity()
            if found == source:
                self._bounds = {p: (b.start, b.end) for p, b in self._reader.bounds().items()}
            else:
                self.reason = f"topic {source.topic} is another one now (id {found.topic_id})"
        except TarnError as error:
            self.reason = error.message

    def start(self, partition: int) -> int | None:
        """First offset of the log; None if it cannot be asked."""
        return self._bounds[partition][0] if partition in self._bounds else None

    def records(self, partition: int, offsets: BitMap64) -> LogRecords | None:
        """At which of the offsets the log has a record; None if it cannot be asked.

        Limited by `LOG_S_MAX` and `LOG_RANGES_MAX`; what is left, or outside the log, is not in `asked`.
        """
        if self._reader is None or partition not in self._bounds:
            self.reason = self.reason or f"the topic has no partition {partition}"
            return None
        first, last = self._bounds[partition]
        asked, held = BitMap64(), BitMap64()
        wanted = offsets & between(first, last)
        for number, (start, end) in enumerate(_joined(ranges(wanted))):
            if number == LOG_RANGES_MAX and not self.reason:
                self.reason = (
                    f"only the first {LOG_RANGES_MAX} ranges of partition {partition} were asked about"
                )
            if self.reason:
                break
            try:
                reached = self._read(self._reader, partition, start, end, held)
            except TarnError as error:
                self.reason = error.message
                break
            asked |= wanted & between(start, reached)
        return LogRecords(start=first, asked=asked, held=held & asked)

    def close(self) -> None:
        """Close the connection."""
        if self._reader is not None:
            self._reader.close()

    def _read(self, reader: TopicReader, partition: int, start: int, end: int, held: BitMap64) -> int:
        """Add the offsets of records in [start, end) to `held`; returns where reading ended."""
        at = start
        reader.seek({partition: start})
        while at < end:
            if self._clock.now_s() > self._until_s:
                self.reason = f"reading partition {partition} took longer than {LOG_S_MAX:.0f} s"
                break
            for part in reader.poll(records_max=POLL_RECORDS_MAX, timeout_s=POLL_S):
                if part.partition == partition:
                    held |= BitMap64([offset for offset in part.offsets if start <= offset < end])
                    at = max(at, part.end)
        return min(at, end)
