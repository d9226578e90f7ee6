"""pyiceberg's scan of data files, with every kind of position delete file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import ArrowScan, _read_deletes
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.table import FileScanTask
from pyiceberg.utils.concurrent import ExecutorFactory


class LakeScan(ArrowScan):
    """pyiceberg's scan, extended to read position deletes that pyarrow cannot decode into a dictionary.

    Trino writes such files unless it is configured as here, so lakes written by other or older setups have
    them.
    """

    def to_record_batches(self, tasks: Iterable[FileScanTask]) -> Iterator[pa.RecordBatch]:
        """Yield the live rows of the files; all batches of one file are in memory at once."""
        listed = list(tasks)
        run = ExecutorFactory.get_or_create()
        deletes: dict[str, list[pa.ChunkedArray]] = {}
        files = {file for task in listed for file in task.delete_files}
        for found in run.map(lambda file: deletes_of(self._io, file), files):
            for path, positions in found.items():
                deletes.setdefault(path, []).append(positions)
        for batches in run.map(
            lambda task: list(self._record_batches_from_scan_tasks_and_deletes([task], deletes)), listed
        ):
            yield from batches


def deletes_of(io: FileIO, file: DataFile) -> dict[str, pa.ChunkedArray]:
    """Positions deleted by a delete file, by path of the data file."""
    if file.file_format != FileFormat.PARQUET:
        return _read_deletes(io, file)
    with io.new_input(file.file_path).open() as opened:
        table = pq.read_table(opened, columns=["file_path", "pos"])
    paths = table["file_path"]
    return {path.as_py(): table["pos"].filter(pc.equal(paths, path)) for path in paths.unique()}
