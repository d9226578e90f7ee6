"""What the benchmark's floor does to the store: the same reads and writes, and nothing left behind."""

from __future__ import annotations

from tarn.adapters.store import MemoryStore
from tarn_catalog.testing.faulty_store import FaultyStore
from tarn_catalog.testing.store_floor import POINTER_BYTES, measure


def test_the_floor_reads_and_writes_as_the_catalog_does_and_leaves_nothing() -> None:
    store = FaultyStore(MemoryStore())
    times = measure(store, calls=3, metadata_bytes=1_000)
    assert [len(times[name]) for name in ("read", "write")] == [3, 3]
    assert min(times["read"] + times["write"]) > 0
    assert [op.kind for op in store.seen][:7] == ["put", "get", "put", "put", "get", "put", "put"]
    assert list(store.inner.list("")) == []
    assert POINTER_BYTES == 12_000
