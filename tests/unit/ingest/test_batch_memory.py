"""What the batches of all readers hold: the total is kept, it is for those with records, and none starves."""

from __future__ import annotations

import random
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from tarn.ingest.batch_memory import FIRST_RECORDS, POLL_BYTES_MAX, SMALL_BYTES, Account, BatchMemory

MIB = 1 << 20


@dataclass(slots=True, eq=False)
class Reader:
    """Borrows, reads and commits as an ingestor does, with records of one size."""

    memory: BatchMemory
    account: Account
    record_bytes: int = 1_000
    backlog: int = 1 << 40
    batch_bytes_max: int = 16 * MIB
    open: int = 0
    closed: int = 0
    batches: list[int] = field(default_factory=list, init=False)

    def read(self) -> bool:
        """One turn; False if it had to wait for memory, or for its own commit."""
        least = self.account.record_bytes
        limit = min(self.batch_bytes_max, self.memory.batch_bytes_max)
        wanted = limit - self.open if self.open else SMALL_BYTES
        full = self.open >= limit
        granted = 0 if full else self.account.borrow(wanted, least=least)
        if granted:
            taken = min(self.backlog, granted // least * self.record_bytes)
            self.open, self.backlog = self.open + taken, self.backlog - taken
            self.account.settle(self.open, records=self.open // self.record_bytes)
            return True
        if (full or self.account.is_large()) and not self.closed:
            self.account.close()
            self.closed, self.open = self.open, 0
        return False

    def commit(self) -> None:
        if self.closed:
            self.batches.append(self.closed)
            self.closed = 0
            self.account.give_back()


def readers(stack: ExitStack, memory: BatchMemory, count: int, **options: int) -> list[Reader]:
    made = [Reader(memory, stack.enter_context(memory.account()), **options) for _ in range(count)]
    for one in made:
        # How large its records are is known.
        one.account.settle(0, records=0)
        one.account.record_bytes = one.record_bytes
    return made


def test_a_lone_busy_stream_has_whole_batches_beside_many_idle_readers() -> None:
    memory = BatchMemory(48 * MIB)
    with ExitStack() as stack:
        idle = readers(stack, memory, 20, backlog=0)
        (busy,) = readers(stack, memory, 1)
        for one in idle:
            assert one.account.borrow(SMALL_BYTES, least=1_000) == SMALL_BYTES, "a poll that finds nothing"
        for _ in range(3):
            while busy.read():
                pass
            while busy.read():
                pass
            assert busy.closed >= 16 * MIB - 2_000, "while this one is committed"
            assert busy.open >= 15 * MIB, "the next one is read"
            busy.commit()


def test_what_is_held_is_given_back_at_the_end_of_the_commit_and_of_the_cycle() -> None:
    memory = BatchMemory(8 * MIB)
    with memory.account() as account:
        assert account.borrow(MIB, least=1) == MIB
        account.settle(600_000, records=600)
        assert (memory.held, account.record_bytes) == (600_000, 1_000)
        account.close()
        assert account.borrow(MIB, least=1) == MIB
        assert memory.held == 600_000 + MIB
        account.give_back()
        assert memory.held == MIB
    assert memory.held == 0, "a poll that failed holds nothing"


def test_a_poll_takes_no_more_than_its_limit_and_no_less_than_a_record() -> None:
    memory = BatchMemory(64 * MIB)
    with memory.account() as account:
        assert account.borrow(30 * MIB, least=1_000) == POLL_BYTES_MAX
        account.settle(0, records=0)
        assert account.borrow(1_000, least=5 * MIB) == 5 * MIB


def test_a_record_larger_than_the_total_is_read_alone() -> None:
    memory = BatchMemory(MIB)
    with memory.account() as one, memory.account() as other:
        assert other.borrow(SMALL_BYTES, least=1_000) == SMALL_BYTES
        other.settle(1_000, records=1)
        assert one.borrow(2 * MIB, least=2 * MIB) == 0
        other.close()
        other.give_back()
        assert one.borrow(2 * MIB, least=2 * MIB) == 2 * MIB
        assert other.borrow(SMALL_BYTES, least=1_000) == 0


def test_a_small_batch_finds_memory_beside_large_ones() -> None:
    memory = BatchMemory(48 * MIB)
    with ExitStack() as stack:
        large = readers(stack, memory, 6)
        for _ in range(40):
            for one in large:
                one.read()
        assert memory.held > 40 * MIB
        (small,) = readers(stack, memory, 1)
        assert small.account.borrow(SMALL_BYTES, least=1_000) == SMALL_BYTES
        small.account.settle(300, records=1)
        assert small.account.borrow(20_000, least=300) == 20_000


def test_what_the_first_in_line_waits_for_is_kept() -> None:
    """Others take at once what they gave back, and never enough is free for a large record."""
    memory = BatchMemory(MIB)
    with ExitStack() as stack:
        (large,) = readers(stack, memory, 1, record_bytes=400_000)
        others = readers(stack, memory, 4, record_bytes=1_000)
        for _ in range(20):
            for one in others:
                one.commit()
                while one.read():
                    pass
            large.commit()
            large.read()
        assert large.batches
        assert all(len(one.batches) > 2 for one in others)


def holding(stack: ExitStack, memory: BatchMemory, *sizes: int) -> list[Account]:
    """Accounts with open batches of these sizes, in bytes."""
    made = [stack.enter_context(memory.account()) for _ in sizes]
    for account, size in zip(made, sizes, strict=True):
        account.settle(size, records=0)
    return made


def test_others_leave_what_the_first_in_line_waits_for() -> None:
    memory = BatchMemory(8 * MIB)
    with ExitStack() as stack:
        large, first, other = holding(stack, memory, 3 * MIB, 0, 0)
        assert first.borrow(5 * MIB, least=5 * MIB) == 0
        assert other.borrow(MIB, least=1) == 0
        large.close()
        large.give_back()
        assert first.borrow(5 * MIB, least=5 * MIB) == 5 * MIB


def test_while_somebody_waits_a_batch_grows_to_half_a_share_of_those_that_are_busy() -> None:
    memory = BatchMemory(8 * MIB)
    with ExitStack() as stack:
        one, full, waits, *_idle = holding(stack, memory, MIB, 6 * MIB, *[0] * 10)
        assert waits.borrow(4 * MIB, least=1_000) == 0
        full.close()
        full.give_back()
        assert one.borrow(4 * MIB, least=1) == 7 * MIB // 2 // 2 - MIB
        assert waits.borrow(4 * MIB, least=1_000) == 4 * MIB


def test_small_batches_take_no_more_than_what_is_kept_free_for_them() -> None:
    memory = BatchMemory(MIB)
    with ExitStack() as stack:
        _large, waits, *small = holding(stack, memory, 600_000, 0, 0, 0, 0)
        assert waits.borrow(400_000, least=400_000) == 0
        assert [one.borrow(SMALL_BYTES, least=1) for one in small] == [SMALL_BYTES, SMALL_BYTES, 0]


def test_one_that_waited_and_left_is_waited_for_no_more() -> None:
    memory = BatchMemory(8 * MIB)
    with ExitStack() as stack:
        (one,) = holding(stack, memory, 4 * MIB)
        with memory.account() as left:
            assert left.borrow(4 * MIB, least=4 * MIB) == 0
        assert one.borrow(2 * MIB, least=1) == 2 * MIB


def test_a_batch_leaves_room_for_the_next_one_and_the_first_poll_is_small() -> None:
    memory = BatchMemory(48 * MIB)
    assert memory.batch_bytes_max == 21 * MIB
    with memory.account() as account:
        assert SMALL_BYTES // account.record_bytes == FIRST_RECORDS == 16


def test_one_that_was_alone_makes_room_for_one_that_becomes_busy() -> None:
    memory = BatchMemory(48 * MIB)
    with ExitStack() as stack:
        old, new = readers(stack, memory, 2, batch_bytes_max=100 * MIB)
        while old.read():
            pass
        while old.read():
            pass
        assert memory.held > 40 * MIB
        for turn in range(1_200):
            for one in (old, new):
                one.read()
                if turn % 12 == 0:
                    one.commit()
        assert min(new.batches[1:]) > 8 * MIB
        assert sum(new.batches) == pytest.approx(sum(old.batches), rel=0.2)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(30))
def test_the_total_is_kept_and_all_go_on(seed: int) -> None:
    """Readers with records of all sizes become busy at once; commits end whenever they like."""
    chance = random.Random(seed)
    memory = BatchMemory(chance.choice([1, 2, 8, 48]) * MIB)
    count = chance.choice([2, 5, 40])
    with ExitStack() as stack:
        busy = [
            reader
            for _ in range(count)
            for reader in readers(stack, memory, 1, record_bytes=chance.choice([100, 2_000, 60_000, 400_000]))
        ]
        for _ in range(400 * count):
            one = chance.choice(busy)
            one.read()
            if chance.random() < 0.3:
                chance.choice(busy).commit()
            held = sum(reader.open + reader.closed for reader in busy)
            assert held == memory.held <= memory.bytes_max
        assert all(one.batches for one in busy), [len(one.batches) for one in busy]


@pytest.mark.long
@pytest.mark.parametrize("total", [1, 8, 48])
def test_no_total_is_used_up_by_batches_that_nobody_closes(total: int) -> None:
    """All read until they can only wait: then one at least has a batch to commit, however many they are."""
    for count in (1, 2, 7, 100, 1_000):
        memory = BatchMemory(total * MIB)
        with ExitStack() as stack:
            busy = readers(stack, memory, count, batch_bytes_max=1 << 40)
            while sum(one.read() for one in busy):
                pass
            assert any(one.closed for one in busy), (total, count)
            assert memory.held <= memory.bytes_max
