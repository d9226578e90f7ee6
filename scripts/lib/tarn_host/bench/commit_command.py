"""Options of scripts/bench commit."""

from __future__ import annotations

import argparse

from tarn_host.bench.commit import Options, measure
from tarn_host.bench.options import Adder, Verbs, asked, counts, require

__all__ = ["add", "measure", "options_of"]

COMMITS_MAX, DEPTH_MAX, WRITERS_MAX = 10_000, 100_000, 256


def add(verbs: Verbs) -> None:
    """Add the command to the parser of scripts/bench."""
    text = "commits by depth and with many writers, beside others, on a small stack of its own"
    command = Adder(verbs, "commit", text, Options)
    command.number("commits", int, "timed, of each at each depth")
    command.number("rounds", int, "that they make")
    command.number("depths", counts, "commits that the tables have seen")
    command.number("writers", counts, "of one table")
    command.number(
        "seconds", float, "after which a slow one is not timed further at a depth", field="cell_s_max"
    )


def options_of(found: argparse.Namespace) -> Options:
    """The sizes that the command line asks for.

    Raises:
        StopError: one is out of range.
    """
    numbers = Options(
        commits=found.commits,
        rounds=found.rounds,
        depths=tuple(sorted(set(found.depths))),
        cell_s_max=found.seconds,
        writers=tuple(sorted(set(found.writers))),
    )
    depths, writers = numbers.depths, numbers.writers
    require(
        1 <= numbers.rounds <= numbers.commits <= COMMITS_MAX
        and numbers.cell_s_max > 0
        and 0 <= depths[0] <= depths[-1] <= DEPTH_MAX
        and 1 <= writers[0] <= writers[-1] <= WRITERS_MAX,
        numbers,
        f"give 1 to {COMMITS_MAX:,} commits, at most as many rounds, more than 0 seconds, depths up to "
        f"{DEPTH_MAX:,} and 1 to {WRITERS_MAX} writers",
    )
    return asked(numbers, found)
