"""The network side of `scripts/bench fresh`: which messages are rows, their ages, what Trino is asked."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import SimpleNamespace

import orjson
import pytest

from tarn.cli.ports import Answer
from tarn.core.errors import DataError, UnavailableError
from tarn.core.table_catalog import TableName
from tarn_demo.bench.fresh import (
    Bench,
    ages,
    good_ends,
    good_messages,
    good_rows,
    is_good,
    look_by_sql,
    watch,
)
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
    with pytest.raises(UnavailableError, match="no good message"):
        ages(seen, records, since_ms=9_000)


@pytest.mark.parametrize("sent", [0, 1, 2, 50, 51, 101, 401])
def test_the_rows_that_are_wanted_are_counted_and_their_ids_added_up(sent: int) -> None:
    good = [number for number, _ in messages(sent, 200) if number is not None]
    assert good_rows(sent) == (len(good), sum(good))


class Counted:
    """An engine that answers count and sum."""

    name = "trino"

    def __init__(self, *rows: tuple[int | None, ...]) -> None:
        self.rows = list(rows)

    def query(self, sql: str, *, rows_max: int) -> Answer:
        return Answer(columns=("n", "sum"), rows=(self.rows.pop(0),))


def bench_of(trino: Counted) -> Bench:
    made = object.__new__(Bench)
    made._trino, made._table = trino, TableName(("bench",), "t")
    return made


@pytest.mark.parametrize("wrong", [(97, 4_900), (99, 4_900), (98, 4_899)])
def test_a_row_that_is_lost_or_doubled_ends_the_benchmark(wrong: tuple[int, int]) -> None:
    bench_of(Counted(good_rows(100)))._require_all(100)
    with pytest.raises(DataError, match=r"bench\.t"):
        bench_of(Counted(wrong))._require_all(100)
    bench_of(Counted((0, None)))._require_all(1)


@pytest.mark.parametrize(
    ("counts", "good"), [([0, 4, 4, 8, 8], True), ([0, 4, 5], False), ([0, 4, 4, 8, 9], False)]
)
def test_a_row_that_comes_twice_after_its_round_ends_the_benchmark(
    counts: list[int], good: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = SimpleNamespace(last_sequence=7, total=lambda _name: 3)
    found = bench_of(Counted(*((count,) for count in counts)))
    found._catalog = SimpleNamespace(load=lambda _table: state)  # type: ignore[assignment]
    monkeypatch.setattr(Bench, "_await_all", lambda _self: None)
    monkeypatch.setattr(Bench, "_sent_by", lambda *_sizes: (0.0, 0.1))
    monkeypatch.setattr(Bench, "_planned", lambda _self: 1.0)
    rounds = found.rounds(writers=2, records=2, size=100, rounds=2)
    if good:
        assert [one["rows_before"] for one in rounds] == [0, 4]
        return
    with pytest.raises(DataError, match="rows, of"):
        list(rounds)


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


@pytest.mark.long
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
