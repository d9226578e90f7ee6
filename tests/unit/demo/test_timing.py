"""When events happen: checked against figures of the data set that the rules do not use."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest

from tarn_demo.flights import dataset, timing


@pytest.fixture(scope="module")
def flights() -> pa.Table:
    return dataset.read_flights()


@pytest.fixture(scope="module")
def airports() -> pa.Table:
    return dataset.read_reference("airports")


def _flight(**changed: object) -> pa.Table:
    row: dict[str, object] = {
        "time_hour": datetime(2013, 1, 1, 10, tzinfo=UTC),
        "minute": 15,
        "dep_delay": 2,
        "arr_time": 830,
        "dest": "IAH",
    }
    row.update(changed)
    types = {
        "time_hour": pa.timestamp("us", tz="UTC"),
        "minute": pa.int32(),
        "dep_delay": pa.int32(),
        "arr_time": pa.int32(),
        "dest": pa.string(),
    }
    return pa.table({name: pa.array([row[name]], type_) for name, type_ in types.items()})


def _at(ms: object) -> datetime:
    return datetime.fromtimestamp(int(ms) / 1000, UTC)  # type: ignore[call-overload]


@pytest.mark.long
def test_the_data_set_is_the_known_one(flights: pa.Table) -> None:
    assert flights.num_rows == 336_776
    nulls = {"dep_time": 8_255, "arr_time": 8_713, "arr_delay": 9_430, "tailnum": 2_512}
    assert {name: flights[name].null_count for name in nulls} == nulls


def test_the_first_flight_of_the_year(airports: pa.Table) -> None:
    flight = _flight()
    assert _at(timing.scheduled_departure(flight)[0]) == datetime(2013, 1, 1, 10, 15, tzinfo=UTC)
    assert _at(timing.departure(flight)[0]) == datetime(2013, 1, 1, 10, 17, tzinfo=UTC)
    # 08:30 in Houston is 14:30 UTC
    assert _at(timing.arrival(flight, airports)[0]) == datetime(2013, 1, 1, 14, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("changed", "hours_later"),
    [
        pytest.param({"dest": "SJU", "arr_time": 1017}, 4.0, id="a place that airports.csv lacks: UTC-4"),
        pytest.param({"dest": "HNL", "arr_time": 1017}, 10.0, id="Honolulu: UTC-10"),
        pytest.param({"arr_time": 2400}, 19 + 43 / 60, id="2400 is the midnight that ends the day"),
        pytest.param({"arr_time": 1}, 19 + 44 / 60, id="one minute after midnight"),
        pytest.param(
            {"time_hour": datetime(2013, 7, 1, 10, tzinfo=UTC), "arr_time": 617}, 1.0, id="summer time there"
        ),
    ],
)
def test_arrival_is_the_next_time_the_clock_there_shows_it(
    airports: pa.Table, changed: dict[str, object], hours_later: float
) -> None:
    flight = _flight(**changed)
    took = _at(timing.arrival(flight, airports)[0]) - _at(timing.departure(flight)[0])
    assert took == timedelta(hours=hours_later)


@pytest.mark.long
def test_no_flight_is_in_the_air_for_longer_than_it_takes(flights: pa.Table, airports: pa.Table) -> None:
    took = (timing.arrival(flights, airports) - timing.departure(flights)) // timing.MINUTE_MS
    air_time = flights["air_time"].to_pandas().to_numpy()
    with_air_time = ~np.isnan(air_time)
    on_the_ground = took[with_air_time] - air_time[with_air_time]
    assert int(with_air_time.sum()) == 327_346
    assert (int(on_the_ground.min()), int(on_the_ground.max())) == (5, 235)


def test_the_local_departure_is_the_one_in_the_file(flights: pa.Table) -> None:
    departed = flights["dep_time"].is_valid().to_numpy()
    hhmm = flights["dep_time"].to_pandas().to_numpy()[departed]
    local = flights["sched_dep_time"].to_numpy()[departed].astype(np.int64)
    late = flights["dep_delay"].to_pandas().to_numpy()[departed]
    minutes = local // 100 * 60 + local % 100 + late
    shown = hhmm // 100 * 60 + hhmm % 100
    assert set(np.unique((minutes - shown) % 1440)) == {0.0}
