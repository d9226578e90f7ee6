"""Schemas, partition specs and sort orders as parsed JSON: validation and assignment of field ids. Pure.

Sections of the Iceberg table specification: "Schemas and Data Types", "Partitioning" with "Partition
Transforms", "Sorting", and "Appendix C: JSON serialization" (https://iceberg.apache.org/spec/). The functions
work on that JSON itself because pyiceberg's models lack types of format v3 (variant).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import orjson

from tarn.core import transforms
from tarn.core.errors import InvalidError
from tarn_catalog.metadata.field_types import INT_MAX, PRIMITIVE, is_value, problem_of, value_for

if TYPE_CHECKING:
    from tarn_catalog.metadata.types import TableMetadata

Json = dict[str, Any]

FORMAT_VERSION_MAX = 3
FIRST_PARTITION_ID = 1000
DEPTH_MAX = 64
PATHS_MAX = 4 * 1024 * 1024  # characters: a long name is in the path of every field below it

_SINCE_V3 = re.compile(r"timestamp_ns|timestamptz_ns|variant|unknown|geometry.*|geography.*")
_TRANSFORM = re.compile(r"identity|year|month|day|hour|void|(bucket|truncate)\[(?P<width>[1-9]\d*)\]")
WIDTH_MAX = INT_MAX
DEFAULTS = ("initial-default", "write-default")
IDENTIFIERS = "identifier-field-ids"


def walk(schema: Json) -> Iterator[tuple[int, str, Any, Json]]:
    """Yield every field at any depth as (id, dotted path, type, the JSON object that declares it).

    Raises:
        InvalidError: the JSON is not a valid schema.
    """
    length = 0
    for found in _walk_struct(schema, "", 0):
        length += len(found[1])
        if length > PATHS_MAX:
            raise InvalidError(
                f"Invalid schema: the names of all fields, each with those of the fields that it is in, have "
                f"more than {PATHS_MAX} characters; shorten the names, or nest less"
            )
        yield found


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
        if not PRIMITIVE.fullmatch(kind):
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


def check_schema(schema: Json, format_version: int, *, new: bool = True) -> int:
    """Validate a schema for a format version and return its highest field id, 0 without fields.

    Specification: "Schemas and Data Types", with "Identifier Field IDs" and "Default values".

    Args:
        schema: JSON of the schema.
        format_version: Iceberg format version.
        new: whether no table has it yet; readers refuse two fields of one name, but one can be renamed.

    Raises:
        InvalidError: the JSON is not a valid schema, a field id is used twice, an identifier field is
            missing or may not be one, a type or a default value requires a later format version, or
            readers could not parse one.
    """
    by_id: dict[int, str] = {}
    by_path: dict[str, int] = {}
    problems: list[str] = []
    for field_id, path, kind, field in list(walk(schema)):  # valid as a whole, before a part is judged
        if field_id in by_id:
            raise InvalidError(
                f"Invalid schema: Multiple entries with same key: {field_id}={path} and "
                f"{field_id}={by_id[field_id]}"
            )
        by_id[field_id] = path
        if new and path in by_path:
            raise InvalidError(
                f"Invalid schema: multiple fields for name {path}: {by_path[path]} and {field_id}; rename one"
            )
        by_path[path] = field_id
        if format_version < 3:
            if isinstance(kind, str) and _SINCE_V3.fullmatch(kind):
                problems.append(f"Invalid type for {path}: {kind} is not supported until v3")
            if field.get("initial-default") is not None:
                problems.append(
                    f"Invalid initial default for {path}: non-null default "
                    f"({field['initial-default']}) is not supported until v3"
                )
        problems += _unreadable(field_id, path, kind, field)
    if problems:
        raise InvalidError(f"Invalid schema for v{format_version}:\n- " + "\n- ".join(problems))
    identifying = set(_identifying(schema))
    for field_id in _identifiers(schema):
        if field_id not in by_id:
            raise InvalidError(f"Invalid schema: cannot add field {field_id} as an identifier: not found")
        if field_id not in identifying:
            raise InvalidError(
                f"Invalid schema: cannot add field {by_id[field_id]} as an identifier: an identifier is "
                "required, of a primitive type other than float and double, and below required structs only; "
                "take it out of identifier-field-ids, or change the field"
            )
    return max(by_id, default=0)


def _unreadable(field_id: int, path: str, kind: Any, field: Json) -> Iterator[str]:
    """Yield what makes Iceberg's readers refuse a whole table or view because of one field."""
    if not -INT_MAX - 1 <= field_id <= INT_MAX:
        yield f"Invalid id {field_id} of {path}: give an id of 32 bits, at most {INT_MAX}"
    problem = problem_of(kind) if isinstance(kind, str) else None
    if problem is not None:
        yield f"Invalid type {kind[:200]} of {path}: {problem}"
        return
    declared = field["type"] is kind
    part = path.rpartition(".")[2]
    required = field["required"] if declared else part == "key" or field[f"{part}-required"]
    if kind == "unknown" and required:
        yield f"Invalid type unknown of {path}: all its values are null; make it optional"
    for name in DEFAULTS if declared else ():
        value = field.get(name)
        if value is not None and not is_value(kind, value):
            named = kind if isinstance(kind, str) else kind["type"]
            what = f"Invalid {name} {value!r:.100} of {path} of type {named}"
            wanted = value_for(kind)
            yield f"{what}: {f'give {wanted}, or' if wanted else 'it has none,'} leave it out"


def _identifying(struct: Json) -> Iterator[int]:
    """Yield the ids of the fields that may identify a row (specification: "Identifier Field IDs")."""
    for field in struct["fields"]:
        kind = field["type"]
        if not field["required"]:
            continue
        if isinstance(kind, str):
            if kind not in ("float", "double", "variant"):
                yield field["id"]
        elif kind["type"] == "struct":
            yield from _identifying(kind)


def _identifiers(schema: Json) -> list[int]:
    found = schema.get(IDENTIFIERS)
    if found is None:
        return []
    if not isinstance(found, list) or not all(type(field_id) is int for field_id in found):
        raise InvalidError("Invalid schema: identifier-field-ids is no list of numbers")
    return found


def schema_key(schema: Json) -> bytes:
    """Return what schemas have in common that `same_schema` takes for equal.

    Raises:
        InvalidError: the schema is nested too deeply to be JSON.
    """
    parts = [schema["fields"], sorted(schema.get(IDENTIFIERS) or ())]
    try:
        return orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError as e:
        raise InvalidError(f"Invalid schema: {e}; make numbers smaller, or nest less") from e


def same_schema(a: Json, b: Json) -> bool:
    """Return whether two schemas have equal fields and identifier fields, ignoring their schema ids."""
    return a["fields"] == b["fields"] and sorted(a.get(IDENTIFIERS) or ()) == sorted(b.get(IDENTIFIERS) or ())


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
        fresh[IDENTIFIERS] = [new_ids[field_id] for field_id in identifiers]
    return fresh, new_ids


def _fresh_struct(struct: Json, give: Callable[[int], int]) -> Json:
    ids = [give(field["id"]) for field in struct["fields"]]
    fields = [
        {**_without_nulls(field), "id": new_id, "type": _fresh_type(field["type"], give)}
        for field, new_id in zip(struct["fields"], ids, strict=True)
    ]
    return {**struct, "fields": fields}


def _without_nulls(field: Json) -> Json:
    return {name: value for name, value in field.items() if value is not None or name not in DEFAULTS}


def stored_schema(schema: Json) -> Json:
    """Return a valid schema as it is stored: without nulls for default values or for identifier fields.

    Readers refuse those.
    """
    stored = _fresh_struct(schema, lambda same: same)
    if stored.get(IDENTIFIERS, ()) is None:
        del stored[IDENTIFIERS]
    return stored


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


def _one_source(field: Json, what: str) -> list[int]:
    """Return the source column of a new partition or sort field, in a list that is empty without one.

    Raises:
        InvalidError: it is no number, or there are several: no transform takes them.
    """
    sources = _field_sources(field)
    if len(sources) > 1:
        raise InvalidError(f"Invalid source-ids {sources} of {what}: give one source-id")
    return sources


def _fields(value: Json, what: str) -> list[Json]:
    fields = value.get("fields")
    if not isinstance(fields, list) or not all(isinstance(field, dict) for field in fields):
        raise InvalidError(f"Invalid {what}: it has no list of fields")
    return fields


def spec_fields(
    spec: Json,
    schema: Json,
    *,
    last_id: int,
    new_ids: Mapping[int, int] | None = None,
    known: Mapping[tuple[int, str, str], int] | None = None,
) -> list[Json]:
    """Return the validated fields of a partition spec; fields without an id get ids above `last_id`.

    Specification: "Partitioning", "Partition Transforms"; JSON as in Appendix C.

    Args:
        spec: JSON of an unbound partition spec.
        schema: the schema that the spec is for, with final field ids.
        last_id: the last assigned partition field id.
        new_ids: if given, maps the spec's source ids to those of `schema`, and all partition field ids are
            newly assigned.
        known: ids that a field without one gets if source id, transform (lower case) and name are equal.

    Raises:
        InvalidError: a source column is missing, a name is taken, or a transform is unknown or does not
            accept the column's type.
    """
    fields = _fields(spec, "partition spec")
    columns = {field_id: (path, kind) for field_id, path, kind, _ in walk(schema)}
    by_path = {path: field_id for field_id, (path, _) in columns.items()}
    single = frozenset(_single(schema))
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
        sources = _one_source(field, f"partition field {name}")
        if new_ids is not None:
            sources = [new_ids.get(source, -1) for source in sources]
        if not sources or (transform != "void" and any(source not in columns for source in sources)):
            raise InvalidError(f"Cannot find source column for partition field: {name}")
        _check_reached(transform, sources, single, columns, name)
        _check_fit(transform, sources, columns, f"partition field {name}")
        clash = by_path.get(name)
        if clash is not None and not (transform in ("identity", "void") and clash == sources[0]):
            raise InvalidError(f"Cannot create partition from name that exists in schema: {name}")
        field_id = None if new_ids is not None else field.get("field-id")
        if field_id is None:
            field_id = (known or {}).get((sources[0], transform.lower(), name))
        if field_id is None:
            last_id += 1
            field_id = last_id
        if type(field_id) is not int or not 0 <= field_id <= INT_MAX:
            raise InvalidError(
                f"Invalid partition spec: field-id {field_id!r} of {name} is no number from 0 to {INT_MAX}"
            )
        last_id = max(last_id, field_id)
        out.append({"source-id": sources[0], "field-id": field_id, "name": name, "transform": transform})
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
        sources = _one_source(field, "a sort field")
        if new_ids is not None:
            sources = [new_ids.get(source, -1) for source in sources]
        if not sources or any(source not in columns for source in sources):
            raise InvalidError(f"Cannot find source column for sort field: {transform} of {sources}")
        _check_fit(transform, sources, columns, "a sort field")
        out.append(
            {
                "transform": transform,
                "source-id": sources[0],
                "direction": direction,
                "null-order": nulls,
            }
        )
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


def _check_reached(
    transform: str,
    sources: list[int],
    single: frozenset[int],
    columns: Mapping[int, tuple[str, Any]],
    name: str,
) -> None:
    """Require that a row has one value for each source column of a partition field.

    Otherwise engines could neither read nor drop the table.

    Raises:
        InvalidError: a column is in a list or map.
    """
    for source in sources:
        if transform != "void" and source in columns and source not in single:
            raise InvalidError(
                f"Invalid source column {columns[source][0]} of partition field {name}: it is in a list or "
                "map, and a row has one partition; take a column of the table, or a field of a struct"
            )


def _single(struct: Json) -> Iterator[int]:
    """Yield the ids of the fields that are reached through structs only."""
    for field in struct["fields"]:
        yield field["id"]
        if isinstance(field["type"], dict) and field["type"]["type"] == "struct":
            yield from _single(field["type"])


def check_bound(meta: TableMetadata) -> None:
    """Require that the default partition spec and sort order fit the current schema.

    Raises:
        InvalidError: a source column is not in the schema, or its type is not accepted by the transform.
    """
    schema = next(s for s in meta["schemas"] if s["schema-id"] == meta["current-schema-id"])
    columns = {field_id: (path, kind) for field_id, path, kind, _ in walk(schema)}
    single = frozenset(_single(schema))
    spec = next(s for s in meta["partition-specs"] if s["spec-id"] == meta["default-spec-id"])
    for field in spec["fields"]:
        if field["transform"] != "void" and not columns.keys() >= set(_field_sources(field)):
            raise InvalidError(f"Cannot find source column for partition field: {field['name']}")
        _check_reached(field["transform"], _field_sources(field), single, columns, field["name"])
        _check_fit(field["transform"], _field_sources(field), columns, f"partition field {field['name']}")
    order = next(o for o in meta["sort-orders"] if o["order-id"] == meta["default-sort-order-id"])
    for field in order["fields"]:
        if not columns.keys() >= set(_field_sources(field)):
            raise InvalidError(f"Cannot find source column for sort field: {field['transform']}")
        _check_fit(field["transform"], _field_sources(field), columns, "a sort field")


def names_of_both(meta: TableMetadata) -> set[str]:
    """Return the names that a column of the current schema shares with a partition field of another one.

    The fields of former specs count too. Iceberg's Java library, and so Spark and Trino, refuses to open a
    table with such a name. A partition field may have the name of its own source column.
    """
    schema = next((s for s in meta["schemas"] if s["schema-id"] == meta["current-schema-id"]), None)
    fields = [field for spec in meta["partition-specs"] for field in spec["fields"]]
    if schema is None or not fields:
        return set()
    by_path = {path: field_id for field_id, path, _, _ in walk(schema)}
    return {
        field["name"]
        for field in fields
        if field["name"] in by_path and by_path[field["name"]] not in _field_sources(field)
    }
