"""Detection of an earlier success of a rejected commit, from older metadata files (invariants I3, I4).

A client that lost the response and retries a commit without an idempotency key must not get a conflict for a
commit that happened: it would delete files that the table references. As long as the snapshot is in the
table's history, the history decides. After it expired, a metadata file from the time of the commit decides: a
sequence number belongs to one snapshot, and each file names about twenty predecessors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from tarn.core import metadata_json
from tarn.core.errors import OutcomeUnknownError, TarnError
from tarn.core.object_store import StoreTooLargeError
from tarn_catalog.metadata import expiry, table_metadata
from tarn_catalog.metadata.snapshots import with_main
from tarn_catalog.metadata.types import TableMetadata, TableUpdate
from tarn_catalog.operations.identifiers import TableIdentifier
from tarn_catalog.state.context import CatalogContext, Metadata

READS_MAX = 16  # at twenty commits a step: 320 commits back


def check_not_lost(
    core: CatalogContext,
    slot: TableIdentifier,
    updates: Sequence[TableUpdate],
    current: Metadata,
    refused: TarnError,
) -> bool:
    """Return whether a rejected commit had succeeded before; False only if it provably had not.

    Args:
        core: the catalog context.
        slot: the table's identifier.
        updates: the updates of the commit.
        current: the table's metadata, which lacks the snapshots that the commit adds.
        refused: the error that rejects the commit.

    Raises:
        OutcomeUnknownError: undecidable, because the metadata files of that time were deleted.
        UnavailableError: the store did not answer.
    """
    at = current.parsed
    for _ in range(READS_MAX):
        if not expiry.may_have_been_committed(updates, at):
            return False
        earlier = _earlier(core, at)
        if earlier is None or not expiry.is_as_late(updates, earlier):
            break
        if table_metadata.already_applied(updates, earlier):
            return True
        at = earlier
    raise OutcomeUnknownError(
        f"Cannot tell whether the commit to {slot.text} was carried out before: {refused.message}, and "
        "the history of that time was thinned; look for your rows, and delete nothing",
        table=slot.text,
    ) from refused


def _earlier(core: CatalogContext, meta: TableMetadata) -> TableMetadata | None:
    """Return the oldest metadata of the metadata log; None if there is none that can be read.

    The log of a registered table may name files elsewhere or in other formats: they prove nothing.
    """
    log = meta.get("metadata-log") or []
    location = str(log[0].get("metadata-file", "")) if log else ""
    if not location.startswith(f"{meta['location']}/"):
        return None
    # Bypasses the cache, which is for current versions.
    try:
        stored = core.store.get(core.roots.key(location))
        found = metadata_json.loads_kept(stored.data) if stored is not None else None
    except (ValueError, StoreTooLargeError):
        return None
    if not isinstance(found, dict) or found.get("table-uuid") != meta["table-uuid"]:
        return None
    return with_main(cast("TableMetadata", found))
