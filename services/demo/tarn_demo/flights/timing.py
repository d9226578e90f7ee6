"""When each event of a flight happens, in UTC. The rules, and why they hold, are in docs/pipeline.md.

The file holds local clock times without dates (`517`, `2400`). Its only exact instant is `time_hour` (the
hour of the scheduled departure, UTC), so every instant is counted from there:

- scheduled: two hours before the scheduled departure (the earliest departure is 43 minutes early);
- departed: the scheduled departure and dep_delay;
- arrived: the first instant after the departure at which a clock at the destination shows arr_time;
- cancelled: the scheduled departure.

With the rule for arrivals the time between departure and arrival exceeds air_time by 5 to 235 minutes for all
327,346 flights that have one.
"""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MINUTES = 24 * 60
SCHEDULE_LEAD_MS = 2 * HOUR_MS

ZONES_NOT_IN_AIRPORTS = {
    "BQN": "America/Puerto_Rico",
    "PSE": "America/Puerto_Rico",
    "SJU": "America/Puerto_Rico",
    "STT": "America/St_Thomas",
}
"""The four destinations of 2013 that airports.csv does not list."""

Millis = npt.NDArray[np.int64]


def scheduled_departure(flights: pa.Table) -> Millis:
    """Milliseconds since the epoch."""
    hours = flights["time_hour"].cast(pa.int64()).to_numpy() // 1000
    return np.asarray(hours + flights["minute"].to_numpy().astype(np.int64) * MINUTE_MS, dtype=np.int64)


def departure(flights: pa.Table) -> Millis:
    """Milliseconds since the epoch; meaningless where dep_delay is null."""
    return scheduled_departure(flights) + _whole(flights["dep_delay"]) * MINUTE_MS


def arrival(flights: pa.Table, airports: pa.Table) -> Millis:
    """Milliseconds since the epoch; meaningless where arr_time is null."""
    left = departure(flights)
    clock_at_departure = (left // MINUTE_MS + _zone_minutes(flights, airports, left)) % DAY_MINUTES
    hhmm = _whole(flights["arr_time"])
    minutes = (hhmm // 100 * 60 + hhmm % 100 - clock_at_departure) % DAY_MINUTES
    return np.asarray(left + minutes * MINUTE_MS, dtype=np.int64)


def _zone_minutes(flights: pa.Table, airports: pa.Table, at: Millis) -> Millis:
    """Minutes that the destination's clock is ahead of UTC at each instant."""
    zones = dict(zip(airports["faa"].to_pylist(), airports["tzone"].to_pylist(), strict=True))
    dest = flights["dest"].combine_chunks().dictionary_encode()
    row_dest = dest.indices.to_numpy()
    hour = at // HOUR_MS  # zones change their offset on a full hour of UTC
    first, count = int(hour.min()), int(hour.max() - hour.min()) + 1
    offsets = np.empty((len(dest.dictionary), count), dtype=np.int64)
    by_zone: dict[str, Millis] = {}
    for i, code in enumerate(dest.dictionary.to_pylist()):
        zone = zones.get(code) or ZONES_NOT_IN_AIRPORTS[code]
        if zone not in by_zone:
            by_zone[zone] = _offsets_by_hour(ZoneInfo(zone), first, count)
        offsets[i] = by_zone[zone]
    return np.asarray(offsets[row_dest, hour - first], dtype=np.int64)


def _offsets_by_hour(zone: ZoneInfo, first: int, count: int) -> Millis:
    def minutes(hour: int) -> float:
        ahead = datetime.fromtimestamp(hour * 3600, UTC).astimezone(zone).utcoffset()
        assert ahead is not None
        return ahead.total_seconds() // 60

    return np.fromiter((minutes(h) for h in range(first, first + count)), dtype=np.int64, count=count)


def _whole(column: pa.ChunkedArray) -> Millis:
    """The column as integers, 0 for null."""
    return np.asarray(pc.fill_null(column, 0).to_numpy(), dtype=np.int64)
