"""A catalog whose next answer can be dropped on purpose, or whose caller can be ended, to show what follows.

Only where faults by hand are allowed (`TARN_FAULTS`). The catalog behind it is not touched: it applies the
commit and answers, and the answer goes no further. What is armed is disarmed by its use, or by time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tarn.core.outcome import Unknown
from tarn.core.table_catalog import CommitDone, CommitOutcome, TableCatalog, TableName
from tarn.core.table_state import CommitRequest, Json, TableState, commit_ids

REASON = "the answer was dropped by hand (TARN_FAULTS), after the catalog had applied the commit"


@dataclass(frozen=True, slots=True, kw_only=True)
class LostReply:
    """An answer that was dropped.

    Attributes:
        table: name of the table.
        at_ms: when, in milliseconds since the epoch.
        commit_ids: commits in the snapshot that the catalog had applied.
        snapshot_id: that snapshot.
    """

    table: str
    at_ms: int
    commit_ids: tuple[str, ...]
    snapshot_id: int | None


def lost_of(value: Mapping[str, object]) -> LostReply:
    """A dropped answer from the JSON of `orjson.dumps(lost)`.

    Raises:
        ValueError, KeyError, TypeError: it is none.
    """
    ids, snapshot_id = value["commit_ids"], value["snapshot_id"]
    if not isinstance(ids, list) or not isinstance(snapshot_id, int | None):
        raise TypeError("no lost reply")
    return LostReply(
        table=str(value["table"]),
        at_ms=int(str(value["at_ms"])),
        commit_ids=tuple(map(str, ids)),
        snapshot_id=snapshot_id,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trap:
    until_s: float
    crash: Callable[[], None] | None = None


class Traps:
    """What is armed for the next commit of a table, and what became of it. Thread-safe.

    Args:
        clock: monotonic time in seconds.
        now_ms: wall-clock time in milliseconds since the epoch.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._clock = clock
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._armed: dict[str, _Trap] = {}
        self._hear: Callable[[LostReply], None] = lambda _lost: None

    def on_lost(self, hear: Callable[[LostReply], None]) -> None:
        """Have this called, from any thread, when an answer was dropped."""
        self._hear = hear

    def drop_next(self, table: str, *, within_s: float) -> None:
        """Have the answer to the table's next commit dropped, if it comes in time."""
        self._arm(table, _Trap(until_s=self._clock() + within_s))

    def crash_next(self, table: str, crash: Callable[[], None], *, within_s: float) -> None:
        """Have this called before the table's next commit is sent, if that comes in time; it raises."""
        self._arm(table, _Trap(until_s=self._clock() + within_s, crash=crash))

    def disarm(self, table: str) -> None:
        """Forget what was armed."""
        with self._lock:
            self._armed.pop(table, None)

    def tell(self, lost: LostReply) -> None:
        """Note an answer that was dropped, here or in a process of a writer."""
        self._hear(lost)

    def before(self, table: str) -> None:
        """Called before a commit is sent.

        Raises:
            Exception: what `crash` raises, so that it is not sent.
        """
        with self._lock:
            trap = self._armed.get(table)
            if trap is None or trap.crash is None:
                return
            del self._armed[table]
        if self._clock() < trap.until_s:
            trap.crash()

    def drops(self, table: str, done: CommitDone) -> bool:
        """Whether this answer is dropped, which disarms."""
        with self._lock:
            trap = self._armed.get(table)
            if trap is None or trap.crash is not None:
                return False
            del self._armed[table]
        if self._clock() >= trap.until_s:
            return False
        head = done.state.head or {}
        ids: Sequence[str] = commit_ids(head.get("summary") or {})
        self.tell(
            LostReply(
                table=table, at_ms=self._now_ms(), commit_ids=tuple(ids), snapshot_id=done.state.head_id
            )
        )
        return True

    def _arm(self, table: str, trap: _Trap) -> None:
        with self._lock:
            self._armed[table] = trap


class TrappedCatalog:
    """A `TableCatalog` in front of another.

    Args:
        inner: the catalog.
        traps: what is armed.
    """

    def __init__(self, inner: TableCatalog, traps: Traps) -> None:
        self._inner = inner
        self._traps = traps

    def load(self, table: TableName) -> TableState:
        """See `TableCatalog.load`."""
        return self._inner.load(table)

    def create_namespace(self, namespace: tuple[str, ...]) -> None:
        """See `TableCatalog.create_namespace`."""
        self._inner.create_namespace(namespace)

    def create(self, table: TableName, request: Json) -> TableState:
        """See `TableCatalog.create`."""
        return self._inner.create(table, request)

    def commit(self, table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
        """See `TableCatalog.commit`."""
        self._traps.before(str(table))
        outcome = self._inner.commit(table, request, key=key)
        if isinstance(outcome, CommitDone) and self._traps.drops(str(table), outcome):
            return Unknown(reason=REASON)
        return outcome
