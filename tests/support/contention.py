"""Many writers of one table, and what they got: commits, refusals, files, and how evenly."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

SECONDS_MAX = 120.0


@dataclass(slots=True, kw_only=True)
class Race:
    """What became of the writers' commits.

    Attributes:
        done: number of a writer -> how many of its commits were carried out.
        refused: a refusal, in words -> how often it came.
        waits_s: how long each commit took that was carried out, seconds.
    """

    done: Counter[int] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    waits_s: list[float] = field(default_factory=list)

    @property
    def total(self) -> int:
        """How many commits were carried out."""
        return self.done.total()

    def evenness(self, writers: int) -> float:
        """Return the commits of the slowest writer as a fraction of those of the fastest."""
        counts = [self.done[writer] for writer in range(writers)]
        return min(counts) / max(1, *counts)


def race(commit: Callable[[int, int], str | None], *, writers: int, commits: int) -> Race:
    """Let writers commit one after the other, all at one time, and count.

    Args:
        commit: makes one commit, given the writer and the number of the commit; returns None once it is
            carried out, or the refusal in words.
        writers: how many.
        commits: no writer begins another commit once so many are carried out, or after two minutes.
    """
    found = Race()
    lock, start = threading.Lock(), threading.Barrier(writers, timeout=60)
    problems: list[BaseException] = []

    def write(writer: int) -> None:
        try:
            start.wait()
            until = time.monotonic() + SECONDS_MAX
            number = 0
            while found.total < commits and time.monotonic() < until:
                number += 1
                began = time.monotonic()
                refusal = commit(writer, number)
                with lock:
                    if refusal is None:
                        found.done[writer] += 1
                        found.waits_s.append(time.monotonic() - began)
                    else:
                        found.refused[refusal] += 1
        except BaseException as error:  # noqa: BLE001 (raised by the thread that started it)
            problems.append(error)

    threads = [threading.Thread(target=write, args=(writer,), daemon=True) for writer in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]
    return found
