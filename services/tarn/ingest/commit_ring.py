"""The last commits of the process's ingestors, in memory: a bounded ring, read by the status API."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, replace
from enum import StrEnum

COMMITS_MAX = 1_000
"""Commits that are remembered; about half a kilobyte each."""


class CommitKind(StrEnum):
    """What a commit is for."""

    BATCH = "batch"
    MERGE = "merge"
    RETIREMENT = "retirement"


class CommitOutcome(StrEnum):
    """How it is known that a commit is in the table."""

    COMMITTED = "committed"
    RESOLVED = "resolved"
    FOUND = "found"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitSeen:
    """A commit that is in its table.

    Attributes:
        number: its place among all commits of the process; given by the ring.
        at_ms: when its outcome was known, in milliseconds since the epoch.
        ingestor: name of the ingestor.
        reader: name of its reader.
        table: name of the table.
        kind: what it is for.
        outcome: how it is known that the table holds it.
        commit_id: its id, the same for all attempts.
        snapshot_id: snapshot that holds it, perhaps with commits of other readers; None if it is not known.
        attempts: commit requests that were sent for it.
        rows: rows that it brought into the table.
        bad_records: records that it brought into the dead letters.
        rows_removed: rows that it dropped because of their age.
        bytes: bytes of the data files that it added.
        took_ms: duration from decoding to the outcome, in milliseconds.
        oldest_age_ms: age of the oldest record by its time in the log at `at_ms`, in milliseconds; None if it
            had none, or no time.
    """

    number: int = 0
    at_ms: int
    ingestor: str
    reader: str
    table: str
    kind: CommitKind
    outcome: CommitOutcome
    commit_id: str
    snapshot_id: int | None
    attempts: int
    rows: int = 0
    bad_records: int = 0
    rows_removed: int = 0
    bytes: int = 0
    took_ms: float
    oldest_age_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitPage:
    """Some commits, in order of their numbers.

    Attributes:
        commits: the commits.
        next: what to ask for next: the number after which nothing was returned yet.
        missed: whether commits after the number that was asked for are not known (any more).
    """

    commits: tuple[CommitSeen, ...]
    next: int
    missed: bool


class CommitRing:
    """Remembers the last commits. Thread-safe.

    Numbers grow, also from one process to the next, as long as the clock is not set back: a commit has its
    time in microseconds, or one more than the commit before it.

    Args:
        since_ms: wall-clock time from which on every commit is handed in, in milliseconds since the epoch.
        count_max: commits that are remembered.
    """

    def __init__(self, *, since_ms: int = 0, count_max: int = COMMITS_MAX) -> None:
        self._lock = threading.Lock()
        self._seen: deque[CommitSeen] = deque(maxlen=count_max)
        self._dropped = since_ms * 1_000
        self._last = self._dropped

    def add(self, seen: CommitSeen) -> None:
        """Remember a commit, under the next number; the oldest one may be forgotten for it."""
        with self._lock:
            self._last = max(self._last + 1, seen.at_ms * 1_000)
            if len(self._seen) == self._seen.maxlen:
                self._dropped = self._seen[0].number
            self._seen.append(replace(seen, number=self._last))

    def last(self, limit: int) -> CommitPage:
        """The last commits."""
        with self._lock:
            found = tuple(self._seen)[-limit:]
            return CommitPage(commits=found, next=self._last, missed=False)

    def after(self, number: int, limit: int) -> CommitPage:
        """The first commits after a number; all that are known after one that this ring has not given yet."""
        with self._lock:
            held, dropped, last = tuple(self._seen), self._dropped, self._last
        strange = number > last
        number = dropped if strange else number
        at = bisect_right(held, number, key=lambda one: one.number)
        found = held[at : at + limit]
        following = found[-1].number if found else number
        return CommitPage(commits=found, next=following, missed=strange or number < dropped)
