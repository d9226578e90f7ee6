"""Which data files of a stream are dropped because all their rows are older than the spec keeps them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import structlog
from pyroaring import BitMap64

from tarn.core.audit.accounts import ranges
from tarn.core.audit.model import FileEntry
from tarn.core.audit.origins import OriginReader
from tarn.core.errors import CorruptStateError, InvalidError
from tarn.core.retired import few
from tarn.core.table_files import TableFiles
from tarn.core.table_state import TableState, WrittenFile
from tarn.ingest.retire_commit import RetireCommit, why_kept

log = structlog.get_logger()

FILES_MAX = 50
"""Files that one commit drops; their trace columns are read first, while batches wait for the commit."""
ROWS_MAX = 5_000_000
"""Rows of the files that one look reads; one file is read however many it has."""
LEFT_MAX = 10_000
"""Files that are known to stay, and are not read again; what else stays is read at each pass."""


class Retirement:
    """The old files of one stream, and of those of its ingestor whose topics are gone.

    Args:
        name: name of the ingestor, for the log.
        stream: name of its stream.
        topic: topic of the stream; files with rows of several topics stay, and those with rows of others.
        column: column of event time.
        age_s: age of the rows that are dropped, in seconds.
        origins: reads which messages the rows of a file are.

    Attributes:
        more: whether the last look ended before it had seen all old files.
    """

    def __init__(
        self, name: str, *, stream: str, topic: str, column: str, age_s: int, origins: OriginReader
    ) -> None:
        self._name = name
        self._own = {topic: stream}
        self._streams: Mapping[str, str] = self._own
        self._topic = topic
        self._column = column
        self._age_us = age_s * 1_000_000
        self._origins = origins
        self.more = False
        self._left: set[str] = set()
        self._after: str | None = None
        self._read: dict[str, tuple[str, dict[int, BitMap64]]] = {}
        """What the last look read of files that are for the commit of another stream."""
        self._said: set[str] = set()
        self._reason: str | None = None

    def change(
        self,
        state: TableState,
        files: TableFiles,
        *,
        now_ms: int,
        new_id: Callable[[], str],
        gone: Mapping[str, str] | None = None,
        beat: Callable[[], None] = lambda: None,
        urgent: Callable[[], bool] = lambda: False,
    ) -> RetireCommit | None:
        """The commit that drops the next files, all of one stream; None if there are none.

        Args:
            state: version of the table.
            files: files of the table.
            now_ms: wall-clock time in milliseconds since the epoch.
            new_id: generates a unique commit id.
            gone: topic to stream of those that are not read any more, whose old files are dropped too.
            beat: called before each file is read, which may take seconds.
            urgent: whether something else is due; then no file is read but the first.

        Raises:
            UnavailableError: the store does not respond.
        """
        reason = why_kept(state)
        if reason is not None:
            if reason != self._reason:
                self._warn(reason)
            self._reason, self.more = reason, False
            return None
        self._reason = None
        streams = {**(gone or {}), **self._own}
        if streams != self._streams:
            self._streams, self._left, self._after, self._read = streams, set(), None, {}
        before_us = now_ms * 1_000 - self._age_us
        removed: list[WrittenFile] = []
        dropped: dict[int, BitMap64] = {}
        of: str | None = None
        read, self._read = self._read, {}
        for file in self._unseen(files.old_files(state, self._column, before_us), urgent):
            beat()
            topic, found = read.get(file.path) or self._offsets(file)
            if topic is None:
                self._leave(file)
                continue
            of = topic if of is None else of
            if topic != of:
                self._read[file.path] = topic, found
                continue
            removed.append(file)
            for partition, offsets in found.items():
                dropped[partition] = dropped.get(partition, BitMap64()) | offsets
        if of is None:
            return None
        # Those of another stream are the next commit's.
        self.more = self.more or bool(self._read)
        runs = {partition: few(ranges(offsets)) for partition, offsets in dropped.items()}
        return RetireCommit(
            commit_id=new_id(),
            table_uuid=state.uuid,
            stream=streams[of],
            removed=tuple(removed),
            dropped={partition: one for partition, (one, _) in runs.items()},
            joined=sum(joined for _, joined in runs.values()),
        )

    def _unseen(self, files: Iterable[WrittenFile], urgent: Callable[[], bool]) -> Iterator[WrittenFile]:
        """The next files to look at, as many as a commit may drop; a pass over all may take several looks.

        Those that stay are remembered, as long as there is room; then the pass goes on behind the last one.
        """
        self.more, read, rows = False, 0, 0
        still: set[str] = set()
        after = self._after
        for file in files:
            if file.path in self._left:
                still.add(file.path)
            elif after is not None:
                after = None if file.path == after else after
            elif read and (read >= FILES_MAX or rows + file.records > ROWS_MAX or urgent()):
                self.more = True
                return
            else:
                read, rows = read + 1, rows + file.records
                yield file
                if file.path in self._left:
                    still.add(file.path)
        # If the last one is gone, some were passed over: they are looked at in the next pass, which is soon.
        self.more = after is not None
        self._left, self._after = still, None

    def _leave(self, file: WrittenFile) -> None:
        if len(self._left) < LEFT_MAX:
            self._left.add(file.path)
        else:
            self._after = file.path

    def _offsets(self, file: WrittenFile) -> tuple[str | None, dict[int, BitMap64]]:
        """The topic of a file's rows, None if the file stays; and partition to their offsets."""
        try:
            found = self._origins.rows(FileEntry(file.path, file.bytes, file.records), BitMap64())
        except (CorruptStateError, InvalidError) as e:
            self._stays(type(e).__name__, e.message)
            return None, {}
        if found is None:
            self._stays("missing", f"{file.path} is not in the store")
            return None, {}
        topics = {topic for topic, _ in found.rows} or {self._topic}
        if found.untraced or len(topics) > 1 or not topics <= self._streams.keys():
            self._stays("origin", f"{file.path} has rows of other origin than topic {self._topic}")
            return None, {}
        offsets = {partition: tally.at_least(1) for (_, partition), tally in found.rows.items()}
        return topics.pop(), offsets

    def _stays(self, kind: str, reason: str) -> None:
        """Log why a file stays, for the first one of each kind: there may be thousands."""
        if kind not in self._said:
            self._said.add(kind)
            self._warn(reason)

    def _warn(self, reason: str) -> None:
        log.warning("old rows are left in the table", ingestor=self._name, reason=reason)
