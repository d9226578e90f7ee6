"""A hold: an object that makes the reaper pause, renewed as long as it is needed.

An unrenewed hold expires after `HOLD_MS`, by the store's clock: a killed backup does not stop the reaper for
long.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from tarn.core.errors import TarnError
from tarn.core.reap import HOLD_MS, HOLD_SUFFIX, HOLDS_PREFIX

RENEW_S = HOLD_MS / 1_000 / 5


class Puts(Protocol):
    """Store operations of a hold."""

    def put(self, key: str, data: bytes, *, if_absent: bool = False) -> str:
        """Write a small object; see `ObjectStore.put`."""

    def delete(self, key: str) -> None:
        """Delete an object; see `ObjectStore.delete`."""


@contextmanager
def held(store: Puts, why: str, *, tell: Callable[[str], None], renew_s: float = RENEW_S) -> Iterator[None]:
    """Context manager in which the reaper deletes nothing, except what it had just begun.

    If the store rejects the hold, that is reported and the work continues: whatever is removed meanwhile was
    removed by a commit, and is kept for the reaper's grace period anyway.

    Args:
        store: object store.
        why: reason, part of the key of the hold and its content.
        tell: called with messages for people.
        renew_s: interval of renewals, in seconds.
    """
    key = f"{HOLDS_PREFIX}{why}-{uuid.uuid4().hex}{HOLD_SUFFIX}"
    done = threading.Event()

    def renew(said: bool = False) -> bool:
        try:
            store.put(key, why.encode())
        except TarnError as error:
            if not said:
                tell(
                    f"the reaper could not be paused: {error.message}; what it removes meanwhile may be "
                    "missed"
                )
            return False
        return True

    def keep() -> None:
        renewed = True
        while not done.wait(renew_s):
            renewed = renew(said=not renewed)  # a store that was away for a moment is asked again

    thread = threading.Thread(target=keep, name="hold", daemon=True) if renew() else None
    if thread is not None:
        thread.start()
    try:
        yield
    finally:
        done.set()
        if thread is not None:
            thread.join()
            try:
                store.delete(key)
            except TarnError:
                tell(
                    f"the reaper is paused for up to {HOLD_MS // 60_000} more minutes: {key} was not removed"
                )
