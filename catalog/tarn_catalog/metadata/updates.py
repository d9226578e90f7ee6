"""The table updates of the REST specification (OpenAPI `TableUpdate`), as pure functions on parsed JSON.

`apply(draft, update)` returns the next builder. Nothing is changed in place, and only the lists that an
update changes are copied. The id `-1` in `SetCurrentSchemaUpdate`, `SetDefaultSpecUpdate` and
`SetDefaultSortOrderUpdate` means the one added last in this commit. Iceberg table specification: "Table
Metadata Fields", "Schema Evolution", "Partition Evolution", "Sorting", "Encryption Keys".
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal
from uuid import UUID

from tarn.core.errors import ConflictError, InvalidError
from tarn_catalog.metadata.builder import MetadataBuilder, get, missing_part, numbers, without_nulls
from tarn_catalog.metadata.schemas import (
    FIRST_PARTITION_ID,
    FORMAT_VERSION_MAX,
    Json,
    check_bound,
    check_schema,
    names_of_both,
    order_fields,
    schema_key,
    spec_fields,
    stored_schema,
)
from tarn_catalog.metadata.snapshots import (
    add_snapshot,
    remove_snapshot_ref,
    remove_snapshots,
    remover,
    set_snapshot_ref,
    setter,
    snapshot_log,
)
from tarn_catalog.metadata.types import (
    AddEncryptionKeyUpdate,
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AddSortOrderUpdate,
    AssignUUIDUpdate,
    RemoveEncryptionKeyUpdate,
    RemovePartitionSpecsUpdate,
    RemovePropertiesUpdate,
    RemoveSchemasUpdate,
    SetCurrentSchemaUpdate,
    SetDefaultSortOrderUpdate,
    SetDefaultSpecUpdate,
    SetLocationUpdate,
    SetPropertiesUpdate,
    TableMetadata,
    TableUpdate,
    UpgradeFormatVersionUpdate,
)

LAST_ADDED = -1
# Reserved by engines for values that are not table properties.
RESERVED_PROPERTIES = frozenset(
    {
        "format-version",
        "uuid",
        "snapshot-count",
        "current-snapshot-summary",
        "current-snapshot-id",
        "current-snapshot-timestamp-ms",
        "current-schema",
        "default-partition-spec",
        "default-sort-order",
    }
)
_INSTEAD = {
    "format-version": "send the update upgrade-format-version (pyiceberg: upgrade_table_version)",
    "current-snapshot-id": "send the update set-snapshot-ref (pyiceberg: manage_snapshots)",
}


def _assign_uuid(draft: MetadataBuilder, update: AssignUUIDUpdate) -> MetadataBuilder:
    """Apply `AssignUUIDUpdate`; the UUID of an existing table cannot change."""
    try:
        wanted = str(UUID(get(update, "uuid", str)))
    except ValueError as e:
        raise InvalidError(f"Cannot assign uuid {update['uuid']!r}: it is no UUID") from e
    if wanted == draft.meta["table-uuid"]:
        return draft
    raise InvalidError(f"Cannot reassign uuid: it is {draft.meta['table-uuid']}, not {wanted}")


def _upgrade_format_version(draft: MetadataBuilder, update: UpgradeFormatVersionUpdate) -> MetadataBuilder:
    """Apply `UpgradeFormatVersionUpdate` (table specification: "Format Versioning")."""
    wanted, current = get(update, "format-version", int), draft.meta["format-version"]
    if wanted > FORMAT_VERSION_MAX:
        raise InvalidError(
            f"Cannot upgrade table to unsupported format version: v{wanted} "
            f"(supported: v{FORMAT_VERSION_MAX})"
        )
    if wanted < current:
        raise InvalidError(f"Cannot downgrade v{current} table to v{wanted}")
    if wanted == current:
        return draft
    meta: TableMetadata = {
        **draft.meta,
        "format-version": wanted,
        "last-sequence-number": draft.meta.get("last-sequence-number", 0),
    }
    meta.pop("schema", None)
    meta.pop("partition-spec", None)
    if wanted >= 3:
        meta.setdefault("next-row-id", 0)
        if meta.get("current-snapshot-id") == -1:
            meta["current-snapshot-id"] = None
    return replace(draft, meta=meta)


def _add_schema(draft: MetadataBuilder, update: AddSchemaUpdate) -> MetadataBuilder:
    """Apply `AddSchemaUpdate`; an equal schema is reused."""
    meta = draft.meta
    schema = get(update, "schema", dict)
    highest = check_schema(schema, meta["format-version"])
    schema = stored_schema(schema)
    last_column_id = max(meta["last-column-id"], highest)
    # A commit may add thousands: they are not compared one by one.
    known, highest_id = draft.schema_ids or _schema_ids(meta)
    key = schema_key(schema)
    if key in known:
        same = replace(draft, last_schema=known[key], schema_ids=(known, highest_id))
        return same if last_column_id == meta["last-column-id"] else same.set(last_column_id=last_column_id)
    schema_id = highest_id + 1
    added = {**schema, "schema-id": schema_id}
    known[key] = schema_id
    ids = (known, schema_id)
    return replace(draft, last_schema=schema_id, schema_ids=ids).set(
        schemas=[*meta["schemas"], added], last_column_id=last_column_id
    )


def _schema_ids(meta: TableMetadata) -> tuple[dict[bytes, int], int]:
    ids: dict[bytes, int] = {}
    for schema in meta["schemas"]:
        ids.setdefault(schema_key(schema), schema["schema-id"])
    return ids, max((schema["schema-id"] for schema in meta["schemas"]), default=-1)


def _chosen(draft: MetadataBuilder, wanted: int, last: int | None, ids: set[int], what: str) -> int:
    """Return the id that a set-current or set-default update refers to.

    Args:
        draft: the builder, unused.
        wanted: the requested id; -1 means `last`.
        last: the id added last in this commit, if any.
        ids: the known ids.
        what: `schema`, `partition spec` or `sort order`, for error messages.

    Raises:
        InvalidError: the id is unknown, or -1 without an added one.
    """
    if wanted == LAST_ADDED:
        if last is None:
            raise InvalidError(f"Cannot set last added {what}: no {what} has been added")
        return last
    if wanted not in ids:
        verb = "current" if what == "schema" else "default"
        raise InvalidError(f"Cannot set {verb} {what} to unknown {what}: {wanted}")
    return wanted


def _set_current_schema(draft: MetadataBuilder, update: SetCurrentSchemaUpdate) -> MetadataBuilder:
    """Apply `SetCurrentSchemaUpdate`."""
    ids = {s["schema-id"] for s in draft.meta["schemas"]}
    chosen = _chosen(draft, get(update, "schema-id", int), draft.last_schema, ids, "schema")
    return draft if chosen == draft.meta["current-schema-id"] else draft.set(current_schema_id=chosen)


def _current_schema(meta: TableMetadata) -> Json:
    """Return the current schema, or the last one if none is set as current."""
    for schema in meta["schemas"]:
        if schema["schema-id"] == meta["current-schema-id"]:
            return dict(schema)
    if meta["schemas"]:
        return dict(meta["schemas"][-1])
    raise InvalidError("Cannot add a partition spec or sort order before a schema is added")


def _shape(fields: list[Json]) -> list[tuple[Any, ...]]:
    return [
        (str(f.get("source-id", f.get("source-ids"))), f["name"], f["transform"], f.get("field-id"))
        for f in fields
    ]


def _add_spec(draft: MetadataBuilder, update: AddPartitionSpecUpdate) -> MetadataBuilder:
    """Apply `AddPartitionSpecUpdate`; an equal spec is reused, and so is the id of an equal field."""
    meta = draft.meta
    spec, schema = get(update, "spec", dict), _current_schema(meta)
    if meta["format-version"] == 1:
        # Ids of v1 follow from the position.
        fields = spec_fields(spec, schema, last_id=FIRST_PARTITION_ID - 1)
    else:
        known_ids = {
            (f["source-id"], f["transform"].lower(), f["name"]): f["field-id"]
            for known in reversed(meta["partition-specs"])
            for f in known["fields"]
            if "source-id" in f and "field-id" in f
        }
        fields = spec_fields(spec, schema, last_id=meta["last-partition-id"], known=known_ids)
    last_id = max([meta["last-partition-id"], *(f["field-id"] for f in fields)])
    for known in meta["partition-specs"]:
        if _shape(known["fields"]) == _shape(fields):
            return replace(draft, last_spec=known["spec-id"])
    if meta["format-version"] == 1 and [f["field-id"] for f in fields] != list(
        range(1000, 1000 + len(fields))
    ):
        raise InvalidError("Spec does not use sequential IDs that are required in v1")
    spec_id = max((s["spec-id"] for s in meta["partition-specs"]), default=-1) + 1
    return replace(draft, last_spec=spec_id).set(
        partition_specs=[*meta["partition-specs"], {"spec-id": spec_id, "fields": fields}],
        last_partition_id=last_id,
    )


def _set_default_spec(draft: MetadataBuilder, update: SetDefaultSpecUpdate) -> MetadataBuilder:
    """Apply `SetDefaultSpecUpdate`."""
    ids = {s["spec-id"] for s in draft.meta["partition-specs"]}
    chosen = _chosen(draft, get(update, "spec-id", int), draft.last_spec, ids, "partition spec")
    return draft if chosen == draft.meta["default-spec-id"] else draft.set(default_spec_id=chosen)


def _add_sort_order(draft: MetadataBuilder, update: AddSortOrderUpdate) -> MetadataBuilder:
    """Apply `AddSortOrderUpdate`; an equal order is reused, order id 0 is unsorted."""
    meta = draft.meta
    fields = order_fields(get(update, "sort-order", dict), _current_schema(meta))
    for known in meta["sort-orders"]:
        if known["fields"] == fields:
            return replace(draft, last_order=known["order-id"])
    order_id = max([0, *(o["order-id"] for o in meta["sort-orders"])]) + 1 if fields else 0
    return replace(draft, last_order=order_id).set(
        sort_orders=[*meta["sort-orders"], {"order-id": order_id, "fields": fields}]
    )


def _set_default_sort_order(draft: MetadataBuilder, update: SetDefaultSortOrderUpdate) -> MetadataBuilder:
    """Apply `SetDefaultSortOrderUpdate`."""
    ids = {o["order-id"] for o in draft.meta["sort-orders"]}
    chosen = _chosen(draft, get(update, "sort-order-id", int), draft.last_order, ids, "sort order")
    return draft if chosen == draft.meta["default-sort-order-id"] else draft.set(default_sort_order_id=chosen)


def _set_location(draft: MetadataBuilder, update: SetLocationUpdate) -> MetadataBuilder:
    """Apply `SetLocationUpdate`, without a trailing slash."""
    location = get(update, "location", str).rstrip("/")
    return draft if location == draft.meta["location"] else draft.set(location=location)


def _set_properties(draft: MetadataBuilder, update: SetPropertiesUpdate) -> MetadataBuilder:
    """Apply `SetPropertiesUpdate`; reserved names are rejected."""
    wanted = update.get("updates", update.get("updated"))
    if not isinstance(wanted, dict) or not all(isinstance(value, str) for value in wanted.values()):
        raise InvalidError("Cannot parse update set-properties: field updates must map names to strings")
    for name in wanted:
        if name in RESERVED_PROPERTIES:
            raise InvalidError(
                f"Cannot set properties: {name} is not set as a property; "
                f"{_INSTEAD.get(name, 'it follows from the table itself, leave it out')}"
            )
    properties = {**draft.meta["properties"], **wanted}
    return draft if properties == draft.meta["properties"] else draft.set(properties=properties)


def _remove_properties(draft: MetadataBuilder, update: RemovePropertiesUpdate) -> MetadataBuilder:
    """Apply `RemovePropertiesUpdate`; absent names are ignored."""
    gone = update.get("removals", update.get("removed"))
    if not isinstance(gone, list) or not all(isinstance(name, str) for name in gone):
        raise InvalidError("Cannot parse remove-properties: field removals must be a list of names")
    names = frozenset(gone)
    properties = {key: value for key, value in draft.meta["properties"].items() if key not in names}
    return draft if properties == draft.meta["properties"] else draft.set(properties=properties)


def _remove_specs(draft: MetadataBuilder, update: RemovePartitionSpecsUpdate) -> MetadataBuilder:
    """Apply `RemovePartitionSpecsUpdate`; the default spec cannot be removed."""
    gone = numbers(update, "spec-ids")
    if draft.meta["default-spec-id"] in gone:
        raise InvalidError("Cannot remove the default partition spec")
    kept = [s for s in draft.meta["partition-specs"] if s["spec-id"] not in gone]
    return draft if len(kept) == len(draft.meta["partition-specs"]) else draft.set(partition_specs=kept)


def _remove_schemas(draft: MetadataBuilder, update: RemoveSchemasUpdate) -> MetadataBuilder:
    """Apply `RemoveSchemasUpdate`; the current schema cannot be removed."""
    gone = numbers(update, "schema-ids")
    if draft.meta["current-schema-id"] in gone:
        raise InvalidError("Cannot remove the current schema")
    kept = [s for s in draft.meta["schemas"] if s["schema-id"] not in gone]
    if len(kept) == len(draft.meta["schemas"]):
        return draft
    return replace(draft, schema_ids=None).set(schemas=kept)


def _add_encryption_key(draft: MetadataBuilder, update: AddEncryptionKeyUpdate) -> MetadataBuilder:
    """Apply `AddEncryptionKeyUpdate` (format v3; table specification: "Encryption Keys")."""
    key = without_nulls(get(update, "encryption-key", dict))
    key_id = get(key, "key-id", str)
    _check_encryption_key(key)
    if draft.meta["format-version"] < 3:
        raise InvalidError(f"Cannot add encryption keys to a v{draft.meta['format-version']} table: needs v3")
    others = [k for k in draft.meta.get("encryption-keys") or [] if k["key-id"] != key_id]
    return draft.set(encryption_keys=[*others, key])


def _check_encryption_key(key: Json) -> None:
    """Require the fields that readers expect of an encryption key.

    Raises:
        InvalidError: a field is missing or malformed.
    """
    try:
        b64decode(get(key, "encrypted-key-metadata", str), validate=True)
    except ValueError as e:
        raise InvalidError(
            f"Cannot add encryption key {key['key-id']}: its encrypted-key-metadata is no base64 ({e})"
        ) from e
    if "encrypted-by-id" in key:
        get(key, "encrypted-by-id", str)
    properties = key.get("properties", {})
    if not isinstance(properties, dict) or not all(isinstance(value, str) for value in properties.values()):
        raise InvalidError(
            f"Cannot add encryption key {key['key-id']}: its properties must map names to strings"
        )


def _remove_encryption_key(draft: MetadataBuilder, update: RemoveEncryptionKeyUpdate) -> MetadataBuilder:
    """Apply `RemoveEncryptionKeyUpdate`; an unknown key is ignored."""
    key_id = get(update, "key-id", str)
    keys = draft.meta.get("encryption-keys") or []
    others = [k for k in keys if k["key-id"] != key_id]
    return draft if len(others) == len(keys) else draft.set(encryption_keys=others)


_UPDATES: dict[str, Callable[[MetadataBuilder, Any], MetadataBuilder]] = {
    "assign-uuid": _assign_uuid,
    "upgrade-format-version": _upgrade_format_version,
    "add-schema": _add_schema,
    "set-current-schema": _set_current_schema,
    "add-spec": _add_spec,
    "set-default-spec": _set_default_spec,
    "add-sort-order": _add_sort_order,
    "set-default-sort-order": _set_default_sort_order,
    "add-snapshot": add_snapshot,
    "set-snapshot-ref": set_snapshot_ref,
    "remove-snapshots": remove_snapshots,
    "remove-snapshot-ref": remove_snapshot_ref,
    "set-location": _set_location,
    "set-properties": _set_properties,
    "remove-properties": _remove_properties,
    "set-statistics": setter("statistics", "statistics"),
    "remove-statistics": remover("statistics"),
    "set-partition-statistics": setter("partition-statistics", "partition-statistics"),
    "remove-partition-statistics": remover("partition-statistics"),
    "remove-partition-specs": _remove_specs,
    "remove-schemas": _remove_schemas,
    "add-encryption-key": _add_encryption_key,
    "remove-encryption-key": _remove_encryption_key,
}


def apply(draft: MetadataBuilder, update: TableUpdate) -> MetadataBuilder:
    """Return the builder after one `TableUpdate`.

    Raises:
        InvalidError: the action is unknown, or the update cannot be applied.
        ConflictError: the update contradicts a concurrent commit.
    """
    action = update.get("action")
    function = _UPDATES.get(action) if isinstance(action, str) else None
    if function is None:
        raise InvalidError(f"Cannot apply unknown update: {update.get('action')!r}")
    return function(draft, update)


def finish(draft: MetadataBuilder) -> TableMetadata:
    """Return the complete, validated metadata after the last update.

    Raises:
        InvalidError: the metadata is inconsistent.
        ConflictError: a branch or tag references a removed snapshot.
    """
    meta, base = draft.meta.copy(), draft.base
    if (what := missing_part(meta)) is not None:
        raise InvalidError(f"Invalid table: it has no {what}")
    if any(meta[name] is not base[name] for name in _BINDING):
        check_bound(meta)
        _check_names(meta, base)
    if draft.removed:
        known = {s["snapshot-id"] for s in meta["snapshots"]}
        for name, ref in (meta.get("refs") or {}).items():
            if ref["snapshot-id"] not in known:
                raise ConflictError(
                    f"Cannot remove snapshot {ref['snapshot-id']}: {ref['type']} {name} points at it; remove "
                    "or move it in the same commit"
                )
    if draft.removed or len(draft.was_main) > 1:
        meta["snapshot-log"] = snapshot_log(draft)
    updated_ms = draft.updated_ms if draft.updated_ms is not None else draft.now_ms
    meta["last-updated-ms"] = max(updated_ms, base["last-updated-ms"])
    return meta


def _check_names(meta: TableMetadata, base: TableMetadata) -> None:
    """Require that no column gets the name of a partition field; a table may be left with one that it has.

    Raises:
        InvalidError: one does.
    """
    both = names_of_both(meta)
    new = both - names_of_both(base) if both else both
    if new:
        raise InvalidError(
            f"Invalid schema: the column {min(new)} has the name of a partition field of the table, and "
            "Spark and Trino could not open it any more (fields of former partition specs count too); give "
            "the column another name"
        )


_BINDING: tuple[
    Literal[
        "schemas",
        "current-schema-id",
        "partition-specs",
        "default-spec-id",
        "sort-orders",
        "default-sort-order-id",
    ],
    ...,
] = (
    "schemas",
    "current-schema-id",
    "partition-specs",
    "default-spec-id",
    "sort-orders",
    "default-sort-order-id",
)
