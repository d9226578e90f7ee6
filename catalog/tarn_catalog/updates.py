"""The table updates of the REST specification, each a small pure function on parsed JSON.

`apply(draft, update)` gives the next draft; nothing is changed in place, and only the lists that an update
touches are copied. `-1` for a schema, spec or sort order means the one that was added last in this commit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from tarn.core.errors import ConflictError, InvalidError
from tarn_catalog.schemas import (
    FORMAT_VERSION_MAX,
    Json,
    check_bound,
    check_schema,
    order_fields,
    same_schema,
    spec_fields,
)

MAIN = "main"
LAST_ADDED = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """Metadata in the course of one commit.

    Attributes:
        meta: as it is now; the very object `base` as long as nothing has changed.
        base: as it was.
        now_ms: the time of the commit.
        updated_ms: the time that an added snapshot gives the commit.
        last_schema: the schema id that -1 means.
        last_spec: the spec id that -1 means.
        last_order: the sort order id that -1 means.
        added: ids of snapshots that this commit added.
        was_main: ids that this commit made the current snapshot, in order.
        removed: whether this commit removed snapshots.
    """

    meta: Json
    base: Json
    now_ms: int
    updated_ms: int | None = None
    last_schema: int | None = None
    last_spec: int | None = None
    last_order: int | None = None
    added: tuple[int, ...] = ()
    was_main: tuple[int, ...] = ()
    removed: bool = False

    def set(self, **values: Any) -> Draft:
        """With these fields of the metadata (underscores for hyphens)."""
        return replace(self, meta={**self.meta, **{k.replace("_", "-"): v for k, v in values.items()}})


def check_format_version(value: Any) -> int:
    """The format version as a number.

    Raises:
        InvalidError: it is none that the catalog knows.
    """
    try:
        version = int(value)
    except (TypeError, ValueError):
        version = 0
    if not 1 <= version <= FORMAT_VERSION_MAX:
        raise InvalidError(f"Unsupported format version: v{value} (supported: v1 to v{FORMAT_VERSION_MAX})")
    return version


def _get(update: Json, name: str, kind: type) -> Any:
    value = update.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        what = update.get("action", "update")
        raise InvalidError(f"Cannot parse {what}: field {name} is missing or no {kind.__name__}")
    return value


def _numbers(update: Json, name: str) -> set[int]:
    found = _get(update, name, list)
    if not all(type(number) is int for number in found):
        raise InvalidError(f"Cannot parse {update.get('action')}: {name} holds something that is no number")
    return set(found)


def _assign_uuid(draft: Draft, update: Json) -> Draft:
    try:
        wanted = str(UUID(_get(update, "uuid", str)))
    except ValueError as e:
        raise InvalidError(f"Cannot assign uuid {update['uuid']!r}: it is no UUID") from e
    if wanted == draft.meta["table-uuid"]:
        return draft
    raise InvalidError(f"Cannot reassign uuid: it is {draft.meta['table-uuid']}, not {wanted}")


def _upgrade_format_version(draft: Draft, update: Json) -> Draft:
    wanted, current = _get(update, "format-version", int), draft.meta["format-version"]
    if wanted > FORMAT_VERSION_MAX:
        raise InvalidError(
            f"Cannot upgrade table to unsupported format version: v{wanted} "
            f"(supported: v{FORMAT_VERSION_MAX})"
        )
    if wanted < current:
        raise InvalidError(f"Cannot downgrade v{current} table to v{wanted}")
    if wanted == current:
        return draft
    meta = {
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


def _add_schema(draft: Draft, update: Json) -> Draft:
    meta = draft.meta
    schema = _get(update, "schema", dict)
    highest = check_schema(schema, meta["format-version"])
    last_column_id = max(meta["last-column-id"], highest)
    for known in meta["schemas"]:
        if same_schema(known, schema):
            same = replace(draft, last_schema=known["schema-id"])
            return (
                same if last_column_id == meta["last-column-id"] else same.set(last_column_id=last_column_id)
            )
    schema_id = max((s["schema-id"] for s in meta["schemas"]), default=-1) + 1
    added = {**schema, "schema-id": schema_id}
    return replace(draft, last_schema=schema_id).set(
        schemas=[*meta["schemas"], added], last_column_id=last_column_id
    )


def _chosen(draft: Draft, wanted: int, last: int | None, ids: set[int], what: str) -> int:
    if wanted == LAST_ADDED:
        if last is None:
            raise InvalidError(f"Cannot set last added {what}: no {what} has been added")
        return last
    if wanted not in ids:
        verb = "current" if what == "schema" else "default"
        raise InvalidError(f"Cannot set {verb} {what} to unknown {what}: {wanted}")
    return wanted


def _set_current_schema(draft: Draft, update: Json) -> Draft:
    ids = {s["schema-id"] for s in draft.meta["schemas"]}
    chosen = _chosen(draft, _get(update, "schema-id", int), draft.last_schema, ids, "schema")
    return draft if chosen == draft.meta["current-schema-id"] else draft.set(current_schema_id=chosen)


def _current_schema(meta: Json) -> Json:
    for schema in meta["schemas"]:
        if schema["schema-id"] == meta["current-schema-id"]:
            return dict(schema)
    if meta["schemas"]:
        return dict(meta["schemas"][-1])
    raise InvalidError("Cannot add a partition spec or sort order before a schema is added")


def _shape(fields: list[Json]) -> list[tuple[Any, ...]]:
    return [
        (str(f.get("source-id", f.get("source-ids"))), f["name"], f["transform"], f["field-id"])
        for f in fields
    ]


def _add_spec(draft: Draft, update: Json) -> Draft:
    meta = draft.meta
    fields = spec_fields(_get(update, "spec", dict), _current_schema(meta), last_id=meta["last-partition-id"])
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


def _set_default_spec(draft: Draft, update: Json) -> Draft:
    ids = {s["spec-id"] for s in draft.meta["partition-specs"]}
    chosen = _chosen(draft, _get(update, "spec-id", int), draft.last_spec, ids, "partition spec")
    return draft if chosen == draft.meta["default-spec-id"] else draft.set(default_spec_id=chosen)


def _add_sort_order(draft: Draft, update: Json) -> Draft:
    meta = draft.meta
    fields = order_fields(_get(update, "sort-order", dict), _current_schema(meta))
    for known in meta["sort-orders"]:
        if known["fields"] == fields:
            return replace(draft, last_order=known["order-id"])
    order_id = max([0, *(o["order-id"] for o in meta["sort-orders"])]) + 1 if fields else 0
    return replace(draft, last_order=order_id).set(
        sort_orders=[*meta["sort-orders"], {"order-id": order_id, "fields": fields}]
    )


def _set_default_sort_order(draft: Draft, update: Json) -> Draft:
    ids = {o["order-id"] for o in draft.meta["sort-orders"]}
    chosen = _chosen(draft, _get(update, "sort-order-id", int), draft.last_order, ids, "sort order")
    return draft if chosen == draft.meta["default-sort-order-id"] else draft.set(default_sort_order_id=chosen)


def _add_snapshot(draft: Draft, update: Json) -> Draft:
    meta = draft.meta
    snapshot = _get(update, "snapshot", dict)
    snapshot_id = _get(snapshot, "snapshot-id", int)
    timestamp_ms = _get(snapshot, "timestamp-ms", int)
    _check_snapshot(snapshot, meta["format-version"])
    for name, what in (
        ("schemas", "schema"),
        ("partition-specs", "partition spec"),
        ("sort-orders", "sort order"),
    ):
        if not meta[name]:
            raise InvalidError(f"Attempting to add a snapshot before a {what} is added")
    if any(known["snapshot-id"] == snapshot_id for known in meta["snapshots"]):
        raise InvalidError(f"Snapshot already exists for id: {snapshot_id}")
    values: Json = {"snapshots": [*meta["snapshots"], snapshot]}
    if meta["format-version"] > 1:
        sequence, last = snapshot.get("sequence-number", 0), meta["last-sequence-number"]
        if sequence <= last and snapshot.get("parent-snapshot-id") is not None:
            raise ConflictError(
                f"Cannot add snapshot with sequence number {sequence} older than last sequence number {last}"
            )
        values["last-sequence-number"] = max(sequence, last)
    if meta["format-version"] >= 3:
        values["next-row-id"] = _next_row_id(meta, snapshot)
    if draft.updated_ms is not None:
        timestamp_ms = max(timestamp_ms, draft.updated_ms)
    return replace(draft, meta={**meta, **values}, added=(*draft.added, snapshot_id), updated_ms=timestamp_ms)


def _check_snapshot(snapshot: Json, format_version: int) -> None:
    """Nothing, if readers of this format version will understand the snapshot."""
    for name in ("parent-snapshot-id", "sequence-number", "schema-id"):
        if snapshot.get(name) is not None or (name == "sequence-number" and format_version > 1):
            _get(snapshot, name, int)
    if snapshot.get("summary") is not None or format_version > 1:
        summary = _get(snapshot, "summary", dict)
        if not all(isinstance(value, str) for value in summary.values()):
            raise InvalidError("Cannot add snapshot: its summary must map names to strings")
        if summary.get("operation") not in ("append", "replace", "overwrite", "delete"):
            raise InvalidError(f"Cannot add snapshot: unknown operation {summary.get('operation')!r}")
    if format_version > 1 or "manifests" not in snapshot:
        _get(snapshot, "manifest-list", str)


def _next_row_id(meta: Json, snapshot: Json) -> int:
    first, rows, following = (
        snapshot.get("first-row-id"),
        snapshot.get("added-rows"),
        meta.get("next-row-id", 0),
    )
    if not isinstance(first, int):
        raise InvalidError("Cannot add a snapshot: first-row-id is null")
    if not isinstance(rows, int) or rows < 0:
        raise InvalidError("Cannot add a snapshot: added-rows is null")
    if first < following:
        raise ConflictError(
            f"Cannot add a snapshot, first-row-id is behind table next-row-id: {first} < {following}"
        )
    return max(int(following) + rows, first + rows)


_RETENTION = ("max-ref-age-ms", "max-snapshot-age-ms", "min-snapshots-to-keep")


def _set_snapshot_ref(draft: Draft, update: Json) -> Draft:
    meta = draft.meta
    name, kind = _get(update, "ref-name", str), str(_get(update, "type", str)).lower()
    snapshot_id = _get(update, "snapshot-id", int)
    if kind not in ("branch", "tag"):
        raise InvalidError(f"Invalid snapshot ref type: {kind}")
    if name == MAIN and kind != "branch":
        raise InvalidError(f"Cannot set {MAIN} to a tag, it must be a branch")
    ref: Json = {"snapshot-id": snapshot_id, "type": kind}
    for field in _RETENTION:
        value = update.get(field)
        if value is None:
            continue
        if not isinstance(value, int) or value <= 0:
            raise InvalidError(f"Invalid {field} {value!r} of ref {name}: it must be greater than 0")
        if kind == "tag" and field != "max-ref-age-ms":
            raise InvalidError(f"Tags do not support setting {field}")
        ref[field] = value
    refs = meta.get("refs") or {}
    if refs.get(name) == ref:
        return draft
    if not any(s["snapshot-id"] == snapshot_id for s in reversed(meta["snapshots"])):
        raise InvalidError(f"Cannot set {name} to unknown snapshot: {snapshot_id}")
    values: Json = {"refs": {**refs, name: ref}}
    if name == MAIN and (meta.get("current-snapshot-id") != snapshot_id or MAIN not in refs):
        log = meta.get("snapshot-log") or []
        # Readers refuse a log that goes back in time, and clients' clocks do: never order by them.
        at_ms = (
            draft.updated_ms if snapshot_id in draft.added and draft.updated_ms is not None else draft.now_ms
        )
        at_ms = max(at_ms, log[-1]["timestamp-ms"] if log else 0)
        values["current-snapshot-id"] = snapshot_id
        values["snapshot-log"] = [*log, {"timestamp-ms": at_ms, "snapshot-id": snapshot_id}]
        draft = replace(draft, was_main=(*draft.was_main, snapshot_id))
        draft = replace(draft, updated_ms=max(at_ms, draft.updated_ms or 0))
    return replace(draft, meta={**meta, **values})


def _remove_snapshot_ref(draft: Draft, update: Json) -> Draft:
    name = _get(update, "ref-name", str)
    refs = draft.meta.get("refs") or {}
    if name not in refs:
        return draft
    values: Json = {"refs": {key: ref for key, ref in refs.items() if key != name}}
    if name == MAIN:
        values["current-snapshot-id"] = None if draft.meta["format-version"] >= 3 else -1
        values["snapshot-log"] = []
    return replace(draft, meta={**draft.meta, **values})


def _remove_snapshots(draft: Draft, update: Json) -> Draft:
    meta, gone = draft.meta, _numbers(update, "snapshot-ids")
    kept = [s for s in meta["snapshots"] if s["snapshot-id"] not in gone]
    if len(kept) == len(meta["snapshots"]):
        return draft
    values: Json = {"snapshots": kept}
    for name in ("statistics", "partition-statistics"):
        files = meta.get(name) or []
        if any(file["snapshot-id"] in gone for file in files):
            values[name] = [file for file in files if file["snapshot-id"] not in gone]
    return replace(draft, meta={**meta, **values}, removed=True)


def _set_location(draft: Draft, update: Json) -> Draft:
    location = _get(update, "location", str).rstrip("/")
    return draft if location == draft.meta["location"] else draft.set(location=location)


def _set_properties(draft: Draft, update: Json) -> Draft:
    wanted = update.get("updates", update.get("updated"))
    if not isinstance(wanted, dict) or not all(isinstance(value, str) for value in wanted.values()):
        raise InvalidError("Cannot parse update set-properties: field updates must map names to strings")
    properties = {**draft.meta["properties"], **wanted}
    return draft if properties == draft.meta["properties"] else draft.set(properties=properties)


def _remove_properties(draft: Draft, update: Json) -> Draft:
    gone = update.get("removals", update.get("removed"))
    if not isinstance(gone, list) or not all(isinstance(name, str) for name in gone):
        raise InvalidError("Cannot parse remove-properties: field removals must be a list of names")
    properties = {key: value for key, value in draft.meta["properties"].items() if key not in gone}
    return draft if properties == draft.meta["properties"] else draft.set(properties=properties)


def _setter(field: str, name: str) -> Callable[[Draft, Json], Draft]:
    def set_file(draft: Draft, update: Json) -> Draft:
        file = _get(update, field, dict)
        snapshot_id = _get(file, "snapshot-id", int)
        _get(file, "statistics-path", str)
        _get(file, "file-size-in-bytes", int)
        if name == "statistics":
            _get(file, "file-footer-size-in-bytes", int)
            _get(file, "blob-metadata", list)
        others = [f for f in draft.meta.get(name) or [] if f["snapshot-id"] != snapshot_id]
        return replace(draft, meta={**draft.meta, name: [*others, file]})

    return set_file


def _remover(name: str) -> Callable[[Draft, Json], Draft]:
    def remove_file(draft: Draft, update: Json) -> Draft:
        snapshot_id = _get(update, "snapshot-id", int)
        files = draft.meta.get(name) or []
        others = [f for f in files if f["snapshot-id"] != snapshot_id]
        return draft if len(others) == len(files) else replace(draft, meta={**draft.meta, name: others})

    return remove_file


def _remove_specs(draft: Draft, update: Json) -> Draft:
    gone = _numbers(update, "spec-ids")
    if draft.meta["default-spec-id"] in gone:
        raise InvalidError("Cannot remove the default partition spec")
    kept = [s for s in draft.meta["partition-specs"] if s["spec-id"] not in gone]
    return draft if len(kept) == len(draft.meta["partition-specs"]) else draft.set(partition_specs=kept)


def _remove_schemas(draft: Draft, update: Json) -> Draft:
    gone = _numbers(update, "schema-ids")
    if draft.meta["current-schema-id"] in gone:
        raise InvalidError("Cannot remove the current schema")
    kept = [s for s in draft.meta["schemas"] if s["schema-id"] not in gone]
    return draft if len(kept) == len(draft.meta["schemas"]) else draft.set(schemas=kept)


def _add_encryption_key(draft: Draft, update: Json) -> Draft:
    key = _get(update, "encryption-key", dict)
    key_id = _get(key, "key-id", str)
    if draft.meta["format-version"] < 3:
        raise InvalidError(f"Cannot add encryption keys to a v{draft.meta['format-version']} table: needs v3")
    others = [k for k in draft.meta.get("encryption-keys") or [] if k["key-id"] != key_id]
    return draft.set(encryption_keys=[*others, key])


def _remove_encryption_key(draft: Draft, update: Json) -> Draft:
    key_id = _get(update, "key-id", str)
    keys = draft.meta.get("encryption-keys") or []
    others = [k for k in keys if k["key-id"] != key_id]
    return draft if len(others) == len(keys) else draft.set(encryption_keys=others)


_UPDATES: dict[str, Callable[[Draft, Json], Draft]] = {
    "assign-uuid": _assign_uuid,
    "upgrade-format-version": _upgrade_format_version,
    "add-schema": _add_schema,
    "set-current-schema": _set_current_schema,
    "add-spec": _add_spec,
    "set-default-spec": _set_default_spec,
    "add-sort-order": _add_sort_order,
    "set-default-sort-order": _set_default_sort_order,
    "add-snapshot": _add_snapshot,
    "set-snapshot-ref": _set_snapshot_ref,
    "remove-snapshots": _remove_snapshots,
    "remove-snapshot-ref": _remove_snapshot_ref,
    "set-location": _set_location,
    "set-properties": _set_properties,
    "remove-properties": _remove_properties,
    "set-statistics": _setter("statistics", "statistics"),
    "remove-statistics": _remover("statistics"),
    "set-partition-statistics": _setter("partition-statistics", "partition-statistics"),
    "remove-partition-statistics": _remover("partition-statistics"),
    "remove-partition-specs": _remove_specs,
    "remove-schemas": _remove_schemas,
    "add-encryption-key": _add_encryption_key,
    "remove-encryption-key": _remove_encryption_key,
}


def apply(draft: Draft, update: Json) -> Draft:
    """The draft after one update.

    Raises:
        InvalidError: it cannot be applied.
        ConflictError: it contradicts what another commit did.
    """
    action = update.get("action")
    function = _UPDATES.get(action) if isinstance(action, str) else None
    if function is None:
        raise InvalidError(f"Cannot apply unknown update: {update.get('action')!r}")
    return function(draft, update)


def finish(draft: Draft) -> Json:
    """The metadata of a draft after its last update, whole and checked.

    Raises:
        InvalidError: the whole does not hold together.
        ConflictError: a removed snapshot is still named by a branch or tag.
    """
    meta, base = dict(draft.meta), draft.base
    for name, what in (
        ("schemas", "schema"),
        ("partition-specs", "partition spec"),
        ("sort-orders", "sort order"),
    ):
        if not meta[name]:
            raise InvalidError(f"Invalid table: it has no {what}")
    if any(meta[name] is not base[name] for name in _BINDING):
        check_bound(meta)
    if draft.removed:
        known = {s["snapshot-id"] for s in meta["snapshots"]}
        for name, ref in (meta.get("refs") or {}).items():
            if ref["snapshot-id"] not in known:
                raise ConflictError(
                    f"Cannot remove snapshot {ref['snapshot-id']}: {ref['type']} {name} points at it; remove "
                    "or move it in the same commit"
                )
    if draft.removed or len(draft.was_main) > 1:
        meta["snapshot-log"] = _snapshot_log(draft)
    updated_ms = draft.updated_ms if draft.updated_ms is not None else draft.now_ms
    meta["last-updated-ms"] = max(updated_ms, base["last-updated-ms"])
    return meta


_BINDING = (
    "schemas",
    "current-schema-id",
    "partition-specs",
    "default-spec-id",
    "sort-orders",
    "default-sort-order-id",
)


def _snapshot_log(draft: Draft) -> list[Json]:
    """The log without snapshots that were current only within this commit or lie before a removed one."""
    meta = draft.meta
    passing = {i for i in draft.was_main if i in draft.added and i != meta.get("current-snapshot-id")}
    known = {s["snapshot-id"] for s in meta["snapshots"]}
    log: list[Json] = []
    for entry in meta.get("snapshot-log") or []:
        if entry["snapshot-id"] not in known:
            log = []
        elif entry["snapshot-id"] not in passing:
            log.append(entry)
    return log
