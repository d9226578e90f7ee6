"""Table metadata as parsed JSON: new tables, commit requirements, applying a commit. Pure.

Follows the Iceberg table specification, section "Table Metadata Fields", and the REST specification
(`TableRequirement`, `CommitTableRequest`). Metadata is never changed in place nor deep-copied: an update
creates a new top-level object and new copies of the lists that it changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal, cast

from tarn.core.errors import ConflictError, InvalidError
from tarn.core.history import CLOCKS_DIFFER_MS
from tarn_catalog.metadata import expiry
from tarn_catalog.metadata.builder import MetadataBuilder, check_format_version
from tarn_catalog.metadata.schemas import (
    FIRST_PARTITION_ID,
    Json,
    check_schema,
    fresh_schema,
    order_fields,
    spec_fields,
)
from tarn_catalog.metadata.snapshots import MAIN
from tarn_catalog.metadata.types import (
    MetadataLogEntry,
    RemoveSnapshotsUpdate,
    Snapshot,
    TableMetadata,
    TableRequirement,
    TableUpdate,
)
from tarn_catalog.metadata.updates import RESERVED_PROPERTIES, apply, finish

FORMAT_VERSION_DEFAULT = 2
PREVIOUS_VERSIONS_MAX = "write.metadata.previous-versions-max"
PREVIOUS_VERSIONS_MAX_DEFAULT = 20
COMPRESSION = "write.metadata.compression-codec"
# An update copies, or looks through, what it changes: of a table with nothing else, some 14,000 updates.
WORK_MAX = 100_000_000
# These take longer for each: they look at every column, and at what every spec, order or snapshot has.
UPDATES_MAX = {"add-spec": 100, "add-sort-order": 100, "add-snapshot": 1_000}
NEW_TABLE_PROPERTIES = {"write.parquet.compression-codec": "zstd"}


def new_table(
    *,
    schema: Json,
    spec: Json | None,
    order: Json | None,
    properties: Mapping[str, str],
    location: str,
    table_uuid: str,
    now_ms: int,
) -> TableMetadata:
    """Return the metadata of a new table, with newly assigned field ids.

    Specification: "Table Metadata Fields".

    Args:
        schema: JSON of the schema.
        spec: JSON of the partition spec; None for unpartitioned.
        order: JSON of the sort order; None for unsorted.
        properties: table properties; `format-version` selects the format, other reserved names are dropped.
        location: the table location that the catalog assigned.
        table_uuid: a new UUID.
        now_ms: milliseconds since the epoch.

    Raises:
        InvalidError: an argument is invalid.
    """
    format_version = check_format_version(properties.get("format-version", FORMAT_VERSION_DEFAULT))
    fresh, new_ids = fresh_schema(schema)
    last_column_id = check_schema(fresh, format_version)
    fields = spec_fields(spec or {"fields": []}, fresh, last_id=FIRST_PARTITION_ID - 1, new_ids=new_ids)
    sorting = order_fields(order or {"fields": []}, fresh, new_ids=new_ids)
    order_id = 1 if sorting else 0
    check_properties(properties)
    meta: TableMetadata = {
        **empty(table_uuid=table_uuid, format_version=format_version),
        "location": location,
        "last-updated-ms": now_ms,
        "last-column-id": last_column_id,
        "schemas": [fresh],
        "current-schema-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": fields}],
        "default-spec-id": 0,
        "last-partition-id": max((field["field-id"] for field in fields), default=FIRST_PARTITION_ID - 1),
        "sort-orders": [{"order-id": order_id, "fields": sorting}],
        "default-sort-order-id": order_id,
        "properties": {
            **NEW_TABLE_PROPERTIES,
            **{name: value for name, value in properties.items() if name not in RESERVED_PROPERTIES},
        },
    }
    return with_v1_fields(meta)


def empty(*, table_uuid: str, format_version: int) -> TableMetadata:
    """Return the empty metadata that a create transaction applies its updates to."""
    meta: TableMetadata = {
        "format-version": format_version,
        "table-uuid": table_uuid,
        "location": "",
        "last-sequence-number": 0,
        "last-updated-ms": 0,
        "last-column-id": 0,
        "current-schema-id": -1,
        "schemas": [],
        "default-spec-id": -1,
        "partition-specs": [],
        "last-partition-id": FIRST_PARTITION_ID - 1,
        "default-sort-order-id": -1,
        "sort-orders": [],
        "properties": {},
        "current-snapshot-id": None if format_version >= 3 else -1,
        "refs": {},
        "snapshots": [],
        "statistics": [],
        "partition-statistics": [],
        "snapshot-log": [],
        "metadata-log": [],
    }
    if format_version >= 3:
        meta["next-row-id"] = 0
    return meta


def check_counts(updates: Sequence[TableUpdate]) -> None:
    """Require that one commit, to whatever number of tables, has no more updates than may take long.

    Raises:
        InvalidError: it has.
    """
    for action, most in UPDATES_MAX.items():
        count = sum(update.get("action") == action for update in updates)
        if count > most:
            raise InvalidError(
                f"Cannot apply {count} updates {action} in one commit: at most {most}; send them in several"
            )


def commit(
    base: TableMetadata,
    updates: Sequence[TableUpdate],
    *,
    now_ms: int,
    previous_location: str | None,
) -> TableMetadata | None:
    """Return the metadata after all updates, or None if they change nothing.

    Args:
        base: the metadata that the updates apply to.
        updates: `TableUpdate` objects of the REST specification, in order.
        now_ms: milliseconds since the epoch.
        previous_location: where `base` is stored, for `metadata-log`; None for a new table.

    Raises:
        InvalidError: an update cannot be applied, or they are too many for one commit.
        ConflictError: an update contradicts a concurrent commit.
    """
    check_counts(updates)
    updates = _joined(updates)
    draft = MetadataBuilder(meta=base, base=base, now_ms=now_ms)
    work = 0
    for number, update in enumerate(updates, 1):
        draft = apply(draft, update)
        work += 1 + _entries(draft.meta)
        if work > WORK_MAX:
            raise InvalidError(
                f"Cannot apply {len(updates)} updates in one commit: after {number} of them the table has "
                f"{_entries(draft.meta)} snapshots, refs, properties and other entries, and each update goes "
                "through those; send fewer at once, or put properties, and ids to remove, into one update"
            )
    if draft.meta is base:
        return None
    if draft.meta["properties"] is not base["properties"]:
        check_properties(draft.meta["properties"])
    meta = finish(expiry.trimmed(draft))
    if previous_location is not None:
        meta["metadata-log"] = _metadata_log(meta, base, previous_location)
    return with_v1_fields(meta)


_LISTS = (
    "schemas",
    "partition-specs",
    "sort-orders",
    "properties",
    "snapshots",
    "refs",
    "snapshot-log",
    "statistics",
    "partition-statistics",
    "encryption-keys",
)


def _joined(updates: Sequence[TableUpdate]) -> list[TableUpdate]:
    """Return the updates with adjacent removals of snapshots as one: some clients send one for each."""
    joined: list[TableUpdate] = []
    for removes, some in groupby(updates, key=_removes_snapshots):
        if removes:
            removals = cast("Iterator[RemoveSnapshotsUpdate]", some)
            ids = [snapshot_id for update in removals for snapshot_id in update["snapshot-ids"]]
            joined.append({"action": "remove-snapshots", "snapshot-ids": ids})
        else:
            joined += some
    return joined


def _removes_snapshots(update: TableUpdate) -> bool:
    return update.get("action") == "remove-snapshots" and isinstance(update.get("snapshot-ids"), list)


def _entries(meta: TableMetadata) -> int:
    """Return how many entries the lists and maps have that updates copy."""
    entries = cast("Mapping[str, Any]", meta)
    return sum(len(entries.get(name) or ()) for name in _LISTS)


def _metadata_log(meta: TableMetadata, base: TableMetadata, previous_location: str) -> list[MetadataLogEntry]:
    kept_max = _previous_versions_max(meta["properties"])
    log = base.get("metadata-log") or []
    before_ms = log[-1]["timestamp-ms"] if log else 0
    entry: MetadataLogEntry = {
        "timestamp-ms": max(base["last-updated-ms"], before_ms),
        "metadata-file": previous_location,
    }
    return [*log[max(0, len(log) + 1 - kept_max) :], entry]


def check_properties(properties: Mapping[str, str]) -> None:
    """Require that commits can follow the properties that say how metadata is written.

    Otherwise every later commit would be refused.

    Raises:
        InvalidError: a property has an invalid value.
    """
    expiry.check(properties)
    is_gzipped(properties)
    _previous_versions_max(properties)


def _previous_versions_max(properties: Mapping[str, str]) -> int:
    text = properties.get(PREVIOUS_VERSIONS_MAX)
    if text is None:
        return PREVIOUS_VERSIONS_MAX_DEFAULT
    try:
        return max(1, int(text))
    except ValueError as e:
        raise InvalidError(f"Invalid {PREVIOUS_VERSIONS_MAX} {text[:64]!r}: give a number") from e


def is_gzipped(properties: Mapping[str, str]) -> bool:
    """Return whether the table's property has its next metadata files compressed.

    Raises:
        InvalidError: the property has another value than `gzip` or `none`.
    """
    codec = properties.get(COMPRESSION)
    if codec is None or codec.lower() == "none":
        return False
    if codec.lower() != "gzip":
        raise InvalidError(f"Invalid {COMPRESSION} {codec[:64]!r}: give gzip or none")
    return True


def with_v1_fields(meta: TableMetadata) -> TableMetadata:
    """Return the metadata with `schema` and `partition-spec` for format v1, unchanged for later formats.

    In format v1 `last-sequence-number` is dropped. Specification: "Table Metadata Fields".
    """
    if meta["format-version"] > 1:
        return meta
    schema = next(s for s in meta["schemas"] if s["schema-id"] == meta["current-schema-id"])
    spec = next(s for s in meta["partition-specs"] if s["spec-id"] == meta["default-spec-id"])
    whole: TableMetadata = {**meta, "schema": schema, "partition-spec": spec["fields"]}
    whole.pop("last-sequence-number", None)
    return whole


def check_requirements(requirements: Sequence[TableRequirement], meta: TableMetadata | None) -> None:
    """Require that all requirements of a commit hold.

    Supports all requirements of the REST specification: `AssertCreate`, `AssertTableUUID`,
    `AssertRefSnapshotId`, `AssertLastAssignedFieldId`, `AssertCurrentSchemaId`,
    `AssertLastAssignedPartitionId`, `AssertDefaultSpecId` and `AssertDefaultSortOrderId`.

    Args:
        requirements: `TableRequirement` objects of the REST specification.
        meta: the current metadata; None if the table does not exist.

    Raises:
        ConflictError: a requirement does not hold.
        InvalidError: a requirement type is unknown, or a field of one is missing or of another type.
    """
    # AssertTableUUID goes first: for another table, any other failed requirement would be misleading.
    for requirement in sorted(requirements, key=lambda one: one.get("type") != "assert-table-uuid"):
        _check_requirement(requirement, meta)


_Field = Literal[
    "last-column-id", "current-schema-id", "last-partition-id", "default-spec-id", "default-sort-order-id"
]
_EQUALITIES: dict[str, tuple[str, _Field, str]] = {
    "assert-last-assigned-field-id": (
        "last-assigned-field-id",
        "last-column-id",
        "last assigned field id changed",
    ),
    "assert-current-schema-id": ("current-schema-id", "current-schema-id", "current schema changed"),
    "assert-last-assigned-partition-id": (
        "last-assigned-partition-id",
        "last-partition-id",
        "last assigned partition id changed",
    ),
    "assert-default-spec-id": ("default-spec-id", "default-spec-id", "default partition spec changed"),
    "assert-default-sort-order-id": (
        "default-sort-order-id",
        "default-sort-order-id",
        "default sort order changed",
    ),
}


def _check_requirement(requirement: TableRequirement, meta: TableMetadata | None) -> None:
    kind = str(requirement.get("type"))
    if kind == "assert-create":
        if meta is not None:
            raise ConflictError("Requirement failed: table already exists")
        return
    if kind != "assert-table-uuid" and kind != "assert-ref-snapshot-id" and kind not in _EQUALITIES:
        raise InvalidError(f"Unknown requirement type: {kind}")
    if meta is None:
        raise ConflictError("Requirement failed: current table metadata is missing")
    if kind == "assert-table-uuid":
        expected = _get(requirement, "uuid", str)
        if expected.lower() != meta["table-uuid"]:
            raise ConflictError(
                f"Requirement failed: UUID does not match: expected {meta['table-uuid']} != {expected}"
            )
    elif kind == "assert-ref-snapshot-id":
        snapshot_id = requirement.get("snapshot-id")
        if snapshot_id is not None:
            snapshot_id = _get(requirement, "snapshot-id", int)
        _check_ref(_get(requirement, "ref", str), snapshot_id, meta)
    else:
        wanted, actual, text = _EQUALITIES[kind]
        expected = _get(requirement, wanted, int)
        if expected != meta[actual]:
            raise ConflictError(f"Requirement failed: {text}: expected id {expected} != {meta[actual]}")


def _check_ref(name: str, expected: object, meta: TableMetadata) -> None:
    ref = (meta.get("refs") or {}).get(name)
    if ref is None:
        if expected is not None:
            raise ConflictError(f"Requirement failed: branch or tag {name} is missing, expected {expected}")
        return
    if expected is None:
        raise ConflictError(f"Requirement failed: {ref['type']} {name} was created concurrently")
    if expected != ref["snapshot-id"]:
        raise ConflictError(
            f"Requirement failed: {ref['type']} {name} has changed: expected id {expected} != "
            f"{ref['snapshot-id']}"
        )


def _get(requirement: Mapping[str, Any], name: str, kind: type) -> Any:
    """Return a field of a requirement, checked to be of type `kind`; a bool never passes.

    Raises:
        InvalidError: the field is missing or of another type.
    """
    value = requirement.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise InvalidError(
            f"Cannot parse requirement {requirement.get('type')}: field {name} is missing or no "
            f"{kind.__name__}"
        )
    return value


def already_applied(updates: Sequence[TableUpdate], meta: TableMetadata) -> bool:
    """Return whether all snapshots that the updates add are already in the metadata (invariant I4).

    A snapshot matches if its content is equal, or if its id is an ancestor of a branch that the updates set:
    clients keep the snapshot id when they rebase, so the content may come from an earlier attempt. Return
    False if the updates add no snapshot, or make one current that is there and provably never was current, as
    after a commit that only staged it.
    """
    added = [update.get("snapshot") for update in updates if update.get("action") == "add-snapshot"]
    wanted: dict[int, Snapshot] = {}
    for snapshot in added:
        if not isinstance(snapshot, dict) or not isinstance(snapshot.get("snapshot-id"), int):
            return False
        wanted[snapshot["snapshot-id"]] = cast("Snapshot", snapshot)
    moves = [update for update in updates if update.get("action") == "set-snapshot-ref"]
    if not wanted or not all(
        isinstance(u.get("snapshot-id"), int) and isinstance(u.get("ref-name"), str) for u in moves
    ):
        return False
    found = {s["snapshot-id"]: s for s in meta["snapshots"] if s["snapshot-id"] in wanted}
    if len(found) != len(wanted):
        return False
    if all(_same(wanted[i], found[i]) for i in wanted):
        mains = [u.get("snapshot-id") for u in moves if u.get("ref-name") == MAIN]
        return not mains or mains[-1] not in found or not _was_never_main(found[mains[-1]], meta)
    moved = {u.get("ref-name") for u in moves}
    heads = [ref["snapshot-id"] for name, ref in (meta.get("refs") or {}).items() if name in moved]
    return set(wanted) <= _ancestors(heads, meta)


def adds_snapshots(updates: Sequence[TableUpdate]) -> bool:
    """Return whether updates add a snapshot, so that files which the client wrote belong to them."""
    return any(update.get("action") == "add-snapshot" for update in updates)


def _was_never_main(snapshot: Snapshot, meta: TableMetadata) -> bool:
    """Return whether a snapshot of the table provably was never its current one.

    Expiry cuts the snapshot log from its start, so the log proves it only for what is younger than its first
    entry; and an empty log only if no snapshot was ever removed.
    """
    refs, log = meta.get("refs") or {}, meta.get("snapshot-log") or []
    number = snapshot["snapshot-id"]
    heads = [refs[MAIN]["snapshot-id"]] if MAIN in refs else []
    if number in _ancestors(heads, meta) or any(entry["snapshot-id"] == number for entry in log):
        return False
    if log:
        return snapshot["timestamp-ms"] > log[0]["timestamp-ms"] + CLOCKS_DIFFER_MS
    added = meta.get("last-sequence-number")
    return not heads and added is not None and added <= len(meta["snapshots"])


def _ancestors(heads: Sequence[int], meta: TableMetadata) -> set[int]:
    parents = {s["snapshot-id"]: s.get("parent-snapshot-id") for s in meta["snapshots"]}
    seen: set[int] = set()
    for head in heads:
        current: int | None = head
        while current is not None and current not in seen:
            seen.add(current)
            current = parents.get(current)
    return seen


def _same(a: Snapshot, b: Snapshot) -> bool:
    names = ("parent-snapshot-id", "manifest-list", "timestamp-ms", "summary", "schema-id")
    return all(a.get(name) == b.get(name) for name in names)


def refs_only(meta: TableMetadata) -> TableMetadata:
    """Return the metadata with only the snapshots that a branch or tag references (`snapshots=refs`)."""
    named = {ref["snapshot-id"] for ref in (meta.get("refs") or {}).values()}
    return {**meta, "snapshots": [s for s in meta["snapshots"] if s["snapshot-id"] in named]}
