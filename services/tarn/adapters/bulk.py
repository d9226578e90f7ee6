"""Bulk access to a bucket for audit and backup: streamed listings, ranged reads, multipart uploads.

The errors are those of `tarn.core.object_store`.
"""

from __future__ import annotations

from collections.abc import Iterator

import obstore
from obstore import exceptions as vendor

from tarn.adapters.store import STRANGE_KEY, S3Store, _check_key, _first_line, _is_impossible, _status
from tarn.adapters.store_listing import list_keys
from tarn.core.object_store import (
    GET_BYTES_MAX,
    PART_BYTES,
    Listed,
    ObjectBody,
    ObjectStore,
    Stored,
    StoreUnavailableError,
    is_key,
)

REQUEST_TIMEOUT_MS = 60_000
LIST_CHUNK = 1_000
UPLOADS_MAX = 4


class S3Bulk(S3Store):
    """A `BulkStore` over a bucket of an S3-compatible store."""

    def __init__(
        self,
        *,
        bucket: str,
        endpoint: str,
        region: str,
        access_key_id: str,
        secret_access_key: str,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
        get_bytes_max: int = GET_BYTES_MAX,
    ) -> None:
        super().__init__(
            bucket=bucket,
            endpoint=endpoint,
            region=region,
            access_key_id=access_key_id,
            secret_access_key=secret_access_key,
            request_timeout_ms=request_timeout_ms,
            get_bytes_max=get_bytes_max,
        )

    def list(self, prefix: str, *, after: str | None = None) -> Iterator[Listed]:
        """See `BulkStore.list`; a listing that fails halfway is not retried."""
        last = after
        try:
            for chunk in obstore.list(self._store, prefix, offset=after, chunk_size=LIST_CHUNK):
                for meta in chunk:
                    last = meta["path"]
                    yield Listed(
                        key=meta["path"],
                        etag=meta["e_tag"] or "",
                        size_bytes=meta["size"],
                        modified_ms=int(meta["last_modified"].timestamp() * 1000),
                    )
        except (vendor.BaseError, OSError) as error:
            if STRANGE_KEY in str(error):
                yield from list_keys(self._access, prefix, after=last)
                return
            if _status(error) in (401, 403) or isinstance(error, vendor.PermissionDeniedError):
                raise self._denied(error, f"list {prefix}") from error
            raise StoreUnavailableError(
                f"could not list {prefix} at {self.endpoint}: {_first_line(error)}; wait for the store",
                endpoint=self.endpoint,
            ) from error

    def open(self, key: str, *, bytes_max: int = PART_BYTES) -> ObjectBody | None:
        """See `BulkStore.open`."""
        if not is_key(key):
            return None

        def once() -> ObjectBody | None:
            try:
                result = obstore.get(self._store, key)
                size = result.meta["size"]
                data = bytes(result.bytes()) if size <= bytes_max else None
            except FileNotFoundError:
                return None
            except vendor.BaseError as e:
                if _is_impossible(e):
                    return None
                raise
            return ObjectBody(size_bytes=size, data=data)

        return self._read(once, f"read {key}")

    def part(self, key: str, start: int, end: int) -> bytes:
        """See `BulkStore.part`."""
        _check_key(key)
        data = self._read(
            lambda: bytes(obstore.get_range(self._store, key, start=start, end=end)), f"read {key}"
        )
        if len(data) != end - start:
            raise StoreUnavailableError(f"{key} gave {len(data)} bytes of [{start}, {end}); it was changed")
        return data

    def put_parts(self, key: str, parts: Iterator[bytes]) -> None:
        """See `BulkStore.put_parts`."""
        _check_key(key)
        try:
            obstore.put(
                self._store,
                key,
                parts,
                use_multipart=True,
                chunk_size=2 * PART_BYTES,
                max_concurrency=UPLOADS_MAX,
            )
        except (vendor.BaseError, FileNotFoundError, OSError) as error:
            self._raise_write(error, f"write {key}")


class PlainBulk:
    """Adapts any `ObjectStore` to `BulkStore`, with whole objects in memory: for tests and local folders."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def list(self, prefix: str) -> Iterator[Listed]:
        """See `BulkStore.list`."""
        return self._store.list(prefix)

    def get(self, key: str) -> Stored | None:
        """See `BulkStore.get`."""
        return self._store.get(key)

    def open(self, key: str, *, bytes_max: int = PART_BYTES) -> ObjectBody | None:
        """See `BulkStore.open`."""
        found = self._store.get(key)
        if found is None:
            return None
        size = len(found.data)
        return ObjectBody(size_bytes=size, data=found.data if size <= bytes_max else None)

    def part(self, key: str, start: int, end: int) -> bytes:
        """See `BulkStore.part`."""
        found = self._store.get(key)
        data = found.data[start:end] if found is not None else b""
        if len(data) != end - start:
            raise StoreUnavailableError(f"{key} gave {len(data)} bytes of [{start}, {end}); it was changed")
        return data

    def put(self, key: str, data: bytes, *, if_absent: bool = False) -> str:
        """See `BulkStore.put`."""
        return self._store.put(key, data, if_absent=if_absent)

    def put_parts(self, key: str, parts: Iterator[bytes]) -> None:
        """See `BulkStore.put_parts`."""
        self._store.put(key, b"".join(parts))

    def delete(self, key: str) -> None:
        """See `BulkStore.delete`."""
        self._store.delete(key)
