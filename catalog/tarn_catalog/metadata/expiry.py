"""Snapshot expiry on commit: applies the retention rule of `tarn.core.history` to every commit. Pure.

Each commit that adds a snapshot, from any client, also removes old ones. So metadata stays small however old
the table and however frequent its commits, and no process has to keep a list of tables (invariant I8). Only
metadata entries are removed; the files stay until the reaper deletes them (invariant I7).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tarn.core.history import Retention, may_be_thinned, retention_of, snapshots_to_expire
from tarn_catalog.metadata.builder import MetadataBuilder
from tarn_catalog.metadata.snapshots import remove_snapshots, without_lost_statistics
from tarn_catalog.metadata.types import TableMetadata, TableUpdate

DEFAULT = Retention()


def check(properties: Mapping[str, str]) -> None:
    """Require that the table's retention properties are valid.

    Raises:
        InvalidError: a property has an invalid value.
    """
    retention_of(properties, DEFAULT)


def trimmed(draft: MetadataBuilder) -> MetadataBuilder:
    """Return the builder without the snapshots to expire, and without statistics of those that are gone.

    It is unchanged if the commit adds no snapshot.

    Raises:
        InvalidError: a retention property has an invalid value.
    """
    rule = retention_of(draft.meta["properties"], DEFAULT)
    if not draft.added:
        return draft
    if rule is not None:
        old = snapshots_to_expire(draft.meta, rule, now_ms=draft.now_ms, keep=frozenset(draft.added))
        if old:
            draft = remove_snapshots(draft, {"action": "remove-snapshots", "snapshot-ids": old})
    return without_lost_statistics(draft)


def may_have_been_committed(updates: Sequence[TableUpdate], meta: TableMetadata) -> bool:
    """Return whether the snapshots of rejected updates may have been committed and expired since.

    A client that retries a commit without an idempotency key, long after the response was lost, must then get
    "unknown": on "conflict" it would delete files that the table references (invariants I3, I4).
    """
    added = [u.get("snapshot") for u in updates if u.get("action") == "add-snapshot"]
    return bool(added) and all(isinstance(s, dict) and may_be_thinned(meta, s) for s in added)


def is_as_late(updates: Sequence[TableUpdate], meta: TableMetadata) -> bool:
    """Return whether `last-sequence-number` reaches that of every snapshot that the updates add."""
    last = int(meta.get("last-sequence-number") or 0)
    added: list[Any] = [u.get("snapshot") for u in updates if u.get("action") == "add-snapshot"]
    return all(snapshot["sequence-number"] <= last for snapshot in added)
