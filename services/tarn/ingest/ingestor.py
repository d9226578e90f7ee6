"""One ingestor: plan, read, decode, write, commit, repeat. Its only state is the table's.

While the executor writes and commits a batch, the next one is read, and decoded if it is large. At most one
commit is under way, and nothing else looks at the table meanwhile. After any failure the next plan starts
from the table: an uncommitted batch is read again from the log, a committed one is found in the table's
offset map.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pyarrow as pa
import structlog

from tarn.core import dead_letter
from tarn.core.batch import BatchBuilder
from tarn.core.completion import Announced
from tarn.core.errors import NotFoundError, TarnError, TooManyPartitionsError, UnavailableError
from tarn.core.offsets import OffsetRange, TopicIdentity, require_same_source
from tarn.core.small_files import Group, SmallFiles
from tarn.core.source import NoMessagesError, NoSuchTopicError, TopicReader, start_positions
from tarn.core.spec import IngestorSpec
from tarn.core.table_catalog import TableName
from tarn.core.table_files import TableFiles, TableWriter
from tarn.core.table_state import TableState, WrittenFile
from tarn.ingest.batch_commit import (
    BatchCommit,
    CommittedBatch,
    WrittenBatch,
    encode,
    offsets_in,
    require_only_stream,
)
from tarn.ingest.batch_memory import Account
from tarn.ingest.bookkeeper import Bookkeeper, Seat
from tarn.ingest.changes import NeedsReplan
from tarn.ingest.committer import Committer
from tarn.ingest.context import IngestContext, StoppedError
from tarn.ingest.dead_letters import DeadLetterWriter
from tarn.ingest.event_time import event_time_rule, latest_in
from tarn.ingest.merge_commit import MergeCommit, why_not
from tarn.ingest.open_batch import DecodedBatch, OpenBatch
from tarn.ingest.progress import Progress
from tarn.ingest.replicas import Replica
from tarn.ingest.sampling import Sampler
from tarn.ingest.status import State, StatusReporter
from tarn.ingest.stream_table import StreamTable
from tarn.ingest.truncation import require_untruncated
from tarn.ingest.upkeep import Upkeep

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the next batch builds on.

    Attributes:
        source: topic reader, at the table's offsets.
        identity: identity of the topic.
        state: version of the table.
        fresh: partitions missing from the table's offset map.
        own: partitions that are read here, with the offset that each starts at.
        epochs: partition to the leader epoch of its log when this was planned. A record of a later one was
            written after a broker took the log over, perhaps shorter than it was: a new plan finds out.
    """

    source: TopicReader
    identity: TopicIdentity
    state: TableState
    fresh: frozenset[int]
    own: Mapping[int, int]
    epochs: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """Small files and the one that has their rows, in the store and not yet in the table.

    Attributes:
        group: the small files.
        writer: their writer.
        started_s: when it began.
        files: the one that replaces them.
        reason: why they cannot be merged; then there is none.
        letters: whether they are of the dead-letter table.
    """

    group: Group
    writer: TableWriter
    started_s: float
    files: tuple[WrittenFile, ...] = ()
    reason: str | None = None
    letters: bool = False


class Ingestor:
    """Runs one spec, or one replica of it.

    Args:
        spec: ingestor spec.
        context: dependencies and limits.
        replica: number of the replica, from 0.
    """

    def __init__(self, spec: IngestorSpec, context: IngestContext, *, replica: int = 0) -> None:
        context = context.acting_as(spec.spec.run_as)
        self.spec = spec
        self._replica = Replica(index=replica, count=spec.spec.replicas)
        self._progress = Progress(spec, self._replica, context)
        self.name = self._progress.name
        self._stream = spec.stream
        self._context = context
        body = spec.spec
        self._topic = spec.topic
        self._table = StreamTable(spec, context)
        self.table = self._table.name
        self._small_files = SmallFiles()
        self._merging: frozenset[str] = frozenset()  # files of the merge under way
        self._gone: frozenset[str] = frozenset()  # those of them that were dropped meanwhile
        self._taken: dict[int, int] = {}  # leader epochs for which the last plan was given up
        self._reporter = StatusReporter(
            self.name, context.registry, clock=context.clock, now_ms=context.ports.now_ms
        )
        letters = body.dead_letters.table
        self._dead_letter_table = TableName(letters.levels, letters.name)
        limits, latency_s = context.limits, body.batching.max_latency_seconds
        self._commits = self._seat(
            self.table, gather_s=min(limits.gather_s_max, latency_s * limits.gather_share)
        )
        self._letter_commits = self._seat(self._dead_letter_table)
        self._dead_letters = DeadLetterWriter(
            self._letter_commits,
            context.tables.table(str(self._dead_letter_table), dead_letter.FIELDS, trace=False),
            stream=self._stream,
            topic=self._topic,
            table=str(self._dead_letter_table),
            new_id=context.new_id,
            clock=context.clock,
        )
        self._source: TopicReader | None = None
        self._batch_due = False
        self._beside: frozenset[str] = frozenset()
        self._event_time = event_time_rule(spec)
        self._upkeep = Upkeep(
            spec,
            context,
            self._replica,
            commits=self._commits,
            progress=self._progress,
            reporter=self._reporter,
        )

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
            except (UnavailableError, NoSuchTopicError, NoMessagesError) as e:
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
        plan = self._begun(self._plan())
        if plan is None:
            return
        plan.source.seek(plan.own)
        self._reporter.tell(State.RUNNING)
        # Left by any way out only when no commit is under way.
        try:
            with (
                self._context.memory.account() as memory,
                self._context.executor() as merger,
                self._context.executor() as executor,
            ):
                self._ingest(plan, memory, executor, merger, until)
        except TarnError:
            with suppress(TarnError):
                self._dead_letters.register_waiting()
            raise
        finally:
            self._commits.turn.leave()

    def _ingest(
        self, plan: Plan, memory: Account, executor: Executor, merger: Executor, until: Callable[[], bool]
    ) -> None:
        """Read batches and commit them in order, and merge small files beside it; see `cycle`."""
        limits = self._context.limits
        batch = self._new_batch(memory)
        now = self._context.clock()
        committed_s = looked_s = group_commit_s = now
        uncommitted: dict[int, int] = {}
        commit: Future[CommittedBatch | NeedsReplan] | None = None
        merge: Future[Merged] | None = None
        merged = False  # since the last batch
        states = False  # whether the commit under way states offsets and watermark as they are now
        while not until():
            now = self._context.clock()
            self._context.registry.update(self.name, beat_s=now)
            wait_s = self._commits.turn.wait_s(now, opened_s=batch.opened_s, wait_s=batch.wait_s(now))
            idle = wait_s is None and batch.ranges() and now - committed_s >= limits.watermark_s
            due = wait_s == 0.0 or idle
            if commit is not None and (due or commit.done()):
                self._batch_due = True
                result = commit.result()
                if isinstance(result, NeedsReplan):
                    return
                commit = None
                memory.give_back()
                plan = replace(plan, state=result.state, fresh=plan.fresh - result.after.keys())
                if states:
                    committed_s = self._context.clock()
                uncommitted.update(result.after)
                continue
            if merge is None and commit is None:
                merge = self._begin_merge(plan.state, merger, now)
                if merge is not None:
                    continue
            if merge is not None and commit is None and not (due and merged) and merge.done():
                commit = executor.submit(self._commit_merge, plan, merge.result())
                merge, merged, states = None, True, False
                continue
            if commit is None and not due and self._upkeep.retire_due(now):
                self._batch_due = False
                commit, states = executor.submit(self._retire, plan), False
                continue
            if commit is None and not due and self._dead_letters.due():
                commit, states = executor.submit(self._register_due, plan), False
                continue
            if due:
                merged = False
                # Topic ids are never reused: an unchanged id means that all records came from this topic.
                require_same_source(plan.identity, plan.source.identity())
                self._commits.turn.close(now)
                memory.close()
                commit, states = executor.submit(self._commit, batch, plan, self._upkeep.announced), True
                batch = self._new_batch(memory)
                continue
            if uncommitted and now - group_commit_s >= limits.group_commit_interval_s:
                plan.source.commit_group_offsets(uncommitted)
                uncommitted, group_commit_s = {}, now
            if now - looked_s >= limits.check_interval_s:
                looked_s = now
                if not self._measure(plan):
                    return
                if wait_s is None and commit is None:
                    seen = self._look(plan)
                    if seen is None:
                        return
                    plan = replace(plan, state=seen)
                self._upkeep.announce(plan.state)
                still = wait_s is None and commit is None and now - committed_s >= limits.watermark_s
                change = self._upkeep.mark_change(plan.state) if still else None
                if change is not None:
                    commit, states = executor.submit(self._upkeep.move_mark, change, self._table.writer), True
                    continue
            timeout_s = limits.poll_s_max if wait_s is None else min(wait_s, limits.poll_s_max)
            if not self._read(plan, batch, timeout_s):
                return
        if commit is not None:
            self._batch_due = True
            result = commit.result()
            if isinstance(result, CommittedBatch):
                uncommitted.update(result.after)
                plan = replace(plan, state=result.state)
        if uncommitted:
            plan.source.commit_group_offsets(uncommitted)
        self._dead_letters.register_waiting()

    def _read(self, plan: Plan, batch: OpenBatch, timeout_s: float) -> bool:
        """Poll once, if there is memory for what that may return, and add it to the batch.

        Returns:
            False if a new plan is needed: there are records of a later leader epoch than that of the plan.
        """
        if not plan.own:
            # More replicas than partitions: this one stands by, as the topic may get more.
            self._context.ports.sleep(timeout_s)
            return True
        records_max = batch.borrow()
        if not records_max:
            self._context.ports.sleep(min(timeout_s, self._context.limits.memory_s))
            return True
        polled = plan.source.poll(records_max=records_max, timeout_s=timeout_s)
        if self._taken_over(plan, {part.partition: part.epoch for part in polled}):
            return False
        while polled:  # the batch alone holds them while they are decoded
            batch.add(polled.pop(0))
        batch.settle()
        return True

    def _taken_over(self, plan: Plan, epochs: Mapping[int, int | None]) -> bool:
        """Whether one of these leader epochs is later than that of the plan.

        Raises:
            UnavailableError: the last plan was given up for the same ones, so the broker's answers to the
                next plan are older than its records.
        """
        later = {
            p: epoch for p, epoch in epochs.items() if epoch is not None and epoch > plan.epochs.get(p, epoch)
        }
        if later:
            if later == self._taken:
                raise UnavailableError(
                    f"topic {plan.identity.topic} has records of leader epochs {later}, and its broker still "
                    f"states {dict(plan.epochs)} for its partitions, so it is not known whether its log was "
                    "truncated; see the broker's log"
                )
            self._taken = later
            log.info(
                "a broker has taken partitions over; planning again",
                ingestor=self.name,
                epochs={str(p): epoch for p, epoch in later.items()},
            )
        return bool(later)

    def _plan(self) -> Plan:
        """Open the topic, create missing tables and topics, and look up the table's committed offsets."""
        kafka = self.spec.spec.source.kafka
        self._progress.measured = False
        self._small_files.clear()
        self._gone = self._merging = frozenset()
        source = self._source = self._context.sources.open(self._topic, stream=self._stream)
        try:
            identity = source.identity()
        except NoSuchTopicError:
            if not kafka.create:
                raise
            self._context.sources.create(self._topic, partitions=kafka.partitions)
            identity = source.identity()
        self._dead_letters.ensure()
        sampler = Sampler(self.spec, source, self._context, name=self.name)
        state = self._table.ensure(self._commits, sampler)
        # Before anything that may stop the stream: what waits is registered although it cannot go on.
        self._dead_letters.register(state)
        bounds = source.bounds()
        table = offsets_in(state, self._stream)
        self._progress.planned(state, table, identity, bounds)
        # From here on the reported lag is true even if the ingestor stops; each plan refreshes it.
        positions = start_positions(table, identity, bounds, stream=self._stream)
        require_untruncated(
            source,
            table,
            bounds,
            stream=self._stream,
            clock=self._context.clock,
            poll_s=self._context.limits.poll_s_max,
        )
        self._beside = require_only_stream(state, self._stream, identity, positions, table=str(self.table))
        state = self._table.evolve(state, self._commits, sampler, positions)
        self._table.open(state)
        self._upkeep.require_columns(state)
        self._progress.watermark(state)
        own = self._replica.own(positions)
        self._context.registry.update(self.name, progress_s=self._context.clock())
        log.info(
            "ingestor planned",
            ingestor=self.name,
            table=str(self.table),
            topic=self._topic,
            positions={str(p): o for p, o in own.items()},
            snapshot_id=state.head_id,
        )
        known = table.next if table is not None else {}
        fresh = frozenset(p for p in positions if p not in known)
        # Asked for before the log was looked at: what is taken over since then is noticed by its records.
        epochs = {p: b.epoch for p, b in bounds.items() if p in own and b.epoch is not None}
        return Plan(source=source, identity=identity, state=state, fresh=fresh, own=own, epochs=epochs)

    def _begun(self, plan: Plan) -> Plan | None:
        """The plan, once the table has an offset of every partition read here; None if a new one is needed.

        The start of a partition is committed before a record of it is read. If the log then loses records
        before their commit, the next plan finds a gap, and not a log that begins later.
        """
        begun = plan.fresh & plan.own.keys()
        if not begun:
            return plan
        starts = {p: plan.own[p] for p in begun}
        change = BatchCommit(
            commit_id=self._context.new_id(),
            table_uuid=plan.state.uuid,
            stream=self._stream,
            source=plan.identity,
            ranges=tuple(OffsetRange(partition=p, start=at, end=at) for p, at in sorted(starts.items())),
            fresh=plan.fresh,
            epochs=plan.epochs,
            registered=self._dead_letters.marker(plan.state.uuid),
            beside=self._beside,
            event_time=self._event_time,
            at_ms=self._context.ports.now_ms(),
            announced=self._upkeep.announced,
        )
        result = self._commits.commit(change, self._table.writer)
        known = offsets_in(result.state, self._stream)
        if isinstance(result, NeedsReplan) or known is None or starts.items() - known.next.items():
            log.info("the table moved while a partition began; planning again", ingestor=self.name)
            return None
        self._progress.begun(result.state)
        log.info("partitions begun", ingestor=self.name, offsets={str(p): o for p, o in starts.items()})
        return replace(plan, state=result.state, fresh=plan.fresh - begun)

    def _commit(
        self, read: OpenBatch, plan: Plan, announced: Announced | None
    ) -> CommittedBatch | NeedsReplan:
        """Write and commit one batch, in several parts if one commit cannot have it; runs in the executor.

        If the process stops, the parts that are left are read again.
        """
        started_s = self._context.clock()
        waiting = [read.close()]
        after: dict[int, int] = {}
        while True:
            result = self._commit_next(waiting, plan, announced, started_s)
            if isinstance(result, NeedsReplan):
                return result
            after.update(result.after)
            if not waiting or self._context.stopping():
                return CommittedBatch(state=result.state, after=after)
            plan = replace(plan, state=result.state, fresh=plan.fresh - result.after.keys())
            started_s = self._context.clock()

    def _commit_next(
        self, waiting: list[DecodedBatch], plan: Plan, announced: Announced | None, started_s: float
    ) -> CommittedBatch | NeedsReplan:
        """Write and commit the last of the parts that wait; runs in the executor."""
        writer = self._table.writer
        # From here on the part is its files: neither records nor columns are held while they are on the way.
        written = self._write_next(waiting, writer)
        change = BatchCommit(
            commit_id=self._context.new_id(),
            table_uuid=plan.state.uuid,
            stream=self._stream,
            source=plan.identity,
            ranges=written.ranges,
            fresh=plan.fresh,
            epochs=plan.epochs,
            files=written.files,
            letters=written.letters,
            registered=self._dead_letters.marker(plan.state.uuid),
            beside=self._beside,
            event_time=self._event_time,
            latest=written.latest,
            at_ms=written.at_ms,
            announced=announced,
        )
        try:
            result = self._commits.commit(change, writer)
        finally:
            self._leave(written.files)
        if isinstance(result, NeedsReplan):
            log.warning(
                "batch does not fit the table; planning again", ingestor=self.name, reason=result.reason
            )
            return result
        self._reporter.tell(State.RUNNING)
        took_s = self._context.clock() - started_s
        after = {r.partition: r.end for r in written.ranges}
        known = offsets_in(result.state, self._stream)
        if known is None or any(known.next.get(p, -1) != end for p, end in after.items()):
            # The table includes the batch and more: another writer of this stream is active.
            log.info("the table is ahead of this batch; planning again", ingestor=self.name)
            return NeedsReplan(state=result.state, reason="the table is ahead of the batch")
        self._follow(writer, result.state)
        self._progress.committed(
            written, result, after, commit_id=change.commit_id, oldest_ms=written.oldest_ms, took_s=took_s
        )
        self._dead_letters.listed(result.state)
        if self._dead_letters.due():
            self._register(result.state)
        if result.by_us and writer is self._table.writer:
            self._small_files.add(written.files)
        return CommittedBatch(state=result.state, after=after)

    def _register(self, state: TableState) -> None:
        self._dead_letters.register(state)
        self._reporter.tell(State.RUNNING)

    def _register_due(self, plan: Plan) -> CommittedBatch:
        """Register dead letters between two batches; runs in the executor."""
        self._register(plan.state)
        return CommittedBatch(state=plan.state, after={})

    def _retire(self, plan: Plan) -> CommittedBatch | NeedsReplan:
        """Drop files whose rows are too old; runs in the executor."""

        def forget(files: tuple[WrittenFile, ...]) -> None:
            paths = frozenset(file.path for file in files)
            self._small_files.forget(paths)
            self._gone |= paths & self._merging

        return self._upkeep.retire(
            plan.state, self.files, self._table.writer, on_removed=forget, urgent=lambda: self._batch_due
        )

    def _follow(self, writer: TableWriter, state: TableState) -> None:
        """Take another writer if the table's columns changed; files of the former one are not merged."""
        if not writer.is_current(state):
            self._table.follow(state)
            self._small_files.clear()

    def _begin_merge(self, state: TableState, merger: Executor, now_s: float) -> Future[Merged] | None:
        """Begin to merge small files that are due, also while batches wait: they do not wait for it."""
        if not self.spec.spec.batching.merge_small_files:
            return None
        writer = self._table.writer
        group = self._small_files.due(now_s, rows_max=writer.merge_rows_max)
        if group is None:
            return self._begin_letters_merge(merger, now_s)
        reason = why_not(state)
        if reason is not None:
            self._small_files.clear()
            self._unmerged(reason)
            return None
        if not self._context.merging.acquire(blocking=False):
            return None
        self._small_files.drop(group, now_s=now_s)
        self._merging = group.paths
        try:
            return merger.submit(self._merge, group, writer)
        except RuntimeError:  # no thread could be started
            self._context.merging.release()
            raise

    def _begin_letters_merge(self, merger: Executor, now_s: float) -> Future[Merged] | None:
        due = self._dead_letters.merge_due(now_s)
        if due is None or not self._context.merging.acquire(blocking=False):
            return None
        group, writer = due
        self._dead_letters.drop(group, now_s=now_s)
        try:
            try:
                reason = why_not(self._letter_commits.load())
            except (NotFoundError, UnavailableError) as e:
                # A merge is not worth ending the batches for; whoever registers makes the table again.
                reason = e.message
            if reason is None:
                return merger.submit(self._merge, group, writer, letters=True)
        except BaseException:  # the catalog refused, or no thread could be started
            self._context.merging.release()
            raise
        self._context.merging.release()
        self._letters_unmerged(reason)
        return None

    def _letters_unmerged(self, reason: str) -> None:
        log.info("dead-letter files are left as they are", ingestor=self.name, reason=reason)

    def _unmerged(self, reason: str) -> None:
        """Files that cannot be merged are left as they are."""
        log.info("small files are left as they are", ingestor=self.name, reason=reason)

    def _merge(self, group: Group, writer: TableWriter, *, letters: bool = False) -> Merged:
        """Write the rows of small files as one file; runs beside the batches."""
        merged = Merged(group=group, writer=writer, started_s=self._context.clock(), letters=letters)
        try:
            return replace(merged, files=writer.put(writer.merge(group.files)))
        except (ValueError, KeyError, pa.ArrowException) as e:
            return replace(merged, reason=f"{type(e).__name__}: {e}")
        finally:
            self._context.merging.release()

    def _commit_merge(self, plan: Plan, merged: Merged) -> CommittedBatch | NeedsReplan:
        """Replace the small files by the one that has their rows; runs in the executor."""
        group, writer, reason = merged.group, merged.writer, merged.reason
        if merged.letters:
            if reason is None:
                self._dead_letters.commit_merge(group, merged.files, writer)
                self._reporter.tell(State.RUNNING)
            else:
                self._letters_unmerged(reason)
            return CommittedBatch(state=plan.state, after={})
        gone = self._gone
        self._gone = self._merging = frozenset()
        if reason is not None:
            self._unmerged(reason)
            return CommittedBatch(state=plan.state, after={})
        if writer is not self._table.writer:
            return CommittedBatch(state=plan.state, after={})
        if gone:
            self._small_files.add([f for f in group.files if f.path not in gone], level=group.level)
            return CommittedBatch(state=plan.state, after={})
        change = MergeCommit(
            commit_id=self._context.new_id(),
            table_uuid=plan.state.uuid,
            stream=self._stream,
            files=merged.files,
            removed=group.files,
        )
        result = self._commits.commit(change, writer)
        if isinstance(result, NeedsReplan):
            log.info(
                "small files changed meanwhile; planning again", ingestor=self.name, reason=result.reason
            )
            return result
        self._reporter.tell(State.RUNNING)
        if writer is self._table.writer:
            self._small_files.add(change.files, level=group.level + 1)
        took_s = self._context.clock() - merged.started_s
        self._progress.merged(change, result, took_s=took_s)
        self._follow(writer, result.state)
        log.info(
            "small files merged",
            ingestor=self.name,
            files=len(group.files),
            rows=sum(file.records for file in change.files),
            merge_level=group.level + 1,
            ms=round(took_s * 1_000, 1),
        )
        return CommittedBatch(state=result.state, after={})

    def _write_next(self, waiting: list[DecodedBatch], writer: TableWriter) -> WrittenBatch:
        """Write the last of the parts that wait; one that touches too many partitions becomes two before."""
        while True:
            part = waiting.pop()
            try:
                return self._write(part, writer)
            except TooManyPartitionsError:
                if len(part.records) < 2:
                    raise
                waiting += reversed(part.halves())

    def _write(self, batch: DecodedBatch, writer: TableWriter) -> WrittenBatch:
        """Write the files of a batch: data files and, if records are bad, dead letters."""
        context = self._context
        started_s = context.clock()
        made = encode(batch.decoded, writer)
        files = writer.begin(made.files)
        at_ms = context.ports.now_ms()
        at = datetime.fromtimestamp(at_ms / 1_000, tz=UTC)
        try:
            letters = self._dead_letters.write(batch.records, made.bad, at=at)
        except BaseException:
            self._leave(files)
            raise
        return WrittenBatch(
            rows=made.rows,
            bad=made.bad,
            ranges=batch.records.ranges,
            oldest_ms=batch.records.oldest_ms,
            files=files,
            letters=letters,
            latest=latest_in(batch, made.bad, self._event_time, now_ms=at_ms),
            at_ms=at_ms,
            decode_s=batch.decode_s,
            write_s=context.clock() - started_s,
        )

    def _leave(self, files: tuple[WrittenFile, ...]) -> None:
        """Write files no further that no table will list, and hold their batch's memory until that is so.

        Those of a commit are in the store, and a process that stops does not wait.
        """
        for file in files:
            file.leave(not self._context.stopping())

    def _measure(self, plan: Plan) -> bool:
        """Refresh the end offsets, which the lag is computed from; False if a new plan is needed."""
        bounds = plan.source.bounds()
        status = self._progress.reached(bounds)
        if set(status.ends) - set(status.committed):
            log.info("the topic has new partitions; planning again", ingestor=self.name)
            return False
        return not self._taken_over(plan, {p: b.epoch for p, b in bounds.items() if p in plan.own})

    def _look(self, plan: Plan) -> TableState | None:
        """Check topic and table while no records arrive; None if a new plan is needed."""
        require_same_source(plan.identity, plan.source.identity())
        now, before = self._commits.load(), plan.state
        moved = now.uuid != before.uuid or self._stands(now) != self._stands(before)
        if moved or not self._table.writer.is_current(now):
            log.info("the table moved under this ingestor; planning again", ingestor=self.name)
            return None
        self._dead_letters.listed(now)
        return now

    def _stands(self, state: TableState) -> tuple[TopicIdentity, Mapping[int, int]] | None:
        """The topic and the next offsets of this reader's partitions in this version of the table, if any."""
        found = offsets_in(state, self._stream)
        own = self._replica.own(found.next) if found is not None else {}
        return (found.source, own) if found is not None and own else None

    def _seat(self, table: TableName, *, gather_s: float = 0.0) -> Seat:
        """This reader's place at the table's bookkeeper; with `commit: direct` it has one of its own."""
        context = self._context

        def make() -> Bookkeeper:
            # It outlives this reader, so it must not wait with the reader's own sleep.
            ports = context.shared_ports or context.ports
            committer = Committer(context.catalog, table, ports=ports, retention=context.retention)
            return Bookkeeper(committer, clock=context.clock)

        direct = self.spec.spec.commit == "direct"
        keeper = make() if direct else context.bookkeepers.of(table, make)
        return keeper.seat(
            on_wait=self._reporter.tell_wait,
            on_refusal=self._progress.refused,
            on_retry=self._progress.retried,
            on_resolved=self._progress.resolved,
            require_going=context.require_going,
            gather_s=gather_s,
        )

    def _new_batch(self, memory: Account) -> OpenBatch:
        limits, context = self.spec.spec.batching, self._context
        builder = BatchBuilder(
            records_max=limits.max_records,
            bytes_max=min(limits.max_bytes, context.memory.batch_bytes_max),
            latency_s_max=limits.max_latency_seconds,
        )
        return OpenBatch(
            builder,
            self._table.decoder,
            memory=memory,
            decode_records=context.decode_records,
            clock=context.clock,
        )

    def _rest(self, seconds: float) -> bool:
        """Wait; False if the process stops meanwhile. The lag is unknown if this cycle did not measure it."""
        if not self._progress.measured:
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
