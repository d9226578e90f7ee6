"""Iceberg's files over an object store: the implementation of `tarn.core.table_files`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pyarrow as pa

from tarn.adapters.files import (
    FileIO,
    begin_files,
    encode_rows,
    merge_files,
    merge_rows_max,
    put_files,
    rows_at,
)
from tarn.adapters.manifests import BegunManifest, Manifests
from tarn.adapters.old_files import OldFiles
from tarn.adapters.partitions import unfit
from tarn.adapters.schema_evolution import changes, evolution
from tarn.adapters.write_schema import WriteSchema, create_request, layout_of, layout_version
from tarn.core.errors import InvalidSpecError
from tarn.core.spec import FieldSpec, PartitionRule
from tarn.core.table_files import EncodedFile, WrittenList
from tarn.core.table_state import CommitRequest, Json, TableState, WrittenFile


class IcebergFormat:
    """A `TableFormat` that writes Parquet and Avro files. Thread-safe; the files of a table are not.

    Args:
        objects: file IO.
        new_name: generates a unique file name.
    """

    def __init__(self, objects: FileIO, *, new_name: Callable[[], str]) -> None:
        self._objects = objects
        self._new_name = new_name

    def table(
        self,
        name: str,
        fields: Sequence[FieldSpec],
        *,
        trace: bool,
        partitioning: Sequence[PartitionRule] = (),
        properties: dict[str, str] | None = None,
        format_version: int = 2,
    ) -> IcebergTableFiles:
        """See `TableFormat.table`."""
        request = partial(
            create_request,
            fields,
            trace=trace,
            partitioning=partitioning,
            properties=properties,
            format_version=format_version,
        )
        return IcebergTableFiles(
            self._objects, name, fields, trace=trace, request=request, new_name=self._new_name
        )


class IcebergTableFiles:
    """A `TableFiles`; see `IcebergFormat.table`.

    Args:
        objects: file IO.
        name: name of the table, for messages.
        fields: columns to write.
        trace: whether the trace column is written.
        request: makes the REST request that creates the table.
        new_name: generates a unique file name.
    """

    def __init__(
        self,
        objects: FileIO,
        name: str,
        fields: Sequence[FieldSpec],
        *,
        trace: bool,
        request: Callable[[], Json],
        new_name: Callable[[], str],
    ) -> None:
        self._objects = objects
        self._name = name
        self._fields = fields
        self._trace = trace
        self._request = request
        self._new_name = new_name
        self._manifests = Manifests(objects, new_name=new_name)
        self._last: IcebergWriter | None = None
        self._old = OldFiles(objects)

    def create_request(self) -> Json:
        """See `TableFiles.create_request`."""
        return self._request()

    def evolution(self, state: TableState) -> CommitRequest | None:
        """See `TableFiles.evolution`."""
        return evolution(state, self._fields, trace=self._trace, table=self._name)

    def changes(self, before: TableState, after: TableState) -> list[str]:
        """See `TableFiles.changes`."""
        return changes(before, after)

    def old_files(self, state: TableState, column: str, before_us: int) -> Iterator[WrittenFile]:
        """See `TableFiles.old_files`."""
        return self._old.find(state, column, before_us)

    def writer(self, state: TableState) -> IcebergWriter:
        """See `TableFiles.writer`."""
        if self._last is None or not self._last.is_current(state) or self._last.root != state.root:
            layout = self._layout(state)
            self._last = IcebergWriter(self._objects, self._manifests, layout, state, new_name=self._new_name)
        return self._last

    def _layout(self, state: TableState) -> WriteSchema:
        try:
            return layout_of(state, self._fields, trace=self._trace, table=self._name)
        except InvalidSpecError as e:
            with contextlib.suppress(InvalidSpecError):
                self.evolution(state)
                e = InvalidSpecError(
                    f"{e.message}, or let ingest alter the table: `evolution: evolve` in the spec's schema",
                    **e.fields,
                )
            raise e from None


class IcebergWriter:
    """A `TableWriter`.

    Args:
        objects: file IO.
        manifests: writer of manifests and manifest lists.
        layout: write schema of the table.
        state: version of the table that the write schema was derived from.
        new_name: generates a unique file name.
    """

    def __init__(
        self,
        objects: FileIO,
        manifests: Manifests,
        layout: WriteSchema,
        state: TableState,
        *,
        new_name: Callable[[], str],
    ) -> None:
        self._objects = objects
        self._manifests = manifests
        self._layout = layout
        self._version = layout_version(state)
        self._new_name = new_name
        self._root = state.root

    @property
    def root(self) -> str:
        """See `TableWriter.root`."""
        return self._root

    @property
    def spec_id(self) -> int:
        """See `TableWriter.spec_id`."""
        return self._layout.spec.spec_id

    @property
    def partitioned(self) -> bool:
        """See `TableWriter.partitioned`."""
        return bool(self._layout.spec.fields)

    def is_current(self, state: TableState) -> bool:
        """See `TableWriter.is_current`."""
        return layout_version(state) == self._version

    def unfit(self, rows: pa.Table) -> dict[int, str]:
        """See `TableWriter.unfit`."""
        return unfit(rows, self._layout)

    def encode(self, rows: pa.Table, *, whole: bool = False) -> tuple[EncodedFile, ...]:
        """See `TableWriter.encode`."""
        return encode_rows(self._layout, self.root, rows, new_name=self._new_name, whole=whole)

    def merge(self, files: Sequence[WrittenFile]) -> tuple[EncodedFile, ...]:
        """See `TableWriter.merge`."""
        return merge_files(self._objects, self._layout, self.root, files, new_name=self._new_name)

    def rows_at(self, location: str) -> pa.Table | None:
        """See `TableWriter.rows_at`."""
        return rows_at(self._objects, self._layout, location)

    @property
    def merge_rows_max(self) -> int:
        """See `TableWriter.merge_rows_max`."""
        return merge_rows_max(self._layout)

    def begin(self, files: Sequence[EncodedFile]) -> tuple[WrittenFile, ...]:
        """See `TableWriter.begin`."""
        return begin_files(self._objects, files)

    def put(self, files: Sequence[EncodedFile]) -> tuple[WrittenFile, ...]:
        """See `TableWriter.put`."""
        return put_files(self._objects, files)

    def snapshot(
        self, files: Sequence[WrittenFile], *, snapshot_id: int, removed: Sequence[WrittenFile] = ()
    ) -> IcebergSnapshot:
        """See `TableWriter.snapshot`."""
        return IcebergSnapshot(self._manifests, self._layout, files, snapshot_id, removed)


class IcebergSnapshot:
    """A `SnapshotFiles`.

    Args:
        manifests: writer of manifests and manifest lists.
        layout: write schema that the files were written with.
        files: data files that the snapshot adds.
        snapshot_id: id of the snapshot.
        removed: data files that it removes.
    """

    def __init__(
        self,
        manifests: Manifests,
        layout: WriteSchema,
        files: Sequence[WrittenFile],
        snapshot_id: int,
        removed: Sequence[WrittenFile] = (),
    ) -> None:
        self._manifests = manifests
        self._layout = layout
        self._files = files
        self._snapshot_id = snapshot_id
        self._removed = frozenset(file.path for file in removed)
        self._found_in = frozenset(file.manifest for file in removed if file.manifest is not None)
        self._manifest: BegunManifest | None = None

    def write_manifest_list(self, base: TableState) -> WrittenList:
        """See `SnapshotFiles.write_manifest_list`."""
        if self._manifest is None:
            self._manifest = self._manifests.begin_manifest(
                self._layout, base.root, self._files, snapshot_id=self._snapshot_id
            )
        written = self._manifests.write_manifest_list(
            base,
            self._manifest.file if self._manifest is not None else None,
            snapshot_id=self._snapshot_id,
            schema=self._layout.schema,
            removed=self._removed,
            found_in=self._found_in,
        )
        # All of them were on the way while the list was written.
        if self._manifest is not None:
            self._manifest.finish()
        for file in self._files:
            file.finish()
        return written
