"""The lake of `tarn.testing` with the real catalog, and the table of orders that most tests use."""

from __future__ import annotations

import json
import time
import uuid
from functools import cache
from typing import Any

from tarn.adapters.spec_store import SpecStore
from tarn.adapters.store import MemoryStore
from tarn.core.errors import ConflictError
from tarn.core.history import Retention
from tarn.core.naming import WarehouseLayout
from tarn.core.spec import IngestorSpec, parse_spec
from tarn.core.table_catalog import TableCatalog, TableName
from tarn.core.table_state import TableState
from tarn.ingest.ingestor import Ingestor
from tarn.ingest.service import Service
from tarn.testing import lake
from tarn.testing.memory_topic import Topic
from tarn_catalog.operations.catalog import Catalog
from tarn_catalog.testing.in_process import InProcessCatalog

BUCKET = "tarn"
TABLE = "bronze.orders"

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


@cache
def spec(
    *,
    format_version: int = 2,
    partitioning: str = "[]",
    replicas: int = 1,
    direct: bool = False,
    stream: str = "",
) -> IngestorSpec:
    text = SPEC.replace("FORMAT", str(format_version)).replace("PARTITIONING", partitioning)
    if stream:
        text = text.replace("name: orders}", f"name: orders, stream: {stream}}}", 1)
    commit = "direct" if direct else "bookkeeper"
    return parse_spec(f"{text}  replicas: {replicas}\n  commit: {commit}\n", file="orders.yaml")


class LocalCatalog(InProcessCatalog):
    """The real catalog, without HTTP, over a store in memory."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(Catalog(store, WarehouseLayout(base=f"s3://{BUCKET}")))


class Lake(lake.Lake):
    """A lake whose catalog is the real one, in this process; ingestors and readers default to the orders."""

    def __init__(
        self, *topics: Topic, catalog: TableCatalog | None = None, retention: Retention | None = None
    ):
        store = MemoryStore()
        self.local = LocalCatalog(store)
        super().__init__(*topics, store=store, catalog=self.local, bucket=BUCKET, retention=retention)
        self.catalog = catalog or self.local

    def specs(self) -> SpecStore:
        """The registry of declared ingestors in the lake's store."""
        return SpecStore(
            self.store,
            now_ms=lambda: int(self.clock.now_s * 1_000) + 1_700_000_000_000,
            new_id=lambda: uuid.uuid4().hex,
            sleep=lambda _s: None,
        )

    def ingestor(self, made: IngestorSpec | None = None, **options: Any) -> Ingestor:
        return Ingestor(made or spec(), self.context(**options))

    def table(self, name: str = TABLE) -> TableState:
        return super().table(name)

    def files(self, name: str = TABLE, state: TableState | None = None) -> list[Any]:
        return super().files(name, state)

    def rows(self, name: str = TABLE, state: TableState | None = None) -> list[dict[str, Any]]:
        return super().rows(name, state)

    def offsets(self, name: str = TABLE) -> list[tuple[int, int]]:
        return super().offsets(name)

    def history_is_a_chain(self, name: str = TABLE) -> None:
        super().history_is_a_chain(name)


def ends(service: Service, lake: Lake, *, within_s: float = 60.0) -> bool:
    """Wait until the test has stopped the lake, then for the service to drain."""
    late_s = time.monotonic() + within_s
    while not lake.stop:
        assert time.monotonic() < late_s, f"not within {within_s} s"
        time.sleep(0.01)
    return service.drain()


def order(number: int) -> bytes:
    return json.dumps({"id": number, "at": "2026-11-21T08:00:00Z"}).encode()


def foreign_snapshot(local: LocalCatalog, table: TableName, number: int, *, at_ms: int | None = None) -> bool:
    """Commit an empty snapshot of no stream, as another engine does; False if another writer was first."""
    state = local.load(table)
    if state.head is None:
        return False
    kept = {k: v for k, v in state.head["summary"].items() if k == "operation" or k.startswith("total-")}
    snapshot = {
        **state.head,
        "snapshot-id": number,
        "parent-snapshot-id": state.head_id,
        "sequence-number": state.last_sequence + 1,
        "timestamp-ms": int(state.metadata["last-updated-ms"]) + 1 if at_ms is None else at_ms,
        "summary": kept,
    }
    if state.format_version >= 3:
        snapshot |= {"first-row-id": state.metadata["next-row-id"], "added-rows": 0}
    at = {"ref-name": "main", "type": "branch", "snapshot-id": number}
    try:
        local.catalog.tables.commit(
            local._slot(table),
            [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": state.head_id}],
            [{"action": "add-snapshot", "snapshot": snapshot}, {"action": "set-snapshot-ref", **at}],
        )
    except ConflictError:
        return False
    return True


def replace_table(local: LocalCatalog, table: TableName, number: int, *, empty: bool = False) -> None:
    """Replace the table by its own rows, as CREATE OR REPLACE TABLE … AS SELECT does; or by no rows.

    The main branch is removed, so the snapshot has no parent; properties and tags stay.
    """
    state = local.load(table)
    assert state.head is not None
    kept = {k: v for k, v in state.head["summary"].items() if k.startswith("total-")}
    snapshot = {
        **state.head,
        "snapshot-id": number,
        "sequence-number": state.last_sequence + 1,
        "timestamp-ms": int(state.metadata["last-updated-ms"]) + 1,
        "summary": {"operation": "append", **kept},
    }
    del snapshot["parent-snapshot-id"]
    if state.format_version >= 3:
        snapshot |= {"first-row-id": state.metadata["next-row-id"], "added-rows": 0}
    at = {"ref-name": "main", "type": "branch", "snapshot-id": number}
    filled = [{"action": "add-snapshot", "snapshot": snapshot}, {"action": "set-snapshot-ref", **at}]
    local.catalog.tables.commit(
        local._slot(table),
        [{"type": "assert-table-uuid", "uuid": state.uuid}],
        [{"action": "remove-snapshot-ref", "ref-name": "main"}, *([] if empty else filled)],
    )
