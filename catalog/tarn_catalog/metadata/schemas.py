"""Schemas, partition specs and sort orders as parsed JSON: validation and assignment of field ids. Pure.

Sections of the Iceberg table specification: "Schemas and Data Types", "Partitioning" with "Partition
Transforms", "Sorting", and "Appendix C: JSON serialization" (https://iceberg.apache.org/spec/). The functions
work on that JSON itself because pyiceberg's models lack types of format v3 (variant).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tarn.core import transforms
from tarn.core.errors import InvalidError

if TYPE_CHECKING:
    from tarn_catalog.metadata.types import TableMetadata

Json = dict[str, Any]

FORMAT_VERSION_MAX = 3
FIRST_PARTITION_ID = 1000
DEPTH_MAX = 64

_PRIMITIVE = re.compile(
    r"boolean|int|long|float|double|date|time|timestamp|timestamptz|timestamp_ns|timestamptz_ns|string|uuid|"
    r"binary|variant|unknown|fixed\[\d+\]|decimal\(\s*\d+\s*,\s*\d+\s*\)|geometry(\(.*\))?|geography(\(.*\))?"
)
_SINCE_V3 = re.compile(r"timestamp_ns|timestamptz_ns|variant|unknown|geometry.*|geography.*")
_TRANSFORM = re.compile(r"identity|year|month|day|hour|void|(bucket|truncate)\[(?P<width>[1-9]\d*)\]")
WIDTH_MAX = 2_147_483_647


def walk(schema: Json) -> Iterator[tuple[int, str, Any, Json]]:
    """Yield every field at any depth as (id, dotted path, type, the JSON object that declares it).

    Raises:
        InvalidError: the JSON is not a valid schema.
    """
    yield from _walk_struct(schema, "", 0)


def _walk_struct(struct: Json, prefix: str, depth: int) -> Iterator[tuple[int, str, Any, Json]]:
    if depth > DEPTH_MAX:
        raise InvalidError(f"Invalid schema: nested deeper than {DEPTH_MAX} levels; flatten it")
    fields = struct.get("fields")
    if struct.get("type") != "struct" or not isinstance(fields, list):
        raise InvalidError(f"Invalid schema: {prefix or 'the root'} is no struct with a list of fields")
    names: set[str] = set()
    for field in fields:
        name = field.get("name") if isinstance(field, dict) else None
        if not isinstance(name, str) or not name:
            raise InvalidError(f"Invalid schema: a field of {prefix or 'the root'} has no name")
        if type(field.get("id")) is not int or "type" not in field:
            raise InvalidError(f"Invalid schema: the field {prefix}{name} has no id or no type")
        if not isinstance(field.get("required"), bool) or not isinstance(field.get("doc", ""), str | None):
            raise InvalidError(f"Invalid schema: required of {prefix}{name} is no bool or doc is no text")
        if name in names:
            raise InvalidError(f"Invalid schema: multiple fields for name {prefix}{name}; rename one")
        names.add(name)
        yield field["id"], f"{prefix}{name}", field["type"], field
        yield from _walk_type(field["type"], f"{prefix}{name}.", depth + 1)


def _walk_type(kind: Any, prefix: str, depth: int) -> Iterator[tuple[int, str, Any, Json]]:
    if depth > DEPTH_MAX:
        raise InvalidError(f"Invalid schema: nested deeper than {DEPTH_MAX} levels; flatten it")
    if isinstance(kind, str):
        if not _PRIMITIVE.fullmatch(kind):
            raise InvalidError(f"Invalid schema: {prefix[:-1]} has the unknown type {kind!r}")
        return
    if not isinstance(kind, dict):
        raise InvalidError(f"Invalid schema: the type of {prefix[:-1]} is neither a name nor an object")
    if kind.get("type") == "struct":
        yield from _walk_struct(kind, prefix, depth)
        return
    parts = {"list": ("element",), "map": ("key", "value")}.get(str(kind.get("type")))
    if parts is None:
        raise InvalidError(f"Invalid schema: {prefix[:-1]} has the unknown type {kind.get('type')!r}")
    for part in parts:
        if type(kind.get(f"{part}-id")) is not int or part not in kind:
            raise InvalidError(f"Invalid schema: {prefix}{part} has no id or no type")
        if part != "key" and not isinstance(kind.get(f"{part}-required"), bool):
            raise InvalidError(f"Invalid schema: {part}-required of {prefix[:-1]} is no bool")
        yield kind[f"{part}-id"], f"{prefix}{part}", kind[part], kind
        yield from _walk_type(kind[part], f"{prefix}{part}.", depth + 1)


def check_schema(schema: Json, format_version: int) -> int:
    """Validate a schema for a format version and return its highest field id, 0 without fields.

    Specification: "Schemas and Data Types", with "Identifier Field IDs" and "Default values".

    Raises:
        InvalidError: the JSON is not a valid schema, a field id is used twice, an identifier field is
            missing, or a type or a default value requires a later format version.
    """
    by_id: dict[int, str] = {}
    problems: list[str] = []
    for field_id, path, kind, field in walk(schema):
        if field_id in by_id:
            raise InvalidError(
                f"Invalid schema: Multiple entries with same key: {field_id}={path} and "
                f"{field_id}={by_id[field_id]}"
            )
        by_id[field_id] = path
        if format_version < 3:
            if isinstance(kind, str) and _SINCE_V3.fullmatch(kind):
                problems.append(f"Invalid type for {path}: {kind} is not supported until v3")
            if field.get("initial-default") is not None:
                problems.append(
                    f"Invalid initial default for {path}: non-null default "
                    f"({field['initial-default']}) is not supported until v3"
                )
    if problems:
        raise InvalidError(f"Invalid schema for v{format_version}:\n- " + "\n- ".join(problems))
    for field_id in _identifiers(schema):
        if field_id not in by_id:
            raise InvalidError(f"Invalid schema: cannot add field {field_id} as an identifier: not found")
    return max(by_id, default=0)


def _identifiers(schema: Json) -> list[int]:
    found = schema.get("identifier-field-ids") or []
    if not isinstance(found, list) or not all(type(field_id) is int for field_id in found):
        raise InvalidError("Invalid schema: identifier-field-ids is no list of numbers")
    return found


def same_schema(a: Json, b: Json) -> bool:
    """Return whether two schemas have equal fields and identifier fields, ignoring their schema ids."""
    return a["fields"] == b["fields"] and sorted(a.get("identifier-field-ids") or ()) == sorted(
        b.get("identifier-field-ids") or ()
    )


def fresh_schema(schema: Json) -> tuple[Json, dict[int, int]]:
    """Return the schema with new field ids from 1, assigned level by level, and the map from old to new ids.

    Specification: "Schemas and Data Types" (field ids are unique in a schema). The new schema id is 0.

    Raises:
        InvalidError: the JSON is not a valid schema, or an identifier field is missing.
    """
    new_ids: dict[int, int] = {}

    def give(old: int) -> int:
        new_ids[old] = len(new_ids) + 1
        return new_ids[old]

    list(walk(schema))
    fields = _fresh_struct(schema, give)["fields"]
    fresh: Json = {"type": "struct", "schema-id": 0, "fields": fields}
    identifiers = _identifiers(schema)
    if identifiers:
        missing = [field_id for field_id in identifiers if field_id not in new_ids]
        if missing:
            raise InvalidError(f"Invalid schema: cannot add field {missing[0]} as an identifier: not found")
        fresh["identifier-field-ids"] = [new_ids[field_id] for field_id in identifiers]
    return fresh, new_ids


def _fresh_struct(struct: Json, give: Callable[[int], int]) -> Json:
    ids = [give(field["id"]) for field in struct["fields"]]
    fields = [
        {**field, "id": new_id, "type": _fresh_type(field["type"], give)}
        for field, new_id in zip(struct["fields"], ids, strict=True)
    ]
    return {**struct, "fields": fields}


def _fresh_type(kind: Any, give: Callable[[int], int]) -> Any:
    if isinstance(kind, str):
        return kind
    if kind["type"] == "struct":
        return _fresh_struct(kind, give)
    if kind["type"] == "list":
        element_id = give(kind["element-id"])
        return {**kind, "element-id": element_id, "element": _fresh_type(kind["element"], give)}
    key_id, value_id = give(kind["key-id"]), give(kind["value-id"])
    return {
        **kind,
        "key-id": key_id,
        "value-id": value_id,
        "key": _fresh_type(kind["key"], give),
        "value": _fresh_type(kind["value"], give),
    }


def _field_sources(field: Json) -> list[int]:
    found = [field["source-id"]] if "source-id" in field else field.get("source-ids")
    if not isinstance(found, list) or not all(type(source) is int for source in found):
        raise InvalidError(f"Cannot find source column for field: {found!r} is no number")
    return found


def _fields(value: Json, what: str) -> list[Json]:
    fields = value.get("fields")
    if not isinstance(fields, list) or not all(isinstance(field, dict) for field in fields):
        raise InvalidError(f"Invalid {what}: it has no list of fields")
    return fields


def spec_fields(
    spec: Json, schema: Json, *, last_id: int, new_ids: Mapping[int, int] | None = None
) -> list[Json]:
    """Return the validated fields of a partition spec; fields without an id get ids above `last_id`.

    Specification: "Partitioning", "Partition Transforms"; JSON as in Appendix C.

    Args:
        spec: JSON of an unbound partition spec.
        schema: the schema that the spec is for, with final field ids.
        last_id: the last assigned partition field id.
        new_ids: if given, maps the spec's source ids to those of `schema`, and all partition field ids are
            newly assigned.

    Raises:
        InvalidError: a source column is missing, a name is taken, or a transform is unknown or does not
            accept the column's type.
    """
    fields = _fields(spec, "partition spec")
    columns = {field_id: (path, kind) for field_id, path, kind, _ in walk(schema)}
    by_path = {path: field_id for field_id, (path, _) in columns.items()}
    out: list[Json] = []
    names: set[str] = set()
    for field in fields:
        name, transform = field.get("name"), field.get("transform")
        if not isinstance(name, str) or not name:
            raise InvalidError("Cannot use empty or null partition name")
        if name in names:
            raise InvalidError(f"Cannot use partition name more than once: {name}")
        names.add(name)
        transform = _transform(transform, f"partition spec: unknown transform {transform!r} of {name}")
        sources = _field_sources(field)
        if new_ids is not None:
            sources = [new_ids.get(source, -1) for source in sources]
        if not sources or (transform != "void" and any(source not in columns for source in sources)):
            raise InvalidError(f"Cannot find source column for partition field: {name}")
        _check_fit(transform, sources, columns, f"partition field {name}")
        clash = by_path.get(name)
        if clash is not None and not (transform in ("identity", "void") and clash == sources[0]):
            raise InvalidError(f"Cannot create partition from name that exists in schema: {name}")
        field_id = None if new_ids is not None else field.get("field-id")
        if field_id is None:
            last_id += 1
            field_id = last_id
        if type(field_id) is not int or field_id < 0:
            raise InvalidError(f"Invalid partition spec: field-id {field_id!r} of {name} is no number")
        last_id = max(last_id, field_id)
        source: Json = {"source-id": sources[0]} if len(sources) == 1 else {"source-ids": sources}
        out.append({**source, "field-id": field_id, "name": name, "transform": transform})
    return out


def order_fields(order: Json, schema: Json, *, new_ids: Mapping[int, int] | None = None) -> list[Json]:
    """Return the validated fields of a sort order (specification: "Sorting").

    Args:
        order: JSON of an unbound sort order.
        schema: the schema that the order is for, with final field ids.
        new_ids: if given, maps the order's source ids to those of `schema`.

    Raises:
        InvalidError: a source column is missing, a transform, direction or null order is unknown, or a
            transform does not accept the column's type.
    """
    fields = _fields(order, "sort order")
    columns = {field_id: (path, kind) for field_id, path, kind, _ in walk(schema)}
    out: list[Json] = []
    for field in fields:
        transform, direction, nulls = field.get("transform"), field.get("direction"), field.get("null-order")
        transform = _transform(transform, f"sort order: unknown transform {transform!r}")
        if direction not in ("asc", "desc") or nulls not in ("nulls-first", "nulls-last"):
            raise InvalidError(f"Invalid sort order: direction {direction!r} or null order {nulls!r} unknown")
        sources = _field_sources(field)
        if new_ids is not None:
            sources = [new_ids.get(source, -1) for source in sources]
        if not sources or any(source not in columns for source in sources):
            raise InvalidError(f"Cannot find source column for sort field: {transform} of {sources}")
        _check_fit(transform, sources, columns, "a sort field")
        source: Json = {"source-id": sources[0]} if len(sources) == 1 else {"source-ids": sources}
        out.append({"transform": transform, **source, "direction": direction, "null-order": nulls})
    return out


def _transform(transform: Any, what: str) -> str:
    """Return a transform, which is one of the specification, with a width that an engine can hold.

    Raises:
        InvalidError: it is not.
    """
    text = transform if isinstance(transform, str) else ""
    found = _TRANSFORM.fullmatch(text.lower())
    if found is None:
        raise InvalidError(f"Invalid {what}")
    if found["width"] is not None and int(found["width"][:11]) > WIDTH_MAX:
        raise InvalidError(f"Invalid {what}: its width is at most {WIDTH_MAX}, a 32-bit integer")
    return text


def _check_fit(transform: str, sources: list[int], columns: Mapping[int, tuple[str, Any]], what: str) -> None:
    """Require that the transform accepts the type of each source column.

    Otherwise engines could neither read nor drop the table.

    Raises:
        InvalidError: the transform does not accept a column's type.
    """
    for source in sources:
        path, kind = columns.get(source, ("", None))
        if path and not transforms.fits(transform, kind):
            named = kind if isinstance(kind, str) else kind.get("type")
            raise InvalidError(
                f"Invalid source type {named} for transform: {transform} of {path} in {what}; {transform} "
                f"takes {transforms.types_for(transform)}; for {named} {transforms.fitting(kind)}"
            )


def check_bound(meta: TableMetadata) -> None:
    """Require that the default partition spec and sort order fit the current schema.

    Raises:
        InvalidError: a source column is not in the schema, or its type is not accepted by the transform.
    """
    schema = next(s for s in meta["schemas"] if s["schema-id"] == meta["current-schema-id"])
    columns = {field_id: (path, kind) for field_id, path, kind, _ in walk(schema)}
    spec = next(s for s in meta["partition-specs"] if s["spec-id"] == meta["default-spec-id"])
    for field in spec["fields"]:
        if field["transform"] != "void" and not columns.keys() >= set(_field_sources(field)):
            raise InvalidError(f"Cannot find source column for partition field: {field['name']}")
        _check_fit(field["transform"], _field_sources(field), columns, f"partition field {field['name']}")
    order = next(o for o in meta["sort-orders"] if o["order-id"] == meta["default-sort-order-id"])
    for field in order["fields"]:
        if not columns.keys() >= set(_field_sources(field)):
            raise InvalidError(f"Cannot find source column for sort field: {field['transform']}")
        _check_fit(field["transform"], _field_sources(field), columns, "a sort field")
