"""Has the reaper pause: an object that it looks for before it deletes, renewed as long as it is needed.

A hold that nobody renews lapses after `HOLD_MS`, by the store's clock: a backup that was killed stops nothing
for long.
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
    """What a hold asks of a store."""

    def put(self, key: str, data: bytes, *, if_absent: bool = False) -> str:
        """Write a small object; see `ObjectStore.put`."""

    def delete(self, key: str) -> None:
        """Remove an object; see `ObjectStore.delete`."""


@contextmanager
def held(store: Puts, why: str, *, tell: Callable[[str], None], renew_s: float = RENEW_S) -> Iterator[None]:
    """Within it the reaper deletes nothing, but what it began just before.

    Where the store does not take the hold, that is told and the work goes on: what is removed meanwhile was
    removed by a commit, and stays for the reaper's grace besides.
    """
    key = f"{HOLDS_PREFIX}{why}-{uuid.uuid4().hex}{HOLD_SUFFIX}"
    done = threading.Event()

    def renew() -> bool:
        try:
            store.put(key, why.encode())
        except TarnError as error:
            tell(f"the reaper could not be paused: {error.message}; what it removes meanwhile may be missed")
            return False
        return True

    def keep() -> None:
        while not done.wait(renew_s):
            if not renew():
                return

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
