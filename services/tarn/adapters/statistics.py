"""Statistics of a data file for its manifest entry: sizes, counts and bounds per field id.

Bounds are computed from the Arrow columns, serialised as in the Iceberg specification (Appendix D). The
Parquet footer has them too, but its reader converts them to Python dates, which fail beyond year 9999.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.utils.decimal import decimal_to_bytes

from tarn.adapters.write_schema import FIELD_ID_KEY
from tarn.core.spec import TRACE_COLUMN

TEXT_CHARS_MAX = 16
SOURCE_CHARS_MAX = 64
_SURROGATES = range(0xD800, 0xE000)
_HALVES = (0, 8)
"""First bytes of the two numbers that a UUID is for Java."""


def statistics_of(rows: pa.Table, footer: pq.FileMetaData) -> dict[str, Any]:
    """Statistics of a file, keyed by pyiceberg's `DataFile` argument names.

    Args:
        rows: the rows written; every field carries its Iceberg field id.
        footer: Parquet footer of the file.
    """
    statistics = Statistics()
    statistics.add(rows)
    return statistics.of(footer)


@dataclass(slots=True)
class _Column:
    """Counts and ends of one leaf column so far.

    `nans` is None if the type has no NaN; `signs` are those of the halves of UUIDs, as (half, negative).
    """

    kind: pa.DataType
    chars_max: int
    values: int = 0
    nulls: int = 0
    nans: int | None = None
    low: Any = None
    high: Any = None
    signs: frozenset[tuple[int, bool]] = frozenset()

    def add(self, column: pa.Array) -> None:
        self.values += len(column)
        self.nulls += column.null_count
        if pa.types.is_floating(column.type):
            self.nans = (self.nans or 0) + pc.sum(pc.is_nan(column), min_count=0).as_py()
        self.signs |= _signs(column)
        low, high = _ends(column)
        if low is not None and (self.low is None or low < self.low):
            self.low = low
        if high is not None and (self.high is None or high > self.high):
            self.high = high


class Statistics:
    """Statistics of a file that is written in parts; as `statistics_of` of all rows at once."""

    def __init__(self) -> None:
        self._columns: dict[int, _Column] = {}
        self._by_path: dict[str, int] = {}

    def add(self, rows: pa.Table) -> None:
        """Count rows that were written; every field carries its Iceberg field id."""
        for path, field_id, column in _leaves(rows):
            self._by_path[path] = field_id
            if column is None:
                continue
            if field_id not in self._columns:
                chars = SOURCE_CHARS_MAX if path == f"{TRACE_COLUMN}.source" else TEXT_CHARS_MAX
                self._columns[field_id] = _Column(column.type, chars)
            self._columns[field_id].add(column)

    def of(self, footer: pq.FileMetaData) -> dict[str, Any]:
        """The statistics, keyed by pyiceberg's `DataFile` argument names.

        Args:
            footer: Parquet footer of the file.
        """
        found: dict[str, dict[int, Any]] = {
            "value_counts": {},
            "null_value_counts": {},
            "nan_value_counts": {},
            "lower_bounds": {},
            "upper_bounds": {},
        }
        for field_id, column in self._columns.items():
            found["value_counts"][field_id] = column.values
            found["null_value_counts"][field_id] = column.nulls
            if column.nans is not None:
                found["nan_value_counts"][field_id] = column.nans
            if len(column.signs) > len(_HALVES):
                continue
            lower, upper = _as_bounds(column.kind, column.low, column.high, chars_max=column.chars_max)
            if lower is not None:
                found["lower_bounds"][field_id] = lower
            if upper is not None:
                found["upper_bounds"][field_id] = upper
        return {**found, **_places(footer, self._by_path)}


def bounds_of(column: pa.Array, *, chars_max: int) -> tuple[bytes | None, bytes | None]:
    """Lower and upper bound as Iceberg stores them; None if there is none, or not every engine agrees on it.

    Strings and binary values are truncated to `chars_max` characters or bytes; the upper bound is then the
    next higher value of that length, None if there is none. NaN values are ignored.
    """
    if len(_signs(column)) > len(_HALVES):
        return None, None
    low, high = _ends(column)
    return _as_bounds(column.type, low, high, chars_max=chars_max)


def _signs(column: pa.Array) -> frozenset[tuple[int, bool]]:
    """The halves of UUIDs with their signs, as (half, whether it is negative); none of another column.

    Parquet and most engines compare UUIDs byte by byte. Iceberg's Java library (1.12, its issue 14216), by
    which Spark and Trino choose files, takes each for two signed numbers: with bounds whose signs differ it
    skips files that have the value.
    """
    if not pa.types.is_fixed_size_binary(column.type):
        return frozenset()
    raw = column.cast(pa.binary())
    ends = {half: pc.min_max(pc.binary_slice(raw, half, half + 1)).as_py() for half in _HALVES}
    return frozenset(
        (half, byte >= b"\x80") for half, pair in ends.items() for byte in pair.values() if byte is not None
    )


def _ends(column: pa.Array) -> tuple[Any, Any]:
    """The lowest and the highest value, dates and times as numbers; None if all are null or NaN."""
    kind = column.type
    if pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    elif pa.types.is_timestamp(kind):
        column = column.cast(pa.int64())
    ends = pc.min_max(column)
    low, high = ends["min"].as_py(), ends["max"].as_py()
    if low is None or high is None or low != low or high != high:
        return None, None
    return low, high


def _as_bounds(
    kind: pa.DataType, low: Any, high: Any, *, chars_max: int
) -> tuple[bytes | None, bytes | None]:
    if low is None or high is None:
        return None, None
    if pa.types.is_floating(kind):
        return _float_bounds(kind, low, high)
    if pa.types.is_string(kind):
        top = high if len(high) <= chars_max else next_text(high[:chars_max])
        return low[:chars_max].encode(), None if top is None else top.encode()
    if pa.types.is_binary(kind):
        return low[:chars_max], high if len(high) <= chars_max else next_bytes(high[:chars_max])
    return _plain(kind, low), _plain(kind, high)


def next_text(text: str) -> str | None:
    """The lowest string, at most as long, above all strings with this prefix; None if there is none."""
    for at in range(len(text) - 1, -1, -1):
        code = ord(text[at]) + 1
        if code in _SURROGATES:
            code = _SURROGATES.stop
        if code <= 0x10FFFF:
            return text[:at] + chr(code)
    return None


def next_bytes(value: bytes) -> bytes | None:
    """`next_text` for bytes."""
    for at in range(len(value) - 1, -1, -1):
        if value[at] < 255:
            return value[:at] + bytes([value[at] + 1])
    return None


def _float_bounds(kind: pa.DataType, low: float, high: float) -> tuple[bytes, bytes]:
    # The lower bound of a zero is negative zero, the upper bound positive zero.
    form = "<f" if pa.types.is_float32(kind) else "<d"
    return struct.pack(form, low if low != 0 else -0.0), struct.pack(form, high if high != 0 else 0.0)


def _plain(kind: pa.DataType, value: Any) -> bytes:
    if isinstance(value, bool):
        return b"\x01" if value else b"\x00"
    if isinstance(value, Decimal):
        return decimal_to_bytes(value)
    if isinstance(value, bytes):
        return value
    return struct.pack("<i" if pa.types.is_int32(kind) or pa.types.is_date32(kind) else "<q", value)


def _leaves(rows: pa.Table) -> Iterator[tuple[str, int, pa.Array | None]]:
    """Yield every leaf column as (path in Parquet, field id, values); values below a null struct are null.

    Without values where there are several per row, in a list or map: such columns have no counts and bounds.
    """
    for field in rows.schema:
        yield from _leaf(field.name, field, rows.column(field.name).combine_chunks())


def _leaf(path: str, field: pa.Field, column: pa.Array | None) -> Iterator[tuple[str, int, pa.Array | None]]:
    kind = field.type
    if pa.types.is_struct(kind):
        for inner in kind:
            part = None if column is None else pc.struct_field(column, inner.name)
            yield from _leaf(f"{path}.{inner.name}", inner, part)
    elif pa.types.is_list(kind):
        yield from _leaf(f"{path}.list.element", kind.value_field, None)
    elif pa.types.is_map(kind):
        yield from _leaf(f"{path}.key_value.key", kind.key_field, None)
        yield from _leaf(f"{path}.key_value.value", kind.item_field, None)
    else:
        yield path, int(field.metadata[FIELD_ID_KEY]), column


def _places(footer: pq.FileMetaData, by_path: dict[str, int]) -> dict[str, Any]:
    """Compressed bytes per column, and the offsets of the row groups."""
    sizes: dict[int, int] = {}
    splits: list[int] = []
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        first = group.column(0)
        splits.append(
            min(first.dictionary_page_offset, first.data_page_offset)
            if first.has_dictionary_page
            else first.data_page_offset
        )
        for at in range(footer.num_columns):
            chunk = group.column(at)
            field_id = by_path[chunk.path_in_schema]
            sizes[field_id] = sizes.get(field_id, 0) + chunk.total_compressed_size
    return {"column_sizes": sizes, "split_offsets": sorted(splits)}
