"""The commit that drops data files whose rows are older than the stream keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tarn.core.outcome import AlreadyCommitted, Rejected
from tarn.core.retired import Retired, Run
from tarn.core.table_state import Append, TableState, WrittenFile
from tarn.ingest.batch_commit import (
    offsets_in,
    open_in,
    pending_in,
    retired_in,
    stream_append,
    watermark_in,
)


def why_kept(state: TableState) -> str | None:
    """Why no file of this version of the table is dropped; None if files can be.

    With delete files, some rows of a file are gone already, and what deletes them would name a file that is
    not there. Without totals it is unknown whether there are any.
    """
    if state.head_id is None:
        return None
    if not state.has_totals:
        return (
            "the summary of its snapshot has no totals, as another writer left them out: there may be delete "
            "files; have that writer state them, or roll the table back to before it (scripts/tarn rollback)"
        )
    if state.total("delete-files") != 0:
        return "the table has delete files; compact it first"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetireCommit:
    """Drops files, and states which offsets are gone with them; the stream's offset map stays as it is.

    Attributes:
        commit_id: identifies the commit; the same for all attempts.
        table_uuid: UUID of the table.
        stream: name of the stream whose rows they have, and nobody else's.
        removed: the files; all of them must be live, or nothing is committed.
        dropped: partition to the offsets of their rows, as runs.
        joined: offsets between two of these runs that were joined.
        files: nothing.
    """

    commit_id: str
    table_uuid: str
    stream: str
    removed: tuple[WrittenFile, ...]
    dropped: Mapping[int, tuple[Run, ...]]
    joined: int = 0
    files: tuple[WrittenFile, ...] = ()

    def on(self, state: TableState) -> Append | AlreadyCommitted | Rejected:
        """See `Change.on`."""
        reason = why_kept(state)
        if reason is not None:
            return Rejected(reason=reason)
        held = offsets_in(state, self.stream)
        if held is None:
            return Rejected(reason=f"the table holds nothing of stream {self.stream}")
        before = retired_in(state, self.stream) or Retired()
        rows = sum(file.records for file in self.removed)
        return stream_append(
            (),
            commit_id=self.commit_id,
            stream=self.stream,
            offsets=held,
            pending=pending_in(state, self.stream),
            mark=watermark_in(state, self.stream),
            opened=open_in(state, self.stream),
            retired=before.plus(self.dropped, rows=rows, joined=self.joined).to_json(),
            removed=self.removed,
        )
