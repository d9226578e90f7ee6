"""Plots of flights and their delays."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.patheffects import withStroke
from matplotlib.transforms import Bbox

from tarn.workshop.plots import BLUE, GREY, ORANGE, show

PALE = "#c8ccd0"
WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
HOME = (-73.9, 40.7)
"""New York, degrees of longitude and latitude: its three airports are one point on a map of the country."""
WEST, EAST, SOUTH, NORTH = -126.0, -66.0, 23.5, 50.0
NAMED = 8
"""So many destinations have their code beside their point: those with the largest delay."""


def hours(found: pd.DataFrame) -> None:
    """Plot the mean delay by hour of the day over the number of flights.

    Args:
        found: columns `hour`, `flights`, `mean_delay` (minutes), and `late_tenth` (minutes, the 90th
            percentile).
    """
    found = found.sort_values("hour")
    _, (top, bottom) = plt.subplots(2, 1, figsize=(8, 5), sharex=True, height_ratios=(3, 1))
    top.plot(
        found["hour"], found["late_tenth"], "o-", color=ORANGE, label="one flight in ten is later than this"
    )
    top.plot(found["hour"], found["mean_delay"], "s-", color=BLUE, label="mean")
    top.axhline(0, color=GREY, linewidth=0.8)
    top.set(title="Departure delay by the hour of the timetable", ylabel="minutes")
    top.legend(frameon=False)
    bottom.bar(found["hour"], found["flights"], color=GREY)
    bottom.set(
        xlabel="hour of the scheduled departure (New York time)", ylabel="flights", xticks=range(0, 24, 2)
    )
    bottom.yaxis.set_major_formatter("{x:,.0f}")
    show()


def carriers(found: pd.DataFrame) -> None:
    """Plot the mean arrival delay by airline, its share of cancelled flights beside it.

    Args:
        found: columns `airline`, `flights`, `mean_delay` (minutes) and `cancelled` (share from 0 to 1).
    """
    shown = found.dropna(subset=["mean_delay"]).sort_values("mean_delay")
    labels = [f"{airline}  ({n:,})" for airline, n in zip(shown["airline"], shown["flights"], strict=True)]
    size = (10, 0.34 * len(shown) + 1.4)
    _, (left, right) = plt.subplots(1, 2, figsize=size, sharey=True, width_ratios=(3, 2))
    left.barh(labels, shown["mean_delay"], color=[ORANGE if d > 0 else BLUE for d in shown["mean_delay"]])
    left.axvline(0, color="black", linewidth=0.8)
    left.set(title="Airlines (flights)", xlabel="mean arrival delay (minutes; below 0 is early)")
    right.barh(labels, shown["cancelled"] * 100, color=GREY)
    right.set(title="Cancelled", xlabel="share of the flights (%)")
    show()


def week(found: pd.DataFrame) -> None:
    """Plot a week as a grid of hours and days, coloured by delay.

    Args:
        found: columns `weekday` (1 is Monday), `hour`, `mean_delay` (minutes).
    """
    grid = found.pivot_table(index="weekday", columns="hour", values="mean_delay").reindex(range(1, 8))
    _, ax = plt.subplots(figsize=(9, 3.2))
    mesh = ax.pcolormesh(
        grid.columns, range(7), grid.to_numpy(dtype=float), cmap="cividis", shading="nearest"
    )
    ax.set(
        title="When a week is late",
        xlabel="hour of the scheduled departure (New York time)",
        xticks=grid.columns,
    )
    ax.set_yticks(range(7), WEEKDAYS)
    ax.invert_yaxis()
    plt.colorbar(mesh, ax=ax, label="mean delay (minutes)")
    show()


def weather(found: pd.DataFrame) -> None:
    """Plot mean delay and share of cancelled flights side by side, by kind of weather.

    Args:
        found: columns `weather`, `flights`, `mean_delay` (minutes), `cancelled` (share from 0 to 1), in the
            order in which they are shown.
    """
    labels = [f"{w}\n({n:,} flights)" for w, n in zip(found["weather"], found["flights"], strict=True)]
    _, (left, right) = plt.subplots(1, 2, figsize=(10, 3.4))
    for ax, values, color, title in (
        (left, found["mean_delay"], BLUE, "Mean departure delay (minutes)"),
        (right, found["cancelled"] * 100, ORANGE, "Cancelled flights (%)"),
    ):
        bars = ax.bar(labels, values, color=color, width=0.6)
        ax.bar_label(bars, fmt="{:.1f}", padding=2)
        ax.set(title=title)
        ax.margins(y=0.15)
    show()


def routes(found: pd.DataFrame, airports: pd.DataFrame) -> pd.DataFrame:
    """Draw the routes from New York on a map made of the airports' own coordinates.

    The grey points are all airports of the country: together they show its outline, without any map from
    elsewhere. A line is as wide as its route is busy, and coloured by delay.

    Args:
        found: columns `dest`, `flights`, `mean_delay` (minutes).
        airports: columns `faa`, `lat`, `lon` (degrees).

    Returns:
        The destinations that are not drawn: outside of the map, or without coordinates.
    """
    placed = found.merge(airports, left_on="dest", right_on="faa", how="left")
    inside = placed["lon"].between(WEST, EAST) & placed["lat"].between(SOUTH, NORTH)
    shown = placed[inside & placed["mean_delay"].notna()].sort_values("mean_delay")
    _, ax = plt.subplots(figsize=(11, 6.2))
    land = airports[airports["lon"].between(WEST, EAST) & airports["lat"].between(SOUTH, NORTH)]
    ax.scatter(land["lon"], land["lat"], s=4, color=PALE, zorder=1)
    reach = max(1.0, float(shown["mean_delay"].abs().quantile(0.95)))
    norm = TwoSlopeNorm(vcenter=0, vmin=-reach, vmax=reach)
    busiest = float(shown["flights"].max())
    for _, route in shown.iterrows():
        lon, lat = great_circle(HOME, (route["lon"], route["lat"]))
        width = 0.6 + 4.4 * float(route["flights"]) / busiest
        ax.plot(
            lon, lat, color=plt.cm.coolwarm(norm(route["mean_delay"])), linewidth=width, alpha=0.75, zorder=2
        )
    points = ax.scatter(
        shown["lon"],
        shown["lat"],
        c=shown["mean_delay"],
        cmap="coolwarm",
        norm=norm,
        s=26,
        edgecolor="black",
        linewidth=0.4,
        zorder=3,
    )
    ax.plot(*HOME, marker="*", markersize=15, color="black", zorder=4)
    _without_frame(ax)
    ax.set_title("Where New York flies, and how late it arrives")
    plt.colorbar(points, ax=ax, shrink=0.6, label="mean arrival delay (minutes)")
    for flights in (busiest, busiest / 4):
        label = f"{flights:,.0f} flights"
        ax.plot([], [], color=GREY, linewidth=0.6 + 4.4 * flights / busiest, label=label)
    ax.legend(loc="lower left")
    plt.tight_layout()  # before the names: they are placed by what is beside them
    worst = [
        (str(r["dest"]), float(r["lon"]), float(r["lat"])) for _, r in shown.tail(NAMED)[::-1].iterrows()
    ]
    _name_places(ax, [("New York", *HOME), *worst])
    plt.show()
    return placed.loc[~placed["dest"].isin(shown["dest"]), ["dest", "flights", "lat", "lon"]]


def _name_places(ax: Axes, places: Sequence[tuple[str, float, float]]) -> None:
    """Write names beside their points, where no other name is; a name without room is left out."""
    renderer = ax.figure.canvas.get_renderer()  # type: ignore[attr-defined]
    taken: list[Bbox] = []
    for name, lon, lat in places:
        for x, y, side in ((8, 5, "left"), (8, -14, "left"), (-8, 5, "right"), (-8, -14, "right")):
            text = ax.annotate(
                name, (lon, lat), xytext=(x, y), textcoords="offset points", ha=side, weight="bold", zorder=5
            )
            text.set_path_effects([withStroke(linewidth=2.5, foreground="white")])
            box = text.get_window_extent(renderer)
            if not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
            text.remove()


def great_circle(
    start: tuple[float, float], end: tuple[float, float], points: int = 40
) -> tuple[np.ndarray, np.ndarray]:
    """Return the shortest way over the globe between two places, as longitudes and latitudes in degrees.

    Args:
        start: longitude and latitude.
        end: the same.
        points: of how many points the way consists.
    """
    a, b = _on_sphere(start), _on_sphere(end)
    angle = np.arccos(np.clip(a @ b, -1.0, 1.0))
    if angle == 0:
        return np.full(points, start[0]), np.full(points, start[1])
    t = np.linspace(0.0, 1.0, points)[:, None]
    x, y, z = ((np.sin((1 - t) * angle) * a + np.sin(t * angle) * b) / np.sin(angle)).T
    return np.degrees(np.arctan2(y, x)), np.degrees(np.arcsin(np.clip(z, -1.0, 1.0)))


def _on_sphere(place: tuple[float, float]) -> np.ndarray:
    lon, lat = np.radians(place)
    return np.array([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)])


def _without_frame(ax: Axes) -> None:
    ax.set(xlim=(WEST, EAST), ylim=(SOUTH, NORTH), aspect=1 / np.cos(np.radians(38.0)), xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
