"""`tarn dead-letters replay`: dead letters that the spec can decode by now become rows, each once.

What is a row already is found by the rows' own trace column, in the very snapshot that the commit builds on,
so nothing else has to be remembered: a replay that was interrupted, or runs twice, adds nothing twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from tarn.core.audit.accounts import Origins
from tarn.core.audit.model import FileEntry
from tarn.core.batch import RawBatch
from tarn.core.decode import Decoder
from tarn.core.errors import ConflictError, CorruptStateError, InvalidError, OutcomeUnknownError, TarnError
from tarn.core.history import READER_SNAPSHOTS_MAX, READER_TAG_PREFIX
from tarn.core.offsets import SUMMARY_PREFIX, OffsetMap
from tarn.core.spec import IngestorSpec
from tarn.core.table_catalog import TableCatalog, TableName
from tarn.core.table_columns import columns_of, mapped
from tarn.core.table_files import TableFormat
from tarn.core.table_state import CommitRequest, Json, TableState, commit_ids, marker_property
from tarn.core.years import MS_MAX, moment_of
from tarn.ingest.audit_memory import AuditMemory, RememberingOrigins
from tarn.ingest.batch_commit import decode, encode, retired_in
from tarn.ingest.committer import Committer, NeedsReplan, Ports
from tarn.ingest.lake_files import (
    LakePorts,
    LiveFiles,
    letter_files,
    read_files,
    require_traced,
    retired_offsets,
    streams_of,
)
from tarn.ingest.replay_commit import ReplayCommit
from tarn.keeper.walk import IN_FLIGHT_MAX

RECORDS_MAX = 20_000
BYTES_MAX = 64 * 1024 * 1024
"""Size of the values of one commit, in bytes; one value alone may exceed it."""
ROUNDS_MAX = 20
WAIT_S_MAX = 120.0
"""Pauses between the attempts of one commit, in seconds in all; a service would wait without limit."""
REASONS_MAX = 10
PLACE = ("ingestor", "source", "partition", "offset", "decoded_at")
COLUMNS = (*PLACE, "time", "key", "value")
BEFORE_S_MAX = 60.0
"""A dead letter that was decoded this long before the stream's first commit is of an earlier table."""
FILES_AHEAD = 2
"""Files whose values are read ahead; one may hold as much as a whole batch."""

Offsets: TypeAlias = dict[int, BitMap64]
"""Partition to offsets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPorts:
    """What a replay works with.

    Attributes:
        lake: what audit and trace read.
        catalog: catalog of the table.
        tables: writer of the table's files.
        commit: ports of the commit loop.
        new_id: generates a unique id.
    """

    lake: LakePorts
    catalog: TableCatalog
    tables: TableFormat
    commit: Ports
    new_id: Callable[[], str]


@dataclass(slots=True, kw_only=True)
class Replayed:
    """Result of a replay.

    Attributes:
        table: name of the table.
        stream: name of the stream.
        letters: number of messages with a dead letter.
        joined: number of those that retention states as dropped, in a statement whose runs were joined; no
            file shows a row of them, so they are replayed like the others.
        older: number of dead letters of an earlier table of the stream, which are left alone.
        rows: messages that became rows, or would without `dry_run`.
        snapshots: ids of the snapshots that added them.
        bad: reasons why others cannot be rows, with their number, the commonest first.
    """

    table: str
    stream: str
    letters: int = 0
    joined: int = 0
    older: int = 0
    rows: int = 0
    snapshots: list[int] = field(default_factory=list)
    bad: Counter[str] = field(default_factory=Counter)

    @property
    def already(self) -> int:
        """Number of messages that are rows otherwise, or were and have been deleted."""
        return self.letters - self.rows - self.bad.total()

    def data(self) -> dict[str, Any]:
        """The result as JSON; one element of the format of `tarn dead-letters replay --json`."""
        return {
            "table": self.table,
            "stream": self.stream,
            "letters": self.letters,
            "already_rows": self.already,
            "rows": self.rows,
            "snapshot_ids": self.snapshots,
            "still_bad": self.bad.total(),
            "joined": self.joined,
            "older_letters": self.older,
            "reasons": dict(self.bad.most_common(REASONS_MAX)),
        }


def replay(spec: IngestorSpec, ports: ReplayPorts, *, dry_run: bool = False) -> Replayed:
    """Add the dead letters of a stream that decode by this spec to its table.

    Args:
        spec: the ingestor's spec, as it is now.
        ports: what it works with.
        dry_run: decode and count, and commit nothing.

    Raises:
        NoSuchTableError: the table does not exist.
        InvalidError: the table has no such stream, cannot take the spec's columns, or has rows that do not
            say which message they are.
        CorruptStateError: manifests, offsets or dead letters cannot be read.
        ConflictError: other replays came first each time, or so many commits that the history does not show
            whether there was another one.
        OutcomeUnknownError: the catalog did not settle a commit in time; its rows may be there.
        UnavailableError: catalog or store do not respond.
    """
    work = _Replay(spec, ports)
    rounds = 0
    try:
        while rounds < ROUNDS_MAX:
            if rounds:
                work.hold()
            found = work.look()
            batch = next(iter(found.batches()), None)
            if batch is None:
                return work.result
            if not work.add(batch, found, dry_run=dry_run):
                rounds += 1
                ports.lake.tell("others committed meanwhile; looking again")
            else:
                rounds = 0
    finally:
        if not dry_run:
            work.let_go()
    raise ConflictError(
        f"{work.result.table}: others committed first {ROUNDS_MAX} times; {work.result.rows:,} dead letters "
        "became rows. Run the same command again; if it ends like this too, stop what writes to the table "
        f"for that time: a look at all its files took longer than {READER_SNAPSHOTS_MAX:,} commits",
        table=work.result.table,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Letters:
    """The dead letters of a stream that are of its table as it is now.

    Attributes:
        files: files with dead letters, and the positions of deleted ones in each.
        stream: name of the stream.
        topic: name of the topic.
        since: when the first of them may have been decoded.
        lake: what audit and trace read.
    """

    files: Sequence[tuple[FileEntry, BitMap64]]
    stream: str
    topic: str
    since: datetime
    lake: LakePorts

    def rows(self, columns: Sequence[str], *, ahead: int) -> Iterator[tuple[Mapping[str, Any], bool]]:
        """Yield each dead letter of the stream, and whether it is of this table."""
        deleted = {entry.path: positions for entry, positions in self.files}

        def read(entry: FileEntry) -> pa.Table:
            return live_rows(self.lake, entry, deleted[entry.path], columns)

        files = [entry for entry, _ in self.files]
        for _, table in read_files(self.lake, files, read, what="dead-letter files", ahead=ahead):
            owner, source = table["ingestor"], table["source"]
            mine = pc.and_(pc.equal(owner, self.stream), pc.equal(source, self.topic))
            for row in table.filter(mine).to_pylist():
                yield row, row["decoded_at"] >= self.since


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What there is to do in one version of the table.

    Attributes:
        state: version of the table.
        letters: its dead letters.
        wanted: offsets of those that are not rows and were not tried.
    """

    state: TableState
    letters: _Letters
    wanted: Offsets

    def batches(self) -> Iterator[RawBatch]:
        """Yield the records of the dead letters, each offset once, in batches of limited size."""
        left = {partition: offsets.copy() for partition, offsets in self.wanted.items() if offsets}
        held: list[Mapping[str, Any]] = []
        size = 0
        for row, own in self.letters.rows(COLUMNS, ahead=FILES_AHEAD) if left else ():
            offsets = left.get(row["partition"])
            if not own or offsets is None or row["offset"] not in offsets:
                continue
            offsets.discard(row["offset"])
            more = len(row["value"] or b"")
            if held and (len(held) >= RECORDS_MAX or size + more > BYTES_MAX):
                yield _batch(held)
                held, size = [], 0
            held.append(row)
            size += more
        if held:
            yield _batch(held)


class _Replay:
    def __init__(self, spec: IngestorSpec, ports: ReplayPorts) -> None:
        body = spec.spec
        self.result = Replayed(table=str(body.table), stream=spec.stream)
        self._spec = spec
        # Each look would read every file of the table again, and there is one for each batch.
        self._memory = AuditMemory()
        origins = RememberingOrigins(
            ports.lake.origins, self._memory, rest=lambda _took_s: None, now_s=ports.lake.clock.now_s
        )
        self._ports = ports = replace(ports, lake=replace(ports.lake, origins=origins))
        self._tried: Offsets = {}
        self._joined: Offsets = {}
        self._waited_s = 0.0
        self._tag = f"{READER_TAG_PREFIX}replay-{spec.stream}"
        self._held = False
        self._name = TableName(body.table.levels, body.table.name)
        self._committer = Committer(
            ports.catalog,
            self._name,
            ports=replace(ports.commit, sleep=self._wait),
        )

    def _wait(self, seconds: float) -> None:
        """Pause between two attempts of a commit.

        Raises:
            OutcomeUnknownError: the pauses were too long together.
        """
        if self._waited_s >= WAIT_S_MAX:
            raise OutcomeUnknownError(
                f"the catalog did not settle the commit to {self.result.table} within {WAIT_S_MAX:.0f} s; "
                "its rows may be there. Run the same command again: it adds nothing twice",
                table=self.result.table,
            )
        self._waited_s += seconds
        self._ports.commit.sleep(seconds)

    def hold(self) -> None:
        """Keep the table's history from now on, as for a reader: a commit needs to see all since its look."""
        state = self._committer.load()
        if state.head_id is not None:
            tag = {"ref-name": self._tag, "type": "tag", "snapshot-id": state.head_id}
            self._held = True
            self._update(state, {"action": "set-snapshot-ref", **tag})

    def let_go(self) -> None:
        """Keep it no longer, nor what a replay that was killed kept."""
        if not self._held:
            return
        try:
            state = self._committer.load()
            if self._tag in state.refs:
                self._update(state, {"action": "remove-snapshot-ref", "ref-name": self._tag})
        except TarnError as e:
            self._ports.lake.tell(f"tag {self._tag} of {self.result.table} is left: {e.message}")

    def _update(self, state: TableState, update: Json) -> None:
        """Change a ref, once: whatever comes of it, no row depends on it."""
        same = {"type": "assert-table-uuid", "uuid": state.uuid}
        request = CommitRequest(requirements=[same], updates=[update])
        self._ports.catalog.commit(self._name, request, key=self._ports.commit.new_key())

    def look(self) -> _Found:
        """The dead letters that are not rows of the table as it is now."""
        lake, name = self._ports.lake, self.result.table
        state = self._committer.load()
        self._held = self._held or self._tag in state.refs
        offsets = self._offsets(state)
        require_traced(state, table=name)
        letters = self._letters(state)
        found: Offsets = {}
        older = 0
        for row, own in letters.rows(PLACE, ahead=IN_FLIGHT_MAX):
            # Beyond the offset map, the ingestor reads the message again.
            if own and row["offset"] < offsets.next.get(row["partition"], 0):
                found.setdefault(row["partition"], BitMap64()).add(row["offset"])
            older += not own
        self.result.letters, self.result.older = sum(map(len, found.values())), older
        rows = _rows(LiveFiles(name, state, lake), letters.topic, found) if found else {}
        # It has asked for every file of the table and of its history: the others are gone, and leave room.
        self._memory.sweep()
        nothing = BitMap64()
        # Rows that were added before and have been dropped by age since do not come back.
        gone = retired_offsets(state, self.result.stream)
        retired = retired_in(state, self.result.stream)
        if retired is not None and retired.joined:
            # A dead letter may be in a gap that was closed: only the files say which rows there were. A row
            # that comes back goes again by its age; a message that is left out would be lost.
            for p, held in found.items():
                unsure = (held & gone.get(p, nothing)) - rows.get(p, nothing) - self._tried.get(p, nothing)
                self._joined[p] = self._joined.get(p, BitMap64()) | unsure
            self.result.joined, gone = sum(map(len, self._joined.values())), {}
        wanted = {
            p: held - rows.get(p, nothing) - self._tried.get(p, nothing) - gone.get(p, nothing)
            for p, held in found.items()
        }
        return _Found(state=state, letters=letters, wanted=wanted)

    def _offsets(self, state: TableState) -> OffsetMap:
        """The stream's offset map.

        Raises:
            InvalidError: the table has no such stream, or another one of a topic of the same name.
            CorruptStateError: the map cannot be read.
        """
        name, stream, topic = self.result.table, self.result.stream, self._spec.topic
        streams, unreadable = streams_of(state, table=name)
        if unreadable:
            raise CorruptStateError(f"{unreadable[0].what}; {unreadable[0].fix}", table=name)
        offsets = streams.get(stream)
        if offsets is None or offsets.source.topic != topic or state.head_id is None:
            known = ", ".join(f"{s} (topic {o.source.topic})" for s, o in streams.items()) or "none"
            raise InvalidError(
                f"table {name} has no stream {stream!r} of topic {topic}; its streams: {known}. Name the "
                "spec that the ingestor runs with",
                table=name,
            )
        for other, held in streams.items():
            if held.next and held.source.topic == topic and held.source != offsets.source:
                raise InvalidError(
                    f"table {name} has rows of two topics named {topic}, of the streams {stream} and "
                    f"{other}; they do not say which of the two they are from, so it cannot be known which "
                    "dead letters are rows already",
                    table=name,
                )
        return offsets

    def _letters(self, state: TableState) -> _Letters:
        lake, stream = self._ports.lake, self.result.stream
        files, homes = letter_files(lake, state, [stream])
        deleted: dict[str, BitMap64] = {}
        for home in homes:
            live = LiveFiles(home, lake.tables.state(home), lake)
            deleted.update({entry.path: live.deleted(entry) for entry in live.data})
        began = state.properties.get(marker_property(SUMMARY_PREFIX + stream), "0")
        began_ms = int(began) if began.isdecimal() else 0
        if began_ms > MS_MAX:
            began_ms = 0  # stated after a snapshot with such a time: nothing is known
        return _Letters(
            files=[(entry, deleted.get(entry.path, BitMap64())) for entry in files],
            stream=stream,
            topic=self._spec.topic,
            since=moment_of(max(0, began_ms - round(BEFORE_S_MAX * 1_000))),
            lake=lake,
        )

    def add(self, batch: RawBatch, found: _Found, *, dry_run: bool) -> bool:
        """Commit the rows of a batch; False if the table has moved on and must be looked at again."""
        body = self._spec.spec
        fields = body.fields
        if fields is None:
            table = self.result.table
            fields = mapped(columns_of(found.state, table=table).fields, body, table=table)
        writer = self._ports.tables.table(self.result.table, fields, trace=True).writer(found.state)
        decoder = Decoder(
            fields,
            source=found.letters.topic,
            trace=True,
            record_bytes_max=body.dead_letters.max_record_bytes,
            messages=body.source,
        )
        try:
            made = encode(decode(decoder, batch), writer)
        except InvalidError:
            if len(batch) == 1:
                raise
            # Too many partitions, perhaps: the other half is found by the next look.
            return self.add(batch.part(0, len(batch) // 2), found, dry_run=dry_run)
        if made.rows and not dry_run:
            assert found.state.head_id is not None
            ends: dict[int, int] = {}
            for partition, offset in zip(batch.partitions, batch.offsets, strict=True):
                ends[partition] = max(ends.get(partition, 0), offset + 1)
            change = ReplayCommit(
                commit_id=self._ports.new_id(),
                table_uuid=found.state.uuid,
                stream=self.result.stream,
                looked_at=found.state.head_id,
                ends=ends,
                files=writer.put(made.files),
            )
            self._waited_s = 0.0
            done = self._committer.commit(change, writer)
            if isinstance(done, NeedsReplan):
                return False
            self.result.snapshots += _snapshots_of(done.state, change.commit_id)
        self.result.rows += made.rows
        self.result.bad.update(made.bad.values())
        for partition, offset in zip(batch.partitions, batch.offsets, strict=True):
            self._tried.setdefault(partition, BitMap64()).add(offset)
        self._ports.lake.tell(f"{self.result.rows:,} dead letters decode, {self.result.bad.total():,} do not")
        return True


def live_rows(lake: LakePorts, file: FileEntry, deleted: BitMap64, columns: Sequence[str]) -> pa.Table:
    """These columns of the dead letters in a file, without those that delete files remove.

    Raises:
        CorruptStateError: the file is missing or cannot be read.
    """
    table = _require(lake.origins.records(file, columns), file)
    if not deleted:
        return table
    keep = [position not in deleted for position in range(table.num_rows)]
    return table.filter(pa.array(keep, pa.bool_()))


def _rows(live: LiveFiles, topic: str, letters: Mapping[int, BitMap64]) -> Offsets:
    """Offsets, by partition, that have a row, or had one that was deleted as far as history shows.

    Raises:
        InvalidError: rows do not say which message they are.
    """
    found: Offsets = {}
    untraced = 0

    def add(origins: Origins) -> None:
        for (source, partition), tally in origins.rows.items():
            if source == topic and partition in letters:
                found[partition] = found.get(partition, BitMap64()) | tally.at_least(1)
        for (source, partition), gone in origins.deleted.items():
            if source == topic and partition in letters:
                found[partition] = found.get(partition, BitMap64()) | gone

    for entry, origins in live.read(live.data, live.origins, what="data files"):
        whole = _require(origins, entry)
        untraced += whole.untraced
        add(whole)
    if untraced:
        raise InvalidError(
            f"{untraced:,} rows of {live.table.name} have no origin in _tarn (of another writer, or of a "
            "time with trace: false), so it cannot be known which dead letters are rows already; add what is "
            "missing by hand, with SQL",
            table=live.table.name,
        )
    former = [entry for entry, _, _ in live.former()]
    for _, origins in live.read(former, live.origins, what="former data files"):
        if origins is not None:
            add(origins)
    return found


def _batch(rows: Sequence[Mapping[str, Any]]) -> RawBatch:
    ordered = sorted(rows, key=lambda row: (row["partition"], row["offset"]))
    times = pa.array([row["time"] for row in ordered], pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
    return RawBatch(
        partitions=[row["partition"] for row in ordered],
        offsets=[row["offset"] for row in ordered],
        times_ms=[-1 if time is None else time // 1_000 for time in times],
        keys=[row["key"] for row in ordered],
        values=[row["value"] for row in ordered],
        ranges=(),
    )


def _snapshots_of(state: TableState, commit_id: str) -> list[int]:
    """The id of a commit's snapshot; nothing if it expired already."""
    return [
        int(snapshot["snapshot-id"])
        for snapshot in state.ancestors()
        if commit_id in commit_ids(snapshot.get("summary") or {})
    ]


def _require(found: Any, file: FileEntry) -> Any:
    if found is None:
        raise CorruptStateError(
            f"{file.path} is not in the store, with {file.records} rows; scripts/tarn fsck says more",
            path=file.path,
        )
    return found
