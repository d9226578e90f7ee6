"""What a merge writes: the rows of its files as one, a row group at a time, with the statistics of all."""

from __future__ import annotations

import datetime
import io
import math
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tarn.adapters import files as parquet_files
from tarn.core.table_files import TableWriter
from tarn.core.table_state import WrittenFile
from tarn.testing.memory_topic import Topic
from tests.contract.ingest.test_evolution import spec
from tests.contract.ingest.test_parquet import ID, NOTE, data, sort_by
from tests.support.lake import Lake

KINDS = (
    "{name: score, type: double}",
    "{name: small, type: float}",
    "{name: price, type: 'decimal(9, 2)'}",
    "{name: day, type: date}",
    "{name: at, type: timestamptz}",
    "{name: late, type: boolean}",
    "{name: raw, type: binary}",
    "{name: place, type: 'struct<city: string, zip: int>'}",
    "{name: tags, type: 'list<string>'}",
)
SCORES = (None, math.nan, -0.0, 0.0, 1.5, -math.inf, math.inf)


def row(n: int) -> dict[str, Any]:
    return {
        "id": n,
        "note": None if n % 7 == 0 else f"{'x' * (n % 20)}é{n}",
        "score": SCORES[n % len(SCORES)],
        "small": math.nan,
        "price": Decimal(n * (-1) ** n) / 100,
        "day": datetime.date(1960 + n, 1, 1),
        "at": datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC) - datetime.timedelta(hours=n),
        "late": n % 3 == 0,
        "raw": bytes([255 - n % 256]) * (n % 30),
        "place": None if n % 5 == 0 else {"city": f"c{n}", "zip": None if n % 4 == 0 else -n},
        "tags": [f"t{k}" for k in range(n % 3)],
    }


class Table:
    """A table of these columns with files of rows, in a lake in memory."""

    def __init__(self, *columns: str, sort: Sequence[tuple[str, str, str, str]] = ()) -> None:
        self.lake = Lake(Topic("orders", 1))
        made = spec(*columns)
        self.lake.work(self.lake.ingestor(made), turns=10)
        if sort:
            sort_by(self.lake, *sort)
        self.writer: TableWriter = self.lake.ingestor(made).files.writer(self.lake.table())
        self.layout: Any = self.writer._layout  # type: ignore[attr-defined]

    def arrow(self, rows: Sequence[dict[str, Any]]) -> pa.Table:
        names = self.layout.arrow.names
        return pa.Table.from_pylist(
            [{k: v for k, v in one.items() if k in names} for one in rows], self.layout.arrow
        )

    def put(self, rows: Sequence[dict[str, Any]]) -> tuple[WrittenFile, ...]:
        return self.writer.put(self.writer.encode(self.arrow(rows)))

    def read(self, file: WrittenFile) -> pa.Table:
        return pq.read_table(io.BytesIO(data(self.lake, file.path)))


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_files, "MERGED_STEP_ROWS", 3)
    monkeypatch.setattr(parquet_files, "MERGED_GROUP_ROWS", 8)


@pytest.mark.usefixtures("small_groups")
def test_the_rows_keep_their_order_and_the_statistics_are_those_of_all_rows_at_once() -> None:
    table = Table(ID, NOTE, *KINDS)
    rows = [row(n) for n in range(40)]
    small = [file for at in range(0, 40, 10) for file in table.put(rows[at : at + 10])]
    (made,) = table.writer.put(table.writer.merge(small))
    assert _same(table.read(made), table.arrow(rows))
    footer = pq.ParquetFile(io.BytesIO(data(table.lake, made.path))).metadata
    groups = [footer.row_group(n).num_rows for n in range(footer.num_row_groups)]
    assert sum(groups) == made.records == 40
    assert len(groups) > 3
    assert max(groups) < 8 + 3
    (whole,) = table.writer.encode(table.arrow(rows), whole=True)
    sizes = {"column_sizes", "split_offsets"}
    assert {k: v for k, v in made.statistics.items() if k not in sizes} == {
        k: v for k, v in whole.file.statistics.items() if k not in sizes
    }
    assert made.statistics["column_sizes"].keys() == whole.file.statistics["column_sizes"].keys()
    assert len(made.statistics["split_offsets"]) == len(groups)
    assert (made.bytes, made.partition) == (len(data(table.lake, made.path)), small[0].partition)


def _same(one: pa.Table, other: pa.Table) -> bool:
    """Equal, NaN included."""
    return repr(one.to_pylist()) == repr(other.to_pylist())


def test_what_a_merge_holds_is_bounded_by_the_size_of_its_rows_and_not_of_their_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Text that repeats is a hundred times as large in memory as in its file."""
    table = Table(ID, NOTE)
    text = "n" * 1_000
    small = [
        file
        for at in range(0, 2_000, 500)
        for file in table.put([{"id": n, "note": text} for n in range(at, at + 500)])
    ]
    assert sum(file.bytes for file in small) < 40_000
    monkeypatch.setattr(parquet_files, "MERGED_STEP_ROWS", 50)
    monkeypatch.setattr(parquet_files, "MERGED_GROUP_BYTES", 300_000)
    objects = table.writer._objects  # type: ignore[attr-defined]
    held = [(part.num_rows, part.nbytes) for part in parquet_files._groups(objects, table.layout, small)]
    assert sum(rows for rows, _ in held) == 2_000
    assert max(size for _, size in held) < 300_000 + 50 * 1_100
    (made,) = table.writer.put(table.writer.merge(small))
    assert table.read(made)["id"].to_pylist() == list(range(2_000))


@pytest.mark.usefixtures("small_groups")
def test_a_table_that_sorts_its_rows_has_one_sorted_row_group() -> None:
    table = Table(ID, NOTE, sort=[("id", "identity", "desc", "nulls-last")])
    small = [file for at in range(0, 30, 10) for file in table.put([row(n) for n in range(at, at + 10)])]
    (made,) = table.writer.put(table.writer.merge(small))
    assert table.read(made)["id"].to_pylist() == list(range(29, -1, -1))
    assert made.statistics["sort_order_id"] == table.lake.table().metadata["default-sort-order-id"] > 0
    assert len(made.statistics["split_offsets"]) == 1
    assert 0 < sum(file.sort_bytes for file in small) == pytest.approx(made.sort_bytes, rel=0.2)
    assert [file.sort_bytes for file in Table(ID, NOTE).put([row(1)])] == [0], (
        "rows that are not sorted at once"
    )


def test_rows_to_sort_that_are_too_many_or_too_large_are_not_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(ID, NOTE, sort=[("id", "identity", "asc", "nulls-last")])
    small = [*table.put([row(1)]), *table.put([row(2)])]
    assert table.writer.merge_rows_max == parquet_files.MERGED_SORTED_ROWS_MAX
    monkeypatch.setattr(parquet_files, "MERGED_SORTED_BYTES_MAX", 10)
    with pytest.raises(ValueError, match="bytes of rows are more than are sorted, 10"):
        table.writer.merge(small)
    monkeypatch.setattr(parquet_files, "MERGED_SORTED_ROWS_MAX", 1)
    with pytest.raises(ValueError, match=r"2 rows of partitions .* at most 1 of one are"):
        table.writer.merge(small)


def test_files_that_are_not_what_is_known_of_them_are_not_merged() -> None:
    table = Table(ID, NOTE)
    one, two = (*table.put([row(1)]), *table.put([row(2)]))
    with pytest.raises(ValueError, match="2 files of 3 rows were merged to 2"):
        table.writer.merge([one, replace(two, records=2)])
    with pytest.raises(ValueError, match="2 rows of partitions"):
        table.writer.merge([one, replace(two, spec_id=7)])
    with pytest.raises(ValueError, match=r"2 files of partition .* have rows of others"):
        table.writer.merge([replace(one, partition=(3,)), replace(two, partition=(3,))])
