"""Where a replay stopped is found however much others wrote behind it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kafka import TopicPartition

from tarn_demo.flights.producer import TAIL_MESSAGES, Topic
from tarn_demo.flights.resume import HEADER, ReplayMarker

MARKER = ReplayMarker(fingerprint="f", round=1, index=7)


class Partition:
    """A consumer of one partition, in which the messages of these offsets have a marker.

    Args:
        first: the offset of its first message.
        end: the one after its last message.
        marked: the markers by offset.
    """

    def __init__(self, first: int, end: int, marked: dict[int, ReplayMarker]) -> None:
        self.first, self.end, self.marked = first, end, marked
        self.at, self.read = 0, 0

    def assign(self, partitions: list[TopicPartition]) -> None:
        assert len(partitions) == 1

    def beginning_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, self.first)

    def seek(self, at: TopicPartition, offset: int) -> None:
        assert offset >= self.first
        self.at = offset

    def position(self, at: TopicPartition) -> int:
        return self.at

    def poll(self, *, timeout_ms: int, max_records: int) -> dict[TopicPartition, list[Any]]:
        until = min(self.end, self.at + max_records)
        records = [SimpleNamespace(offset=o, headers=self._headers(o)) for o in range(self.at, until)]
        self.at, self.read = until, self.read + len(records)
        return {TopicPartition("flight-events", 0): records} if records else {}

    def _headers(self, offset: int) -> list[tuple[str, bytes]]:
        return [(HEADER, self.marked[offset].encode())] if offset in self.marked else []


@pytest.mark.parametrize(
    ("first", "foreign"),
    [(0, 0), (0, 1), (0, TAIL_MESSAGES - 1), (0, TAIL_MESSAGES), (3, 5_000), (0, 30_000)],
)
def test_messages_of_others_behind_it_hide_no_marker(first: int, foreign: int) -> None:
    older = ReplayMarker(fingerprint="f", round=1, index=6)
    here = Partition(first, first + 2 + foreign, {first: older, first + 1: MARKER})
    found = Topic(bootstrap="x")._tail(here, TopicPartition("flight-events", 0), here.end)
    assert found == MARKER


def test_a_partition_without_one_is_read_to_its_beginning_and_no_further() -> None:
    here = Partition(40, 25_040, {})
    assert Topic(bootstrap="x")._tail(here, TopicPartition("flight-events", 0), here.end) is None
    assert here.read >= 25_000


def test_where_the_last_messages_have_one_no_more_is_read() -> None:
    here = Partition(0, 100_000, {99_990: MARKER})
    assert Topic(bootstrap="x")._tail(here, TopicPartition("flight-events", 0), here.end) == MARKER
    assert here.read <= TAIL_MESSAGES
