"""Plots that change while a cell runs, and what came of two ways to write."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd

from tarn.workshop.plots import BLUE, GREEN, GREY, ORANGE, show
from tarn.workshop.progress import note_shown


class Arrival:
    """A plot of a stream that arrives: messages sent, rows that can be read, and how old each commit's were.

    Args:
        title: title of the plot.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._begin_s = time.monotonic()
        self._times: list[float] = []
        self._sent: list[int] = []
        self._landed: list[int] = []
        self._fresh: dict[str, tuple[float, float]] = {}
        self._handle: Any = None

    def add(self, sent: int, landed: int, commit: Mapping[str, Any] | None) -> None:
        """Add what is seen now, and draw.

        Args:
            sent: messages sent so far.
            landed: rows of the table.
            commit: `lastCommit` of the ingestor's status; None before the first.
        """
        now = time.monotonic() - self._begin_s
        self._times.append(now)
        self._sent.append(sent)
        self._landed.append(landed)
        if commit is not None and commit.get("freshnessSeconds") is not None:
            self._fresh.setdefault(str(commit["snapshotId"]), (now, float(commit["freshnessSeconds"])))
        self._draw()

    @property
    def freshness(self) -> pd.Series:
        """Seconds between the time of the oldest message of a commit in Kafka and the commit; those seen."""
        return pd.Series([seconds for _, seconds in self._fresh.values()], dtype=float)

    def _draw(self) -> None:
        from IPython.core.getipython import get_ipython
        from IPython.display import display

        if get_ipython() is None:
            return
        note_shown()
        figure, (top, bottom) = plt.subplots(2, 1, figsize=(9, 4.6), sharex=True, height_ratios=(3, 2))
        top.plot(self._times, self._sent, color=GREY, label="messages sent")
        top.step(self._times, self._landed, where="post", color=BLUE, label="rows that can be read")
        top.fill_between(self._times, self._landed, self._sent, color=GREY, alpha=0.15, linewidth=0)
        top.set(title=self._title)
        top.legend(loc="upper left")
        at = [one for one, _ in self._fresh.values()]
        bottom.vlines(at, 0, self.freshness, color=ORANGE)
        bottom.plot(at, self.freshness, "o", color=ORANGE)
        bottom.set(xlabel="seconds", ylabel="age of the oldest\nrow of a commit (s)")
        bottom.set_ylim(bottom=0)
        figure.tight_layout()
        if self._handle is None:
            self._handle = display(figure, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(figure)
        plt.close(figure)


def draw_acknowledgements(ways: Mapping[str, Sequence[float]], readable: Mapping[str, float]) -> None:
    """Plot how long writes waited for their answer, and when the last row could be read.

    Args:
        ways: name of each way to the seconds that its writes waited.
        readable: name of each way to the seconds from the last answer until all rows could be read.
    """
    _, ax = plt.subplots(figsize=(9, 0.9 * len(ways) + 1.4))
    for at, (name, seconds) in enumerate(ways.items()):
        series = pd.Series(seconds)
        median = float(series.median())
        ax.barh(at, median, color=BLUE, height=0.5, label="answer" if at == 0 else None)
        ax.barh(
            at,
            readable[name],
            left=median,
            color=GREEN,
            alpha=0.5,
            height=0.5,
            label="then until it can be read" if at == 0 else None,
        )
        ax.plot(series, [at] * len(series), ".", color="black", markersize=3)
        words = f"  answer {median * 1000:,.0f} ms, readable {readable[name]:.1f} s later"
        # Beside the bar and all points: one write may have waited longer than the last row took to be there.
        ax.text(max(median + readable[name], float(series.max())), at, words, va="center")
    ax.set(
        title="One row over HTTP: when is it acknowledged, when can it be read?",
        xlabel="seconds",
        yticks=range(len(ways)),
        yticklabels=list(ways),
    )
    ax.use_sticky_edges = False
    ax.set_xlim(left=0)
    ax.margins(x=0.5)
    ax.invert_yaxis()
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.35), ncols=2)
    show()
