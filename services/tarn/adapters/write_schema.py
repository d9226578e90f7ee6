"""Table schemas: from a spec to a create request, and from a table to the write schema of its files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import cast

import pyarrow as pa
from pyiceberg.exceptions import ValidationError
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.transforms import VoidTransform
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from tarn.adapters.parquet_options import ParquetOptions, options_of, stated
from tarn.core.column_types import ColumnType, ListOf, MapOf, Struct, iceberg_type, type_text
from tarn.core.convert import target_type
from tarn.core.decode import TRACE_TYPE
from tarn.core.errors import InvalidSpecError
from tarn.core.spec import TRACE_COLUMN, FieldSpec, PartitionRule
from tarn.core.table_state import Json, TableState, current_part, current_schema

FIELD_ID_KEY = b"PARQUET:field_id"
PARTITION_ID_FIRST = 1_000
FORMAT_VERSION_MIN = 2
TRACE_FIELDS = (
    ("source", "string", "Where the record came from: the topic."),
    ("partition", "int", "Its partition."),
    ("offset", "long", "Its offset in the partition."),
    ("time", "timestamptz", "The record's own time stamp in the log."),
)
PROPERTIES = {
    "write.parquet.compression-codec": "zstd",
    "write.metadata.previous-versions-max": "20",
}


@dataclass(frozen=True, slots=True)
class WriteSchema:
    """How files of a table are written, for one version of its schema and partition spec.

    Attributes:
        arrow: columns of a file, with field ids.
        schema: schema of the table.
        spec: partition spec of the table.
        order: sort order of the table.
        options: compression, Bloom filters and size of its files.
        format_version: Iceberg format version.
    """

    arrow: pa.Schema
    schema: Schema
    spec: PartitionSpec
    order: SortOrder
    options: ParquetOptions
    format_version: int

    @property
    def stored(self) -> pa.Schema:
        """The columns as files have them: UUIDs are annotated as such (specification, Appendix A)."""
        return pa.schema([field.with_type(_stored(field.type)) for field in self.arrow])


def create_request(
    fields: Sequence[FieldSpec],
    *,
    trace: bool,
    partitioning: Sequence[PartitionRule] = (),
    properties: dict[str, str] | None = None,
    format_version: int = 2,
) -> Json:
    """The body of a create-table request, without the name.

    Args:
        fields: columns of the spec.
        trace: whether to add the trace column (topic, partition, offset of each record).
        partitioning: partition rules of the spec.
        properties: table properties, in addition to the defaults.
        format_version: Iceberg format version.
    """
    ids = {field.name: number for number, field in enumerate(fields, start=1)}
    inner_ids = count(len(fields) + trace + 1)
    columns: list[Json] = [
        {
            "id": ids[field.name],
            "name": field.name,
            "type": iceberg_type(field.kind, lambda: next(inner_ids)),
            "required": field.required,
        }
        for field in fields
    ]
    if trace:
        inner = [
            {"id": next(inner_ids), "name": name, "type": kind, "required": False, "doc": doc}
            for name, kind, doc in TRACE_FIELDS
        ]
        columns.append(
            {
                "id": len(fields) + 1,
                "name": TRACE_COLUMN,
                "type": {"type": "struct", "fields": inner},
                "required": False,
                "doc": "Where the row came from.",
            }
        )
    return {
        "schema": {"type": "struct", "schema-id": 0, "fields": columns},
        "partition-spec": {
            "spec-id": 0,
            "fields": [
                {
                    "source-id": ids[rule.column],
                    "field-id": PARTITION_ID_FIRST + n,
                    "name": rule.name,
                    "transform": rule.transform + (f"[{rule.width}]" if rule.width is not None else ""),
                }
                for n, rule in enumerate(partitioning)
            ],
        },
        "write-order": {"order-id": 0, "fields": []},
        "stage-create": False,
        "properties": {**PROPERTIES, "format-version": str(format_version), **(properties or {})},
    }


class OptionalSpec(PartitionSpec):
    """A partition spec whose values may all be null (specification, "Partition Transforms").

    pyiceberg takes those of a required column for required, also those of `void`, which are null.
    """

    def partition_type(self, schema: Schema) -> StructType:
        """The type of the partition values."""
        found = super().partition_type(schema).fields
        return StructType(*(NestedField(f.field_id, f.name, f.field_type, required=False) for f in found))


def known_schema(metadata: Json) -> Schema:
    """The current schema without columns of types that pyiceberg 0.12 does not read, such as `variant`."""
    found = current_schema(metadata)
    known = [one for one in found["fields"] if _is_known(one)]
    if len(known) < len(found["fields"]):
        # An identifier field may be in what is left out; nothing that is written depends on them.
        found = {**found, "fields": known, "identifier-field-ids": []}
    return Schema.model_validate(found)


def _is_known(column: Json) -> bool:
    try:
        NestedField.model_validate(column)
    except (ValueError, TypeError, ValidationError):
        return False
    return True


def layout_of(state: TableState, fields: Sequence[FieldSpec], *, trace: bool, table: str) -> WriteSchema:
    """The write schema of these columns for this version of the table.

    Args:
        state: version of the table.
        fields: columns of the spec.
        trace: whether the trace column is written.
        table: name of the table, for error messages.

    Raises:
        InvalidSpecError: the table cannot hold these columns; lists every difference.
    """
    metadata = state.metadata
    schema = known_schema(metadata)
    there = {column["name"]: column for column in current_schema(metadata)["fields"]}
    spec = OptionalSpec.model_validate(
        current_part(metadata, "partition-specs", "default-spec-id", "spec-id")
    )
    problems: list[str] = []
    if state.format_version < FORMAT_VERSION_MIN:
        problems.append(
            f"it is of format version {state.format_version}, whose snapshots have no sequence numbers; "
            f"upgrade it to {FORMAT_VERSION_MIN} (Spark: the table property format-version, pyiceberg: "
            "upgrade_table_version)"
        )
    by_name = {f.name: f for f in schema.fields}
    arrow: list[pa.Field] = []
    for field in fields:
        found, column = by_name.get(field.name), there.pop(field.name, None)
        if column is None:
            problems.append(f"column {field.name} ({field.type}) is missing in the table")
        elif found is None:
            shown = type_text(column["type"])
            problems.append(f"column {field.name} is {shown} in the table, {field.type} in the spec")
        else:
            before = len(problems)
            kind = _written(field.name, found.field_type, field.kind, problems)
            if len(problems) == before and found.required and not field.required:
                problems.append(f"column {field.name} is required in the table and optional in the spec")
            arrow.append(_arrow_field(field.name, kind, found.field_id, found.required))
    # That of `void` may be dropped; no reader agrees with pyiceberg on the type of its values.
    problems += [
        f"partition field {f.name} is of a column that was dropped, drop it too"
        for f in spec.fields
        if schema.find_column_name(f.source_id) is None
    ]
    if trace:
        there.pop(TRACE_COLUMN, None)
        found = by_name.get(TRACE_COLUMN)
        expected = [(name, kind) for name, kind, _ in TRACE_FIELDS]
        if found is None:
            problems.append(f"column {TRACE_COLUMN} is missing in the table (or set trace: false)")
        elif _struct(found.field_type) != expected:
            problems.append(
                f"column {TRACE_COLUMN} is {found.field_type} in the table, not Tarn's own struct"
            )
        else:
            inner = {f.name: f.field_id for f in cast("StructType", found.field_type).fields}
            struct = pa.struct(
                [_arrow_field(f.name, f.type, inner[f.name], required=False) for f in TRACE_TYPE]
            )
            arrow.append(_arrow_field(TRACE_COLUMN, struct, found.field_id, found.required))
    problems += [
        f"column {name} is required in the table and not in the spec"
        for name, column in there.items()
        if column["required"]
    ]
    # Rows without it read as the default. Their partition would say null, and engines go by that.
    problems += [
        f"partition field {f.name} is of column {name}, which has an initial-default and is not in the spec: "
        "add the column there, or drop the partition field"
        for f in spec.fields
        if (name := schema.find_column_name(f.source_id)) in there
        and there[name].get("initial-default") is not None
        and not isinstance(f.transform, VoidTransform)
    ]
    if problems:
        raise InvalidSpecError(
            f"table {table} cannot take what the spec says: {'; '.join(problems)}; "
            "alter the table or the spec",
            table=table,
            problems=problems,
        )
    return WriteSchema(
        arrow=pa.schema(arrow),
        schema=schema,
        spec=spec,
        order=_order(metadata),
        options=options_of(state.properties, pa.schema(arrow)),
        format_version=state.format_version,
    )


def _written(path: str, found: IcebergType, wanted: ColumnType, problems: list[str]) -> pa.DataType:
    """The Arrow type, with field ids, of what is written of a column or of a part of it.

    Args:
        path: name of the column, or path of the part.
        found: its type in the table.
        wanted: its type in the spec.
        problems: receives what the table cannot hold.
    """
    if isinstance(wanted, Struct) and isinstance(found, StructType):
        there = {inner.name: inner for inner in found.fields}
        arrow = []
        for name, kind in wanted.fields:
            inner = there.pop(name, None)
            if inner is None:
                problems.append(f"column {path}.{name} ({kind}) is missing in the table")
                continue
            part = _part(f"{path}.{name}", inner.field_type, inner.required, kind, problems)
            arrow.append(_arrow_field(name, part, inner.field_id, required=False))
        problems += [
            f"column {path}.{inner.name} is required in the table and not in the spec"
            for inner in there.values()
            if inner.required
        ]
        return pa.struct(arrow)
    if isinstance(wanted, ListOf) and isinstance(found, ListType):
        part = _part(f"{path}.element", found.element_type, found.element_required, wanted.element, problems)
        return pa.list_(_arrow_field("element", part, found.element_id, required=False))
    if isinstance(wanted, MapOf) and isinstance(found, MapType) and str(found.key_type) == "string":
        part = _part(f"{path}.value", found.value_type, found.value_required, wanted.value, problems)
        key = _arrow_field("key", pa.string(), found.key_id, required=True)
        return pa.map_(key, _arrow_field("value", part, found.value_id, required=False))
    if str(found) != str(wanted):
        nested = isinstance(found, StructType | ListType | MapType)
        shown = type_text(found.model_dump(mode="json")) if nested else str(found)
        problems.append(f"column {path} is {shown} in the table, {wanted} in the spec")
    return target_type(wanted)


def _part(
    path: str, found: IcebergType, required: bool, wanted: ColumnType, problems: list[str]
) -> pa.DataType:
    if required:
        problems.append(f"column {path} is required in the table; in a spec nested values are optional")
    return _written(path, found, wanted, problems)


def layout_version(state: TableState) -> tuple[object, ...]:
    """What the layout comes from: changes when it is stale."""
    m = state.metadata
    ids = (m.get("current-schema-id"), m.get("default-spec-id"), m.get("default-sort-order-id"))
    return (state.uuid, *ids, state.format_version, stated(state.properties))


def _order(metadata: Json) -> SortOrder:
    """The default sort order; none if the metadata have none."""
    wanted = metadata.get("default-sort-order-id", 0)
    found = [order for order in metadata.get("sort-orders") or () if order["order-id"] == wanted]
    return SortOrder.model_validate(found[0]) if found else UNSORTED_SORT_ORDER


def _stored(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_fixed_size_binary(kind):
        return pa.uuid()
    if pa.types.is_struct(kind):
        return pa.struct([inner.with_type(_stored(inner.type)) for inner in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_stored(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field, kind.item_field.with_type(_stored(kind.item_type)))
    return kind


def _struct(kind: IcebergType) -> list[tuple[str, str]] | None:
    if not isinstance(kind, StructType):
        return None
    return [(f.name, str(f.field_type)) for f in kind.fields]


def _arrow_field(name: str, kind: pa.DataType, field_id: int, required: bool) -> pa.Field:
    return pa.field(name, kind, nullable=not required, metadata={FIELD_ID_KEY: str(field_id).encode()})
