"""What the views of the status API share: what a request asks for, and how times, ids and texts are shown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tarn.ingest.status_api import models

LIMIT = 100
"""Commits, snapshots or files in an answer, unless the request says another number."""
LIMIT_MAX = 1_000
"""Entries in an answer."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What a request asks for beyond its path.

    Attributes:
        limit: most entries of the answer; None for the usual number.
        after: entries begin after this name, or place.
        since: commits begin after this number; None: the last ones.
        ingestor: name of an ingestor.
    """

    limit: int | None = None
    after: str | None = None
    since: int | None = None
    ingestor: str | None = None


def page_of(names: Iterable[str], query: Query) -> tuple[Sequence[str], str | None]:
    """The names of a page, and what the next one comes after; None if it is the last."""
    limit = query.limit or LIMIT_MAX
    rest = sorted(name for name in names if query.after is None or name > query.after)
    found = rest[:limit]
    return found, found[-1] if len(rest) > limit else None


def cut(text: str) -> str:
    """A text of a length that is shown."""
    most = models.MESSAGE_CHARS_MAX
    return text if len(text) <= most else f"{text[: most - 1]}\u2026"


def id_text(snapshot_id: int | None) -> str | None:
    """The id of a snapshot as text."""
    return None if snapshot_id is None else str(snapshot_id)


def maybe_time(ms: int | None) -> datetime | None:
    """A time in milliseconds since the epoch; None for none, also for one that no calendar has."""
    return None if ms is None else time_of_us(ms * 1_000)


def time_of(ms: int) -> datetime:
    """A time in milliseconds since the epoch."""
    return _EPOCH + timedelta(milliseconds=ms)


def time_of_us(us: int | None) -> datetime | None:
    """A time in microseconds since the epoch; None also for one that no calendar has."""
    try:
        return None if us is None else _EPOCH + timedelta(microseconds=us)
    except OverflowError:
        return None
