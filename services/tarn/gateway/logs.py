"""The logs of a gateway: one inbox per table that is written to with `durability=log`."""

from __future__ import annotations

import time
from collections.abc import Callable

from tarn.core.table_catalog import TableName
from tarn.core.table_log import TableLogs
from tarn.gateway.inboxes import Inboxes
from tarn.gateway.log_inbox import LogInbox
from tarn.gateway.log_judge import LogLimits
from tarn.gateway.room import Room
from tarn.ingest.committer import Committer
from tarn.ingest.context import IngestContext

LOGS_MAX = 50
"""Each has a producer of librdkafka, with its threads and connections."""
FULL = (
    "the gateway writes the logs of {open} tables, at most {most} at one time; "
    "send it again in some minutes, or with durability=lake"
)


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
        self._room = Room()
        self._inboxes = Inboxes(self._made, kind="log", open_max=logs_max, full=FULL, clock=clock)

    def inbox(self, table: TableName) -> LogInbox:
        """The inbox of a table's log; see `Inboxes.of`, also for what it raises."""
        return self._inboxes.of(table)

    def close(self, *, wait_s: float) -> bool:
        """See `Inboxes.close`."""
        return self._inboxes.close(wait_s=wait_s)

    def _made(self, table: TableName) -> LogInbox:
        context = self._context
        return LogInbox(
            table,
            context,
            Committer(context.catalog, table, ports=context.ports, retention=context.retention),
            self._logs,
            own=context.new_id(),  # not one of the gateway: two names may be of one table, after a rename
            limits=self._limits,
            room=self._room,
        )
