"""Tarn's own writer: the committer of ingest with its batches, through the REST catalog."""

from __future__ import annotations

import statistics
import time
import uuid
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tarn.adapters.catalog_client import RestCatalog
from tarn.adapters.store import S3Store
from tarn.adapters.table_files import IcebergFormat
from tarn.core.errors import CorruptStateError
from tarn.core.object_store import ObjectStore
from tarn.core.offsets import OffsetRange, TopicIdentity
from tarn.core.outcome import Conflict, Unknown
from tarn.core.spec import FieldSpec
from tarn.core.table_catalog import TableCatalog, TableName
from tarn.core.table_state import Append, TableState, WrittenFile
from tarn.ingest.batch_commit import BatchCommit
from tarn.ingest.committer import Change, Committer, Done, Ports
from tarn.ingest.wiring import make_objects, new_id, new_snapshot_id, uuid7
from tarn_demo.bench.commits.parts import ENCODE, WHOLE, TimedCatalog, TimedStore, Timeline, summed_up
from tarn_demo.bench.commits.places import NAMESPACE, Appended, Facts, Places, rows_of
from tarn_demo.bench.commits.pyiceberg_peer import IcebergPeer

SOURCE = TopicIdentity(cluster="bench", topic="bench", topic_id="bench")
STREAM = "bench"
FIELDS = (
    FieldSpec(name="id", type="long"),
    FieldSpec(name="at", type="timestamptz"),
    FieldSpec(name="name", type="string"),
    FieldSpec(name="value", type="double"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainAppend:
    """An append without offsets: for writers that do not take turns with one stream's records."""

    commit_id: str
    table_uuid: str
    files: tuple[WrittenFile, ...]
    removed: tuple[WrittenFile, ...] = ()

    def on(self, state: TableState) -> Append:
        """See `Change.on`."""
        return Append.of(self.files, commit_id=self.commit_id, summary={})


class OurWriter:
    """One committer with its connections, as an ingestor has it.

    Args:
        places: addresses and keys.
        table: name of the table, which is created if it does not exist.
        alone: whether it is the only writer: then it commits batches of one stream, with offsets.
        properties: properties of a new table.
        timeline: notes the parts of each append; None for none.
    """

    def __init__(
        self,
        places: Places,
        table: str,
        *,
        alone: bool,
        properties: dict[str, str],
        timeline: Timeline | None = None,
    ) -> None:
        catalog: TableCatalog = RestCatalog(
            places.catalog, warehouse=places.warehouse, credential=lambda: places.credential
        )
        store: ObjectStore = store_of(places, root=False)
        if timeline is not None:
            catalog, store = TimedCatalog(catalog, timeline), TimedStore(store, timeline)
        self._encoding = timeline.part if timeline is not None else (lambda _part: nullcontext())
        self._alone = alone
        self._conflicts = self._refused = 0
        self._committer = Committer(
            catalog,
            TableName((NAMESPACE,), table),
            ports=Ports(new_key=uuid7, new_snapshot_id=new_snapshot_id),
            on_wait=self._count_wait,
            on_refusal=self._count_conflict,
        )
        format_ = IcebergFormat(make_objects(store, places.bucket), new_name=new_id)
        files = format_.table(table, FIELDS, trace=False, properties=properties)
        self._committer.ensure(files.create_request())
        state = self._committer.load()
        self._writer = files.writer(state)
        self._uuid = state.uuid
        self.root = state.root
        self._at = 0

    def _count_conflict(self, outcome: Conflict | Unknown) -> None:
        self._conflicts += isinstance(outcome, Conflict)

    def _count_wait(self, _reason: str) -> None:
        self._refused += 1

    def append(self, rows: pa.Table) -> Appended:
        """See `Writer.append`. The committer itself repeats until the outcome is certain.

        Raises:
            CorruptStateError: the table no longer takes the rows.
        """
        conflicts, refused = self._conflicts, self._refused
        with self._encoding(ENCODE):
            encoded = self._writer.encode(rows)
        written = self._writer.begin(encoded)
        done = self._committer.commit(self._change(written, len(rows)), self._writer)
        if not isinstance(done, Done):
            raise CorruptStateError(f"the benchmark's table no longer takes its rows: {done.reason}")
        return Appended(acked=True, conflicts=self._conflicts - conflicts, refused=self._refused - refused)

    def _change(self, files: tuple[WrittenFile, ...], rows: int) -> Change:
        commit_id = str(uuid.uuid4())
        if not self._alone:
            return PlainAppend(commit_id=commit_id, table_uuid=self._uuid, files=files)
        start, self._at = self._at, self._at + rows
        return BatchCommit(
            commit_id=commit_id,
            table_uuid=self._uuid,
            stream=STREAM,
            source=SOURCE,
            ranges=(OffsetRange(partition=0, start=start, end=self._at),),
            fresh=frozenset({0}) if start == 0 else frozenset(),
            files=files,
        )


def parts_of(places: Places, table: str, commits: int) -> dict[str, Any]:
    """The parts of appends to a new table, and how long the catalog's two writes take alone.

    Args:
        places: addresses and keys.
        table: name of the table.
        commits: number of appends that count; as many go before them.
    """
    timeline = Timeline()
    writer = OurWriter(places, table, alone=True, properties={}, timeline=timeline)
    appends = []
    for number in range(2 * commits):
        rows, timeline.spans = rows_of(number % 10), {}
        with timeline.part(WHOLE):
            writer.append(rows)
        appends.append(timeline.spans)
    sizes = [size for path, size in places.sizes(writer.root).items() if path.endswith(".metadata.json")]
    return {
        "commits": commits,
        "parts": summed_up(appends[commits:]),
        "two_writes_ms": round(_two_writes_ms(places, max(sizes), commits), 2),
        "metadata_bytes": max(sizes),
    }


def _two_writes_ms(places: Places, size: int, times: int) -> float:
    """The median of what a client takes to create an object and then to swap another one, in milliseconds."""
    store, took = store_of(places), []
    folder = f"bench-{uuid.uuid4()}"
    pointer = b"%0500d"
    etag = store.put(f"{folder}/pointer", pointer % 0)
    for number in range(times):
        began = time.perf_counter()
        store.put(f"{folder}/{number}", bytes(size), if_absent=True)
        etag = store.put(f"{folder}/pointer", pointer % (number + 1), if_match=etag)
        took.append((time.perf_counter() - began) * 1_000)
    return statistics.median(took)


def store_of(places: Places, *, root: bool = True) -> S3Store:
    """The store, as root or as a client of Tarn's catalog."""
    keys = places.root if root else places.client
    return S3Store(
        bucket=places.bucket,
        endpoint=places.endpoint,
        region=places.region,
        access_key_id=keys.access,
        secret_access_key=keys.secret,
    )


class Ours:
    """Tarn's committer on Tarn's catalog; its histories are real commits, one after the other.

    Args:
        places: addresses and keys.
        reader: pyiceberg on the same catalog, which looks at the tables.
    """

    name = "tarn"
    on_tarn = True

    def __init__(self, places: Places, reader: IcebergPeer) -> None:
        self._places = places
        self._reader = reader
        self._alone: dict[str, OurWriter] = {}
        self._laid: dict[str, int] = {}

    def create(self, table: str) -> None:
        """See `Contender.create`."""
        OurWriter(self._places, table, alone=False, properties={})

    def lay(self, table: str, commits: int) -> None:
        """See `Contender.lay`."""
        writer = self.open(table, 0, 1)
        for number in range(self._laid.get(table, 0), commits):
            writer.append(rows_of(number % 10))
        self._laid[table] = max(commits, self._laid.get(table, 0))

    def open(self, table: str, writer: int, writers: int) -> OurWriter:
        """See `Contender.open`. The only writer of a table is kept: its offsets go on."""
        if writers > 1:
            return OurWriter(self._places, table, alone=False, properties={})
        if table not in self._alone:
            self._alone[table] = OurWriter(self._places, table, alone=True, properties={})
        return self._alone[table]

    def facts(self, table: str) -> Facts:
        """See `Contender.facts`."""
        return self._reader.facts(table)

    def rows(self, table: str) -> int:
        """See `Contender.rows`."""
        return self._reader.rows(table)


class OursOnLive(Ours):
    """The same on a table whose history is kept whole; the history is laid at once (`IcebergPeer.lay`)."""

    name = "tarn, all history live"

    def __init__(self, places: Places, layer: IcebergPeer) -> None:
        super().__init__(places, layer)
        self._layer = layer

    def lay(self, table: str, commits: int) -> None:
        """See `Contender.lay`."""
        self._layer.lay(table, commits)
