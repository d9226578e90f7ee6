"""Columns for a table that does not exist yet, from the first messages of a topic; pure.

Every column is optional. A mapping applies: it names columns, gives their types and leaves keys out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tarn.core.arrow_parser import NoRowError, read_row
from tarn.core.avro_parser import own_schema
from tarn.core.avro_schema import AvroType, parse_schema
from tarn.core.avro_values import AvroValueError, arrow_type
from tarn.core.cast_rules import takes
from tarn.core.column_types import (
    DEPTH_MAX,
    FIELD_NAME,
    STRUCT_FIELDS_MAX,
    ColumnType,
    ListOf,
    MapOf,
    Primitive,
    Struct,
    parse_type,
)
from tarn.core.convert import target_type
from tarn.core.errors import InvalidSpecError
from tarn.core.infer import Inferred, key_types
from tarn.core.spec import TRACE_COLUMN, FieldSpec, IngestorBody
from tarn.core.spec.fields import FIELDS_MAX

Types = dict[str, ColumnType]
_WIDER = {("int", "long"): "long", ("float", "double"): "double"}
_UNSIGNED_64 = "decimal(20, 0)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """What a sample of messages has.

    Attributes:
        types: key of the messages to its type, in their order.
        notes: what the types cannot hold, for people.
    """

    types: Mapping[str, ColumnType]
    notes: tuple[str, ...]


def needs_messages(body: IngestorBody) -> bool:
    """Whether columns are inferred from messages; not if the spec has the schema of their writer."""
    return body.source.avro is None or body.source.avro.avro_schema is None


def sampled(body: IngestorBody, messages: Sequence[bytes | None]) -> Sampled:
    """What the messages have by their format; those that cannot be read are passed over."""
    if body.source.format == "json":
        types, notes = key_types(messages, guess=False)
        return Sampled(types=types, notes=tuple(notes))
    schemas: list[list[tuple[str, pa.DataType | str]]]
    if body.source.avro is None:
        schemas = _arrow_schemas(messages)
    elif body.source.avro.avro_schema is not None:
        schemas = [_avro_fields(parse_schema(body.source.avro.avro_schema))]
    else:
        schemas = _container_schemas(messages)
    found: Types = {}
    remarks: dict[str, None] = {}
    for fields in schemas:
        for key, kind in fields:
            column = kind if isinstance(kind, str) else _column(kind, 1)
            if isinstance(column, str):
                remarks[f"{key!r}: left out, {column}"] = None
                continue
            found[key] = _merged(found[key], column) if key in found else column
    return Sampled(types=found, notes=tuple(remarks))


def columns_for(
    body: IngestorBody,
    sample: Sampled,
    *,
    known: Sequence[FieldSpec] | None = None,
    taken: frozenset[str] = frozenset(),
) -> Inferred:
    """The columns of a new table, or those of a table with what it lacks.

    Args:
        body: the spec.
        sample: what messages have.
        known: columns of the table; their types are not changed, but for the fields that structs lack. Values
            that do not fit them are for the decoder, and keys beyond the limit get no column. None if there
            is no table yet.
        taken: names that the table has for something else than these columns; such keys get none.

    Raises:
        ValueError: the mapping, the partitioning or the event time does not go with them, or a new table
            would have too many.
    """
    mapping = body.mapping
    rest = () if mapping.rest is None else (mapping.rest,)
    if known is not None:
        # The table may be partitioned otherwise by now, but the spec must fit its columns.
        taken |= {rule.name for rule in body.table.partitioning if rule.transform != "identity"}
    named = frozenset((*mapping.rename.values(), *mapping.cast, *rest))
    found = _Columns(known or (), named=named, taken=taken)
    of_table = frozenset(found.fields)

    def kind_for(column: str, kind: ColumnType) -> ColumnType:
        return kind if column in of_table else _cast(column, kind, body)

    targets = frozenset(mapping.rename.values())
    renamed = {path.split(".")[0] for path in mapping.rename}
    for key, kind in sample.types.items():
        for path, column in mapping.rename.items():
            if path.split(".")[0] == key and (inner := _at(sample.types, path)) is not None:
                found.add(column, kind_for(column, inner))
        if key in renamed or key in mapping.drop or key == mapping.rest:
            continue
        if key in targets:
            found.notes.append(f"{key!r}: left out, as mapping.rename fills the column of this name")
        elif found.may_be(key):
            found.add(key, kind_for(key, kind))
    for column, cast in mapping.cast.items():
        if column not in found.fields:
            found.add(column, parse_type(cast))
    for path, column in mapping.rename.items():
        if column not in found.fields:
            raise ValueError(
                f"mapping.rename fills {column} from {path}, which no message of the sample has: give its "
                f"type by mapping.cast: {{{column}: …}}, or leave it out"
            )
    if found.fields and mapping.rest is not None and mapping.rest not in found.fields:
        found.add(mapping.rest, Primitive("string"))
    if found.over and known is None:
        raise ValueError(
            f"{found.over + len(found.fields):,} columns are more than {FIELDS_MAX:,}: name those that you "
            "need in schema.fields, where mapping.rest keeps the others, or leave keys out by mapping.drop"
        )
    fields = tuple(found.fields.values())
    if fields:
        body.check_columns(mapping.of_table(fields), of_table=of_table)
    notes = (*sample.notes, *found.notes)
    return Inferred(fields=fields, notes=notes, over=found.over, taken=tuple(found.refused))


def columns_of_writer(body: IngestorBody, *, file: str) -> tuple[FieldSpec, ...]:
    """The columns that a table will be created with; none if that is only known from messages.

    Raises:
        InvalidSpecError: the schema of the writer that the spec has does not go with the rest of it.
    """
    if not body.infers or needs_messages(body):
        return ()
    try:
        return columns_for(body, sampled(body, ())).fields
    except ValueError as e:
        raise InvalidSpecError(f"{file}: spec: {e}", file=file) from e


class _Columns:
    """Columns by name, in order, and what was left out.

    Args:
        known: columns of the table.
        named: columns that the mapping names; they are added whatever the limit.
        taken: names that no column can have which is added, in any case of their letters.

    Attributes:
        over: number of keys that are left out because there are too many.
        refused: keys that are left out because their names are taken.
    """

    def __init__(self, known: Sequence[FieldSpec], *, named: frozenset[str], taken: frozenset[str]) -> None:
        self.fields = {field.name: field for field in known}
        self.notes: list[str] = []
        self.over = 0
        self.refused: list[str] = []
        own = {path for field in known for path in _paths(field.name, field.kind)}
        self._taken = {name.lower() for name in taken - own}
        self._lower = {name.lower() for name in self.fields}
        self._named = named
        self._room = FIELDS_MAX - len(named | self.fields.keys())

    def may_be(self, key: str) -> bool:
        """Whether the key is or can be a column of this name; if not, it is noted or counted."""
        if not re.fullmatch(FIELD_NAME, key) or key.lower() == TRACE_COLUMN:
            self.notes.append(
                f"{key!r}: left out, as no column can have this name; mapping.rename gives it another"
            )
        elif key not in self.fields and key.lower() in self._lower:
            self.notes.append(f"{key!r}: left out, as another column differs by upper and lower case only")
        elif key not in self.fields and key.lower() in self._taken:
            self.refused.append(key)
        elif key not in self.fields and key not in self._named and self._room <= 0:
            self.over += 1
        else:
            return True
        return False

    def add(self, name: str, kind: ColumnType) -> None:
        """Add a column, or to a column of that name the fields that its structs lack."""
        known, free = self.fields.get(name), self._free(name, kind)
        if free is None:
            return
        if known is None:
            self.fields[name] = FieldSpec(name=name, type=str(free))
            self._lower.add(name.lower())
            self._room -= name not in self._named
        else:
            wider = _with_fields(known.kind, free)
            self.fields[name] = known.model_copy(update={"type": str(wider)})

    def _free(self, path: str, kind: ColumnType) -> ColumnType | None:
        """A type without the fields whose names are taken; None if a struct has no others."""
        if isinstance(kind, Struct):
            found = []
            for name, inner in kind.fields:
                if f"{path}.{name}".lower() in self._taken:
                    self.refused.append(f"{path}.{name}")
                elif (left := self._free(f"{path}.{name}", inner)) is not None:
                    found.append((name, left))
            return Struct(tuple(found)) if found or not kind.fields else None
        if isinstance(kind, ListOf):
            left = self._free(f"{path}.element", kind.element)
            return None if left is None else ListOf(left)
        if isinstance(kind, MapOf):
            left = self._free(f"{path}.value", kind.value)
            return None if left is None else MapOf(left)
        return kind


def _paths(path: str, kind: ColumnType) -> Iterator[str]:
    """Names of a column and of the fields of its structs, as Iceberg's schemas have them."""
    yield path
    if isinstance(kind, Struct):
        for name, inner in kind.fields:
            yield from _paths(f"{path}.{name}", inner)
    elif isinstance(kind, ListOf):
        yield from _paths(f"{path}.element", kind.element)
    elif isinstance(kind, MapOf):
        yield from _paths(f"{path}.value", kind.value)


def _cast(column: str, kind: ColumnType, body: IngestorBody) -> ColumnType:
    """The type that a column gets for values of this type."""
    cast = body.mapping.cast.get(column)
    if cast is None or str(kind) == cast:
        return kind
    if not isinstance(kind, Primitive) or not _may_be_cast(kind, cast, body):
        raise ValueError(
            f"mapping.cast makes {column} a {cast}, and its values are {kind}: no such value can be cast; "
            "choose another type, or leave the cast out"
        )
    return parse_type(cast)


def _may_be_cast(kind: Primitive, cast: str, body: IngestorBody) -> bool:
    source = target_type(kind)
    if body.source.format == "json" and pa.types.is_floating(source):
        # The digits are read as they are sent, and 1.0 is a whole number.
        return cast in ("int", "long", "float", "double", "string") or cast.startswith("decimal")
    return takes(cast, "iso8601", source)


def _at(types: Mapping[str, ColumnType], path: str) -> ColumnType | None:
    """The type of the value at a path; None if the sample has none."""
    first, *keys = path.split(".")
    here = types.get(first)
    for key in keys:
        here = dict(here.fields).get(key) if isinstance(here, Struct) else None
    return here


def _merged(one: ColumnType, other: ColumnType) -> ColumnType:
    """A type for the values of both; the first where there is none."""
    if isinstance(one, Struct) and isinstance(other, Struct):
        return _joined(one, other, _merged)
    if isinstance(one, ListOf) and isinstance(other, ListOf):
        return ListOf(_merged(one.element, other.element))
    if isinstance(one, MapOf) and isinstance(other, MapOf):
        return MapOf(_merged(one.value, other.value))
    if isinstance(one, Primitive) and isinstance(other, Primitive):
        wider = _WIDER.get((one.name, other.name)) or _WIDER.get((other.name, one.name))
        return Primitive(wider) if wider is not None else one
    return one


def _with_fields(known: ColumnType, found: ColumnType) -> ColumnType:
    """A type with the fields that its structs lack; nothing else is changed."""
    if isinstance(known, Struct) and isinstance(found, Struct):
        return _joined(known, found, _with_fields)
    if isinstance(known, ListOf) and isinstance(found, ListOf):
        return ListOf(_with_fields(known.element, found.element))
    if isinstance(known, MapOf) and isinstance(found, MapOf):
        return MapOf(_with_fields(known.value, found.value))
    return known


def _joined(one: Struct, other: Struct, same: Callable[[ColumnType, ColumnType], ColumnType]) -> Struct:
    """A struct with the fields of both, as many as it may have; `same` joins those with the same name."""
    fields, lower = dict(one.fields), {name.lower() for name, _ in one.fields}
    for name, kind in other.fields:
        if name in fields:
            fields[name] = same(fields[name], kind)
        elif name.lower() not in lower and len(fields) < STRUCT_FIELDS_MAX:
            fields[name] = kind
            lower.add(name.lower())
    return Struct(tuple(fields.items()))


def _arrow_schemas(messages: Sequence[bytes | None]) -> list[list[tuple[str, pa.DataType | str]]]:
    found: dict[pa.Schema, None] = {}
    for message in messages:
        try:
            found[read_row(message or b"").schema] = None
        except NoRowError:
            continue
    return [[(field.name, field.type) for field in schema] for schema in found]


def _container_schemas(messages: Sequence[bytes | None]) -> list[list[tuple[str, pa.DataType | str]]]:
    found: dict[str, None] = {}
    for message in messages:
        try:
            found[own_schema(message or b"")] = None
        except AvroValueError:
            continue
    return [_avro_fields(parse_schema(schema)) for schema in found]


def _avro_fields(schema: AvroType) -> list[tuple[str, pa.DataType | str]]:
    """The fields of a record with their Arrow types, or why they have none."""
    found: list[tuple[str, pa.DataType | str]] = []
    for name, kind in schema.fields:
        try:
            found.append((name, arrow_type(kind, uuid=pa.uuid())))
        except ValueError as e:
            found.append((name, f"as it is {e}"))
    return found


def _column(kind: pa.DataType, depth: int) -> ColumnType | str:
    """The column's type for an Arrow type, or why there is none."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        if kind.extension_name == "arrow.uuid":
            return Primitive("uuid")
        return _column(kind.storage_type, depth)
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _column(kind.value_type, depth)
    if depth > DEPTH_MAX and types.is_nested(kind):
        return f"as it is nested more than {DEPTH_MAX} levels deep"
    if types.is_struct(kind):
        return _struct(kind, depth)
    if types.is_map(kind):
        if _column(kind.key_type, depth) != Primitive("string"):
            return f"as the keys of the map are {kind.key_type}, not text"
        value = _column(kind.item_type, depth + 1)
        return value if isinstance(value, str) else MapOf(value)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        element = _column(kind.value_type, depth + 1)
        return element if isinstance(element, str) else ListOf(element)
    name = _primitive(kind)
    return Primitive(name) if name is not None else f"as no column holds {kind}"


def _struct(kind: pa.StructType, depth: int) -> ColumnType | str:
    fields: Types = {}
    lower: set[str] = set()
    for inner in kind:
        found = _column(inner.type, depth + 1)
        if isinstance(found, str) or not re.fullmatch(FIELD_NAME, inner.name):
            continue
        if inner.name.lower() not in lower:
            fields[inner.name] = found
            lower.add(inner.name.lower())
    if len(fields) > STRUCT_FIELDS_MAX:
        return f"as the {len(fields):,} fields of a struct are more than {STRUCT_FIELDS_MAX:,}"
    return Struct(tuple(fields.items())) if fields else "as nothing in its structs can be read"


def _primitive(kind: pa.DataType) -> str | None:
    types = pa.types
    if types.is_timestamp(kind):
        return "timestamp" if kind.tz is None else "timestamptz"
    if types.is_decimal(kind):
        fits = 0 <= kind.scale <= kind.precision <= 38
        return str(parse_type(f"decimal({kind.precision}, {kind.scale})")) if fits else None
    tests = (
        ("boolean", types.is_boolean(kind)),
        (_UNSIGNED_64, types.is_uint64(kind)),
        ("long", types.is_int64(kind) or types.is_uint32(kind)),
        ("int", types.is_integer(kind)),
        ("double", types.is_float64(kind)),
        ("float", types.is_floating(kind)),
        ("date", types.is_date(kind)),
        ("string", types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)),
        (
            "binary",
            types.is_binary(kind)
            or types.is_large_binary(kind)
            or types.is_binary_view(kind)
            or types.is_fixed_size_binary(kind),
        ),
    )
    return next((name for name, fits in tests if fits), None)
