"""`tarn dead-letters replay`: dead letters that the spec can decode by now become rows, each once.

What is a row already is found by the rows' own trace column, in the very snapshot that the commit builds on,
so nothing else has to be remembered: a replay that was interrupted, or runs twice, adds nothing twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyroaring import BitMap64

from tarn.cli.lake_files import (
    LakePorts,
    LiveFiles,
    letter_files,
    may_hold,
    read_files,
    require_traced,
    streams_of,
)
from tarn.core.audit.accounts import between
from tarn.core.audit.model import FileEntry
from tarn.core.batch import RawBatch
from tarn.core.decode import Decoder
from tarn.core.errors import ConflictError, CorruptStateError, InvalidError
from tarn.core.spec import IngestorSpec
from tarn.core.table_catalog import TableCatalog, TableName
from tarn.core.table_columns import columns_of
from tarn.core.table_files import TableFormat
from tarn.core.table_state import COMMIT_ID_KEY, TableState
from tarn.ingest.batch_commit import decode, encode
from tarn.ingest.committer import Committer, NeedsReplan, Ports
from tarn.ingest.replay_commit import ReplayCommit

RECORDS_MAX = 20_000
BYTES_MAX = 64 * 1024 * 1024
"""Size of the values of one commit, in bytes; one value alone may exceed it."""
ROUNDS_MAX = 20
REASONS_MAX = 10
COLUMNS = ("ingestor", "source", "partition", "offset", "time", "key", "value")

Offsets = dict[int, BitMap64]
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
        already: of them, those that were rows before, or had been and were deleted.
        rows: those that became rows, or would without `dry_run`.
        snapshots: ids of the snapshots that added them.
        bad: reasons why others cannot be rows, with their number, the commonest first.
    """

    table: str
    stream: str
    letters: int = 0
    already: int = 0
    rows: int = 0
    snapshots: list[int] = field(default_factory=list)
    bad: Counter[str] = field(default_factory=Counter)

    def data(self) -> dict[str, Any]:
        """The result as JSON; the format of `tarn dead-letters replay --json`."""
        return {
            "table": self.table,
            "stream": self.stream,
            "letters": self.letters,
            "already_rows": self.already,
            "rows": self.rows,
            "snapshot_ids": self.snapshots,
            "still_bad": self.bad.total(),
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
        InvalidError: the table has no such stream or no trace column, or cannot take the spec's columns.
        CorruptStateError: manifests or dead letters cannot be read.
        ConflictError: other replays came first each time.
        UnavailableError: catalog or store do not respond.
    """
    work = _Replay(spec, ports)
    rounds = 0
    while rounds < ROUNDS_MAX:
        found = work.look()
        batch = next(iter(found.batches()), None)
        if batch is None:
            return work.result
        if not work.add(batch, found, dry_run=dry_run):
            rounds += 1
            ports.lake.tell("others committed meanwhile; looking again")
        else:
            rounds = 0
    raise ConflictError(
        f"{work.result.table}: others committed first {ROUNDS_MAX} times; {work.result.rows:,} dead letters "
        "became rows. Run the same command again",
        table=work.result.table,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What there is to do in one version of the table.

    Attributes:
        state: version of the table.
        files: files with dead letters.
        wanted: offsets of the dead letters that are not rows and were not tried.
        topic: name of the topic.
        stream: name of the stream.
        lake: what audit and trace read.
    """

    state: TableState
    files: Sequence[FileEntry]
    wanted: Offsets
    topic: str
    stream: str
    lake: LakePorts

    def batches(self) -> Iterator[RawBatch]:
        """Yield the records of the dead letters, each offset once, in batches of limited size."""
        left = {partition: offsets.copy() for partition, offsets in self.wanted.items()}
        held: list[dict[str, Any]] = []
        size = 0
        for _, table in read_files(self.lake, self.files, self._records, what="dead-letter files"):
            for row in _of_stream(table, self.stream, self.topic).to_pylist():
                offsets = left.get(row["partition"])
                if offsets is None or row["offset"] not in offsets:
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

    def _records(self, file: FileEntry) -> pa.Table:
        return _require(self.lake.origins.records(file, COLUMNS), file)


class _Replay:
    def __init__(self, spec: IngestorSpec, ports: ReplayPorts) -> None:
        body = spec.spec
        self.result = Replayed(table=str(body.table), stream=spec.stream)
        self._spec = spec
        self._ports = ports
        self._tried: Offsets = {}
        self._committer = Committer(
            ports.catalog, TableName(body.table.levels, body.table.name), ports=ports.commit
        )

    def look(self) -> _Found:
        """The dead letters that are not rows of the table as it is now."""
        lake, name, stream = self._ports.lake, self.result.table, self.result.stream
        topic = self._spec.topic
        state = self._committer.load()
        streams, _ = streams_of(state, table=name)
        offsets = streams.get(stream)
        if offsets is None or offsets.source.topic != topic or state.head_id is None:
            known = ", ".join(f"{s} (topic {o.source.topic})" for s, o in streams.items()) or "none"
            raise InvalidError(
                f"table {name} has no stream {stream!r} of topic {topic}; its streams: {known}. Name the "
                "spec that the ingestor runs with",
                table=name,
            )
        require_traced(state, table=name)
        files, _ = letter_files(lake, state, [stream])
        letters: Offsets = {}
        for entry, found in read_files(lake, files, lake.origins.letters, what="dead-letter files"):
            for (owner, source, partition), tally in _require(found, entry).items():
                if (owner, source) == (stream, topic):
                    # Beyond the offset map, the ingestor reads the message again.
                    below = tally.at_least(1) & between(0, offsets.next.get(partition, 0))
                    letters[partition] = letters.get(partition, BitMap64()) | below
        rows = _rows(LiveFiles(name, state, lake), topic, letters)
        if not self._tried:
            self.result.letters = sum(map(len, letters.values()))
            self.result.already = sum(len(letters[p] & found) for p, found in rows.items())
        nothing = BitMap64()
        wanted = {
            p: found - rows.get(p, nothing) - self._tried.get(p, nothing) for p, found in letters.items()
        }
        return _Found(state=state, files=files, wanted=wanted, topic=topic, stream=stream, lake=lake)

    def add(self, batch: RawBatch, found: _Found, *, dry_run: bool) -> bool:
        """Commit the rows of a batch; False if the table has moved on and must be looked at again."""
        body = self._spec.spec
        if body.columns is None:
            fields = columns_of(found.state, table=self.result.table).fields
        else:
            fields = body.columns.fields
        writer = self._ports.tables.table(self.result.table, fields, trace=True).writer(found.state)
        decoder = Decoder(
            fields, source=found.topic, trace=True, record_bytes_max=body.dead_letters.max_record_bytes
        )
        made = encode(decode(decoder, batch), writer)
        if made.rows and not dry_run:
            assert found.state.head_id is not None
            ends: dict[int, int] = {}
            for partition, offset in zip(batch.partitions, batch.offsets, strict=True):
                ends[partition] = max(ends.get(partition, 0), offset + 1)
            change = ReplayCommit(
                commit_id=self._ports.new_id(),
                table_uuid=found.state.uuid,
                stream=found.stream,
                looked_at=found.state.head_id,
                ends=ends,
                files=writer.put(made.files),
            )
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


def _rows(live: LiveFiles, topic: str, letters: Mapping[int, BitMap64]) -> Offsets:
    """Offsets, by partition, that have a row among data files that may hold one of the dead letters."""
    found: Offsets = {}
    files = [e for e in live.data if any(may_hold(e, p, offsets) for p, offsets in letters.items())]
    for entry, origins in live.read(files, live.origins, what="data files"):
        whole = _require(origins, entry)
        for (source, partition), tally in whole.rows.items():
            if source == topic and partition in letters:
                found[partition] = found.get(partition, BitMap64()) | tally.at_least(1)
        for (source, partition), gone in whole.deleted.items():
            if source == topic and partition in letters:
                found[partition] = found.get(partition, BitMap64()) | gone
    return found


def _of_stream(table: pa.Table, stream: str, topic: str) -> pa.Table:
    keep = [
        owner == stream and source == topic
        for owner, source in zip(table["ingestor"].to_pylist(), table["source"].to_pylist(), strict=True)
    ]
    return table.filter(pa.array(keep, pa.bool_()))


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
        if (snapshot.get("summary") or {}).get(COMMIT_ID_KEY) == commit_id
    ]


def _require(found: Any, file: FileEntry) -> Any:
    if found is None:
        raise CorruptStateError(
            f"{file.path} is not in the store, with {file.records} rows; scripts/tarn fsck says more",
            path=file.path,
        )
    return found
