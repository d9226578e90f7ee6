"""How long each row of a stream waited until it could be read, from the table alone."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from pyiceberg.table import Table

from tarn.workshop.plots import GREY, PALETTE, show
from tarn.workshop.tables import back_from, said, summary_of

MS = 1_000.0


def of_rows(table: Table, stream: str) -> pd.DataFrame:
    """Return each row with the time when Kafka had it, and the commit that brought it in.

    A row's commit is the first kept one whose offset map lies behind its offset: rows of a commit that was
    thinned count as the next one's.

    Args:
        table: a table with the trace column `_tarn`.
        stream: the stream that fills it, as the offset maps name it: its ingestor's name.

    Returns:
        The columns of the table without `_tarn`, then `sent` (time in Kafka), `readable` (time of the
        commit), `seconds` between the two, and `commit` (the snapshot's id); in the order of `sent`.

    Raises:
        ValueError: the commit of a row is not kept any more.
    """
    entry = f"tarn.offsets.{stream}"
    commits = [
        snapshot for snapshot in back_from(table, table.current_snapshot()) if entry in summary_of(snapshot)
    ][::-1]
    maps = [said(table, snapshot, entry)["next"] for snapshot in commits]
    there = table.scan().to_arrow()
    place = there.select(["_tarn"]).flatten()
    partitions, offsets = (place[f"_tarn.{name}"].to_numpy() for name in ("partition", "offset"))
    at = np.zeros(len(there), dtype=int)
    for partition in np.unique(partitions):
        ends = np.array([one.get(str(partition), 0) for one in maps])
        mine = partitions == partition
        at[mine] = np.searchsorted(ends, offsets[mine], side="right")
    if len(there) and int(at.max()) >= len(commits):
        raise ValueError("the table has rows whose commit is not in its history: load it again")
    rows = there.drop_columns(["_tarn"]).to_pandas()
    rows["sent"] = place["_tarn.time"].to_pandas()
    readable = pd.to_datetime([snapshot.timestamp_ms for snapshot in commits], unit="ms", utc=True)
    rows["readable"] = readable[at]
    rows["seconds"] = (rows["readable"] - rows["sent"]).dt.total_seconds()
    rows["commit"] = np.array([snapshot.snapshot_id for snapshot in commits])[at]
    return rows.sort_values("sent", kind="stable").reset_index(drop=True)


def draw_waiting(runs: Mapping[str, pd.DataFrame]) -> None:
    """Plot the seconds that each row waited over the time at which it was sent; a colour is a commit.

    Args:
        runs: label to rows as `of_rows` returns them.
    """
    _, axes = plt.subplots(1, len(runs), figsize=(9, 3.4), sharey=True, squeeze=False)
    for ax, (label, rows) in zip(axes[0], runs.items(), strict=True):
        since = (rows["sent"] - rows["sent"].min()).dt.total_seconds()
        for number, (_, one) in enumerate(rows.groupby("commit", sort=False)):
            ax.plot(since[one.index], one["seconds"], ".", markersize=4, color=PALETTE[number % len(PALETTE)])
        middle = float(rows["seconds"].median())
        ax.axhline(middle, color=GREY, linestyle="--", linewidth=1)
        ax.text(float(since.max()), middle, f"median {middle:.2f} s", ha="right", va="bottom", fontsize=8)
        ax.set(title=f"{label}: {rows['commit'].nunique()} commits", xlabel="sent after (s)")
    axes[0][0].set_ylabel("readable after (s)")
    axes[0][0].set_ylim(bottom=0)
    show()
