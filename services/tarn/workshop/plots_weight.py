"""Plots of what a table weighs: its files, its metadata, and who still needs them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.ticker import MaxNLocator
from pyiceberg.table import Table

from tarn.workshop.plots import BLUE, GREY, ORANGE, show
from tarn.workshop.tables import summary_of

SHOWN = (
    "data files",
    "bytes a row",
    "manifests",
    "snapshots",
    "metadata file (bytes)",
    "objects in the folder",
)


def growth(weights: Sequence[int]) -> None:
    """Plot the size of a table's metadata file after each commit (bytes), and their sum."""
    number = range(1, len(weights) + 1)
    written = [sum(weights[:n]) for n in number]
    _, (left, right) = plt.subplots(1, 2, figsize=(10, 3))
    for ax, values, color, title in (
        (left, weights, BLUE, "The metadata file"),
        (right, written, ORANGE, "All that were written"),
    ):
        ax.plot(number, [value / 1000 for value in values], color=color)
        ax.fill_between(number, [value / 1000 for value in values], color=color, alpha=0.15)
        ax.set(title=title, xlabel="commit", ylabel="kB", xlim=(1, len(weights)))
        ax.set_ylim(bottom=0)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    show()


def balance(scales: Mapping[str, Mapping[str, float]]) -> None:
    """Plot the figures of a table at several times side by side, each figure on a scale of its own.

    Args:
        scales: when to figures by name.
    """
    _, axes = plt.subplots(2, 3, figsize=(11, 4.6))
    for ax, name in zip(axes.flat, SHOWN, strict=True):
        values = [figures[name] for figures in scales.values()]
        bars = ax.barh(list(scales), values, color=[GREY, BLUE, ORANGE][: len(values)])
        ax.bar_label(bars, fmt="{:,.0f}", padding=3)
        ax.invert_yaxis()
        ax.set_title(name)
        ax.set_xticks([])
        ax.spines["bottom"].set_visible(False)
        ax.margins(x=0.25)
    show()


def fate(there: Mapping[str, int], *, live: Collection[str], kept: Collection[str]) -> None:
    """Plot the data files of a folder by who needs them.

    Args:
        there: path to bytes of what is in the folder.
        live: data files of the current snapshot.
        kept: data files of all kept snapshots.
    """
    data = {path: size for path, size in there.items() if path.endswith(".parquet")}
    groups = {
        "the current state": {path for path in data if path in live},
        "only history": {path for path in data if path in kept and path not in live},
        "nobody: the reaper's": {path for path in data if path not in kept},
    }
    _, ax = plt.subplots(figsize=(9, 2.2))
    bars = ax.barh(list(groups), [sum(data[p] for p in paths) / 1000 for paths in groups.values()])
    for bar, color in zip(bars, (BLUE, GREY, ORANGE), strict=True):
        bar.set_color(color)
    ax.bar_label(bars, [f"{len(paths)} files" for paths in groups.values()], padding=4)
    ax.invert_yaxis()
    ax.set(title="Data files in the folder, by who needs them", xlabel="kB")
    ax.margins(x=0.15)
    show()


def files_by_commit(table: Table) -> None:
    """Plot the number of data files of a table over its kept commits; a merge is a step down."""
    kept = sorted(table.metadata.snapshots, key=lambda one: one.sequence_number or 0)
    number = [one.sequence_number or 0 for one in kept]
    files = [int(summary_of(one).get("total-data-files", 0)) for one in kept]
    merged = [one.summary is not None and one.summary.operation.value == "replace" for one in kept]
    _, ax = plt.subplots(figsize=(9, 3))
    ax.step(number, files, where="post", color=BLUE)
    ax.plot(
        [n for n, is_merge in zip(number, merged, strict=True) if is_merge],
        [n for n, is_merge in zip(files, merged, strict=True) if is_merge],
        "o",
        color=ORANGE,
        label="merge",
    )
    ax.set(title="Data files after each commit (as far as history reaches)", xlabel="commit", ylabel="files")
    ax.set_ylim(bottom=0)
    ax.legend()
    show()
