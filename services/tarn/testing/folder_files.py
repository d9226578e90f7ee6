"""Files of a lake in a local folder, by their locations."""

from __future__ import annotations

from tarn.adapters.files import FileIO
from tarn.core.naming import WarehouseLayout
from tarn.core.object_store import ObjectStore


class FolderFiles(FileIO):
    """File IO by location (`file:///folder/key`).

    Args:
        store: object store of the folder.
        layout: mapping between keys and locations of that folder.
    """

    def __init__(self, store: ObjectStore, layout: WarehouseLayout) -> None:
        super().__init__(store, bucket="")
        self._layout = layout

    def _key(self, location: str) -> str:
        return self._layout.key(location)
