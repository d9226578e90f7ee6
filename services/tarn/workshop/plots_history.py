"""Plots of a table's history: its snapshots as a graph, what they say, and its rows while it goes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from tarn.workshop.plots import BLUE, GREEN, GREY, ORANGE, PINK, SKY, concise, show
from tarn.workshop.tables import back_from, summary_of

MAIN = "main"
LANE_COLORS = (BLUE, ORANGE, GREEN, PINK, SKY)
NAME_CENTERED_MAX = 12
OWN_TAGS = "tarn-"
"""Tags that Tarn keeps for itself; drawn like others, in grey."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Where a table's snapshots are drawn.

    Attributes:
        places: snapshot id to place in time and lane; lane 0 is main's.
        edges: pairs of parent and child.
        labels: snapshot id to the names of branches and tags that point to it, main first.
    """

    places: dict[int, tuple[int, int]]
    edges: list[tuple[int, int]]
    labels: dict[int, list[str]]


def graph_of(table: Table) -> Graph:
    """The snapshots of a table from left to right as they were made; each line of its own has a lane."""
    snapshots = sorted(table.metadata.snapshots, key=_made)
    order = {snapshot.snapshot_id: at for at, snapshot in enumerate(snapshots)}
    lanes = _lanes(table, snapshots)
    labels: dict[int, list[str]] = {}
    for name, ref in sorted(table.metadata.refs.items(), key=lambda item: (item[0] != MAIN, item[0])):
        labels.setdefault(ref.snapshot_id, []).append(name)
    edges = [
        (snapshot.parent_snapshot_id, snapshot.snapshot_id)
        for snapshot in snapshots
        if snapshot.parent_snapshot_id in order
    ]
    return Graph(places={of: (order[of], lanes[of]) for of in order}, edges=edges, labels=labels)


def _lanes(table: Table, snapshots: Sequence[Snapshot]) -> dict[int, int]:
    """Lane by snapshot: main's history is 0, each line that leaves it has the next one."""
    refs = table.metadata.refs
    named = sorted(refs, key=lambda name: (name != MAIN, _made(_at(table, refs[name].snapshot_id)), name))
    tips = [refs[name].snapshot_id for name in named]
    tips += [snapshot.snapshot_id for snapshot in reversed(snapshots)]  # those that no name leads to
    lanes: dict[int, int] = {}
    lane = 0
    for tip in tips:
        line = []
        for snapshot in back_from(table, _at(table, tip)):
            if snapshot.snapshot_id in lanes:
                break
            line.append(snapshot.snapshot_id)
        lanes.update(dict.fromkeys(line, lane))
        lane += bool(line)
    return lanes


def draw_refs(table: Table, title: str) -> None:
    """Plot the snapshots of a table as a graph, with the branches and tags that point to them."""
    graph = graph_of(table)
    lanes = 1 + max((lane for _, lane in graph.places.values()), default=0)
    _, ax = plt.subplots(figsize=(9, 1.5 + 0.75 * lanes))
    for parent, child in graph.edges:
        (x0, y0), (x1, y1) = graph.places[parent], graph.places[child]
        # A branch leaves its line right behind its parent.
        ax.plot([x0, x0 + 0.5, x1], [y0, y1, y1], "-", color=_color(y1), linewidth=1.6, zorder=1)
    for snapshot_id, (x, y) in graph.places.items():
        ax.plot(x, y, "o", color=_color(y), markersize=9, zorder=2)
        for above, name in enumerate(graph.labels.get(snapshot_id, ())):
            kind = table.metadata.refs[name].snapshot_ref_type.value
            # Lines leave main's lane downwards, so its names stand above it.
            away, va = (9 + 11 * above, "bottom") if y == 0 else (-9 - 11 * above, "top")
            ax.annotate(
                name if kind == "branch" else f"{name} (tag)",
                (x, y),
                xytext=(0, away),
                textcoords="offset points",
                ha="right" if x == len(graph.places) - 1 and len(name) > NAME_CENTERED_MAX else "center",
                va=va,
                fontsize=8,
                color=GREY if name.startswith(OWN_TAGS) else _color(y),
                fontweight="bold" if kind == "branch" else "normal",
            )
    ax.set(title=title, ylim=(lanes - 0.4, -0.9), xlim=(-0.8, len(graph.places) - 0.2))
    ax.set_axis_off()
    show()


def draw_prices(lists: Sequence[pd.DataFrame], title: str) -> None:
    """Plot the price of each product (euros, logarithmic) over the versions of a price list.

    Args:
        lists: the versions, oldest first, with the columns product and price.
        title: title of the plot.
    """
    wide = pd.DataFrame({at: one.set_index("product")["price"] for at, one in enumerate(lists, 1)})
    jump = wide.T.pct_change().max() > 1
    _, ax = plt.subplots(figsize=(9, 3.8))
    for product, row in wide.iterrows():
        odd = bool(jump[product])
        ax.plot(row.index, row, "o-", color=ORANGE if odd else BLUE, alpha=0.9 if odd else 0.45, markersize=4)
        if odd:
            _name_line(ax, str(product), row.iloc[-1], at=row.index[-1], color=ORANGE)
    if not jump.all():
        _name_line(ax, "all others", wide.loc[~jump].iloc[:, -1].median(), at=wide.columns[-1], color=BLUE)
    ax.set(title=title, xlabel="version of the table, oldest first", ylabel="price (€)", yscale="log")
    ax.yaxis.set_major_formatter("{x:g}")
    ax.set_xticks(list(wide.columns))
    show()


def draw_way_back(table: Table, title: str) -> None:
    """Plot the rows of a table over the states that were current, with a mark where it went back."""
    log = table.metadata.snapshot_log
    states = pd.DataFrame(
        {
            "at": pd.Timestamp(entry.timestamp_ms, unit="ms", tz="UTC"),
            "rows": int(summary_of(_at(table, entry.snapshot_id)).get("total-records", 0)),
            "made": _made(_at(table, entry.snapshot_id)),
        }
        for entry in log
        if _at(table, entry.snapshot_id) is not None  # states of thinned snapshots cannot be counted
    )
    back = states[states["made"] < states["made"].cummax()]
    less = states[(states["rows"] < states["rows"].shift()) & ~states.index.isin(back.index)]
    _, ax = plt.subplots(figsize=(9, 3.4))
    ax.step(states["at"], states["rows"], where="post", color=BLUE)
    ax.plot(states["at"], states["rows"], "o", color=BLUE, markersize=5)
    again = states[states.index > back.index.max()].head(1)
    marks = ((less, "rows deleted", ORANGE), (back, "gone back", GREEN), (again, "read again", BLUE))
    for found, words, color in marks:
        for _, state in found.iterrows():
            ax.plot(state["at"], state["rows"], "o", color=color, markersize=9)
            ax.annotate(
                words,
                (state["at"], state["rows"]),
                xytext=(0, -14),
                textcoords="offset points",
                ha="right" if found is again else "center",
                fontsize=9,
                color=color,
            )
    ax.set(title=title, xlabel="time of the commit (UTC)", ylabel="rows of the table", ylim=(0, None))
    ax.yaxis.set_major_formatter("{x:,.0f}")
    ax.xaxis.set_major_formatter(concise(ax))
    ax.margins(x=0.05, y=0.15)
    show()


def _name_line(ax: Any, name: str, value: float, *, at: int, color: str) -> None:
    """Write a name behind the last point of a line."""
    ax.annotate(
        name, (at, value), xytext=(6, 0), textcoords="offset points", va="center", fontsize=8, color=color
    )


def _at(table: Table, snapshot_id: int) -> Any:
    return table.metadata.snapshot_by_id(snapshot_id)


def _made(snapshot: Snapshot) -> int:
    return snapshot.sequence_number or 0


def _color(lane: int) -> str:
    return LANE_COLORS[lane % len(LANE_COLORS)]
