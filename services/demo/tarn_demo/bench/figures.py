"""Figures of a measurement. Standard library only: processes that must be small import it."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

N = TypeVar("N", int, float)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Keep what this process holds already out of Python's collections during the block.

    A full collection stops the measuring process, for longer the more it holds: the times would have it as
    time of whatever is measured.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def at_share(ordered: Sequence[N], share: float) -> N:
    """The nearest-rank percentile of sorted values, at least one; `share` is 0 to 1, in thousandths. Pure."""
    return ordered[max(0, min(len(ordered), -(-round(share * 1_000) * len(ordered) // 1_000)) - 1)]
