"""What a table is like in numbers, as one version of its metadata has it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import orjson

from tarn.core.table_files import WrittenList
from tarn.core.table_state import TableState, commit_ids

LOOK_BACK_MAX = 1_000
"""Snapshots in which a commit is looked for, newest first."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TableFigures:
    """One version of a table in numbers; None where its metadata do not say.

    Attributes:
        uuid: UUID of the table.
        format_version: Iceberg format version.
        rows: rows of the current snapshot.
        files: its data files.
        delete_files: its delete files.
        bytes: bytes of its files.
        snapshots: snapshots in the metadata.
        manifests: manifests of the current snapshot.
        metadata_bytes: bytes of the metadata as compact JSON, of the manifest list and of these manifests.
        snapshot_id: id of the current snapshot; None before the first one.
        commit_at_ms: time of that snapshot, in milliseconds since the epoch; None before the first one.
        sequence: highest sequence number of the table; grows with each snapshot.
        updated_ms: time of the last change of the metadata, in milliseconds since the epoch.
    """

    uuid: str
    format_version: int
    rows: int | None
    files: int | None
    delete_files: int | None
    bytes: int | None
    snapshots: int
    manifests: int | None
    metadata_bytes: int | None
    snapshot_id: int | None
    commit_at_ms: int | None
    sequence: int
    updated_ms: int


def figures_of(state: TableState, listed: WrittenList | None = None) -> TableFigures:
    """The figures of one version of a table.

    Args:
        state: the version.
        listed: the manifest list of its current snapshot; None if it is not known.
    """
    head = state.head

    def total(what: str) -> int | None:
        return 0 if head is None else state.total(what)

    manifests, metadata_bytes = None, None
    if head is None:
        manifests, metadata_bytes = 0, len(orjson.dumps(state.metadata))
    elif listed is not None:
        manifests, metadata_bytes = listed.manifests, len(orjson.dumps(state.metadata)) + listed.bytes
    return TableFigures(
        uuid=state.uuid,
        format_version=state.format_version,
        rows=total("records"),
        files=total("data-files"),
        delete_files=total("delete-files"),
        bytes=total("files-size"),
        snapshots=len(state.metadata.get("snapshots") or ()),
        manifests=manifests,
        metadata_bytes=metadata_bytes,
        snapshot_id=state.head_id,
        commit_at_ms=None if head is None else int(head["timestamp-ms"]),
        sequence=state.last_sequence,
        updated_ms=int(state.metadata.get("last-updated-ms") or 0),
    )


def newest(*seen: TableFigures | None) -> TableFigures | None:
    """The figures of the newest version; of those of one version, some that know its manifests.

    Versions of one table are in the order of their snapshots: a writer whose clock is slow gives several
    snapshots the same time. A table that was recreated begins with snapshot 1.
    """
    known = [one for one in seen if one is not None]
    last = max(known, key=lambda one: one.updated_ms, default=None)
    return max(
        (one for one in known if last is not None and one.uuid == last.uuid),
        key=lambda one: (one.sequence, one.updated_ms, one.manifests is not None),
        default=None,
    )


def same_version(one: TableFigures, other: TableFigures) -> bool:
    """Whether both are figures of the same version of the same table."""
    return (one.uuid, one.sequence, one.updated_ms) == (other.uuid, other.sequence, other.updated_ms)


def snapshot_of(state: TableState, commit_id: str) -> int | None:
    """Id of the snapshot that holds a commit; None if the last thousand do not."""
    for number, snapshot in enumerate(state.ancestors()):
        if number >= LOOK_BACK_MAX:
            return None
        if commit_id in commit_ids(snapshot.get("summary") or {}):
            return int(snapshot["snapshot-id"])
    return None
