"""Object store: two small interfaces and their errors. `tarn.adapters.store` and `bulk` implement them.

    StoreRefusedError         the precondition failed (412, 409, already exists): read the key
    StoreBusyError            slow down (503, 429): wait, retry
    StoreDeniedError          the credentials lack permission
    StoreOutcomeUnknownError  a write without a response (timeout, reset, 5xx): it may have happened
    StoreNotDurableError      one of these: it can be read, and may not survive a loss of power
    StoreUnavailableError     a read without a response
    StoreTooLargeError        an object that is too long to be read whole

Whether to repeat a write is the caller's decision (invariant I3).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tarn.core.errors import ConflictError, ForbiddenError, OutcomeUnknownError, UnavailableError

PART_BYTES = 4 * 1024 * 1024
DELETED_AT_ONCE_MAX = 1_000
"""Keys in one request to delete; S3's limit."""
GET_BYTES_MAX = 128 * 1024 * 1024
"""Longest object that `ObjectStore.get` reads, unless a process with little memory has a lower limit."""


KEY_BYTES_MAX = 1_024
"""S3's limit."""
_IMPOSSIBLE = re.compile(r"^/|/$|//|[\x00-\x1f\x7f\ud800-\udfff]|(?:^|/)\.{1,2}(?:/|$)")


def is_key(text: str) -> bool:
    """Whether an object can be stored and read under this key.

    Not with control characters, empty parts, `.` or `..` as a part, or more than 1,024 bytes: libraries and
    stores refuse such a key, or take it for another one. Whoever may write a table chooses what it names.
    """
    return bool(text) and not _IMPOSSIBLE.search(text) and len(text.encode()) <= KEY_BYTES_MAX


class StoreRefusedError(ConflictError):
    """The precondition of a write failed, or the store could not evaluate it (S3's 409)."""


class StoreBusyError(UnavailableError):
    """The store asks the client to slow down."""


class StoreDeniedError(ForbiddenError):
    """The credentials lack permission or are unknown."""


class StoreOutcomeUnknownError(OutcomeUnknownError):
    """A write received no response: it may have happened, or may still happen."""


class StoreNotDurableError(StoreOutcomeUnknownError):
    """A write was carried out and may not survive a loss of power: reading it back proves nothing."""


class StoreUnavailableError(UnavailableError):
    """A read received no response."""


class StoreTooLargeError(StoreUnavailableError):
    """An object is longer than what `ObjectStore.get` reads: `GET_BYTES_MAX`, or a lower limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """An object: content and version.

    Attributes:
        data: content.
        etag: entity tag, for `if_match`.
        modified_ms: last modification by the store's clock, in milliseconds since the epoch.
    """

    data: bytes
    etag: str
    modified_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One entry of a listing.

    Attributes:
        key: full key.
        etag: entity tag.
        size_bytes: size of the object.
        modified_ms: last modification by the store's clock, in milliseconds since the epoch.
    """

    key: str
    etag: str
    size_bytes: int
    modified_ms: int


class ObjectStore(Protocol):
    """Interface of an object store. All implementations pass one contract suite."""

    def get(self, key: str, *, known: Stored | None = None) -> Stored | None:
        """Read an object; None if it does not exist; `known` itself if its entity tag is still current.

        A key that no object can have (`is_key`), or that the store says it cannot have, does not exist.

        Raises:
            StoreUnavailableError: the store does not respond.
            StoreDeniedError: the credentials lack permission.
        """

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None) -> str:
        """Write an object and return its new entity tag.

        Args:
            key: full key.
            data: content.
            if_absent: write only if the key does not exist.
            if_match: write only if the key has this entity tag.

        Raises:
            InvalidNameError: no object can have this key; nothing was written.
            StoreRefusedError: the precondition failed; this call wrote nothing.
            StoreBusyError: the store asks the client to slow down.
            StoreDeniedError: the credentials lack permission; nothing was written.
            StoreOutcomeUnknownError: no response; the write may have happened, or may still happen.
        """

    def delete(self, key: str) -> None:
        """Delete the key; a missing key is not an error.

        Raises:
            StoreOutcomeUnknownError: no response.
            StoreDeniedError: the credentials lack permission.
        """

    def list(self, prefix: str, *, after: str | None = None) -> Iterator[Listed]:
        """Yield all keys below `prefix` (which ends in a slash) in key order, starting after `after`.

        Raises:
            StoreUnavailableError: the store does not respond.
            StoreDeniedError: the credentials lack permission.
        """


class ReapedStore(ObjectStore, Protocol):
    """An `ObjectStore` that deletes many objects in one request, as the reaper does."""

    def delete_many(self, keys: Sequence[str]) -> None:
        """Delete keys, in any order; missing keys are not errors. After an error, any of them may be gone.

        Args:
            keys: at most `DELETED_AT_ONCE_MAX`.

        Raises:
            ValueError: too many keys; nothing was deleted.
            StoreOutcomeUnknownError: no response, or the store failed to delete some of them.
            StoreBusyError: the store asks the client to slow down.
            StoreDeniedError: the credentials lack permission for some of them.
        """


@runtime_checkable
class LocalStore(Protocol):
    """What an `ObjectStore` has besides if it is on this machine: a look that costs no request."""

    def exists(self, key: str) -> bool:
        """Return whether the key exists, by a system call."""


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
    """Object store operations of audit, backup and restore: streamed listings, ranged reads, large uploads.

    Separate from `ObjectStore`, which the catalog's correctness depends on and which stays small.
    """

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
