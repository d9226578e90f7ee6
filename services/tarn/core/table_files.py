"""Interface to the files of Iceberg tables: data files, manifests and manifest lists.

`TableFormat` opens the files of a table (`TableFiles`). Each version of the table's schema and partition spec
has a writer (`TableWriter`), and each commit has the manifests of one snapshot (`SnapshotFiles`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from tarn.core.spec import FieldSpec, PartitionRule
from tarn.core.table_state import CommitRequest, Json, TableState, WrittenFile


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedFile:
    """A data file in memory, not yet in the store."""

    file: WrittenFile
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenList:
    """A manifest list in the store.

    Attributes:
        path: location of the manifest list.
        added_rows: number of row ids assigned (format version 3; 0 before).
        manifests: number of manifests that it lists.
        bytes: size of the list and its manifests, in bytes.
    """

    path: str
    added_rows: int
    manifests: int = 0
    bytes: int = 0


class FilesNotLiveError(Exception):
    """Files that a snapshot should remove are not live in the base, or their entries cannot be rewritten."""


class SnapshotFiles(Protocol):
    """The manifests of one new snapshot that adds data files, and may remove some."""

    def write_manifest_list(self, base: TableState) -> WrittenList:
        """Write the manifest list of the snapshot on this base.

        The manifest of the data files is written by the first call and used again by later ones: it is valid
        on every base. When this returns, all files that the snapshot adds are in the store too.

        Raises:
            UnavailableError: the store does not respond.
            FilesNotLiveError: a file to remove is not live in this base.
        """


class TableWriter(Protocol):
    """Writes files for one version of a table's schema and partition spec."""

    @property
    def root(self) -> str:
        """Location of the table, without a trailing slash; all its files lie below it."""

    @property
    def spec_id(self) -> int:
        """Id of the partition spec."""

    @property
    def partitioned(self) -> bool:
        """Whether the partition spec has fields."""

    def is_current(self, state: TableState) -> bool:
        """Whether this version of the table has the writer's schema, partition spec and format version."""

    def unfit(self, rows: pa.Table) -> dict[int, str]:
        """Rows that no partition can hold, as {row index: reason}."""

    def encode(self, rows: pa.Table, *, whole: bool = False) -> tuple[EncodedFile, ...]:
        """Encode the rows as data files; none without rows; nothing is written.

        Args:
            rows: the rows.
            whole: whether a partition is one file, also beyond the table's target size.

        Raises:
            TooManyPartitionsError: the rows touch more partitions than a batch may.
            Exception: a library rejects a value.
        """

    def merge(self, files: Sequence[WrittenFile]) -> tuple[EncodedFile, ...]:
        """Encode the rows of data files of one partition again, as one file; nothing is written.

        Args:
            files: data files that this process wrote with the same write schema.

        Raises:
            UnavailableError: the store does not respond.
            ValueError: the result does not have exactly the rows and the partition of the files, or there is
                too much to merge at once.
        """

    def rows_at(self, location: str) -> pa.Table | None:
        """The rows of a data file of any table that has the written columns, found by name.

        Returns:
            Exactly these columns; None if the file is not in the store.

        Raises:
            UnavailableError: the store does not respond.
            ValueError, KeyError: it is no data file, or lacks a column.
        """

    @property
    def merge_rows_max(self) -> int:
        """How many rows one merge may have."""

    def begin(self, files: Sequence[EncodedFile]) -> tuple[WrittenFile, ...]:
        """Begin to write encoded files to the store; a snapshot with them waits until they are there.

        Raises:
            UnavailableError: the store does not respond.
        """

    def put(self, files: Sequence[EncodedFile]) -> tuple[WrittenFile, ...]:
        """Write encoded files to the store.

        Raises:
            UnavailableError: the store does not respond.
        """

    def snapshot(
        self, files: Sequence[WrittenFile], *, snapshot_id: int, removed: Sequence[WrittenFile] = ()
    ) -> SnapshotFiles:
        """The manifests of a new snapshot that adds files and removes others; nothing is written yet."""


class TableFiles(Protocol):
    """Files of one table. Not thread-safe."""

    def create_request(self) -> Json:
        """REST request that creates the table, without its name."""

    def evolution(self, state: TableState) -> CommitRequest | None:
        """The commit that fits the schema of this version of the table to the columns; None if it fits.

        Raises:
            InvalidSpecError: adding, widening and making columns optional does not suffice.
        """

    def changes(self, before: TableState, after: TableState) -> Sequence[str]:
        """What differs between the columns of two versions of the table, for people."""

    def old_files(self, state: TableState, column: str, before_us: int) -> Iterator[WrittenFile]:
        """Live data files in which every row has the column, with a time before this one; without statistics.

        They are found while one iterates, in the order in which the table lists them: the newest first.

        Args:
            state: version of the table.
            column: name of a column of type timestamp or timestamptz.
            before_us: time in microseconds since the epoch.

        Raises:
            UnavailableError: the store does not respond.
        """

    def writer(self, state: TableState) -> TableWriter:
        """The writer for this version of the table; the same object while schema and location stay the same.

        Raises:
            InvalidSpecError: the table cannot take the columns; lists every difference.
        """


class TableFormat(Protocol):
    """Opens the files of tables."""

    def table(
        self,
        name: str,
        fields: Sequence[FieldSpec],
        *,
        trace: bool,
        partitioning: Sequence[PartitionRule] = (),
        properties: dict[str, str] | None = None,
        format_version: int = 2,
    ) -> TableFiles:
        """The files of one table; nothing is read or written.

        Args:
            name: name of the table, for messages.
            fields: columns to write.
            trace: whether the trace column (topic, partition, offset of each record) is written.
            partitioning: partition rules of a new table.
            properties: properties of a new table, in addition to the defaults.
            format_version: Iceberg format version of a new table.
        """
