"""Which columns of a Parquet file get a dictionary: those whose values repeat.

Parquet's writer would build one for every column, and give it up after a mebibyte of different values. For
identifiers, offsets and times that is work for nothing, and the file is larger than without.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

ROWS_MIN = 8_192
"""Below, a dictionary is small whatever it holds."""
SAMPLE_STEP = 64
DIFFERENT_SHARE = 0.9
"""If more of the sampled values differ, each occurs in a dozen rows or so, by all that a sample can say."""


def repeating(rows: pa.Table) -> list[str]:
    """Paths, as Parquet writes them, of the leaf columns whose values repeat, judged by every 64th row.

    What is within lists and maps always counts as such.
    """
    few = rows.num_rows < ROWS_MIN
    return [
        path
        for field in rows.schema
        for path, sample in _leaves(field.name, field.type, None if few else _sample(rows.column(field.name)))
        if sample is None or _repeats(sample)
    ]


def _sample(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Every 64th value, chunk by chunk: a `take` from all chunks at once copies them first."""
    return pa.chunked_array([part.take(_places(len(part))) for part in column.chunks], column.type)


@lru_cache(maxsize=32)
def _places(count: int) -> pa.Array:
    return pa.array(range(0, count, SAMPLE_STEP), pa.int64())


def _repeats(sample: pa.ChunkedArray) -> bool:
    known: int = len(sample) - sample.null_count
    different: int = pc.count_distinct(sample, mode="only_valid").as_py()
    return different <= DIFFERENT_SHARE * known


def _leaves(
    path: str, kind: pa.DataType, sample: pa.ChunkedArray | None
) -> Iterator[tuple[str, pa.ChunkedArray | None]]:
    """Yield every leaf column as (path in Parquet, its part of the sample); None within lists and maps."""
    if pa.types.is_struct(kind):
        for inner in kind:
            part = None if sample is None else pc.struct_field(sample, inner.name)
            yield from _leaves(f"{path}.{inner.name}", inner.type, part)
    elif pa.types.is_list(kind):
        yield from _leaves(f"{path}.list.element", kind.value_type, None)
    elif pa.types.is_map(kind):
        yield from _leaves(f"{path}.key_value.key", kind.key_type, None)
        yield from _leaves(f"{path}.key_value.value", kind.item_type, None)
    else:
        yield path, sample
