"""Plots of a stream in the order in which it was heard, and of its windows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.dates import DateFormatter

from tarn.workshop.plots import BLUE, GREEN, GREY, ORANGE, show

HOUR = "%H:%M"
DAY = "%d %b, %H:%M"


def watermark(
    events: Sequence[Mapping[str, Any]], marks: Sequence[datetime], *, late: Collection[str]
) -> None:
    """Plot events by their place in the stream and their time, with the watermark after each.

    Args:
        events: in the order in which they were heard, with `id` and `at` (ISO 8601).
        marks: the watermark after each of them.
        late: ids of those that were late.
    """
    at = [datetime.fromisoformat(str(event["at"])) for event in events]
    places = range(len(events))
    in_time = [place for place in places if events[place]["id"] not in late]
    too_late = [place for place in places if events[place]["id"] in late]
    _, ax = plt.subplots(figsize=(10, 4))
    ax.plot(in_time, [at[place] for place in in_time], ".", color=GREY, markersize=5, label="event")  # type: ignore[arg-type]
    ax.plot(too_late, [at[place] for place in too_late], "o", color=ORANGE, markersize=4, label="late")  # type: ignore[arg-type]
    ax.step(places, marks, where="post", color=BLUE, linewidth=1.2, alpha=0.7, label="watermark")  # type: ignore[arg-type]
    ax.yaxis.set_major_formatter(DateFormatter(HOUR))  # type: ignore[no-untyped-call]
    ax.set(
        title=f"{len(events):,} events in the order in which they were heard",
        xlabel="offset",
        ylabel="time of the event (UTC)",
    )
    ax.legend()
    show()


def windows(closed: pd.DataFrame) -> None:
    """Plot the mean delay of each airport, window by window.

    Args:
        closed: columns `start`, `origin`, `flights` and `mean_delay` (minutes).
    """
    _by_airport(closed, title="Mean delay by window", marker="o-", times=HOUR)


def lake_windows(sent: pd.DataFrame) -> None:
    """Plot what the lake's own stream has sent, over several days, or say that there is nothing yet.

    Args:
        sent: columns as in `windows`.
    """
    title = "The lake's own windows, by Faust" + (
        "" if len(sent) else ": none yet (scripts/tarn demo replay)"
    )
    _by_airport(sent, title=title, marker="-", times=DAY)


def _by_airport(found: pd.DataFrame, *, title: str, marker: str, times: str) -> None:
    _, ax = plt.subplots(figsize=(10, 3.4))
    for color, (origin, rows) in zip((BLUE, ORANGE, GREEN), found.groupby("origin"), strict=False):
        ax.plot(rows["start"], rows["mean_delay"].astype(float), marker, color=color, label=str(origin))
    if len(found):
        ax.xaxis.set_major_formatter(DateFormatter(times))  # type: ignore[no-untyped-call]
        ax.legend()
    ax.set(title=title, xlabel="start of the window (UTC)", ylabel="mean departure delay (minutes)")
    ax.axhline(0, color=GREY, linewidth=0.8)
    show()
