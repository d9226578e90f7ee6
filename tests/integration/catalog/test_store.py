"""The store adapter on a real MinIO: conditions, errors, and each user's rights."""

from __future__ import annotations

import uuid

import pytest

from tarn.core.errors import UnavailableError
from tarn.core.object_store import Stored, StoreDeniedError, StoreRefusedError, StoreUnavailableError
from tarn_catalog.operations.health import check_store
from tests.integration.catalog.conftest import StoreServer


def test_it_keeps_its_promises_with_the_catalogs_own_key(minio: StoreServer) -> None:
    store = minio.store(minio.user("catalog"))
    name = uuid.uuid4().hex
    check_store(store, name=name, wait_s_max=0)
    assert [listed.key for listed in store.list("catalog/v1/probe/") if name in listed.key] == []


def test_put_get_list_delete(minio: StoreServer) -> None:
    store = minio.store(minio.user("catalog"))
    base = f"catalog/v1/probe/{uuid.uuid4()}"
    assert store.get(f"{base}/a") is None
    etag = store.put(f"{base}/a~20b", b"1", if_absent=True)
    assert (store.get(f"{base}/a~20b").data, store.get(f"{base}/a~20b").etag) == (b"1", etag)
    known = Stored(data=b"", etag=etag)
    assert store.get(f"{base}/a~20b", known=known) is known
    assert store.get(f"{base}/a~20b", known=Stored(data=b"", etag='"0"')).data == b"1"
    assert store.get(f"{base}/none", known=known) is None
    store.put(f"{base}/c", b"22")
    assert [(e.key.rsplit("/", 1)[1], e.size_bytes) for e in store.list(f"{base}/")] == [
        ("a~20b", 1),
        ("c", 2),
    ]
    assert [e.key for e in store.list(f"{base}/", after=f"{base}/a~20b")] == [f"{base}/c"]
    assert next(iter(store.list(f"{base}/"))).etag == etag
    for condition in ({"if_absent": True}, {"if_match": '"00000000000000000000000000000000"'}):
        with pytest.raises(StoreRefusedError):
            store.put(f"{base}/c", b"3", **condition)
    with pytest.raises(StoreRefusedError):
        store.put(f"{base}/absent", b"3", if_match=etag)
    for key in ("a~20b", "c", "c"):
        store.delete(f"{base}/{key}")
    assert list(store.list(f"{base}/")) == []


def test_errors_are_ours_and_say_where(minio: StoreServer) -> None:
    catalog = minio.user("catalog")
    wrong = (catalog[0], "x" * 40)
    for store in (minio.store(wrong), minio.store(("nobody-here", "x" * 40))):
        with pytest.raises(StoreDeniedError, match=r"may not .* in bucket tarn"):
            store.put("catalog/v1/probe/x", b"1")
        with pytest.raises(StoreDeniedError):
            store.get("catalog/v1/probe/x")
    with pytest.raises(StoreDeniedError):
        minio.store(catalog, bucket="elsewhere").put("catalog/v1/probe/x", b"1", if_absent=True)
    dead = minio.store(catalog, endpoint="http://127.0.0.1:9")
    with pytest.raises(StoreUnavailableError, match="wait for the store"):
        dead.get("catalog/v1/probe/x")
    with pytest.raises(UnavailableError, match="could not be used"):
        check_store(dead, name="x", wait_s_max=0)


@pytest.mark.parametrize("other", ["spark", "trino", "ingest", "cli"])
def test_nobody_but_the_catalog_touches_the_register(minio: StoreServer, other: str) -> None:
    owner, intruder = minio.store(minio.user("catalog")), minio.store(minio.user(other))
    key = f"catalog/v1/pointers/ns/{uuid.uuid4()}.json"
    owner.put(key, b"1", if_absent=True)
    for forbidden in (
        lambda: intruder.put(key, b"2"),
        lambda: intruder.get(key),
        lambda: intruder.delete(key),
        lambda: list(intruder.list("catalog/v1/pointers/")),
    ):
        with pytest.raises(StoreDeniedError):
            forbidden()
    assert owner.get(key).data == b"1"
    owner.delete(key)
