"""Start offsets of a stream, from the table's offset map and the topic's bounds. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from tarn.core.errors import OffsetGapError
from tarn.core.offsets import OffsetMap, TopicIdentity, next_or_start, require_same_source
from tarn.core.source import OffsetBounds


def start_positions(
    table: OffsetMap | None, source: TopicIdentity, bounds: Mapping[int, OffsetBounds], *, stream: str
) -> dict[int, int]:
    """Start offset per partition: the table's offset map, or the log start for partitions it lacks.

    Args:
        table: the stream's offset map; None before its first commit.
        source: identity of the topic.
        bounds: partition to log start and end offsets.
        stream: name of the stream, for error messages.

    Raises:
        SourceChangedError: the map belongs to another topic or cluster.
        OffsetGapError: the log does not hold the next offset: it starts after it, ends before it, or the
            partition is missing. Continuing would skip rows.
    """
    if table is not None:
        require_same_source(table.source, source)
        for partition, offset in table.next.items():
            found = bounds.get(partition)
            if found is None:
                raise OffsetGapError(
                    f"stream {stream}: the table stands at offset {offset} of partition {partition}, which "
                    f"topic {source.topic} does not have; restore it, or write to a new table",
                    partition=partition,
                    offset=offset,
                )
            if not found.start <= offset <= found.end:
                if offset < found.start:
                    what = f"the log starts at {found.start}: {found.start - offset} offsets are gone unread"
                    do = "accept the loss by a new metadata.name: it begins where the log does"
                else:
                    what = f"the log ends at {found.end}, before it: its next offsets would be used again"
                    do = "write to a new table"
                raise OffsetGapError(
                    f"stream {stream}: the table stands at offset {offset} of partition {partition} of "
                    f"topic {source.topic}, and {what}. Restore the log, or {do}",
                    partition=partition,
                    offset=offset,
                    start=found.start,
                    end=found.end,
                )
    return next_or_start(table, {p: b.start for p, b in bounds.items()})
