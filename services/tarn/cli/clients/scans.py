"""Tables of the lake as streams of Arrow batches, with pyiceberg: files are read on demand."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table

from tarn.adapters.lake_scan import LakeScan
from tarn.cli.clients.lake import RestLake
from tarn.cli.clients.unreadable import READING_ERRORS, unreadable
from tarn.core.errors import InvalidError

MIB = 1024 * 1024
READ_BYTES_MAX = 2048 * MIB
"""Limit on the Parquet bytes of one table that a statement may read."""
FILE_BYTES_MAX = 64 * MIB
"""Limit on the Parquet bytes of the projected columns in one file, which is decoded as a whole."""
GROUP_BYTES_MAX = 32 * MIB
GROUP_FILES_MAX = 16


class LakeScans(RestLake):
    """`duck.Tables` over the REST catalog."""

    def open(self, name: str) -> TableScan:
        """Open the table at its current snapshot.

        Raises:
            NoSuchTableError: the table does not exist.
            TarnError: the catalog does not respond or denies access.
        """
        endpoint = self._settings.s3_endpoint
        return self._call(lambda: TableScan(name, self._load(name), endpoint=endpoint), name)


class TableScan:
    """One table at one snapshot.

    Args:
        name: qualified name, for messages.
        table: table loaded by pyiceberg.
        endpoint: endpoint of the store, for messages.
    """

    def __init__(self, name: str, table: Table, *, endpoint: str) -> None:
        self._name = name
        self._table = table
        self._endpoint = endpoint
        self.schema: pa.Schema = schema_to_pyarrow(table.schema(), include_field_ids=False)

    def batches(self, columns: Collection[str]) -> Iterator[pa.RecordBatch]:
        """Yield the live rows with these columns; only a few files are in memory at a time.

        Raises:
            InvalidError: the columns exceed the limits, or pyiceberg does not support the files.
            TarnError: the store or a file is at fault.
        """
        try:
            yield from self._batches(columns)
        except READING_ERRORS as error:
            raise unreadable(error, table=self._name, endpoint=self._endpoint) from error

    def _batches(self, columns: Collection[str]) -> Iterator[pa.RecordBatch]:
        wanted = [field.name for field in self.schema if field.name in columns]
        scan = self._table.scan(selected_fields=tuple(wanted))
        projection = scan.projection()
        tasks = list(scan.plan_files())
        self._require_small(tasks, projection)
        reader = LakeScan(self._table.metadata, self._table.io, projection, AlwaysTrue())
        for group in groups(tasks):
            for batch in reader.to_record_batches(group):
                yield self._as_declared(batch, wanted)

    def _as_declared(self, batch: pa.RecordBatch, wanted: list[str]) -> pa.RecordBatch:
        """The batch with the types of the schema: a file may have a type that was promoted since."""
        fields = [self.schema.field(name) for name in wanted]
        arrays = [batch.column(field.name) for field in fields]
        found = pa.RecordBatch.from_arrays(
            [a if a.type == f.type else a.cast(f.type) for a, f in zip(arrays, fields, strict=True)],
            schema=pa.schema(fields),
        )
        if any(pa.types.is_nested(field.type) for field in fields):
            # A batch within a row group is a slice, and DuckDB takes no struct below an offset, as maps and
            # lists of lists then have it. Messages of IPC have no offsets.
            found = pa.ipc.read_record_batch(found.serialize(), found.schema)
        return found

    def _require_small(self, tasks: list[FileScanTask], projection: Schema) -> None:
        sizes = [projected_bytes(task.file, projection) for task in tasks]
        for what, found, limit in (
            (f"one file of {self._name}", max(sizes, default=0), FILE_BYTES_MAX),
            (f"{self._name}", sum(sizes), READ_BYTES_MAX),
        ):
            if found > limit:
                raise InvalidError(
                    f"{what} holds {found / MIB:,.0f} MiB in the columns asked for, more than the "
                    f"{limit / MIB:,.0f} MiB that DuckDB reads here; name fewer columns, or use "
                    "--engine trino",
                    table=self._name,
                    bytes=found,
                    bytes_max=limit,
                )


def projected_bytes(file: DataFile, projection: Schema) -> int:
    """Parquet bytes of the file's columns in a projection; the file size if column sizes are missing."""
    sizes = file.column_sizes or {}
    ids = projection.field_ids
    return sum(size for i, size in sizes.items() if i in ids) if sizes else file.file_size_in_bytes


def groups(tasks: list[FileScanTask]) -> Iterator[list[FileScanTask]]:
    """Yield the files in order, in groups that fit in memory together; at least one file per group."""
    group: list[FileScanTask] = []
    held = 0
    for task in tasks:
        size = task.file.file_size_in_bytes
        if group and (held + size > GROUP_BYTES_MAX or len(group) >= GROUP_FILES_MAX):
            yield group
            group, held = [], 0
        group.append(task)
        held += size
    if group:
        yield group
