"""The pages of `state.request_history` as objects: what is remembered of them, and their removal."""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterable
from hashlib import blake2b
from itertools import islice
from typing import Any, Protocol

import orjson
import structlog

from tarn.core.digests import digest
from tarn.core.errors import CorruptStateError, TarnError
from tarn.core.naming import KEY_PAGES_PREFIX
from tarn.core.object_store import ObjectStore
from tarn_catalog.state.register import RetryPolicy, write_once
from tarn_catalog.state.request_history import CompletedRequest, PageEntries, page_of

log = structlog.get_logger()

KEPT_MS = 15 * 60 * 1000
"""How long a page stays that a register value no longer references: others may be about to read it."""
REMOVED_TOGETHER_MAX = 20
"""Pages that one write removes at most: far more than it leaves on average."""
LISTED_MAX = 1_000
LEFT_MAX = 10_000
PAGE_BYTES = 300
DIGEST_BYTES = 8


class Memory(Protocol):
    """What a process remembers, bounded by bytes; see `state.context.Cache`."""

    def get(self, key: str) -> Any | None:
        """Return what is remembered under a key, or None."""
        ...

    def put(self, key: str, value: object, size_bytes: int) -> None:
        """Remember something that takes so much memory."""
        ...

    def drop(self, key: str) -> None:
        """Forget what is remembered under a key."""
        ...


class KeyPages:
    """Pages in the store. Of each only digests of its keys stay in memory, eight bytes a key. Thread-safe.

    Args:
        store: the object store of the catalog.
        cache: where the digests are remembered.
        patience: retry policy of writes.
        now_ms: wall clock, milliseconds since the epoch.
        new_uuid: returns a new UUID as text.
    """

    def __init__(
        self,
        store: ObjectStore,
        cache: Memory,
        *,
        patience: RetryPolicy,
        now_ms: Callable[[], int],
        new_uuid: Callable[[], str],
    ) -> None:
        self._store = store
        self._cache = cache
        self._patience = patience
        self._now_ms = now_ms
        self._new_uuid = new_uuid
        self._lock = threading.Lock()
        self._left: deque[tuple[int, str]] = deque(maxlen=LEFT_MAX)
        self._looked: dict[str, str | None] = {}

    def may_have(self, page: str, key: str) -> bool:
        """See `Lookup`.

        Raises:
            CorruptStateError: the page is missing.
            UnavailableError: the store did not answer.
        """
        digests = self._cache.get(page)
        if not isinstance(digests, array):
            digests = self._remember(page, self.read(page))
        wanted = digest(key)
        at = bisect_left(digests, wanted)
        return at < len(digests) and digests[at] == wanted

    def read(self, page: str) -> PageEntries:
        """See `Lookup`.

        Raises:
            CorruptStateError: the page is missing.
            UnavailableError: the store did not answer.
        """
        stored = self._store.get(page)
        if stored is None:
            raise CorruptStateError(f"The page of keys {page} is missing; restore it from a backup", key=page)
        return page_of(CompletedRequest.from_json(row) for row in orjson.loads(stored.data))

    def new_key(self, register_key: str) -> str:
        """Return a new object key for a page of a register value."""
        return f"{_folder(register_key)}{self._new_uuid()}.json"

    def write(self, page: str, entries: tuple[CompletedRequest, ...]) -> None:
        """Write a page; it is complete when this returns."""
        write_once(
            self._store, page, orjson.dumps([done.to_json() for done in entries]), patience=self._patience
        )
        self._remember(page, page_of(entries))

    def _remember(self, page: str, keys: Iterable[str]) -> array[int]:
        digests = array("Q", sorted(map(digest, keys)))
        self._cache.put(page, digests, PAGE_BYTES + DIGEST_BYTES * len(digests))
        return digests

    # -- removal

    def leave(self, register_key: str, before: Collection[str], after: Collection[str]) -> None:
        """Remove pages that no register value has referenced for long; called after a value got other pages.

        What earlier processes left is looked for as well, up to `LISTED_MAX` pages each time. What cannot be
        removed stays for a later call; nothing depends on it.

        Args:
            register_key: the key of the value.
            before: the pages that it referenced.
            after: the pages that it references now.
        """
        now_ms = self._now_ms()
        for page in before:
            if page not in after:
                self._cache.drop(page)
                self._left.append((now_ms, page))
        try:
            self._look(register_key, before, after, now_ms)
            for _ in range(REMOVED_TOGETHER_MAX):
                if not self._remove_one(now_ms):
                    break
        except TarnError as e:
            log.info("old pages of keys stay; they are removed later", key=register_key, reason=e.message)

    def _remove_one(self, now_ms: int) -> bool:
        """Remove the page that was left first, if it is time; return whether there may be more.

        Raises:
            TarnError: the store does not remove it; it is tried again later.
        """
        with self._lock:  # other tables are written at the same time
            if not self._left or now_ms - self._left[0][0] < KEPT_MS:
                return False
            at_ms, page = self._left.popleft()
        try:
            self._store.delete(page)
        except BaseException:
            self._left.appendleft((at_ms, page))
            raise
        return True

    def _look(self, register_key: str, before: Collection[str], after: Collection[str], now_ms: int) -> None:
        """Find pages of a value that it does not reference, and that are too old to be on their way into it.

        The value was just written, with a new page, whose time is the store's: a write that began before it
        and would reference an unreferenced page cannot succeed.
        """
        folder = _folder(register_key)
        last = self._looked.get(folder, folder)
        new = next((page for page in after if page not in before), None)
        written = self._store.get(new) if new is not None and last is not None else None
        if written is None:
            return
        found = list(islice(self._store.list(folder, after=last), LISTED_MAX))
        for one in found:
            known = one.key in before or one.key in after
            if not known and written.modified_ms - one.modified_ms >= KEPT_MS:
                self._left.append((now_ms, one.key))
        self._looked[folder] = found[-1].key if len(found) == LISTED_MAX else None


def _folder(register_key: str) -> str:
    """Return the prefix of the pages of one register value, which no other value references."""
    return f"{KEY_PAGES_PREFIX}{blake2b(register_key.encode(), digest_size=16).hexdigest()}/"
