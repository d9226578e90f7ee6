"""`tarn restore`: restores a backup into an empty lake, or resumes an interrupted restore.

Files and key pages, which never change, come first; then, once the closing record has verified all of them,
the rest of the catalog's prefix, namespaces before pointers, and the other objects that change under their
name: declared ingestors and positions of readers. So a restore that ends earlier shows no table at all, and
leaves nothing that another backup has in another version. It writes only what is absent, and removes nothing
but its own marker.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import IO

import orjson

from tarn.core.audit.names import keys_to_copy
from tarn.core.catalog_objects import CATALOG_PREFIX, RESTORE_MARKER
from tarn.core.control.declared import SPECS_PREFIX
from tarn.core.errors import InvalidError, NotEmptyError, UnavailableError
from tarn.core.naming import KEY_PAGES_PREFIX, PROBE_PREFIX
from tarn.core.object_store import (
    PART_BYTES,
    BulkStore,
    StoreBusyError,
    StoreOutcomeUnknownError,
    StoreRefusedError,
)
from tarn.core.reading import is_reader_key
from tarn.keeper.archive import BackupError, Begin, End, read
from tarn.keeper.fsck import HEALTH_PREFIX, WAREHOUSE_PREFIX, Tell
from tarn.keeper.register import CATALOG_BYTES_MAX

WRITERS = 6
IN_FLIGHT_BYTES_MAX = 48 * 1024 * 1024
PUT_ATTEMPTS_MAX = 6
PUT_WAIT_S = 0.2
TELL_EVERY_S = 5.0
NAMED_MAX = 1
COUNTED_MAX = 1_000
MIB = 1024 * 1024

EMPTY_FIRST = (
    "A restore never writes over a lake. For a fresh one: `scripts/down --purge` removes this lake, its log "
    "and its secrets; or use another clone. Then run the restore, then scripts/up"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """Result of a restore.

    Attributes:
        begin: first record of the backup.
        end: closing record of the backup.
        present: number of objects that an interrupted restore had already written.
        seconds: duration.
    """

    begin: Begin
    end: End
    present: int
    seconds: float

    @property
    def mib_per_s(self) -> float:
        """Throughput in MiB/s."""
        return self.end.bytes / MIB / max(self.seconds, 1e-3)


def restore(
    store: BulkStore,
    source: IO[bytes],
    *,
    bucket: str,
    warehouse: str,
    tell: Tell,
    sleep: Callable[[float], None] = time.sleep,
) -> Restored:
    """Restore a backup.

    Args:
        store: object store of the lake, with write access to all of it.
        source: the archive, as a stream.
        bucket: bucket of the lake; the locations in a backup name theirs.
        warehouse: name of the warehouse.
        tell: called with progress messages.
        sleep: waits between attempts of one write, in seconds.

    Raises:
        NotEmptyError: the lake is not empty; nothing was written.
        BackupError: the archive is unusable; no table is visible.
        InvalidError: it is of another bucket or warehouse; nothing was written.
        UnavailableError: the store does not respond, or rejects a write.
    """
    began_s = time.monotonic()
    run = _Run(store, tell, sleep, began_s)
    held = look(store)
    began: list[Begin] = []

    def on_begin(begin: Begin) -> None:
        if (begin.bucket, begin.warehouse) != (bucket, warehouse):
            raise InvalidError(
                f"the backup is of bucket {begin.bucket!r} and warehouse {begin.warehouse!r}, this lake has "
                f"{bucket!r} and {warehouse!r}: the locations in it would point elsewhere. Set "
                f"TARN_BUCKET={begin.bucket} and TARN_WAREHOUSE={begin.warehouse} in .env and start again"
            )
        _require_empty(held, begin)
        began.append(begin)
        if held.marker != begin.id:
            # Of a former release's the catalog does not know whether it served the lake since.
            marker = orjson.dumps({"id": begin.id, "of": begin.at, "closed": True})
            run.put(RESTORE_MARKER, marker, if_absent=held.marker is None)
        tell(f"backup {begin.id} of {begin.at}" + (", going on" if held.marker == begin.id else ""))

    with ThreadPoolExecutor(max_workers=WRITERS) as pool:
        run.pool = pool
        try:
            end = read(source, on_begin=on_begin, on_object=run.take)
            run.settle()
        except BackupError as error:
            raise BackupError(
                f"{error.message}. No table shows in this lake; run the restore again with a whole backup",
                **error.fields,
            ) from error
        finally:
            run.abandon()
        # The first object of the catalog makes this lake one of this backup: nothing may be in its way then.
        for key in run.held:
            if not key.startswith(CATALOG_PREFIX):
                run.require_same(key, run.held[key])
        tell("all files are in place and proven; the catalog now")
        for key in _in_order(run.held):
            run.put_same(key, run.held[key])
    run.delete(RESTORE_MARKER)
    return Restored(begin=began[0], end=end, present=run.present, seconds=time.monotonic() - began_s)


def _changes(key: str) -> bool:
    """Whether a lake writes this object again under the same key."""
    if key.startswith(KEY_PAGES_PREFIX):
        return False
    return key.startswith((CATALOG_PREFIX, SPECS_PREFIX)) or is_reader_key(key)


def _in_order(held: Iterable[str]) -> list[str]:
    """The keys in the order in which they are written: pointers last, and one of the catalog first.

    With that one the lake is of this backup alone, so the others are never met in another version.
    """
    catalog = keys_to_copy([key for key in held if key.startswith(CATALOG_PREFIX)])
    return [*catalog[:1], *(key for key in held if not key.startswith(CATALOG_PREFIX)), *catalog[1:]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Content of a lake before a restore.

    Attributes:
        marker: id of the backup whose restore was interrupted here; None if there was none.
        catalog: some keys of the catalog, at most `COUNTED_MAX`.
        files: some keys of the warehouse and of key pages, at most `COUNTED_MAX`.
    """

    marker: str | None
    catalog: tuple[str, ...]
    files: tuple[str, ...]


def look(store: BulkStore) -> Held:
    """Sample the lake's content, ignoring objects of health checks."""
    catalog: list[str] = []
    files: list[str] = []
    for prefix, keys in ((CATALOG_PREFIX, catalog), (WAREHOUSE_PREFIX, files)):
        for entry in store.list(prefix):
            if entry.key.startswith((PROBE_PREFIX, HEALTH_PREFIX)) or entry.key == RESTORE_MARKER:
                continue
            some = files if entry.key.startswith(KEY_PAGES_PREFIX) else keys
            if len(some) < COUNTED_MAX:
                some.append(entry.key)
            if len(keys) >= COUNTED_MAX:
                break
    marker = store.get(RESTORE_MARKER)
    name = None
    if marker is not None:
        try:
            name = str(orjson.loads(marker.data)["id"])
        except (orjson.JSONDecodeError, KeyError, TypeError):
            name = "unreadable"
    return Held(marker=name, catalog=tuple(catalog), files=tuple(files))


def _require_empty(held: Held, begin: Begin) -> None:
    """Require that this backup may be restored here.

    Files left by an interrupted restore are its own: they have unique names and are harmless. Catalog objects
    are different: they must be of this very backup.

    Raises:
        NotEmptyError: the lake is not empty.
    """
    if held.marker == begin.id or (held.marker is not None and not held.catalog):
        return
    if held.marker is not None:
        raise NotEmptyError(
            f"a restore of the backup {held.marker} was cut off here after it had begun with the catalog "
            f"({_some(held.catalog)}), and this is the backup {begin.id}. Run it again with the first one, "
            f"or start again. {EMPTY_FIRST}"
        )
    if held.catalog or held.files:
        raise NotEmptyError(
            f"this lake is not empty: {_some(held.catalog)}; {_some(held.files)}. Nothing was changed. "
            f"{EMPTY_FIRST}",
            catalog=len(held.catalog),
            files=len(held.files),
        )


def _some(keys: tuple[str, ...]) -> str:
    if not keys:
        return "no objects of the catalog or of tables there"
    many = f"{COUNTED_MAX} objects or more" if len(keys) >= COUNTED_MAX else f"{len(keys)} objects"
    return f"{many} such as {', '.join(keys[:NAMED_MAX])}"


class _Run:
    """The writing side: files as they arrive, several at a time; objects that change are kept for the end."""

    def __init__(self, store: BulkStore, tell: Tell, sleep: Callable[[float], None], began_s: float) -> None:
        self._store = store
        self._tell = tell
        self._sleep = sleep
        self._began_s = self._told_s = began_s
        self._waiting: list[tuple[Future[None], int]] = []
        self._in_flight = 0
        self._held_bytes = 0
        self._objects = 0
        self._bytes = 0
        self.pool: ThreadPoolExecutor
        self.held: dict[str, bytes] = {}
        self.present = 0

    def take(self, key: str, size: int, parts: Iterator[bytes]) -> None:
        """Receive an object of the archive; see `archive.Sink`.

        Raises:
            BackupError: the key belongs to no lake, or the catalog's state is too large.
            UnavailableError: the store does not accept a write.
        """
        if _changes(key):
            self._held_bytes += size
            if self._held_bytes > CATALOG_BYTES_MAX:
                raise BackupError(
                    f"the catalog's state in it, without its pages of request keys, is larger than "
                    f"{CATALOG_BYTES_MAX} bytes"
                )
            self.held[key] = b"".join(parts)
        elif not key.startswith((WAREHOUSE_PREFIX, KEY_PAGES_PREFIX)):
            raise BackupError(f"it holds the key {key[:200]!r}, which no lake has")
        elif size <= PART_BYTES:
            self._room(size)
            self._waiting.append((self.pool.submit(self.put_same, key, b"".join(parts)), size))
            self._in_flight += size
        else:
            self._large(key, size, parts)
        self._objects += 1
        self._bytes += size
        self._progress()

    def _room(self, size: int) -> None:
        while self._waiting and (
            self._in_flight + size > IN_FLIGHT_BYTES_MAX or len(self._waiting) > 4 * WRITERS
        ):
            future, done = self._waiting.pop(0)
            self._in_flight -= done
            future.result()

    def _large(self, key: str, size: int, parts: Iterator[bytes]) -> None:
        """Write a large object as it arrives; it cannot be retried, as its parts are gone."""
        found = self._store.open(key, bytes_max=0)
        if found is not None and found.size_bytes == size:
            self.present += 1
            for _ in parts:
                pass
            return
        first = next(parts, b"")
        self._store.put_parts(key, chain((first,), parts))

    def settle(self) -> None:
        """Wait for all pending writes."""
        while self._waiting:
            future, done = self._waiting.pop(0)
            self._in_flight -= done
            future.result()

    def abandon(self) -> None:
        """Start no further write."""
        for future, _ in self._waiting:
            future.cancel()

    def put_same(self, key: str, data: bytes) -> None:
        """Write an object, or require that the existing one is identical.

        Raises:
            NotEmptyError: the key has other content.
            UnavailableError: the store does not accept the write.
        """
        try:
            self.put(key, data)
        except StoreRefusedError:
            self.require_same(key, data, absent=False)
            self.present += 1

    def require_same(self, key: str, data: bytes, *, absent: bool = True) -> None:
        """Require that an object is identical, or absent if that may be.

        Raises:
            NotEmptyError: the key has other content.
        """
        found = self._store.get(key)
        if found is None and absent:
            return
        if found is None or found.data != data:
            raise NotEmptyError(
                f"{key} is there with other content: somebody else writes to this lake, or it is not the "
                f"one that this restore began in. Nothing of it was changed. {EMPTY_FIRST}",
                key=key,
            )

    def put(self, key: str, data: bytes, *, if_absent: bool = True) -> None:
        """Write an object, with retries, by default if absent.

        Raises:
            StoreRefusedError: the key exists.
            NotEmptyError: the key got other content meanwhile.
            UnavailableError: no response, or no space, after all attempts.
        """
        for attempt in range(1, PUT_ATTEMPTS_MAX + 1):
            try:
                self._store.put(key, data, if_absent=if_absent)
            except StoreRefusedError:
                if attempt == 1:
                    raise
                self.require_same(key, data, absent=False)  # of an attempt whose answer was lost
                return
            except (StoreOutcomeUnknownError, StoreBusyError) as error:
                if attempt == PUT_ATTEMPTS_MAX:
                    raise UnavailableError(
                        f"could not write {key} in {attempt} attempts: {error.message}. The restore is not "
                        "done; see to the store (is its disk full?) and run it again: it goes on",
                        key=key,
                    ) from error
                self._sleep(PUT_WAIT_S * 2**attempt)
            else:
                return

    def delete(self, key: str) -> None:
        """Delete an object, with retries.

        Raises:
            OutcomeUnknownError: no response after all attempts.
        """
        for attempt in range(1, PUT_ATTEMPTS_MAX + 1):
            try:
                self._store.delete(key)
            except (StoreOutcomeUnknownError, StoreBusyError):
                if attempt == PUT_ATTEMPTS_MAX:
                    raise
                self._sleep(PUT_WAIT_S * 2**attempt)
            else:
                return

    def _progress(self) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s >= TELL_EVERY_S:
            self._told_s = now_s
            rate = self._bytes / MIB / (now_s - self._began_s)
            self._tell(f"{self._objects} objects, {self._bytes / MIB:.0f} MiB, {rate:.0f} MiB/s")
