"""Expected windows and alerts of the service stream, computed from the messages with pandas alone.

It imports no code of the service, so that it cannot repeat its mistakes. Messages are given per partition, in
the order of the log: what is late depends on that order, on nothing else.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

Log = Mapping[int, Sequence[bytes]]
"""Partition to the values of its messages."""

KEY = ["window_start", "origin", "destination"]
MEASURES = [
    "flights",
    "departures",
    "arrivals",
    "cancelled",
    "mean_departure_delay_minutes",
    "mean_arrival_delay_minutes",
]
KINDS = ("scheduled", "departed", "arrived", "cancelled")
MEMORY = pd.Timedelta(hours=48)
APART = pd.Timedelta(hours=72)


@dataclass(frozen=True, kw_only=True)
class Cut:
    """How windows are cut, in seconds."""

    window_s: int
    hop_s: int
    lateness_s: int


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What the service must make of a log.

    Attributes:
        rows: a row per route and complete window, by `KEY`.
        watermark: the newest event time that all partitions have reached; None if one has no events.
        late: events that came too late to count.
        duplicates: events that had come before.
        refused: messages that are no events.
    """

    rows: pd.DataFrame
    watermark: pd.Timestamp | None
    late: int
    duplicates: int
    refused: int


def expected(log: Log, cut: Cut) -> Expected:
    """Windows that all partitions have closed at the end of their logs."""
    length, hop, lateness = (pd.Timedelta(seconds=s) for s in (cut.window_s, cut.hop_s, cut.lateness_s))
    counted, watermarks, late, duplicates, refused = [], [], 0, 0, 0
    for values in log.values():
        events = _events(values)
        refused += len(values) - len(events)
        if events.empty:
            watermarks.append(None)
            continue
        events["watermark"] = events["time"].cummax()
        watermarks.append(events["watermark"].iloc[-1])
        forgotten = events["hour"] + MEMORY < events["watermark"]
        late += int(forgotten.sum())
        events = events[~forgotten]
        again = events.duplicated(["flight", "event"])
        duplicates += int(again.sum())
        events = events[~again]
        schedules = events[events["event"] == "scheduled"].set_index("flight")
        rest = events[events["event"] != "scheduled"].join(
            schedules[["origin", "destination", "watermark"]], on="flight", rsuffix="_of_schedule"
        )
        rest = rest[rest["origin_of_schedule"].notna()]
        judged_at = rest[["watermark", "watermark_of_schedule"]].max(axis=1)
        too_late = rest["time"] < judged_at - lateness
        late += int(too_late.sum())
        counted.append(rest[~too_late])
    watermark = None if None in watermarks else min(watermarks)
    rows = pd.DataFrame(columns=[*KEY, *MEASURES])
    if watermark is not None and any(len(events) for events in counted):
        with warnings.catch_warnings():
            # Parts without a value in a column: which of their types pandas takes makes no difference here.
            warnings.simplefilter("ignore", FutureWarning)
            whole = pd.concat([events for events in counted if len(events)])
        rows = _windows(whole, length, hop)
        rows = rows[rows["window_start"] + length + lateness <= watermark]
        rows = rows.sort_values(KEY).reset_index(drop=True)
    return Expected(rows=rows, watermark=watermark, late=late, duplicates=duplicates, refused=refused)


def alerts(rows: pd.DataFrame, cut: Cut, *, delay: float, departures: int, cancelled: int) -> set[str]:
    """Ids of the alerts of complete windows."""
    found = set()
    for kind, beyond in {
        "delay": (rows["departures"] >= departures) & (rows["mean_departure_delay_minutes"] >= delay),
        "cancellations": rows["cancelled"] >= cancelled,
    }.items():
        beyond_rows = rows[beyond]
        places = {(r.origin, r.destination, r.window_start) for r in beyond_rows.itertuples()}
        for origin, destination, start in places:
            if (origin, destination, start - pd.Timedelta(seconds=cut.hop_s)) not in places:
                found.add(f"{kind}/{origin}-{destination}/{start:%Y-%m-%dT%H:%M:%SZ}/{cut.window_s}")
    return found


def differences(found: pd.DataFrame, wanted: pd.DataFrame) -> list[str]:
    """How two tables of windows differ, one line for each row; empty if they agree."""
    if len(found) and found.duplicated(KEY).any():
        return [f"a window is there more than once: {found[found.duplicated(KEY)][KEY].head()}"]
    if wanted.empty or found.empty:
        return [f"{row._asdict()}" for rows in (wanted, found) for row in rows.itertuples()]
    both = wanted.merge(found, on=KEY, how="outer", suffixes=("", "_found"), indicator=True)
    lines = [f"{row._asdict()}" for row in both[both["_merge"] != "both"].itertuples()]
    for name in MEASURES:
        left, right = both[name].astype(float), both[f"{name}_found"].astype(float)
        wrong = both[
            (both["_merge"] == "both") & ~((left - right).abs() < 1e-9) & ~(left.isna() & right.isna())
        ]
        lines += [f"{name}: {row._asdict()}" for row in wrong.itertuples()]
    return lines


def _events(values: Sequence[bytes]) -> pd.DataFrame:
    rows = []
    for value in values:
        try:
            event = json.loads(value.decode())
            if type(event) is not dict or event["event"] not in KINDS or event["event_id"] is None:
                continue
            if type(event["carrier"]) is not str or type(event["flight"]) is not int:
                continue
            time, hour = pd.Timestamp(event["event_time"]), pd.Timestamp(event["time_hour"])
            if abs(time - hour) > APART:
                continue
            rows.append(
                {
                    "event": event["event"],
                    "time": time,
                    "hour": hour,
                    "flight": f"{event['time_hour']} {event['carrier']} {event['flight']}",
                    "origin": event.get("origin"),
                    "destination": event.get("dest"),
                    "departure": event.get("dep_delay"),
                    "arrival": event.get("arr_delay"),
                }
            )
        except (ValueError, KeyError):
            continue
    return pd.DataFrame(rows)


def _windows(events: pd.DataFrame, length: pd.Timedelta, hop: pd.Timedelta) -> pd.DataFrame:
    """One row per route and window that has an event."""
    newest = events["time"].dt.floor(hop)
    parts = [events.assign(window_start=newest - i * hop) for i in range(length // hop)]
    of_route = pd.concat(parts)
    of_route = of_route.drop(columns=["origin", "destination"]).assign(
        origin=of_route["origin_of_schedule"], destination=of_route["destination_of_schedule"]
    )
    grouped = of_route.groupby(KEY)
    return pd.DataFrame(
        {
            "flights": grouped["flight"].nunique(),
            "departures": grouped["departure"].count(),
            "arrivals": grouped["arrival"].count(),
            "cancelled": grouped["event"].agg(lambda kinds: int((kinds == "cancelled").sum())),
            "mean_departure_delay_minutes": grouped["departure"].mean(),
            "mean_arrival_delay_minutes": grouped["arrival"].mean(),
        }
    ).reset_index()
