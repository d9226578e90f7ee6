"""Manifests and manifest lists of a snapshot, written so that the cost of a commit does not grow.

See the Iceberg table specification, sections "Manifests" and "Manifest Lists".

A commit writes one manifest for its own files, and a manifest list that carries the older manifests over with
all their fields, `first_row_id` included. Sixteen manifests of similar size are merged into one of the next
size (invariant I8): each entry is rewritten once per size, and a list stays a few dozen entries long.

pyiceberg's records give access by position. The positions used here stand for these field ids of the
specification:

- `ManifestFile`, fields of `manifest_file`: 3 is `content` (517), 4 `sequence_number` (515),
  5 `min_sequence_number` (516), 10 `added_rows_count` (512), 11 `existing_rows_count` (513),
  13 `partitions` (507), 15 `first_row_id` (520).
- `ManifestEntry`, fields of `manifest_entry`: 3 is `file_sequence_number` (4).
- `DataFile`, fields of `data_file`: 16 is `first_row_id` (142).
"""

from __future__ import annotations

import io
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import Any, Literal

from pyiceberg.avro.file import AvroOutputFile
from pyiceberg.io import InputFile, OutputFile, OutputStream
from pyiceberg.manifest import (
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
    PartitionFieldSummary,
    data_file_with_partition,
    manifest_entry_schema_with_data_file,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import StructType, UUIDType

from tarn.adapters import avro_files
from tarn.adapters.avro_files import Layout, MemoryInput, Written
from tarn.adapters.files import FileIO
from tarn.adapters.partitions import survives_manifests
from tarn.adapters.recent_files import RecentFiles
from tarn.adapters.write_schema import OptionalSpec, WriteSchema
from tarn.core.table_files import FilesNotLiveError, WrittenList
from tarn.core.table_state import TableState, WrittenFile

MERGE_COUNT = 16
MERGE_FILES_MAX = 4_096
LISTS_REMEMBERED_MAX = 8
LAYOUTS_MAX = 64
ON_THE_WAY_MAX = 8
BLOCK_ENTRIES_MAX = 500
UNASSIGNED = -1
PARTITIONS = 13
AVRO_CODEC: Literal["deflate"] = "deflate"


@dataclass(frozen=True, slots=True)
class _KnownList:
    """A manifest list that was read or written here.

    Attributes:
        manifests: its entries.
        version: the format version that `records` are of.
        records: path of a manifest -> its entry as it was written; empty for a list that was read.
    """

    manifests: list[ManifestFile]
    version: int
    records: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class BegunManifest:
    """A manifest that is in the store, or on the way there.

    Attributes:
        file: its entry in a manifest list.
        finish: returns once it is in the store.
    """

    file: ManifestFile
    finish: Callable[[], None]


class Manifests:
    """Writes the manifests and manifest lists of commits. Not thread-safe.

    Args:
        objects: file IO.
        new_name: generates a unique file name.
    """

    def __init__(self, objects: FileIO, *, new_name: Callable[[], str]) -> None:
        self._objects = objects
        self._new_name = new_name
        self._lists: OrderedDict[str, _KnownList] = OrderedDict()
        # Of those that are in lists, to be merged without reading sixteen of them from the store.
        self._recent = RecentFiles()
        # Rewritten manifests of the list that is being written.
        self._on_the_way: deque[BegunManifest] = deque()

    def begin_manifest(
        self, layout: WriteSchema, root: str, files: Sequence[WrittenFile], *, snapshot_id: int
    ) -> BegunManifest | None:
        """Begin to write a manifest that adds the files; None without files.

        Its entries inherit their sequence numbers (specification, "Sequence Number Inheritance"), so the
        manifest is valid on every base.

        Args:
            layout: schema, partition spec and format version of the files.
            root: location of the table.
            files: data files to add.
            snapshot_id: id of the snapshot that adds them.
        """
        if not files:
            return None
        entries = [
            ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED, snapshot_id=snapshot_id, data_file=_data_file(file)
            )
            for file in files
        ]
        return self._begin(entries, layout.spec, layout.schema, root, snapshot_id, layout.format_version)

    def write_manifest_list(
        self,
        state: TableState,
        added: ManifestFile | None,
        *,
        snapshot_id: int,
        schema: Schema,
        removed: frozenset[str] = frozenset(),
        found_in: frozenset[str] = frozenset(),
    ) -> WrittenList:
        """Write the manifest list of a snapshot: the added manifest, then those of the base snapshot.

        Manifests without live files are left out. Those that list a removed file are written again without
        it; its entry is DELETED in a manifest for all removed files.

        Unassigned sequence numbers and, in format version 3, first row ids are assigned here (specification,
        "Manifest Lists" and "First Row ID Assignment").

        Args:
            state: version of the table that the snapshot builds on.
            added: manifest to add, if any.
            snapshot_id: id of the new snapshot.
            schema: schema of the table, used if manifests are rewritten.
            removed: locations of data files that the snapshot removes.
            found_in: locations of manifests that listed some of them, which may have been rewritten since.

        Raises:
            UnavailableError: the store does not respond.
            FilesNotLiveError: a file to remove is not live in the base.
        """
        self._on_the_way.clear()
        # An unknown count is to be taken as more than 0 (specification, "Manifest Lists").
        base = self._base(state)
        live = [m for m in base.manifests if m.added_files_count != 0 or m.existing_files_count != 0]
        if removed:
            carried = self._without(removed, live, state, snapshot_id, schema, found_in)
        else:
            carried = self._merge(live, state, snapshot_id, schema)
        sequence = state.last_sequence + 1
        next_row_id = first_row_id = int(state.metadata.get("next-row-id") or 0)
        listed: list[ManifestFile] = []
        for manifest in ([added] if added is not None else []) + carried:
            data = list(manifest._data)
            # 16 fields up to `first_row_id` (520); lists of older format versions have fewer.
            data += [None] * (16 - len(data))
            # `sequence_number` (515) and `min_sequence_number` (516) of a manifest new in this snapshot.
            if data[4] == UNASSIGNED:
                data[4] = sequence
            if data[5] == UNASSIGNED:
                data[5] = sequence
            # `first_row_id` (520) of a data manifest (`content`, 517): it reserves as many row ids as it has
            # `existing_rows_count` (513) and `added_rows_count` (512).
            if state.format_version >= 3 and data[3] == ManifestContent.DATA and data[15] is None:
                data[15] = next_row_id
                next_row_id += int(data[11] or 0) + int(data[10] or 0)
            listed.append(ManifestFile(*data))
        path = f"{state.root}/metadata/snap-{snapshot_id}-{self._new_name()}.avro"
        head = state.head_id
        meta = {
            "snapshot-id": str(snapshot_id),
            "parent-snapshot-id": str(head) if head is not None else "null",
            "sequence-number": str(sequence),
            "format-version": str(state.format_version),
            "avro.codec": AVRO_CODEC,
        }
        if state.format_version >= 3:
            meta["first-row-id"] = str(first_row_id)
        out, version = _MemoryOutput(path), 3 if state.format_version >= 3 else 2
        carried_over = base.records if base.version == version else {}
        with avro_files.Output(out, _WRITTEN_LISTS[version], meta) as writer:
            # An entry never changes once it was listed: only new ones are encoded.
            records = [carried_over.get(m.manifest_path) or writer.encode(m) for m in listed]
            if records:
                writer.write_encoded(records)
        self._objects.write_new(path, out.data)
        # Rewritten manifests were on the way while the list was written.
        self._finish(0)
        paths = [manifest.manifest_path for manifest in listed]
        self._remember(path, _KnownList(listed, version, dict(zip(paths, records, strict=True))))
        # Of the base too: if another commit is first, the next list may be built from the same manifests.
        self._recent.keep_only({*paths, *(manifest.manifest_path for manifest in base.manifests)})
        return WrittenList(
            path=path,
            added_rows=next_row_id - first_row_id,
            manifests=len(listed),
            bytes=len(out.data) + sum(int(m.manifest_length) for m in listed),
        )

    def _base(self, state: TableState) -> _KnownList:
        head = state.head
        if head is None:
            return _KnownList([], state.format_version, {})
        path = head["manifest-list"]
        known = self._lists.get(path)
        if known is None:
            known = _KnownList(read_list(self._objects.read(path)), state.format_version, {})
            self._remember(path, known)
        return known

    def _remember(self, path: str, known: _KnownList) -> None:
        self._lists[path] = known
        self._lists.move_to_end(path)
        while len(self._lists) > LISTS_REMEMBERED_MAX:
            self._lists.popitem(last=False)

    def _merge(
        self, manifests: list[ManifestFile], state: TableState, snapshot_id: int, schema: Schema
    ) -> list[ManifestFile]:
        """Merge one group of manifests, if one is due; the live files stay the same."""
        spec = _spec(state, int(state.metadata["default-spec-id"]))
        due = manifests_to_merge(manifests, spec_id=spec.spec_id) if survives_manifests(spec, schema) else []
        if not due:
            return manifests
        group = [manifests[n] for n in due]
        entries = [e for m in group for e in read_entries(self._content(m.manifest_path), m, spec, schema)]
        merged: list[ManifestFile] = []
        if entries:
            merged.append(self._write(entries, spec, schema, state.root, snapshot_id, state.format_version))
        chosen = set(due)
        return merged + [m for n, m in enumerate(manifests) if n not in chosen]

    def _without(
        self,
        removed: frozenset[str],
        manifests: list[ManifestFile],
        state: TableState,
        snapshot_id: int,
        schema: Schema,
        found_in: frozenset[str],
    ) -> list[ManifestFile]:
        """The manifests without these files, whose entries are DELETED in manifests of their own.

        A merge finds its files in some twenty small manifests. What is live in these goes into one, so that
        two manifests are written, of which the next list has one.

        Files are looked for in the manifests where they were found, then in all others, the newest first, in
        which the small files of a merge and rewritten entries are.

        Raises:
            FilesNotLiveError: one of them is in no manifest, or partition values would not survive.
        """
        spec = _spec(state, int(state.metadata["default-spec-id"]))
        if not survives_manifests(spec, schema):
            raise FilesNotLiveError("manifests with partition values of type double are not rewritten")
        written: list[ManifestFile] = []

        def write(entries: list[ManifestEntry], at_least: int = 1) -> None:
            if len(entries) >= at_least:
                written.append(
                    self._write(entries, spec, schema, state.root, snapshot_id, state.format_version)
                )
                entries.clear()

        left, rewritten = set(removed), set[int]()
        gone, kept = list[ManifestEntry](), list[ManifestEntry]()
        for n, manifest in sorted(
            enumerate(manifests),
            key=lambda item: (item[1].manifest_path not in found_in, -(item[1].sequence_number or 0)),
        ):
            if not left:
                break
            if manifest.content is not ManifestContent.DATA or manifest.partition_spec_id != spec.spec_id:
                continue
            live = list[ManifestEntry]()
            for entry in read_entries(self._content(manifest.manifest_path), manifest, spec, schema):
                if entry.data_file.file_path in left:
                    entry.status, entry.snapshot_id = ManifestEntryStatus.DELETED, snapshot_id
                    left.discard(entry.data_file.file_path)
                    rewritten.add(n)
                    gone.append(entry)
                else:
                    live.append(entry)
            if n in rewritten:
                if not _is_small(manifest):
                    write(live)
                kept += live
            write(gone, MERGE_FILES_MAX)
            write(kept, MERGE_FILES_MAX)
        if left:
            raise FilesNotLiveError(f"{len(left)} of {len(removed)} files are not live, first {min(left)}")
        write(gone)
        write(kept)
        return written + [m for n, m in enumerate(manifests) if n not in rewritten]

    def _write(
        self,
        entries: Sequence[ManifestEntry],
        spec: PartitionSpec,
        schema: Schema,
        root: str,
        snapshot_id: int,
        format_version: int,
    ) -> ManifestFile:
        self._finish(ON_THE_WAY_MAX - 1)
        begun = self._begin(entries, spec, schema, root, snapshot_id, format_version)
        self._on_the_way.append(begun)
        return begun.file

    def _finish(self, left: int) -> None:
        """Wait until at most `left` rewritten manifests are on the way to the store."""
        while len(self._on_the_way) > left:
            self._on_the_way.popleft().finish()

    def _content(self, path: str) -> bytes:
        data = self._recent.get(path)
        return self._objects.read(path) if data is None else data

    def _begin(
        self,
        entries: Sequence[ManifestEntry],
        spec: PartitionSpec,
        schema: Schema,
        root: str,
        snapshot_id: int,
        format_version: int,
    ) -> BegunManifest:
        out = _MemoryOutput(f"{root}/metadata/{self._new_name()}-m0.avro")
        writer = _Writer(spec, schema, out, snapshot_id, format_version)
        with writer:
            for entry in entries:
                writer.add_entry(entry)
        upload = self._objects.begin(out.location, out.data)
        self._recent.keep(out.location, out.data)
        return BegunManifest(writer.to_manifest_file(), upload.finish)


def manifests_to_merge(manifests: Sequence[ManifestFile], *, spec_id: int) -> list[int]:
    """Indexes of the manifests to merge now: at least 16 of this partition spec and similar size, or none.

    Manifests of another spec are left alone: no commit adds to them, and their source column may be gone.
    """
    groups: dict[int, list[int]] = {}
    for n, m in enumerate(manifests):
        if m.content is not ManifestContent.DATA or not _is_small(m):
            continue
        if m.partition_spec_id != spec_id:
            continue
        live = _live_files(m)
        tier = 0 if live < MERGE_COUNT else 1 if live < MERGE_COUNT**2 else 2
        groups.setdefault(tier, []).append(n)
    ready = [group for _, group in sorted(groups.items()) if len(group) >= MERGE_COUNT]
    return ready[0] if ready else []


def _live_files(manifest: ManifestFile) -> int:
    """The number of live files of a manifest that has all its counts."""
    return (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)


def _is_small(manifest: ManifestFile) -> bool:
    """Whether so few files are live in a manifest that it is merged with others."""
    return _live_files(manifest) * MERGE_COUNT <= MERGE_FILES_MAX


_LIST = Layout(
    MANIFEST_LIST_FILE_SCHEMAS[3],
    # Struct 508 is the element of `partitions` (507), enum 517 is `content`.
    types={-1: ManifestFile, 508: PartitionFieldSummary},
    enums={517: ManifestContent},
)


_WRITTEN_LISTS = {
    version: Written(MANIFEST_LIST_FILE_SCHEMAS[version], MANIFEST_LIST_FILE_SCHEMAS[3], "manifest_file")
    for version in (2, 3)
}


@lru_cache(maxsize=LAYOUTS_MAX)
def _written_entries(partition: StructType, version: Literal[2, 3]) -> Written:
    """A manifest of this format version, for files with partition values of this type."""
    file = data_file_with_partition(partition, format_version=version)
    return Written(
        manifest_entry_schema_with_data_file(format_version=version, data_file=file),
        entry_layout(partition).schema,
        "manifest_entry",
    )


@lru_cache(maxsize=LAYOUTS_MAX)
def entry_layout(partition: StructType) -> Layout:
    """The fields of a manifest entry whose file has partition values of this type; none skips them.

    Struct 2 is `data_file`; the enums are `status` (0), `file_format` (101) and the file's `content` (134).
    """
    file = data_file_with_partition(partition, format_version=3)
    return Layout(
        manifest_entry_schema_with_data_file(format_version=3, data_file=file),
        types={-1: ManifestEntry, 2: DataFile},
        enums={0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
    )


def read_list(data: bytes) -> list[ManifestFile]:
    """The manifests of a manifest list, in its order, with the fields of all format versions."""
    return list(avro_files.read(data, _LIST))


def read_entries(
    data: bytes, manifest: ManifestFile, spec: PartitionSpec, schema: Schema
) -> list[ManifestEntry]:
    """The live entries of a manifest with status EXISTING, inherited values made explicit, row ids kept.

    Inheritance follows the specification, "Sequence Number Inheritance" and "First Row ID Inheritance".

    Args:
        data: content of the manifest.
        manifest: its entry in the manifest list, which the values are inherited from.
        spec: partition spec of the manifest.
        schema: schema of the table, for the types of partition values.
    """
    # Position 15 of `manifest_file` is `first_row_id` (520).
    first_row_id = manifest._data[15] if len(manifest._data) > 15 else None
    found: list[ManifestEntry] = []
    for entry in avro_files.read(data, entry_layout(spec.partition_type(schema))):
        file = entry.data_file
        if entry.status == ManifestEntryStatus.DELETED:
            continue
        if entry.snapshot_id is None and manifest.added_snapshot_id is not None:
            entry.snapshot_id = manifest.added_snapshot_id
        if entry.sequence_number is None:
            entry.sequence_number = manifest.sequence_number
        # Position 3 of `manifest_entry` is `file_sequence_number` (4).
        if entry.file_sequence_number is None:
            entry._data[3] = manifest.sequence_number
        # Position 16 of `data_file` is `first_row_id` (142).
        if first_row_id is not None and file._data[16] is None:
            file._data[16] = first_row_id
            first_row_id += file.record_count
        entry.status = ManifestEntryStatus.EXISTING
        found.append(entry)
    return found


class _Writer(ManifestWriterV2):
    """pyiceberg's manifest writer, for format versions 2 and 3."""

    def __init__(
        self, spec: PartitionSpec, schema: Schema, output: OutputFile, snapshot_id: int, format_version: int
    ) -> None:
        super().__init__(spec, schema, output, snapshot_id, AVRO_CODEC)
        self._format_version: Literal[2, 3] = 3 if format_version >= 3 else 2

    @property
    def version(self) -> Any:
        return self._format_version

    def to_manifest_file(self) -> ManifestFile:
        """The entry of the manifest in a list; without the ranges of partitions if one is of UUIDs.

        Iceberg's Java library takes them in another order (`tarn.adapters.statistics`), and would skip it.
        """
        found = super().to_manifest_file()
        fields = self._spec.partition_type(self._schema).fields
        for field, summary in zip(fields, found.partitions or (), strict=False):
            if isinstance(field.field_type, UUIDType) and summary.lower_bound != summary.upper_bound:
                found._data[PARTITIONS] = None
        return found

    def new_writer(self) -> AvroOutputFile[ManifestEntry]:
        written = _written_entries(self._spec.partition_type(self._schema), self._format_version)
        return _OneBlock(self._output_file, written, self._meta)


class _OneBlock(avro_files.Output):
    """Buffers entries and writes them in few Avro blocks: a block per entry is slow to write and to read."""

    def __init__(self, output_file: OutputFile, written: Written, metadata: Mapping[str, str]) -> None:
        super().__init__(output_file, written, metadata)
        self._held: list[ManifestEntry] = []

    def write_block(self, objects: Sequence[ManifestEntry]) -> None:
        self._held.extend(objects)
        if len(self._held) >= BLOCK_ENTRIES_MAX:
            self._flush()

    def __exit__(
        self,
        exctype: type[BaseException] | None,
        excinst: BaseException | None,
        exctb: TracebackType | None,
    ) -> None:
        if exctype is None and self._held:
            self._flush()
        super().__exit__(exctype, excinst, exctb)

    def _flush(self) -> None:
        held, self._held = self._held, []
        super().write_block(held)


class _Sink(io.BytesIO):
    """A buffer that hands over its content when closed."""

    def __init__(self, keep: Callable[[bytes], object]) -> None:
        super().__init__()
        self._keep = keep

    def close(self) -> None:
        if not self.closed:
            self._keep(self.getvalue())
        super().close()


class _MemoryOutput(OutputFile):
    """Collects the Avro writer's output, to be written to the store as one object."""

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self.data = b""

    def __len__(self) -> int:
        return len(self.data)

    def exists(self) -> bool:
        return False

    def to_input_file(self) -> InputFile:
        return MemoryInput(self.data)

    def create(self, overwrite: bool = False) -> OutputStream:
        def keep(data: bytes) -> None:
            self.data = data

        return _Sink(keep)


def _data_file(file: WrittenFile) -> DataFile:
    return DataFile.from_args(
        _table_format_version=3,
        content=DataFileContent.DATA,
        file_path=file.path,
        file_format=FileFormat.PARQUET,
        partition=Record(*file.partition),
        record_count=file.records,
        file_size_in_bytes=file.bytes,
        **file.statistics,
    )


def _spec(state: TableState, spec_id: int) -> PartitionSpec:
    for value in state.metadata["partition-specs"]:
        if value["spec-id"] == spec_id:
            return OptionalSpec.model_validate(value)
    raise KeyError(f"partition spec {spec_id}")
