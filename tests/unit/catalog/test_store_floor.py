"""The benchmark of the store alone: the same reads and writes, and nothing left behind."""

from __future__ import annotations

from tarn.adapters.store import MemoryStore
from tarn_catalog.testing.faulty_store import FaultyStore
from tarn_catalog.testing.store_floor import POINTER_BYTES, measure


def test_the_floor_reads_and_writes_as_the_catalog_does_and_leaves_nothing() -> None:
    store = FaultyStore(MemoryStore())
    times = measure(store, calls=3, metadata_bytes=1_000)
    assert [len(times[name]) for name in ("read", "unchanged", "write")] == [3, 3, 3]
    assert min(times["read"] + times["unchanged"] + times["write"]) > 0
    assert [op.kind for op in store.seen][:9] == ["put", *2 * ["get", "get", "put", "put"]]
    assert list(store.inner.list("")) == []
    assert POINTER_BYTES == 12_000
