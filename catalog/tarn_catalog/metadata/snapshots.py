"""Table updates on snapshots, branches, tags and statistics. Pure.

Updates are named as in the REST specification (OpenAPI `TableUpdate`). Their effect on metadata follows
"Snapshots", "Snapshot References", "Row Lineage" and "Table Statistics" of the Iceberg table specification.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal

from tarn.core.errors import ConflictError, InvalidError
from tarn.core.object_store import is_key
from tarn_catalog.metadata.builder import (
    MetadataBuilder,
    get,
    integer,
    merged,
    missing_part,
    numbers,
    without_nulls,
)
from tarn_catalog.metadata.field_types import INT_MAX, LONG_MAX
from tarn_catalog.metadata.schemas import Json
from tarn_catalog.metadata.types import (
    AddSnapshotUpdate,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    SetSnapshotRefUpdate,
    SnapshotLogEntry,
    TableMetadata,
)

MAIN = "main"
NO_SNAPSHOT = -1
StatisticsList = Literal["statistics", "partition-statistics"]
STATISTICS: tuple[StatisticsList, ...] = ("statistics", "partition-statistics")


def add_snapshot(draft: MetadataBuilder, update: AddSnapshotUpdate) -> MetadataBuilder:
    """Apply `AddSnapshotUpdate`: add a snapshot with a new sequence number and an unused row id range.

    Specification: "Snapshots", "Sequence Numbers"; "Row Lineage" from format v3.

    Raises:
        InvalidError: the snapshot is malformed, its id is in use, or the table has no schema, partition spec
            or sort order yet.
        ConflictError: the sequence number or `first-row-id` is behind the table's: another commit won.
    """
    meta = draft.meta
    snapshot = without_nulls(get(update, "snapshot", dict))
    snapshot_id = integer(snapshot, "snapshot-id")
    timestamp_ms = integer(snapshot, "timestamp-ms")
    _check_snapshot(snapshot, meta["format-version"])
    if snapshot_id == NO_SNAPSHOT:
        raise InvalidError(
            f"Cannot add snapshot: its snapshot-id is {NO_SNAPSHOT}, which stands for no snapshot; give "
            "another"
        )
    if (what := missing_part(meta)) is not None:
        raise InvalidError(f"Attempting to add a snapshot before a {what} is added")
    if any(known["snapshot-id"] == snapshot_id for known in meta["snapshots"]):
        raise InvalidError(
            f"Snapshot already exists for id: {snapshot_id}; to publish it, send set-snapshot-ref without it"
        )
    values: Json = {"snapshots": [*meta["snapshots"], snapshot]}
    if meta["format-version"] > 1:
        sequence, last = snapshot.get("sequence-number", 0), meta["last-sequence-number"]
        if sequence <= last and snapshot.get("parent-snapshot-id") is not None:
            raise ConflictError(
                f"Cannot add snapshot with sequence number {sequence} older than last sequence number {last}"
            )
        values["last-sequence-number"] = max(sequence, last)
    parent = snapshot.get("parent-snapshot-id")
    if parent == snapshot_id or any(s.get("parent-snapshot-id") == snapshot_id for s in meta["snapshots"]):
        circular = own_ancestor([*meta["snapshots"], snapshot], [snapshot_id])
        if circular is not None:
            raise InvalidError(
                f"Cannot add snapshot {snapshot_id}: with the parent {parent} it would be its own ancestor; "
                "give the snapshot that it was built on"
            )
    if meta["format-version"] >= 3:
        values["next-row-id"] = _next_row_id(meta, snapshot)
    if draft.updated_ms is not None:
        timestamp_ms = max(timestamp_ms, draft.updated_ms)
    return replace(
        draft, meta=merged(meta, values), added=(*draft.added, snapshot_id), updated_ms=timestamp_ms
    )


def own_ancestor(snapshots: Iterable[Mapping[str, Any]], heads: Iterable[int]) -> int | None:
    """Return a snapshot that is its own ancestor, so that readers of a history would never come to an end.

    Args:
        snapshots: JSON of all snapshots.
        heads: ids of those whose ancestors are looked at.
    """
    parents = {s["snapshot-id"]: s.get("parent-snapshot-id") for s in snapshots}
    whole: set[int] = set()
    for head in heads:
        path: set[int] = set()
        at: int | None = head
        while at is not None and at in parents and at not in whole:
            if at in path:
                return at
            path.add(at)
            at = parents[at]
        whole |= path
    return None


def _check_snapshot(snapshot: Json, format_version: int) -> None:
    """Require the fields that readers of this format version expect of a snapshot.

    Raises:
        InvalidError: a field is missing or malformed.
    """
    for name in ("parent-snapshot-id", "sequence-number", "first-row-id", "added-rows"):
        if name in snapshot or (name == "sequence-number" and format_version > 1):
            integer(snapshot, name)
    if "schema-id" in snapshot:
        integer(snapshot, "schema-id", bits=32)
    if "key-id" in snapshot:
        get(snapshot, "key-id", str)
    if "summary" in snapshot or format_version > 1:
        summary = get(snapshot, "summary", dict)
        if not all(isinstance(value, str) for value in summary.values()):
            raise InvalidError("Cannot add snapshot: its summary must map names to strings")
        if summary.get("operation") not in ("append", "replace", "overwrite", "delete"):
            raise InvalidError(f"Cannot add snapshot: unknown operation {summary.get('operation')!r}")
    if format_version > 1 or "manifests" not in snapshot or "manifest-list" in snapshot:
        get(snapshot, "manifest-list", str)
    elif not all(isinstance(location, str) for location in get(snapshot, "manifests", list)):
        raise InvalidError("Cannot add snapshot: its manifests must be a list of locations")


def _next_row_id(meta: TableMetadata, snapshot: Json) -> int:
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
    after = max(int(following) + rows, first + rows)
    if after > LONG_MAX:
        raise InvalidError(
            f"Cannot add a snapshot: its rows reach {after}, and row ids have 64 bits; give a first-row-id "
            f"from {following} on"
        )
    return after


_RETENTION = ("max-ref-age-ms", "max-snapshot-age-ms", "min-snapshots-to-keep")


def set_snapshot_ref(draft: MetadataBuilder, update: SetSnapshotRefUpdate) -> MetadataBuilder:
    """Apply `SetSnapshotRefUpdate`: point a branch or tag at a snapshot; `main` also sets the current one.

    Specification: "Snapshot References" and the fields of "Snapshot Retention Policy". A branch that goes on
    to a snapshot of this commit keeps its retention if the update has none: clients that append send none
    (pyiceberg), or know the one that the branch had when they loaded the table.

    Raises:
        InvalidError: the ref type, a retention field or the snapshot id is invalid.
    """
    meta = draft.meta
    name, kind = get(update, "ref-name", str), str(get(update, "type", str)).lower()
    snapshot_id = integer(update, "snapshot-id")
    if kind not in ("branch", "tag"):
        raise InvalidError(f"Invalid snapshot ref type: {kind}")
    if name == MAIN and kind != "branch":
        raise InvalidError(f"Cannot set {MAIN} to a tag, it must be a branch")
    ref: Json = {"snapshot-id": snapshot_id, "type": kind}
    for field in _RETENTION:
        value = update.get(field)
        if value is None:
            continue
        most = INT_MAX if field == "min-snapshots-to-keep" else LONG_MAX
        if type(value) is not int or not 0 < value <= most:
            raise InvalidError(
                f"Invalid {field} {value!r} of ref {name}: it must be greater than 0 and at most {most}"
            )
        if kind == "tag" and field != "max-ref-age-ms":
            raise InvalidError(f"Tags do not support setting {field}")
        ref[field] = value
    refs = meta.get("refs") or {}
    before: Mapping[str, Any] = refs.get(name) or {}
    if kind == "branch" == before.get("type") and snapshot_id in draft.added and len(ref) == 2:
        ref |= {field: before[field] for field in _RETENTION if field in before}
    if refs.get(name) == ref:
        return draft
    if not any(s["snapshot-id"] == snapshot_id for s in reversed(meta["snapshots"])):
        raise InvalidError(f"Cannot set {name} to unknown snapshot: {snapshot_id}")
    values: Json = {"refs": {**refs, name: ref}}
    if name == MAIN and (meta.get("current-snapshot-id") != snapshot_id or MAIN not in refs):
        log = meta.get("snapshot-log") or []
        # Readers reject a log whose timestamps decrease, and client clocks go back: never order by them.
        at_ms = (
            draft.updated_ms if snapshot_id in draft.added and draft.updated_ms is not None else draft.now_ms
        )
        at_ms = max(at_ms, log[-1]["timestamp-ms"] if log else 0)
        values["current-snapshot-id"] = snapshot_id
        values["snapshot-log"] = [*log, {"timestamp-ms": at_ms, "snapshot-id": snapshot_id}]
        draft = replace(draft, was_main=(*draft.was_main, snapshot_id))
        draft = replace(draft, updated_ms=max(at_ms, draft.updated_ms or 0))
    return replace(draft, meta=merged(meta, values))


def remove_snapshot_ref(draft: MetadataBuilder, update: RemoveSnapshotRefUpdate) -> MetadataBuilder:
    """Apply `RemoveSnapshotRefUpdate`: remove a branch or tag.

    Removing `main` leaves the table without a current snapshot but keeps its history.

    Raises:
        InvalidError: `ref-name` is missing.
    """
    name = get(update, "ref-name", str)
    refs = draft.meta.get("refs") or {}
    if name not in refs:
        return draft
    values: Json = {"refs": {key: ref for key, ref in refs.items() if key != name}}
    if name == MAIN:
        values["current-snapshot-id"] = None if draft.meta["format-version"] >= 3 else NO_SNAPSHOT
    return replace(draft, meta=merged(draft.meta, values))


def with_main(meta: TableMetadata) -> TableMetadata:
    """Return metadata of a file with the branch `main` at the current snapshot; unchanged if it has that.

    Other catalogs leave out `refs`, or write null. Specification: "Table Metadata Fields" (`refs`): main
    points at `current-snapshot-id` even then.
    """
    refs, current = meta.get("refs"), meta.get("current-snapshot-id")
    if current in (None, NO_SNAPSHOT) or MAIN in (refs or {}):
        # A null is no map to readers of the specification's reference library.
        return merged(meta, {"refs": {}}) if refs is None and "refs" in meta else meta
    return merged(meta, {"refs": {**(refs or {}), MAIN: {"snapshot-id": current, "type": "branch"}}})


def remove_snapshots(draft: MetadataBuilder, update: RemoveSnapshotsUpdate) -> MetadataBuilder:
    """Apply `RemoveSnapshotsUpdate`: remove snapshots and their statistics; `finish` checks the refs.

    Raises:
        InvalidError: `snapshot-ids` is not a list of integers.
    """
    meta, gone = draft.meta, numbers(update, "snapshot-ids")
    kept = [s for s in meta["snapshots"] if s["snapshot-id"] not in gone]
    if len(kept) == len(meta["snapshots"]):
        return draft
    values: Json = {"snapshots": kept}
    for name in STATISTICS:
        files = meta.get(name) or []
        if any(file["snapshot-id"] in gone for file in files):
            values[name] = [file for file in files if file["snapshot-id"] not in gone]
    return replace(draft, meta=merged(meta, values), removed=True)


def without_lost_statistics(draft: MetadataBuilder) -> MetadataBuilder:
    """Return the builder without statistics of snapshots that are gone; unchanged if there are none.

    An analysis may take longer than its snapshot stays. What this commit set stays: the reaper finds a file
    by a version that has it.
    """
    meta, base = draft.meta, draft.base
    values: Json = {}
    for name in STATISTICS:
        files = meta.get(name)
        if not files:
            continue
        there = {s["snapshot-id"] for s in meta["snapshots"]}
        before = {file.get("statistics-path") for file in base.get(name) or []}
        kept = [f for f in files if f["snapshot-id"] in there or f.get("statistics-path") not in before]
        if len(kept) < len(files):
            values[name] = kept
    return replace(draft, meta=merged(meta, values)) if values else draft


def setter(field: str, name: StatisticsList) -> Callable[[MetadataBuilder, Json], MetadataBuilder]:
    """Return `SetStatisticsUpdate` or `SetPartitionStatisticsUpdate`: set a snapshot's statistics file.

    Specification: "Table Statistics", "Partition Statistics".

    Args:
        field: the field of the update that holds the file.
        name: the metadata list to change, `statistics` or `partition-statistics`.

    Returns:
        The update function; it raises InvalidError if a required field of the file is missing or malformed,
        or if no object can have its path.
    """

    def set_file(draft: MetadataBuilder, update: Json) -> MetadataBuilder:
        file = without_nulls(get(update, field, dict))
        snapshot_id = integer(file, "snapshot-id")
        _check_path(get(file, "statistics-path", str), f"set-{name}")
        integer(file, "file-size-in-bytes")
        if name == "statistics":
            integer(file, "file-footer-size-in-bytes")
            file["blob-metadata"] = [_checked_blob(blob) for blob in get(file, "blob-metadata", list)]
        others = [f for f in draft.meta.get(name) or [] if f["snapshot-id"] != snapshot_id]
        return replace(draft, meta=merged(draft.meta, {name: [*others, file]}))

    return set_file


def _check_path(path: str, action: str) -> None:
    """Require the location of a file, in whichever store.

    Raises:
        InvalidError: no file can be there.
    """
    _, scheme, rest = path.partition("://")
    if not is_key((rest if scheme else path).removeprefix("/")):
        raise InvalidError(
            f"Cannot parse {action}: no file can have the statistics-path {path[:300]!r}; give one without "
            "control characters, without empty parts, . or .. between slashes, and of at most 1,024 bytes"
        )


def _checked_blob(blob: object) -> Json:
    """Return blob metadata with the fields that readers expect of it ("Table Statistics").

    Raises:
        InvalidError: a field is missing or malformed.
    """
    if not isinstance(blob, dict):
        raise InvalidError(
            "Cannot parse set-statistics: blob-metadata holds something that is no JSON object"
        )
    blob = without_nulls(blob)
    get(blob, "type", str)
    integer(blob, "snapshot-id")
    integer(blob, "sequence-number")
    wrong = [number for number in numbers(blob, "fields") if not -INT_MAX - 1 <= number <= INT_MAX]
    if wrong:
        raise InvalidError(
            f"Cannot parse set-statistics: fields of a blob holds {wrong[0]}; give ids of columns, of 32 bits"
        )
    properties = blob.get("properties", {})
    if not isinstance(properties, dict) or not all(isinstance(value, str) for value in properties.values()):
        raise InvalidError("Cannot parse set-statistics: properties of a blob must map names to strings")
    return blob


def remover(name: StatisticsList) -> Callable[[MetadataBuilder, Json], MetadataBuilder]:
    """Return `RemoveStatisticsUpdate` or `RemovePartitionStatisticsUpdate` for the metadata list `name`."""

    def remove_file(draft: MetadataBuilder, update: Json) -> MetadataBuilder:
        snapshot_id = get(update, "snapshot-id", int)
        files = draft.meta.get(name) or []
        others = [f for f in files if f["snapshot-id"] != snapshot_id]
        return draft if len(others) == len(files) else replace(draft, meta=merged(draft.meta, {name: others}))

    return remove_file


def snapshot_log(draft: MetadataBuilder) -> list[SnapshotLogEntry]:
    """Return the snapshot log without intermediate snapshots and without what precedes a removed snapshot.

    Intermediate are snapshots that this commit both added and replaced as current. Specification:
    `snapshot-log` in "Table Metadata Fields".
    """
    meta = draft.meta
    passing = {i for i in draft.was_main if i in draft.added and i != meta.get("current-snapshot-id")}
    known = {s["snapshot-id"] for s in meta["snapshots"]}
    log: list[SnapshotLogEntry] = []
    for entry in meta.get("snapshot-log") or []:
        if entry["snapshot-id"] not in known:
            log = []
        elif entry["snapshot-id"] not in passing:
            log.append(entry)
    return log
