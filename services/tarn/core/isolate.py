"""Isolation of failing records by bisection: the others proceed, and the number of attempts is bounded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from tarn.core.errors import TarnError

ATTEMPTS_MAX = 2_000
REASON_CHARS_MAX = 300
NOT_A_RECORD = (TarnError, MemoryError, OSError)
"""Errors that no record causes: they are raised, and the whole batch is retried."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolated(Generic[T]):
    """Result of a batch.

    Attributes:
        parts: (first index, result) per run of good records, ascending; one run if nothing failed.
        bad: record index to the reason of rejection.
    """

    parts: list[tuple[int, T]]
    bad: dict[int, str]


def isolate(
    count: int, attempt: Callable[[int, int], T], *, doing: str, attempts_max: int = ATTEMPTS_MAX
) -> Isolated[T]:
    """Process all records at once; on failure, each half separately, down to single records.

    Args:
        count: number of records.
        attempt: processes the records with indexes in [first, second).
        doing: verb for the reason: "decode", "write".
        attempts_max: number of attempts after which a run that still fails is rejected as a whole.

    Raises:
        Exception: `attempt` fails even without records, so none of them is the cause.
        TarnError, MemoryError, OSError: raised by `attempt`.
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
