"""The trail on the real store, with the rights of the catalog and of ingest."""

from __future__ import annotations

import json

import pytest

from tarn.adapters.trail_topics import TrailReader
from tarn.core.object_store import StoreDeniedError
from tarn.core.trail import AUDIT
from tarn_catalog.operations.trail import Trail
from tests.integration.catalog.conftest import BUCKET, StoreServer


def test_the_catalog_writes_it_and_ingest_reads_it(minio: StoreServer) -> None:
    trails = [Trail(minio.store(minio.user("catalog"))) for _ in range(2)]
    for number in range(6):
        trails[number % 2].audit({"principal": "a", "action": "grant", "object": str(number)})
        trails[number % 2].write()
    store = minio.store(minio.user("ingest"))
    reader = TrailReader(store, AUDIT, bucket=BUCKET)
    reader.seek({0: 0})
    found = []
    while polled := reader.poll(records_max=100, timeout_s=0):
        found += [json.loads(value or b"")["object"] for value in polled[0].values]
        assert len(found) <= 6, found
    assert found == [str(number) for number in range(6)]
    key = next(iter(store.list(AUDIT.prefix))).key
    for who in ("ingest", "spark", "jupyter", "vending"):
        other = minio.store(minio.user(who))
        with pytest.raises(StoreDeniedError):
            other.put(key, b"{}")
        with pytest.raises(StoreDeniedError):
            other.delete(key)
