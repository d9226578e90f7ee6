"""What a reader in the last row sees of a plot: names that do not lie on each other, whole commits, units."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Annotation

from tarn.workshop import live, offset_plots, plots_flights, plots_weight, plots_windows


@pytest.fixture(autouse=True)
def drawn(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Figures stay open, to be looked at."""
    plt.switch_backend("Agg")
    monkeypatch.setattr(plt, "show", lambda: None)
    yield
    plt.close("all")


def figure() -> Figure:
    found = plt.gcf()
    found.canvas.draw()
    return found


def whole(ticks: list[float]) -> bool:
    return all(float(tick).is_integer() for tick in ticks)


def test_names_on_the_map_do_not_lie_on_each_other() -> None:
    """San Francisco, Oakland and San José are among the worst, and one place on a map of the country."""
    places = {"SFO": (37.62, -122.37), "OAK": (37.72, -122.22), "SJC": (37.36, -121.93), "TUL": (36.2, -95.9)}
    airports = pd.DataFrame([(faa, *at) for faa, at in places.items()], columns=["faa", "lat", "lon"])
    late = pd.DataFrame(
        {"dest": [*places], "flights": [900, 40, 30, 20], "mean_delay": [31.0, 44.0, 47.0, 60.0]}
    )
    left_out = plots_flights.routes(late, airports)
    assert left_out.empty
    ax = figure().axes[0]
    names = [one for one in ax.texts if isinstance(one, Annotation)]
    assert {one.get_text() for one in names} >= {"New York", "TUL", "SJC", "OAK"}
    for one, other in combinations(names, 2):
        assert not one.get_window_extent().overlaps(other.get_window_extent()), (one, other)
    legend = ax.get_legend()
    assert legend is not None
    assert [one.get_text() for one in legend.get_texts()] == ["900 flights", "225 flights"]


@pytest.mark.long
def test_commits_are_counted_in_whole_numbers() -> None:
    offset_plots.draw_chain([{0: 10, 1: 12}, {0: 20, 1: 15}, {0: 30, 1: 18}])
    assert whole(list(figure().axes[-1].get_xticks()))
    plots_weight.growth([1000 + 800 * n for n in range(20)])
    assert all(whole(list(ax.get_xticks())) for ax in figure().axes)


def test_what_is_said_of_a_write_is_beside_its_points() -> None:
    """The slowest write is a point far to the right of its bar."""
    live.draw_acknowledgements(
        {"lake": [0.02, 0.02, 0.2], "log": [0.01, 0.01, 0.01]}, {"lake": 0.0, "log": 0.6}
    )
    ax = figure().axes[0]
    (lake,) = [one for one in ax.texts if "answer 20 ms" in one.get_text()]
    assert lake.get_position()[0] == pytest.approx(0.2)
    legend = ax.get_legend()
    assert legend is not None
    assert not legend.get_window_extent().overlaps(ax.get_window_extent())


@pytest.mark.long
def test_a_lake_without_windows_says_so_and_one_with_them_names_the_unit() -> None:
    columns = ["start", "origin", "flights", "mean_delay"]
    plots_windows.lake_windows(pd.DataFrame(columns=columns))
    (ax,) = figure().axes
    assert ax.get_title(loc="left") == "The lake's own windows, by Faust: none yet (scripts/tarn demo replay)"
    start = pd.Timestamp("2013-01-04T02:00Z")
    plots_windows.lake_windows(
        pd.DataFrame([(start, "JFK", 3, 12.5), (start, "EWR", 2, -1.0)], columns=columns)
    )
    (ax,) = figure().axes
    assert ax.get_ylabel() == "mean departure delay (minutes)"
    legend = ax.get_legend()
    assert legend is not None
    assert [one.get_text() for one in legend.get_texts()] == ["EWR", "JFK"]
