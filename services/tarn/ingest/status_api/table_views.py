"""What the status API answers from a look into one table, which waits for the catalog and the store."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from tarn.core.errors import InvalidSpecError, UnavailableError
from tarn.core.table_state import TableState, commit_ids, current_part, current_schema
from tarn.ingest.status_api import models
from tarn.ingest.status_api.shapes import LIMIT, Query, cut, id_text, maybe_time
from tarn.ingest.status_api.views import Engine, require_table
from tarn.ingest.table_look import (
    LISTED_MAX,
    TableLook,
    after_of,
    newest_first,
    order_of,
    position_of,
    shown_path,
    type_text,
)

DIGITS_MAX = 19
_ORDER = re.compile(r"-?[0-9]{1,20}\.-?[0-9]{1,20}\.-?[0-9]{1,20}")


def snapshots(engine: Engine, name: str, query: Query) -> models.Snapshots:
    """The snapshots of a table, newest first. Waits for the catalog.

    Raises:
        NotFoundError: there is no such table.
        UnavailableError: the catalog does not answer.
    """
    _, state = _look(engine, name)
    refs: dict[int, list[str]] = {}
    for ref, target in state.refs.items():
        refs.setdefault(int(target["snapshot-id"]), []).append(ref)
    history = {int(one["snapshot-id"]) for one in state.ancestors()}
    every = newest_first(state)
    before = None if query.after is None else snapshot_order(query.after)
    rest = [one for one in every if before is None or order_of(one) < before]
    found = rest[: query.limit or LIMIT]
    return models.Snapshots(
        at=engine.at,
        table=name,
        snapshots=[_snapshot(one, state, history, refs) for one in found],
        total=len(every),
        next=".".join(map(str, order_of(found[-1]))) if len(rest) > len(found) else None,
    )


def files(engine: Engine, name: str, query: Query) -> models.Files:
    """Files of a table's current snapshot. Waits for the catalog and the store.

    Raises:
        NotFoundError: there is no such table, or the page's snapshot is not kept any more.
        UnavailableError: the catalog or the store does not answer.
    """
    look, state = _look(engine, name)
    begin = None if query.after is None else position_of(query.after)
    found = look.files(state, begin=begin, limit=query.limit or LIMIT)
    total = None
    if found.snapshot_id is not None:
        summary = state.snapshot(found.snapshot_id).get("summary") or {}
        counts = [_number(summary, f"total-{what}") for what in ("data-files", "delete-files")]
        total = None if None in counts else sum(one or 0 for one in counts)
    return models.Files(
        at=engine.at,
        table=name,
        snapshot_id=id_text(found.snapshot_id),
        files=[
            models.FileItem(
                path=shown_path(one.path, state.root),
                bytes=one.bytes,
                rows=one.records,
                deletes=one.deletes,
                added_by=id_text(one.snapshot_id),
            )
            for one in found.files
        ],
        total=total,
        next=None if found.next is None else after_of(found.next),
    )


def metadata(engine: Engine, name: str) -> models.Metadata:
    """The objects that make a table. Waits for the catalog and the store.

    Raises:
        NotFoundError: there is no such table.
        UnavailableError: the catalog or the store does not answer.
    """
    look, state = _look(engine, name)
    head, root = state.head, state.root
    manifests = look.manifests(state, head)
    earlier = [*reversed(state.metadata.get("metadata-log") or ())]
    try:
        fields = current_schema(state.metadata).get("fields") or []
        spec = current_part(state.metadata, "partition-specs", "default-spec-id", "spec-id")
    except InvalidSpecError:
        fields, spec = [], {}
    names = {int(one["id"]): str(one["name"]) for one in fields}
    listed = str((head or {}).get("manifest-list") or "")
    return models.Metadata(
        at=engine.at,
        table=name,
        uuid=state.uuid,
        format_version=state.format_version,
        location=root,
        path=shown_path(state.location, root) if state.location else None,
        updated_at=maybe_time(state.metadata.get("last-updated-ms")),
        snapshot_id=id_text(state.head_id),
        manifest_list=shown_path(listed, root) if listed else None,
        manifests=[
            models.ManifestItem(
                path=shown_path(one.entry.path, root), bytes=one.entry.bytes, added_by=id_text(one.added_by)
            )
            for one in manifests[:LISTED_MAX]
        ],
        manifests_total=len(manifests),
        earlier=[
            models.EarlierMetadata(
                path=shown_path(str(one.get("metadata-file")), root), at=maybe_time(one.get("timestamp-ms"))
            )
            for one in earlier[:LISTED_MAX]
        ],
        earlier_total=len(earlier),
        columns=[
            models.Column(
                id=int(one["id"]),
                name=str(one["name"]),
                type=type_text(one.get("type")),
                required=bool(one.get("required")),
            )
            for one in fields[:LISTED_MAX]
        ],
        columns_total=len(fields),
        partitioning=[
            models.PartitionField(
                name=str(one.get("name")),
                transform=str(one.get("transform")),
                column=names.get(int(one.get("source-id") or 0)),
            )
            for one in (spec.get("fields") or ())[:LISTED_MAX]
        ],
        refs=[
            models.Ref(name=ref, kind=str(target.get("type")), snapshot_id=str(target["snapshot-id"]))
            for ref, target in sorted(state.refs.items())[:LISTED_MAX]
        ],
        refs_total=len(state.refs),
    )


def snapshot_order(after: str) -> tuple[int, int, int]:
    """The place of the last snapshot of a page.

    Raises:
        ValueError: the text names none.
    """
    if not _ORDER.fullmatch(after):
        raise ValueError("`next` of the page before")
    sequence, at_ms, snapshot = after.split(".")
    return int(sequence), int(at_ms), int(snapshot)


def _look(engine: Engine, name: str) -> tuple[TableLook, TableState]:
    """What looks into a table, and its metadata; only tables that were seen are asked for."""
    require_table(engine, name)
    if engine.look is None:
        raise UnavailableError("this service has no catalog to ask")
    return engine.look, engine.look.state(name)


def _snapshot(
    one: Mapping[str, Any], state: TableState, history: AbstractSet[int], refs: Mapping[int, Sequence[str]]
) -> models.SnapshotItem:
    number, summary = int(one["snapshot-id"]), one.get("summary") or {}
    parent, operation = one.get("parent-snapshot-id"), summary.get("operation")
    return models.SnapshotItem(
        snapshot_id=str(number),
        parent_id=None if parent is None or parent == -1 else str(parent),
        at=maybe_time(int(one.get("timestamp-ms") or 0)),
        sequence=int(one.get("sequence-number") or 0),
        operation=None if operation is None else cut(str(operation)),
        current=number == state.head_id,
        in_history=number in history,
        refs=sorted(refs.get(number, ()))[:LISTED_MAX],
        commits=len(commit_ids(summary)),
        added_rows=_number(summary, "added-records"),
        removed_rows=_number(summary, "deleted-records"),
        added_files=_number(summary, "added-data-files"),
        removed_files=_number(summary, "deleted-data-files"),
        added_bytes=_number(summary, "added-files-size"),
        rows=_number(summary, "total-records"),
        files=_number(summary, "total-data-files"),
        bytes=_number(summary, "total-files-size"),
    )


def _number(summary: Mapping[str, Any], key: str) -> int | None:
    """A count of a summary; None if it is missing or no count: other writers may write what they like."""
    text = str(summary.get(key, ""))
    return int(text) if len(text) <= DIGITS_MAX and text.isascii() and text.isdecimal() else None
