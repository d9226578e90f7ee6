"""Options of scripts/bench commit."""

from __future__ import annotations

import argparse
from typing import Any

from tarn_host.bench.commit import Options, measure
from tarn_host.console import StopError

__all__ = ["add", "counts", "measure", "numbers_of"]

COMMITS_MAX, DEPTH_MAX, WRITERS_MAX = 10_000, 100_000, 256


def add(verbs: argparse._SubParsersAction[Any]) -> None:
    """Add the command to the parser of scripts/bench."""
    default = Options()
    found = verbs.add_parser(
        "commit", help="commits by depth and with many writers, beside others, on a small stack of its own"
    )
    found.add_argument("--quick", action="store_true", help="everything small; nothing is kept")
    found.add_argument(
        "--commits", type=int, default=default.commits, help="timed, of each at each depth (default 50)"
    )
    found.add_argument("--rounds", type=int, default=default.rounds, help="that they make (default 5)")
    found.add_argument(
        "--depths",
        type=counts,
        default=default.depths,
        help="commits that the tables have seen (default 0,200,2000,10000)",
    )
    found.add_argument(
        "--writers", type=counts, default=default.writers, help="of one table (default 1,4,16,64)"
    )
    found.add_argument(
        "--seconds",
        type=float,
        default=default.cell_s_max,
        help=f"after which a slow one is not timed further at a depth (default {default.cell_s_max:g})",
    )


def numbers_of(options: argparse.Namespace) -> Options:
    """The sizes that the command line asks for.

    Raises:
        StopError: one is out of range.
    """
    found = Options(
        commits=options.commits,
        rounds=options.rounds,
        depths=tuple(sorted(set(options.depths))),
        cell_s_max=options.seconds,
        writers=tuple(sorted(set(options.writers))),
    )
    depths, writers = found.depths, found.writers
    if not (
        1 <= found.rounds <= found.commits <= COMMITS_MAX
        and found.cell_s_max > 0
        and 0 <= depths[0] <= depths[-1] <= DEPTH_MAX
        and 1 <= writers[0] <= writers[-1] <= WRITERS_MAX
    ):
        raise StopError(
            f"{found.words()}: no such benchmark",
            f"give 1 to {COMMITS_MAX:,} commits, at most as many rounds, more than 0 seconds, depths up to "
            f"{DEPTH_MAX:,} and 1 to {WRITERS_MAX} writers",
            2,
        )
    return found.small() if options.quick else found


def counts(text: str) -> tuple[int, ...]:
    """Whole numbers with commas between them, such as `1,4`."""
    return tuple(int(word) for word in text.split(","))
