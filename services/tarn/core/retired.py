"""Rows of a stream that are gone by retention, not lost: which offsets, in the snapshot summary. Pure.

The commit that drops a data file adds the offsets of its rows, as they were read from the file; every later
commit of the stream carries them. Files are dropped in the order of event time, which need not be that of the
offsets, so these are runs and not one floor per partition. In a stream whose events are roughly in order they
are few; beyond `RUNS_MAX`, the runs that are closest to each other are joined. Those of a table that is also
partitioned by another column are many in each file, so the work is bounded too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType

import orjson

from tarn.core import versioned_json
from tarn.core.errors import CorruptStateError

PREFIX = "tarn.retired."
FORMAT = 1
RUNS_MAX = 200
"""Runs of offsets that a stream states at most, of all its partitions: each commit repeats them."""

HELD_MAX = 2_000
"""Runs of one partition that a commit adds at most, some more than are stated: they are joined with those."""

Run = tuple[int, int]
"""Half-open range of offsets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retired:
    """Rows that were dropped by age.

    Attributes:
        rows: number of rows dropped since the stream began.
        runs: partition to the offsets of these rows, as runs in order.
        joined: offsets between two runs that were joined, which may have had no row that was dropped.
    """

    rows: int = 0
    runs: Mapping[int, tuple[Run, ...]] = field(default_factory=dict)
    joined: int = 0

    def __post_init__(self) -> None:
        """Freeze the mapping."""
        object.__setattr__(self, "runs", MappingProxyType(dict(sorted(self.runs.items()))))

    def __contains__(self, place: tuple[int, int]) -> bool:
        """Whether the row at this (partition, offset) was dropped."""
        partition, offset = place
        return any(start <= offset < end for start, end in self.runs.get(partition, ()))

    def plus(self, dropped: Mapping[int, Iterable[Run]], *, rows: int, joined: int = 0) -> Retired:
        """With further rows.

        Args:
            dropped: partition to runs of offsets.
            rows: number of the rows.
            joined: offsets between two of these runs that were joined, as `few` returns it.
        """
        places = self.runs.keys() | dropped.keys()
        runs = {p: _merged([*self.runs.get(p, ()), *dropped.get(p, ())]) for p in places}
        stated, more = _narrowed(runs, RUNS_MAX)
        return Retired(rows=self.rows + rows, runs=stated, joined=self.joined + joined + more)

    def to_json(self) -> str:
        """Compact JSON, as stored in a snapshot summary."""
        runs = {str(p): [list(run) for run in one] for p, one in self.runs.items()}
        return orjson.dumps({"v": FORMAT, "rows": self.rows, "joined": self.joined, "runs": runs}).decode()

    @staticmethod
    def from_json(text: str) -> Retired:
        """Parse the result of `to_json`.

        Raises:
            CorruptStateError: the text is not of this form.
        """
        try:
            value = versioned_json.read(text, FORMAT)
            runs = {int(p): tuple((int(a), int(b)) for a, b in one) for p, one in value["runs"].items()}
            return Retired(rows=int(value["rows"]), joined=int(value["joined"]), runs=runs)
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise CorruptStateError(
                f"what retention dropped cannot be read in the snapshot summary ({e!r}): {text[:200]!r}; "
                "roll the table back to a snapshot with a whole one",
                value=text[:200],
            ) from e


def _merged(runs: list[Run]) -> tuple[Run, ...]:
    found: list[Run] = []
    for start, end in sorted(runs):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        elif start < end:
            found.append((start, end))
    return tuple(found)


def few(runs: Iterable[Run]) -> tuple[tuple[Run, ...], int]:
    """At most `HELD_MAX` of the runs of a partition, joined where they are closest to each other.

    There may be millions of them: only some are held at a time. `Retired.plus` makes the same of the result
    as of all, unless earlier runs lie between them.

    Args:
        runs: runs in order.

    Returns:
        The runs, and the number of offsets between those that were joined.
    """
    held: list[Run] = []
    joined = 0
    for run in runs:
        held.append(run)
        if len(held) == 2 * HELD_MAX:
            narrowed, more = _narrowed({0: held}, HELD_MAX)
            held, joined = [*narrowed[0]], joined + more
    narrowed, more = _narrowed({0: held}, HELD_MAX)
    return narrowed[0], joined + more


def _narrowed(runs: Mapping[int, Sequence[Run]], most: int) -> tuple[dict[int, tuple[Run, ...]], int]:
    """The runs with the narrowest gaps closed until `most` are left in all, and the offsets in these gaps."""
    over = max(0, sum(map(len, runs.values())) - most)
    gaps = sorted(
        (after[0] - before[1], p, n)
        for p, one in runs.items()
        for n, (before, after) in enumerate(pairwise(one), start=1)
    )[:over]
    closed = {(p, n) for _, p, n in gaps}
    found: dict[int, tuple[Run, ...]] = {}
    for p, one in runs.items():
        left: list[Run] = []
        for n, run in enumerate(one):
            if (p, n) in closed:
                left[-1] = left[-1][0], run[1]
            else:
                left.append(run)
        found[p] = tuple(left)
    return found, sum(width for width, _, _ in gaps)
