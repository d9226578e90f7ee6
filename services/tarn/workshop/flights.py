"""Real flights without a replay: the events of the demo's data set, and what they refer to, as rows."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from tarn.core.errors import InvalidError
from tarn_demo.flights.dataset import REFERENCE_NAMES, read_flights, read_reference
from tarn_demo.flights.events import NoiseRates, Stream

if TYPE_CHECKING:
    import pandas as pd

YEAR = 2013
SEED = 2013
MS = 1_000
NEAR = timedelta(days=2)
TIMETABLE = (
    *("date", "time_hour", "hour", "carrier", "flight", "tailnum", "origin", "dest", "distance"),
    *("dep_delay", "arr_delay", "air_time"),
)
"""Columns of `timetable`."""


def events(*, days: int, start: str) -> list[dict[str, Any]]:
    """The events that happen on some days (UTC), in order, without duplicates, late and broken messages.

    Raises:
        InvalidError: the first day is not one of the year.
    """
    try:
        first = date.fromisoformat(start)
    except ValueError as e:
        raise InvalidError(f"start={start!r} is no day; give one as 2013-07-04") from e
    if first.year != YEAR:
        raise InvalidError(f"start={start!r}: the flights are those of {YEAR}")
    begin = datetime(first.year, first.month, first.day, tzinfo=UTC)
    end = begin + timedelta(days=days)
    flights = read_flights()
    hour = flights["time_hour"]
    # Only these make events on the days; the whole year would take 300 MB.
    near = pc.and_(
        pc.greater_equal(hour, pa.scalar(begin - NEAR, hour.type)),
        pc.less(hour, pa.scalar(end + NEAR, hour.type)),
    )
    stream = Stream(flights.filter(near), read_reference("airports"), noise=NoiseRates(), seed=SEED)
    places = [stream.index_of(int(at.timestamp() * MS)) for at in (begin, end)]
    return [json.loads(one.value) for one in stream.messages(*places, now=datetime.now(UTC))]


def reference(name: str) -> pd.DataFrame:
    """A table of what flights refer to.

    Raises:
        InvalidError: there is none of this name.
    """
    if name not in REFERENCE_NAMES:
        raise InvalidError(f"there is no {name!r}; choose one of {', '.join(REFERENCE_NAMES)}")
    return read_reference(name).to_pandas()


def timetable(first: date, days: int) -> pa.Table:
    """Return the flights that were to leave New York on some days, in the order of the timetable.

    `date` and `hour` are those of the scheduled departure in New York, `time_hour` is the same hour in UTC.
    Delays are in minutes: a flight without `dep_delay` did not leave.

    Args:
        first: the first day, of the year 2013.
        days: how many days.

    Raises:
        InvalidError: the days are not all in 2013.
    """
    last = first + timedelta(days=days - 1)
    if days < 1 or (first.year, last.year) != (YEAR, YEAR):
        raise InvalidError(f"{days} days from {first} on: the flights are those of {YEAR}")
    rows = read_flights()
    in_year = pc.add(pc.multiply(rows["month"], 100), rows["day"])
    since = pc.greater_equal(in_year, first.month * 100 + first.day)
    rows = rows.filter(pc.and_(since, pc.less_equal(in_year, last.month * 100 + last.day)))
    parts = zip(*(rows[part].to_pylist() for part in ("year", "month", "day")), strict=True)
    dates = pa.array([date(*part) for part in parts], pa.date32())
    return rows.append_column("date", dates).select(TIMETABLE).sort_by("time_hour")
