"""Whether a topic's log still has what a table has read of it; after a loss it is shorter, then grows again.

Kafka gives a partition a new leader epoch each time that a broker takes it over, and each record has that in
which it was written. The offset map has, beside an offset, an epoch that none of the records before it
exceeds. So records of later epochs that lie before the offset were never read: the log was truncated, and
others have been written where its records were (ADR 57).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tarn.core.errors import OffsetGapError, UnavailableError
from tarn.core.offsets import OffsetMap
from tarn.core.source import OffsetBounds, TopicReader

LOOK_S_MAX = 30.0
LOOK_RECORDS = 100


def require_untruncated(
    source: TopicReader,
    table: OffsetMap | None,
    bounds: Mapping[int, OffsetBounds],
    *,
    stream: str,
    clock: Callable[[], float],
    poll_s: float,
) -> None:
    """Require that no record lies before the table's offsets that the table has not read.

    Where a later epoch begins before the offset, the log is read from there to the offset: aborted and
    control records are passed over by any reader, another record is one that the table lacks. The reader is
    left at another position.

    Args:
        source: reader of the topic.
        table: the stream's offset map; None before its first commit.
        bounds: partition to the log's bounds, which contain the offsets.
        stream: name of the stream, for error messages.
        clock: monotonic clock, in seconds.
        poll_s: how long a poll waits, in seconds.

    Raises:
        OffsetGapError: the log was truncated, or is an older one.
        UnavailableError: the cluster does not respond.
    """
    if table is None or not table.epochs:
        return
    unread: dict[int, int] = {}
    for partition, end in source.epoch_ends(table.epochs).items():
        if end is None:
            raise OffsetGapError(
                f"{_stands(table, partition, stream)} and read it in leader epoch {table.epochs[partition]}, "
                "which the log has not come to: it is an older one. Restore the log, or write to a new table",
                partition=partition,
                offset=table.next[partition],
            )
        start = max(end, bounds[partition].start)
        if start < table.next[partition]:
            unread[partition] = start
    if unread:
        _require_no_records(source, table, unread, stream=stream, clock=clock, poll_s=poll_s)


def _require_no_records(
    source: TopicReader,
    table: OffsetMap,
    starts: Mapping[int, int],
    *,
    stream: str,
    clock: Callable[[], float],
    poll_s: float,
) -> None:
    """Require that there is no record from these offsets to those of the table."""
    left, until_s = set(starts), clock() + LOOK_S_MAX
    source.seek(starts)
    while left:
        if clock() > until_s:
            raise UnavailableError(
                f"topic {table.source.topic}: partitions {sorted(left)} could not be read from "
                f"{dict(starts)} to the table's offsets within {LOOK_S_MAX:g} s"
            )
        for part in source.poll(records_max=LOOK_RECORDS, timeout_s=poll_s):
            partition, offset = part.partition, table.next[part.partition]
            if part.offsets and part.offsets[0] < offset:
                raise OffsetGapError(
                    f"{_stands(table, partition, stream)} and the log was truncated, at {starts[partition]} "
                    f"or before: from {part.offsets[0]} on it has other records than the table has read. "
                    f"Restore the log; or copy its records before {offset} to its end, if they are wanted, "
                    "and delete them where they are (docs/ingestion.md, When it stops); or write to a new "
                    "table",
                    partition=partition,
                    offset=offset,
                    truncated=starts[partition],
                )
            if part.end >= offset:
                left.discard(partition)


def _stands(table: OffsetMap, partition: int, stream: str) -> str:
    return (
        f"stream {stream}: the table stands at offset {table.next[partition]} of partition {partition} of "
        f"topic {table.source.topic},"
    )
