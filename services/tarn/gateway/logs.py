"""The logs of a gateway: one inbox per table that is written to with `durability=log`, each with a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from tarn.core.errors import UnavailableError
from tarn.core.table_catalog import TableName
from tarn.core.table_log import TableLogs
from tarn.gateway.log_inbox import LogInbox
from tarn.gateway.log_judge import LogLimits
from tarn.gateway.room import Room
from tarn.gateway.writes import BusyError
from tarn.ingest.committer import Committer
from tarn.ingest.context import IngestContext

LOGS_MAX = 50
"""Each has a producer of librdkafka, with its threads and connections."""
IDLE_S = 300.0


@dataclass(slots=True)
class _Open:
    inbox: LogInbox
    thread: threading.Thread
    used_s: float


class Logs:
    """The tables whose logs a gateway writes. Thread-safe.

    Args:
        context: dependencies of the inboxes.
        logs: the logs of all tables.
        limits: bounds of each inbox.
        logs_max: how many logs may be written at one time.
    """

    def __init__(
        self,
        context: IngestContext,
        logs: TableLogs,
        *,
        limits: LogLimits | None = None,
        logs_max: int = LOGS_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._context = context
        self._logs = logs
        self._limits = limits or LogLimits()
        self._logs_max = logs_max
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[TableName, _Open] = {}
        self._closed = False
        self._room = Room()

    def inbox(self, table: TableName) -> LogInbox:
        """The inbox of a table's log; opened on first use.

        Raises:
            BusyError: too many logs are written.
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

    def _opened(self, table: TableName) -> _Open:
        context = self._context
        inbox = LogInbox(
            table,
            context,
            Committer(context.catalog, table, ports=context.ports, retention=context.retention),
            self._logs,
            own=context.new_id(),  # not one of the gateway: two names may be of one table, after a rename
            limits=self._limits,
            room=self._room,
        )
        thread = threading.Thread(target=inbox.run, name=f"log-{table}", daemon=True)
        thread.start()
        return _Open(inbox=inbox, thread=thread, used_s=self._clock())

    def _make_room(self) -> None:
        """Close the logs that nobody used for a while, if there are too many. The lock is held."""
        if len(self._open) < self._logs_max:
            return
        now_s = self._clock()
        for table, one in list(self._open.items()):
            if now_s - one.used_s > IDLE_S and one.inbox.waiting == (0, 0):
                one.inbox.close()
                del self._open[table]
        if len(self._open) >= self._logs_max:
            raise BusyError(
                f"the gateway writes the logs of {len(self._open)} tables, at most "
                f"{self._logs_max} at one time; "
                "send it again in some minutes, or with durability=lake",
                retry_after_s=60.0,
            )
