"""How large tables are, as the reaper measured them last: one object read, nothing listed."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import orjson

from tarn.adapters.store import ObjectStore
from tarn.cli.ports import Sizes
from tarn.core.errors import CorruptStateError
from tarn.core.reap import MEASURED_KEY


class Measured:
    """What the reaper left.

    Args:
        store: the lake, with the right to read that one object.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def sizes(self) -> Mapping[str, Sizes]:
        """Sizes by the table's name; empty before the reaper's first look.

        Raises:
            CorruptStateError: the object cannot be read.
            UnavailableError: the store does not answer.
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
