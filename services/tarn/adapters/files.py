"""Data files: Arrow columns to Parquet objects with the statistics that a manifest carries.

Every name holds a uuid and is written once, so that a write without an answer is simply written again;
nothing is ever deleted here (invariants I3, I7).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlparse

import pyarrow as pa
import pyarrow.parquet as pq

from tarn.adapters.partitions import folder, split
from tarn.adapters.statistics import statistics_of
from tarn.adapters.store import ObjectStore
from tarn.adapters.write_schema import WriteSchema
from tarn.core.errors import InvalidLocationError, OutcomeUnknownError, UnavailableError

PUT_ATTEMPTS_MAX = 5
PUT_WAIT_MS = 100
ZSTD_LEVEL = 3
ROW_GROUP_ROWS_MAX = 1_000_000


class FileIO:
    """Objects by location (`s3://bucket/key`), over a store that knows keys.

    Args:
        store: the bucket.
        bucket: its name; other locations are refused.
        sleep: waits between attempts.
    """

    def __init__(
        self, store: ObjectStore, *, bucket: str, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._store = store
        self._bucket = bucket
        self._sleep = sleep

    def read(self, location: str) -> bytes:
        """The object's bytes.

        Raises:
            UnavailableError: no answer, or not there (yet).
            ForbiddenError: not allowed.
        """
        found = self._store.get(self._key(location))
        if found is None:
            raise UnavailableError(f"{location} is not in the store", location=location)
        return found.data

    def write_new(self, location: str, data: bytes) -> None:
        """Writes an object whose name nobody else uses; repeats it while the store gives no clear answer.

        Raises:
            UnavailableError: still no answer after all attempts; the object may or may not be there, which
                harms nothing as nothing names it.
            ForbiddenError: not allowed.
        """
        key = self._key(location)
        for attempt in range(1, PUT_ATTEMPTS_MAX + 1):
            try:
                self._store.put(key, data)
            except (UnavailableError, OutcomeUnknownError) as e:
                if attempt == PUT_ATTEMPTS_MAX:
                    raise UnavailableError(
                        f"could not write {location} in {attempt} attempts: {e.message}", location=location
                    ) from e
                self._sleep(PUT_WAIT_MS / 1_000 * 2 ** (attempt - 1))
            else:
                return

    def _key(self, location: str) -> str:
        parsed = urlparse(location)
        key = parsed.path.lstrip("/")
        if parsed.scheme not in ("s3", "s3a") or parsed.netloc != self._bucket or not key:
            raise InvalidLocationError(
                f"{location!r} is not in bucket {self._bucket!r}; the table must lie in the warehouse",
                location=location,
            )
        return key


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """One data file that is in the store and in no table yet.

    Attributes:
        path: its location.
        partition: the partition's values as Iceberg stores them, in the order of the table's spec.
        spec_id: the partitioning they belong to.
        records, bytes: its size.
        statistics: counts and bounds per column id, by the names that a manifest uses.
    """

    path: str
    partition: tuple[Any, ...]
    spec_id: int
    records: int
    bytes: int
    statistics: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedFile:
    """A data file that is not in the store yet."""

    file: WrittenFile
    data: bytes


def encode_rows(
    layout: WriteSchema, root: str, rows: pa.Table, *, new_name: Callable[[], str]
) -> tuple[EncodedFile, ...]:
    """The rows as files below `root`/data, one per partition; no rows, no file. Nothing is written.

    Args:
        layout: the table's.
        root: the table's location.
        rows: columns by the layout's names and types.
        new_name: gives a name, without suffix, that was never used before.

    Raises:
        InvalidError: more partitions than one batch may touch.
        Exception: a value that a library cannot take.
    """
    shaped = _shape(rows, layout.arrow)
    made = []
    for values, part in split(shaped, layout):
        data, statistics = _encode(part, layout)
        file = WrittenFile(
            path=f"{root}/data/{folder(values, layout)}{new_name()}.parquet",
            partition=values,
            spec_id=layout.spec.spec_id,
            records=part.num_rows,
            bytes=len(data),
            statistics=statistics,
        )
        if part.num_rows:
            made.append(EncodedFile(file=file, data=data))
    return tuple(made)


def put_files(objects: FileIO, encoded: Sequence[EncodedFile]) -> tuple[WrittenFile, ...]:
    """Puts the files into the store.

    Raises:
        UnavailableError: the store does not answer.
    """
    for made in encoded:
        objects.write_new(made.file.path, made.data)
    return tuple(made.file for made in encoded)


def write_rows(
    objects: FileIO, layout: WriteSchema, root: str, rows: pa.Table, *, new_name: Callable[[], str]
) -> tuple[WrittenFile, ...]:
    """Encodes the rows and puts the files into the store; errors as `encode_rows` and `put_files`."""
    return put_files(objects, encode_rows(layout, root, rows, new_name=new_name)) if rows.num_rows else ()


def _shape(rows: pa.Table, target: pa.Schema) -> pa.Table:
    """The same columns in the target's order, with its field ids."""
    columns = []
    for wanted in target:
        column = rows.column(wanted.name)
        columns.append(column if column.type.equals(wanted.type) else column.cast(wanted.type))
    return pa.Table.from_arrays(columns, schema=target)


def _encode(rows: pa.Table, layout: WriteSchema) -> tuple[bytes, dict[str, Any]]:
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        layout.arrow,
        compression="zstd",
        compression_level=ZSTD_LEVEL,
        store_decimal_as_integer=True,
        write_statistics=True,
        store_schema=False,
    ) as writer:
        writer.write_table(rows, row_group_size=ROW_GROUP_ROWS_MAX)
    return sink.getvalue().to_pybytes(), statistics_of(rows, writer.writer.metadata)
