"""Merges of the small files that this gateway adds to a table (`tarn.core.small_files`, ADR 17).

A commit of rows never waits for a merge: files are read and written on a thread of their own, and the merge
is one more change of the table's bookkeeper.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pyarrow as pa
import structlog

from tarn.core.errors import TarnError
from tarn.core.producers import STREAM
from tarn.core.small_files import Group, SmallFiles
from tarn.core.table_catalog import TableName
from tarn.core.table_files import TableWriter
from tarn.core.table_state import TableState, WrittenFile
from tarn.gateway.rows_commit import RowsMerge
from tarn.ingest.changes import Done, TableCommits
from tarn.ingest.context import IngestContext, StoppedError
from tarn.ingest.merge_commit import MergeCommit, why_not

log = structlog.get_logger()


class Merges:
    """The small files of one table. `add` is thread-safe; `run_once` is for one thread.

    Args:
        table: name of the table.
        context: dependencies.
        commits: a seat of its own at the table's bookkeeper.
    """

    def __init__(self, table: TableName, context: IngestContext, commits: TableCommits) -> None:
        self._table = table
        self._context = context
        self._commits = commits
        self._lock = threading.Lock()
        self._small = SmallFiles()
        self._writer: TableWriter | None = None
        self._state: TableState | None = None

    def add(self, files: Sequence[WrittenFile], writer: TableWriter, state: TableState) -> None:
        """Remember files that were committed.

        Args:
            files: the files.
            writer: their writer; files of another one are forgotten, as their columns may differ.
            state: a version of the table that has them.
        """
        with self._lock:
            known = self._state
            if writer is not self._writer or known is None or known.uuid != state.uuid:
                self._small.clear()
            self._writer, self._state = writer, state
            self._small.add(files)

    def run_once(self) -> bool:
        """Merge one group of files, if one is due; whether it did.

        Files that cannot be merged are left as they are.
        """
        with self._lock:
            now_s = self._context.clock()
            group = self._small.due(now_s)
            if group is None or self._writer is None or self._state is None:
                return False
            self._small.drop(group, now_s=now_s)
            writer, state = self._writer, self._state
        try:
            return self._merge(group, writer, state)
        except StoppedError:
            return False
        except (TarnError, ValueError, KeyError, pa.ArrowException) as e:
            self._leave(f"{type(e).__name__}: {e}")
            return False

    def _merge(self, group: Group, writer: TableWriter, state: TableState) -> bool:
        started_s = self._context.clock()
        reason = why_not(state)
        if reason is not None:
            self._leave(reason)
            return False
        files = writer.put(writer.merge(group.files))
        change = MergeCommit(
            commit_id=self._context.new_id(),
            table_uuid=state.uuid,
            stream=STREAM,
            files=files,
            removed=group.files,
        )
        result = self._commits.commit(RowsMerge(merge=change), writer)
        if not isinstance(result, Done):
            log.info("small files changed meanwhile", table=str(self._table), reason=result.reason)
            return False
        with self._lock:
            if writer is self._writer:
                self._small.add(change.files, level=group.level + 1)
        log.info(
            "small files merged",
            table=str(self._table),
            files=len(group.files),
            rows=sum(file.records for file in change.files),
            merge_level=group.level + 1,
            ms=round((self._context.clock() - started_s) * 1_000, 1),
        )
        return True

    def _leave(self, reason: str) -> None:
        with self._lock:
            self._small.clear()
        log.info("small files are left as they are", table=str(self._table), reason=reason)
