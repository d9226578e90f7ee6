"""Writes that wait for their turn, bounded in number and bytes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future

from tarn.core.errors import UnavailableError
from tarn.core.pressure import Pressure, of_waiting
from tarn.gateway.group_wait import GroupWait
from tarn.gateway.takes import Waiting
from tarn.gateway.writes import BusyError, Receipt, Write


class WriteQueue:
    """Writes to one table. `submit`, `withdraw`, `pressure` and `close` are thread-safe.

    Args:
        table: name of the table, for messages.
        writes_max: number of writes that may wait.
        bytes_max: size of their rows.
        clock: monotonic time in seconds.

    Attributes:
        changed: lock of the queue, and what is notified of changes.
        closed: whether it takes no more writes.
    """

    def __init__(self, table: str, *, writes_max: int, bytes_max: int, clock: Callable[[], float]) -> None:
        self._table = table
        self._writes_max = writes_max
        self._bytes_max = bytes_max
        self._clock = clock
        self.changed = threading.Condition()
        self.closed = False
        self._waiting: deque[Waiting] = deque()
        self._bytes = 0
        self._wake_writes = 1

    @property
    def size(self) -> tuple[int, int]:
        """Number and bytes of the writes that wait."""
        return len(self._waiting), self._bytes

    @property
    def pressure(self) -> Pressure:
        """How much writers are held back by what waits."""
        return of_waiting(self._bytes, self._bytes_max)

    def submit(self, write: Write) -> Future[Receipt]:
        """Add a write.

        Raises:
            BusyError: too much waits.
            UnavailableError: it was closed.
        """
        with self.changed:
            if self.closed:
                raise UnavailableError("the gateway stops; nothing was written, send it again")
            if self._bytes + write.bytes > self._bytes_max or len(self._waiting) >= self._writes_max:
                raise BusyError(
                    f"{len(self._waiting)} writes of {self._bytes} bytes wait for the log of table "
                    f"{self._table}; at most {self._writes_max} of {self._bytes_max} may; send it "
                    "again later",
                    retry_after_s=1.0,
                )
            one = Waiting(write, Future(), self._clock())
            self._waiting.append(one)
            self._bytes += write.bytes
            if len(self._waiting) >= self._wake_writes:
                self.changed.notify_all()
        return one.answer

    def gather(self, group: GroupWait) -> None:
        """Wait for those who will write together with what waits; it may be all of them already."""
        with self.changed:
            self._wake_writes = group.writes
            try:
                self.changed.wait_for(
                    lambda: len(self._waiting) >= group.writes or self.closed,
                    timeout=group.left_s(self._clock()),
                )
            finally:
                self._wake_writes = 1

    def withdraw(self, answer: Future[Receipt]) -> bool:
        """Take back a write that still waits for its turn; False if it does not."""
        with self.changed:
            left = [one for one in self._waiting if one.answer is not answer]
            found = len(left) < len(self._waiting)
            self._hold(left)
        return found

    def take(self, judge: Callable[[list[Waiting]], list[Waiting]]) -> None:
        """Hand all that wait to `judge`, in the order of their rows; those that it returns wait on."""
        with self.changed:
            # Writes of one producer that arrived in another order are taken in that of their rows.
            waiting = sorted(
                (one for one in self._waiting if not one.answer.done()),
                key=lambda one: one.write.sequence if one.write.producer else -1,
            )
            self._hold(sorted(judge(waiting), key=lambda one: one.since_s))

    def put_back(self, waiting: Iterable[Waiting]) -> None:
        """Let writes that were taken wait again, before the others."""
        with self.changed:
            self._hold([*(one for one in waiting if not one.answer.done()), *self._waiting])
            self.changed.notify_all()

    def empty(self) -> list[Waiting]:
        """Take all that wait."""
        with self.changed:
            found = list(self._waiting)
            self._hold([])
        return found

    def close(self) -> None:
        """Take no more writes."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def _hold(self, waiting: Iterable[Waiting]) -> None:
        self._waiting = deque(waiting)
        self._bytes = sum(one.write.bytes for one in self._waiting)
