"""Ingestion in one process: a topic and a store in memory, the real catalog, and faults."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tarn.adapters.files import FileIO
from tarn.adapters.manifests import read_entries, read_list
from tarn.adapters.store import MemoryStore
from tarn.adapters.table_files import IcebergFormat
from tarn.core.batch import RawRecords
from tarn.core.errors import (
    AlreadyExistsError,
    ConflictError,
    OffsetGapError,
    OutcomeUnknownError,
    UnavailableError,
)
from tarn.core.naming import WarehouseLayout
from tarn.core.offsets import TopicIdentity
from tarn.core.outcome import Conflict, Unknown
from tarn.core.source import NoSuchTopicError, OffsetBounds
from tarn.core.spec import IngestorSpec, parse_spec
from tarn.core.table_catalog import CommitDone, CommitOutcome, TableCatalog, TableName
from tarn.core.table_state import CommitRequest, Json, Retention, TableState
from tarn.ingest.committer import Ports
from tarn.ingest.context import IngestContext, Limits, StoppedError
from tarn.ingest.ingestor import Ingestor
from tarn.ingest.status import StatusRegistry
from tarn.ingest.wiring import uuid7
from tarn_catalog.operations.catalog import Catalog
from tarn_catalog.operations.tables import CreateTableRequest, TableIdentifier
from tarn_catalog.state.context import IdempotencyKey

BUCKET = "tarn"

SPEC = """
apiVersion: tarn/v1
kind: Ingestor
metadata: {name: orders}
spec:
  source: {kafka: {topic: orders, create: true, partitions: 2}}
  table: {namespace: bronze, name: orders, formatVersion: FORMAT, partitioning: PARTITIONING}
  schema:
    fields:
      - {name: id, type: long, required: true}
      - {name: at, type: timestamptz}
  deadLetters: {table: {namespace: ops, name: dead_letters}}
  batching: {maxRecords: 10, maxLatencySeconds: 0.05}
"""


def spec(*, format_version: int = 2, partitioning: str = "[]") -> IngestorSpec:
    text = SPEC.replace("FORMAT", str(format_version)).replace("PARTITIONING", partitioning)
    return parse_spec(text, file="orders.yaml")


class LocalCatalog:
    """The real catalog, without HTTP."""

    def __init__(self, store: MemoryStore) -> None:
        self.catalog = Catalog(store, WarehouseLayout(base=f"s3://{BUCKET}"))
        self.commits = 0

    def load(self, table: TableName) -> TableState:
        return TableState(self.catalog.tables.load(self._slot(table)).parsed)

    def create_namespace(self, namespace: tuple[str, ...]) -> None:
        for depth in range(1, len(namespace) + 1):
            try:
                self.catalog.namespaces.create(namespace[:depth], {})
            except AlreadyExistsError:
                continue

    def create(self, table: TableName, request: Json) -> TableState:
        wanted = CreateTableRequest(
            schema=request["schema"],
            spec=request["partition-spec"],
            order=request["write-order"],
            properties=request["properties"],
        )
        return TableState(self.catalog.tables.create(self._slot(table), wanted).parsed)

    def commit(self, table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
        self.commits += 1
        body = json.loads(json.dumps(request.body()))
        try:
            done = self.catalog.tables.commit(
                self._slot(table),
                body["requirements"],
                body["updates"],
                repeat=IdempotencyKey(key=key, what=f"commit {json.dumps(body, sort_keys=True)}"),
            )
        except ConflictError as e:
            return Conflict(reason=e.message)
        except OutcomeUnknownError as e:
            return Unknown(reason=e.message)
        return CommitDone(state=TableState(done.parsed))

    def drop(self, table: TableName) -> None:
        self.catalog.tables.drop(self._slot(table))

    def _slot(self, table: TableName) -> TableIdentifier:
        return TableIdentifier.of(table.namespace, table.name)


@dataclass
class Faults:
    """Random faults of commits; `late` requests are applied before a later request of any client."""

    chance: random.Random
    rate: float
    late: list[Callable[[], object]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    kinds: tuple[str, ...] = ("lost", "reply", "late", "late-twice", "lie", "away", "foreign")

    def pick(self) -> str:
        kind = self.chance.choice(self.kinds) if self.chance.random() < self.rate else "fine"
        self.counts[kind] = self.counts.get(kind, 0) + 1
        return kind

    def land_some(self) -> None:
        while self.late and self.chance.random() < 0.5:
            self.late.pop(self.chance.randrange(len(self.late)))()

    def land_all(self) -> None:
        while self.late:
            self.late.pop()()


class FaultyCatalog:
    """Proxy for a catalog that loses, delays, duplicates and denies requests."""

    def __init__(self, inner: LocalCatalog, faults: Faults, *, foreign: Callable[[TableName], None]) -> None:
        self._inner = inner
        self._faults = faults
        self._foreign = foreign
        self.create_namespace = inner.create_namespace
        self.create = inner.create

    def load(self, table: TableName) -> TableState:
        self._faults.land_some()
        return self._inner.load(table)

    def commit(self, table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
        faults = self._faults
        faults.land_some()
        kind = faults.pick()

        def send() -> CommitOutcome:
            return self._inner.commit(table, request, key=key)

        if kind == "lost":
            return Unknown(reason="the request was lost")
        if kind == "reply":
            send()
            return Unknown(reason="504: the reply was lost")
        if kind == "late":
            faults.late.append(send)
            return Unknown(reason="the request is under way")
        if kind == "late-twice":
            faults.late += [send, send]
            return Unknown(reason="the request is under way, twice")
        if kind == "lie":
            # A proxy resent it: it was applied, and the second one was rejected.
            send()
            return Conflict(reason="409 after a resend")
        if kind == "away":
            raise UnavailableError("the catalog is away")
        if kind == "foreign":
            self._foreign(table)
        return send()


class Topic:
    """A topic in memory: the records per partition, with holes for aborted ones."""

    def __init__(self, name: str, partitions: int, *, topic_id: str = "id-1", cluster: str = "c-1") -> None:
        self.name = name
        self.topic_id = topic_id
        self.cluster = cluster
        self.logs: dict[int, list[bytes | Hole | None]] = {p: [] for p in range(partitions)}
        self.starts: dict[int, int] = dict.fromkeys(range(partitions), 0)
        self.times_ms: dict[int, int] = {}
        """Timestamp by offset, if a test needs another than the usual."""

    def send(self, partition: int, *values: bytes | Hole | None) -> None:
        self.logs[partition] += values


class Hole:
    """An offset without a record: aborted, compacted, or a control record."""


HOLE = Hole()


class MemorySources:
    """`TopicClient` over topics in memory."""

    def __init__(self, *topics: Topic) -> None:
        self.topics = {t.name: t for t in topics}
        self.acknowledged: dict[int, int] = {}
        self.on_poll: Callable[[], None] = lambda: None

    def open(self, topic: str, *, stream: str) -> MemorySource:
        return MemorySource(self, topic)

    def create(self, topic: str, *, partitions: int) -> None:
        self.topics.setdefault(topic, Topic(topic, partitions))


class MemorySource:
    """`TopicReader` over a topic in memory."""

    def __init__(self, sources: MemorySources, topic: str) -> None:
        self._sources = sources
        self._name = topic
        self._positions: dict[int, int] = {}

    @property
    def _topic(self) -> Topic:
        found = self._sources.topics.get(self._name)
        if found is None:
            raise NoSuchTopicError(f"topic {self._name} does not exist")
        return found

    def identity(self) -> TopicIdentity:
        return TopicIdentity(cluster=self._topic.cluster, topic=self._name, topic_id=self._topic.topic_id)

    def bounds(self) -> dict[int, OffsetBounds]:
        return {p: OffsetBounds(self._topic.starts[p], len(log)) for p, log in self._topic.logs.items()}

    def seek(self, positions: Mapping[int, int]) -> None:
        self._positions = dict(positions)

    def poll(self, *, records_max: int, timeout_s: float) -> list[RawRecords]:
        self._sources.on_poll()
        found = []
        for p, start in self._positions.items():
            log = self._topic.logs[p]
            if start < self._topic.starts[p] or start > len(log):
                raise OffsetGapError(f"no offset {start} in partition {p}")
            end = start
            taken: list[tuple[int, bytes | None]] = []
            while end < len(log) and len(taken) < max(1, records_max // 2):
                value = log[end]
                if not isinstance(value, Hole):
                    taken.append((end, value))
                end += 1
            if end > start:
                found.append(
                    RawRecords(
                        partition=p,
                        offsets=[o for o, _ in taken],
                        times_ms=[self._topic.times_ms.get(o, 1_700_000_000_000 + o) for o, _ in taken],
                        keys=[None for _ in taken],
                        values=[v for _, v in taken],
                        start=start,
                        end=end,
                    )
                )
                self._positions[p] = end
        return found

    def commit_group_offsets(self, positions: Mapping[int, int]) -> None:
        self._sources.acknowledged.update(positions)

    def close(self) -> None:
        """Release nothing, as nothing is held."""


class Clock:
    """Monotonic seconds that pass only by reading the clock or sleeping."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        self.now_s += 0.01
        return self.now_s


class Lake:
    """Topic, store, catalog and ingestors of one test, and the auditor."""

    def __init__(
        self, *topics: Topic, catalog: TableCatalog | None = None, retention: Retention | None = None
    ):
        self.store = MemoryStore()
        self.local = LocalCatalog(self.store)
        self.catalog: TableCatalog = catalog or self.local
        self.sources = MemorySources(*topics)
        self.objects = FileIO(self.store, bucket=BUCKET, sleep=lambda _s: None)
        self.retention = retention or Retention()
        self.clock = Clock()
        self.registry = StatusRegistry()
        self.stop = False
        self.numbers = random.Random(7)

    def world(self, *, registry: StatusRegistry | None = None, limits: Limits | None = None) -> IngestContext:
        def sleep(seconds: float) -> None:
            self.clock.now_s += seconds
            if self.stop:
                raise StoppedError

        return IngestContext(
            sources=self.sources,
            catalog=self.catalog,
            tables=IcebergFormat(self.objects, new_name=self.new_id),
            ports=Ports(
                sleep=sleep,
                now_ms=lambda: int(self.clock.now_s * 1_000) + 1_700_000_000_000,
                new_key=uuid7,
                new_snapshot_id=lambda: self.numbers.getrandbits(62) + 1,
                chance=random.Random(1),
            ),
            new_id=self.new_id,
            clock=self.clock,
            registry=registry or self.registry,
            stopping=lambda: self.stop,
            limits=limits
            or Limits(
                check_interval_s=0.5, watermark_s=5.0, group_commit_interval_s=0.1, stopped_retry_s=1.0
            ),
            retention=self.retention,
        )

    def new_id(self) -> str:
        return f"{self.numbers.getrandbits(128):032x}"

    def ingestor(self, made: IngestorSpec | None = None, **options: Any) -> Ingestor:
        return Ingestor(made or spec(), self.world(**options))

    def work(self, ingestor: Ingestor, *, turns: int = 200) -> None:
        """Run `turns` turns of an ingestor's loop, whatever it encounters."""
        left = [turns]

        def until() -> bool:
            left[0] -= 1
            return left[0] < 0

        while left[0] > 0:
            left[0] -= 1
            try:
                ingestor.cycle(until)
            except UnavailableError:
                continue

    # -- the auditor

    def table(self, name: str = "bronze.orders") -> TableState:
        namespace, _, table = name.rpartition(".")
        return self.local.load(TableName(tuple(namespace.split(".")), table))

    def files(self, name: str = "bronze.orders") -> list[Any]:
        """The manifest entry of every live data file, in the order of the manifest list."""
        state = self.table(name)
        head = state.head
        if head is None:
            return []
        from pyiceberg.partitioning import PartitionSpec
        from pyiceberg.schema import Schema

        metadata = state.metadata
        schema = Schema.model_validate(metadata["schemas"][-1])
        specs = {s["spec-id"]: PartitionSpec.model_validate(s) for s in metadata["partition-specs"]}
        found = []
        for manifest in read_list(self.objects.read(head["manifest-list"])):
            data = self.objects.read(manifest.manifest_path)
            found += read_entries(data, manifest, specs[manifest.partition_spec_id], schema)
        paths = [e.data_file.file_path for e in found]
        assert len(paths) == len(set(paths)), "a data file is live twice"
        return found

    def rows(self, name: str = "bronze.orders") -> list[dict[str, Any]]:
        """Every row that a reader of the current snapshot sees."""
        found: list[dict[str, Any]] = []
        for entry in self.files(name):
            data = self.objects.read(entry.data_file.file_path)
            assert len(data) == entry.data_file.file_size_in_bytes
            table: pa.Table = pq.read_table(io.BytesIO(data))
            assert table.num_rows == entry.data_file.record_count
            found += table.to_pylist()
        head = self.table(name).head
        if head is not None:
            assert int(head["summary"]["total-records"]) == len(found)
        return found

    def offsets(self, name: str = "bronze.orders") -> list[tuple[int, int]]:
        return sorted((r["_tarn"]["partition"], r["_tarn"]["offset"]) for r in self.rows(name))

    def history_is_a_chain(self, name: str = "bronze.orders") -> None:
        state = self.table(name)
        sequence = None
        for snapshot in state.ancestors():
            if sequence is not None:
                assert snapshot["sequence-number"] < sequence
            sequence = snapshot["sequence-number"]


def order(number: int) -> bytes:
    return json.dumps({"id": number, "at": "2026-11-21T08:00:00Z"}).encode()
