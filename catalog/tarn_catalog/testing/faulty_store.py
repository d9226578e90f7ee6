"""A store wrapper with fault injection, for tests of the catalog and of code built on it.

LOST_REPLY  the write is done, the response is lost
RESET       the connection breaks before anything is done
LATE        no response, and the write arrives later: at `settle()` or after `late_ops` more operations
            (a delete of many keys: no response, and every second key is gone)
CONFLICT    refused although the precondition holds (S3's 409 ConditionalRequestConflict)
BUSY        503, nothing done
BUSY_DONE   503 from a proxy, although the write was done
DENIED      403
CRASH       the process dies before anything is done
CRASH_DONE  the process dies right after the operation was done
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from tarn.core.object_store import (
    Listed,
    ReapedStore,
    StoreBusyError,
    Stored,
    StoreDeniedError,
    StoreOutcomeUnknownError,
    StoreRefusedError,
    StoreUnavailableError,
)


class Fault(Enum):
    """Kinds of faults; see the module."""

    LOST_REPLY = auto()
    RESET = auto()
    LATE = auto()
    CONFLICT = auto()
    BUSY = auto()
    BUSY_DONE = auto()
    DENIED = auto()
    CRASH = auto()
    CRASH_DONE = auto()


ANSWERS = (
    Fault.LOST_REPLY,
    Fault.RESET,
    Fault.LATE,
    Fault.CONFLICT,
    Fault.BUSY,
    Fault.BUSY_DONE,
    Fault.DENIED,
)
"""The faults that a process survives: all but crashes."""


class Crash(BaseException):
    """The simulated death of the process: a BaseException, so that no error handling runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One store operation.

    Attributes:
        kind: `get`, `put`, `delete` or `list`.
        key: the key, or the prefix of a `list`.
        number: ordinal among the operations of this kind, from 1.
    """

    kind: str
    key: str
    number: int


Plan = Callable[[Op], Fault | None]


def no_faults(_: Op) -> Fault | None:
    """Return None: the plan of a store without faults."""
    return None


class FaultyStore:
    """A store with injected faults.

    Args:
        inner: the wrapped store.
        plan: returns the fault of an operation, or None; called once per operation, on its thread.
        late_ops: after how many operations a late write arrives; None: at `settle()` only.
    """

    def __init__(self, inner: ReapedStore, plan: Plan = no_faults, *, late_ops: int | None = None) -> None:
        self.inner = inner
        self.plan = plan
        self.seen: list[Op] = []
        self._late_ops = late_ops
        self._late: list[tuple[int, Callable[[], str]]] = []
        self._counts: dict[str, int] = {}
        self._lock = threading.RLock()

    def settle(self) -> None:
        """Apply all late writes; those whose precondition no longer holds change nothing."""
        with self._lock:
            late, self._late = self._late, []
        for _, write in late:
            self._arrive(write)

    @staticmethod
    def _arrive(write: Callable[[], str]) -> None:
        try:
            write()
        except StoreRefusedError:
            return

    def _next(self, kind: str, key: str) -> Fault | None:
        with self._lock:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            op = Op(kind=kind, key=key, number=self._counts[kind])
            self.seen.append(op)
            now = len(self.seen)
            due = [write for at, write in self._late if at <= now]
            if due:
                self._late = [(at, write) for at, write in self._late if at > now]
        # Outside the lock: a plan may block, to order the operations of several threads.
        fault = self.plan(op)
        for write in due:
            self._arrive(write)
        return fault

    def get(self, key: str, *, known: Stored | None = None) -> Stored | None:
        """See `ObjectStore.get`."""
        fault = self._next("get", key)
        if fault in (Fault.CRASH, Fault.CRASH_DONE):
            raise Crash(f"read {key}")
        if fault is Fault.DENIED:
            raise StoreDeniedError(f"may not read {key}: a fault on purpose")
        if fault is not None:
            raise StoreUnavailableError(f"could not read {key}: a fault on purpose ({fault.name})")
        return self.inner.get(key, known=known)

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None) -> str:
        """See `ObjectStore.put`."""

        def write() -> str:
            return self.inner.put(key, data, if_absent=if_absent, if_match=if_match)

        fault = self._next("put", key)
        if fault is None:
            return write()
        if fault is Fault.CRASH_DONE:
            self._arrive(write)
        if fault in (Fault.CRASH, Fault.CRASH_DONE):
            raise Crash(f"write {key}")
        text = f"write of {key}: a fault on purpose ({fault.name})"
        if fault is Fault.CONFLICT:
            raise StoreRefusedError(text)
        if fault is Fault.BUSY:
            raise StoreBusyError(text)
        if fault is Fault.DENIED:
            raise StoreDeniedError(text)
        if fault in (Fault.LOST_REPLY, Fault.BUSY_DONE):
            self._arrive(write)
            raise StoreBusyError(text) if fault is Fault.BUSY_DONE else StoreOutcomeUnknownError(text)
        if fault is Fault.LATE:
            with self._lock:
                at = len(self.seen) + self._late_ops if self._late_ops is not None else 1 << 62
                self._late.append((at, write))
        raise StoreOutcomeUnknownError(text)

    def delete(self, key: str) -> None:
        """See `ObjectStore.delete`."""
        fault = self._next("delete", key)
        if fault is Fault.CRASH_DONE:
            self.inner.delete(key)
        if fault in (Fault.CRASH, Fault.CRASH_DONE):
            raise Crash(f"delete {key}")
        if fault is not None:
            raise StoreOutcomeUnknownError(f"delete of {key}: a fault on purpose")
        self.inner.delete(key)

    def delete_many(self, keys: Sequence[str]) -> None:
        """See `ReapedStore.delete_many`."""
        if not keys:
            return
        fault = self._next("delete", keys[0])
        done = {None: keys, Fault.CRASH_DONE: keys, Fault.LOST_REPLY: keys, Fault.LATE: keys[::2]}
        self.inner.delete_many(done.get(fault, []))
        if fault in (Fault.CRASH, Fault.CRASH_DONE):
            raise Crash(f"delete {len(keys)} objects")
        if fault is not None:
            raise StoreOutcomeUnknownError(f"delete of {len(keys)} objects: a fault on purpose")

    def list(self, prefix: str, *, after: str | None = None) -> Iterator[Listed]:
        """See `ObjectStore.list`."""
        fault = self._next("list", prefix)
        if fault in (Fault.CRASH, Fault.CRASH_DONE):
            raise Crash(f"list {prefix}")
        if fault is not None:
            raise StoreUnavailableError(f"could not list {prefix}: a fault on purpose")
        return self.inner.list(prefix, after=after)
