"""What the batches of all readers of a process hold: each borrows as its batch grows, from one total.

A reader holds the batch that it reads and the one that is being committed, until that commit is over. Idle
readers hold next to nothing, so the total is for those that have records. When it is used up, large batches
are closed early and nobody reads more than others that wait; what a small batch needs is kept free for it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

POLL_BYTES_MAX = 4 << 20
"""The most that is borrowed for one poll, in bytes."""
SMALL_BYTES = 64 << 10
"""What a reader borrows for the first poll of a batch; while it holds no more, it is small."""
KEPT_FREE = 8
"""One part in so many of the total is kept free for small readers, which do not wait in line for it."""
FIRST_RECORDS = 16
"""Limit on the first poll of a reader: how large its records are is not known yet."""


class BatchMemory:
    """A total of bytes that the batches of readers hold. Thread-safe.

    What is held exceeds it only by what a poll returns beyond its estimate, and by a single poll while nobody
    else holds anything.

    Args:
        bytes_max: the total, in bytes.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._small_max = bytes_max // KEPT_FREE
        self._large_max = bytes_max - self._small_max
        self._lock = threading.Lock()
        self._accounts: set[Account] = set()
        self._waiting: dict[Account, int] = {}  # what each waits for, in bytes; in order of arrival

    @property
    def held(self) -> int:
        """Bytes that all readers hold, with what they borrowed for polls under way."""
        with self._lock:
            return self._held()

    @property
    def batch_bytes_max(self) -> int:
        """The most that a batch may grow to, in bytes, so that the next one can be read beside its commit."""
        return max(1, self._large_max // 2)

    @contextmanager
    def account(self) -> Iterator[Account]:
        """A reader's account; it holds nothing afterwards."""
        account = Account(self)
        with self._lock:
            self._accounts.add(account)
        try:
            yield account
        finally:
            with self._lock:
                self._accounts.discard(account)
                self._waiting.pop(account, None)

    def _held(self) -> int:
        return sum(one.held for one in self._accounts)

    def _left(self, account: Account, size_bytes: int) -> int:
        """How much an account may borrow now, in bytes, if it wants so much."""
        held = self._held()
        small = sum(one.held for one in self._accounts if one.held <= SMALL_BYTES)
        if account.held + size_bytes <= SMALL_BYTES and small + size_bytes <= self._small_max:
            return self.bytes_max - held
        left = self._large_max - held
        first = next(iter(self._waiting), account)
        if first is not account:
            # What it waits for is kept. Half of a share, as much as the batch before may still hold.
            left = min(left - self._waiting[first], self._share(account) // 2 - account.held_open)
        return left

    def _share(self, account: Account) -> int:
        """An equal share of the total among the readers that have much or wait, this one included."""
        busy = {one for one in self._accounts if one.held > SMALL_BYTES} | self._waiting.keys() | {account}
        return self._large_max // len(busy)


class Account:
    """What one reader holds.

    Args:
        memory: the total that it borrows from.

    Attributes:
        held_open: bytes of the open batch, with a poll under way.
        held_closed: bytes of the batch that is being committed.
        record_bytes: mean size of the records that it read last, in bytes. Before the first one, a size of
            which a first poll returns few.
    """

    def __init__(self, memory: BatchMemory) -> None:
        self._memory = memory
        self.held_open = 0
        self.held_closed = 0
        self.record_bytes = SMALL_BYTES // FIRST_RECORDS

    @property
    def held(self) -> int:
        """Bytes of both batches."""
        return self.held_open + self.held_closed

    def borrow(self, size_bytes: int, *, least: int) -> int:
        """Borrow memory for a poll.

        Args:
            size_bytes: how much it may take; at most `POLL_BYTES_MAX` is granted, or `least`.
            least: what it takes in any case: the size of one record.

        Returns:
            The bytes granted; 0 if that would not do, and the reader has to wait.
        """
        memory = self._memory
        size = max(least, min(size_bytes, POLL_BYTES_MAX))
        with memory._lock:
            left = memory._left(self, size)
            granted = min(size, left if memory._held() else max(left, least))
            needed = max(least, min(size, SMALL_BYTES))
            if granted < needed:
                memory._waiting.setdefault(self, needed)
                return 0
            memory._waiting.pop(self, None)
            self.held_open += granted
        return granted

    def is_large(self) -> bool:
        """Whether the open batch is to be closed if there is no memory for more of it.

        When the total is used up, some reader has such a batch or one that is being committed.
        """
        with self._memory._lock:
            return self.held_open > 0 and self.held_open >= self._memory._share(self) // 4

    def settle(self, size_bytes: int, *, records: int) -> None:
        """The poll is over.

        Args:
            size_bytes: bytes of the open batch.
            records: number of its records.
        """
        with self._memory._lock:
            self.held_open = size_bytes
        if records:
            self.record_bytes = max(1, -(-size_bytes // records))

    def close(self) -> None:
        """The open batch is closed, and held until its commit is over."""
        with self._memory._lock:
            self.held_closed, self.held_open = self.held_closed + self.held_open, 0

    def give_back(self) -> None:
        """The commit of the closed batch is over."""
        with self._memory._lock:
            self.held_closed = 0
