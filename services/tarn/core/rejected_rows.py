"""Which rows of a write a table did not take: runs of numbers, few enough to be kept with each commit. Pure.

The answer to a repeat says what became of the rows the first time. The columns of today do not say it: the
table may have got a column, or lost one, since.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Run = tuple[int, int]
"""Numbers from the first to before the second."""
Runs = tuple[Run, ...]
RUNS_MAX = 64
"""Runs that are kept of one key or producer; of more it is not known any more which rows they were."""


def runs_of(numbers: Iterable[int]) -> Runs:
    """Numbers, which ascend, as runs."""
    found: list[Run] = []
    for number in numbers:
        if found and found[-1][1] == number:
            found[-1] = (found[-1][0], number + 1)
        else:
            found.append((number, number + 1))
    return tuple(found)


def numbers_in(runs: Runs) -> list[int]:
    """The numbers of runs, ascending."""
    return [number for start, end in runs for number in range(start, end)]


def shifted(runs: Runs, by: int) -> Runs:
    """The runs with other numbers."""
    return tuple((start + by, end + by) for start, end in runs)


def clipped(runs: Runs, first: int, end: int) -> Runs:
    """What runs have from `first` to before `end`."""
    return tuple((max(a, first), min(b, end)) for a, b in runs if a < end and b > first)


def to_gaps(runs: Runs, base: int = 0) -> list[int]:
    """Runs as gap, length, gap, length, from `base` on: short in JSON."""
    found: list[int] = []
    for start, end in runs:
        found += (start - base, end - start)
        base = end
    return found


def from_gaps(gaps: Sequence[object], base: int = 0) -> Runs:
    """The runs that `to_gaps` was given.

    Raises:
        ValueError: they are none.
    """
    if not gaps:
        return ()
    numbers = [one for one in gaps if type(one) is int and one >= 0]
    if len(numbers) < len(gaps) or len(numbers) % 2 or 0 in numbers[1::2]:
        raise ValueError(f"no runs of rows: {list(gaps)[:10]!r}")
    found: list[Run] = []
    for gap, length in zip(numbers[::2], numbers[1::2], strict=True):
        found.append((base + gap, base + gap + length))
        base += gap + length
    return tuple(found)
