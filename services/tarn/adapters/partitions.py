"""Rows by partition: partition transforms of columns, and partition values as Iceberg stores them.

Dates are days and timestamps microseconds since the epoch: no Python date is created, so none can overflow.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from hashlib import blake2b
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform, Transform, TruncateTransform, VoidTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DoubleType

from tarn.adapters.write_schema import WriteSchema
from tarn.core.errors import InvalidSpecError, TooManyPartitionsError

PARTITIONS_PER_BATCH_MAX = 500
"""Each has a file of its own in the commit of the batch, which holds them all."""
FOLDER_BYTES_MAX, FOLDERS_BYTES_MAX = 200, 600
"""Bytes of one path level, and of all; longer ones are cut and get a digest. MinIO allows 255, S3 1,024."""
DIGEST_BYTES = 16


def survives_manifests(spec: PartitionSpec, schema: Schema) -> bool:
    """Whether partition values can be read from a manifest and written to another.

    pyiceberg 0.12 reads a double with the wrong width.
    """
    return not any(isinstance(f.field_type, DoubleType) for f in spec.partition_type(schema).fields)


def split(rows: pa.Table, layout: WriteSchema) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
    """Split rows by partition.

    Yields:
        The partition values as Iceberg stores them, in the order of the spec's fields, and their rows.

    Raises:
        TooManyPartitionsError: the rows touch more partitions than a batch may.
        InvalidSpecError: the table has a transform that ingest does not support.
    """
    fields = [f for f in layout.spec.fields if not isinstance(f.transform, VoidTransform)]
    if not fields:
        yield (None,) * len(layout.spec.fields), rows
        return
    values = [
        transformed(rows, layout, f.source_id, f.transform, name=f"partition field {f.name}") for f in fields
    ]
    keys = pa.table(values, names=[str(n) for n in range(len(fields))])
    groups = keys.append_column("row", pa.array(range(rows.num_rows), pa.int64())).group_by(keys.column_names)
    parts = groups.aggregate([("row", "list")])
    if parts.num_rows > PARTITIONS_PER_BATCH_MAX:
        raise TooManyPartitionsError(
            f"a batch of {rows.num_rows} rows touches {parts.num_rows} partitions, more than "
            f"{PARTITIONS_PER_BATCH_MAX}; choose a coarser partitioning or smaller batches"
        )
    by_field = {f.field_id: n for n, f in enumerate(fields)}
    for part in parts.to_pylist():
        found = tuple(
            part[str(by_field[f.field_id])] if f.field_id in by_field else None for f in layout.spec.fields
        )
        yield found, rows.take(pa.array(sorted(part["row_list"]), pa.int64()))


def folder(values: tuple[Any, ...], layout: WriteSchema) -> str:
    """Path of a partition below the data folder, with a trailing slash; "" if unpartitioned."""
    if not values:
        return ""
    levels = layout.spec.partition_to_path(Record(*values), layout.schema).split("/")
    most = max(2 * DIGEST_BYTES + 1, min(FOLDER_BYTES_MAX, FOLDERS_BYTES_MAX // len(levels)))
    return "".join(f"{_short(level, most)}/" for level in levels)


def _short(level: str, most: int) -> str:
    if len(level) <= most:  # quoted, so a character is a byte
        return level
    digest = blake2b(level.encode(), digest_size=DIGEST_BYTES).hexdigest()
    return f"{level[: most - len(digest) - 1]}~{digest}"


def unfit(rows: pa.Table, layout: WriteSchema) -> dict[int, str]:
    """Rows whose partition value overflows the column's type, as {row index: reason}, as truncate can do.

    A wrapped-around value would make engines look for the row in another partition and miss it.
    """
    found: dict[int, str] = {}
    for field in layout.spec.fields:
        if not isinstance(field.transform, TruncateTransform):
            continue
        column = _column(rows, layout, field.source_id)
        if column is None:
            continue
        kind = column.type
        if pa.types.is_integer(kind):
            lowest = -(2 ** (kind.bit_width - 1))
            edge: Any = lowest - lowest % -field.transform.width
        elif pa.types.is_decimal(kind):
            lowest = 1 - 10**kind.precision
            edge = Decimal(f"{lowest - lowest % -field.transform.width}E-{kind.scale}")
        else:
            continue
        for row in pc.indices_nonzero(
            pc.fill_null(pc.less(column, pa.scalar(edge, kind)), False)
        ).to_pylist():
            name = layout.schema.find_column_name(field.source_id)
            found[row] = (
                f"{name}: {column[row].as_py()} cut down to a multiple of {field.transform.width} for the "
                f"partition does not fit {layout.schema.find_type(field.source_id)}"
            )
    return found


def transformed(
    rows: pa.Table, layout: WriteSchema, source_id: int, transform: Transform[Any, Any], *, name: str
) -> pa.Array:
    """The transformed values of a column: dates as days, timestamps as microseconds.

    Args:
        rows: the rows.
        layout: write schema of the table.
        source_id: field id of the column; all null if ingest does not write it.
        transform: the transform.
        name: what it is for, for messages.

    Raises:
        InvalidSpecError: ingest does not know the transform.
        ValueError: the transform fails.
    """
    column = _column(rows, layout, source_id)
    if column is None:
        return pa.nulls(rows.num_rows, pa.int32())
    if not isinstance(transform, IdentityTransform):
        try:
            apply = transform.pyarrow_transform(layout.schema.find_type(source_id))
        except (AttributeError, NotImplementedError) as e:
            raise InvalidSpecError(
                f"{name} has the transform {transform}, which ingest does not know; choose another one"
            ) from e
        try:
            column = apply(column)
        except BaseException as e:
            # The native library may panic, which is not an Exception: one record must not end the process.
            if type(e).__module__ != "pyo3_runtime":
                raise
            raise ValueError(f"{transform} of {name} failed: {e}") from e
    if pa.types.is_date32(column.type):
        return column.cast(pa.int32())
    return column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column


def _column(rows: pa.Table, layout: WriteSchema, field_id: int) -> pa.Array | None:
    """A column by field id, also inside a struct; None if ingest does not write it: it is then all null."""
    path = layout.schema.find_column_name(field_id)
    names = [] if path is None else path.split(".")
    if not names or names[0] not in rows.column_names:
        return None
    column = rows.column(names[0]).combine_chunks()
    for name in names[1:]:
        column = pc.struct_field(column, name)
    return column
