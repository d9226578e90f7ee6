"""Columns that a stream fills in a table whose spec has no schema: those of the table itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tarn.core.column_types import FIELD_NAME, type_of, type_text
from tarn.core.errors import InvalidSpecError
from tarn.core.spec import TRACE_COLUMN, FieldSpec, IngestorBody
from tarn.core.table_state import TableState, current_schema


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumns:
    """Columns of a table.

    Attributes:
        fields: those that messages can fill, each from the key of its name.
        left_out: reasons why the others are not filled; they are optional.
    """

    fields: tuple[FieldSpec, ...]
    left_out: tuple[str, ...]


def columns_of(state: TableState, *, table: str) -> TableColumns:
    """The columns of a table's current schema.

    Args:
        state: version of the table.
        table: name of the table, for error messages.

    Raises:
        InvalidSpecError: a required column cannot be filled, or none can be.
    """
    fields: list[FieldSpec] = []
    left_out: list[str] = []
    problems: list[str] = []
    for column in current_schema(state.metadata)["fields"]:
        name = column["name"]
        if name == TRACE_COLUMN:
            continue
        try:
            if not re.fullmatch(FIELD_NAME, name):
                raise ValueError("its name has other characters than letters, digits and _")
            kind = str(type_of(column["type"]))
        except ValueError as e:
            reason = f"column {name} ({type_text(column['type'])}): {e}"
            (problems if column["required"] else left_out).append(reason)
            continue
        fields.append(FieldSpec(name=name, type=kind, required=bool(column["required"])))
    if not fields and not problems:
        problems.append("it has no column that a message could fill")
    if problems:
        raise InvalidSpecError(
            f"table {table} cannot be filled without a schema in the spec: {'; '.join(problems)}; name the "
            "columns in the spec, or alter the table",
            table=table,
            problems=problems,
        )
    return TableColumns(fields=tuple(fields), left_out=tuple(left_out))


def partition_names(state: TableState) -> frozenset[str]:
    """Names of the partition fields of a table, also of its former specs.

    No column but a field's own source may have its name: Iceberg's Java library refuses such a table.
    """
    specs = state.metadata.get("partition-specs") or ()
    return frozenset(field["name"] for spec in specs for field in spec["fields"])


def names_taken(state: TableState) -> frozenset[str]:
    """Names that no column can have which is added to a table: those of its columns and partition fields."""
    columns = current_schema(state.metadata)["fields"]
    return partition_names(state).union(column["name"] for column in columns)


def mapped(fields: Sequence[FieldSpec], body: IngestorBody, *, table: str) -> tuple[FieldSpec, ...]:
    """Columns of a table as the spec's mapping fills them.

    Args:
        fields: columns of the table that messages can fill.
        body: the spec, which names no columns.
        table: name of the table, for error messages.

    Raises:
        InvalidSpecError: the mapping does not go with them, or leaves a column of event time empty.
    """
    try:
        found = body.mapping.of_table(fields)
    except ValueError as e:
        raise InvalidSpecError(f"table {table} and the spec's mapping: {e}", table=table) from e
    if fields and not found:
        raise InvalidSpecError(
            f"table {table} and the spec's mapping: no column is left that a message could fill; drop less",
            table=table,
        )
    left = {field.name for field in fields} - {field.name for field in found}
    event_time = body.event_time.column if body.event_time is not None else None
    for what, column in (("eventTime", event_time), ("retention", body.retention_column)):
        if column in left:
            raise InvalidSpecError(
                f"table {table} and the spec's mapping: {what} goes by column {column}, which mapping leaves "
                "empty; rename a value to it, or do not drop its key",
                table=table,
            )
    return found
