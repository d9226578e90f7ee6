"""What the status page and the metrics say about one reader: offsets, lag, batches, watermark."""

from __future__ import annotations

from collections.abc import Mapping

import orjson
import structlog

from tarn.core.offsets import OffsetMap, TopicIdentity, next_or_start
from tarn.core.outcome import Conflict, Unknown
from tarn.core.source import OffsetBounds
from tarn.core.spec import IngestorSpec
from tarn.core.table_state import TableState
from tarn.core.watermark import complete_through
from tarn.ingest.batch_commit import WrittenBatch, watermark_in
from tarn.ingest.changes import Done
from tarn.ingest.context import IngestContext
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
        self._stream = spec.stream
        self._replica = replica
        self._context = context
        self._dead_letters = str(spec.spec.dead_letters.table)
        self._event_time = spec.spec.event_time is not None
        registry = context.registry
        registry.update(self.name, table=str(spec.spec.table), topic=spec.topic, stream=spec.stream)
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
        registry, made, took_ms = self._context.registry, written.made, took_s * 1_000
        now_ms = self._context.ports.now_ms()
        if done.by_us:
            registry.add(
                self.name,
                rows=made.rows,
                bad_records=len(made.bad),
                bytes=sum(file.bytes for file in written.files),
                commits=1,
                snapshots=int(done.first),
            )
            if oldest_ms is not None:
                registry.observe(self.name, max(0, now_ms - oldest_ms) / 1_000)
        registry.advance(self.name, after)
        self.watermark(done.state)
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
            commit_id=commit_id,
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
                table=self._dead_letters,
                first=next(iter(made.bad.values())),
            )

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


def _sizes(done: Done) -> dict[str, int | None]:
    """Sizes of the table's metadata for the status page; none if another list than the last was applied."""
    if done.listed is None:
        return {}
    size = len(orjson.dumps(done.state.metadata)) + done.listed.bytes
    return {"table_manifests": done.listed.manifests, "metadata_bytes": size}
