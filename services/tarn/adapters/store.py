"""Implementations of the object store interface of `tarn.core.object_store`. Vendor errors stop here.

Only reads are retried here: whether to repeat a write is the caller's decision (invariant I3).
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import obstore
from obstore import exceptions as vendor
from obstore.store import S3Store as VendorS3Store

from tarn.adapters.store_listing import BucketAccess, list_keys
from tarn.core.errors import InvalidNameError, InvalidSettingError
from tarn.core.object_store import (
    DELETED_AT_ONCE_MAX,
    GET_BYTES_MAX,
    Listed,
    StoreBusyError,
    Stored,
    StoreDeniedError,
    StoreNotDurableError,
    StoreOutcomeUnknownError,
    StoreRefusedError,
    StoreTooLargeError,
    StoreUnavailableError,
    is_key,
)

if TYPE_CHECKING:
    from obstore import GetOptions, PutMode

T = TypeVar("T")

READ_ATTEMPTS_MAX = 3
READ_WAIT_MS = 50
CONNECT_TIMEOUT_MS = 2_000
REQUEST_TIMEOUT_MS = 8_000


# A request that was cut off in transit: status 400, although neither request nor sender is at fault.
BROKEN_OFF = ("<Code>RequestTimeout</Code>", "<Code>IncompleteBody</Code>")
STRANGE_KEY = "Encountered object with invalid path"
"""What the library says of a listing in which one key has a control character."""
IMPOSSIBLE_KEY = {"XMinioInvalidObjectName", "KeyTooLongError"}
"""What a store says of a key that no object in it can have, such as one with a part of 300 bytes."""
TEMPORARY = ".put-"
NO_ROOM = ("drive path full", "XMinioStorageFull")
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"\(code: (\w+)\)$|<Code>(\w+)</Code>")
# Codes of single keys in the answer to a request that deletes many, whose own status is 200.
DENIED = {"AccessDenied", "AllAccessDisabled"}
BUSY = {"SlowDown", "SlowDownWrite", "ServiceUnavailable"}


def _first_line(error: BaseException) -> str:
    return str(error).split("\n", 1)[0][:300]


def _status(error: BaseException) -> int | None:
    found = _STATUS.search(_first_line(error))
    return int(found.group(1)) if found else None


def _codes(error: BaseException) -> set[str]:
    """S3's error codes in an error of a request that deletes many objects."""
    found = _CODE.findall(str(error).split("\n\n", 1)[0])
    return {code for codes in found for code in codes if code}


def _is_impossible(error: BaseException) -> bool:
    return bool(_codes(error) & IMPOSSIBLE_KEY)


def _check_key(key: str) -> None:
    if not is_key(key):
        raise InvalidNameError(
            f"no object can have the key {key[:200]!r}; choose another one", name=key[:200]
        )


def _check_count(keys: Sequence[str]) -> None:
    if len(keys) > DELETED_AT_ONCE_MAX:
        raise ValueError(f"{len(keys)} keys to delete at once: at most {DELETED_AT_ONCE_MAX} are allowed")


class S3Store:
    """An `ObjectStore` over a bucket of an S3-compatible store, using obstore with its retries off.

    Args:
        bucket: name of the bucket.
        endpoint: address of the store.
        region: region of the bucket.
        access_key_id: id of the access key.
        secret_access_key: secret of the access key.
        request_timeout_ms: time limit of one request, in milliseconds.
        get_bytes_max: longest object that `get` reads; reading one takes twice its size in memory.
        sleep: waits between attempts, in seconds.
    """

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
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.endpoint = endpoint
        self.bucket = bucket
        self._sleep = sleep
        self._get_bytes_max = get_bytes_max
        self._settings: dict[str, Any] = {
            "endpoint": endpoint,
            "region": region,
            "access_key_id": access_key_id,
            "secret_access_key": secret_access_key,
            "virtual_hosted_style_request": False,
            "client_options": {
                "allow_http": endpoint.startswith("http://"),
                "connect_timeout": timedelta(milliseconds=CONNECT_TIMEOUT_MS),
                "timeout": timedelta(milliseconds=request_timeout_ms),
                "pool_idle_timeout": timedelta(seconds=20),
            },
            "retry_config": {"max_retries": 0},
        }
        self._access = BucketAccess(
            endpoint=endpoint,
            region=region,
            bucket=bucket,
            access_key_id=access_key_id,
            secret_access_key=secret_access_key,
            timeout_s=request_timeout_ms / 1_000,
        )
        # One key is deleted by DELETE: only its answer has a status of its own.
        self._store = VendorS3Store(bucket, disable_bulk_delete=True, **self._settings)

    def __repr__(self) -> str:
        return f"S3Store({self.endpoint}/{self.bucket})"

    def get(self, key: str, *, known: Stored | None = None) -> Stored | None:
        """See `ObjectStore.get`."""
        if not is_key(key):
            return None
        options: GetOptions = {} if known is None else {"if_none_match": known.etag}

        def once() -> Stored | None:
            try:
                result = obstore.get(self._store, key, options=options)
                meta = result.meta
                if meta["size"] > self._get_bytes_max:
                    # Who may write a table may name any object as a manifest list.
                    raise StoreTooLargeError(
                        f"{key} has {meta['size']} bytes, more than the {self._get_bytes_max >> 20} MiB that "
                        "are read whole; find out who names it",
                        key=key,
                    )
                return Stored(
                    data=bytes(result.bytes()),
                    etag=_etag(meta["e_tag"], key),
                    modified_ms=int(meta["last_modified"].timestamp() * 1000),
                )
            except FileNotFoundError:
                return None
            except vendor.NotModifiedError:
                if known is None:
                    raise
                return known
            except vendor.BaseError as e:
                if _is_impossible(e):
                    return None
                raise

        return self._read(once, f"read {key}")

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None) -> str:
        """See `ObjectStore.put`."""
        _check_key(key)
        mode: PutMode = "overwrite"
        if if_absent:
            mode = "create"
        elif if_match is not None:
            mode = {"e_tag": if_match}
        try:
            result = obstore.put(self._store, key, data, mode=mode, use_multipart=False)
        except (vendor.AlreadyExistsError, vendor.PreconditionError) as e:
            raise StoreRefusedError(f"the store refused to write {key}: {_first_line(e)}", key=key) from e
        except (vendor.BaseError, FileNotFoundError, OSError) as e:
            self._raise_write(e, f"write {key}")
        return _etag(result["e_tag"], key)

    def delete(self, key: str) -> None:
        """See `ObjectStore.delete`."""
        if not is_key(key):
            return
        try:
            obstore.delete(self._store, key)
        except FileNotFoundError:
            return
        except (vendor.BaseError, OSError) as e:
            if not _is_impossible(e):
                self._raise_write(e, f"delete {key}")

    def delete_many(self, keys: Sequence[str]) -> None:
        """See `ReapedStore.delete_many`: S3's DeleteObjects."""
        _check_count(keys)
        possible = [key for key in keys if is_key(key)]
        if not possible:
            return
        try:
            obstore.delete(self._many, possible)
        except (vendor.BaseError, OSError) as e:
            what, codes = f"delete {len(possible)} objects", _codes(e)
            if codes & IMPOSSIBLE_KEY:
                # The library names one error of several: of each key alone it is known what became of it.
                for key in possible:
                    self.delete(key)
                return
            if codes & DENIED:
                raise self._denied(e, what) from e
            if codes & BUSY:
                raise StoreBusyError(
                    f"could not {what}: the store at {self.endpoint} asks to slow down: {_first_line(e)}"
                ) from e
            self._raise_write(e, what)

    @cached_property
    def _many(self) -> VendorS3Store:
        return VendorS3Store(self.bucket, **self._settings)

    def list(self, prefix: str, *, after: str | None = None) -> Iterator[Listed]:
        """See `ObjectStore.list`. The whole listing is read before the first key is yielded."""

        def once() -> Sequence[Listed]:
            try:
                return [
                    Listed(
                        key=meta["path"],
                        etag=_etag(meta["e_tag"], meta["path"]),
                        size_bytes=meta["size"],
                        modified_ms=int(meta["last_modified"].timestamp() * 1000),
                    )
                    for chunk in obstore.list(self._store, prefix, offset=after, chunk_size=1000)
                    for meta in chunk
                ]
            except vendor.BaseError as e:
                if STRANGE_KEY not in str(e):
                    raise
                return list(list_keys(self._access, prefix, after=after))

        yield from sorted(self._read(once, f"list {prefix}"), key=lambda listed: listed.key)

    def _read(self, once: Callable[[], T], what: str) -> T:
        for attempt in range(1, READ_ATTEMPTS_MAX + 1):
            try:
                return once()
            except (vendor.PermissionDeniedError, vendor.UnauthenticatedError) as e:
                raise self._denied(e, what) from e
            except (vendor.BaseError, OSError) as e:
                # A denied listing is raised as a generic error.
                if _status(e) in (401, 403):
                    raise self._denied(e, what) from e
                # A timeout has used up the caller's time budget; only fast failures are retried.
                if attempt == READ_ATTEMPTS_MAX or _status(e) is None:
                    raise StoreUnavailableError(
                        f"could not {what} at {self.endpoint}: {_first_line(e)}; wait for the store and try "
                        "again",
                        endpoint=self.endpoint,
                    ) from e
                self._sleep(READ_WAIT_MS / 1000 * 2 ** (attempt - 1))
        raise AssertionError("unreachable")

    def _raise_write(self, error: Exception, what: str) -> NoReturn:
        status = _status(error)
        denied = isinstance(error, (vendor.PermissionDeniedError, vendor.UnauthenticatedError))
        if denied or status in (401, 403):
            raise self._denied(error, what) from error
        if status in (429, 503):
            raise StoreBusyError(
                f"could not {what}: the store at {self.endpoint} asks to slow down: {_first_line(error)}"
            ) from error
        broken_off = status == 408 or (status == 400 and any(code in str(error) for code in BROKEN_OFF))
        if status is not None and 400 <= status < 500 and not broken_off:
            raise StoreDeniedError(
                f"could not {what} at {self.endpoint}: {_first_line(error)}; check bucket and settings"
            ) from error
        if status == 507 or any(word in str(error) for word in NO_ROOM):
            # Not a denial: a disk that fills up during the write proves nothing about what was stored.
            raise StoreOutcomeUnknownError(
                f"could not {what}: the disk of the store at {self.endpoint} is full; free some space and it "
                "goes on by itself (scripts/doctor tells how much there is)",
                endpoint=self.endpoint,
            ) from error
        raise StoreOutcomeUnknownError(
            f"no answer to: {what} at {self.endpoint}: {_first_line(error)}; it may have happened",
            endpoint=self.endpoint,
        ) from error

    def _denied(self, error: Exception, what: str) -> StoreDeniedError:
        return StoreDeniedError(
            f"may not {what} at {self.endpoint} in bucket {self.bucket}: {_first_line(error)}; check the "
            "store user and its policy",
            endpoint=self.endpoint,
            bucket=self.bucket,
        )


def _etag(etag: str | None, key: str) -> str:
    if not etag:
        raise StoreUnavailableError(f"the store gave no entity tag for {key}; it cannot be used", key=key)
    return etag


def _md5(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


def _check(found: bytes | None, key: str, if_absent: bool, if_match: str | None) -> None:
    if if_absent and found is not None:
        raise StoreRefusedError(f"the store refused to write {key}: it exists", key=key)
    if if_match is not None and (found is None or _md5(found) != if_match):
        raise StoreRefusedError(f"the store refused to write {key}: it is not {if_match}", key=key)


class MemoryStore:
    """An in-memory store, for tests. Entity tags are the MD5 of the content, as in S3.

    Args:
        now_ms: clock of the store, in milliseconds since the epoch.
    """

    def __init__(self, *, now_ms: Callable[[], int] = lambda: int(time.time() * 1000)) -> None:
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._objects: dict[str, tuple[bytes, int]] = {}
        # The content that each object's entity tag was made of, and the tag.
        self._tags: dict[str, tuple[bytes, str]] = {}

    def _etag(self, key: str, data: bytes) -> str:
        found = self._tags.get(key)
        if found is None or found[0] is not data:
            found = self._tags[key] = (data, _md5(data))
        return found[1]

    def get(self, key: str, *, known: Stored | None = None) -> Stored | None:
        """See `ObjectStore.get`."""
        with self._lock:
            found = self._objects.get(key)
        if found is None:
            return None
        etag = self._etag(key, found[0])
        if known is not None and known.etag == etag:
            return known
        return Stored(data=found[0], etag=etag, modified_ms=found[1])

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None) -> str:
        """See `ObjectStore.put`."""
        _check_key(key)
        with self._lock:
            found = self._objects.get(key)
            _check(found[0] if found else None, key, if_absent, if_match)
            self._objects[key] = (data, self._now_ms())
        return self._etag(key, data)

    def delete(self, key: str) -> None:
        """See `ObjectStore.delete`."""
        with self._lock:
            self._objects.pop(key, None)
            self._tags.pop(key, None)

    def delete_many(self, keys: Sequence[str]) -> None:
        """See `ReapedStore.delete_many`."""
        _check_count(keys)
        for key in keys:
            self.delete(key)

    def list(self, prefix: str, *, after: str | None = None) -> Iterator[Listed]:
        """See `ObjectStore.list`."""
        with self._lock:
            found = sorted((key, *value) for key, value in self._objects.items() if key.startswith(prefix))
        for key, data, modified_ms in found:
            if after is None or key > after:
                yield Listed(
                    key=key, etag=self._etag(key, data), size_bytes=len(data), modified_ms=modified_ms
                )


class FileStore:
    """A store in a local folder, for tests and small scripts. Safe for several processes on one machine.

    What a write or delete has answered survives a loss of power, if the disk keeps its word: file and folder
    are synchronized before (fsync). Files that others write into the folder are for `sync`.

    Raises:
        InvalidSettingError: there is no such folder, and can be none.
        StoreDeniedError: the folder may not be made.
        StoreUnavailableError: it cannot be made now.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).resolve()
        with self._answering("open the store"):
            try:
                self.root.mkdir(parents=True, exist_ok=True)
            except (FileExistsError, NotADirectoryError) as e:
                raise InvalidSettingError(
                    f"{self.root} cannot be a folder: it, or one above it, is a file; choose another one"
                ) from e
        self._lock = threading.Lock()
        self._tidied = False
        self._named: set[Path] = {self.root}
        """Folders whose own names are on the disk, of those that `sync` has seen."""

    def __repr__(self) -> str:
        return f"FileStore({self.root})"

    @contextmanager
    def _answering(self, what: str) -> Iterator[None]:
        """Raise what the operating system refuses, or cannot do, as a store that did nothing."""
        try:
            yield
        except OSError as e:
            reason = f"could not {what} in {self.root}: {e.strerror or e}"
            if e.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise StoreDeniedError(
                    f"{reason}; nothing was changed, check the rights on the folder"
                ) from e
            raise StoreUnavailableError(
                f"{reason}; nothing was changed, make room or mend the disk, and try again"
            ) from e

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._lock, (self.root / ".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _path(self, key: str) -> Path:
        return self.root / key

    def get(self, key: str, *, known: Stored | None = None) -> Stored | None:
        """See `ObjectStore.get`."""
        if not is_key(key):
            return None
        with self._answering(f"read {key}"):
            try:
                data = self._path(key).read_bytes()
                modified_ms = int(self._path(key).stat().st_mtime * 1000)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return None
            except OSError as e:
                if e.errno == errno.ENAMETOOLONG:
                    return None
                raise
        etag = _md5(data)
        if known is not None and known.etag == etag:
            return known
        return Stored(data=data, etag=etag, modified_ms=modified_ms)

    def exists(self, key: str) -> bool:
        """See `LocalStore.exists`."""
        with self._answering(f"read {key}"):
            return is_key(key) and self._path(key).is_file()

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None) -> str:
        """See `ObjectStore.put`."""
        _check_key(key)
        path = self._path(key)
        with self._answering(f"write {key}"), self._locked():
            if if_absent or if_match is not None:
                found = self.get(key)
                _check(found.data if found else None, key, if_absent, if_match)
            self._tidy()
            self._write(path, data)
        return _md5(data)

    def _tidy(self) -> None:
        """Remove what killed writers left, once; who has the lock is the only writer."""
        if not self._tidied:
            self._tidied = True
            for left in self.root.glob(f"{TEMPORARY}*"):
                with suppress(OSError):  # another user's
                    left.unlink()

    def _write(self, path: Path, data: bytes) -> None:
        """Have a file on the disk under its name, whole or not at all."""
        # With the rights that files have here, as those that pyiceberg writes: others may read the lake.
        temporary = self.root / f"{TEMPORARY}{secrets.token_hex(8)}"
        try:
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            new = [folder for folder in (path.parent, *path.parent.parents) if not folder.exists()]
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        self._keep((path.parent, *(one.parent for one in new)), f"write {path.name}")

    def _keep(self, folders: Iterable[Path], what: str) -> None:
        """Have the names in folders on the disk.

        Raises:
            StoreNotDurableError: they are changed, and may not be after a loss of power.
        """
        try:
            for folder in folders:
                _sync_names(folder)
        except OSError as e:
            raise StoreNotDurableError(
                f"no answer to: {what} in {self.root}: {e.strerror or e}; it may have happened"
            ) from e

    def sync(self, keys: Iterable[str]) -> None:
        """Have files on the disk that others wrote, with their names; one that does not exist is passed over.

        Raises:
            StoreUnavailableError: they may not be.
            StoreDeniedError: one may not be read.
        """
        folders: set[Path] = set()
        with self._answering("synchronize files"):
            for key in keys:
                if not is_key(key):
                    continue
                path = self._path(key)
                with suppress(FileNotFoundError):
                    _sync(path)
                for folder in path.parents:
                    folders.add(folder)
                    if folder in self._named:
                        break
            for folder in folders:
                with suppress(FileNotFoundError):
                    _sync_names(folder)
        self._named |= folders

    def delete(self, key: str) -> None:
        """See `ObjectStore.delete`."""
        if not is_key(key):
            return
        path = self._path(key)
        with self._answering(f"delete {key}"):
            if not path.exists():
                return
            path.unlink(missing_ok=True)
        self._keep((path.parent,), f"delete {key}")

    def delete_many(self, keys: Sequence[str]) -> None:
        """See `ReapedStore.delete_many`."""
        _check_count(keys)
        found = [self._path(key) for key in keys if is_key(key)]
        with self._answering(f"delete {len(keys)} keys"):
            gone = [path for path in found if path.exists()]
            for path in gone:
                path.unlink(missing_ok=True)
        self._keep(sorted({path.parent for path in gone}), f"delete {len(keys)} keys")

    def keys(self, prefix: str) -> list[str]:
        """The keys with a prefix, ascending; no file is read."""
        with self._answering(f"list {prefix}"):
            return sorted(
                p.relative_to(self.root).as_posix() for p in self._path(prefix).rglob("*") if p.is_file()
            )

    def list(self, prefix: str, *, after: str | None = None) -> Iterator[Listed]:
        """See `ObjectStore.list`. Each file is read, for its entity tag."""
        for key in self.keys(prefix):
            if after is None or key > after:
                stored = self.get(key)
                if stored is not None:
                    yield Listed(
                        key=key,
                        etag=stored.etag,
                        size_bytes=len(stored.data),
                        modified_ms=stored.modified_ms,
                    )


def _sync_names(folder: Path) -> None:
    """Have the names in a folder on the disk, as far as its file system can be asked for that."""
    try:
        _sync(folder)
    except OSError as e:
        # Some shared folders and FUSE mounts synchronize files alone. An error of the disk is another one.
        if e.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
            raise


def _sync(path: Path) -> None:
    """Have the content of a file, or the names in a folder, on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
