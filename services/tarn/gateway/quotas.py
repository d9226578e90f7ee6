"""What a table's owner allows in a day: why a write is not taken, with either durability."""

from __future__ import annotations

from tarn.core.quota import DAY_MS, Quota, Used
from tarn.gateway.writes import OverQuotaError, QuotaError, Write


def over_quota(
    quota: Quota, used: Used, write: Write, *, now_ms: int, table: str
) -> OverQuotaError | QuotaError | None:
    """Why the quota does not allow a write; None if it may.

    Args:
        quota: what is allowed in a day.
        used: what was taken, with all that goes before this write.
        write: the write.
        now_ms: wall-clock time in milliseconds since the epoch.
        table: name of the table, for messages.
    """
    if not quota.limited:
        return None
    day = now_ms // DAY_MS
    rows, size = len(write.values), write.bytes
    alone = quota.exceeded(Used(day=day, rows=rows, bytes=size))
    if alone is not None:
        return OverQuotaError(
            f"this write alone would be {alone} for table {table}: it is never taken; send fewer "
            "rows in a body, or ask the table's owner for more"
        )
    over = quota.exceeded(used.plus(day, rows, size))
    if over is None:
        return None
    return QuotaError(
        f"table {table} would have {over}; send it after midnight UTC, or ask the table's owner for more",
        retry_after_s=(DAY_MS - now_ms % DAY_MS) / 1_000,
    )
