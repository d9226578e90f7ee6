"""Data files whose rows are all older than a time, from the bounds in the manifests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyiceberg.manifest import ManifestContent

from tarn.adapters.files import FileIO
from tarn.adapters.manifests import read_entries, read_list
from tarn.adapters.partitions import survives_manifests
from tarn.adapters.write_schema import OptionalSpec, known_schema
from tarn.core.table_state import TableState, WrittenFile, current_part

NEVER = 2**63
TIME_BYTES = 8
"""Of a bound that is a time; that of a date, which format version 3 lets become one, has four."""


class OldFiles:
    """Finds old data files of one table; a manifest is read again only once one of its files is old.

    Args:
        objects: file IO.
    """

    def __init__(self, objects: FileIO) -> None:
        self._objects = objects
        self._youngest: dict[str, int] = {}

    def find(self, state: TableState, column: str, before_us: int) -> Iterator[WrittenFile]:
        """Live files of the current partition spec in which every row has the column, and is older.

        A manifest is read once one iterates as far as it.

        Args:
            state: version of the table.
            column: name of a column of type timestamp or timestamptz.
            before_us: time in microseconds since the epoch.

        Raises:
            UnavailableError: the store does not respond.
        """
        head = state.head
        schema = known_schema(state.metadata)
        spec = OptionalSpec.model_validate(
            current_part(state.metadata, "partition-specs", "default-spec-id", "spec-id")
        )
        field_id = next((f.field_id for f in schema.fields if f.name == column), None)
        if head is None or field_id is None or not survives_manifests(spec, schema):
            return
        manifests = [
            manifest
            for manifest in read_list(self._objects.read(str(head["manifest-list"])))
            if manifest.content is ManifestContent.DATA and manifest.partition_spec_id == spec.spec_id
        ]
        known = self._youngest
        self._youngest = {
            m.manifest_path: known[m.manifest_path] for m in manifests if m.manifest_path in known
        }
        for manifest in manifests:
            path = manifest.manifest_path
            if self._youngest.get(path, before_us - 1) >= before_us:
                continue
            entries = read_entries(self._objects.read(path), manifest, spec, schema)
            ages = [(_latest_us(entry.data_file, field_id), entry.data_file) for entry in entries]
            self._youngest[path] = min((at_us for at_us, _ in ages), default=NEVER)
            yield from (_written(file, spec.spec_id, path) for at_us, file in ages if at_us < before_us)


def _latest_us(file: Any, field_id: int) -> int:
    """Latest time in a file; `NEVER` if it is unknown, or a row has none, or the column was a date then."""
    upper = (file.upper_bounds or {}).get(field_id)
    nulls = (file.null_value_counts or {}).get(field_id)
    if upper is None or len(upper) != TIME_BYTES or nulls != 0:
        return NEVER
    return int.from_bytes(upper, "little", signed=True)


def _written(file: Any, spec_id: int, manifest: str) -> WrittenFile:
    return WrittenFile(
        path=file.file_path,
        partition=tuple(file.partition),
        spec_id=spec_id,
        records=int(file.record_count),
        bytes=int(file.file_size_in_bytes),
        manifest=manifest,
    )
