"""Dead letters: written beside their batch, registered after its commit, retried until seen (I12).

A listed file need not lie in the dead-letter table's own folder: the table that it was written for may have
been dropped or renamed since, or the spec names another one. The folder of a dropped table is deleted after a
while, so records of such a file are written again, below the location of the table that registers them.

Small files of the dead-letter table are merged as those of the ingested table are (`tarn.core.small_files`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from tarn.core import dead_letter
from tarn.core.batch import RawBatch
from tarn.core.dead_letter import DeadLetterWatermark, PendingFile, Watermarks
from tarn.core.errors import CorruptStateError, InvalidSpecError, NoSuchTableError, NotFoundError
from tarn.core.outcome import AlreadyCommitted, Rejected
from tarn.core.small_files import Group, SmallFiles
from tarn.core.table_files import TableFiles, TableWriter
from tarn.core.table_state import Append, TableState, WrittenFile, marker_property
from tarn.ingest.batch_commit import pending_in
from tarn.ingest.changes import NeedsReplan, TableCommits
from tarn.ingest.merge_commit import why_not

log = structlog.get_logger()

REGISTER_ROUNDS_MAX = 20
REGISTER_EVERY_S = 5.0
LOOK_S = 10.0
"""Dead letters are written for a table that was looked at so long ago, in seconds, at most: it may have been
dropped. The reaper keeps the folder of a dropped table for a minute at least."""
REGISTER_FILES = 8
"""So many files are registered at once: each snapshot of the ingested table lists those that wait."""


def markers_in(state: TableState) -> dict[str, Watermarks]:
    """Watermarks per stream in this version of the dead-letter table.

    Raises:
        CorruptStateError: the watermarks are unreadable, or they existed and were lost.
    """
    key, tag = dead_letter.MARKER_KEY, dead_letter.MARKER_TAG
    if state.newest(key, tag=tag) is None:
        return {}
    return dead_letter.markers_from_json(state.newest_summary(key, tag=tag) or {})


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterChange:
    """Appends dead-letter files to the dead-letter table and advances the watermark in the same commit.

    Each file is therefore registered exactly once.

    Attributes:
        commit_id: identifies the commit; the same for all attempts.
        table_uuid: UUID of the dead-letter table at planning time.
        stream: stream whose dead letters these are.
        ingested_uuid: UUID of the ingested table that lists the files.
        sequence: highest sequence number among the files.
        files: files to register.
        after: watermark of the ingested table against which the files were selected.
        removed: nothing; a registration only adds.
    """

    commit_id: str
    table_uuid: str
    stream: str
    ingested_uuid: str
    sequence: int
    files: tuple[WrittenFile, ...]
    after: DeadLetterWatermark | None
    removed: tuple[WrittenFile, ...] = ()

    def on(self, state: TableState) -> Append | AlreadyCommitted | Rejected:
        """See `Change.on`."""
        markers = markers_in(state)
        marks = markers.get(self.stream, ())
        found = dead_letter.watermark_of(marks, self.ingested_uuid)
        if found is not None and found.sequence >= self.sequence:
            return AlreadyCommitted()
        if found != self.after:
            return Rejected(
                reason=f"the marker of {self.stream} is {found}, the files were chosen at {self.after}"
            )
        reached = DeadLetterWatermark(table_uuid=self.ingested_uuid, sequence=self.sequence)
        markers[self.stream] = dead_letter.advanced(marks, reached)
        return _append(state, markers, self.files, commit_id=self.commit_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class LettersMerge:
    """Replaces small files of the dead-letter table by one with the same rows; the watermarks stay.

    Attributes:
        commit_id: identifies the commit; the same for all attempts.
        table_uuid: UUID of the dead-letter table.
        files: the merged file.
        removed: the files that it replaces; all of them must be live, or nothing is committed.
    """

    commit_id: str
    table_uuid: str
    files: tuple[WrittenFile, ...]
    removed: tuple[WrittenFile, ...]

    def on(self, state: TableState) -> Append | AlreadyCommitted | Rejected:
        """See `Change.on`."""
        reason = why_not(state)
        if reason is not None:
            return Rejected(reason=reason)
        return _append(state, markers_in(state), self.files, self.removed, commit_id=self.commit_id)


def _append(
    state: TableState,
    markers: Mapping[str, Watermarks],
    files: tuple[WrittenFile, ...],
    removed: tuple[WrittenFile, ...] = (),
    *,
    commit_id: str,
) -> Append:
    """A snapshot of the dead-letter table, with what ingest states in each of its own."""
    summary = dead_letter.markers_to_json(markers)
    rows = dead_letter.rows_expected(snapshot.get("summary") or {} for snapshot in state.ancestors())
    if not rows:
        rows = _rows_now(state)
    if rows is not None:
        rows += sum(f.records for f in files) - sum(f.records for f in removed)
        summary[dead_letter.COUNT_KEY] = str(rows)
    return Append.of(
        files,
        commit_id=commit_id,
        summary=summary,
        tag=dead_letter.MARKER_TAG,
        since=marker_property(dead_letter.MARKER_KEY),
        removed=removed,
    )


def _rows_now(state: TableState) -> int | None:
    if state.head is None:
        return 0
    rows = state.total("records")
    return None if rows is None else rows - (state.total("position-deletes") or 0)


class DeadLetterWriter:
    """Writes and registers the dead letters of one stream.

    Args:
        committer: committer of the dead-letter table.
        files: files of the dead-letter table.
        stream: name of the stream.
        topic: name of the topic that it reads.
        table: name of the dead-letter table, for messages.
        new_id: generates a unique commit id.
        clock: monotonic time in seconds.
    """

    def __init__(
        self,
        committer: TableCommits,
        files: TableFiles,
        *,
        stream: str,
        topic: str,
        table: str,
        new_id: Callable[[], str],
        clock: Callable[[], float],
    ) -> None:
        self._committer = committer
        self._files = files
        self._stream = stream
        self._topic = topic
        self._table = table
        self._new_id = new_id
        self._clock = clock
        self._registered_s: float | None = None
        self._waiting = 0
        self._ingested: TableState | None = None
        self._writer: TableWriter | None = None
        self._uuid = ""
        self._seen_s = 0.0
        self._marks: Watermarks = ()
        self._written: dict[str, WrittenFile] = {}
        # Copies of files of another table, which no table lists yet: of each there is one, however often the
        # registration is refused. Nothing would delete the others.
        self._copies: dict[str, WrittenFile] = {}
        self._small = SmallFiles()

    def marker(self, ingested_uuid: str) -> DeadLetterWatermark | None:
        """The watermark of an ingested table when the dead-letter table was last read; None if none."""
        return dead_letter.watermark_of(self._marks, ingested_uuid)

    def ensure(self) -> None:
        """Create the dead-letter table if it does not exist, then `see` it."""
        self.see(self._committer.ensure(self._files.create_request()))

    def see(self, state: TableState) -> None:
        """Refresh the writer and the watermarks from this version of the dead-letter table.

        Raises:
            InvalidSpecError: the table cannot hold dead letters.
        """
        writer = self._files.writer(state)
        if writer.partitioned:
            raise InvalidSpecError(f"dead-letter table {self._table} is partitioned; it must not be")
        if writer is not self._writer:
            self._small.clear()
            self._copies.clear()
        self._writer = writer
        self._uuid = state.uuid
        self._seen_s = self._clock()
        self._marks = markers_in(state).get(self._stream, ())

    def write(self, batch: RawBatch, bad: Mapping[int, str], *, at: datetime) -> tuple[WrittenFile, ...]:
        """Write the bad records of a batch to one dead-letter file; it takes effect once a commit lists it.

        Args:
            batch: the raw records.
            bad: index in the batch to the reason of rejection.
            at: time that is recorded with each bad record.

        Returns:
            The data file written; empty if no record is bad.
        """
        if not bad:
            return ()
        rows: pa.Table = dead_letter.rows(batch, bad, ingestor=self._stream, source=self._topic, at=at)
        writer = self._seen(LOOK_S)
        # One file, whatever the table's target size: the commit of the batch lists a limited number.
        written = writer.put(writer.encode(rows, whole=True)) if rows.num_rows else ()
        self._written.update({f.path: f for f in written})
        return written

    def listed(self, ingested: TableState) -> None:
        """Note how many files this version of the ingested table lists that are not registered yet.

        Raises:
            CorruptStateError: the list is unreadable.
        """
        self._ingested = ingested
        self._waiting = len(self._unregistered(ingested))

    def due(self) -> bool:
        """Whether to register now: the first files at once, then every few seconds, or if several wait.

        So a stream with bad records in every batch does not make two commits for each.
        """
        if self._waiting == 0:
            return False
        if self._registered_s is None or self._waiting >= REGISTER_FILES:
            return True
        return self._clock() - self._registered_s >= REGISTER_EVERY_S

    def register_waiting(self) -> None:
        """Register what waits, as far as is known; raises what `register` does."""
        if self._waiting and self._ingested is not None:
            self.register(self._ingested)

    def register(self, ingested: TableState) -> int:
        """Register every dead-letter file that this version of the ingested table lists.

        Returns:
            The number of files registered now; 0 if all of them were registered before.

        Raises:
            CorruptStateError: a file in the folder of another table cannot be read, or is of another stream.
            UnavailableError and others of `Committer.commit`: nothing is lost, the next call retries.
        """
        count = 0
        for _ in range(REGISTER_ROUNDS_MAX):
            waiting = self._unregistered(ingested)
            self._waiting = len(waiting)
            if not waiting:
                self._written.clear()
                return count
            self._registered_s = self._clock()
            writer = self._seen()
            files = self._placed(waiting, writer)
            change = RegisterChange(
                commit_id=self._new_id(),
                table_uuid=self._uuid,
                stream=self._stream,
                ingested_uuid=ingested.uuid,
                sequence=max(f.sequence for f in waiting),
                files=tuple(files.values()),
                after=self.marker(ingested.uuid),
            )
            try:
                result = self._committer.commit(change, writer)
            except NoSuchTableError:
                self._look()
                continue
            if isinstance(result, NeedsReplan):
                # Another writer registered some of the files, or the table was made again: select again.
                self._look()
                continue
            if result.by_us:
                self._written.update({path: file for path, file in files.items() if file.path != path})
            self.see(result.state)
            count += len(waiting)
            log.info("dead letters registered", stream=self._stream, table=self._table, files=len(waiting))
        return count

    def merge_due(self, now_s: float) -> tuple[Group, TableWriter] | None:
        """Small files of this process to merge now, and who merges them; None if there are none."""
        if self._writer is None:
            return None
        group = self._small.due(now_s, rows_max=self._writer.merge_rows_max)
        return None if group is None else (group, self._writer)

    def drop(self, group: Group, *, now_s: float) -> None:
        """Forget the files of a group, which are merged now."""
        self._small.drop(group, now_s=now_s)

    def commit_merge(self, group: Group, files: tuple[WrittenFile, ...], writer: TableWriter) -> None:
        """Replace small files by the one that has their rows; if others changed them, they stay as they are.

        If somebody dropped the table, too: `register` makes it again.

        Raises:
            UnavailableError and others of `Committer.commit`: nothing is lost.
        """
        if writer is not self._writer:
            return
        change = LettersMerge(
            commit_id=self._new_id(), table_uuid=self._uuid, files=files, removed=group.files
        )
        try:
            result = self._committer.commit(change, writer)
        except NotFoundError as e:
            log.info("dead-letter files are left as they are", table=self._table, reason=e.message)
            return
        if isinstance(result, NeedsReplan):
            log.info("dead-letter files are left as they are", table=self._table, reason=result.reason)
            self.see(self._committer.load())
            return
        self.see(result.state)
        self._small.add(files, level=group.level + 1)
        log.info("dead-letter files merged", table=self._table, files=len(group.files))

    def _unregistered(self, ingested: TableState) -> tuple[PendingFile, ...]:
        """Listed files that wait; those of this process that do no longer may be merged."""
        pending = pending_in(ingested, self._stream)
        waiting = dead_letter.unregistered(pending, self.marker(ingested.uuid), table_uuid=ingested.uuid)
        paths = {f.path for f in waiting}
        done = [f.path for f in pending if f.path not in paths and f.path in self._written]
        self._small.add([self._written.pop(path) for path in done])
        self._copies = {path: copy for path, copy in self._copies.items() if path in paths}
        return waiting

    def _placed(self, waiting: Sequence[PendingFile], writer: TableWriter) -> dict[str, WrittenFile]:
        """By the path of each listed file, the file of the dead-letter table that has its records.

        One that is gone is left out: it was in the folder of another table, and was deleted with it.
        """
        found: dict[str, WrittenFile] = {}
        for file in waiting:
            if file.path.startswith(f"{writer.root}/"):
                found[file.path] = self._written.get(file.path) or WrittenFile(
                    path=file.path,
                    partition=(),
                    spec_id=writer.spec_id,
                    records=file.records,
                    bytes=file.bytes,
                )
                continue
            copy = self._copies.get(file.path) or self._copy(file, writer)
            if copy is None:
                log.warning(
                    "a dead-letter file is gone with its table",
                    stream=self._stream,
                    path=file.path,
                    records=file.records,
                )
            else:
                found[file.path] = self._copies[file.path] = copy
        return found

    def _copy(self, file: PendingFile, writer: TableWriter) -> WrittenFile | None:
        """Write the records of a file of another table again; None if the file is gone.

        Whoever writes the ingested table writes its lists: they give access to no other stream's records.
        """
        try:
            rows = writer.rows_at(file.path)
        except (ValueError, KeyError) as e:
            raise CorruptStateError(
                f"dead-letter file {file.path}, which the table lists for stream {self._stream}, cannot be "
                f"read: {e}. Restore the object; or delete it, and its records are left out",
                path=file.path,
            ) from e
        if rows is None:
            return None
        for column, own in (("ingestor", self._stream), ("source", self._topic)):
            if pc.unique(rows.column(column)).to_pylist() != [own]:
                raise CorruptStateError(
                    f"dead-letter file {file.path}, which the table lists for stream {self._stream} of topic "
                    f"{self._topic}, has records of another stream or topic",
                    path=file.path,
                )
        (copy,) = writer.put(writer.encode(rows, whole=True))
        log.info("dead-letter file copied", stream=self._stream, table=self._table, path=file.path)
        return copy

    def _look(self) -> None:
        """`see` the dead-letter table as it is now; one that somebody dropped is made again."""
        try:
            self.see(self._committer.load())
        except NoSuchTableError:
            self.ensure()

    def _seen(self, age_s: float | None = None) -> TableWriter:
        """The writer of the dead-letter table, which was looked at so long ago at most, if that is given."""
        if self._writer is None or (age_s is not None and self._clock() - self._seen_s > age_s):
            self._look()
        if self._writer is None:
            raise AssertionError("seen without a writer")
        return self._writer
