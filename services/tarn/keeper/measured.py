"""Table sizes as last measured by the reaper: one object is read, nothing is listed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import final

import orjson

from tarn.core.errors import CorruptStateError
from tarn.core.object_store import ObjectStore
from tarn.core.reap import MEASURED_KEY


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Bytes that a table takes in the store, as measured by the reaper.

    Attributes:
        objects: number of objects.
        live: files of the current snapshot; None if its summary does not say, and then part of `history`.
        history: metadata, manifests, and files that only older snapshots reference; also orphans.
        to_be_removed: unreferenced files in their grace period.
        at: time of the measurement, by the store's clock.
    """

    objects: int
    live: int | None
    history: int
    to_be_removed: int
    at: datetime


class Measured:
    """Reads the reaper's measurements.

    Args:
        store: object store of the lake, with permission to read that one object.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def sizes(self) -> Mapping[str, Sizes]:
        """Sizes by table name; empty before the reaper's first measurement.

        Raises:
            CorruptStateError: the object is unreadable.
            UnavailableError: the store does not respond.
        """
        stored = self._store.get(MEASURED_KEY)
        if stored is None:
            return {}
        try:
            tables = orjson.loads(stored.data)["tables"].values()
            return {str(entry["name"]): _sizes(entry) for entry in tables}
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptStateError(
                f"{MEASURED_KEY} cannot be read ({error!r}); remove it, the reaper writes it again"
            ) from error


def _sizes(entry: Mapping[str, int]) -> Sizes:
    whole, going = int(entry["bytes"]), int(entry["to-be-removed"])
    live = None if entry["live"] is None else min(int(entry["live"]), whole - going)
    return Sizes(
        objects=int(entry["objects"]),
        live=live,
        history=whole - going - (live or 0),
        to_be_removed=going,
        at=datetime.fromtimestamp(int(entry["at-ms"]) / 1_000, UTC),
    )
