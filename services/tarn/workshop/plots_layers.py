"""Plots of a pipeline's tables."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.ticker import MaxNLocator
from pyiceberg.table import Table

from tarn.workshop.plots import BLUE, GREY, ORANGE, show


def progress(table: Table, position: str) -> None:
    """Plot the rows of a table and the position that it has reached, commit by commit.

    Args:
        table: the table.
        position: the entry of a snapshot's summary that has the position.
    """
    kept = sorted(table.metadata.snapshots, key=lambda one: one.sequence_number or 0)
    said = [one.summary.additional_properties if one.summary else {} for one in kept]
    number = range(1, len(kept) + 1)
    _, (left, right) = plt.subplots(1, 2, figsize=(10, 3))
    left.plot(number, [int(one.get(position, 0)) for one in said], "o-", color=ORANGE)
    left.set(title="Position in the stream", xlabel="commit", ylabel="events")
    right.plot(number, [int(one.get("total-records", 0)) for one in said], "o-", color=BLUE)
    right.set(title="Rows in the table", xlabel="commit", ylabel="rows")
    for ax in (left, right):
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.yaxis.set_major_formatter("{x:,.0f}")
        ax.set_ylim(bottom=0)
    show()


def airlines(gold: pd.DataFrame) -> None:
    """Plot the flights of each airline, and how late they arrive.

    Args:
        gold: columns `name`, `flights`, `cancelled` and `mean_arr_delay` (minutes).
    """
    shown = gold.sort_values("flights")
    _, (left, right) = plt.subplots(1, 2, figsize=(10, 0.32 * len(shown) + 1.4), sharey=True)
    left.barh(shown["name"], shown["flights"], color=GREY, label="flights")
    left.barh(shown["name"], shown["cancelled"], color=ORANGE, label="of them cancelled")
    left.set(title="Flights")
    left.legend(frameon=False, loc="lower right")
    late = shown["mean_arr_delay"]
    right.barh(shown["name"], late, color=[ORANGE if delay > 0 else BLUE for delay in late])
    right.axvline(0, color="black", linewidth=0.8)
    right.set(title="Mean arrival delay (minutes; below 0 is early)")
    show()
