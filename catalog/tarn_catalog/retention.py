"""How many snapshots a table keeps, where a property of it says so (invariant I8). Pure.

The oldest go with the very commit that adds one, as ingest's own commits do it for its tables: metadata stays
of one size however long a table lives, and no process has to be told of the table. Only metadata goes; the
files stay until the reaper takes them (invariant I7).
"""

from __future__ import annotations

from collections.abc import Mapping

from tarn.core.errors import InvalidError
from tarn.core.table import Retention, TableState, removable
from tarn_catalog.draft import Draft
from tarn_catalog.snapshots import remove_snapshots

PROPERTY = "tarn.snapshots-kept"
KEPT_MAX = 10_000
YOUNG_MS = 15 * 60 * 1_000
YOUNG_TIMES_MAX = 4


def kept(properties: Mapping[str, str]) -> int | None:
    """How many snapshots the table keeps; None where nothing is said.

    Raises:
        InvalidError: it is no such number.
    """
    text = properties.get(PROPERTY)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= KEPT_MAX):
        raise InvalidError(f"Invalid {PROPERTY} {text!r}: give a number from 1 to {KEPT_MAX}")
    return int(text)


def trimmed(draft: Draft) -> Draft:
    """Without the snapshots of the main branch that a commit which adds one makes superfluous.

    The newest ones stay, as many as the property says, and those younger than 15 minutes, up to four times as
    many; so do all that a tag or another branch names or needs.

    Raises:
        InvalidError: the property is no number.
    """
    count = kept(draft.meta["properties"])
    if count is None or not draft.added:
        return draft
    # `removable` reckons with one more snapshot to come; here it has come already.
    retention = Retention(count_min=count + 1, age_ms_min=YOUNG_MS, count_max=YOUNG_TIMES_MAX * count + 1)
    old = removable(TableState(draft.meta), retention, now_ms=draft.now_ms, keep=frozenset(draft.added))
    return remove_snapshots(draft, {"action": "remove-snapshots", "snapshot-ids": old}) if old else draft
