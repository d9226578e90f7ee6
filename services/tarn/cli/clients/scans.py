"""Tables of the lake as streams of Arrow batches, by pyiceberg: files are read as they are asked for."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan, schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table

from tarn.cli.clients.lake import RestLake
from tarn.core.errors import InvalidError

MIB = 1024 * 1024
READ_BYTES_MAX = 2048 * MIB
"""Limit on the Parquet bytes of one table that a statement may read here."""
FILE_BYTES_MAX = 64 * MIB
"""Limit on the Parquet bytes of the columns asked for in one file: it is decoded as a whole."""
GROUP_BYTES_MAX = 32 * MIB
GROUP_FILES_MAX = 16


class LakeScans(RestLake):
    """`duck.Tables` over the REST catalog."""

    def open(self, name: str) -> TableScan:
        """The table at its current snapshot.

        Raises:
            NoSuchTableError: there is none of this name.
            TarnError: the catalog cannot be asked.
        """
        return self._call(lambda: TableScan(name, self._load(name)))


class TableScan:
    """One table at one snapshot.

    Args:
        name: for messages.
        table: as pyiceberg loaded it.
    """

    def __init__(self, name: str, table: Table) -> None:
        self._name = name
        self._table = table
        self.schema: pa.Schema = schema_to_pyarrow(table.schema(), include_field_ids=False)

    def batches(self, columns: Collection[str]) -> Iterator[pa.RecordBatch]:
        """The live rows, with these columns; only a few files are in memory at a time.

        Raises:
            InvalidError: that is more than can be read here.
        """
        wanted = [field.name for field in self.schema if field.name in columns]
        scan = self._table.scan(selected_fields=tuple(wanted))
        projection = scan.projection()
        tasks = list(scan.plan_files())
        self._require_small(tasks, projection)
        reader = ArrowScan(self._table.metadata, self._table.io, projection, AlwaysTrue())
        for group in groups(tasks):
            for batch in reader.to_record_batches(group):
                yield self._as_declared(batch, wanted)

    def _as_declared(self, batch: pa.RecordBatch, wanted: list[str]) -> pa.RecordBatch:
        """The batch with the types of the schema: a file may hold a type that was widened since."""
        fields = [self.schema.field(name) for name in wanted]
        arrays = [batch.column(field.name) for field in fields]
        return pa.RecordBatch.from_arrays(
            [a if a.type == f.type else a.cast(f.type) for a, f in zip(arrays, fields, strict=True)],
            schema=pa.schema(fields),
        )

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
    """The Parquet bytes of a file's columns that a projection reads; the whole file if it does not say."""
    sizes = file.column_sizes or {}
    ids = projection.field_ids
    return sum(size for i, size in sizes.items() if i in ids) if sizes else file.file_size_in_bytes


def groups(tasks: list[FileScanTask]) -> Iterator[list[FileScanTask]]:
    """The files in order, as many at a time as may be in memory together; at least one."""
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
