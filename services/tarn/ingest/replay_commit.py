"""The commit that adds rows of dead letters, which the table did not have when it was looked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tarn.core.dead_letter import REPLAYED_PREFIX
from tarn.core.outcome import AlreadyCommitted, Rejected
from tarn.core.table_state import Append, TableState, WrittenFile
from tarn.ingest.batch_commit import offsets_in


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayCommit:
    """Adds rows of dead letters; the stream's offsets stay as they are.

    The rows' offsets lie below the stream's offset map, so its ingestor never adds them. Another replay may:
    it names itself in its snapshot, and a commit on top of one that came after the look is rejected.

    Attributes:
        commit_id: identifies the commit; the same for all attempts.
        table_uuid: UUID of the table.
        stream: name of the stream whose dead letters these are.
        looked_at: id of the snapshot that had no row of these dead letters.
        ends: partition to the offset after the last of them.
        files: data files with the rows.
        removed: nothing; a replay only adds.
    """

    commit_id: str
    table_uuid: str
    stream: str
    looked_at: int
    ends: Mapping[int, int]
    files: tuple[WrittenFile, ...]
    removed: tuple[WrittenFile, ...] = ()

    def on(self, state: TableState) -> Append | AlreadyCommitted | Rejected:
        """See `Change.on`."""
        key = REPLAYED_PREFIX + self.stream
        for snapshot in state.ancestors():
            if snapshot["snapshot-id"] == self.looked_at:
                break
            if key in (snapshot.get("summary") or {}):
                return Rejected(reason=f"snapshot {snapshot['snapshot-id']} is of another replay")
        else:
            return Rejected(reason=f"snapshot {self.looked_at}, which was looked at, is not in the history")
        held = offsets_in(state, self.stream)
        if held is None or any(held.next.get(p, 0) < end for p, end in self.ends.items()):
            return Rejected(reason="the offsets went back, so these messages are read again")
        return Append.of(
            self.files,
            commit_id=self.commit_id,
            summary={key: str(sum(file.records for file in self.files))},
        )
