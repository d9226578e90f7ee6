"""Validation of the metadata file of a register-table request. Pure.

REST specification: `RegisterTableRequest`; Iceberg table specification: "Table Metadata Fields".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import cast
from uuid import UUID

import orjson

from tarn.core import metadata_json
from tarn.core.errors import InvalidError, InvalidLocationError
from tarn.core.naming import WarehouseLayout, check_path_properties
from tarn_catalog.metadata import table_metadata
from tarn_catalog.metadata.builder import check_format_version
from tarn_catalog.metadata.field_types import INT_MAX, LONG_MAX
from tarn_catalog.metadata.schemas import IDENTIFIERS, Json, check_bound, check_schema
from tarn_catalog.metadata.snapshots import MAIN, NO_SNAPSHOT, own_ancestor, with_main
from tarn_catalog.metadata.types import TableMetadata

SUFFIX = ".metadata.json"
_FIELDS: tuple[tuple[str, type], ...] = (
    ("format-version", int),
    ("location", str),
    ("last-updated-ms", int),
    ("last-column-id", int),
    ("schemas", list),
    ("current-schema-id", int),
    ("partition-specs", list),
    ("default-spec-id", int),
    ("last-partition-id", int),
    ("sort-orders", list),
    ("default-sort-order-id", int),
    ("properties", dict),
    ("snapshots", list),
)
_SINCE: tuple[tuple[str, int], ...] = (("last-sequence-number", 2), ("next-row-id", 3))
_LONGS = frozenset({"last-updated-ms", "last-sequence-number", "next-row-id"})
_STATISTICS_FILE = {"snapshot-id": int, "statistics-path": str, "file-size-in-bytes": int}
# Of the entries of a list: fields that each has, and fields that one may lack.
_ENTRIES: tuple[tuple[str, Mapping[str, type], Mapping[str, type]], ...] = (
    ("schemas", {"schema-id": int}, {}),
    ("partition-specs", {"spec-id": int, "fields": list}, {}),
    ("sort-orders", {"order-id": int, "fields": list}, {}),
    (
        "snapshots",
        {"snapshot-id": int, "timestamp-ms": int},
        {
            "parent-snapshot-id": int,
            "sequence-number": int,
            "schema-id": int,
            "manifest-list": str,
            "manifests": list,
            "summary": dict,
        },
    ),
    ("snapshot-log", {"timestamp-ms": int, "snapshot-id": int}, {}),
    ("metadata-log", {"timestamp-ms": int, "metadata-file": str}, {}),
    ("statistics", _STATISTICS_FILE, {}),
    ("partition-statistics", _STATISTICS_FILE, {}),
    ("encryption-keys", {"key-id": str}, {}),
)
_PARTS: tuple[tuple[str, Mapping[str, type]], ...] = (
    ("partition-specs", {"name": str, "transform": str}),
    ("sort-orders", {"transform": str, "direction": str, "null-order": str}),
)


def check_file(location: str, roots: WarehouseLayout) -> str:
    """Return the store key of a metadata file; its location must match `<table>/metadata/*.metadata.json`.

    Raises:
        InvalidLocationError: the location has another form, or lies outside the warehouse.
    """
    folder, _, name = location.rpartition("/")
    table, _, last = folder.rpartition("/")
    if not name.endswith(SUFFIX) or last != "metadata" or not table:
        raise InvalidLocationError(
            f"Invalid metadata-location {location}: give the file that a load of the table answers, "
            f"{roots.warehouse}/…/metadata/…{SUFFIX}",
            location=location,
        )
    roots.check_inside(location)
    return roots.key(location)


def check_metadata(raw: bytes, location: str, roots: WarehouseLayout) -> TableMetadata:
    """Return the parsed metadata of a file if the catalog can commit on top of it.

    Args:
        raw: the content of the file.
        location: its location.
        roots: the mapping between keys and locations.

    Raises:
        InvalidError: the content is not complete, consistent table metadata ("Table Metadata Fields").
        InvalidLocationError: the file lies outside the table's location, or that location is not one that the
            catalog assigns to a table.
    """
    try:
        meta = metadata_json.loads_kept(raw)
    except metadata_json.TooLongError as e:
        raise _bad(location, str(e)) from e
    except ValueError as e:
        raise _bad(location, f"it is no JSON ({e})") from e
    if not isinstance(meta, dict):
        raise _bad(location, "it is no JSON object")
    try:
        uuid = str(UUID(meta["table-uuid"]))
    except (KeyError, ValueError, TypeError, AttributeError) as e:
        raise _bad(location, "its table-uuid is missing or no UUID") from e
    if uuid != meta["table-uuid"]:
        raise _bad(location, "its table-uuid is not written in lower case with hyphens")
    for field, kind in _FIELDS:
        if not _is(meta.get(field), kind, long=field in _LONGS):
            raise _bad(location, f"its field {field} is missing or no {kind.__name__}")
    format_version = check_format_version(meta["format-version"])
    _check_forms(meta, format_version, location)
    roots.check_table(meta["location"], uuid)
    if not location.startswith(f"{meta['location']}/metadata/"):
        raise InvalidLocationError(
            f"Invalid metadata-location {location}: the table in it lies at {meta['location']}; a table's "
            "files stay in its own location",
            location=location,
        )
    check_path_properties(meta["properties"], meta["location"])
    try:
        table_metadata.check_properties(meta["properties"])
    except InvalidError as e:
        raise InvalidError(
            f"Cannot register {location}: {e.message}; every later commit would be refused: correct it in a "
            "copy of the file beside it, and register that",
            location=location,
        ) from e
    try:
        _check_parts(cast("TableMetadata", meta), format_version, location)
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise _bad(location, f"a part of it cannot be read ({e!r})") from e
    return cast("TableMetadata", meta)


def _check_forms(meta: Json, format_version: int, location: str) -> None:
    """Require the fields that commits and readers use to have the types of the specification.

    Raises:
        InvalidError: a field has another type, or is missing.
    """
    for field, version in _SINCE:
        if format_version >= version and not _is(meta.get(field), int):
            raise _bad(location, f"its field {field} is missing or no int, and its format v{format_version}")
    for name, value in meta["properties"].items():
        if not isinstance(value, str):
            raise _bad(location, f"its property {name} is {value!r:.100}, no text")
    for name, needed, others in _ENTRIES:
        entries = meta.get(name)
        if not isinstance(entries, list | None):
            raise _bad(location, f"its field {name} is no list")
        for entry in entries or ():
            if not isinstance(entry, dict):
                raise _bad(location, f"its {name} hold {entry!r:.100}, no object")
            for field, kind in needed.items():
                if not _is(entry.get(field), kind):
                    raise _bad(location, f"{field} of one of its {name} is missing or no {kind.__name__}")
            for field, kind in others.items():
                if entry.get(field) is not None and not _is(entry[field], kind):
                    raise _bad(location, f"{field} of one of its {name} is no {kind.__name__}")
    for name, needed in _PARTS:
        for part in (part for entry in meta[name] for part in entry["fields"]):
            if not isinstance(part, dict) or not all(_is(part.get(field), needed[field]) for field in needed):
                raise _bad(location, f"a field of one of its {name} lacks one of {', '.join(needed)}")
            if not _is(part.get("source-id"), int) and not _is(part.get("source-ids"), list):
                raise _bad(location, f"a field of one of its {name} has no source-id")
    try:
        orjson.dumps(meta)
    except orjson.JSONEncodeError as e:
        raise _bad(location, f"the next file could not be written ({e})") from e


def _is(value: object, kind: type, *, long: bool = True) -> bool:
    if not isinstance(value, kind) or isinstance(value, bool):
        return False
    most = LONG_MAX if long else INT_MAX
    return not isinstance(value, int) or -most - 1 <= value <= most


def _check_parts(meta: TableMetadata, format_version: int, location: str) -> None:
    for schema in meta["schemas"]:
        check_schema(schema, format_version, new=False)
        if schema.get(IDENTIFIERS, ()) is None:
            raise _bad(location, f"{IDENTIFIERS} of a schema is null, which readers refuse; leave it out")
    schemas = {schema["schema-id"] for schema in meta["schemas"]}
    specs = {spec["spec-id"] for spec in meta["partition-specs"]}
    orders = {order["order-id"] for order in meta["sort-orders"]}
    for field, chosen, name, ids in (
        ("current-schema-id", meta["current-schema-id"], "schemas", schemas),
        ("default-spec-id", meta["default-spec-id"], "partition-specs", specs),
        ("default-sort-order-id", meta["default-sort-order-id"], "sort-orders", orders),
    ):
        if chosen not in ids:
            raise _bad(location, f"its {field} {chosen} is not among its {name}")
    check_bound(meta)
    known = {snapshot["snapshot-id"] for snapshot in meta["snapshots"]}
    if len(known) < len(meta["snapshots"]):
        raise _bad(location, "two of its snapshots have the same snapshot-id")
    if NO_SNAPSHOT in known:
        raise _bad(
            location, f"the snapshot-id of one of its snapshots is {NO_SNAPSHOT}, which stands for none"
        )
    circular = own_ancestor(meta["snapshots"], [snapshot["snapshot-id"] for snapshot in meta["snapshots"]])
    if circular is not None:
        raise _bad(location, f"snapshot {circular} is its own ancestor")
    for snapshot in meta["snapshots"]:
        named = snapshot.get("manifest-list")
        if named is not None and not plain(named).startswith(f"{plain(meta['location'])}/"):
            raise _bad(location, f"the manifest list {named} lies outside of {meta['location']}")
    current = meta.get("current-snapshot-id")
    if current not in (None, -1) and current not in known:
        raise _bad(location, f"its current snapshot {current} is not among its snapshots")
    refs = with_main(meta).get("refs") or {}
    for name, ref in refs.items():
        if ref["type"] not in ("branch", "tag"):
            raise _bad(location, f"its ref {name} is of type {ref['type']!r}, neither branch nor tag")
        if ref["snapshot-id"] not in known:
            raise _bad(
                location, f"its {ref['type']} {name} points at snapshot {ref['snapshot-id']}, which is gone"
            )
    main = refs.get(MAIN)
    if main is not None and main["snapshot-id"] != current:
        raise _bad(
            location, f"its branch main is at {main['snapshot-id']}, its current-snapshot-id is {current}"
        )


def plain(location: str) -> str:
    """Return a location with Hadoop's spellings normalised: `s3a://` to `s3://`, `file:///` to `file:/`."""
    return re.sub("^file:/+", "file:/", re.sub("^s3[an]://", "s3://", location))


def _bad(location: str, why: str) -> InvalidError:
    return InvalidError(
        f"Cannot register {location}: {why}; give the metadata file of an Iceberg table", location=location
    )
