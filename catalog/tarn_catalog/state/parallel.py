"""The same step for several items at one time, for steps that wait for the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

WORKERS_MAX = 8

A = TypeVar("A")
B = TypeVar("B")


def in_parallel(step: Callable[[A], B], items: Sequence[A]) -> list[B]:
    """Return what `step` returns for each item, in their order; at most 8 at one time.

    The first error, in the order of the items, is raised once all steps that were begun have ended; the
    others are not begun.
    """
    if len(items) < 2:  # starting a thread takes a while
        return [step(item) for item in items]
    with ThreadPoolExecutor(max_workers=min(WORKERS_MAX, len(items))) as workers:
        return list(workers.map(step, items))
