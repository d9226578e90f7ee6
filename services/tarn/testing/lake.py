"""Ingestion in one process: topics and a store in memory, and a catalog that the caller passes in."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema

from tarn.adapters.bulk import PlainBulk
from tarn.adapters.files import FileIO
from tarn.adapters.manifests import read_entries, read_list
from tarn.adapters.origins import ParquetOrigins
from tarn.adapters.store import MemoryStore
from tarn.adapters.table_files import IcebergFormat
from tarn.core.errors import UnavailableError
from tarn.core.history import Retention
from tarn.core.table_catalog import TableCatalog, TableName
from tarn.core.table_state import TableState
from tarn.ingest.committer import Ports
from tarn.ingest.context import IngestContext, Limits, StoppedError
from tarn.ingest.ingestor import Ingestor
from tarn.ingest.status import StatusRegistry
from tarn.ingest.wiring import uuid7
from tarn.keeper.walk import Places
from tarn.testing.executors import SteppedExecutor
from tarn.testing.memory_topic import MemoryTopicClient, Topic

SCHEMAS_MAX = 64
"""Schemas and partition specs that are kept parsed."""


class Clock:
    """Monotonic seconds that pass only by reading the clock or sleeping."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        """The time; 10 ms later with each call."""
        self.now_s += 0.01
        return self.now_s


class Lake:
    """Topic, store, catalog and ingestors of one test, in one process, and what a reader finds in the tables.

    Args:
        topics: topics that can be read.
        store: object store of the lake.
        catalog: catalog of the tables in that store.
        bucket: name of the bucket.
        retention: default snapshot retention.

    Attributes:
        catalog: catalog of the ingestors; a test may put a `FaultyCatalog` in front of the real one.
        stop: whether ingestors end at their next wait.
        commits_now: whether a commit that is under way runs at this look of its ingestor.
        decode_records: number of read records from which on they are decoded before the batch is closed.
    """

    def __init__(
        self,
        *topics: Topic,
        store: MemoryStore,
        catalog: TableCatalog,
        bucket: str = "tarn",
        retention: Retention | None = None,
    ) -> None:
        self.store = store
        self.bucket = bucket
        self.catalog = catalog
        self._direct = catalog
        self.sources = MemoryTopicClient(*topics)
        self.objects = FileIO(store, bucket=bucket, sleep=lambda _s: None)
        self.retention = retention or Retention()
        self.clock = Clock()
        self.registry = StatusRegistry()
        self.stop = False
        self.commits_now: Callable[[], bool] = lambda: True
        self.decode_records = 8_192
        self.numbers = random.Random(7)
        self._decoded: dict[bytes, list[dict[str, Any]]] = {}

    def context(
        self, *, registry: StatusRegistry | None = None, limits: Limits | None = None
    ) -> IngestContext:
        """Dependencies of an ingestor; the registry and the limits default to the lake's own."""

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
            executor=lambda: SteppedExecutor(self.commits_now),
            origins=ParquetOrigins(PlainBulk(self.store), Places(self.bucket).key),
            decode_records=self.decode_records,
        )

    def new_id(self) -> str:
        """A name that no other call returns, the same in every run."""
        return f"{self.numbers.getrandbits(128):032x}"

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

    def table(self, name: str) -> TableState:
        """The current version of a table."""
        namespace, _, table = name.rpartition(".")
        return self._direct.load(TableName(tuple(namespace.split(".")), table))

    def files(self, name: str, state: TableState | None = None) -> list[Any]:
        """The manifest entry of every live data file, in the order of the manifest list.

        Args:
            name: qualified name of the table.
            state: version of the table; the current one by default.
        """
        state = state or self.table(name)
        head = state.head
        if head is None:
            return []
        metadata = state.metadata
        schema = _schema(orjson.dumps(metadata["schemas"][-1]))
        specs = {s["spec-id"]: _spec(orjson.dumps(s)) for s in metadata["partition-specs"]}
        found = []
        for manifest in read_list(self.objects.read(head["manifest-list"])):
            data = self.objects.read(manifest.manifest_path)
            found += read_entries(data, manifest, specs[manifest.partition_spec_id], schema)
        paths = [e.data_file.file_path for e in found]
        assert len(paths) == len(set(paths)), "a data file is live twice"
        return found

    def rows(self, name: str, state: TableState | None = None) -> list[dict[str, Any]]:
        """Every row that a reader of the current snapshot sees, or of that of another version.

        Leave the rows as they are: those of a file are decoded once for each content that it had.
        """
        state = state or self.table(name)
        found: list[dict[str, Any]] = []
        for entry in self.files(name, state):
            data = self.objects.read(entry.data_file.file_path)
            assert len(data) == entry.data_file.file_size_in_bytes
            rows = self._decoded.get(data)
            if rows is None:
                rows = self._decoded[data] = _decoded(data)
            assert len(rows) == entry.data_file.record_count
            found += rows
        head = state.head
        if head is not None:
            assert int(head["summary"]["total-records"]) == len(found)
        return found

    def offsets(self, name: str) -> list[tuple[int, int]]:
        """(partition, offset) of every row, sorted, from the trace column."""
        return sorted((r["_tarn"]["partition"], r["_tarn"]["offset"]) for r in self.rows(name))

    def history_is_a_chain(self, name: str) -> None:
        """Require that sequence numbers fall from each snapshot to its parent."""
        state = self.table(name)
        sequence = None
        for snapshot in state.ancestors():
            if sequence is not None:
                assert snapshot["sequence-number"] < sequence
            sequence = snapshot["sequence-number"]


def _decoded(data: bytes) -> list[dict[str, Any]]:
    """The rows of a Parquet file."""
    with pq.ParquetFile(pa.BufferReader(data)) as file:
        rows: list[dict[str, Any]] = file.read(use_threads=False).to_pylist()
    return rows


@lru_cache(maxsize=SCHEMAS_MAX)
def _schema(stored: bytes) -> Schema:
    return Schema.model_validate_json(stored)


@lru_cache(maxsize=SCHEMAS_MAX)
def _spec(stored: bytes) -> PartitionSpec:
    return PartitionSpec.model_validate_json(stored)
