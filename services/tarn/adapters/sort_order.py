"""Rows of a file in the table's sort order (Iceberg specification, "Sorting")."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField

from tarn.adapters.partitions import transformed
from tarn.adapters.write_schema import WriteSchema
from tarn.core.errors import InvalidSpecError

UNSORTED = 0


def in_order(rows: pa.Table, layout: WriteSchema) -> tuple[pa.Table, int]:
    """The rows sorted as the table says, and the id of the sort order; as they are, and 0, if they cannot be.

    They cannot be if a transform or type cannot be compared here. NaN is above all other numbers.
    """
    fields = layout.order.fields
    if not fields:
        return rows, UNSORTED
    keys: dict[str, pa.Array] = {}
    order: list[tuple[str, str, str]] = []
    for number, field in enumerate(fields):
        values = _values(rows, layout, field)
        if values is None:
            return rows, UNSORTED
        nulls = "at_start" if field.null_order == NullOrder.NULLS_FIRST else "at_end"
        way = "ascending" if field.direction == SortDirection.ASC else "descending"
        if pa.types.is_floating(values.type):
            # pyarrow would put NaN beside null.
            keys[f"nan{number}"] = pc.is_nan(values)
            order.append((f"nan{number}", way, nulls))
        keys[f"v{number}"] = values
        order.append((f"v{number}", way, nulls))
    try:
        places = pc.sort_indices(pa.table(keys), sort_keys=order)
    except (pa.ArrowException, TypeError):
        return rows, UNSORTED
    return rows.take(places), layout.order.order_id


def _values(rows: pa.Table, layout: WriteSchema, field: SortField) -> pa.Array | None:
    try:
        return transformed(rows, layout, field.source_id, field.transform, name="sort field")
    except (InvalidSpecError, ValueError, pa.ArrowException):
        return None
