"""The inboxes of a gateway: one per table, each with a thread of its own; those nobody uses give way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from tarn.core.errors import UnavailableError
from tarn.core.table_catalog import TableName
from tarn.gateway.writes import BusyError

IDLE_S = 300.0
"""An inbox that was not asked for this long may be closed for another, in seconds."""
FULL_RETRY_S = 60.0


class Runs(Protocol):
    """What an inbox is to those who open and close it."""

    @property
    def waiting(self) -> tuple[int, int]:
        """Number and bytes of the writes that wait."""

    def run(self) -> None:
        """Work until `close`; whatever happens, each write is answered."""

    def close(self) -> None:
        """Take no more writes."""


InboxT = TypeVar("InboxT", bound=Runs)


@dataclass(slots=True)
class _Open(Generic[InboxT]):
    inbox: InboxT
    thread: threading.Thread
    used_s: float


class Inboxes(Generic[InboxT]):
    """Inboxes of one kind by their table. Thread-safe.

    Args:
        make: makes the inbox of a table; the registry is locked meanwhile.
        kind: begins the names of their threads.
        open_max: how many may be open at one time.
        full: why one more is refused, with `{open}` and `{most}`.
        clock: monotonic time in seconds.
    """

    def __init__(
        self,
        make: Callable[[TableName], InboxT],
        *,
        kind: str,
        open_max: int,
        full: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make = make
        self._kind = kind
        self._open_max = open_max
        self._full = full
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[TableName, _Open[InboxT]] = {}
        self._closed = False

    def of(self, table: TableName) -> InboxT:
        """The inbox of a table; opened on first use, and again if its thread has ended.

        Raises:
            BusyError: too many are open, and each is in use.
            UnavailableError: the gateway stops.
        """
        with self._lock:
            if self._closed:
                raise UnavailableError("the gateway stops; nothing was written, send it again")
            found = self._open.get(table)
            if found is None or not found.thread.is_alive():
                self._open.pop(table, None)
                self._make_room()
                found = self._open[table] = self._opened(table)
            found.used_s = self._clock()
            return found.inbox

    def all(self) -> dict[TableName, InboxT]:
        """Those that are open, by their table."""
        with self._lock:
            return {table: one.inbox for table, one in self._open.items()}

    def close(self, *, wait_s: float) -> bool:
        """Take no more writes, and wait until those that were taken are answered; False if some are not."""
        with self._lock:
            self._closed = True
            open_ = list(self._open.values())
        for one in open_:
            one.inbox.close()
        until_s = self._clock() + wait_s
        for one in open_:
            one.thread.join(max(0.0, until_s - self._clock()))
        return not any(one.thread.is_alive() for one in open_)

    def _opened(self, table: TableName) -> _Open[InboxT]:
        inbox = self._make(table)
        thread = threading.Thread(target=inbox.run, name=f"{self._kind}-{table}", daemon=True)
        thread.start()
        return _Open(inbox=inbox, thread=thread, used_s=self._clock())

    def _make_room(self) -> None:
        """Close those that nobody used for a while, if there are too many. The lock is held.

        Raises:
            BusyError: there still are.
        """
        if len(self._open) < self._open_max:
            return
        now_s = self._clock()
        for table, one in list(self._open.items()):
            if now_s - one.used_s > IDLE_S and one.inbox.waiting == (0, 0):
                one.inbox.close()
                del self._open[table]
        if len(self._open) >= self._open_max:
            raise BusyError(
                self._full.format(open=len(self._open), most=self._open_max), retry_after_s=FULL_RETRY_S
            )
