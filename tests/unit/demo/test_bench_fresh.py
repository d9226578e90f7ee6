"""The network side of `scripts/bench fresh`: which messages are rows, their ages, what Trino is asked."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import orjson
import pytest

from tarn.cli.ports import Answer
from tarn.core.errors import UnavailableError
from tarn.core.table_catalog import TableName
from tarn_demo.bench.fresh import ages, good_ends, good_messages, is_good, look_by_sql, watch
from tarn_demo.bench.ingest import VisibilityLog
from tarn_demo.bench.peers import PARTITIONS, messages


@pytest.mark.parametrize("sent", [0, 1, 2, 50, 51, 52, 53, 401])
def test_the_good_rows_are_those_of_the_messages_as_they_are_made(sent: int) -> None:
    wanted: dict[int, int] = {}
    for number, (good, _) in enumerate(messages(sent, 200)):
        partition, offset = number % PARTITIONS, number // PARTITIONS
        assert is_good(partition, offset) == (good is not None)
        if good is not None:
            wanted[partition] = offset + 1
    assert good_ends(sent) == wanted


def test_ages_are_of_good_messages_sent_since_a_time() -> None:
    seen = VisibilityLog()
    seen.record({1: 2}, at_ms=1_500)
    seen.record({1: 3}, at_ms=2_500)
    records = [(0, 0, 1_400), (1, 0, 900), (1, 1, 1_400), (1, 2, 1_900)]  # the first one is bad
    assert ages(seen, records, since_ms=1_000) == {
        "n": 2,
        "p50_ms": 100,
        "p95_ms": 600,
        "p99_ms": 600,
        "max_ms": 600,
    }
    assert ages(seen, records, since_ms=9_000)["p95_ms"] is None


class Rows:
    """An engine with rows of every partition below its ends."""

    name = "trino"

    def __init__(self, ends: Mapping[int, int]) -> None:
        self.ends, self.asked = ends, ""

    def query(self, sql: str, *, rows_max: int) -> Answer:
        self.asked = sql
        rows = [(p, (end - 1) * PARTITIONS + p) for p, end in self.ends.items()]
        return Answer(columns=("p", "newest"), rows=tuple(rows[:rows_max]))


def test_trino_reads_rows_from_the_lowest_known_end_on() -> None:
    table, trino = TableName(("bench",), "t"), Rows({0: 9, 1: 8, 2: 7, 3: 6})
    assert look_by_sql(trino, table, {}) == trino.ends
    assert "WHERE id >= 0 " in trino.asked
    look_by_sql(trino, table, {0: 9, 1: 8, 2: 7})
    assert "WHERE id >= 0 " in trino.asked, "nothing is known of partition 3"
    look_by_sql(trino, table, trino.ends)
    assert "WHERE id >= 24 " in trino.asked


def test_a_look_counts_at_its_answer_and_a_failed_one_not_at_all() -> None:
    seen, stop, answers = VisibilityLog(), threading.Event(), iter([None, {0: 1}, {0: 1}, {0: 4}])

    def look() -> Mapping[int, int]:
        held = next(answers)
        if held is None:
            raise UnavailableError("away")
        if held[0] == 4:
            stop.set()
        return held

    watch(look, seen, stop)
    assert seen.ends == {0: [1, 4]}
    assert len(seen.times_ms[0]) == 2


@pytest.mark.parametrize("count", [1, 49, 50, 2_000])
def test_the_messages_of_a_writer_are_all_good(count: int) -> None:
    found = good_messages(count, 300)
    assert len(found) == len({orjson.loads(one)["id"] for one in found}) == count
