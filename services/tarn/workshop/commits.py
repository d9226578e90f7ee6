"""Commits by hand: what a client sends to the catalog, prepared and not sent; and writers that race."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import matplotlib.pyplot as plt
from pyiceberg.table import Table

from tarn.workshop.plots import BLUE, GREY, ORANGE, show
from tarn.workshop.prepared import prepare as prepare


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One commit that a racing writer sent.

    Attributes:
        writer: its number.
        begin_s: when it was sent, in seconds since the start.
        end_s: when its answer came.
        accepted: whether it was committed.
    """

    writer: int
    begin_s: float
    end_s: float
    accepted: bool


@dataclass(slots=True)
class Race:
    """Writers that begin in the same moment, and what became of each attempt.

    Attributes:
        attempts: all attempts, in the order of their answers.
    """

    attempts: list[Attempt] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _begin_s: float = 0.0

    def run(self, writers: int, write: Callable[[int], Any]) -> None:
        """Call `write` with 0, 1, …, each on a thread of its own, and wait for all. Raises what one does."""
        barrier = threading.Barrier(writers)

        def begin(number: int) -> None:
            barrier.wait()
            write(number)

        self._begin_s = time.monotonic()
        with ThreadPoolExecutor(max_workers=writers) as pool:
            for done in [pool.submit(begin, number) for number in range(writers)]:
                done.result()

    def attempt(self, writer: int, send: Callable[[], bool]) -> bool:
        """Call `send`, and keep how long it took and whether it was accepted, which is returned."""
        begin = time.monotonic() - self._begin_s
        accepted = send()
        end = time.monotonic() - self._begin_s
        with self._lock:
            self.attempts.append(Attempt(writer=writer, begin_s=begin, end_s=end, accepted=accepted))
        return accepted

    @property
    def refused(self) -> int:
        """How many attempts were refused."""
        return sum(not one.accepted for one in self.attempts)

    @property
    def seconds(self) -> float:
        """How long it took, from the start to the last answer."""
        return max((one.end_s for one in self.attempts), default=0.0)


def draw_race(race: Race, title: str = "") -> None:
    """Plot every attempt of every writer over time: accepted or refused."""
    writers = max(one.writer for one in race.attempts) + 1
    _, ax = plt.subplots(figsize=(9, 0.26 * writers + 1.3))
    for one in race.attempts:
        color = BLUE if one.accepted else ORANGE
        width = max(one.end_s - one.begin_s, 0.004 * race.seconds)
        ax.barh(one.writer, width, left=one.begin_s, color=color, height=0.62)
    ax.barh([0], [0], color=BLUE, label=f"{len(race.attempts) - race.refused} committed")
    ax.barh([0], [0], color=ORANGE, label=f"{race.refused} refused, and rebased")
    accepted = sorted(one.end_s for one in race.attempts if one.accepted)
    for at in accepted:
        ax.axvline(at, color=GREY, linewidth=0.5, zorder=0)
    ax.set(
        title=title or f"{writers} writers, one table: each line is a commit",
        xlabel="seconds since the start",
        ylabel="writer",
        ylim=(-0.7, writers - 0.3),
        yticks=range(writers),
    )
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    show()


def chain(table: Table) -> Sequence[int]:
    """Return the ids of the current snapshot and its ancestors, newest first."""
    from tarn.workshop.tables import back_from

    return [one.snapshot_id for one in back_from(table, table.current_snapshot())]
