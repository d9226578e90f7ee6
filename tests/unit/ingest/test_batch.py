"""Batches: when they are closed, and ranges that cover all offsets read, not only those with records."""

from __future__ import annotations

import pytest

from tarn.core.batch import RECORD_BYTES, BatchBuilder, RawBatch, RawRecords
from tarn.core.offsets import OffsetRange


def polled(partition: int, start: int, end: int, *offsets: int, size: int = 10) -> RawRecords:
    return RawRecords(
        partition=partition,
        offsets=list(offsets),
        times_ms=[0] * len(offsets),
        keys=[b"k"] * len(offsets),
        values=[b"v" * size] * len(offsets),
        start=start,
        end=end,
    )


def builder(*, records: int = 100, size: int = 10_000, latency_s: float = 1.0) -> BatchBuilder:
    return BatchBuilder(records_max=records, bytes_max=size, latency_s_max=latency_s)


def test_a_range_starts_at_the_position_before_the_first_poll_and_ends_behind_the_last():
    open_batch = builder()
    open_batch.add(polled(1, 5, 9, 7), now_s=0)
    open_batch.add(polled(0, 0, 2, 0, 1), now_s=0)
    open_batch.add(polled(1, 9, 12, 10), now_s=0)
    assert open_batch.ranges() == (
        OffsetRange(partition=0, start=0, end=2),
        OffsetRange(partition=1, start=5, end=12),
    )
    cut = open_batch.take()
    assert list(zip(cut.partitions, cut.offsets, strict=True)) == [(0, 0), (0, 1), (1, 7), (1, 10)]
    assert len(cut) == 4


def test_records_are_taken_once_and_the_ranges_are_those_of_the_whole_batch():
    open_batch = builder(records=4)
    open_batch.add(polled(1, 0, 3, 0, 2), now_s=0)
    first = open_batch.take()
    assert (first.offsets, open_batch.waiting, open_batch.room) == ([0, 2], 0, 2)
    open_batch.add(polled(0, 7, 8, 7), now_s=0)
    open_batch.add(polled(1, 3, 5, 4), now_s=0)
    assert open_batch.waiting == 2
    second = open_batch.take()
    assert (second.partitions, second.offsets) == ([0, 1], [7, 4])
    assert open_batch.wait_s(0) == 0.0, "what was taken still counts"
    whole = RawBatch.joined([first, second])
    assert (whole.partitions, whole.offsets) == ([1, 1, 0, 1], [0, 2, 7, 4])
    assert whole.ranges == open_batch.ranges() == second.ranges
    assert whole.ranges == (
        OffsetRange(partition=0, start=7, end=8),
        OffsetRange(partition=1, start=0, end=5),
    )
    with pytest.raises(ValueError, match="from 4 after one that ended at 5"):
        open_batch.add(polled(1, 4, 6, 5), now_s=0)


def test_a_read_without_records_moves_the_range_and_opens_no_batch():
    open_batch = builder()
    open_batch.add(polled(0, 3, 8), now_s=0)
    assert open_batch.ranges() == (OffsetRange(partition=0, start=3, end=8),)
    assert open_batch.wait_s(1_000) is None
    assert len(open_batch.take()) == 0


def test_it_is_cut_by_age_of_the_first_record():
    open_batch = builder(latency_s=2.0)
    open_batch.add(polled(0, 0, 1, 0), now_s=10)
    open_batch.add(polled(0, 1, 2, 1), now_s=11.5)
    assert open_batch.wait_s(11.5) == pytest.approx(0.5)
    assert open_batch.wait_s(12.0) == 0.0
    assert open_batch.wait_s(99.0) == 0.0


def test_it_is_cut_by_records_and_says_how_many_fit():
    open_batch = builder(records=3)
    open_batch.add(polled(0, 0, 2, 0, 1), now_s=0)
    assert open_batch.room == 1
    assert open_batch.wait_s(0) != 0.0
    open_batch.add(polled(0, 2, 4, 2, 3), now_s=0)
    assert open_batch.room == 0
    assert open_batch.wait_s(0) == 0.0


def test_it_is_cut_by_bytes_of_keys_and_values():
    open_batch = builder(size=22)
    open_batch.add(polled(0, 0, 1, 0), now_s=0)
    assert open_batch.wait_s(0) != 0.0
    open_batch.add(polled(0, 1, 2, 1), now_s=0)
    assert open_batch.bytes == 22
    assert open_batch.held_bytes == 22 + open_batch.records * RECORD_BYTES
    assert RECORD_BYTES >= 100, "an object of Python alone has some 50"
    assert open_batch.wait_s(0) == 0.0


def test_the_room_is_that_of_records_as_large_as_those_before():
    open_batch = builder(records=50_000, size=1_000)
    assert open_batch.room == 1_000, "the size of the first ones is not known"
    open_batch.add(polled(0, 0, 2, 0, 1, size=99), now_s=0)
    assert open_batch.room == 8, "of 100 bytes with their key"
    open_batch.add(polled(0, 2, 3, 2, size=649), now_s=0)
    assert open_batch.room == 1, "150 bytes are left: half a record is one"
    open_batch.add(polled(0, 3, 4, 3, size=299), now_s=0)
    assert (open_batch.room, open_batch.wait_s(0)) == (0, 0.0)


def test_a_poll_that_does_not_follow_the_last_one_is_a_defect():
    open_batch = builder()
    open_batch.add(polled(0, 0, 2, 0), now_s=0)
    with pytest.raises(ValueError, match="from 3 after one that ended at 2"):
        open_batch.add(polled(0, 3, 4, 3), now_s=0)


@pytest.mark.parametrize(("start", "end", "offsets"), [(5, 9, (4,)), (5, 9, (9,)), (5, 9, (6, 12))])
def test_records_outside_the_read_are_a_defect(start, end, offsets):
    with pytest.raises(ValueError, match="outside the read"):
        polled(0, start, end, *offsets)


def test_columns_of_different_lengths_are_a_defect():
    with pytest.raises(ValueError, match="different lengths"):
        RawRecords(partition=0, offsets=[1], times_ms=[], keys=[None], values=[None], start=0, end=2)
