"""A lake as ingest leaves it, with dead letters, refs and a dropped table; a copy for each test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson
import pytest

from tarn.adapters import manifest_audit
from tarn.adapters.bulk import PlainBulk
from tarn.adapters.store import MemoryStore
from tarn.core.naming import WarehouseLayout
from tarn.core.table_catalog import TableName
from tarn.keeper.fsck import Report, fsck
from tarn.testing.memory_topic import Topic
from tarn_catalog.operations.catalog import Catalog
from tarn_catalog.operations.tables import CreateTableRequest, TableIdentifier
from tarn_catalog.operations.views import CreateViewRequest
from tests.support.lake import BUCKET, Lake, order, spec

BATCHES = 9


@dataclass
class World:
    """One test's own lake."""

    store: MemoryStore

    @property
    def bulk(self) -> PlainBulk:
        return PlainBulk(self.store)

    @property
    def catalog(self) -> Catalog:
        return Catalog(self.store, WarehouseLayout(base=f"s3://{BUCKET}"))

    def fsck(self) -> Report:
        return fsck(self.bulk, manifest_audit, bucket=BUCKET, tell=lambda _: None, sleep=lambda _: None)

    def kinds(self) -> dict[str, list[str]]:
        """Kind of damage -> where fsck finds it."""
        found: dict[str, list[str]] = {}
        for finding in self.fsck().damage:
            found.setdefault(finding.kind.name, []).append(finding.where)
        return found

    def keys(self, part: str = "") -> list[str]:
        return [entry.key for entry in self.store.list("") if part in entry.key]

    def json(self, key: str) -> dict[str, Any]:
        stored = self.store.get(key)
        assert stored is not None, key
        value: dict[str, Any] = orjson.loads(stored.data)
        return value

    def put_json(self, key: str, value: dict[str, Any]) -> None:
        self.store.put(key, orjson.dumps(value))

    def pointer(self, name: str) -> tuple[str, dict[str, Any]]:
        namespace, _, table = name.rpartition(".")
        key = f"catalog/v1/pointers/{namespace}/{table}.json"
        return key, self.json(key)

    def metadata(self, name: str = "bronze.orders") -> tuple[str, dict[str, Any]]:
        key = self.pointer(name)[1]["metadata-location"].removeprefix(f"s3://{BUCKET}/")
        return key, self.json(key)

    def head(self, name: str = "bronze.orders") -> dict[str, Any]:
        metadata = self.metadata(name)[1]
        found: dict[str, Any] = next(
            s for s in metadata["snapshots"] if s["snapshot-id"] == metadata["current-snapshot-id"]
        )
        return found


def plain(name: str) -> CreateTableRequest:
    return CreateTableRequest(
        schema={
            "type": "struct",
            "schema-id": 0,
            "fields": [{"id": 1, "name": name, "type": "long", "required": False}],
        },
        properties={},
    )


def a_view() -> CreateViewRequest:
    return CreateViewRequest(
        schema=plain("x").schema,
        version={
            **{"version-id": 1, "timestamp-ms": 1, "schema-id": 0, "summary": {}, "default-namespace": []},
            "representations": [{"type": "sql", "sql": "select 1 as x", "dialect": "spark"}],
        },
        properties={},
    )


def made(format_version: int) -> dict[str, tuple[bytes, int]]:
    """Every object in a store after ingest and some other commits."""
    topic = Topic("orders", 2)
    lake = Lake(topic)
    for number in range(BATCHES):
        topic.send(0, *[order(number * 10 + n) for n in range(6)])
        topic.send(1, order(number), b"not json" if number % 4 == 0 else order(number + 1_000))
    lake.work(lake.ingestor(spec(format_version=format_version)), turns=200)
    catalog = lake.local.catalog
    catalog.namespaces.create(("gold",), {})
    catalog.namespaces.create(("gold", "eu"), {})
    for name in ("gone", "kept"):
        catalog.tables.create(TableIdentifier.of(("gold", "eu"), name), plain(name))
    lake.local.drop(TableName(("gold", "eu"), "gone"))
    lake.store.put("warehouse/_health/ingest", b"now")
    lake.store.put("catalog/v1/probe/health.json", b"{}")
    return dict(lake.store._objects)


@pytest.fixture(scope="module")
def template() -> dict[str, tuple[bytes, int]]:
    return made(format_version=2)


@pytest.fixture
def world(template: dict[str, tuple[bytes, int]]) -> World:
    store = MemoryStore()
    store._objects = dict(template)
    return World(store)
