"""How a table wants its Parquet files: compression, Bloom filters, size (Iceberg's table properties)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

TARGET_BYTES = "write.target-file-size-bytes"
TARGET_BYTES_DEFAULT = 512 * 1024 * 1024
TARGET_BYTES_MIN = 64 * 1024
CODEC = "write.parquet.compression-codec"
LEVEL = "write.parquet.compression-level"
BLOOM = "write.parquet.bloom-filter-enabled.column."
BLOOM_FPP = "write.parquet.bloom-filter-fpp.column."
BLOOM_BYTES_MAX = "write.parquet.bloom-filter-max-bytes"
BLOOM_FPP_DEFAULT = 0.01
BLOOM_FPP_MAX = 0.99
"""Beyond it a filter says nothing, and its size cannot be computed."""
BLOOM_BYTES_DEFAULT = 1024 * 1024
CODECS = {
    **{"zstd": "zstd", "snappy": "snappy", "gzip": "gzip", "brotli": "brotli", "lz4": "lz4"},
    "uncompressed": "none",
}
"""Iceberg's names of codecs to pyarrow's."""
LEVELS = {"zstd": (1, 22), "gzip": (1, 9), "brotli": (0, 11)}
ZSTD_LEVEL = 1
"""Higher ones take up to three times as long and save little (ADR 51)."""
_PREFIXES = ("write.parquet.", TARGET_BYTES)


@dataclass(frozen=True, slots=True)
class ParquetOptions:
    """What the properties of a table say about its Parquet files; what is not understood is the default.

    Attributes:
        codec: pyarrow's name of the codec.
        level: its level; None for the codec's own.
        target_bytes: size of a file above which its rows are written as several.
        bloom: path of a column in Parquet to the share of false positives of its Bloom filter.
        bloom_bytes_max: limit on the size of one filter.
        statistics: paths in Parquet of the columns whose values the file has statistics of; True for all.
            Not every engine takes UUIDs in the order that these are in (`tarn.adapters.statistics`).
    """

    codec: str
    level: int | None
    target_bytes: int
    bloom: Mapping[str, float]
    bloom_bytes_max: int
    statistics: list[str] | bool = True

    def bloom_filters(self, rows: int) -> dict[str, dict[str, Any]] | None:
        """Options of pyarrow for the Bloom filters of a file with this number of rows; None for none."""
        found = {}
        # With a smaller share, a filter of one value would exceed the limit.
        least = (-math.expm1(-1 / self.bloom_bytes_max)) ** 8
        for path, wanted in self.bloom.items():
            fpp = min(max(wanted, least), BLOOM_FPP_MAX)
            # Bits per value of a split-block filter: Parquet specification, "Bloom Filter".
            values_max = int(-self.bloom_bytes_max * math.log(1 - fpp ** (1 / 8)))
            found[path] = {"ndv": max(1, min(rows, values_max)), "fpp": fpp}
        return found or None


def options_of(properties: Mapping[str, str], columns: pa.Schema) -> ParquetOptions:
    """The options of a table with these properties and columns."""
    codec = CODECS.get(properties.get(CODEC, "").lower(), "zstd")
    low, high = LEVELS.get(codec, (1, 0))
    level = _number(properties.get(LEVEL), -1)
    leaves = list(_leaves(columns))
    bloom = {
        path: _share(properties.get(BLOOM_FPP + name))
        for name, path, kind in leaves
        if properties.get(BLOOM + name, "").lower() == "true" and not pa.types.is_boolean(kind)
    }
    ordered = [path for _, path, kind in leaves if not pa.types.is_fixed_size_binary(kind)]
    return ParquetOptions(
        codec=codec,
        level=level if low <= level <= high else ZSTD_LEVEL if codec == "zstd" else None,
        target_bytes=max(TARGET_BYTES_MIN, _number(properties.get(TARGET_BYTES), TARGET_BYTES_DEFAULT)),
        bloom=bloom,
        bloom_bytes_max=max(32, _number(properties.get(BLOOM_BYTES_MAX), BLOOM_BYTES_DEFAULT)),
        statistics=ordered if len(ordered) < len(leaves) else True,
    )


def stated(properties: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The properties that options come from, to compare two versions of a table."""
    return tuple(sorted((key, value) for key, value in properties.items() if key.startswith(_PREFIXES)))


def _leaves(fields: Any, iceberg: str = "", parquet: str = "") -> Iterator[tuple[str, str, pa.DataType]]:
    """Yield each leaf as (path in Iceberg, path in Parquet, type); truth values have no Bloom filters."""
    for field in fields:
        name, path, kind = f"{iceberg}{field.name}", f"{parquet}{field.name}", field.type
        if pa.types.is_struct(kind):
            yield from _leaves(kind, f"{name}.", f"{path}.")
        elif pa.types.is_list(kind):
            yield from _leaves([kind.value_field.with_name("element")], f"{name}.", f"{path}.list.")
        elif pa.types.is_map(kind):
            parts = [kind.key_field.with_name("key"), kind.item_field.with_name("value")]
            yield from _leaves(parts, f"{name}.", f"{path}.key_value.")
        else:
            yield name, path, kind


def _number(text: str | None, default: int) -> int:
    return int(text) if text is not None and text.isdecimal() and len(text) < 19 else default


def _share(text: str | None) -> float:
    try:
        found = float(text or BLOOM_FPP_DEFAULT)
    except ValueError:
        return BLOOM_FPP_DEFAULT
    return found if 0 < found < 1 else BLOOM_FPP_DEFAULT
