"""The `ManifestReader` of audit and reaper: few columns, every live file, no table schema needed."""

from __future__ import annotations

from itertools import islice

from pyiceberg.manifest import (
    DataFileContent,
    ManifestEntryStatus,
)
from pyiceberg.manifest import ManifestEntry as Row
from pyiceberg.types import StructType

from tarn.adapters import avro_files
from tarn.adapters.manifests import entry_layout, read_list
from tarn.core.audit.manifests import TraceIds
from tarn.core.audit.model import Bounds, FileEntry, ManifestEntry
from tarn.core.errors import CorruptStateError

# The projection has no partition values, so the reader skips them and needs no table schema.
_ENTRY = entry_layout(StructType())


def list_sequences(data: bytes) -> list[tuple[str, int, int]]:
    """See `ManifestReader.list_sequences`."""
    return [
        (m.manifest_path, int(m.sequence_number or 0), int(m.min_sequence_number or 0))
        for m in read_list(data)
    ]


def list_entries(data: bytes) -> list[tuple[ManifestEntry, int | None]]:
    """See `ManifestReader.list_entries`."""
    try:
        return [
            (ManifestEntry(m.manifest_path, int(m.manifest_length)), m.added_snapshot_id)
            for m in read_list(data)
        ]
    except Exception as error:  # readers fail in many ways on arbitrary bytes
        raise CorruptStateError(f"it is no manifest list: {_first_line(error)}") from error


def file_entries(
    data: bytes, *, added_snapshot_id: int | None, trace: TraceIds | None, most: int | None = None
) -> tuple[FileEntry, ...]:
    """See `ManifestReader.file_entries`."""
    try:
        live = (row for row in avro_files.read(data, _ENTRY) if row.status != ManifestEntryStatus.DELETED)
        return tuple(_entry(row, added_snapshot_id, trace) for row in islice(live, most))
    except Exception as error:  # readers fail in many ways on arbitrary bytes
        raise CorruptStateError(f"it is no manifest: {_first_line(error)}") from error


def _entry(row: Row, added_snapshot_id: int | None, trace: TraceIds | None) -> FileEntry:
    file = row.data_file
    return FileEntry(
        file.file_path,
        int(file.file_size_in_bytes),
        int(file.record_count),
        deletes=file.content != DataFileContent.DATA,
        snapshot_id=row.snapshot_id if row.snapshot_id is not None else added_snapshot_id,
        bounds=_bounds(file.lower_bounds or {}, file.upper_bounds or {}, trace),
    )


def _bounds(lower: dict[int, bytes], upper: dict[int, bytes], trace: TraceIds | None) -> Bounds | None:
    if trace is None or any(number not in side for number in trace for side in (lower, upper)):
        return None
    partition, offset = trace
    return Bounds(
        _number(lower[partition]), _number(upper[partition]), _number(lower[offset]), _number(upper[offset])
    )


def _number(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300]
