"""One ingestor: plan, read, decode, write, commit, repeat. Its only state is the table's.

While the executor writes and commits a batch, the next one is read, and decoded if it is large. At most one
commit is under way, and nothing else looks at the table meanwhile. After any failure the next plan starts
from the table: an uncommitted batch is read again from the log, a committed one is found in the table's
offset map.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import orjson
import pyarrow as pa
import structlog

from tarn.core import dead_letter
from tarn.core.batch import BatchBuilder
from tarn.core.completion import time_field, touched
from tarn.core.errors import TarnError, UnavailableError
from tarn.core.offsets import OffsetMap, TopicIdentity, next_or_start, require_same_source
from tarn.core.outcome import Conflict, Unknown
from tarn.core.small_files import SmallFiles
from tarn.core.source import NoSuchTopicError, OffsetBounds, TopicReader, start_positions
from tarn.core.spec import IngestorSpec
from tarn.core.table_catalog import TableName
from tarn.core.table_files import TableFiles, TableWriter
from tarn.core.table_state import TableState
from tarn.core.watermark import as_text, complete_through, require_event_time
from tarn.ingest.announcer import Announcer
from tarn.ingest.batch_commit import (
    BatchCommit,
    CommittedBatch,
    WrittenBatch,
    encode,
    offsets_in,
    require_only_stream,
    streams_named,
    watermark_in,
)
from tarn.ingest.committer import Committer, Done, NeedsReplan
from tarn.ingest.context import IngestContext, StoppedError
from tarn.ingest.dead_letters import DeadLetterWriter
from tarn.ingest.event_time import event_time_rule, latest_in
from tarn.ingest.mark_commit import MarkCommit
from tarn.ingest.merge_commit import MergeCommit, why_not
from tarn.ingest.open_batch import DecodedBatch, OpenBatch
from tarn.ingest.retirement import Retirement
from tarn.ingest.status import State, StatusReporter
from tarn.ingest.stream_table import StreamTable

log = structlog.get_logger()

RETIRE_PAUSE_S = 2.0
"""Pause between two commits that drop old rows, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the next batch builds on.

    Attributes:
        source: topic reader, at the table's offsets.
        identity: identity of the topic.
        state: version of the table.
        fresh: partitions missing from the table's offset map.
    """

    source: TopicReader
    identity: TopicIdentity
    state: TableState
    fresh: frozenset[int]


class Ingestor:
    """Runs one spec.

    Args:
        spec: ingestor spec.
        context: dependencies and limits.
    """

    def __init__(self, spec: IngestorSpec, context: IngestContext) -> None:
        self.spec = spec
        self.name = spec.name
        self._stream = spec.stream
        self._context = context
        body = spec.spec
        self._topic = spec.topic
        self._table = StreamTable(spec, context)
        self.table = self._table.name
        self._small_files = SmallFiles()
        self._reporter = StatusReporter(
            spec.name, context.registry, clock=context.clock, now_ms=context.ports.now_ms
        )
        letters = body.dead_letters.table
        self._dead_letter_table = TableName(letters.levels, letters.name)
        self._committer = self._new_committer(self.table)
        self._dead_letters = DeadLetterWriter(
            self._new_committer(self._dead_letter_table),
            context.tables.table(str(self._dead_letter_table), dead_letter.FIELDS, trace=False),
            stream=self._stream,
            topic=self._topic,
            table=str(self._dead_letter_table),
            new_id=context.new_id,
        )
        self._source: TopicReader | None = None
        self._beside: frozenset[str] = frozenset()
        self._event_time = event_time_rule(spec)
        self._announcer = self._new_announcer()
        self._retirement = self._new_retirement()
        self._retired_s: float | None = None
        self._measured = False
        context.registry.update(self.name, table=str(self.table), topic=self._topic, stream=self._stream)
        if self._event_time is not None:
            context.registry.update(self.name, event_column=self._event_time.column)

    @property
    def files(self) -> TableFiles:
        """Files of the table."""
        return self._table.files

    def run(self) -> None:
        """Run until the process stops; failures are reported and retried without limit."""
        waits = 0
        while not self._context.stopping():
            try:
                self.cycle(lambda: self._context.stopping())
                waits = 0
            except StoppedError:
                break
            except (UnavailableError, NoSuchTopicError) as e:
                waits += 1
                self._reporter.tell(State.WAITING, e)
                limits = self._context.limits
                if not self._rest(min(limits.retry_s_max, limits.retry_s * 2 ** min(waits, 8))):
                    break
            except TarnError as e:
                self._reporter.tell(State.STOPPED, e)
                if not self._rest(self._context.limits.stopped_retry_s):
                    break
            except Exception as e:  # noqa: BLE001 - a defect in one ingestor must not take the others along
                self._reporter.tell_defect(e)
                if not self._rest(self._context.limits.stopped_retry_s):
                    break
            finally:
                self._close()
        self._context.registry.update(self.name, state=State.FINISHED, reason="", message="the process stops")

    def cycle(self, until: Callable[[], bool]) -> None:
        """Plan once, then ingest until asked to stop or until the plan no longer holds.

        Args:
            until: whether to stop; called before each poll.

        Raises:
            UnavailableError: a dependency does not respond.
            DataError: continuing would lose or duplicate rows.
            TarnError: any other error that needs a person.
        """
        plan = self._plan()
        self._reporter.tell(State.RUNNING)
        # Left by any way out only when no commit is under way.
        with self._context.executor() as executor:
            self._ingest(plan, executor, until)

    def _ingest(self, plan: Plan, executor: Executor, until: Callable[[], bool]) -> None:
        """Read batches and commit them in order; see `cycle`."""
        limits = self._context.limits
        batch = self._new_batch()
        now = self._context.clock()
        committed_s = looked_s = group_commit_s = now
        uncommitted: dict[int, int] = {}
        commit: Future[CommittedBatch | NeedsReplan] | None = None
        merged = False  # since the last batch
        while not until():
            now = self._context.clock()
            self._context.registry.update(self.name, beat_s=now)
            wait_s = batch.wait_s(now)
            idle = wait_s is None and batch.ranges() and now - committed_s >= limits.watermark_s
            due = wait_s == 0.0 or idle
            if commit is not None and (due or commit.done()):
                result = commit.result()
                if isinstance(result, NeedsReplan):
                    return
                commit = None
                plan = replace(plan, state=result.state, fresh=plan.fresh - result.after.keys())
                self._recorded(result)
                committed_s = self._context.clock()
                uncommitted.update(result.after)
                continue
            if commit is None and not (due and merged) and self._merge_due(now, urgent=bool(due)):
                commit, merged = executor.submit(self._merge, plan), True
                continue
            if commit is None and not due and self._retire_due(now):
                commit = executor.submit(self._retire, plan)
                continue
            if due:
                merged = False
                # Topic ids are never reused: an unchanged id means that all records came from this topic.
                require_same_source(plan.identity, plan.source.identity())
                commit = executor.submit(self._commit, batch, plan, self._announced)
                batch = self._new_batch()
                continue
            if uncommitted and now - group_commit_s >= limits.group_commit_interval_s:
                plan.source.commit_group_offsets(uncommitted)
                uncommitted, group_commit_s = {}, now
            if now - looked_s >= limits.check_interval_s:
                looked_s = now
                if not self._measure(plan.source):
                    return
                if wait_s is None and commit is None:
                    seen = self._look(plan)
                    if seen is None:
                        return
                    plan = replace(plan, state=seen)
                self._announce(plan.state)
                still = wait_s is None and commit is None and now - committed_s >= limits.watermark_s
                change = self._mark_change(plan.state) if still else None
                if change is not None and change.is_due(plan.state):
                    commit = executor.submit(self._move_mark, change)
                    continue
            timeout_s = limits.poll_s_max if wait_s is None else min(wait_s, limits.poll_s_max)
            for polled in plan.source.poll(records_max=max(1, batch.room), timeout_s=timeout_s):
                batch.add(polled)
        if commit is not None:
            result = commit.result()
            uncommitted.update(result.after if isinstance(result, CommittedBatch) else {})
        if uncommitted:
            plan.source.commit_group_offsets(uncommitted)

    def _plan(self) -> Plan:
        """Open the topic, create missing tables and topics, and seek to the table's committed offsets."""
        kafka = self.spec.spec.source.kafka
        self._measured = False
        self._small_files.clear()
        source = self._source = self._context.sources.open(self._topic, stream=self._stream)
        try:
            identity = source.identity()
        except NoSuchTopicError:
            if not kafka.create:
                raise
            self._context.sources.create(self._topic, partitions=kafka.partitions)
            identity = source.identity()
        self._dead_letters.ensure()
        state = self._table.ensure(self._committer)
        bounds = source.bounds()
        table = offsets_in(state, self._stream)
        self._show(state, table, identity, bounds)
        # From here on the reported lag is true even if the ingestor stops; each plan refreshes it.
        if table is None:
            require_only_stream(state, self._stream, identity, bounds, table=str(self.table))
        positions = start_positions(table, identity, bounds, stream=self._stream)
        state = self._table.evolve(state, self._committer)
        self._table.open(state)
        if self._event_time is not None:
            require_event_time(state, self._event_time.column, table=str(self.table))
        kept_by = self.spec.spec.retention_column
        if kept_by is not None:
            require_event_time(state, kept_by, table=str(self.table), what="retention")
        self._show_watermark(state)
        if self._announcer is not None:
            self._announcer.plan(state)
        self._beside = streams_named(state) - {self._stream}
        source.seek(positions)
        self._dead_letters.register(state)
        self._context.registry.update(self.name, progress_s=self._context.clock())
        log.info(
            "ingestor planned",
            ingestor=self.name,
            table=str(self.table),
            topic=self._topic,
            positions={str(p): o for p, o in positions.items()},
            snapshot_id=state.head_id,
        )
        known = table.next if table is not None else {}
        fresh = frozenset(p for p in positions if p not in known)
        return Plan(source=source, identity=identity, state=state, fresh=fresh)

    def _show(
        self,
        state: TableState,
        table: OffsetMap | None,
        identity: TopicIdentity,
        bounds: Mapping[int, OffsetBounds],
    ) -> None:
        """Record the committed and end offsets, if they belong to the same topic."""
        if table is None or table.source == identity:
            held = next_or_start(table, {p: b.start for p, b in bounds.items()})
            ends = {p: b.end for p, b in bounds.items()}
            self._context.registry.update(
                self.name, committed=held, ends=ends, snapshot_id=state.head_id, measured=True
            )
            self._measured = True

    def _show_watermark(self, state: TableState) -> None:
        """Record the watermark of this version of the table."""
        mark = watermark_in(state, self._stream) if self._event_time is not None else None
        self._context.registry.update(
            self.name,
            watermark_us=None if mark is None else mark.at_us,
            complete_us=None if mark is None else complete_through(state, mark),
        )

    def _commit(
        self, read: OpenBatch, plan: Plan, announced: frozenset[int] | None
    ) -> CommittedBatch | NeedsReplan:
        """Write and commit one batch; runs in the executor."""
        started_s = self._context.clock()
        writer = self._table.writer
        closed = read.close()
        batch = closed.records
        written = self._write(closed, writer)
        change = BatchCommit(
            commit_id=self._context.new_id(),
            table_uuid=plan.state.uuid,
            stream=self._stream,
            source=plan.identity,
            ranges=batch.ranges,
            fresh=plan.fresh,
            files=written.files,
            letters=written.letters,
            registered=self._dead_letters.marker,
            beside=self._beside,
            event_time=self._event_time,
            latest=written.latest,
            at_ms=written.at_ms,
            announced=announced,
        )
        result = self._committer.commit(change, writer)
        if isinstance(result, NeedsReplan):
            log.warning(
                "batch does not fit the table; planning again", ingestor=self.name, reason=result.reason
            )
            return result
        self._reporter.tell(State.RUNNING)
        took_s = self._context.clock() - started_s
        after = {r.partition: r.end for r in batch.ranges}
        known = offsets_in(result.state, self._stream)
        if known is None or any(known.next.get(p, -1) != end for p, end in after.items()):
            # The table includes the batch and more: another writer of this stream is active.
            log.info("the table is ahead of this batch; planning again", ingestor=self.name)
            return NeedsReplan(state=result.state, reason="the table is ahead of the batch")
        self._follow(writer, result.state)
        self._report(written, result, after, oldest_ms=batch.oldest_ms, took_s=took_s)
        if written.letters:
            self._dead_letters.register(result.state)
            self._reporter.tell(State.RUNNING)
        if result.by_us and writer is self._table.writer:
            self._small_files.add(written.files)
        recorded = (announced or frozenset()) | self._touched(result.state, written)
        return CommittedBatch(state=result.state, after=after, recorded=recorded)

    def _touched(self, state: TableState, written: WrittenBatch) -> frozenset[int]:
        """Partitions by event time that a batch is in: what was announced of them before is out of date."""
        found = None if self._event_time is None else time_field(state, self._event_time.column)
        return frozenset() if found is None else touched(written.files, found)

    @property
    def _announced(self) -> frozenset[int] | None:
        """Partitions that were announced, to be recorded by the next commit; None if none are announced."""
        return None if self._announcer is None else self._announcer.sent

    def _announce(self, state: TableState) -> None:
        if self._announcer is not None:
            context = self._context
            self._announcer.look(state, now_s=context.clock(), now_ms=context.ports.now_ms())

    def _recorded(self, result: CommittedBatch) -> None:
        if self._announcer is not None:
            self._announcer.recorded(result.recorded)

    def _mark_change(self, state: TableState) -> MarkCommit | None:
        """The commit of the watermark alone; None without a watermark."""
        if self._event_time is None:
            return None
        return MarkCommit(
            commit_id=self._context.new_id(),
            table_uuid=state.uuid,
            stream=self._stream,
            event_time=self._event_time,
            now_ms=self._context.ports.now_ms(),
            announced=self._announced,
        )

    def _move_mark(self, change: MarkCommit) -> CommittedBatch | NeedsReplan:
        """Commit the watermark of a stream that has nothing else to commit; runs in the executor."""
        result = self._committer.commit(change, self._table.writer)
        if isinstance(result, NeedsReplan):
            return result
        self._reporter.tell(State.RUNNING)
        self._show_watermark(result.state)
        log.info("watermark moved", ingestor=self.name, watermark=self._watermark_text)
        return CommittedBatch(state=result.state, after={}, recorded=change.announced or frozenset())

    def _new_retirement(self) -> Retirement | None:
        body, origins = self.spec.spec, self._context.origins
        if body.retention is None or body.retention_column is None or origins is None:
            return None
        return Retirement(
            self.name,
            stream=self._stream,
            topic=self._topic,
            column=body.retention_column,
            age_s=body.retention.seconds,
            origins=origins,
        )

    def _retire_due(self, now_s: float) -> bool:
        """Whether to look for old rows; the first time an interval after the start."""
        if self._retirement is None:
            return False
        if self._retired_s is None:
            self._retired_s = now_s
        return now_s - self._retired_s >= self._context.limits.retire_s

    def _retire(self, plan: Plan) -> CommittedBatch | NeedsReplan:
        """Drop files whose rows are too old, as many as one commit may; runs in the executor."""
        assert self._retirement is not None
        started_s = self._context.clock()
        self._retired_s = started_s
        now_ms = self._context.ports.now_ms()
        change = self._retirement.change(plan.state, self.files, now_ms=now_ms, new_id=self._context.new_id)
        if change is None:
            return CommittedBatch(state=plan.state, after={})
        result = self._committer.commit(change, self._table.writer)
        if isinstance(result, NeedsReplan):
            log.info("old files changed meanwhile; planning again", ingestor=self.name, reason=result.reason)
            return result
        self._reporter.tell(State.RUNNING)
        self._small_files.forget(frozenset(file.path for file in change.removed))
        # There may be more: the next look is soon, and a batch that waits goes first.
        self._retired_s = self._context.clock() - self._context.limits.retire_s + RETIRE_PAUSE_S
        rows = sum(file.records for file in change.removed)
        if result.by_us:
            self._count(retired_rows=rows, retired_files=len(change.removed))
        log.info(
            "old rows dropped",
            ingestor=self.name,
            table=str(self.table),
            files=len(change.removed),
            rows=rows,
            ms=round((self._context.clock() - started_s) * 1_000, 1),
        )
        return CommittedBatch(state=result.state, after={})

    @property
    def _watermark_text(self) -> str:
        return as_text(self._context.registry.get(self.name).watermark_us)

    def _new_announcer(self) -> Announcer | None:
        event_time = self.spec.spec.event_time
        if event_time is None or event_time.complete_topic is None or self._event_time is None:
            return None
        return Announcer(
            self._context.sources,
            event_time.complete_topic,
            name=self.name,
            stream=self._stream,
            table=str(self.table),
            rule=self._event_time,
            registry=self._context.registry,
        )

    def _follow(self, writer: TableWriter, state: TableState) -> None:
        """Take another writer if the table's columns changed; files of the former one are not merged."""
        if not writer.is_current(state):
            self._table.follow(state)
            self._small_files.clear()

    def _merge_due(self, now_s: float, *, urgent: bool) -> bool:
        """Whether to merge now; if a batch is waiting, only what has waited for long."""
        if not self.spec.spec.batching.merge_small_files:
            return False
        return self._small_files.due(now_s, urgent=urgent) is not None

    def _merge(self, plan: Plan) -> CommittedBatch | NeedsReplan:
        """Replace small files of this stream by one with the same rows; runs in the executor.

        Files that cannot be merged are left as they are.
        """
        started_s = self._context.clock()
        group = self._small_files.due(started_s)
        if group is None:
            return CommittedBatch(state=plan.state, after={})
        self._small_files.drop(group, now_s=started_s)
        writer, reason = self._table.writer, why_not(plan.state)
        if reason is None:
            try:
                encoded = writer.merge(group.files)
            except (ValueError, KeyError, pa.ArrowException) as e:
                reason = f"{type(e).__name__}: {e}"
        if reason is not None:
            self._small_files.clear()
            log.info("small files are left as they are", ingestor=self.name, reason=reason)
            return CommittedBatch(state=plan.state, after={})
        change = MergeCommit(
            commit_id=self._context.new_id(),
            table_uuid=plan.state.uuid,
            stream=self._stream,
            files=writer.put(encoded),
            removed=group.files,
        )
        result = self._committer.commit(change, writer)
        if isinstance(result, NeedsReplan):
            log.info(
                "small files changed meanwhile; planning again", ingestor=self.name, reason=result.reason
            )
            return result
        self._reporter.tell(State.RUNNING)
        self._small_files.add(change.files, level=group.level + 1)
        self._context.registry.add(self.name, merges=int(result.by_us))
        self._follow(writer, result.state)
        log.info(
            "small files merged",
            ingestor=self.name,
            files=len(group.files),
            rows=sum(file.records for file in change.files),
            merge_level=group.level + 1,
            ms=round((self._context.clock() - started_s) * 1_000, 1),
        )
        return CommittedBatch(state=result.state, after={})

    def _write(self, batch: DecodedBatch, writer: TableWriter) -> WrittenBatch:
        """Write the files of a batch: data files and, if records are bad, dead letters."""
        context = self._context
        started_s = context.clock()
        made = encode(batch.decoded, writer)
        files = writer.put(made.files)
        at_ms = context.ports.now_ms()
        at = datetime.fromtimestamp(at_ms / 1_000, tz=UTC)
        letters = self._dead_letters.write(batch.records, made.bad, at=at)
        return WrittenBatch(
            made=made,
            files=files,
            letters=letters,
            latest=latest_in(batch, made.bad, self._event_time, now_ms=at_ms),
            at_ms=at_ms,
            decode_s=batch.decode_s,
            write_s=context.clock() - started_s,
        )

    def _report(
        self,
        written: WrittenBatch,
        done: Done,
        after: Mapping[int, int],
        *,
        oldest_ms: int | None,
        took_s: float,
    ) -> None:
        """Show a committed batch on the status page and in the log.

        Args:
            written: the batch.
            done: its commit.
            after: partition to next offset.
            oldest_ms: time of its oldest record in the log, in milliseconds since the epoch, if known.
            took_s: duration from decoding to the commit's response, in seconds.
        """
        registry, made, took_ms = self._context.registry, written.made, took_s * 1_000
        now_ms = self._context.ports.now_ms()
        if done.by_us:
            size = sum(file.bytes for file in written.files)
            registry.add(
                self.name, rows=made.rows, bad_records=len(made.bad), bytes=size, batches=1, commits=1
            )
            if oldest_ms is not None:
                registry.observe(self.name, max(0, now_ms - oldest_ms) / 1_000)
        registry.advance(self.name, after)
        self._show_watermark(done.state)
        registry.update(
            self.name,
            commit_ms=took_ms,
            commit_at_ms=now_ms,
            progress_s=self._context.clock(),
            snapshot_id=done.state.head_id,
            table_files=done.state.total("data-files"),
            table_bytes=done.state.total("files-size"),
            table_snapshots=len(done.state.metadata.get("snapshots") or ()),
            **_sizes(done),
        )
        log.debug(
            "batch committed",
            ingestor=self.name,
            rows=made.rows,
            bad=len(made.bad),
            attempts=done.attempts,
            ms=round(took_ms, 1),
            decode_ms=round(written.decode_s * 1_000, 1),
            write_ms=round(written.write_s * 1_000, 1),
        )
        if written.letters:
            log.warning(
                "bad records went to dead letters",
                ingestor=self.name,
                records=len(made.bad),
                table=str(self._dead_letter_table),
                first=next(iter(made.bad.values())),
            )

    def _measure(self, source: TopicReader) -> bool:
        """Refresh the end offsets, which the lag is computed from; False if a new plan is needed."""
        ends = {p: b.end for p, b in source.bounds().items()}
        status = self._context.registry.update(self.name, ends=ends, measured=True)
        if status.lag == 0:
            self._context.registry.update(self.name, progress_s=self._context.clock())
        if set(ends) - set(status.committed):
            log.info("the topic has new partitions; planning again", ingestor=self.name)
            return False
        return True

    def _look(self, plan: Plan) -> TableState | None:
        """Check topic and table while no records arrive; None if a new plan is needed."""
        require_same_source(plan.identity, plan.source.identity())
        now, before = self._committer.load(), plan.state
        moved = now.uuid != before.uuid or offsets_in(now, self._stream) != offsets_in(before, self._stream)
        if moved or not self._table.writer.is_current(now):
            log.info("the table moved under this ingestor; planning again", ingestor=self.name)
            return None
        self._dead_letters.register(now)
        return now

    def _new_committer(self, table: TableName) -> Committer:
        context = self._context
        return Committer(
            context.catalog,
            table,
            ports=context.ports,
            retention=context.retention,
            on_wait=self._reporter.tell_wait,
            on_refusal=self._count_refusal,
            on_retry=lambda: self._count(retries=1),
            on_resolved=lambda count: self._count(resolved=count),
        )

    def _count_refusal(self, outcome: Conflict | Unknown) -> None:
        counter = "conflicts" if isinstance(outcome, Conflict) else "unknowns"
        self._count(**{counter: 1})

    def _count(self, **amounts: int) -> None:
        self._context.registry.add(self.name, **amounts)

    def _new_batch(self) -> OpenBatch:
        limits = self.spec.spec.batching
        builder = BatchBuilder(
            records_max=limits.max_records,
            bytes_max=limits.max_bytes,
            latency_s_max=limits.max_latency_seconds,
        )
        context = self._context
        return OpenBatch(
            builder, self._table.decoder, decode_records=context.decode_records, clock=context.clock
        )

    def _rest(self, seconds: float) -> bool:
        """Wait; False if the process stops meanwhile. The lag is unknown if this cycle did not measure it."""
        if not self._measured:
            self._context.registry.update(self.name, measured=False)
        try:
            self._context.ports.sleep(seconds)
        except StoppedError:
            return False
        return True

    def _close(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            source.close()


def _sizes(done: Done) -> dict[str, int | None]:
    """Sizes of the table's metadata for the status page; none if another list than the last was applied."""
    if done.listed is None:
        return {}
    size = len(orjson.dumps(done.state.metadata)) + done.listed.bytes
    return {"table_manifests": done.listed.manifests, "metadata_bytes": size}
