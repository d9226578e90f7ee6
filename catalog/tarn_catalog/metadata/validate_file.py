"""Validation of the metadata file of a register-table request. Pure.

REST specification: `RegisterTableRequest`; Iceberg table specification: "Table Metadata Fields".
"""

from __future__ import annotations

import re
from typing import cast
from uuid import UUID

from tarn.core import metadata_json
from tarn.core.errors import InvalidError, InvalidLocationError
from tarn.core.naming import WarehouseLayout, check_path_properties
from tarn_catalog.metadata.builder import check_format_version
from tarn_catalog.metadata.schemas import check_bound, check_schema
from tarn_catalog.metadata.types import TableMetadata

SUFFIX = ".metadata.json"
_FIELDS: tuple[tuple[str, type], ...] = (
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
        meta = metadata_json.loads(raw)
    except ValueError as e:
        raise _bad(location, f"it is no JSON ({e})") from e
    if not isinstance(meta, dict):
        raise _bad(location, "it is no JSON object")
    try:
        format_version = check_format_version(meta.get("format-version"))
        uuid = str(UUID(meta["table-uuid"]))
    except (KeyError, ValueError, TypeError, AttributeError) as e:
        raise _bad(location, "its table-uuid is missing or no UUID") from e
    if uuid != meta["table-uuid"]:
        raise _bad(location, "its table-uuid is not written in lower case with hyphens")
    for field, kind in _FIELDS:
        if not isinstance(meta.get(field), kind):
            raise _bad(location, f"its field {field} is missing or no {kind.__name__}")
    roots.check_table(meta["location"], uuid)
    if not location.startswith(f"{meta['location']}/metadata/"):
        raise InvalidLocationError(
            f"Invalid metadata-location {location}: the table in it lies at {meta['location']}; a table's "
            "files stay in its own location",
            location=location,
        )
    check_path_properties(meta["properties"], meta["location"])
    try:
        _check_parts(cast("TableMetadata", meta), format_version, location)
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise _bad(location, f"a part of it cannot be read ({e!r})") from e
    return cast("TableMetadata", meta)


def _check_parts(meta: TableMetadata, format_version: int, location: str) -> None:
    for schema in meta["schemas"]:
        check_schema(schema, format_version)
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
    for snapshot in meta["snapshots"]:
        named = snapshot.get("manifest-list")
        if named is not None and not _plain(named).startswith(f"{_plain(meta['location'])}/"):
            raise _bad(location, f"the manifest list {named} lies outside of {meta['location']}")
    current = meta.get("current-snapshot-id")
    if current not in (None, -1) and current not in known:
        raise _bad(location, f"its current snapshot {current} is not among its snapshots")
    for name, ref in (meta.get("refs") or {}).items():
        if ref["snapshot-id"] not in known:
            raise _bad(
                location, f"its {ref['type']} {name} points at snapshot {ref['snapshot-id']}, which is gone"
            )


def _plain(location: str) -> str:
    """Return a location with Hadoop's spellings normalised: `s3a://` to `s3://`, `file:///` to `file:/`."""
    return re.sub("^file:/+", "file:/", re.sub("^s3[an]://", "s3://", location))


def _bad(location: str, why: str) -> InvalidError:
    return InvalidError(
        f"Cannot register {location}: {why}; give the metadata file of an Iceberg table", location=location
    )
