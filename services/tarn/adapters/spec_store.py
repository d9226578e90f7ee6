"""Declared ingestors in the object store: one object each, changed by conditional PUT only."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from tarn.core.control.declared import (
    SPECS_PREFIX,
    Declared,
    Stamp,
    finalized,
    is_name,
    name_of,
    spec_key,
    status_key,
)
from tarn.core.control.registry import SpecEntry
from tarn.core.errors import CorruptStateError, InvalidSpecError, NotFoundError, OutcomeUnknownError
from tarn.core.object_store import (
    ObjectStore,
    StoreBusyError,
    Stored,
    StoreOutcomeUnknownError,
    StoreRefusedError,
)

ATTEMPTS_MAX = 8
OBJECT_BYTES_MAX = 4 << 20
"""Size of an object that is read; that of a spec of 256 KiB, with the spaces of its JSON, fits."""
WAIT_S = 0.05
WAIT_S_MAX = 2.0


@dataclass(slots=True)
class SpecStore:
    """A `SpecRegistry` over an object store.

    Args:
        store: the object store.
        now_ms: wall-clock time in milliseconds since the epoch.
        new_id: generates a unique id.
        sleep: waits for a number of seconds.
    """

    store: ObjectStore
    now_ms: Callable[[], int]
    new_id: Callable[[], str]
    sleep: Callable[[float], None] = time.sleep

    def list(self, known: dict[str, SpecEntry] | None = None) -> dict[str, SpecEntry]:
        """See `SpecRegistry.list`."""
        found: dict[str, SpecEntry] = {}
        for listed in self.store.list(SPECS_PREFIX):
            name = name_of(listed.key)
            if name is None:
                continue
            before = (known or {}).get(name)
            if before is not None and before.etag == listed.etag:
                found[name] = before
                continue
            if listed.size_bytes > OBJECT_BYTES_MAX:
                found[name] = SpecEntry(
                    name=name, etag=listed.etag, error=_too_large(name, listed.size_bytes)
                )
                continue
            stored = self.store.get(listed.key)
            if stored is not None:
                found[name] = _entry(name, stored)
        return found

    def get(self, name: str) -> Declared | None:
        """See `SpecRegistry.get`."""
        stored = self.store.get(spec_key(name)) if is_name(name) else None
        return None if stored is None else Declared.from_bytes(stored.data, name=name)

    def change(
        self, name: str, make: Callable[[Declared | None, Stamp], Declared], *, replace: bool = False
    ) -> Declared:
        """See `SpecRegistry.change`."""
        if not is_name(name):
            raise NotFoundError(f"there is no ingestor {name!r}; scripts/tarn get lists those that there are")
        mine: set[str] = set()
        reason = ""
        for attempt in range(1, ATTEMPTS_MAX + 1):
            stored = self.store.get(spec_key(name))
            found = None if stored is None else _read(name, stored, replace=replace)
            if found is not None and found.nonce in mine:
                return found
            stamp = Stamp(now_ms=self.now_ms(), uid=self.new_id(), nonce=self.new_id())
            made = make(found, stamp)
            if found is not None and made is found:
                return found
            data = made.to_bytes()
            if len(data) > OBJECT_BYTES_MAX:
                raise InvalidSpecError(
                    f"the spec of {name} takes {len(data)} bytes as it is stored, at most {OBJECT_BYTES_MAX};"
                    " make it shorter",
                    ingestor=name,
                )
            mine.add(stamp.nonce)
            try:
                if stored is None:
                    self.store.put(spec_key(name), data, if_absent=True)
                else:
                    self.store.put(spec_key(name), data, if_match=stored.etag)
                return made
            except (StoreRefusedError, StoreBusyError, StoreOutcomeUnknownError) as e:
                # Written by somebody else meanwhile, or by this call: the object says which.
                reason = e.message
                self.sleep(min(WAIT_S_MAX, WAIT_S * 2 ** (attempt - 1)))
        raise OutcomeUnknownError(
            f"the store did not say in {ATTEMPTS_MAX} attempts whether the spec of {name} is stored; look "
            f"with scripts/tarn describe {name}, and repeat the command: it changes nothing twice; the last "
            f"time: {reason}",
            ingestor=name,
        )

    def finalize(self, name: str, uid: str) -> None:
        """See `SpecRegistry.finalize`."""

        def make(found: Declared | None, stamp: Stamp) -> Declared:
            if found is None:
                raise _GoneError
            return finalized(found, stamp=stamp) if found.uid == uid and found.deleting else found

        try:
            self.change(name, make)
        except _GoneError:
            return

    def put_status(self, name: str, data: bytes) -> None:
        """See `SpecRegistry.put_status`."""
        self.store.put(status_key(name), data)

    def status(self, name: str) -> bytes | None:
        """See `SpecRegistry.status`."""
        stored = self.store.get(status_key(name))
        return None if stored is None else stored.data


class _GoneError(Exception):
    """The object is not there: there is nothing to finalize."""


def _too_large(name: str, size_bytes: int) -> CorruptStateError:
    return CorruptStateError(
        f"{spec_key(name)} is not the spec of an ingestor (it has {size_bytes} bytes, more than "
        f"{OBJECT_BYTES_MAX}); remove the object, or apply the spec again with --replace",
        key=spec_key(name),
    )


def _entry(name: str, stored: Stored) -> SpecEntry:
    try:
        return SpecEntry(name=name, etag=stored.etag, declared=Declared.from_bytes(stored.data, name=name))
    except CorruptStateError as e:
        return SpecEntry(name=name, etag=stored.etag, error=e)


def _read(name: str, stored: Stored, *, replace: bool) -> Declared | None:
    """The object; None for one that is unreadable and is to be replaced.

    Raises:
        CorruptStateError: it is unreadable.
    """
    try:
        return Declared.from_bytes(stored.data, name=name)
    except CorruptStateError:
        if replace:
            return None
        raise
