"""The shared context of the catalog's operations: register, immutable objects, cache, time and ids."""

from __future__ import annotations

import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar, cast

import orjson

from tarn.core import metadata_json
from tarn.core.errors import ConflictError, CorruptStateError, InvalidError, OutcomeUnknownError
from tarn.core.metadata_json import GZIP_SUFFIX, packed, unpacked
from tarn.core.naming import WarehouseLayout
from tarn.core.object_store import LocalStore, ObjectStore, Stored
from tarn.core.outcome import Committed, Outcome
from tarn_catalog.metadata.snapshots import with_main
from tarn_catalog.metadata.types import TableMetadata, ViewMetadata
from tarn_catalog.state.key_pages import KeyPages
from tarn_catalog.state.register import Register, RetryPolicy, Superseded, happened, write_once
from tarn_catalog.state.request_history import REMEMBERED_MS, RequestHistory, compact
from tarn_catalog.state.turns import Turns
from tarn_catalog.state.value import RegisterValue, VersionedValue, WriteStamp

CACHE_BYTES_MAX = 64 * 1024 * 1024
# Measured on CPython 3.11 for tables with 1 to 2,000 snapshots: the JSON and the objects parsed from it take
# 3.9 to 5.4 times the JSON's length together, most for the smallest.
PARSED_FACTOR = 4
ENTRY_BYTES = 4 * 1024
# Per table: the current version, and the one being written, whose swap may still fail.
VERSIONS_MAX = 2
MEMO_BYTES = 700

T = TypeVar("T")
R = TypeVar("R", bound=RegisterValue)
V = TypeVar("V", bound=VersionedValue)


class KeyReusedError(InvalidError):
    """An idempotency key was sent again with another request."""


class NoMetadataFileError(CorruptStateError):
    """A pointer names a metadata file that is not in the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdempotencyKey:
    """Idempotency key of a request and a fingerprint of its payload (invariant I4).

    Attributes:
        key: a UUID version 7.
        what: the operation and a digest of the payload.
    """

    key: str
    what: str

    @property
    def minted_ms(self) -> int:
        """The key's creation time by the client's clock, milliseconds since the epoch."""
        return uuid.UUID(self.key).int >> 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Versioned(Generic[T]):
    """A register value and its entity tag.

    Attributes:
        value: the value.
        etag: the entity tag that a swap must match.
    """

    value: T
    etag: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """The metadata of a table or view as stored and as parsed.

    Attributes:
        location: the location of its file.
        raw: the content of the file, with what `with_main` adds to it.
        parsed: the parsed JSON; never changed in place. Of a view: `operations.views.parsed`.
    """

    location: str
    raw: bytes
    parsed: TableMetadata


def held_bytes(json_bytes: int) -> int:
    """Return an estimate of the memory taken by JSON of this length and the objects parsed from it, bytes."""
    return PARSED_FACTOR * json_bytes + ENTRY_BYTES


class Cache:
    """LRU cache of immutable objects, bounded by bytes."""

    def __init__(self, bytes_max: int = CACHE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, tuple[Any, int]] = OrderedDict()

    @property
    def held_bytes(self) -> int:
        """The estimated size of all cached objects, bytes."""
        return self._bytes

    def get(self, key: str) -> Any | None:
        """Return the object, or None; marks it as recently used."""
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                return None
            self._entries.move_to_end(key)
            return found[0]

    def put(self, key: str, value: object, size_bytes: int) -> None:
        """Cache an object; evict the least recently used ones over the limit.

        Args:
            key: the object's key.
            value: the object.
            size_bytes: its estimated size in memory.
        """
        with self._lock:
            old = self._entries.pop(key, None)
            self._bytes += size_bytes - (old[1] if old else 0)
            self._entries[key] = (value, size_bytes)
            while self._bytes > self._bytes_max and len(self._entries) > 1:
                _, (_, dropped) = self._entries.popitem(last=False)
                self._bytes -= dropped

    def drop(self, key: str) -> None:
        """Remove an object from the cache."""
        with self._lock:
            old = self._entries.pop(key, None)
            self._bytes -= old[1] if old else 0


H = TypeVar("H", bound=Versioned[Any] | None)


class CatalogContext:
    """The context that every operation of the catalog works with.

    Args:
        store: the object store that holds all state.
        roots: the mapping between keys and locations.
        patience: retry policy of register writes.
        now_ms: wall clock, milliseconds since the epoch.
        new_uuid: returns a new UUID as text.
    """

    def __init__(
        self,
        store: ObjectStore,
        roots: WarehouseLayout,
        *,
        patience: RetryPolicy | None = None,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
        new_uuid: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        self.store = store
        self._local = store if isinstance(store, LocalStore) else None
        self.roots = roots
        self.patience = patience or RetryPolicy()
        self.register = Register(store, self.patience)
        self.now_ms = now_ms
        self.new_uuid = new_uuid
        self.cache = Cache()
        self.key_pages = KeyPages(store, self.cache, patience=self.patience, now_ms=now_ms, new_uuid=new_uuid)
        self.turns = Turns()

    def read(self, key: str, load: Callable[[bytes, str], V], *, keep: bool = False) -> Versioned[V] | None:
        """Return the register value of a key, or None.

        The store is queried every time; for an unchanged cached value it sends no body, and nothing is
        parsed.

        Args:
            key: the key.
            load: parses the stored bytes.
            keep: whether to cache the value. Not for listings: their values would evict everything else.

        Raises:
            UnavailableError: the store did not answer.
        """
        held: Versioned[V] | None = self.known(key)
        asked = None if held is None else Stored(data=b"", etag=held.etag)
        stored = self.register.read(key, known=asked)
        if stored is None:
            return None
        if held is not None and stored.etag == held.etag:
            return held
        held = Versioned(value=load(stored.data, key), etag=stored.etag)
        if keep:
            self.remember(key, held, held_bytes(len(stored.data)))
        return held

    def known(self, key: str) -> Versioned[Any] | None:
        """Return the cached register value of a key, or None; it may be stale."""
        found = self.cache.get(key)
        return found if isinstance(found, Versioned) else None

    def remember(self, key: str, held: Versioned[V], size_bytes: int) -> None:
        """Cache a register value that was read or written, unless a later version is cached.

        Writers build on it without a read: the entity tag must be that of this value, never of a later one.

        Args:
            key: the key.
            held: the value with its entity tag.
            size_bytes: its estimated size in memory.
        """
        current = self.known(key)
        if current is None or current.value.version <= held.value.version:
            self.cache.put(key, held, size_bytes)

    def stamp(self, repeat: IdempotencyKey | None = None) -> WriteStamp:
        """Return the stamp of a new write, with the request's idempotency key if it has one."""
        key, what = (repeat.key, repeat.what) if repeat else (None, None)
        return WriteStamp(nonce=self.new_uuid(), at_ms=self.now_ms(), key=key, what=what)

    def write(self, key: str, value: R, *, over: Versioned[R] | None) -> tuple[Versioned[R] | None, Outcome]:
        """Create the key, or swap the value `over`: every register value is written here.

        A value whose history overflowed is compacted first.

        Args:
            key: the key.
            value: the value to write.
            over: the stored value to replace; None to create the key.

        Returns:
            The stored value, to build on, None if that is not known to be this one; and the outcome.

        Raises:
            StoreDeniedError: the store denies the write; nothing was written.
            UnavailableError: the write provably did not happen.
            AssertionError: the value may not replace `over`.
        """
        value.check_follows(over.value if over is not None else None, key)
        written = self._compacted(key, value)

        def is_mine(data: bytes) -> bool | None:
            return written.is_in(type(written).load(data, key))

        data = written.dump()
        if over is None:
            outcome = self.register.create(key, data, is_mine=is_mine)
        else:
            outcome = self.register.swap(key, data, if_match=over.etag, is_mine=is_mine)
        if written is not value and isinstance(outcome, Committed):
            self.key_pages.leave(key, _pages(value), _pages(written))
        if isinstance(outcome, Committed) and not isinstance(outcome, Superseded):
            return Versioned(value=written, etag=outcome.etag), outcome
        return None, outcome

    def update(
        self,
        key: str,
        read: Callable[[], H],
        mutate: Callable[[H], V | None],
        *,
        what: str,
        attempts_max: int,
        repeat: IdempotencyKey | None = None,
    ) -> None:
        """Read a value, check it, write the next one; pause and start over if another writer won.

        Nothing is written if the request was already carried out.

        Args:
            key: the key.
            read: returns the stored value, without an undecided intent, or None; may raise TarnError.
            mutate: returns the value with other fields, or None if there is nothing to change; raises
                TarnError to reject the request. Called once for each attempt.
            what: what is done, such as "the drop of table a.b", for messages.
            attempts_max: how often the value is read.
            repeat: the request's idempotency key.

        Raises:
            ConflictError: concurrent changes won every attempt.
            OutcomeUnknownError: the write may have happened.
            UnavailableError: the write provably did not happen.
        """
        for _ in self.patience.attempts(attempts_max):
            held = read()
            if held is not None and self.repeated(held.value.memory, repeat):
                return
            wanted = mutate(held)
            if wanted is None:
                return
            _, outcome = self.write(key, wanted.next(self.stamp(repeat)), over=held)
            if happened(outcome, what):
                return
        raise lost(what, attempts_max)

    def repeated(self, memory: RequestHistory, repeat: IdempotencyKey | None) -> bool:
        """Return whether this request was already carried out; False without an idempotency key.

        Raises:
            KeyReusedError: the key was used for another request.
            OutcomeUnknownError: the key was not found and is old enough to have been forgotten.
        """
        if repeat is None:
            return False
        done = memory.find(repeat.key, self.key_pages)
        if done is not None:
            if done.what != repeat.what:
                raise KeyReusedError(
                    f"The idempotency key {repeat.key} was used for another request; make a new key for "
                    "every payload",
                    key=repeat.key,
                )
            return True
        self.check_age(repeat)
        return False

    def check_age(self, repeat: IdempotencyKey | None) -> None:
        """Require that an idempotency key is too young to have been forgotten.

        Raises:
            OutcomeUnknownError: it is older.
        """
        age_ms = 0 if repeat is None else self.now_ms() - repeat.minted_ms
        if repeat is not None and age_ms > REMEMBERED_MS:
            raise OutcomeUnknownError(
                f"The idempotency key {repeat.key} is {age_ms // 1000} s old, keys are remembered for "
                f"{REMEMBERED_MS // 1000} s: it cannot be told whether it was used; load the table and look "
                "for your change (and check the clocks if the key is new)",
                key=repeat.key,
                age_ms=age_ms,
            )

    def metadata(self, location: str, *, looked_for: bool = False) -> Metadata:
        """Return the metadata at a location, from the cache or the store.

        Args:
            location: the location of the file.
            looked_for: whether a cached file must still be there; asked of a store on this machine alone,
                where it costs no request.

        Raises:
            NoMetadataFileError: the file is missing.
            CorruptStateError: it is not valid JSON.
            UnavailableError: the store did not answer.
        """
        key = self.roots.key(location)
        gone = looked_for and self._local is not None and not self._local.exists(key)
        for found in () if gone else self._versions(location):
            if found.location == location:
                return found
        stored = self.store.get(key)
        if stored is None:
            raise NoMetadataFileError(
                f"The metadata file {location} is missing; restore it from a backup", location=location
            )
        try:
            raw = unpacked(stored.data)
            found = orjson.loads(raw)
            parsed = with_main(found)
            # Readers get what commits build on.
            raw = raw if parsed is found else orjson.dumps(parsed)
        except (ValueError, AttributeError, orjson.JSONEncodeError) as e:
            raise CorruptStateError(
                f"The metadata file {location} is no JSON: {e}; restore it from a backup", location=location
            ) from e
        return self._cached(Metadata(location=location, raw=raw, parsed=parsed))

    def write_metadata(self, location: str, parsed: TableMetadata | ViewMetadata) -> Metadata:
        """Store metadata at a location that no other file uses; its name says whether it is compressed.

        Raises:
            InvalidError: it holds a number beyond 64 bits, is nested too deeply to be JSON, or there would be
                no room for it when it is read again.
            ConflictError: the location holds other content.
            UnavailableError: the store did not take it; nothing was changed.
        """
        raw = dumped(parsed)
        try:
            # Counting takes time, and not even the densest JSON of this length is too large.
            if len(raw) * metadata_json.PER_BYTE_MAX > metadata_json.KEPT_PARSED_BYTES_MAX:
                metadata_json.check_kept(raw)
        except metadata_json.TooLongError as e:
            raise InvalidError(
                f"Cannot store the metadata: {e}; keep fewer snapshots (tarn.snapshots-kept), or remove "
                "properties"
            ) from e
        data = packed(raw) if location.endswith(GZIP_SUFFIX) else raw
        write_once(self.store, self.roots.key(location), data, patience=self.patience)
        return self._cached(Metadata(location=location, raw=raw, parsed=cast("TableMetadata", parsed)))

    def _versions(self, location: str) -> tuple[Metadata, ...]:
        """Return the cached metadata versions of a table, newest first."""
        found: tuple[Metadata, ...] = self.cache.get(_folder(location)) or ()
        return found

    def _cached(self, metadata: Metadata) -> Metadata:
        # Keyed by table, not by location: replaced versions would otherwise stay until evicted.
        others = [found for found in self._versions(metadata.location) if found.location != metadata.location]
        kept = (metadata, *others[: VERSIONS_MAX - 1])
        size = sum(held_bytes(len(version.raw)) for version in kept)
        self.cache.put(_folder(metadata.location), kept, size)
        return metadata

    def _compacted(self, key: str, value: R) -> R:
        if not isinstance(value, VersionedValue) or not value.memory.overflow():
            return value
        memory = compact(
            value.memory,
            now_ms=self.now_ms(),
            new_key=lambda: self.key_pages.new_key(key),
            read_page=self.key_pages.read,
            write_page=self.key_pages.write,
        )
        return replace(value, memory=memory)


def dumped(parsed: TableMetadata | ViewMetadata) -> bytes:
    """Return metadata as JSON.

    Raises:
        InvalidError: it holds a number beyond 64 bits, or is nested too deeply to be JSON.
    """
    try:
        return orjson.dumps(parsed)
    except orjson.JSONEncodeError as e:
        raise InvalidError(f"Cannot store the metadata: {e}; make numbers smaller, or nest less") from e


def lost(what: str, attempts_max: int) -> ConflictError:
    """Return the error for `what`, such as "the drop of table a.b", that other writers won every time."""
    return ConflictError(
        f"Cannot finish {what}: others made changes {attempts_max} times meanwhile; refresh and try again",
        change=what,
    )


def _folder(location: str) -> str:
    """Return the folder of a table's metadata files, which all its versions share."""
    return location.rpartition("/")[0]


def _pages(value: RegisterValue) -> frozenset[str]:
    """Return the pages that a register value references."""
    if not isinstance(value, VersionedValue):
        return frozenset()
    return frozenset(page.key for page in value.memory.pages)
