"""Data files: Arrow columns to Parquet objects with the statistics that a manifest carries.

Every name holds a uuid and is written once, so that a write without an answer is simply written again;
nothing is ever deleted here (invariants I3, I7).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import urlparse
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    MetricModeTypes,
    MetricsMode,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.typedef import Record

from tarn.adapters.store import ObjectStore
from tarn.adapters.tables import Layout
from tarn.core.errors import InvalidError, InvalidLocationError, OutcomeUnknownError, UnavailableError
from tarn.core.spec import TRACE_COLUMN

PUT_ATTEMPTS_MAX = 5
PUT_WAIT_MS = 100
ZSTD_LEVEL = 3
ROW_GROUP_ROWS_MAX = 1_000_000
PARTITIONS_PER_BATCH_MAX = 500
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Objects:
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


def write_rows(
    objects: Objects, layout: Layout, root: str, rows: pa.Table, *, new_name: Callable[[], str]
) -> tuple[WrittenFile, ...]:
    """Writes the rows below `root`/data, one file per partition; no rows, no file.

    Args:
        objects: where to.
        layout: the table's.
        root: the table's location.
        rows: columns by the layout's names and types.
        new_name: gives a name, without suffix, that was never used before.

    Raises:
        UnavailableError: the store does not answer.
        InvalidError: more partitions than one batch may touch.
    """
    if rows.num_rows == 0:
        return ()
    shaped = _shape(rows, layout.arrow)
    written = []
    for values, part in _split(shaped, layout):
        folder = layout.spec.partition_to_path(Record(*values), layout.schema) + "/" if values else ""
        path = f"{root}/data/{folder}{new_name()}.parquet"
        data, statistics = _encode(part, layout)
        objects.write_new(path, data)
        written.append(
            WrittenFile(
                path=path,
                partition=values,
                spec_id=layout.spec.spec_id,
                records=part.num_rows,
                bytes=len(data),
                statistics=statistics,
            )
        )
    return tuple(written)


def _shape(rows: pa.Table, target: pa.Schema) -> pa.Table:
    """The same columns in the target's order, with its field ids."""
    columns = []
    for wanted in target:
        column = rows.column(wanted.name)
        columns.append(column if column.type.equals(wanted.type) else column.cast(wanted.type))
    return pa.Table.from_arrays(columns, schema=target)


def _encode(rows: pa.Table, layout: Layout) -> tuple[bytes, dict[str, Any]]:
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
    plan = compute_statistics_plan(layout.file_schema, {})
    for number, column in plan.items():
        # Incremental reads prune by the bounds of the trace column, which are left out by default as nested.
        if column.column_name.startswith(f"{TRACE_COLUMN}."):
            full = (
                MetricsMode(MetricModeTypes.TRUNCATE, 64) if column.column_name.endswith(".source") else None
            )
            plan[number] = replace(column, mode=full or MetricsMode(MetricModeTypes.FULL))
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=writer.writer.metadata,
        stats_columns=plan,
        parquet_column_mapping=parquet_path_to_id_mapping(layout.file_schema),
    ).to_serialized_dict()
    statistics.pop("record_count")
    return sink.getvalue().to_pybytes(), statistics


def _split(rows: pa.Table, layout: Layout) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
    """The rows by partition, with the partition's values as Iceberg stores them."""
    fields = [f for f in layout.spec.fields if not str(f.transform).startswith("void")]
    if not fields:
        yield (None,) * len(layout.spec.fields), rows
        return
    keys = pa.table(
        [
            pa.array(
                f.transform.pyarrow_transform(layout.schema.find_field(f.source_id).field_type)(
                    rows.column(layout.schema.find_field(f.source_id).name).combine_chunks()
                )
            )
            for f in fields
        ],
        names=[str(n) for n in range(len(fields))],
    )
    groups = keys.append_column("row", pa.array(range(rows.num_rows), pa.int64())).group_by(keys.column_names)
    parts = groups.aggregate([("row", "list")])
    if parts.num_rows > PARTITIONS_PER_BATCH_MAX:
        raise InvalidError(
            f"a batch of {rows.num_rows} rows touches {parts.num_rows} partitions, more than "
            f"{PARTITIONS_PER_BATCH_MAX}; choose a coarser partitioning or smaller batches"
        )
    by_field = {f.field_id: n for n, f in enumerate(fields)}
    for part in parts.to_pylist():
        values = tuple(
            physical(part[str(by_field[f.field_id])]) if f.field_id in by_field else None
            for f in layout.spec.fields
        )
        yield values, rows.take(pa.array(sorted(part["row_list"]), pa.int64()))


def physical(value: Any) -> Any:
    """A partition value as Iceberg stores it: dates as days, times as microseconds, uuids as bytes."""
    if isinstance(value, datetime):
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        whole = aware - _EPOCH
        return (whole.days * 86_400 + whole.seconds) * 1_000_000 + whole.microseconds
    if isinstance(value, date):
        return (value - _EPOCH.date()).days
    if isinstance(value, UUID):
        return value.bytes
    if isinstance(value, Decimal | int | float | str | bytes | bool) or value is None:
        return value
    raise TypeError(f"no partition value: {type(value).__name__}")
