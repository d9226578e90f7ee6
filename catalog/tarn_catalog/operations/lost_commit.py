"""Was a commit that is refused now carried out before? The chain of older metadata files knows (I3, I4).

A client that repeats a commit without an idempotency key, because its answer was lost, must not hear
"refused" for what happened: it would delete files that the table uses. While the commit's place is in the
history, the history tells. Once that was thinned, a metadata file from the time of the commit does: a
sequence number belongs to one snapshot, and each file names about twenty before it.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from tarn.core.errors import OutcomeUnknownError, TarnError
from tarn_catalog.metadata import expiry, table_metadata
from tarn_catalog.metadata.schemas import Json
from tarn_catalog.operations.identifiers import TableIdentifier
from tarn_catalog.state.context import CatalogContext, Metadata

READS_MAX = 16  # at twenty commits a step: 320 commits back


def check_not_lost(
    core: CatalogContext,
    slot: TableIdentifier,
    updates: Sequence[Json],
    current: Metadata,
    refused: TarnError,
) -> bool:
    """Whether a refused commit was carried out before; False only if it provably was not.

    Args:
        core: store and places.
        slot: of the table.
        updates: of the commit.
        current: the table's metadata, which does not hold what the commit adds.
        refused: why it is refused.

    Raises:
        OutcomeUnknownError: it cannot be told; the files of that time are gone.
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


def _earlier(core: CatalogContext, meta: Json) -> Json | None:
    """The oldest metadata that this one names; None if it names none, or the reaper took it."""
    log = meta.get("metadata-log") or []
    # Past the cache, which is for the current versions.
    stored = core.store.get(core.roots.key(log[0]["metadata-file"])) if log else None
    if stored is None:
        return None
    found: Json = orjson.loads(stored.data)
    return found
