"""Dead letters: written beside their batch, registered after it, repeated until seen (invariant I12)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

import pyarrow as pa
import structlog

from tarn.adapters.files import FileIO, WrittenFile, write_rows
from tarn.adapters.write_schema import WriteSchema, layout_of, layout_version
from tarn.core import dead_letter
from tarn.core.batch import RawBatch
from tarn.core.dead_letter import DeadLetterWatermark
from tarn.core.errors import InvalidSpecError
from tarn.core.table_state import TableState
from tarn.ingest.batch_commit import RegisterChange, markers_in, pending_in
from tarn.ingest.committer import Committer, NeedsReplan

log = structlog.get_logger()

REGISTER_ROUNDS_MAX = 20


class DeadLetterWriter:
    """The dead letters of one stream.

    Args:
        committer: of the dead-letter table.
        objects: the store.
        stream: the stream's name.
        topic: where it reads.
        table: the dead-letter table's name, for people.
        new_id: gives a commit id or a file name.
    """

    def __init__(
        self,
        committer: Committer,
        objects: FileIO,
        *,
        stream: str,
        topic: str,
        table: str,
        new_id: Callable[[], str],
    ) -> None:
        self._committer = committer
        self._objects = objects
        self._stream = stream
        self._topic = topic
        self._table = table
        self._new_id = new_id
        self._layout: tuple[tuple[object, ...], WriteSchema] | None = None
        self._root = ""
        self._uuid = ""
        self._marker: DeadLetterWatermark | None = None
        self._written: dict[str, WrittenFile] = {}

    @property
    def marker(self) -> DeadLetterWatermark | None:
        """How far the stream was registered when the dead-letter table was last seen."""
        return self._marker

    def see(self, state: TableState) -> None:
        """Takes note of the dead-letter table as it is now.

        Raises:
            InvalidSpecError: it cannot take dead letters.
        """
        version = layout_version(state)
        if self._layout is None or self._layout[0] != version:
            layout = layout_of(state, dead_letter.FIELDS, trace=False, table=self._table)
            if layout.spec.fields:
                raise InvalidSpecError(f"dead-letter table {self._table} is partitioned; it must not be")
            self._layout = (version, layout)
        self._root = state.root
        self._uuid = state.uuid
        self._marker = markers_in(state).get(self._stream)

    def write(self, batch: RawBatch, bad: Mapping[int, str], *, at: datetime) -> tuple[WrittenFile, ...]:
        """Writes the bad records of a batch into one file; it is a fact only when a commit names it."""
        if not bad:
            return ()
        rows: pa.Table = dead_letter.rows(batch, bad, ingestor=self._stream, source=self._topic, at=at)
        written = write_rows(self._objects, self._seen(), self._root, rows, new_name=self._new_id)
        self._written.update({f.path: f for f in written})
        return written

    def register(self, ingested: TableState) -> int:
        """Brings every file that this version of the ingested table names into the dead-letter table.

        Returns:
            How many files were registered now; 0 when all of them were already.

        Raises:
            UnavailableError and others of `Committer.commit`: nothing is lost, the next call tries again.
        """
        count = 0
        for _ in range(REGISTER_ROUNDS_MAX):
            waiting = dead_letter.unregistered(
                pending_in(ingested, self._stream), self._marker, table_uuid=ingested.uuid
            )
            if not waiting:
                return count
            layout = self._seen()
            files = tuple(
                self._written.get(f.path)
                or WrittenFile(
                    path=f.path, partition=(), spec_id=layout.spec.spec_id, records=f.records, bytes=f.bytes
                )
                for f in waiting
            )
            change = RegisterChange(
                commit_id=self._new_id(),
                table_uuid=self._uuid,
                stream=self._stream,
                ingested_uuid=ingested.uuid,
                sequence=max(f.sequence for f in waiting),
                files=files,
                after=self._marker,
            )
            result = self._committer.commit(change, layout)
            self.see(result.state)
            if isinstance(result, NeedsReplan):
                # Somebody else registered some of them: choose again.
                self.see(self._committer.load())
                continue
            for f in waiting:
                self._written.pop(f.path, None)
            count += len(waiting)
            log.info("dead letters registered", stream=self._stream, table=self._table, files=len(waiting))
        return count

    def _seen(self) -> WriteSchema:
        if self._layout is None:
            self.see(self._committer.load())
        if self._layout is None:
            raise AssertionError("seen without a layout")
        return self._layout[1]
