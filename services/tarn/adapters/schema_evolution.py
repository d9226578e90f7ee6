"""Changes of a table's schema that a spec asks for: columns are added, widened and made optional.

Iceberg specification, "Schema Evolution": these changes need no file to be written again. They reach into
structs, lists and maps. Nothing else is changed, and no column is dropped or renamed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tarn.adapters.write_schema import TRACE_FIELDS, layout_of
from tarn.core.column_types import ColumnType, ListOf, MapOf, Primitive, Struct, iceberg_type, type_text
from tarn.core.errors import InvalidSpecError
from tarn.core.spec import TRACE_COLUMN, FieldSpec
from tarn.core.table_columns import partition_names
from tarn.core.table_state import CommitRequest, Json, TableState, current_schema

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
    last = int(state.metadata["last-column-id"])

    def next_id() -> int:
        nonlocal last
        last += 1
        return last

    identifiers = frozenset(former.get("identifier-field-ids") or ())
    change = _Change(table, identifiers, partition_names(state), next_id)
    columns = [change.of_column(column, fields) for column in former["fields"]]
    columns += change.missing(columns, fields, trace=trace)
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
            found.append(f"{name} ({type_text(column['type'])}) added")
            continue
        if was["type"] != column["type"]:
            verb = "widened" if isinstance(was["type"], str) else "altered"
            found.append(f"{name} {verb} from {type_text(was['type'])} to {type_text(column['type'])}")
        if was["required"] and not column["required"]:
            found.append(f"{name} made optional")
    return found


@dataclass(frozen=True, slots=True)
class _Change:
    """What a spec changes in the columns of a table.

    Attributes:
        table: name of the table, for error messages.
        identifiers: ids of the identifier fields, which stay required.
        partitions: names of the partition fields, which no new column may have.
        next_id: makes the id of a new field.
    """

    table: str
    identifiers: frozenset[int]
    partitions: frozenset[str]
    next_id: Callable[[], int]

    def of_column(self, column: Json, fields: Sequence[FieldSpec]) -> Json:
        """The column with the type, and without the requirement, that the spec has."""
        field = next((field for field in fields if field.name == column["name"]), None)
        kind = column["type"] if field is None else self._type(column["type"], field.kind, field.name)
        return self._relaxed({**column, "type": kind}, required=field is not None and field.required)

    def missing(self, columns: Sequence[Json], fields: Sequence[FieldSpec], *, trace: bool) -> Iterator[Json]:
        """The spec's columns that the table lacks.

        Raises:
            InvalidSpecError: a column would differ from one of the table by upper and lower case only, or
                have the name of a partition field.
        """
        there = [column["name"] for column in columns]
        for field in fields:
            if field.name not in there:
                yield self._added(field.name, field.kind, there, "")
        if trace and TRACE_COLUMN not in there:
            number = self.next_id()
            inner: list[Json] = [
                {"id": self.next_id(), "name": name, "type": kind, "required": False, "doc": doc}
                for name, kind, doc in TRACE_FIELDS
            ]
            kind = {"type": "struct", "fields": inner}
            yield {"id": number, "name": TRACE_COLUMN, "type": kind, "required": False}

    def _type(self, former: str | Json, wanted: ColumnType, path: str) -> str | Json:
        """The type widened if it is primitive, with the missing fields if it is a struct; else as it is."""
        if isinstance(former, str):
            return str(wanted) if isinstance(wanted, Primitive) and _widens(former, wanted.name) else former
        if former["type"] == "struct" and isinstance(wanted, Struct):
            kinds, fields = dict(wanted.fields), []
            for inner in former["fields"]:
                kind = inner["type"]
                if inner["name"] in kinds:
                    kind = self._type(kind, kinds.pop(inner["name"]), f"{path}.{inner['name']}")
                fields.append(self._relaxed({**inner, "type": kind}, required=False))
            there = [inner["name"] for inner in former["fields"]]
            fields += [self._added(name, kind, there, f"{path}.") for name, kind in kinds.items()]
            return {**former, "fields": fields}
        if former["type"] == "list" and isinstance(wanted, ListOf):
            element = self._type(former["element"], wanted.element, f"{path}.element")
            return {**former, "element": element, "element-required": False}
        if former["type"] == "map" and isinstance(wanted, MapOf):
            value = self._type(former["value"], wanted.value, f"{path}.value")
            return {**former, "value": value, "value-required": False}
        return former

    def _relaxed(self, field: Json, *, required: bool) -> Json:
        stays = field["required"] and (required or bool(self.identifiers & _ids(field)))
        return {**field, "required": stays}

    def _added(self, name: str, kind: ColumnType, there: Sequence[str], path: str) -> Json:
        other = next((other for other in there if other.lower() == name.lower()), None)
        if other is not None:
            raise InvalidSpecError(
                f"column {path}{name} of the spec is {path}{other} in table {self.table}; engines that do "
                f"not distinguish upper and lower case could read neither: write {other} in the spec",
                table=self.table,
            )
        if f"{path}{name}" in self.partitions:
            raise InvalidSpecError(
                f"column {path}{name} of the spec has the name of a partition field of table {self.table}, "
                "also if that is of a former partitioning; Spark and Trino could not open a table with both: "
                "give the column another name, or the renamed column of that partition its former one",
                table=self.table,
            )
        number = self.next_id()
        return {"id": number, "name": name, "type": iceberg_type(kind, self.next_id), "required": False}


def _ids(field: Json) -> set[int]:
    """The id of a field, and of all fields of the structs within it."""
    kind = field["type"]
    inner = kind["fields"] if isinstance(kind, dict) and kind["type"] == "struct" else ()
    return {field["id"]}.union(*map(_ids, inner))


def _widens(former: str, wanted: str) -> bool:
    if (former, wanted) in _WIDER:
        return True
    old, new = _DECIMAL.fullmatch(former), _DECIMAL.fullmatch(wanted)
    return old is not None and new is not None and old[2] == new[2] and int(old[1]) < int(new[1])


def _next_id(metadata: Json) -> int:
    return 1 + max(int(schema.get("schema-id", 0)) for schema in metadata["schemas"])
