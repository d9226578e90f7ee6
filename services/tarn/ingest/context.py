"""What an ingestor works with: ports to the outside, and the numbers of its loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tarn.adapters.catalog_client import TableCatalog
from tarn.adapters.files import FileIO
from tarn.core.history import Retention
from tarn.core.source import TopicClient
from tarn.ingest.committer import Ports
from tarn.ingest.status import StatusRegistry


class StoppedError(Exception):
    """The process was asked to stop; whatever is open is dropped, which is safe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The numbers of the loop, in seconds.

    Attributes:
        poll_s_max: the longest wait for records.
        check_interval_s: how often the topic is asked how far it reaches, and the table whether it moved.
        watermark_s: how long a position that moved without records may stay uncommitted (invariant I11).
        group_commit_interval_s: how often group offsets are written.
        retry_s: the first wait after a dependency failed; doubles up to retry_s_max.
        stopped_retry_s: how often a stopped ingestor looks whether its reason is gone.
    """

    poll_s_max: float = 0.25
    check_interval_s: float = 5.0
    watermark_s: float = 60.0
    group_commit_interval_s: float = 5.0
    retry_s: float = 0.5
    retry_s_max: float = 10.0
    stopped_retry_s: float = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestContext:
    """What an ingestor needs: ports to the outside, shared by all ingestors of a process.

    Attributes:
        sources: topics.
        catalog: tables.
        objects: files.
        ports: what the commit loop needs; its `sleep` raises StoppedError when the process stops.
        new_id: a commit id or file name that was never used before.
        clock: monotonic seconds.
        registry: where to tell.
        stopping: whether the process was asked to stop.
        limits: numbers.
        retention: which snapshots stay.
    """

    sources: TopicClient
    catalog: TableCatalog
    objects: FileIO
    ports: Ports
    new_id: Callable[[], str]
    clock: Callable[[], float] = time.monotonic
    registry: StatusRegistry = field(default_factory=StatusRegistry)
    stopping: Callable[[], bool] = lambda: False
    limits: Limits = field(default_factory=Limits)
    retention: Retention = field(default_factory=Retention)
