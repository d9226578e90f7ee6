"""One ingestor: plan, read, decode, write, commit, repeat. Single-threaded; its only state is the table's.

After any failure the next plan starts from the table: an uncommitted batch is read again from the log, a
committed one is found in the table's offset map.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import structlog

from tarn.adapters.catalog_client import TableName
from tarn.adapters.files import put_files
from tarn.adapters.manifests import Manifests
from tarn.core.batch import BatchBuilder, RawBatch
from tarn.core.decode import Decoder
from tarn.core.errors import TarnError, UnavailableError
from tarn.core.offsets import OffsetMap, TopicIdentity, next_or_start, require_same_source
from tarn.core.source import NoSuchTopicError, OffsetBounds, TopicReader, start_positions
from tarn.core.spec import IngestorSpec
from tarn.core.table_state import TableState
from tarn.ingest.batch_commit import (
    BatchCommit,
    decode,
    encode,
    offsets_in,
    require_only_stream,
    streams_named,
)
from tarn.ingest.committer import Committer, NeedsReplan
from tarn.ingest.context import IngestContext, StoppedError
from tarn.ingest.dead_letters import DeadLetterWriter
from tarn.ingest.status import State, StatusReporter
from tarn.ingest.target_table import TargetTable, dead_letter_request, ensure

log = structlog.get_logger()


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
        self._topic = body.source.kafka.topic
        self.target = TargetTable(spec)
        self._reporter = StatusReporter(
            spec.name, context.registry, clock=context.clock, now_ms=context.ports.now_ms
        )
        letters = body.dead_letters.table
        self._dead_letter_table = TableName(letters.levels, letters.name)
        self._decoder = Decoder(
            body.columns.fields,
            source=self._topic,
            trace=body.trace,
            record_bytes_max=body.dead_letters.max_record_bytes,
        )
        self._committer = self._new_committer(self.target.name)
        self._dead_letters = DeadLetterWriter(
            self._new_committer(self._dead_letter_table),
            context.objects,
            stream=self._stream,
            topic=self._topic,
            table=str(self._dead_letter_table),
            new_id=context.new_id,
        )
        self._source: TopicReader | None = None
        self._beside: frozenset[str] = frozenset()
        self._measured = False
        context.registry.update(
            self.name, table=str(self.target.name), topic=self._topic, stream=self._stream
        )

    # -- lifecycle -----------------------------------------------------------------------------------------

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
        source, identity, state, fresh = self._plan()
        self._reporter.tell(State.RUNNING)
        limits = self._context.limits
        builder = self._new_builder()
        now = self._context.clock()
        committed_s = looked_s = group_commit_s = now
        uncommitted: dict[int, int] = {}
        while not until():
            now = self._context.clock()
            self._context.registry.update(self.name, beat_s=now)
            wait_s = builder.wait_s(now)
            idle = wait_s is None and builder.ranges() and now - committed_s >= limits.watermark_s
            if wait_s == 0.0 or idle:
                result = self._commit(builder.cut(), source, identity, fresh, state.uuid)
                if result is None:
                    return
                state, after = result
                fresh -= after.keys()
                committed_s = self._context.clock()
                uncommitted.update(after)
                builder = self._new_builder()
                continue
            if uncommitted and now - group_commit_s >= limits.group_commit_interval_s:
                source.commit_group_offsets(uncommitted)
                uncommitted, group_commit_s = {}, now
            if now - looked_s >= limits.check_interval_s:
                looked_s = now
                if not self._measure(source) or (wait_s is None and not self._look(source, identity, state)):
                    return
            timeout_s = limits.poll_s_max if wait_s is None else min(wait_s, limits.poll_s_max)
            for polled in source.poll(records_max=max(1, builder.room), timeout_s=timeout_s):
                builder.add(polled, now_s=self._context.clock())
        if uncommitted:
            source.commit_group_offsets(uncommitted)

    # -- steps ---------------------------------------------------------------------------------------------

    def _plan(self) -> tuple[TopicReader, TopicIdentity, TableState, frozenset[int]]:
        """Open the topic, create missing tables and topics, and seek to the table's committed offsets.

        Returns:
            The topic reader, the topic's identity, the table, and the partitions missing from its offset map.
        """
        kafka = self.spec.spec.source.kafka
        self._measured = False
        source = self._source = self._context.sources.open(self._topic, stream=self._stream)
        try:
            identity = source.identity()
        except NoSuchTopicError:
            if not kafka.create:
                raise
            self._context.sources.create(self._topic, partitions=kafka.partitions)
            identity = source.identity()
        self._dead_letters.see(ensure(self._context.catalog, self._dead_letter_table, dead_letter_request()))
        ensure(self._context.catalog, self.target.name, self.target.request())
        state = self._committer.load()
        bounds = source.bounds()
        table = offsets_in(state, self._stream)
        self._show(state, table, identity, bounds)
        # From here on the reported lag is true even if the ingestor stops; each plan refreshes it.
        self.target.see(state)
        if table is None:
            require_only_stream(state, self._stream, identity, bounds, table=str(self.target.name))
        self._beside = streams_named(state) - {self._stream}
        positions = start_positions(table, identity, bounds, stream=self._stream)
        source.seek(positions)
        self._dead_letters.register(state)
        head = state.head_id
        self._context.registry.update(self.name, progress_s=self._context.clock())
        log.info(
            "ingestor planned",
            ingestor=self.name,
            table=str(self.target.name),
            topic=self._topic,
            positions={str(p): o for p, o in positions.items()},
            snapshot_id=head,
        )
        known = table.next if table is not None else {}
        return source, identity, state, frozenset(p for p in positions if p not in known)

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

    def _commit(
        self,
        batch: RawBatch,
        source: TopicReader,
        identity: TopicIdentity,
        fresh: frozenset[int],
        table_uuid: str,
    ) -> tuple[TableState, dict[int, int]] | None:
        """Decode, write and commit one batch.

        Args:
            batch: raw records and their offset ranges.
            source: topic reader.
            identity: identity of the topic at planning time.
            fresh: partitions missing from the table's offset map.
            table_uuid: UUID of the table at planning time.

        Returns:
            The table after the commit and, per partition, the next offset; None if a new plan is needed.

        Raises:
            SourceChangedError: the topic was recreated while it was read.
        """
        context = self._context
        started = context.clock()
        decoded = decode(self._decoder, batch)
        decoded_s = context.clock()
        layout = self.target.layout
        made = encode(decoded, layout, self.target.root, new_name=context.new_id)
        files = put_files(context.objects, made.files)
        at = datetime.fromtimestamp(context.ports.now_ms() / 1_000, tz=UTC)
        letters = self._dead_letters.write(batch, made.bad, at=at)
        written_s = context.clock()
        # Topic ids are never reused: an unchanged id means that all records came from this topic.
        require_same_source(identity, source.identity())
        change = BatchCommit(
            commit_id=context.new_id(),
            table_uuid=table_uuid,
            stream=self._stream,
            source=identity,
            ranges=batch.ranges,
            fresh=fresh,
            files=files,
            letters=letters,
            registered=self._dead_letters.marker,
            beside=self._beside,
        )
        result = self._committer.commit(change, layout)
        if isinstance(result, NeedsReplan):
            log.warning(
                "batch does not fit the table; planning again", ingestor=self.name, reason=result.reason
            )
            return None
        self._reporter.tell(State.RUNNING)
        took_ms = (context.clock() - started) * 1_000
        after = {r.partition: r.end for r in batch.ranges}
        held = offsets_in(result.state, self._stream)
        if held is None or any(held.next.get(p, -1) != end for p, end in after.items()):
            # The table includes the batch and more: another writer of this stream is active.
            log.info("the table is ahead of this batch; planning again", ingestor=self.name)
            return None
        if not self.target.is_current(result.state):
            self.target.see(result.state)
        if result.by_us:
            context.registry.add(self.name, rows=made.rows, bad_records=len(made.bad), commits=1)
        status = context.registry.get(self.name)
        context.registry.update(
            self.name,
            committed={**status.committed, **after},
            ends={p: max(end, after.get(p, end)) for p, end in status.ends.items()},
            commit_ms=took_ms,
            commit_at_ms=context.ports.now_ms(),
            progress_s=context.clock(),
            snapshot_id=result.state.head_id,
        )
        log.debug(
            "batch committed",
            ingestor=self.name,
            rows=made.rows,
            bad=len(made.bad),
            attempts=result.attempts,
            ms=round(took_ms, 1),
            decode_ms=round((decoded_s - started) * 1_000, 1),
            write_ms=round((written_s - decoded_s) * 1_000, 1),
        )
        if letters:
            log.warning(
                "bad records went to dead letters",
                ingestor=self.name,
                records=len(made.bad),
                table=str(self._dead_letter_table),
                first=next(iter(made.bad.values())),
            )
            self._dead_letters.register(result.state)
        return result.state, after

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

    def _look(self, source: TopicReader, identity: TopicIdentity, state: TableState) -> bool:
        """Check topic and table while no records arrive; False if a new plan is needed."""
        require_same_source(identity, source.identity())
        now = self._committer.load()
        moved = now.uuid != state.uuid or offsets_in(now, self._stream) != offsets_in(state, self._stream)
        if moved or not self.target.is_current(now):
            log.info("the table moved under this ingestor; planning again", ingestor=self.name)
            return False
        self._dead_letters.register(now)
        return True

    def _new_committer(self, table: TableName) -> Committer:
        context = self._context
        return Committer(
            context.catalog,
            table,
            Manifests(context.objects, new_name=context.new_id),
            ports=context.ports,
            retention=context.retention,
            on_wait=self._reporter.tell_wait,
        )

    def _new_builder(self) -> BatchBuilder:
        limits = self.spec.spec.batching
        return BatchBuilder(
            records_max=limits.max_records,
            bytes_max=limits.max_bytes,
            latency_s_max=limits.max_latency_seconds,
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
