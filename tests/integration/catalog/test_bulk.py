"""The keeper's store adapter on a real MinIO: multipart objects, listings, and a read-only key."""

from __future__ import annotations

import hashlib
import io
import uuid
from collections.abc import Iterator

import pytest
from minio import Minio

from tarn.adapters.bulk import S3Bulk
from tarn.core.object_store import PART_BYTES, StoreDeniedError, StoreRefusedError, StoreUnavailableError
from tests.integration.catalog.conftest import BUCKET, REGION, Key, StoreServer


def bulk(minio: StoreServer, key: Key) -> S3Bulk:
    return S3Bulk(
        bucket=BUCKET,
        endpoint=minio.endpoint,
        region=REGION,
        access_key_id=key[0],
        secret_access_key=key[1],
    )


def pieces(count: int) -> Iterator[bytes]:
    for n in range(count):
        yield hashlib.sha256(str(n).encode()).digest() * (1024 * 1024 // 32)
    yield b"end"


def test_a_large_object_goes_in_and_comes_out_in_parts(minio: StoreServer) -> None:
    root, keeper = bulk(minio, minio.root), bulk(minio, minio.user("keeper"))
    key = f"warehouse/bulk/{uuid.uuid4()}/large.parquet"
    whole = b"".join(pieces(21))
    root.put_parts(key, pieces(21))
    opened = keeper.open(key)
    assert opened is not None
    assert (opened.size_bytes, opened.data) == (len(whole), None)
    starts = range(0, len(whole), PART_BYTES)
    assert b"".join(keeper.part(key, n, min(n + PART_BYTES, len(whole))) for n in starts) == whole
    with pytest.raises(StoreUnavailableError):
        keeper.part(key, len(whole), len(whole) + 10)


def test_small_empty_and_absent_objects(minio: StoreServer) -> None:
    root, keeper = bulk(minio, minio.root), bulk(minio, minio.user("keeper"))
    folder = f"warehouse/bulk/{uuid.uuid4()}"
    root.put(f"{folder}/a", b"", if_absent=True)
    root.put(f"{folder}/b~20c", b"22", if_absent=True)
    with pytest.raises(StoreRefusedError):
        root.put(f"{folder}/a", b"1", if_absent=True)
    found = {name: keeper.open(f"{folder}/{name}") for name in ("a", "b~20c", "none")}
    assert [o and (o.size_bytes, o.data) for o in found.values()] == [(0, b""), (2, b"22"), None]
    opened = keeper.open(f"{folder}/b~20c", bytes_max=0)
    assert opened is not None
    assert (opened.size_bytes, opened.data) == (2, None)
    listed = sorted((entry.key, entry.size_bytes) for entry in keeper.list(f"{folder}/"))
    assert listed == [(f"{folder}/a", 0), (f"{folder}/b~20c", 2)]


def test_the_keeper_reads_the_catalogs_state_and_writes_nothing(minio: StoreServer) -> None:
    root, keeper = bulk(minio, minio.root), bulk(minio, minio.user("keeper"))
    for key in (f"catalog/v1/pointers/x/{uuid.uuid4()}.json", f"warehouse/bulk/{uuid.uuid4()}/a"):
        root.put(key, b"{}")
        stored = keeper.get(key)
        assert stored is not None
        assert stored.data == b"{}"
        for write in (
            lambda key=key: keeper.put(key, b"x"),
            lambda key=key: keeper.put(f"{key}.new", b"x", if_absent=True),
            lambda key=key: keeper.put_parts(key, pieces(9)),
            lambda key=key: keeper.delete(key),
        ):
            with pytest.raises(StoreDeniedError):
                write()
        assert root.get(key) == stored
        root.delete(key)
    with pytest.raises(StoreDeniedError):
        list(keeper.list("else/"))


@pytest.mark.parametrize("strange", ["b\tc", "b\nc", "b\x7fc", "b\x01"])
def test_a_key_with_a_control_character_hides_no_other_from_a_listing(
    minio: StoreServer, strange: str
) -> None:
    root, keeper = minio.store(minio.root), bulk(minio, minio.user("keeper"))
    folder, names = f"warehouse/bulk/{uuid.uuid4()}", ["a", "b", "c+d e", "ä"]
    for name in names:
        root.put(f"{folder}/{name}", b"1")
    client = Minio(minio.endpoint.removeprefix("http://"), *minio.root, secure=False, region=REGION)
    client.put_object(BUCKET, f"{folder}/{strange}", io.BytesIO(b"2"), 1)
    expected = [f"{folder}/{name}" for name in names]
    assert [entry.key for entry in root.list(f"{folder}/")] == expected
    assert [entry.key for entry in root.list(f"{folder}/", after=expected[1])] == expected[2:]
    found = {entry.key: entry for entry in keeper.list(f"{folder}/")}
    client.remove_object(BUCKET, f"{folder}/{strange}")
    assert found == {entry.key: entry for entry in keeper.list(f"{folder}/")}, "as the library lists them"
    assert sorted(found) == expected


def test_a_listing_that_nobody_answers_is_told(minio: StoreServer) -> None:
    away = S3Bulk(
        bucket=BUCKET,
        endpoint="http://127.0.0.1:9",
        region=REGION,
        access_key_id="a",
        secret_access_key="b",
    )
    with pytest.raises(StoreUnavailableError, match="could not list warehouse/"):
        list(away.list("warehouse/"))
