"""Timestamp of the newest message before an offset, found with few reads of a log with gaps."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import pytest
from kafka.errors import KafkaConnectionError
from kafka.structs import TopicPartition

from tarn.cli.clients.kafka_offsets import LOOK_BACK, KafkaOffsets
from tarn.core.errors import UnavailableError


@dataclass(frozen=True)
class Record:
    offset: int
    timestamp: int


@dataclass
class Log:
    """A consumer over partitions in memory: per partition the offsets that hold a message."""

    held: dict[int, list[int]]
    per_poll: int = 3
    fault: Exception | None = None
    at: dict[TopicPartition, int] = field(default_factory=dict)
    polls: int = 0

    def topics(self):
        if self.fault:
            raise self.fault
        return {"t", "__consumer_offsets"}

    def partitions_for_topic(self, topic):
        return set(self.held)

    def beginning_offsets(self, parts, timeout_ms):
        return {part: self.held[part.partition][0] for part in parts}

    def end_offsets(self, parts, timeout_ms):
        return {part: self.held[part.partition][-1] + 1 for part in parts}

    def assign(self, parts):
        self.at = dict.fromkeys(parts, 0)

    def seek(self, part, offset):
        self.at[part] = offset

    def position(self, part):
        return self.at[part]

    def poll(self, timeout_ms):
        self.polls += 1
        if self.fault:
            raise self.fault
        found = {}
        for part, at in self.at.items():
            rows = [o for o in self.held[part.partition] if o >= at][: self.per_poll]
            if rows:
                found[part] = [Record(offset, 1000 * offset) for offset in rows]
                self.at[part] = rows[-1] + 1
        return found


def offsets(log: Log, timeout_s: float = 5.0) -> KafkaOffsets:
    found = KafkaOffsets("kafka:9092", timeout_s=timeout_s)
    found.__dict__["_consumer"] = log
    return found


def at(offset: int) -> datetime:
    return datetime.fromtimestamp(offset, UTC)


def newest(log: Log, *places, **options):
    asked = offsets(log, **options)
    return asked.newest("t", asked.bounds()["t"], places)


@pytest.mark.parametrize("time_ms", [1_700_000_000_000_000, 2**63 - 1, -1, None])
def test_a_time_that_no_calendar_has_is_passed_over(monkeypatch, time_ms):
    """A producer may send any number, and `tarn status` asks for the newest message of each topic."""
    log = Log({0: [0, 1, 2], 1: [0]})
    poll = log.poll

    def polled(timeout_ms):
        found = poll(timeout_ms)
        return {
            part: [replace(one, timestamp=time_ms) if one.offset in (0, 2) else one for one in rows]
            for part, rows in found.items()
        }

    monkeypatch.setattr(log, "poll", polled)
    assert newest(log, {0: 3, 1: 1}, {1: 1}) == (at(1), None)


def test_bounds_are_told_per_topic_and_partition():
    log = Log({0: [3, 4, 5], 1: [0]})
    assert offsets(log).bounds() == {"t": {0: (3, 6), 1: (0, 1)}}


def test_the_bounds_of_one_topic_are_asked_for_without_the_others(monkeypatch):
    """One that is just deleted, or has no leader, must not keep anybody from reading another one."""
    log = Log({0: [3, 4, 5]})
    asked = []
    ends = log.end_offsets
    monkeypatch.setattr(log, "topics", lambda: {"t", "broken"})
    monkeypatch.setattr(
        log, "end_offsets", lambda parts, timeout_ms: asked.extend(parts) or ends(parts, timeout_ms)
    )
    assert offsets(log).bounds_of("t") == {0: (3, 6)}
    assert {part.topic for part in asked} == {"t"}
    assert set(offsets(log).bounds()) == {"t", "broken"}


def test_the_newest_of_all_partitions_counts_for_each_place():
    log = Log({0: list(range(100)), 1: list(range(50))})
    assert newest(log, {0: 100, 1: 50}, {0: 20, 1: 50}, {0: 20, 1: 10}) == (at(99), at(49), at(19))


def test_gaps_right_before_a_place_are_stepped_over():
    log = Log({0: [0, 1, 2, 5, 9]})
    assert newest(log, {0: 9}, {0: 5}, {0: 10}) == (at(5), at(2), at(9))


def test_messages_after_a_place_do_not_count():
    log = Log({0: list(range(100))}, per_poll=50)
    assert newest(log, {0: 10}) == (at(9),)


def test_a_place_beyond_the_end_means_the_end():
    assert newest(Log({0: list(range(10))}), {0: 25}) == (at(9),)


def test_what_the_log_does_not_hold_any_more_is_unknown():
    log = Log({0: [50, 51]})
    assert newest(log, {0: 50}, {0: 20}, {}, {7: 3}) == (None, None, None, None)


def test_few_messages_are_read_however_long_the_log_is():
    log = Log({p: list(range(100_000)) for p in range(4)}, per_poll=LOOK_BACK)
    places = [dict.fromkeys(range(4), end) for end in (100_000, 90_000, 80_000)]
    assert newest(log, *places) == (at(99_999), at(89_999), at(79_999))
    assert log.polls <= 2 * len(places)


def test_a_log_that_gives_nothing_is_given_up_in_time():
    class Silent(Log):
        def poll(self, timeout_ms):
            return {}

    assert newest(Silent({0: [0, 1]}), {0: 2}, timeout_s=0.05) == (None,)


@pytest.mark.parametrize("ask", ["bounds", "newest"])
def test_kafka_away_names_its_log(ask: str):
    log = Log({0: [0, 1]})
    asked = offsets(log)
    bounds = asked.bounds()["t"]
    log.fault = KafkaConnectionError("gone")
    with pytest.raises(UnavailableError, match=r"kafka:9092 does not answer.*docker compose logs kafka"):
        asked.bounds() if ask == "bounds" else asked.newest("t", bounds, [{0: 1}])
