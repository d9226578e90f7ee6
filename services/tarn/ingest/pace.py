"""When the readers of one table close their batches, so that the table gets one commit per freshness target.

A batch is due when its oldest record is as old as the target (`batching.maxLatencySeconds`). A reader whose
batch is open at the moment when a neighbour's is due closes it as well: its records wait shorter, and both
make one snapshot. So nobody waits for the sake of the pace. Only the bookkeeper waits, briefly, for
neighbours whose files are on the way.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The last batch with records of one reader.

    Attributes:
        at_s: when its first record was added, in seconds.
        due_s: when it is due, or was, in seconds; None: it is none that others join, as it was full before.
    """

    at_s: float
    due_s: float | None


def joint_due_s(own: Opened, others: Iterable[Opened]) -> float | None:
    """When a batch is due: at its own time, or at the first one of a neighbour's since it was opened.

    A neighbour's time before that does not count: that commit is over, or under way.
    """
    times = [own.due_s, *(one.due_s for one in others if one.due_s is not None and one.due_s >= own.at_s)]
    return min((time for time in times if time is not None), default=None)


class Pace:
    """The batches of all readers of one table. Thread-safe.

    Args:
        changed: notified when a reader handed its batch over or left; its lock guards the state.
    """

    def __init__(self, changed: threading.Condition | None = None) -> None:
        self.changed = changed or threading.Condition()
        self._batches: dict[Turn, Opened] = {}
        self._open: set[Turn] = set()
        self._closing: set[Turn] = set()
        self._handed: set[Turn] = set()

    def join(self) -> Turn:
        """A reader's part in it."""
        return Turn(self)

    def awaited(self, now_s: float) -> int:
        """Number of readers whose batch is on its way: closed and not handed over, or due now.

        Not if the batch before it waits for its commit, which comes first.
        """
        with self.changed:
            free = self._open - self._handed
            due = [turn for turn in free if (at := self._due_s(turn)) is not None and at <= now_s]
            return len(self._closing) + len(due)

    def _due_s(self, turn: Turn) -> float | None:
        own = self._batches[turn]
        return joint_due_s(own, (one for other, one in self._batches.items() if other is not turn))


class Turn:
    """One reader's part in the pace of its table.

    Args:
        pace: the pace of the table.
    """

    def __init__(self, pace: Pace) -> None:
        self._pace = pace

    def wait_s(self, now_s: float, *, opened_s: float | None, wait_s: float | None) -> float | None:
        """Seconds until the open batch must be closed.

        Args:
            now_s: monotonic time in seconds.
            opened_s: when its first record was added; None while it has none.
            wait_s: seconds until it must be closed by its own limits; None while it has no record.
        """
        pace = self._pace
        if wait_s is None or opened_s is None:
            return wait_s
        with pace.changed:
            known = pace._batches.get(self)
            if self not in pace._open or known is None or known.at_s != opened_s:
                pace._batches[self] = Opened(at_s=opened_s, due_s=now_s + wait_s if wait_s > 0 else None)
                pace._open.add(self)
            due_s = pace._due_s(self)
        return wait_s if due_s is None else max(0.0, min(wait_s, due_s - now_s))

    def close(self, now_s: float) -> None:
        """The batch is closed, and will be handed over or given up."""
        pace = self._pace
        with pace.changed:
            known = pace._batches.get(self)
            if known is not None and known.due_s is not None and known.due_s > now_s:
                # Full before its time: nobody else needs to be done then.
                pace._batches[self] = Opened(at_s=known.at_s, due_s=None)
            pace._open.discard(self)
            pace._closing.add(self)

    def hand_over(self) -> None:
        """The batch is with whoever commits it."""
        pace = self._pace
        with pace.changed:
            pace._closing.discard(self)
            pace._handed.add(self)
            pace.changed.notify_all()

    def settle(self) -> None:
        """What was handed over is in the table, or given up."""
        with self._pace.changed:
            self._pace._handed.discard(self)

    def leave(self) -> None:
        """The reader reads no more, and nobody waits for it."""
        pace = self._pace
        with pace.changed:
            pace._batches.pop(self, None)
            pace._open.discard(self)
            pace._closing.discard(self)
            pace.changed.notify_all()
