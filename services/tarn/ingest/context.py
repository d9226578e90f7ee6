"""What an ingestor works with: interfaces to the outside and the intervals of its loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from threading import Semaphore

from tarn.core.audit.origins import OriginReader
from tarn.core.history import Retention
from tarn.core.source import TopicClient
from tarn.core.table_catalog import TableCatalog
from tarn.core.table_files import TableFormat
from tarn.ingest.batch_memory import BatchMemory
from tarn.ingest.bookkeeper import Bookkeepers
from tarn.ingest.committer import Ports
from tarn.ingest.lost_replies import Traps
from tarn.ingest.principals import Principals
from tarn.ingest.status import StatusRegistry


def one_thread() -> Executor:
    """An executor of one thread; leaving its with statement waits for what it runs."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="commit")


class StoppedError(Exception):
    """The process was asked to stop; dropping the open batch is safe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Intervals of the ingest loop, in seconds.

    Attributes:
        poll_s_max: longest poll.
        check_interval_s: how often the topic's end offsets and the table's state are checked.
        watermark_s: how long an offset that advanced without records may stay uncommitted (invariant I11).
        group_commit_interval_s: how often consumer group offsets are committed.
        retry_s: base of the wait after a dependency fails, doubled per failure up to retry_s_max.
        retry_s_max: longest wait after a dependency fails.
        stopped_retry_s: how often a stopped ingestor retries.
        gather_s_max: longest wait of a commit for neighbours whose files are on the way.
        gather_share: the same, as a share of the freshness target.
        retire_s: how often old rows are looked for.
        memory_s: how often a reader that waits for memory of its batch asks for it again.
    """

    poll_s_max: float = 0.25
    check_interval_s: float = 5.0
    watermark_s: float = 60.0
    group_commit_interval_s: float = 5.0
    retry_s: float = 0.5
    retry_s_max: float = 10.0
    stopped_retry_s: float = 15.0
    gather_s_max: float = 0.25
    gather_share: float = 0.25
    retire_s: float = 600.0
    memory_s: float = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestContext:
    """Dependencies of an ingestor, shared by all ingestors of a process.

    Attributes:
        sources: topic client.
        catalog: table catalog.
        tables: opens the files of tables.
        ports: side effects of one reader; its `sleep` raises StoppedError when that is to stop.
        shared_ports: those of the bookkeepers, which outlive any reader: their `sleep` raises StoppedError
            when the process stops only. None: `ports`, where all readers stop together.
        new_id: generates a unique commit id.
        clock: monotonic time in seconds.
        registry: status registry.
        stopping: whether the process was asked to stop.
        limits: intervals of the loop.
        retention: default snapshot retention.
        executor: makes what runs the commits of one plan, one at a time, while the next batch is read.
        origins: reads which messages the rows of a data file are; None: no row is dropped by age.
        memory: what the batches of all readers hold, together.
        decode_records: number of read records from which on they are decoded before the batch is closed.
        bookkeepers: the bookkeepers of the process, one per table.
        principals: other principals that ingestors may act as.
        traps: what is armed in the catalog client, where faults by hand are allowed.
        merging: held while small files are merged: one reader of the process does so at a time.
    """

    sources: TopicClient
    catalog: TableCatalog
    tables: TableFormat
    ports: Ports
    new_id: Callable[[], str]
    clock: Callable[[], float] = time.monotonic
    registry: StatusRegistry = field(default_factory=StatusRegistry)
    stopping: Callable[[], bool] = lambda: False
    limits: Limits = field(default_factory=Limits)
    retention: Retention = field(default_factory=Retention)
    executor: Callable[[], Executor] = one_thread
    origins: OriginReader | None = None
    memory: BatchMemory = field(default_factory=lambda: BatchMemory(48 << 20))
    decode_records: int = 8_192
    bookkeepers: Bookkeepers = field(default_factory=Bookkeepers)
    shared_ports: Ports | None = None
    principals: Principals = field(default_factory=Principals)
    traps: Traps | None = None
    merging: Semaphore = field(default_factory=Semaphore)

    def require_going(self) -> None:
        """Require that the reader is not to stop.

        Raises:
            StoppedError: it is.
        """
        if self.stopping():
            raise StoppedError

    def acting_as(self, principal: str | None) -> IngestContext:
        """The same, with the catalog as asked by a principal; itself for None.

        Raises:
            InvalidSpecError: this process cannot act as another principal.
        """
        if principal is None:
            return self
        acting = self.principals.of(principal)
        return replace(self, catalog=acting.catalog, bookkeepers=acting.bookkeepers)
