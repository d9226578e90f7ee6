"""The commit of a stream that has nothing to add: its watermark moved, or events about it were sent (I11)."""

from __future__ import annotations

from dataclasses import dataclass

from tarn.core import watermark
from tarn.core.completion import Announced, OpenPartitions
from tarn.core.outcome import AlreadyCommitted, Rejected
from tarn.core.table_state import Append, TableState, WrittenFile
from tarn.core.watermark import EventTimeRule, Watermark
from tarn.ingest.batch_commit import (
    next_mark,
    offsets_in,
    open_in,
    opened_by,
    pending_in,
    retired_text,
    stream_append,
    watermark_in,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkCommit:
    """States where the watermark is by now, and which partitions were announced; adds nothing.

    Attributes:
        commit_id: identifies the commit; the same for all attempts.
        table_uuid: UUID of the table.
        stream: name of the stream.
        event_time: rule of its watermark.
        now_ms: wall-clock time, in milliseconds since the epoch.
        announced: events that were sent about complete partitions; None if the stream announces none.
        still: whether the stream was read to its end; if not, the watermark stays where it is.
        files: nothing.
        removed: nothing.
    """

    commit_id: str
    table_uuid: str
    stream: str
    event_time: EventTimeRule
    now_ms: int
    announced: Announced | None = None
    still: bool = True
    files: tuple[WrittenFile, ...] = ()
    removed: tuple[WrittenFile, ...] = ()

    def is_due(self, state: TableState) -> bool:
        """Whether this version of the table should state something else.

        A watermark that moves within a partition of the table waits for the next commit.
        """
        before, opened = watermark_in(state, self.stream), open_in(state, self.stream)
        mark = self._mark(state)
        if offsets_in(state, self.stream) is None or before is None or mark is None:
            return False
        if opened is not None and self._opened(state) != opened:
            return True
        through = watermark.complete_through(state, mark)
        if through is None:
            return mark.at_us != before.at_us
        return through != watermark.complete_through(state, before)

    def on(self, state: TableState) -> Append | AlreadyCommitted | Rejected:
        """See `Change.on`."""
        held = offsets_in(state, self.stream)
        if held is None:
            return Rejected(reason=f"the table holds nothing of stream {self.stream}")
        if not self.is_due(state):
            return AlreadyCommitted()
        mark = self._mark(state)
        return stream_append(
            (),
            commit_id=self.commit_id,
            stream=self.stream,
            offsets=held,
            pending=pending_in(state, self.stream),
            mark=mark,
            complete_us=None if mark is None else watermark.complete_through(state, mark),
            opened=self._opened(state),
            retired=retired_text(state, self.stream),
        )

    def _mark(self, state: TableState) -> Watermark | None:
        if not self.still:
            return watermark_in(state, self.stream)
        return next_mark(
            state,
            self.stream,
            self.event_time,
            partitions=frozenset(),
            latest={},
            now_ms=self.now_ms,
        )

    def _opened(self, state: TableState) -> OpenPartitions | None:
        if self.announced is None:
            return None
        column = self.event_time.column
        return opened_by(state, self.stream, (), column=column, announced=self.announced)
