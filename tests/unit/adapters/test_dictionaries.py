"""Which columns of a data file get a dictionary."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tarn.adapters.dictionaries import ROWS_MIN, repeating

ROWS = 4 * ROWS_MIN


def table(count: int, *, chunks: int = 1) -> pa.Table:
    whole = pa.table(
        {
            "id": pa.array(range(count), pa.int64()),
            "kind": pa.array([f"kind {n % 7}" for n in range(count)]),
            "text": pa.array([f"{n}-text" for n in range(count)]),
            "some": pa.array([None if n % 3 else n // 1_000 for n in range(count)], pa.int64()),
            "none": pa.nulls(count, pa.string()),
            "flag": pa.array([n % 2 == 0 for n in range(count)]),
            "tags": pa.array([[n] for n in range(count)], pa.list_(pa.int64())),
            "m": pa.array([[("k", n)] for n in range(count)], pa.map_(pa.string(), pa.int64())),
            "_tarn": pa.array([{"source": "t", "offset": n} for n in range(count)]),
        }
    )
    size = -(-count // chunks)
    return pa.concat_tables([whole.slice(start, size) for start in range(0, count, size)])


@pytest.mark.long
@pytest.mark.parametrize("chunks", [1, 5])
def test_only_columns_whose_values_repeat_have_a_dictionary(chunks: int) -> None:
    inside = ["tags.list.element", "m.key_value.key", "m.key_value.value"]
    assert repeating(table(ROWS, chunks=chunks)) == ["kind", "some", "none", "flag", *inside, "_tarn.source"]


@pytest.mark.parametrize("rows", [0, 1, ROWS_MIN - 1])
def test_in_a_small_file_all_have_one(rows: int) -> None:
    found = repeating(table(max(rows, 1)).slice(0, rows))
    assert {"id", "kind", "text", "_tarn.offset"} <= set(found)


def test_values_that_occur_a_few_dozen_times_repeat() -> None:
    rows = pa.table({"customer": pa.array([f"customer {n * 7919 % 1_000}" for n in range(ROWS)])})
    assert repeating(rows) == ["customer"]


def test_the_paths_are_those_of_the_file_and_the_rows_are_the_same() -> None:
    rows = table(ROWS)
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, rows.schema, use_dictionary=repeating(rows)) as writer:
        writer.write_table(rows)
    group = pq.ParquetFile(sink).metadata.row_group(0)
    with_one = {
        group.column(at).path_in_schema
        for at in range(group.num_columns)
        if "RLE_DICTIONARY" in group.column(at).encodings
    }
    assert with_one == set(repeating(rows)) - {"flag"}, "truth values never have one"
    assert pq.read_table(sink).equals(rows)
