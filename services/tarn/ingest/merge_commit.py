"""The commit that replaces small files of a stream by one with the same rows."""

from __future__ import annotations

from dataclasses import dataclass

from tarn.core.outcome import AlreadyCommitted, Rejected
from tarn.core.table_state import Append, TableState, WrittenFile
from tarn.ingest.batch_commit import (
    offsets_in,
    open_in,
    pending_in,
    retired_text,
    stream_append,
    watermark_in,
)


def why_not(state: TableState) -> str | None:
    """Why files of this version of the table cannot be merged; None if they can.

    A row of a merged file has a new position and, in format version 3, would need its former row id: deletes
    of the former position and readers of the lineage must not be led astray.
    """
    if state.format_version >= 3:
        return "row ids of format version 3 are not carried over"
    if not state.has_totals:
        return "the summary of its snapshot has no totals"
    if state.total("delete-files") != 0:
        return "the table has delete files"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeCommit:
    """Removes small files and adds what holds their rows; the stream's offsets stay as they are.

    Attributes:
        commit_id: identifies the commit; the same for all attempts.
        table_uuid: UUID of the table.
        stream: name of the stream that added the files.
        files: the merged files.
        removed: the files that they replace; all of them must be live, or nothing is committed.
    """

    commit_id: str
    table_uuid: str
    stream: str
    files: tuple[WrittenFile, ...]
    removed: tuple[WrittenFile, ...]

    def on(self, state: TableState) -> Append | AlreadyCommitted | Rejected:
        """See `Change.on`."""
        reason = why_not(state)
        if reason is not None:
            return Rejected(reason=reason)
        held = offsets_in(state, self.stream)
        if held is None:
            return Rejected(reason=f"the table holds nothing of stream {self.stream}")
        return stream_append(
            self.files,
            commit_id=self.commit_id,
            stream=self.stream,
            offsets=held,
            pending=pending_in(state, self.stream),
            mark=watermark_in(state, self.stream),
            opened=open_in(state, self.stream),
            retired=retired_text(state, self.stream),
            removed=self.removed,
        )
