"""What a stream's table needs beside its rows: events, a watermark that moves by itself, and no rows too old.

One reader of a stream does it for all, by what the table says of the whole stream: replica 0.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import structlog

from tarn.core.completion import Announced
from tarn.core.errors import CorruptStateError, TarnError
from tarn.core.spec import IngestorSpec
from tarn.core.table_files import TableFiles, TableWriter
from tarn.core.table_state import TableState, WrittenFile
from tarn.core.watermark import as_text, require_event_time
from tarn.ingest.announcer import Announcer
from tarn.ingest.batch_commit import CommittedBatch, offsets_in, streams_named
from tarn.ingest.changes import NeedsReplan, TableCommits
from tarn.ingest.context import IngestContext
from tarn.ingest.event_time import event_time_rule
from tarn.ingest.mark_commit import MarkCommit
from tarn.ingest.progress import Progress
from tarn.ingest.replicas import Replica
from tarn.ingest.retirement import Retirement
from tarn.ingest.status import State, StatusReporter

log = structlog.get_logger()

RETIRE_PAUSE_S = 2.0
"""Pause between two commits that drop old rows, in seconds."""


class Upkeep:
    """The upkeep of one stream; of a replica that is not the first, it only keeps what the table states.

    Args:
        spec: ingestor spec.
        context: dependencies and limits.
        replica: which reader of the stream this is.
        commits: commits to the table.
        progress: progress of the reader.
        reporter: state of the reader.
    """

    def __init__(
        self,
        spec: IngestorSpec,
        context: IngestContext,
        replica: Replica,
        *,
        commits: TableCommits,
        progress: Progress,
        reporter: StatusReporter,
    ) -> None:
        self._spec = spec
        self._context = context
        self._first = replica.index == 0
        self._commits = commits
        self._progress = progress
        self._reporter = reporter
        self._name = progress.name
        self._table = str(spec.spec.table)
        self._event_time = event_time_rule(spec)
        self._announces = spec.spec.event_time is not None and spec.spec.event_time.complete_topic is not None
        self._announcer = self._new_announcer()
        self._retirement = self._new_retirement()
        self._retired_s: float | None = None
        self._gone: dict[str, str] = {}  # topic to stream of those that Kafka has no more
        self._unreadable: set[str] = set()  # streams whose old rows cannot be dropped

    def require_columns(self, state: TableState) -> None:
        """Require the columns of event time that the spec names.

        Raises:
            InvalidSpecError: the table lacks one.
        """
        if self._event_time is not None:
            require_event_time(state, self._event_time.column, table=self._table)
        kept_by = self._spec.spec.retention_column
        if kept_by is not None:
            require_event_time(state, kept_by, table=self._table, what="retention")

    @property
    def announced(self) -> Announced | None:
        """Events that the next commit of the reader records; None if the stream announces nothing."""
        if self._announcer is not None:
            return self._announcer.announced
        return Announced() if self._announces else None

    def announce(self, state: TableState) -> None:
        """Send the events that are due by this version of the table."""
        if self._announcer is not None:
            context = self._context
            self._announcer.look(state, now_s=context.clock(), now_ms=context.ports.now_ms())

    def mark_change(self, state: TableState) -> MarkCommit | None:
        """The commit of the watermark and of events alone; None if it would say nothing new.

        While a reader of the stream has messages before it, the stream has not stopped.
        """
        if self._event_time is None or not self._first:
            return None
        change = MarkCommit(
            commit_id=self._context.new_id(),
            table_uuid=state.uuid,
            stream=self._spec.stream,
            event_time=self._event_time,
            now_ms=self._context.ports.now_ms(),
            announced=self.announced,
            still=self._context.registry.get(self._spec.name).lag == 0,
        )
        return change if change.is_due(state) else None

    def move_mark(self, change: MarkCommit, writer: TableWriter) -> CommittedBatch | NeedsReplan:
        """Commit the watermark of a stream that has nothing else to commit."""
        result = self._commits.commit(change, writer)
        if isinstance(result, NeedsReplan):
            return result
        self._reporter.tell(State.RUNNING)
        self._progress.watermark(result.state)
        mark = as_text(self._context.registry.get(self._name).watermark_us)
        log.info("watermark moved", ingestor=self._name, watermark=mark)
        return CommittedBatch(state=result.state, after={})

    def retire_due(self, now_s: float) -> bool:
        """Whether to look for old rows; the first time an interval after the start."""
        if self._retirement is None:
            return False
        if self._retired_s is None:
            self._retired_s = now_s
        return now_s - self._retired_s >= self._context.limits.retire_s

    def retire(
        self,
        state: TableState,
        files: TableFiles,
        writer: TableWriter,
        *,
        on_removed: Callable[[tuple[WrittenFile, ...]], None],
        urgent: Callable[[], bool] = lambda: False,
    ) -> CommittedBatch | NeedsReplan:
        """Drop files whose rows are too old, as many as one commit may.

        Args:
            state: version of the table.
            files: files of the table.
            writer: writer of the table.
            on_removed: called with the files that were dropped.
            urgent: whether a batch is due; then fewer are dropped.
        """
        assert self._retirement is not None
        context = self._context
        started_s = self._retired_s = context.clock()
        now_ms = context.ports.now_ms()

        def beat() -> None:
            # The reader's loop may be waiting for this very commit, because a batch is due.
            context.registry.update(self._name, beat_s=context.clock())

        change = self._retirement.change(
            state,
            files,
            now_ms=now_ms,
            new_id=context.new_id,
            gone=self._look_for_gone(state),
            beat=beat,
            urgent=urgent,
        )
        if self._retirement.more:
            self._look_soon()
        if change is None:
            return CommittedBatch(state=state, after={})
        own = change.stream == self._spec.stream
        try:
            result = self._commits.commit(change, writer)
        except CorruptStateError as e:
            if own:
                raise
            # It is that stream's state that cannot be read; this one goes on.
            self._leave(change.stream, e)
            self._look_soon()
            return CommittedBatch(state=state, after={})
        if isinstance(result, NeedsReplan):
            if not own:
                return CommittedBatch(state=state, after={})  # the next look begins with what is there then
            log.info("old files changed meanwhile; planning again", ingestor=self._name, reason=result.reason)
            return result
        self._reporter.tell(State.RUNNING)
        on_removed(change.removed)
        self._look_soon()
        took_s = context.clock() - started_s
        rows = self._progress.retired(change, result, took_s=took_s)
        log.info(
            "old rows dropped",
            ingestor=self._name,
            table=self._table,
            stream=change.stream,
            files=len(change.removed),
            rows=rows,
            ms=round(took_s * 1_000, 1),
        )
        return CommittedBatch(state=result.state, after={})

    def _look_for_gone(self, state: TableState) -> dict[str, str]:
        """Topic to stream of the ingestor's topics that Kafka has no more, if this reader drops their rows.

        One reader of the ingestor does so. If one in another process does too, only one of both commits.
        """
        topic, stream = self._spec.topic, self._spec.stream
        prefix = stream.removesuffix(topic)
        if not prefix.endswith("."):
            return {}
        named = {one for one in streams_named(state) if one.startswith(prefix)}
        statuses = self._context.registry.ingestors().values()
        running = {s.stream for s in statuses if s.table == self._table and s.state is State.RUNNING}
        silent = named - running - self._unreadable - {stream}
        if not silent or min({stream} | (running & named)) != stream:
            return {}
        # While Kafka does not say it, what it said last counts.
        with suppress(TarnError):
            there = frozenset(self._context.sources.list_topics())
            found = {one.removeprefix(prefix): one for one in silent}
            self._gone = {t: one for t, one in found.items() if t not in there and self._is_of(state, one, t)}
        return {t: one for t, one in self._gone.items() if one in silent}

    def _is_of(self, state: TableState, stream: str, topic: str) -> bool:
        """Whether this version of the table has offsets of the stream, and they are of the topic."""
        try:
            found = offsets_in(state, stream)
        except CorruptStateError as e:
            self._leave(stream, e)
            return False
        return found is not None and found.source.topic == topic

    def _leave(self, stream: str, error: CorruptStateError) -> None:
        self._unreadable.add(stream)
        log.warning(
            "old rows of a topic that is gone are left",
            ingestor=self._name,
            stream=stream,
            reason=error.message,
        )

    def _look_soon(self) -> None:
        """There may be more: the next look is soon, and a batch that waits goes first."""
        self._retired_s = self._context.clock() - self._context.limits.retire_s + RETIRE_PAUSE_S

    def _new_announcer(self) -> Announcer | None:
        event_time = self._spec.spec.event_time
        if not self._first or event_time is None or self._event_time is None:
            return None
        if event_time.complete_topic is None:
            return None
        return Announcer(
            self._context.sources,
            event_time.complete_topic,
            name=self._spec.name,
            reader=self._name,
            stream=self._spec.stream,
            table=self._table,
            rule=self._event_time,
            registry=self._context.registry,
        )

    def _new_retirement(self) -> Retirement | None:
        body, origins = self._spec.spec, self._context.origins
        if not self._first or body.retention is None or body.retention_column is None or origins is None:
            return None
        return Retirement(
            self._name,
            stream=self._spec.stream,
            topic=self._spec.topic,
            column=body.retention_column,
            age_s=body.retention.seconds,
            origins=origins,
        )
