"""What the status page and the metrics say about one reader: offsets, lag, batches, watermark."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from tarn.core.offsets import OffsetMap, TopicIdentity, next_or_start
from tarn.core.outcome import Conflict, Unknown
from tarn.core.source import OffsetBounds
from tarn.core.spec import IngestorSpec
from tarn.core.table_state import TableState
from tarn.core.watermark import complete_through
from tarn.ingest.batch_commit import WrittenBatch, watermark_in
from tarn.ingest.changes import Change, Done
from tarn.ingest.commit_ring import CommitKind, CommitOutcome, CommitSeen
from tarn.ingest.context import IngestContext
from tarn.ingest.figures import figures_of, snapshot_of
from tarn.ingest.replicas import Replica
from tarn.ingest.status import IngestorStatus

log = structlog.get_logger()


class Progress:
    """Records the progress of one reader in the status registry.

    Args:
        spec: ingestor spec.
        replica: which of its readers this is.
        context: dependencies and limits.

    Attributes:
        name: name of the reader.
        measured: whether offsets and ends were read since the last plan began.
    """

    def __init__(self, spec: IngestorSpec, replica: Replica, context: IngestContext) -> None:
        self.name = replica.name(spec.name)
        self.measured = False
        self._ingestor = spec.name
        self._table = str(spec.spec.table)
        self._stream = spec.stream
        self._replica = replica
        self._context = context
        self._dead_letters = str(spec.spec.dead_letters.table)
        self._event_time = spec.spec.event_time is not None
        registry = context.registry
        registry.update(self.name, table=self._table, topic=spec.topic, stream=spec.stream)
        if replica.count > 1:
            registry.update(self.name, replica_of=spec.name, replicas=replica.count)
        if spec.spec.event_time is not None:
            registry.update(self.name, event_column=spec.spec.event_time.column)

    def planned(
        self,
        state: TableState,
        table: OffsetMap | None,
        identity: TopicIdentity,
        bounds: Mapping[int, OffsetBounds],
    ) -> None:
        """Record the committed and end offsets, if they belong to the same topic."""
        if table is None or table.source == identity:
            held = next_or_start(table, {p: b.start for p, b in bounds.items()})
            self._context.registry.update(
                self.name,
                committed=self._replica.own(held),
                ends=self._ends(bounds),
                snapshot_id=state.head_id,
                measured=True,
            )
            self.measured = True

    def watermark(self, state: TableState) -> None:
        """Record the watermark of this version of the table."""
        mark = watermark_in(state, self._stream) if self._event_time else None
        self._context.registry.update(
            self.name,
            watermark_us=None if mark is None else mark.at_us,
            complete_us=None if mark is None else complete_through(state, mark),
        )

    def begun(self, state: TableState) -> None:
        """Record that this version of the table has the starts of all partitions; no batch was committed."""
        self.watermark(state)
        self._context.registry.update(self.name, snapshot_id=state.head_id)

    def committed(
        self,
        written: WrittenBatch,
        done: Done,
        after: Mapping[int, int],
        *,
        commit_id: str,
        oldest_ms: int | None,
        took_s: float,
    ) -> None:
        """Show a committed batch on the status page and in the log.

        Args:
            written: the batch.
            done: its commit.
            after: partition to next offset.
            commit_id: id of its commit.
            oldest_ms: time of its oldest record in the log, in milliseconds since the epoch, if known.
            took_s: duration from decoding to the commit's response, in seconds.
        """
        registry, took_ms = self._context.registry, took_s * 1_000
        now_ms = self._context.ports.now_ms()
        size = sum(file.bytes for file in written.files)
        age_ms = None if oldest_ms is None else max(0, now_ms - oldest_ms)
        freshness_s = None if age_ms is None else age_ms / 1_000
        if done.by_us:
            registry.add(
                self.name,
                rows=written.rows,
                bad_records=len(written.bad),
                bytes=size,
                commits=1,
                snapshots=int(done.first),
            )
            if freshness_s is not None:
                registry.observe(self.name, freshness_s)
        registry.advance(self.name, after)
        self.watermark(done.state)
        seen = self._remember(
            CommitKind.BATCH,
            commit_id,
            done,
            now_ms=now_ms,
            took_ms=took_ms,
            rows=written.rows,
            bad_records=len(written.bad),
            bytes=size,
            oldest_age_ms=age_ms,
        )
        registry.update(
            self.name,
            commit_ms=took_ms,
            commit_at_ms=now_ms,
            commit_snapshot_id=seen.snapshot_id,
            freshness_s=freshness_s,
            progress_s=self._context.clock(),
            snapshot_id=done.state.head_id,
        )
        log.debug(
            "batch committed",
            ingestor=self.name,
            commit_id=commit_id,
            rows=written.rows,
            bad=len(written.bad),
            attempts=done.attempts,
            ms=round(took_ms, 1),
            decode_ms=round(written.decode_s * 1_000, 1),
            write_ms=round(written.write_s * 1_000, 1),
        )
        if written.letters:
            log.warning(
                "bad records went to dead letters",
                ingestor=self.name,
                records=len(written.bad),
                table=self._dead_letters,
                first=next(iter(written.bad.values())),
            )

    def merged(self, change: Change, done: Done, *, took_s: float) -> None:
        """Show a commit that replaced small files by one with the same rows.

        Args:
            change: the merge.
            done: its commit.
            took_s: duration from reading the files to the commit's response, in seconds.
        """
        self._context.registry.add(self.name, merges=int(done.by_us))
        self._remember(
            CommitKind.MERGE,
            change.commit_id,
            done,
            now_ms=self._context.ports.now_ms(),
            took_ms=took_s * 1_000,
            bytes=sum(file.bytes for file in change.files),
        )

    def retired(self, change: Change, done: Done, *, took_s: float) -> int:
        """Show a commit that dropped files whose rows are too old; returns the number of these rows.

        Args:
            change: the drop.
            done: its commit.
            took_s: duration from looking for the files to the commit's response, in seconds.
        """
        rows = sum(file.records for file in change.removed)
        if done.by_us:
            self._context.registry.add(self.name, retired_rows=rows, retired_files=len(change.removed))
        self._remember(
            CommitKind.RETIREMENT,
            change.commit_id,
            done,
            now_ms=self._context.ports.now_ms(),
            took_ms=took_s * 1_000,
            rows_removed=rows,
        )
        return rows

    def _remember(
        self,
        kind: CommitKind,
        commit_id: str,
        done: Done,
        *,
        now_ms: int,
        took_ms: float,
        rows: int = 0,
        bad_records: int = 0,
        rows_removed: int = 0,
        bytes: int = 0,
        oldest_age_ms: int | None = None,
    ) -> CommitSeen:
        """Remember a commit, and the table after it."""
        registry = self._context.registry
        registry.update(self.name, figures=figures_of(done.state, done.listed), figures_at_ms=now_ms)
        seen = CommitSeen(
            at_ms=now_ms,
            ingestor=self._ingestor,
            reader=self.name,
            table=self._table,
            kind=kind,
            outcome=_outcome(done),
            commit_id=commit_id,
            snapshot_id=snapshot_of(done.state, commit_id),
            attempts=done.attempts,
            rows=rows,
            bad_records=bad_records,
            rows_removed=rows_removed,
            bytes=bytes,
            took_ms=took_ms,
            oldest_age_ms=oldest_age_ms,
        )
        registry.commits.add(seen)
        return seen

    def refused(self, outcome: Conflict | Unknown) -> None:
        """Count a commit request that brought nothing into the table, as far as is known."""
        counter = "conflicts" if isinstance(outcome, Conflict) else "unknowns"
        self._context.registry.add(self.name, **{counter: 1})

    def retried(self) -> None:
        """Count a commit request that is not the first of its commit."""
        self._context.registry.add(self.name, retries=1)

    def resolved(self, unknowns: int) -> None:
        """Count commit requests without a usable answer whose outcome is certain now."""
        self._context.registry.add(self.name, resolved=unknowns)

    def reached(self, bounds: Mapping[int, OffsetBounds]) -> IngestorStatus:
        """Record the end offsets, which the lag is computed from; returns the status."""
        status = self._context.registry.update(self.name, ends=self._ends(bounds), measured=True)
        if status.lag == 0:
            status = self._context.registry.update(self.name, progress_s=self._context.clock())
        return status

    def _ends(self, bounds: Mapping[int, OffsetBounds]) -> dict[int, int]:
        return self._replica.own({p: b.end for p, b in bounds.items()})


def _outcome(done: Done) -> CommitOutcome:
    if not done.by_us:
        return CommitOutcome.FOUND
    # Of a commit that was found after a request without an answer, the manifest list is not known.
    return CommitOutcome.RESOLVED if done.listed is None else CommitOutcome.COMMITTED
