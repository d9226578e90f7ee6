"""The inboxes of a gateway: one per table that is written to, each with a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from tarn.core.errors import UnavailableError
from tarn.core.producers import OWN_PREFIX
from tarn.core.table_catalog import TableName
from tarn.gateway.inbox import Inbox
from tarn.gateway.key_memory import KeyFiles, KeyMemory
from tarn.gateway.merges import Merges
from tarn.gateway.room import Room
from tarn.gateway.takes import InboxLimits
from tarn.gateway.writes import BusyError
from tarn.ingest.bookkeeper import Bookkeeper
from tarn.ingest.committer import Committer
from tarn.ingest.context import IngestContext

log = structlog.get_logger()

TABLES_MAX = 200
IDLE_S = 300.0
MERGE_LOOK_S = 1.0
"""How often files that may be merged are looked for, in seconds."""


@dataclass(slots=True)
class Open:
    """A table that is written to.

    Attributes:
        inbox: its inbox.
        thread: what runs it.
        used_s: when it was asked for last, on the monotonic clock.
    """

    inbox: Inbox
    thread: threading.Thread
    used_s: float


class Tables:
    """The tables that a gateway writes to. Thread-safe.

    Args:
        context: dependencies of the inboxes.
        files: objects of the lake, for idempotency keys.
        limits: bounds of each inbox.
        tables_max: how many tables may be written to at one time.
    """

    def __init__(
        self,
        context: IngestContext,
        files: KeyFiles,
        *,
        limits: InboxLimits | None = None,
        tables_max: int = TABLES_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._context = context
        self._files = files
        self._limits = limits or InboxLimits()
        self._tables_max = tables_max
        self._clock = clock
        self._own = f"{OWN_PREFIX}{context.new_id()}"
        self._lock = threading.Lock()
        self._open: dict[TableName, Open] = {}
        self._closed = False
        self._room = Room()
        self._ended = threading.Event()
        self._merging = threading.Thread(target=self._merge, name="merges", daemon=True)
        self._merging.start()

    def inbox(self, table: TableName) -> Inbox:
        """The inbox of a table, which exists; opened on first use.

        Raises:
            BusyError: too many tables are written to.
            UnavailableError: the gateway stops.
        """
        with self._lock:
            if self._closed:
                raise UnavailableError("the gateway stops; nothing was written, send it again")
            found = self._open.get(table)
            if found is None or not found.thread.is_alive():
                self._open.pop(table, None)
                self._make_room()
                found = self._opened(table)
                self._open[table] = found
            found.used_s = self._clock()
            return found.inbox

    def waiting(self) -> dict[str, tuple[int, int]]:
        """Table to the number and bytes of the writes that wait."""
        with self._lock:
            return {str(table): one.inbox.waiting for table, one in self._open.items()}

    def close(self, *, wait_s: float) -> bool:
        """Take no more writes, and wait until those that were taken are answered; False if some are not."""
        with self._lock:
            self._closed = True
            open_ = list(self._open.values())
        self._ended.set()
        for one in open_:
            one.inbox.close()
        until_s = self._clock() + wait_s
        for one in open_:
            one.thread.join(max(0.0, until_s - self._clock()))
        self._merging.join(max(0.0, until_s - self._clock()))
        return not any(one.thread.is_alive() for one in open_)

    def _opened(self, table: TableName) -> Open:
        context = self._context

        def make() -> Bookkeeper:
            committer = Committer(context.catalog, table, ports=context.ports, retention=context.retention)
            return Bookkeeper(committer, clock=context.clock)

        bookkeeper = context.bookkeepers.of(table, make)
        inbox = Inbox(
            table,
            context,
            bookkeeper.seat(),
            KeyMemory(self._files, new_name=context.new_id, now_ms=context.ports.now_ms),
            own=self._own,
            limits=self._limits,
            merges=Merges(table, context, bookkeeper.seat(), room=self._room),
            room=self._room,
        )
        thread = threading.Thread(target=inbox.run, name=f"rows-{table}", daemon=True)
        thread.start()
        return Open(inbox=inbox, thread=thread, used_s=self._clock())

    def _merge(self) -> None:
        """Merge small files until `close`; one table after the other, which bounds the memory."""
        while not self._ended.wait(MERGE_LOOK_S):
            with self._lock:
                open_ = list(self._open.values())
            for one in open_:
                if one.inbox.merges is None or self._ended.is_set():
                    continue
                try:
                    one.inbox.merges.run_once()
                except Exception:
                    log.exception("merge broke", table=str(one.inbox.name))

    def _make_room(self) -> None:
        """Close inboxes that nobody used for a while, if there are too many. The lock is held."""
        if len(self._open) < self._tables_max:
            return
        now_s = self._clock()
        for table, one in list(self._open.items()):
            if now_s - one.used_s > IDLE_S and one.inbox.waiting == (0, 0):
                one.inbox.close()
                del self._open[table]
        if len(self._open) >= self._tables_max:
            raise BusyError(
                f"the gateway writes to {len(self._open)} tables, at most {self._tables_max} at one "
                "time; send "
                "it again in some minutes, or to another gateway",
                retry_after_s=60.0,
            )
