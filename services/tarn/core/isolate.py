"""Finds the records that break something, by halving: the others go on, and the work is bounded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from tarn.core.errors import TarnError

ATTEMPTS_MAX = 2_000
REASON_CHARS_MAX = 300
NOT_A_RECORD = (TarnError, MemoryError, OSError)
"""What no record is to blame for: it passes, and the whole batch is made again."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolated(Generic[T]):
    """What a batch became.

    Attributes:
        parts: (first index, result) of runs of records, rising; one run if nothing failed.
        bad: index to reason.
    """

    parts: list[tuple[int, T]]
    bad: dict[int, str]


def isolate(
    count: int, attempt: Callable[[int, int], T], *, doing: str, attempts_max: int = ATTEMPTS_MAX
) -> Isolated[T]:
    """Does all at once; where that fails, each half by itself, down to single records.

    Args:
        count: how many records.
        attempt: does it for the records from the first index to before the second.
        doing: for the reason: "decode", "write".
        attempts_max: then what still fails is bad as a whole, whoever in it is to blame.

    Raises:
        Exception: what `attempt` raises with no record at all: no record is to blame for that.
        TarnError, MemoryError, OSError: from `attempt`.
    """
    parts: list[tuple[int, T]] = []
    bad: dict[int, str] = {}
    waiting = [(0, count)] if count else []
    attempts = 0
    while waiting:
        start, end = waiting.pop()
        attempts += 1
        try:
            parts.append((start, attempt(start, end)))
        except NOT_A_RECORD:
            raise
        except Exception as e:  # noqa: BLE001 - whatever it is, it must not come back with this record for ever
            if attempts == 1:
                attempt(0, 0)
            alone = end - start == 1
            if alone or attempts >= attempts_max:
                reason = _reason(e, doing) if alone else f"{_reason(e, doing)} (one of {end - start} records)"
                bad.update(dict.fromkeys(range(start, end), reason))
            else:
                middle = (start + end) // 2
                waiting += [(middle, end), (start, middle)]
    return Isolated(parts=parts, bad=dict(sorted(bad.items())))


def _reason(error: Exception, doing: str) -> str:
    text = f"could not {doing} it: {type(error).__name__}: {error}"
    return text.encode("utf-8", "backslashreplace").decode()[:REASON_CHARS_MAX]
