"""Plots of the notebooks, and the look that all of them share."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.dates import ConciseDateFormatter
from pyiceberg.table import Table

from tarn.workshop.tables import summary_of

BLUE, ORANGE, GREY = "#0072b2", "#d55e00", "#9aa0a6"  # safe for colour-blind readers
GREEN, SKY, YELLOW, PINK = "#009e73", "#56b4e9", "#f0e442", "#cc79a7"
PALETTE = (BLUE, ORANGE, GREEN, PINK, SKY, GREY, YELLOW)

plt.rcParams.update(
    {
        "figure.dpi": 110,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlelocation": "left",
        "axes.titleweight": "bold",
        "legend.frameon": False,
    }
)


def draw_arrival(table: Table) -> None:
    """Plot the number of rows of a table over its known commits."""
    history = pd.DataFrame(
        {
            "at": pd.Timestamp(s.timestamp_ms, unit="ms", tz="UTC"),
            "rows": int(summary_of(s)["total-records"]),
        }
        for s in table.metadata.snapshots
    ).sort_values("at")
    _, ax = plt.subplots(figsize=(8, 3.2))
    ax.step(history["at"], history["rows"], where="post", color=BLUE)
    ax.plot(history["at"], history["rows"], ".", color=BLUE, markersize=4)
    ax.set(
        title=f"The stream arrives: {len(history)} commits to {'.'.join(table.name())}",
        xlabel="time of the commit (UTC)",
    )
    ax.set_ylabel("rows in the table")
    ax.yaxis.set_major_formatter("{x:,.0f}")
    ax.xaxis.set_major_formatter(concise(ax))
    ax.margins(y=0.1)
    show()


def draw_hours(hours: pd.DataFrame) -> None:
    """Plot mean delays (minutes) and the number of flights by hour of the scheduled departure."""
    hours = hours.sort_values("hour")
    _, (top, bottom) = plt.subplots(2, 1, figsize=(8, 5), sharex=True, height_ratios=(3, 1))
    top.plot(hours["hour"], hours["mean_dep_delay"], "o-", color=BLUE, label="departure")
    top.plot(hours["hour"], hours["mean_arr_delay"], "s--", color=ORANGE, label="arrival")
    top.axhline(0, color=GREY, linewidth=0.8)
    title = f"Delay by hour of the scheduled departure ({hours['flights'].sum():,} flights)"
    top.set(title=title, ylabel="mean delay (minutes)")
    top.legend(frameon=False)
    bottom.bar(hours["hour"], hours["flights"], color=GREY)
    bottom.set(
        xlabel="hour of the scheduled departure (New York time)",
        ylabel="flights",
        xticks=range(0, 24, 2),
        xlim=(-0.5, 23.5),
    )
    bottom.yaxis.set_major_formatter("{x:,.0f}")
    show()


def draw_carriers(carriers: pd.DataFrame) -> None:
    """Plot the mean arrival delay (minutes) and the share of punctual flights (%) by carrier."""
    shown = carriers.dropna(subset=["mean_arr_delay"]).sort_values("mean_arr_delay")
    labels = [f"{row['name'] or carrier}  ({row['flights']:,})" for carrier, row in shown.iterrows()]
    size = (10, 0.34 * len(shown) + 1.4)
    _, (left, right) = plt.subplots(1, 2, figsize=size, sharey=True, width_ratios=(3, 2))
    colors = [ORANGE if delay > 0 else BLUE for delay in shown["mean_arr_delay"]]
    left.barh(labels, shown["mean_arr_delay"], color=colors)
    left.axvline(0, color="black", linewidth=0.8)
    left.set(
        title="Delay by carrier (number of flights)",
        xlabel="mean arrival delay (minutes; below 0 is early)",
    )
    right.barh(labels, shown["on_time_rate"] * 100, color=GREY)
    right.set(title="On time", xlabel="arrived less than 15 min late (%)", xlim=(0, 100))
    show()


def draw_store(sizes: dict[str, int]) -> None:
    """Plot the store's content by table and kind of file (MB).

    Args:
        sizes: bytes by path, as in `bucket/warehouse/namespace/table-<uuid>/…`.
    """
    parts = {path: path.split("/") for path in sizes}
    objects = pd.DataFrame(
        {
            "table": f"{at[2]}.{at[3].rpartition('-')[0].rsplit('-', 4)[0]}",
            "kind": _kind(path),
            "MB": sizes[path] / 1e6,
        }
        for path, at in parts.items()
        if len(at) > 4
    )
    held = objects.pivot_table(index="table", columns="kind", values="MB", aggfunc="sum", fill_value=0)
    held = held.loc[held.sum(axis=1).sort_values().index].tail(12)
    size = (8, 0.34 * len(held) + 1.4)
    ax = held.plot.barh(stacked=True, figsize=size, color=[BLUE, GREY, ORANGE], width=0.75)
    ax.set(
        title=f"What the store holds: {len(objects):,} objects, {objects['MB'].sum():,.1f} MB",
        xlabel="size (MB)",
        ylabel="",
    )
    ax.legend(title="", frameon=False)
    show()


def _kind(path: str) -> str:
    if path.endswith(".parquet"):
        return "data (Parquet)"
    return "table metadata (JSON)" if ".metadata.json" in path else "manifests (Avro) and others"


def concise(ax: Any) -> ConciseDateFormatter:
    """Return short labels for an axis of times."""
    return ConciseDateFormatter(ax.xaxis.get_major_locator())  # type: ignore[no-untyped-call]


def show() -> None:
    """Show the figure below the cell."""
    plt.tight_layout()
    plt.show()
