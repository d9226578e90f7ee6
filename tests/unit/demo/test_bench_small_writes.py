"""What the benchmark of small writes counts and requires, on contenders made for the test."""

from __future__ import annotations

import pytest

from tarn.core.errors import DataError
from tarn.core.table_catalog import TableName
from tarn_demo.bench.small_writes import Tally, peer_cell, require_all, summed
from tests.unit.demo.test_bench_commits import Table


def test_each_producer_that_failed_is_counted_though_the_reason_is_the_same() -> None:
    tallies = [Tally(times_ms=[1.0]), *(Tally(times_ms=[2.0], errors=["cut off"]) for _ in range(3))]
    found = summed(tallies, 2.0)
    assert (found["acked"], found["failed"], found["errors"]) == (4, 3, ["cut off"])
    assert (found["p50_ms"], found["p99_ms"], found["slowest"]) == (2.0, 2.0, 1)


def test_percentiles_are_of_the_nearest_rank() -> None:
    found = summed([Tally(times_ms=[float(n) for n in range(100, 0, -1)])], 1.0)
    assert (found["p50_ms"], found["p99_ms"]) == (50.0, 99.0)
    assert summed([Tally()], 1.0)["p99_ms"] is None


def test_what_the_writers_of_a_peer_wrote_is_counted() -> None:
    found = peer_cell(Table(refuse=lambda number: number % 3 == 2), 2, seconds=0.1)
    assert found["wrong_rows"] == 0
    assert found["acked"] > 0
    assert found["refused"] > 0


@pytest.mark.parametrize(("copies", "wrong"), [(0, -50), (2, 50)])
def test_a_lost_or_doubled_write_ends_the_benchmark_or_is_a_peers_result(copies: int, wrong: int) -> None:
    def kept(number: int) -> int:
        return copies if number == 1 else 1

    with pytest.raises(DataError, match="something was lost or doubled"):
        peer_cell(Table(kept=kept), 1, seconds=0.1)
    assert peer_cell(Table(on_tarn=False, kept=kept), 1, seconds=0.1)["wrong_rows"] == wrong


@pytest.mark.parametrize(("rows", "failed"), [(9, 0), (11, 0), (9, 1), (12, 1)])
def test_a_row_too_few_or_too_many_ends_the_benchmark(rows: int, failed: int) -> None:
    name = TableName(("bench",), "t")
    with pytest.raises(DataError, match="something was lost or doubled"):
        require_all(name, rows, {"acked": 10, "failed": failed})
    require_all(name, 10 + failed, {"acked": 10, "failed": failed})
    require_all(name, 10, {"acked": 10, "failed": failed})
