"""The catalog's cache: real sizes, one line of versions per table, and no stale ones."""

from __future__ import annotations

import tracemalloc
from typing import Any

import orjson
import pytest

from tarn.adapters.store import MemoryStore
from tarn.core.naming import WarehouseLayout
from tarn_catalog.operations.catalog import Catalog
from tarn_catalog.operations.identifiers import CreateTableRequest, TableIdentifier
from tarn_catalog.state.context import (
    CACHE_BYTES_MAX,
    MEMO_BYTES,
    VERSIONS_MAX,
    Cache,
    held_bytes,
)
from tarn_catalog.state.pointer import Pointer

SLOT = TableIdentifier.of(("ns",), "t")
SCHEMA = {"type": "struct", "fields": [{"id": 1, "name": "x", "type": "long", "required": False}]}


def snapshot(number: int, parent: int | None, location: str) -> dict[str, Any]:
    """A snapshot as ingest's commits create them."""
    found = {
        "snapshot-id": 4_000_000_000_000_000_000 + number,
        "sequence-number": number,
        "timestamp-ms": 1_900_000_000_000 + number,
        "manifest-list": f"{location}/metadata/snap-{number}-0b0a2d0c-8e5c-4a86-9e8a-6a3f6d3c.avro",
        "summary": {
            "operation": "append",
            "added-data-files": "1",
            "added-records": str(1_000 + number),
            "added-files-size": str(30_000 + number),
            "total-records": str(1_000 * number),
            "total-files-size": str(30_000 * number),
            "tarn.commit-id": f"5f0f7c52-1b7e-4c39-9d9f-1f6ad0a6{number:04x}",
            "tarn.offsets.flights": orjson.dumps({str(p): 250 * number for p in range(4)}).decode(),
        },
        "schema-id": 0,
    }
    return found if parent is None else {**found, "parent-snapshot-id": parent}


def grow(catalog: Catalog, first: int, count: int) -> None:
    """Commit once, adding `count` snapshots."""
    meta = catalog.tables.load(SLOT).parsed
    head = meta["current-snapshot-id"]
    parent = None if head in (-1, None) else head
    updates: list[dict[str, Any]] = []
    for number in range(first, first + count):
        added = snapshot(number, parent, meta["location"])
        parent = added["snapshot-id"]
        updates.append({"action": "add-snapshot", "snapshot": added})
    updates.append(
        {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": parent}
    )
    catalog.tables.commit(SLOT, [], updates)


def lake() -> Catalog:
    catalog = Catalog(MemoryStore(), WarehouseLayout(base="s3://tarn"))
    catalog.namespaces.create(("ns",), {})
    catalog.tables.create(
        SLOT, CreateTableRequest(schema=SCHEMA, spec=None, order=None, properties={}, location=None)
    )
    return catalog


@pytest.mark.parametrize("snapshots", [1, 10, 100, 700])
def test_what_is_counted_is_what_is_held(snapshots: int) -> None:
    catalog = lake()
    grow(catalog, 1, snapshots)
    raw = catalog.tables.load(SLOT).raw
    copies = 200 // snapshots + 2
    tracemalloc.start()
    held = [(bytes(bytearray(raw)), orjson.loads(raw)) for _ in range(copies)]
    real = tracemalloc.get_traced_memory()[0] / len(held)
    tracemalloc.stop()
    assert 0.9 * real < held_bytes(len(raw)) < 1.6 * real, (len(raw), real)


@pytest.mark.long
def test_30_commits_to_a_long_history_hold_two_versions() -> None:
    catalog = lake()
    grow(catalog, 1, 1_000)
    for number in range(30):
        grow(catalog, 1_001 + number, 1)
    one = held_bytes(len(catalog.tables.load(SLOT).raw))
    assert one < catalog.core.cache.held_bytes < VERSIONS_MAX * one + 100_000
    assert VERSIONS_MAX * one < CACHE_BYTES_MAX / 4


def test_the_current_version_is_not_pushed_out_by_a_commit_under_way() -> None:
    catalog = lake()
    current = catalog.tables.load(SLOT)
    catalog.core.write_metadata(f"{current.location.rpartition('/')[0]}/00001-lost.metadata.json", {"a": 1})
    catalog.core.store = MemoryStore()  # it is empty
    assert catalog.core.metadata(current.location) is current


def test_a_cache_drops_the_least_lately_used_and_counts_right() -> None:
    cache = Cache(bytes_max=100)
    for key in "abc":
        cache.put(key, key, 30)
    assert cache.get("a") == "a"
    cache.put("d", "d", 30)
    assert [cache.get(key) for key in "abcd"] == ["a", None, "c", "d"]
    cache.put("a", "A", 10)
    cache.drop("c")
    cache.drop("nothing")
    assert cache.held_bytes == 40
    cache.put("e", "e", 1_000)
    assert cache.get("e") == "e"
    assert cache.held_bytes == 1_000


def test_a_pointer_that_has_not_changed_is_not_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    catalog, parsed = lake(), []
    load = Pointer.load

    def counted(data: bytes, key: str) -> Pointer:
        parsed.append(key)
        return load(data, key)

    monkeypatch.setattr(Pointer, "load", staticmethod(counted))
    other = Catalog(catalog.core.store, WarehouseLayout(base="s3://tarn"))
    for turn in range(1, 4):
        grow(catalog, turn, 1)
        parsed.clear()
        loaded = [other.tables.load(SLOT).location for _ in range(5)]
        assert set(loaded) == {catalog.tables.load(SLOT).location}, "every load sees every commit"
        assert parsed == [SLOT.key], "and who made the commit parses nothing"


def test_a_listing_pushes_nothing_out() -> None:
    catalog = lake()
    for number in range(20):
        catalog.tables.create(
            TableIdentifier.of(("ns",), f"t{number}"), CreateTableRequest(schema=SCHEMA, properties={})
        )
    reader = Catalog(catalog.core.store, WarehouseLayout(base="s3://tarn"))
    assert len(reader.namespaces.list_tables(("ns",), kind="table").names) == 21
    assert reader.core.cache.held_bytes <= 21 * MEMO_BYTES


def test_of_two_pointers_the_later_one_is_remembered() -> None:
    catalog = lake()
    first = catalog.tables.pointer(SLOT)
    grow(catalog, 1, 1)
    later = catalog.core.known(SLOT.key)
    assert later is not None
    catalog.core.remember(SLOT.key, first, 1)
    assert catalog.core.known(SLOT.key) is later


def test_a_listing_remembers_for_its_own_kind_only() -> None:
    catalog = lake()
    assert catalog.namespaces.list_tables(("ns",), kind="table").names == [("ns", "t")]
    assert catalog.namespaces.list_tables(("ns",), kind="view").names == []
    assert catalog.namespaces.list_tables(("ns",), kind="table").names == [("ns", "t")]


def test_a_listing_remembers_one_value_of_a_pointer() -> None:
    catalog = lake()
    sizes = []
    for number in range(5):
        grow(catalog, number + 1, 1)
        assert catalog.namespaces.list_tables(("ns",), kind="table").names == [("ns", "t")]
        sizes.append(len(catalog.core.cache._entries))
    assert len(set(sizes)) == 1, sizes


def test_a_pointer_read_for_a_write_is_kept_for_the_next_one() -> None:
    parsed = []

    def counted(data: bytes, key: str) -> Pointer:
        parsed.append(key)
        return Pointer.load(data, key)

    other = Catalog(lake().core.store, WarehouseLayout(base="s3://tarn"))
    found = [other.transactions.read_to_write(SLOT.key, counted) for _ in range(3)]
    assert found[0] is found[1] is found[2]
    assert parsed == [SLOT.key]
