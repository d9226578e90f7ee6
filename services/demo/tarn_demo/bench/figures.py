"""Figures of a measurement. Standard library only: processes that must be small import it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

N = TypeVar("N", int, float)


def at_share(ordered: Sequence[N], share: float) -> N:
    """The nearest-rank percentile of sorted values, at least one; `share` is 0 to 1, in thousandths. Pure."""
    return ordered[max(0, min(len(ordered), -(-round(share * 1_000) * len(ordered) // 1_000)) - 1)]
