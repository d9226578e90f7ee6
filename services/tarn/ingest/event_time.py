"""The event times of a batch, for the stream's watermark."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from tarn.core.spec import IngestorSpec
from tarn.core.watermark import EventTimeRule, latest_times
from tarn.ingest.open_batch import DecodedBatch


def event_time_rule(spec: IngestorSpec) -> EventTimeRule | None:
    """The rule of a spec's watermark; None without `eventTime`."""
    found = spec.spec.event_time
    if found is None:
        return None
    return EventTimeRule(
        column=found.column,
        late_us=round(found.max_out_of_orderness_seconds * 1_000_000),
        idle_ms=round(found.idle_timeout_seconds * 1_000),
        ahead_us=round(found.max_ahead_seconds * 1_000_000),
    )


def latest_in(
    batch: DecodedBatch, bad: Mapping[int, str], rule: EventTimeRule | None, *, now_ms: int
) -> dict[int, int]:
    """Partition to the latest event time of the batch's rows, in microseconds since the epoch.

    Bad records do not count, nor times that are further ahead of the clock than the rule allows.

    Args:
        batch: the batch.
        bad: index in the batch of each bad record, to the reason.
        rule: rule of the stream's watermark; None: nothing counts.
        now_ms: wall-clock time in milliseconds since the epoch.
    """
    rows, index = batch.decoded.rows, batch.decoded.index
    if rule is None or not index:
        return {}
    times, records = rows[rule.column], pa.array(index, pa.int64())
    partitions = pa.array(batch.records.partitions, pa.int32()).take(records)
    if bad:
        good = pc.invert(pc.is_in(records, pa.array(list(bad), pa.int64())))
        times, partitions = times.filter(good), partitions.filter(good)
    return latest_times(times, partitions, limit_us=now_ms * 1_000 + rule.ahead_us)
