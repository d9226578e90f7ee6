"""`tarn restore`: a backup into an empty lake, or on from where a restore was cut off.

Table files first, then, once the closing record has proven all of them, what the catalog's prefix held:
keys and namespaces before pointers. So a restore that ends anywhere before shows no table at all. It writes
only what is absent, and removes nothing but its own marker.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import IO

import orjson

from tarn.adapters.bulk import PART_BYTES, BulkStore
from tarn.adapters.store import StoreBusyError, StoreOutcomeUnknownError, StoreRefusedError
from tarn.core.audit.names import keys_to_copy
from tarn.core.catalog_objects import CATALOG_PREFIX, RESTORE_MARKER
from tarn.core.errors import InvalidError, NotEmptyError, UnavailableError
from tarn.core.naming import PROBE_PREFIX
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
    """What a restore did.

    Attributes:
        begin, end: the records of the backup.
        present: objects that were there already, from a restore that was cut off.
        seconds: how long it took.
    """

    begin: Begin
    end: End
    present: int
    seconds: float

    @property
    def mib_per_s(self) -> float:
        """How fast it was."""
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
    """Put a backup in place.

    Args:
        store: the lake, by a user that may write all of it.
        source: the archive, as a stream.
        bucket: the lake's; locations in a backup name theirs.
        warehouse: the lake's name.
        tell: shows progress.
        sleep: waits between attempts of one write.

    Raises:
        NotEmptyError: the lake holds something; nothing was written.
        BackupError: the archive cannot be used; no table shows.
        InvalidError: it is of another bucket or warehouse; nothing was written.
        UnavailableError: the store does not answer, or refuses a write.
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
                f"TARN_BUCKET={begin.bucket} and TARN_WAREHOUSE={begin.warehouse} in .env and start anew"
            )
        _require_empty(held, begin)
        began.append(begin)
        if held.marker is None:
            run.put(RESTORE_MARKER, orjson.dumps({"id": begin.id, "of": begin.at}))
        tell(f"backup {begin.id} of {begin.at}" + (", going on" if held.marker else ""))

    with ThreadPoolExecutor(max_workers=WRITERS) as pool:
        run.pool = pool
        try:
            end = read(source, on_begin=on_begin, on_object=run.take)
            run.settle()
        except BackupError as error:
            told = f"{error.message}. No table shows in this lake; run the restore again with a whole backup"
            raise BackupError(told, **error.fields) from error
        finally:
            run.abandon()
        tell("all files are in place and proven; the catalog now")
        for key in keys_to_copy(list(run.catalog)):
            run.put_same(key, run.catalog[key])
    store.delete(RESTORE_MARKER)
    return Restored(begin=began[0], end=end, present=run.present, seconds=time.monotonic() - began_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a lake holds before a restore.

    Attributes:
        marker: the id of the backup whose restore was cut off here; None if there was none.
        catalog, files: some keys of each part; at most `COUNTED_MAX`.
    """

    marker: str | None
    catalog: tuple[str, ...]
    files: tuple[str, ...]


def look(store: BulkStore) -> Held:
    """What the lake holds; health checks' own objects do not count."""
    found: Mapping[str, list[str]] = {CATALOG_PREFIX: [], WAREHOUSE_PREFIX: []}
    for prefix, keys in found.items():
        for entry in store.list(prefix):
            if not entry.key.startswith((PROBE_PREFIX, HEALTH_PREFIX)) and entry.key != RESTORE_MARKER:
                keys.append(entry.key)
                if len(keys) >= COUNTED_MAX:
                    break
    marker = store.get(RESTORE_MARKER)
    name = None
    if marker is not None:
        try:
            name = str(orjson.loads(marker.data)["id"])
        except (orjson.JSONDecodeError, KeyError, TypeError):
            name = "unreadable"
    return Held(marker=name, catalog=tuple(found[CATALOG_PREFIX]), files=tuple(found[WAREHOUSE_PREFIX]))


def _require_empty(held: Held, begin: Begin) -> None:
    """Nothing, if this backup may go in here.

    Where a restore was cut off, the files are its own: they carry unique names and harm nobody. Objects of
    the catalog are another matter: they must be of this very backup.

    Raises:
        NotEmptyError: it may not.
    """
    if held.marker == begin.id or (held.marker is not None and not held.catalog):
        return
    if held.marker is not None:
        raise NotEmptyError(
            f"a restore of the backup {held.marker} was cut off here after it had begun with the catalog "
            f"({_some(held.catalog)}), and this is the backup {begin.id}. Run it again with the first one, "
            f"or start anew. {EMPTY_FIRST}"
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
    """The writing side: files as they come, several at a time; the catalog's objects are kept for the end."""

    def __init__(self, store: BulkStore, tell: Tell, sleep: Callable[[float], None], began_s: float) -> None:
        self._store = store
        self._tell = tell
        self._sleep = sleep
        self._began_s = self._told_s = began_s
        self._waiting: list[tuple[Future[None], int]] = []
        self._in_flight = 0
        self._catalog_bytes = 0
        self._objects = 0
        self._bytes = 0
        self.pool: ThreadPoolExecutor
        self.catalog: dict[str, bytes] = {}
        self.present = 0

    def take(self, key: str, size: int, parts: Iterator[bytes]) -> None:
        """An object of the archive; see `archive.Sink`."""
        if key.startswith(CATALOG_PREFIX):
            self._catalog_bytes += size
            if self._catalog_bytes > CATALOG_BYTES_MAX:
                raise BackupError(f"the catalog's state in it is larger than {CATALOG_BYTES_MAX} bytes")
            self.catalog[key] = b"".join(parts)
        elif not key.startswith(WAREHOUSE_PREFIX):
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
        """A large object, as it comes; it cannot be sent again, as its parts are gone."""
        found = self._store.open(key, bytes_max=0)
        if found is not None and found.size_bytes == size:
            self.present += 1
            for _ in parts:
                pass
            return
        first = next(parts, b"")
        self._store.put_parts(key, chain((first,), parts))

    def settle(self) -> None:
        """Wait for every write that is under way."""
        while self._waiting:
            future, done = self._waiting.pop(0)
            self._in_flight -= done
            future.result()

    def abandon(self) -> None:
        """Begin no further write."""
        for future, _ in self._waiting:
            future.cancel()

    def put_same(self, key: str, data: bytes) -> None:
        """Have this object there; one that is there already must be the same.

        Raises:
            NotEmptyError: another one is there.
            UnavailableError: the store does not take it.
        """
        try:
            self.put(key, data)
        except StoreRefusedError:
            found = self._store.get(key)
            if found is None or found.data != data:
                raise NotEmptyError(
                    f"{key} is there with other content: somebody else writes to this lake, or it is not the "
                    f"one that this restore began in. Nothing of it was changed. {EMPTY_FIRST}",
                    key=key,
                ) from None
            self.present += 1

    def put(self, key: str, data: bytes) -> None:
        """Write if absent, some times.

        Raises:
            StoreRefusedError: something is there.
            UnavailableError: no answer, or no room, after all attempts.
        """
        for attempt in range(1, PUT_ATTEMPTS_MAX + 1):
            try:
                self._store.put(key, data, if_absent=True)
            except (StoreOutcomeUnknownError, StoreBusyError) as error:
                if attempt == PUT_ATTEMPTS_MAX:
                    raise UnavailableError(
                        f"could not write {key} in {attempt} attempts: {error.message}. No table shows yet; "
                        "see to the store (is its disk full?) and run the restore again: it goes on",
                        key=key,
                    ) from error
                self._sleep(PUT_WAIT_S * 2**attempt)
            else:
                return

    def _progress(self) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s >= TELL_EVERY_S:
            self._told_s = now_s
            rate = self._bytes / MIB / (now_s - self._began_s)
            self._tell(f"{self._objects} objects, {self._bytes / MIB:.0f} MiB, {rate:.0f} MiB/s")
