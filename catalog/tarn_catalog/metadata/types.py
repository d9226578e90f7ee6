"""The JSON shapes of metadata, commit requirements and updates, for readers and the type checker.

Iceberg table specification: "Table Metadata Fields", "Snapshots", "Snapshot References"; REST specification:
`TableRequirement` and `TableUpdate`. Nothing here is checked at run time: what a client sends may lack every
field, so `builder.get` and `table_metadata` reject what is missing or malformed.
"""

# ruff: noqa: UP013 (most keys have hyphens, which the class form cannot have; one form for all)
from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

from tarn_catalog.metadata.schemas import Json

Snapshot = TypedDict(
    "Snapshot",
    {
        "snapshot-id": int,
        "timestamp-ms": int,
        "parent-snapshot-id": NotRequired[int | None],
        "sequence-number": NotRequired[int],
        "manifest-list": NotRequired[str],
        "manifests": NotRequired[list[str]],
        "summary": NotRequired[dict[str, str]],
        "schema-id": NotRequired[int | None],
        "first-row-id": NotRequired[int],
        "added-rows": NotRequired[int],
    },
)
SnapshotRef = TypedDict(
    "SnapshotRef",
    {
        "snapshot-id": int,
        "type": str,
        "max-ref-age-ms": NotRequired[int],
        "max-snapshot-age-ms": NotRequired[int],
        "min-snapshots-to-keep": NotRequired[int],
    },
)
SnapshotLogEntry = TypedDict("SnapshotLogEntry", {"timestamp-ms": int, "snapshot-id": int})
MetadataLogEntry = TypedDict("MetadataLogEntry", {"timestamp-ms": int, "metadata-file": str})
PartitionSpec = TypedDict("PartitionSpec", {"spec-id": int, "fields": list[Json]})
SortOrder = TypedDict("SortOrder", {"order-id": int, "fields": list[Json]})
TableMetadata = TypedDict(
    "TableMetadata",
    {
        "format-version": int,
        "table-uuid": str,
        "location": str,
        "last-updated-ms": int,
        "last-column-id": int,
        "schemas": list[Json],
        "current-schema-id": int,
        "partition-specs": list[PartitionSpec],
        "default-spec-id": int,
        "last-partition-id": int,
        "sort-orders": list[SortOrder],
        "default-sort-order-id": int,
        "properties": dict[str, str],
        "snapshots": list[Snapshot],
        # From format v2 on; other catalogs leave out any of the following.
        "last-sequence-number": NotRequired[int],
        "current-snapshot-id": NotRequired[int | None],
        "refs": NotRequired[dict[str, SnapshotRef]],
        "snapshot-log": NotRequired[list[SnapshotLogEntry]],
        "metadata-log": NotRequired[list[MetadataLogEntry]],
        "statistics": NotRequired[list[Json]],
        "partition-statistics": NotRequired[list[Json]],
        # From format v3 on.
        "next-row-id": NotRequired[int],
        "encryption-keys": NotRequired[list[Json]],
        # Format v1 only.
        "schema": NotRequired[Json],
        "partition-spec": NotRequired[list[Json]],
    },
)

ViewVersion = TypedDict(
    "ViewVersion",
    {
        "version-id": int,
        "timestamp-ms": int,
        "schema-id": int,
        "summary": dict[str, str],
        "representations": list[Json],
        "default-namespace": list[str],
        "default-catalog": NotRequired[str | None],
    },
)
VersionLogEntry = TypedDict("VersionLogEntry", {"timestamp-ms": int, "version-id": int})
ViewMetadata = TypedDict(
    "ViewMetadata",
    {
        "view-uuid": str,
        "format-version": int,
        "location": str,
        "schemas": list[Json],
        "current-version-id": int,
        "versions": list[ViewVersion],
        "version-log": list[VersionLogEntry],
        "properties": dict[str, str],
    },
)

AssertCreate = TypedDict("AssertCreate", {"type": Literal["assert-create"]})
AssertTableUUID = TypedDict("AssertTableUUID", {"type": Literal["assert-table-uuid"], "uuid": str})
AssertRefSnapshotId = TypedDict(
    "AssertRefSnapshotId",
    {"type": Literal["assert-ref-snapshot-id"], "ref": str, "snapshot-id": int | None},
)
AssertLastAssignedFieldId = TypedDict(
    "AssertLastAssignedFieldId",
    {"type": Literal["assert-last-assigned-field-id"], "last-assigned-field-id": int},
)
AssertCurrentSchemaId = TypedDict(
    "AssertCurrentSchemaId", {"type": Literal["assert-current-schema-id"], "current-schema-id": int}
)
AssertLastAssignedPartitionId = TypedDict(
    "AssertLastAssignedPartitionId",
    {"type": Literal["assert-last-assigned-partition-id"], "last-assigned-partition-id": int},
)
AssertDefaultSpecId = TypedDict(
    "AssertDefaultSpecId", {"type": Literal["assert-default-spec-id"], "default-spec-id": int}
)
AssertDefaultSortOrderId = TypedDict(
    "AssertDefaultSortOrderId",
    {"type": Literal["assert-default-sort-order-id"], "default-sort-order-id": int},
)
TableRequirement = (
    AssertCreate
    | AssertTableUUID
    | AssertRefSnapshotId
    | AssertLastAssignedFieldId
    | AssertCurrentSchemaId
    | AssertLastAssignedPartitionId
    | AssertDefaultSpecId
    | AssertDefaultSortOrderId
)

AssignUUIDUpdate = TypedDict("AssignUUIDUpdate", {"action": Literal["assign-uuid"], "uuid": str})
UpgradeFormatVersionUpdate = TypedDict(
    "UpgradeFormatVersionUpdate", {"action": Literal["upgrade-format-version"], "format-version": int}
)
AddSchemaUpdate = TypedDict(
    "AddSchemaUpdate",
    {"action": Literal["add-schema"], "schema": Json, "last-column-id": NotRequired[int]},
)
SetCurrentSchemaUpdate = TypedDict(
    "SetCurrentSchemaUpdate", {"action": Literal["set-current-schema"], "schema-id": int}
)
AddPartitionSpecUpdate = TypedDict("AddPartitionSpecUpdate", {"action": Literal["add-spec"], "spec": Json})
SetDefaultSpecUpdate = TypedDict(
    "SetDefaultSpecUpdate", {"action": Literal["set-default-spec"], "spec-id": int}
)
AddSortOrderUpdate = TypedDict(
    "AddSortOrderUpdate", {"action": Literal["add-sort-order"], "sort-order": Json}
)
SetDefaultSortOrderUpdate = TypedDict(
    "SetDefaultSortOrderUpdate", {"action": Literal["set-default-sort-order"], "sort-order-id": int}
)
AddSnapshotUpdate = TypedDict("AddSnapshotUpdate", {"action": Literal["add-snapshot"], "snapshot": Snapshot})
SetSnapshotRefUpdate = TypedDict(
    "SetSnapshotRefUpdate",
    {
        "action": Literal["set-snapshot-ref"],
        "ref-name": str,
        "type": str,
        "snapshot-id": int,
        "max-ref-age-ms": NotRequired[int],
        "max-snapshot-age-ms": NotRequired[int],
        "min-snapshots-to-keep": NotRequired[int],
    },
)
RemoveSnapshotsUpdate = TypedDict(
    "RemoveSnapshotsUpdate", {"action": Literal["remove-snapshots"], "snapshot-ids": list[int]}
)
RemoveSnapshotRefUpdate = TypedDict(
    "RemoveSnapshotRefUpdate", {"action": Literal["remove-snapshot-ref"], "ref-name": str}
)
SetLocationUpdate = TypedDict("SetLocationUpdate", {"action": Literal["set-location"], "location": str})
SetPropertiesUpdate = TypedDict(
    "SetPropertiesUpdate", {"action": Literal["set-properties"], "updates": dict[str, str]}
)
RemovePropertiesUpdate = TypedDict(
    "RemovePropertiesUpdate", {"action": Literal["remove-properties"], "removals": list[str]}
)
SetStatisticsUpdate = TypedDict(
    "SetStatisticsUpdate", {"action": Literal["set-statistics"], "statistics": Json}
)
RemoveStatisticsUpdate = TypedDict(
    "RemoveStatisticsUpdate", {"action": Literal["remove-statistics"], "snapshot-id": int}
)
SetPartitionStatisticsUpdate = TypedDict(
    "SetPartitionStatisticsUpdate",
    {"action": Literal["set-partition-statistics"], "partition-statistics": Json},
)
RemovePartitionStatisticsUpdate = TypedDict(
    "RemovePartitionStatisticsUpdate",
    {"action": Literal["remove-partition-statistics"], "snapshot-id": int},
)
RemovePartitionSpecsUpdate = TypedDict(
    "RemovePartitionSpecsUpdate", {"action": Literal["remove-partition-specs"], "spec-ids": list[int]}
)
RemoveSchemasUpdate = TypedDict(
    "RemoveSchemasUpdate", {"action": Literal["remove-schemas"], "schema-ids": list[int]}
)
AddEncryptionKeyUpdate = TypedDict(
    "AddEncryptionKeyUpdate", {"action": Literal["add-encryption-key"], "encryption-key": Json}
)
RemoveEncryptionKeyUpdate = TypedDict(
    "RemoveEncryptionKeyUpdate", {"action": Literal["remove-encryption-key"], "key-id": str}
)
TableUpdate = (
    AssignUUIDUpdate
    | UpgradeFormatVersionUpdate
    | AddSchemaUpdate
    | SetCurrentSchemaUpdate
    | AddPartitionSpecUpdate
    | SetDefaultSpecUpdate
    | AddSortOrderUpdate
    | SetDefaultSortOrderUpdate
    | AddSnapshotUpdate
    | SetSnapshotRefUpdate
    | RemoveSnapshotsUpdate
    | RemoveSnapshotRefUpdate
    | SetLocationUpdate
    | SetPropertiesUpdate
    | RemovePropertiesUpdate
    | SetStatisticsUpdate
    | RemoveStatisticsUpdate
    | SetPartitionStatisticsUpdate
    | RemovePartitionStatisticsUpdate
    | RemovePartitionSpecsUpdate
    | RemoveSchemasUpdate
    | AddEncryptionKeyUpdate
    | RemoveEncryptionKeyUpdate
)
