"""What the catalog's operations share: the register, immutable objects and their cache, time and ids."""

from __future__ import annotations

import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import orjson

from tarn.adapters.store import ObjectStore, Stored
from tarn.core.errors import CorruptStateError, InvalidError, OutcomeUnknownError
from tarn.core.naming import KEY_PAGES_PREFIX, WarehouseLayout
from tarn.core.outcome import Outcome
from tarn_catalog.metadata.schemas import Json
from tarn_catalog.state.pointer import Value
from tarn_catalog.state.register import Register, RetryPolicy, write_once
from tarn_catalog.state.request_history import REMEMBERED_MS, CompletedRequest, RequestHistory, compact

CACHE_BYTES_MAX = 64 * 1024 * 1024
# Measured on CPython 3.11: JSON of tables with 1 to 2,000 snapshots and what orjson makes of it take 3.9 to
# 5.4 times its length together, the most where it is smallest.
PARSED_FACTOR = 4
ENTRY_BYTES = 4 * 1024
# Of one table: the current version, and the one that is being written, which may lose its race.
VERSIONS_MAX = 2
MEMO_BYTES = 700
LOCKS = 256
LOCK_WAIT_MS_MAX = 5_000

T = TypeVar("T")
V = TypeVar("V", bound=Value)


class KeyReusedError(InvalidError):
    """An idempotency key came again with another request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdempotencyKey:
    """How a client marks a request that it may send again (invariant I4).

    Attributes:
        key: a UUID version 7.
        what: the operation and a digest of the payload.
    """

    key: str
    what: str

    @property
    def minted_ms(self) -> int:
        """When the client made the key, by its own clock."""
        return uuid.UUID(self.key).int >> 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Versioned(Generic[T]):
    """A register value and its entity tag.

    Attributes:
        value: the value.
        etag: what a swap of it must match.
    """

    value: T
    etag: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """Table metadata as stored and as parsed.

    Attributes:
        location: where it is.
        raw: the bytes.
        parsed: the JSON; never changed in place.
    """

    location: str
    raw: bytes
    parsed: Json


def held_bytes(json_bytes: int) -> int:
    """What JSON of this length takes in memory, kept with what it was parsed to."""
    return PARSED_FACTOR * json_bytes + ENTRY_BYTES


class Cache:
    """Objects by key, the least lately used ones dropped first."""

    def __init__(self, bytes_max: int = CACHE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, tuple[Any, int]] = OrderedDict()

    @property
    def held_bytes(self) -> int:
        """What all objects weigh."""
        return self._bytes

    def get(self, key: str) -> Any | None:
        """The object, or None."""
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                return None
            self._entries.move_to_end(key)
            return found[0]

    def put(self, key: str, value: object, size_bytes: int) -> None:
        """Keep an object that weighs about so much."""
        with self._lock:
            old = self._entries.pop(key, None)
            self._bytes += size_bytes - (old[1] if old else 0)
            self._entries[key] = (value, size_bytes)
            while self._bytes > self._bytes_max and len(self._entries) > 1:
                _, (_, dropped) = self._entries.popitem(last=False)
                self._bytes -= dropped

    def drop(self, key: str) -> None:
        """Forget the object."""
        with self._lock:
            old = self._entries.pop(key, None)
            self._bytes -= old[1] if old else 0


class CatalogContext:
    """The parts that every operation of the catalog works with.

    Args:
        store: where everything is.
        roots: how keys and locations meet.
        patience: of register writes.
        now_ms: milliseconds since the epoch.
        new_uuid: a fresh UUID as text.
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
        self.roots = roots
        self.patience = patience or RetryPolicy()
        self.register = Register(store, self.patience)
        self.now_ms = now_ms
        self.new_uuid = new_uuid
        self.cache = Cache()
        self._locks = tuple(threading.Lock() for _ in range(LOCKS))

    @contextmanager
    def turn(self, key: str) -> Iterator[None]:
        """Take turns on a key within this process.

        This only saves lost races; nothing depends on it, so it gives up waiting after a while.
        """
        lock = self._locks[hash(key) % LOCKS]
        held = lock.acquire(timeout=LOCK_WAIT_MS_MAX / 1000)
        try:
            yield
        finally:
            if held:
                lock.release()

    def read(self, key: str, load: Callable[[bytes, str], V], *, keep: bool = False) -> Versioned[V] | None:
        """The register value of a key, or None.

        The store is asked every time. Of a value that is remembered and has not changed it sends no bytes,
        and nothing is parsed.

        Args:
            key: the key.
            load: parses it.
            keep: whether to remember it. Not what a listing reads: that would push out everything else.

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
        """The register value of a key as this process last saw it; others may have changed it since."""
        found = self.cache.get(key)
        return found if isinstance(found, Versioned) else None

    def remember(self, key: str, held: Versioned[V], size_bytes: int) -> None:
        """Keep a register value that was read or written, unless a later one is known.

        Writers build on it unread: its entity tag must be its own, never a later value's.
        """
        current = self.known(key)
        if current is None or current.value.version <= held.value.version:
            self.cache.put(key, held, size_bytes)

    def write(self, key: str, value: V, *, over: Versioned[V] | None) -> tuple[V, Outcome]:
        """Create the key, or swap the value `over`. The value written, and the outcome."""
        if value.memory.overflow():
            value = value.with_memory(self._spill(value))
        load = type(value).load

        def is_mine(data: bytes) -> bool | None:
            found: Value = load(data, key)
            return found.memory.wrote(value.nonce, value.version)

        data = value.dump()
        if over is None:
            return value, self.register.create(key, data, is_mine=is_mine)
        return value, self.register.swap(key, data, if_match=over.etag, is_mine=is_mine)

    def repeated(self, memory: RequestHistory, repeat: IdempotencyKey | None) -> bool:
        """Whether this very request was carried out before.

        Raises:
            KeyReusedError: the key was used for another request.
            OutcomeUnknownError: it was not found, and is so old that it may have been forgotten.
        """
        if repeat is None:
            return False
        done = memory.find(repeat.key, self._read_page)
        if done is not None:
            if done.what != repeat.what:
                raise KeyReusedError(
                    f"The idempotency key {repeat.key} was used for another request; make a new key for "
                    "every payload",
                    key=repeat.key,
                )
            return True
        age_ms = self.now_ms() - repeat.minted_ms
        if age_ms > REMEMBERED_MS:
            raise OutcomeUnknownError(
                f"The idempotency key {repeat.key} is {age_ms // 1000} s old, keys are remembered for "
                f"{REMEMBERED_MS // 1000} s: it cannot be told whether it was used; load the table and look "
                "for your change (and check the clocks if the key is new)",
                key=repeat.key,
                age_ms=age_ms,
            )
        return False

    def metadata(self, location: str) -> Metadata:
        """The table metadata at a location.

        Raises:
            CorruptStateError: it is not there or no JSON.
            UnavailableError: the store did not answer.
        """
        for found in self._versions(location):
            if found.location == location:
                return found
        stored = self.store.get(self.roots.key(location))
        if stored is None:
            raise CorruptStateError(
                f"The metadata file {location} is missing; restore it from a backup", location=location
            )
        try:
            parsed = orjson.loads(stored.data)
        except orjson.JSONDecodeError as e:
            raise CorruptStateError(
                f"The metadata file {location} is no JSON: {e}; restore it from a backup", location=location
            ) from e
        return self._cached(Metadata(location=location, raw=stored.data, parsed=parsed))

    def write_metadata(self, location: str, parsed: Json) -> Metadata:
        """Store table metadata at a location of its own.

        Raises:
            ConflictError: something else is there.
            UnavailableError: the store did not take it; nothing was changed.
        """
        raw = orjson.dumps(parsed)
        write_once(self.store, self.roots.key(location), raw, patience=self.patience)
        return self._cached(Metadata(location=location, raw=raw, parsed=parsed))

    def _versions(self, location: str) -> tuple[Metadata, ...]:
        """The versions of a table that are remembered, the newest first."""
        found: tuple[Metadata, ...] = self.cache.get(_folder(location)) or ()
        return found

    def _cached(self, metadata: Metadata) -> Metadata:
        # By table, not by location: what a commit has replaced would stay until something pushed it out.
        others = [found for found in self._versions(metadata.location) if found.location != metadata.location]
        kept = (metadata, *others[: VERSIONS_MAX - 1])
        size = sum(held_bytes(len(version.raw)) for version in kept)
        self.cache.put(_folder(metadata.location), kept, size)
        return metadata

    def _spill(self, value: Value) -> RequestHistory:
        return compact(
            value.memory,
            now_ms=self.now_ms(),
            new_key=lambda: f"{KEY_PAGES_PREFIX}{value.uuid}/{self.new_uuid()}.json",
            read_page=self._read_page,
            write_page=self._write_page,
        )

    def _read_page(self, key: str) -> tuple[CompletedRequest, ...]:
        found = self.cache.get(key)
        if isinstance(found, tuple):
            return found
        stored = self.store.get(key)
        if stored is None:
            raise CorruptStateError(f"The page of keys {key} is missing; restore it from a backup", key=key)
        page = tuple(CompletedRequest.from_json(row) for row in orjson.loads(stored.data))
        self.cache.put(key, page, held_bytes(len(stored.data)))
        return page

    def _write_page(self, key: str, entries: tuple[CompletedRequest, ...]) -> None:
        data = orjson.dumps([done.to_json() for done in entries])
        write_once(self.store, key, data, patience=self.patience)
        self.cache.put(key, entries, held_bytes(len(data)))


def _folder(location: str) -> str:
    """Where a table's metadata files are: what its versions have in common."""
    return location.rpartition("/")[0]
