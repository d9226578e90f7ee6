"""Bulk access to a bucket for audit and backup: streamed listings, ranged reads, multipart uploads.

Separate from `ObjectStore`, which the catalog's correctness depends on and which stays small. The errors are
those of `tarn.adapters.store`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import obstore
from obstore import exceptions as vendor

from tarn.adapters.store import (
    Listed,
    ObjectStore,
    S3Store,
    Stored,
    StoreUnavailableError,
    _first_line,
    _status,
)

PART_BYTES = 4 * 1024 * 1024
REQUEST_TIMEOUT_MS = 60_000
LIST_CHUNK = 1_000
UPLOADS_MAX = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectBody:
    """An object's size and, if it is small, its bytes.

    Attributes:
        size_bytes: size of the object.
        data: content; None if the object is larger than the requested limit.
    """

    size_bytes: int
    data: bytes | None


class BulkStore(Protocol):
    """Object store operations of audit, backup and restore."""

    def list(self, prefix: str) -> Iterator[Listed]:
        """Yield every object below a prefix, in any order, page by page.

        Raises:
            StoreUnavailableError: the store does not respond.
            StoreDeniedError: the credentials lack permission.
        """

    def get(self, key: str) -> Stored | None:
        """Read an object; None if it does not exist. Raises the errors of `list`."""

    def open(self, key: str, *, bytes_max: int = PART_BYTES) -> ObjectBody | None:
        """Read an object's size, and its content up to `bytes_max` bytes; None if it does not exist.

        Raises the errors of `list`.
        """

    def part(self, key: str, start: int, end: int) -> bytes:
        """Read the byte range [start, end).

        Args:
            key: object key.
            start: first byte.
            end: byte after the last one.

        Raises:
            StoreUnavailableError, StoreDeniedError: as `list`; also if the object is gone or too short.
        """

    def put(self, key: str, data: bytes, *, if_absent: bool = False) -> str:
        """Write a small object; see `ObjectStore.put`."""

    def put_parts(self, key: str, parts: Iterator[bytes]) -> None:
        """Write a large object from its parts; visible once complete. Raises what `ObjectStore.put` does."""

    def delete(self, key: str) -> None:
        """Delete an object; see `ObjectStore.delete`."""


class S3Bulk(S3Store):
    """A `BulkStore` over a bucket of an S3-compatible store."""

    def __init__(
        self, *, bucket: str, endpoint: str, region: str, access_key_id: str, secret_access_key: str
    ) -> None:
        super().__init__(
            bucket=bucket,
            endpoint=endpoint,
            region=region,
            access_key_id=access_key_id,
            secret_access_key=secret_access_key,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
        )

    def list(self, prefix: str, *, after: str | None = None) -> Iterator[Listed]:
        """See `BulkStore.list`; a listing that fails halfway is not retried."""
        try:
            for chunk in obstore.list(self._store, prefix, offset=after, chunk_size=LIST_CHUNK):
                for meta in chunk:
                    yield Listed(
                        key=meta["path"],
                        etag=meta["e_tag"] or "",
                        size_bytes=meta["size"],
                        modified_ms=int(meta["last_modified"].timestamp() * 1000),
                    )
        except (vendor.BaseError, OSError) as error:
            if _status(error) in (401, 403) or isinstance(error, vendor.PermissionDeniedError):
                raise self._denied(error, f"list {prefix}") from error
            raise StoreUnavailableError(
                f"could not list {prefix} at {self.endpoint}: {_first_line(error)}; wait for the store",
                endpoint=self.endpoint,
            ) from error

    def open(self, key: str, *, bytes_max: int = PART_BYTES) -> ObjectBody | None:
        """See `BulkStore.open`."""

        def once() -> ObjectBody | None:
            try:
                result = obstore.get(self._store, key)
                size = result.meta["size"]
                data = bytes(result.bytes()) if size <= bytes_max else None
            except FileNotFoundError:
                return None
            return ObjectBody(size_bytes=size, data=data)

        return self._read(once, f"read {key}")

    def part(self, key: str, start: int, end: int) -> bytes:
        """See `BulkStore.part`."""
        data = self._read(
            lambda: bytes(obstore.get_range(self._store, key, start=start, end=end)), f"read {key}"
        )
        if len(data) != end - start:
            raise StoreUnavailableError(f"{key} gave {len(data)} bytes of [{start}, {end}); it was changed")
        return data

    def put_parts(self, key: str, parts: Iterator[bytes]) -> None:
        """See `BulkStore.put_parts`."""
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
