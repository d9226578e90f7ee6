"""Changes of a table's schema that a spec asks for: columns are added, widened and made optional.

Iceberg specification, "Schema Evolution": these changes need no file to be written again. Nothing else is
changed, and no column is dropped or renamed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tarn.adapters.write_schema import TRACE_FIELDS, current_schema, layout_of
from tarn.core.errors import InvalidSpecError
from tarn.core.spec import TRACE_COLUMN, FieldSpec
from tarn.core.table_state import CommitRequest, Json, TableState

_WIDER = {("int", "long"), ("float", "double")}
_DECIMAL = re.compile(r"decimal\((\d+), ?(\d+)\)")


def evolution(
    state: TableState, fields: Sequence[FieldSpec], *, trace: bool, table: str
) -> CommitRequest | None:
    """The commit that fits the table's schema to these columns; None if it fits already.

    New columns are optional, whatever the spec says: rows that are there have no value. The spec's own
    `required` still holds for every record.

    Args:
        state: version of the table.
        fields: columns of the spec.
        trace: whether the trace column is written.
        table: name of the table, for error messages.

    Raises:
        InvalidSpecError: no such change suffices; lists every difference that would remain.
    """
    former = current_schema(state.metadata)
    columns: list[Json] = [dict(column) for column in former["fields"]]
    last = int(state.metadata["last-column-id"])
    _relax(columns, fields, frozenset(former.get("identifier-field-ids") or ()))
    for column in _missing(columns, fields, trace=trace, table=table):
        last += 1
        column["id"] = last
        if isinstance(column["type"], dict):
            for inner in column["type"]["fields"]:
                last += 1
                inner["id"] = last
        columns.append(column)
    if columns == former["fields"]:
        layout_of(state, fields, trace=trace, table=table)
        return None
    schema = {**former, "fields": columns, "schema-id": _next_id(state.metadata)}
    metadata = {
        **state.metadata,
        "schemas": [*state.metadata["schemas"], schema],
        "current-schema-id": schema["schema-id"],
    }
    layout_of(TableState(metadata), fields, trace=trace, table=table)
    return CommitRequest(
        requirements=[
            {"type": "assert-table-uuid", "uuid": state.uuid},
            {"type": "assert-current-schema-id", "current-schema-id": former.get("schema-id", 0)},
            {
                "type": "assert-last-assigned-field-id",
                "last-assigned-field-id": int(state.metadata["last-column-id"]),
            },
        ],
        updates=[
            {"action": "add-schema", "schema": schema, "last-column-id": last},
            {"action": "set-current-schema", "schema-id": -1},
        ],
    )


def changes(before: TableState, after: TableState) -> list[str]:
    """What differs between the columns of two versions of a table, for people."""
    old = {column["id"]: column for column in current_schema(before.metadata)["fields"]}
    found = []
    for column in current_schema(after.metadata)["fields"]:
        name, was = column["name"], old.get(column["id"])
        if was is None:
            kind = column["type"] if isinstance(column["type"], str) else column["type"]["type"]
            found.append(f"{name} ({kind}) added")
            continue
        if was["type"] != column["type"]:
            found.append(f"{name} widened from {was['type']} to {column['type']}")
        if was["required"] and not column["required"]:
            found.append(f"{name} made optional")
    return found


def _relax(columns: Sequence[Json], fields: Sequence[FieldSpec], identifiers: frozenset[int]) -> None:
    """Widen the types and drop the requirements that the spec does not have."""
    by_name = {field.name: field for field in fields}
    for column in columns:
        field = by_name.get(column["name"])
        if field is not None and _widens(column["type"], field.type):
            column["type"] = field.type
        if column["required"] and (field is None or not field.required) and column["id"] not in identifiers:
            column["required"] = False


def _widens(former: object, wanted: str) -> bool:
    if not isinstance(former, str):
        return False
    if (former, wanted) in _WIDER:
        return True
    old, new = _DECIMAL.fullmatch(former), _DECIMAL.fullmatch(wanted)
    return old is not None and new is not None and old[2] == new[2] and int(old[1]) < int(new[1])


def _missing(
    columns: Sequence[Json], fields: Sequence[FieldSpec], *, trace: bool, table: str
) -> Iterator[Json]:
    """The spec's columns that the table lacks, without ids.

    Raises:
        InvalidSpecError: a column would differ from one of the table by upper and lower case only.
    """
    there = {column["name"] for column in columns}
    folded = {name.lower(): name for name in there}
    for field in fields:
        if field.name in there:
            continue
        other = folded.get(field.name.lower())
        if other is not None:
            raise InvalidSpecError(
                f"column {field.name} of the spec is {other} in table {table}; engines that do not "
                f"distinguish upper and lower case could read neither: write {other} in the spec",
                table=table,
            )
        yield {"name": field.name, "type": field.type, "required": False}
    if trace and TRACE_COLUMN not in there:
        inner: list[Json] = [
            {"name": name, "type": kind, "required": False, "doc": doc} for name, kind, doc in TRACE_FIELDS
        ]
        yield {"name": TRACE_COLUMN, "type": {"type": "struct", "fields": inner}, "required": False}


def _next_id(metadata: Json) -> int:
    return 1 + max(int(schema.get("schema-id", 0)) for schema in metadata["schemas"])
