"""The tables of a gateway: an inbox per table that is written to with `durability=lake`, and its merges."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

from tarn.core.errors import OutcomeUnknownError, TarnError
from tarn.core.producers import OWN_PREFIX
from tarn.core.table_catalog import TableName
from tarn.gateway.inbox import Inbox
from tarn.gateway.inboxes import Inboxes
from tarn.gateway.key_memory import KeyFiles, KeyMemory
from tarn.gateway.merges import Merges
from tarn.gateway.room import Room
from tarn.gateway.takes import InboxLimits
from tarn.gateway.uploads import Sending
from tarn.ingest.bookkeeper import Bookkeeper
from tarn.ingest.committer import Committer
from tarn.ingest.context import IngestContext

log = structlog.get_logger()

TABLES_MAX = 200
MERGE_LOOK_S = 1.0
"""How often files that may be merged are looked for, in seconds."""
FULL = (
    "the gateway writes to {open} tables, at most {most} at one time; "
    "send it again in some minutes, or to another gateway"
)


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
        self._clock = clock
        self._own = f"{OWN_PREFIX}{context.new_id()}"
        self._room = Room()
        self._inboxes = Inboxes(self._made, kind="rows", open_max=tables_max, full=FULL, clock=clock)
        self._ended = threading.Event()
        self._merging = threading.Thread(target=self._merge, name="merges", daemon=True)
        self._merging.start()

    def inbox(self, table: TableName) -> Inbox:
        """The inbox of a table, which exists; see `Inboxes.of`, also for what it raises."""
        return self._inboxes.of(table)

    def waiting(self) -> dict[str, tuple[int, int]]:
        """Table to the number and bytes of the writes that wait."""
        return {str(table): one.waiting for table, one in self._inboxes.all().items()}

    def close(self, *, wait_s: float) -> bool:
        """Merge no more, and see `Inboxes.close`."""
        self._ended.set()
        until_s = self._clock() + wait_s
        closed = self._inboxes.close(wait_s=wait_s)
        self._merging.join(max(0.0, until_s - self._clock()))
        return closed

    def _made(self, table: TableName) -> Inbox:
        context = self._context

        def make() -> Bookkeeper:
            committer = Committer(context.catalog, table, ports=context.ports, retention=context.retention)
            return Bookkeeper(committer, clock=context.clock)

        # An inbox may be closed while its commit is under way. The next one has the same bookkeeper, so it
        # commits only when that outcome is known: both give numbers under the id of the process.
        bookkeeper, sending = context.bookkeepers.of(table, make), Sending()
        return Inbox(
            table,
            context,
            bookkeeper.seat(in_doubt=_in_doubt, on_wait=sending.look, require_going=sending.require_going),
            KeyMemory(self._files, new_name=context.new_id, now_ms=context.ports.now_ms),
            own=self._own,
            limits=self._limits,
            merges=Merges(table, context, bookkeeper.seat()),
            room=self._room,
            sending=sending,
        )

    def _merge(self) -> None:
        """Merge small files until `close`; one table after the other, which bounds the memory (ADR 47).

        Where there was something to merge there may be more: a busy table adds files as fast as they merge.
        """
        merged = False
        while not self._ended.wait(0.0 if merged else MERGE_LOOK_S):
            merged = False
            for inbox in self._inboxes.all().values():
                if inbox.merges is None or self._ended.is_set():
                    continue
                try:
                    merged |= inbox.merges.run_once()
                except Exception:
                    log.exception("merge broke", table=str(inbox.name))


def _in_doubt(error: Exception) -> Exception:
    """What is answered instead of an error that came after a request whose outcome is unknown."""
    if not isinstance(error, TarnError):
        return error
    return OutcomeUnknownError(
        f"{error.message}; before that a commit with the rows was sent and not answered, so they may be "
        "there: repeat the write with the same headers, or without any look before you send it again"
    )
