"""Data files: Arrow columns to Parquet objects, with the statistics of a manifest entry.

Every name contains a UUID and is written once, so a write without a response is simply repeated; nothing is
ever deleted here (invariants I3, I7).
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from typing import Any
from urllib.parse import urlparse

import pyarrow as pa
import pyarrow.parquet as pq

from tarn.adapters.dictionaries import repeating
from tarn.adapters.partitions import folder, split, survives_manifests
from tarn.adapters.sort_order import in_order
from tarn.adapters.statistics import statistics_of
from tarn.adapters.write_schema import WriteSchema
from tarn.core.errors import InvalidLocationError, OutcomeUnknownError, UnavailableError
from tarn.core.object_store import ObjectStore
from tarn.core.table_files import EncodedFile
from tarn.core.table_state import WrittenFile

PUT_ATTEMPTS_MAX = 5
PUT_WAIT_MS = 100
ROW_GROUP_ROWS_MAX = 1_000_000


class FileIO:
    """File IO by location (`s3://bucket/key`), over a store addressed by key.

    Args:
        store: object store of the bucket.
        bucket: name of the bucket; locations elsewhere are rejected.
        sleep: waits between attempts, in seconds.
        workers: run the writes that are begun; without them `begin` writes at once.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        bucket: str,
        sleep: Callable[[float], None] = time.sleep,
        workers: Executor | None = None,
    ) -> None:
        self._store = store
        self._bucket = bucket
        self._sleep = sleep
        self._workers = workers

    def read(self, location: str) -> bytes:
        """Read a file.

        Raises:
            UnavailableError: the store does not respond, or the object does not exist (yet).
            ForbiddenError: the credentials lack permission.
        """
        found = self._store.get(self._key(location))
        if found is None:
            raise UnavailableError(f"{location} is not in the store", location=location)
        return found.data

    def write_new(self, location: str, data: bytes) -> None:
        """Write a file under a unique name; repeat the write while its outcome is unknown.

        Raises:
            UnavailableError: no response after all attempts; the object may exist, which is harmless because
                nothing references it.
            ForbiddenError: the credentials lack permission.
        """
        key = self._key(location)
        for attempt in range(1, PUT_ATTEMPTS_MAX + 1):
            try:
                self._store.put(key, data)
            except (UnavailableError, OutcomeUnknownError) as e:
                if attempt == PUT_ATTEMPTS_MAX:
                    raise UnavailableError(
                        f"could not write {location} in {attempt} attempts: {e.message}", location=location
                    ) from e
                self._sleep(PUT_WAIT_MS / 1_000 * 2 ** (attempt - 1))
            else:
                return

    def begin(self, location: str, data: bytes) -> Upload:
        """Begin to write a file under a unique name; `Upload.finish` waits for it.

        Raises:
            UnavailableError, ForbiddenError: as `write_new`, if there are no workers.
        """
        return Upload(lambda: self.write_new(location, data), self._workers)

    def _key(self, location: str) -> str:
        parsed = urlparse(location)
        key = parsed.path.lstrip("/")
        if parsed.scheme not in ("s3", "s3a") or parsed.netloc != self._bucket or not key:
            raise InvalidLocationError(
                f"{location!r} is not in bucket {self._bucket!r}; the table must lie in the warehouse",
                location=location,
            )
        return key


class Upload:
    """A write that was begun. It keeps the data until it is done. Not thread-safe.

    Args:
        write: writes the file.
        workers: where; None to write at once.
    """

    def __init__(self, write: Callable[[], None], workers: Executor | None) -> None:
        self._write: Callable[[], None] | None = write
        self._begun: Future[None] | None = None
        if workers is None:
            self.finish()
        else:
            self._begun = workers.submit(write)

    def finish(self) -> None:
        """Return once the file is in the store. After a failure the next call writes it again.

        Raises:
            UnavailableError, ForbiddenError: as `FileIO.write_new`.
        """
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.result()
        elif self._write is not None:
            self._write()
        self._write = None


def encode_rows(
    layout: WriteSchema, root: str, rows: pa.Table, *, new_name: Callable[[], str], whole: bool = False
) -> tuple[EncodedFile, ...]:
    """Encode the rows as Parquet files below `root`/data, one per partition; nothing is written.

    Args:
        layout: write schema of the table.
        root: location of the table.
        rows: columns with the names and types of the write schema.
        new_name: generates a unique file name without suffix.
        whole: whether a partition is one file, however large.

    Returns:
        One file per partition, several if it would exceed the table's target size; none without rows.

    Raises:
        InvalidError: the rows touch more partitions than a batch may.
        Exception: a library rejects a value.
    """
    shaped = _shape(rows, layout.arrow)
    made = []
    for values, part in split(shaped, layout):
        for rows_, data, statistics in _encode_sized(part, layout, whole=whole):
            file = WrittenFile(
                path=f"{root}/data/{folder(values, layout)}{new_name()}.parquet",
                partition=values,
                spec_id=layout.spec.spec_id,
                records=rows_,
                bytes=len(data),
                statistics=statistics,
            )
            if rows_:
                made.append(EncodedFile(file=file, data=data))
    return tuple(made)


def merge_files(
    objects: FileIO,
    layout: WriteSchema,
    root: str,
    files: Sequence[WrittenFile],
    *,
    new_name: Callable[[], str],
) -> tuple[EncodedFile, ...]:
    """Encode the rows of data files of one partition as one file below `root`/data; nothing is written.

    Args:
        objects: file IO.
        layout: write schema that the files were written with.
        root: location of the table.
        files: data files of one partition.
        new_name: generates a unique file name without suffix.

    Raises:
        UnavailableError: the store does not respond, or lacks a file.
        ValueError: the result does not have exactly the rows and the partition of the files, or their entries
            in manifests could not be rewritten.
    """
    if not survives_manifests(layout.spec, layout.schema):
        raise ValueError("manifests with partition values of type double are not rewritten")
    rows = pa.concat_tables(
        _shape(pq.ParquetFile(io.BytesIO(objects.read(file.path))).read(use_threads=False), layout.arrow)
        for file in files
    )
    made = encode_rows(layout, root, rows, new_name=new_name, whole=True)
    wanted = (sum(file.records for file in files), {(file.spec_id, file.partition) for file in files})
    found = (sum(one.file.records for one in made), {(one.file.spec_id, one.file.partition) for one in made})
    if wanted != found or len(made) != 1:
        raise ValueError(f"{len(files)} files of {wanted} were merged to {len(made)} of {found}")
    return made


def begin_files(objects: FileIO, encoded: Sequence[EncodedFile]) -> tuple[WrittenFile, ...]:
    """Begin to write encoded files to the store, all at the same time; each has its `finish`.

    Raises:
        UnavailableError: the store does not respond, if the writes are not done by workers.
    """
    return tuple(
        replace(made.file, finish=objects.begin(made.file.path, made.data).finish) for made in encoded
    )


def put_files(objects: FileIO, encoded: Sequence[EncodedFile]) -> tuple[WrittenFile, ...]:
    """Write encoded files to the store.

    Raises:
        UnavailableError: the store does not respond.
    """
    begun = begin_files(objects, encoded)
    for file in begun:
        file.finish()
    return begun


def _shape(rows: pa.Table, target: pa.Schema) -> pa.Table:
    """The columns in the order of the target schema, with its field ids."""
    columns = []
    for wanted in target:
        column = rows.column(wanted.name)
        columns.append(column if column.type.equals(wanted.type) else column.cast(wanted.type))
    return pa.Table.from_arrays(columns, schema=target)


def _encode_sized(
    rows: pa.Table, layout: WriteSchema, *, whole: bool
) -> Iterator[tuple[int, bytes, dict[str, Any]]]:
    """Yield files of about the table's target size at most, as (rows, content, statistics).

    The rows are in the table's sort order, so that several files have ranges of it.
    """
    ordered, order_id = in_order(rows, layout)
    data, statistics = _encode(ordered, layout)
    count = min(-(-len(data) // layout.options.target_bytes), ordered.num_rows)
    if whole or count <= 1:
        yield ordered.num_rows, data, {**statistics, "sort_order_id": order_id}
        return
    del data
    size = -(-ordered.num_rows // count)
    for start in range(0, ordered.num_rows, size):
        part = ordered.slice(start, size)
        data, statistics = _encode(part, layout)
        yield part.num_rows, data, {**statistics, "sort_order_id": order_id}


def _encode(rows: pa.Table, layout: WriteSchema) -> tuple[bytes, dict[str, Any]]:
    options = layout.options
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        layout.arrow,
        compression=options.codec,
        compression_level=options.level,
        use_dictionary=repeating(rows),
        bloom_filter_options=options.bloom_filters(rows.num_rows),
        store_decimal_as_integer=True,
        write_statistics=True,
        store_schema=False,
    ) as writer:
        writer.write_table(rows, row_group_size=ROW_GROUP_ROWS_MAX)
    return sink.getvalue().to_pybytes(), statistics_of(rows, writer.writer.metadata)
