"""How much history a table keeps: the rule of `tarn.core.history`, applied to every commit. Pure.

Old snapshots go with the very commit that adds one, whoever sends it: metadata stays small however long a
table lives and however often it is committed to, and no process has to know the tables (invariant I8). Only
metadata goes; the files stay until the reaper takes them (invariant I7).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tarn.core.history import Retention, may_be_thinned, retention_of, snapshots_to_expire
from tarn_catalog.metadata.builder import MetadataBuilder
from tarn_catalog.metadata.schemas import Json
from tarn_catalog.metadata.snapshots import remove_snapshots

DEFAULT = Retention()


def check(properties: Mapping[str, str]) -> None:
    """Nothing, if the table's properties say in a way that can be used what it keeps.

    Raises:
        InvalidError: they do not.
    """
    retention_of(properties, DEFAULT)


def trimmed(draft: MetadataBuilder) -> MetadataBuilder:
    """Without the snapshots that a commit which adds one makes superfluous.

    Raises:
        InvalidError: a property cannot be used.
    """
    rule = retention_of(draft.meta["properties"], DEFAULT)
    if rule is None or not draft.added:
        return draft
    old = snapshots_to_expire(draft.meta, rule, now_ms=draft.now_ms, keep=frozenset(draft.added))
    return remove_snapshots(draft, {"action": "remove-snapshots", "snapshot-ids": old}) if old else draft


def may_have_been_committed(updates: Sequence[Json], meta: Json) -> bool:
    """Whether the snapshots that refused updates add may have been in the table and be gone from it since.

    A client that repeats a commit without a key, long after its answer was lost, must hear "unknown" then:
    told "refused", it would delete files that the table uses (invariants I3, I4).
    """
    added = [u.get("snapshot") for u in updates if u.get("action") == "add-snapshot"]
    return bool(added) and all(isinstance(s, dict) and may_be_thinned(meta, s) for s in added)


def is_as_late(updates: Sequence[Json], meta: Json) -> bool:
    """Whether the metadata is from after the time at which the snapshots that updates add had their turn."""
    last = int(meta.get("last-sequence-number") or 0)
    numbers = [u["snapshot"]["sequence-number"] for u in updates if u.get("action") == "add-snapshot"]
    return all(number <= last for number in numbers)
