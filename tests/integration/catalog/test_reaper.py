"""The reaper on a real MinIO, as its own store user: it does its work, and has no rights beyond it."""

from __future__ import annotations

import random
import time

import pytest

from tarn.adapters import manifest_audit
from tarn.core.object_store import DELETED_AT_ONCE_MAX, StoreDeniedError
from tarn.core.reap import LISTS_PREFIX, MEASURED_KEY
from tarn.keeper.hold import held
from tarn.keeper.measured import Measured
from tarn.keeper.reaper import Graces, Reaper
from tests.contract.keeper.reaping import Clocked
from tests.integration.catalog.conftest import BUCKET, StoreServer
from tests.integration.catalog.test_bulk import bulk

AT_ONCE = Graces(metadata_ms=0, files_ms=0)


def test_its_own_user_is_enough_and_nothing_reachable_goes(minio: StoreServer) -> None:
    lake = Clocked(now_ms=time.time_ns() // 1_000_000, numbers=random.Random(), own=minio.store(minio.root))
    others = set(lake.left())
    table = lake.table(**{"tarn.history": "3", "write.metadata.previous-versions-max": "2"})
    for _ in range(6):
        table.append(2, merge_at=4)
    table.delete(table.live()[0])
    table.compact(3)
    table.vectors()
    table.statistics()
    lake.catalog.names.purge(lake.table("purged").slot)
    own = bulk(minio, minio.user("reaper"))
    reaper = Reaper(own, manifest_audit, bucket=BUCKET, graces=AT_ONCE)
    keeper = bulk(minio, minio.user("keeper"))
    with held(keeper, "test", tell=pytest.fail):
        assert reaper.run_once().held
    deleted = 0
    for _ in range(4):
        table.append()
        done = reaper.run_once()
        assert done.failed == {}
        deleted += done.deleted
        assert lake.missing() == []
    done = reaper.run_once()
    assert deleted > 25
    assert set(lake.left()) <= others
    assert lake.keys(LISTS_PREFIX) == []
    found = Measured(minio.store(minio.user("cli"))).sizes()["ns.t"]
    assert found.objects > 0
    assert found.history > 0


def test_one_request_deletes_as_many_as_s3_takes(minio: StoreServer) -> None:
    root, own = minio.store(minio.root), minio.store(minio.user("reaper"))
    keys = [f"warehouse/ns/many/data/{number:04} &+%2F.parquet" for number in range(DELETED_AT_ONCE_MAX)]
    for key in keys[::20]:
        root.put(key, b"rows")
    root.put("warehouse/ns/many/data/other.parquet", b"rows")
    own.delete_many(keys)
    assert [entry.key for entry in root.list("warehouse/ns/many/")] == [
        "warehouse/ns/many/data/other.parquet"
    ]
    own.delete_many(["warehouse/ns/many/data/other.parquet"])


def test_it_may_change_nothing_but_its_own(minio: StoreServer) -> None:
    root, own = minio.store(minio.root), minio.store(minio.user("reaper"))
    for key in ("catalog/v1/pointers/ns/x.json", "warehouse/ns/x/data/a.parquet"):
        root.put(key, b"{}")
        with pytest.raises(StoreDeniedError):
            own.put(key, b"other")
    with pytest.raises(StoreDeniedError):
        own.delete("catalog/v1/pointers/ns/x.json")
    with pytest.raises(StoreDeniedError, match="may not delete 3 objects"):
        own.delete_many(
            [
                "catalog/v1/pointers/ns/x.json",
                "warehouse/ns/x/data/missing.parquet",
                "catalog/v1/pointers/ns/y.json",
            ]
        )
    assert root.get("catalog/v1/pointers/ns/x.json") is not None
    with pytest.raises(StoreDeniedError):
        minio.store(minio.user("cli")).put(MEASURED_KEY, b"{}")
    with pytest.raises(StoreDeniedError):
        minio.store(minio.user("keeper")).delete(MEASURED_KEY)
    for key in ("catalog/v1/pointers/ns/x.json", "warehouse/ns/x/data/a.parquet"):
        root.delete(key)
