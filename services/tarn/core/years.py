"""Years that can be stored: 1 to 9999. Most engines cannot read dates or timestamps outside this range."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

MICROS_PER_DAY = 86_400 * 1_000_000
DAYS_MIN = (date(1, 1, 1) - date(1970, 1, 1)).days
DAYS_MAX = (date(9999, 12, 31) - date(1970, 1, 1)).days
MICROS_MIN = DAYS_MIN * MICROS_PER_DAY
MICROS_MAX = (DAYS_MAX + 1) * MICROS_PER_DAY - 1
MS_MAX = MICROS_MAX // 1_000
LOG_TIME = pa.timestamp("us", "UTC")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment_of(ms: int) -> datetime:
    """A time in milliseconds since the epoch; the first or last one of these years for one beyond them.

    A writer may state any number as the time of its snapshot.
    """
    return _EPOCH + timedelta(milliseconds=min(max(ms, MICROS_MIN // 1_000), MS_MAX))


def outside(column: pa.Array) -> list[int]:
    """Indexes of dates, or of timestamps in microseconds, before year 1 or after year 9999."""
    if pa.types.is_date32(column.type):
        numbers, low, high = column.cast(pa.int32()), DAYS_MIN, DAYS_MAX
    else:
        numbers, low, high = column.cast(pa.int64()), MICROS_MIN, MICROS_MAX
    seen = pc.min_max(numbers).as_py()
    if seen["min"] is None or (seen["min"] >= low and seen["max"] <= high):
        return []
    wrong = pc.or_(pc.less(numbers, low), pc.greater(numbers, high))
    found: list[int] = pc.indices_nonzero(pc.fill_null(wrong, False)).to_pylist()
    return found


def log_times(times_ms: Sequence[int]) -> pa.Array:
    """Kafka timestamps as `LOG_TIME`; null where there is none (negative) or one after year 9999.

    A producer may send any number as a record's timestamp. The record itself is good, so it is kept.
    """
    times = pa.array(times_ms, pa.int64())
    known = pc.and_(pc.greater_equal(times, 0), pc.less_equal(times, MS_MAX))
    return pc.multiply(pc.if_else(known, times, pa.scalar(None, pa.int64())), 1_000).cast(LOG_TIME)
