"""The commit of rows that came over HTTP."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tarn.core.outcome import AlreadyCommitted, Rejected
from tarn.core.producers import PROPERTY, STREAM, Advanced, Claim, ProducerBook, advance
from tarn.core.table_state import Append, TableState, WrittenFile
from tarn.ingest.batch_commit import offsets_in, stream_append


def book_in(state: TableState) -> ProducerBook:
    """The producers of this version of the table.

    Raises:
        CorruptStateError: the property is unreadable.
    """
    text = state.properties.get(PROPERTY)
    return ProducerBook() if text is None else ProducerBook.from_json(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsCommit:
    """Rows of several producers, which are committed together or not at all: a `Change`.

    Attributes:
        commit_id: identifies the commit; the same for all attempts.
        table_uuid: UUID of the planned table.
        claims: the rows, by producer.
        files: data files of those that were accepted.
        day: today, in days since the epoch.
        removed: nothing; rows are only added.
    """

    commit_id: str
    table_uuid: str
    claims: tuple[Claim, ...]
    files: tuple[WrittenFile, ...]
    day: int
    removed: tuple[WrittenFile, ...] = ()

    def on(self, state: TableState) -> Append | AlreadyCommitted | Rejected:
        """See `Change.on`.

        Raises:
            CorruptStateError: the table's producers or offsets are unreadable.
        """
        found = advance(
            book_in(state), offsets_in(state, STREAM), self.claims, table_uuid=state.uuid, day=self.day
        )
        if not isinstance(found, Advanced):
            return found
        append = stream_append(
            self.files, commit_id=self.commit_id, stream=STREAM, offsets=found.offsets, pending=()
        )
        return replace(append, properties={**append.properties, PROPERTY: found.book.to_json()})
