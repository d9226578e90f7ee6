"""Plots of offsets: what each commit has brought in, and what is there how often."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.ticker import MaxNLocator

from tarn.workshop.plots import BLUE, GREY, ORANGE, PALETTE, show


def draw_chain(maps: Sequence[Mapping[int, int]], marks: Mapping[int, str] | None = None) -> None:
    """Plot the range of offsets that each commit has brought in, per partition.

    Args:
        maps: the offset map of each commit, in order.
        marks: number of a commit to what happened right before it.
    """
    partitions = sorted({p for one in maps for p in one})
    figure, axes = plt.subplots(
        len(partitions), 1, figsize=(9, 1.5 + 1.2 * len(partitions)), sharex=True, squeeze=False
    )
    for row, partition in enumerate(partitions):
        ax = axes[row][0]
        ends = [one.get(partition, 0) for one in maps]
        starts = [0, *ends[:-1]]
        heights = [end - start for start, end in zip(starts, ends, strict=True)]
        ax.bar(range(len(ends)), heights, bottom=starts, width=0.86, color=PALETTE[row % len(PALETTE)])
        ax.set_ylabel(f"offsets of\npartition {partition}")
        for at, text in (marks or {}).items():
            ax.axvline(at - 0.5, color=GREY, linestyle="--", linewidth=1)
            if row == 0:
                ax.text(at - 0.4, ax.get_ylim()[1], text, fontsize=8, va="top")
    axes[-1][0].set_xlabel("commit")
    axes[-1][0].xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.suptitle("Each commit begins where the one before has ended", x=0.01, ha="left", weight="bold")
    show()


def draw_copies(counts: Mapping[str, pd.Series]) -> None:
    """Plot how often each message is in a table, for several tables.

    Args:
        counts: label to a series of how often each message is there.
    """
    _, ax = plt.subplots(figsize=(9, 0.9 * len(counts) + 1.2))
    for at, found in enumerate(counts.values()):
        left = 0
        for copies, color in ((0, GREY), (1, BLUE), (2, ORANGE)):
            here = int((found >= 2).sum()) if copies == 2 else int((found == copies).sum())
            ax.barh(at, here, left=left, color=color, height=0.6)
            if here:
                words = {0: "missing", 1: "once", 2: "doubled"}[copies]
                ax.text(left + here / 2, at, f"{here:,} {words}", ha="center", va="center", color="white")
            left += here
    ax.set(
        title="How often each message is in the table",
        xlabel="messages",
        yticks=range(len(counts)),
        yticklabels=list(counts),
    )
    ax.invert_yaxis()
    show()
