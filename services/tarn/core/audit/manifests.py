"""Interface to manifests and manifest lists as audit and reaper read them."""

from __future__ import annotations

from typing import Protocol

from tarn.core.audit.model import FileEntry, Json, ManifestEntry
from tarn.core.spec import TRACE_COLUMN

TraceIds = tuple[int, int]
"""Field ids of the Kafka partition and the offset inside a table's trace column."""


class ManifestReader(Protocol):
    """Reads the content of manifests and manifest lists."""

    def list_sequences(self, data: bytes) -> list[tuple[str, int, int]]:
        """The manifests of a manifest list: location, sequence number, lowest sequence number of its entries.

        Raises:
            Exception: the data is not a manifest list; the library fails in many ways on arbitrary bytes.
        """

    def list_entries(self, data: bytes) -> list[tuple[ManifestEntry, int | None]]:
        """The manifests of a manifest list, each with the id of the snapshot that added it.

        Raises:
            CorruptStateError: the data is not a manifest list.
        """

    def file_entries(
        self, data: bytes, *, added_snapshot_id: int | None, trace: TraceIds | None, most: int | None = None
    ) -> tuple[FileEntry, ...]:
        """The live files of a manifest.

        Args:
            data: content of the manifest.
            added_snapshot_id: snapshot that added the manifest, inherited by its entries.
            trace: field ids of the trace column; None if the table has none.
            most: how many of the first ones are decoded; None for all.

        Raises:
            CorruptStateError: the data is not a manifest.
        """


def trace_ids(metadata: Json) -> TraceIds | None:
    """Field ids inside the trace column; None if the table has none."""
    for schema in metadata.get("schemas") or ():
        for field in schema.get("fields") or ():
            kind = field.get("type")
            if field.get("name") == TRACE_COLUMN and isinstance(kind, dict):
                inner = {f["name"]: int(f["id"]) for f in kind.get("fields") or ()}
                if "partition" in inner and "offset" in inner:
                    return inner["partition"], inner["offset"]
    return None
