"""Data files: Arrow columns to Parquet objects, with the statistics of a manifest entry.

Every name contains a UUID and is written once, so a write without a response is simply repeated; nothing is
ever deleted here (invariants I3, I7).
"""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from concurrent.futures import wait as futures_wait
from dataclasses import replace
from typing import Any
from urllib.parse import urlparse

import pyarrow as pa
import pyarrow.parquet as pq

from tarn.adapters.dictionaries import repeating
from tarn.adapters.partitions import folder, split, survives_manifests
from tarn.adapters.sort_order import UNSORTED, in_order
from tarn.adapters.statistics import Statistics, statistics_of
from tarn.adapters.write_schema import WriteSchema
from tarn.core.errors import InvalidLocationError, OutcomeUnknownError, UnavailableError
from tarn.core.object_store import ObjectStore
from tarn.core.small_files import SORT_BYTES_MAX
from tarn.core.table_files import EncodedFile
from tarn.core.table_state import WrittenFile

PUT_ATTEMPTS_MAX = 5
PUT_WAIT_MS = 100
ROW_GROUP_ROWS_MAX = 1_000_000
MERGED_GROUP_ROWS = 100_000
MERGED_GROUP_BYTES = 8 << 20
"""A row group of a merged file is closed at so many rows, or bytes as Arrow columns: what a merge holds."""
MERGED_STEP_ROWS = 4_096
MERGED_ROWS_MAX = 2_000_000
MERGED_SORTED_ROWS_MAX = 100_000
MERGED_SORTED_BYTES_MAX = 2 * SORT_BYTES_MAX
"""Sorting holds all rows at once. As read they take some more than as written, booleans twice as much."""


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
        data = self.find(location)
        if data is None:
            raise UnavailableError(f"{location} is not in the store", location=location)
        return data

    def find(self, location: str) -> bytes | None:
        """Read a file; None if the object does not exist.

        Raises:
            UnavailableError: the store does not respond.
            ForbiddenError: the credentials lack permission.
        """
        found = self._store.get(self._key(location))
        return None if found is None else found.data

    def written_ms(self, location: str) -> int | None:
        """When a file was written, by the store's clock, in milliseconds since the epoch.

        None if the object does not exist, or the store does not say.

        Raises:
            UnavailableError: the store does not respond.
            ForbiddenError: the credentials lack permission.
        """
        found = self._store.get(self._key(location))
        return None if found is None else found.modified_ms or None

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

    def leave(self, wait: bool) -> None:
        """Give up what is not written; whoever refers to the file has given it up too.

        Args:
            wait: whether to return only when no attempt is under way any more: until then it holds the data.
        """
        begun, self._begun, self._write = self._begun, None, None
        if begun is not None and not begun.cancel() and wait:
            futures_wait([begun])


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
        TooManyPartitionsError: the rows touch more partitions than a batch may.
        Exception: a library rejects a value.
    """
    shaped = _shape(rows, layout.arrow)
    made = []
    for values, part in split(shaped, layout):
        for count, sort_bytes, data, statistics in _encode_sized(part, layout, whole=whole):
            file = WrittenFile(
                path=f"{root}/data/{folder(values, layout)}{new_name()}.parquet",
                partition=values,
                spec_id=layout.spec.spec_id,
                records=count,
                bytes=len(data),
                statistics=statistics,
                sort_bytes=sort_bytes,
            )
            if count:
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

    Files are read one by one, and rows are held for one row group at a time. Only of a table that sorts its
    rows all are held at once.

    Args:
        objects: file IO.
        layout: write schema that the files were written with.
        root: location of the table.
        files: data files of one partition.
        new_name: generates a unique file name without suffix.

    Raises:
        UnavailableError: the store does not respond, or lacks a file.
        ValueError: the result does not have exactly the rows and the partition of the files, their entries in
            manifests could not be rewritten, or there is too much to merge at once.
    """
    if not survives_manifests(layout.spec, layout.schema):
        raise ValueError("manifests with partition values of type double are not rewritten")
    wanted, rows_max = sum(file.records for file in files), merge_rows_max(layout)
    places = {(file.spec_id, file.partition) for file in files}
    if len(places) != 1 or wanted > rows_max:
        raise ValueError(
            f"{wanted} rows of partitions {places} are not merged; at most {rows_max} of one are"
        )
    (place,) = places
    found, size, order_id, statistics = 0, 0, UNSORTED, Statistics()
    sink = io.BytesIO()
    with contextlib.ExitStack() as stack:
        writer: pq.ParquetWriter | None = None
        for rows in _groups(objects, layout, files):
            if [(layout.spec.spec_id, values) for values, _ in split(rows, layout)] != [place]:
                raise ValueError(f"{len(files)} files of partition {place} have rows of others")
            ordered, order_id = in_order(rows, layout)
            if writer is None:
                writer = stack.enter_context(_writer(sink, layout, ordered))
            writer.write_table(ordered.cast(writer.schema), row_group_size=ROW_GROUP_ROWS_MAX)
            statistics.add(ordered)
            found, size = found + rows.num_rows, size + rows.nbytes
    if found != wanted or writer is None:
        raise ValueError(f"{len(files)} files of {wanted} rows were merged to {found}")
    data = sink.getvalue()
    made = WrittenFile(
        path=f"{root}/data/{folder(place[1], layout)}{new_name()}.parquet",
        partition=place[1],
        spec_id=place[0],
        records=found,
        bytes=len(data),
        statistics={**statistics.of(writer.writer.metadata), "sort_order_id": order_id},
        sort_bytes=size if layout.order.fields else 0,
    )
    return (EncodedFile(file=made, data=data),)


def merge_rows_max(layout: WriteSchema) -> int:
    """How many rows one merge may have: fewer if the table sorts them."""
    return MERGED_SORTED_ROWS_MAX if layout.order.fields else MERGED_ROWS_MAX


def _groups(objects: FileIO, layout: WriteSchema, files: Sequence[WrittenFile]) -> Iterator[pa.Table]:
    """The rows of the files, in their order: a row group at a time, or all at once if the table sorts them.

    Raises:
        ValueError: the rows that are to be sorted are too large.
    """
    sorts = bool(layout.order.fields)
    held: list[pa.Table] = []
    rows = size = 0
    for part in _parts(objects, layout, files):
        held.append(part)
        rows, size = rows + part.num_rows, size + part.nbytes
        if sorts and size > MERGED_SORTED_BYTES_MAX:
            raise ValueError(f"{size} bytes of rows are more than are sorted, {MERGED_SORTED_BYTES_MAX}")
        if not sorts and (rows >= MERGED_GROUP_ROWS or size >= MERGED_GROUP_BYTES):
            yield pa.concat_tables(held)
            held, rows, size = [], 0, 0
    if held:
        yield pa.concat_tables(held)


def _parts(objects: FileIO, layout: WriteSchema, files: Sequence[WrittenFile]) -> Iterator[pa.Table]:
    """The rows of the files, some thousands at a time."""
    for file in files:
        source = pq.ParquetFile(io.BytesIO(objects.read(file.path)))
        for group in range(source.num_row_groups):
            for batch in source.iter_batches(MERGED_STEP_ROWS, row_groups=[group], use_threads=False):
                yield _shape(pa.Table.from_batches([batch]), layout.arrow)


def rows_at(objects: FileIO, layout: WriteSchema, location: str) -> pa.Table | None:
    """The rows of a file that need not be of this table, with the columns of the write schema, by name.

    Returns:
        All rows at once; None if the file is not in the store.

    Raises:
        UnavailableError: the store does not respond.
        ValueError, KeyError: it is no Parquet file, or lacks a column.
    """
    data = objects.find(location)
    if data is None:
        return None
    try:
        with pq.ParquetFile(io.BytesIO(data)) as source:
            return _shape(source.read(columns=layout.arrow.names, use_threads=False), layout.arrow)
    except (OSError, pa.ArrowException) as e:
        # A page that is damaged.
        raise ValueError(str(e)) from e


def begin_files(objects: FileIO, encoded: Sequence[EncodedFile]) -> tuple[WrittenFile, ...]:
    """Begin to write encoded files to the store, all at the same time; each has its `finish` and `leave`.

    Raises:
        UnavailableError: the store does not respond, if the writes are not done by workers.
    """
    uploads = [objects.begin(made.file.path, made.data) for made in encoded]
    return tuple(
        replace(made.file, finish=upload.finish, leave=upload.leave)
        for made, upload in zip(encoded, uploads, strict=True)
    )


def put_files(objects: FileIO, encoded: Sequence[EncodedFile]) -> tuple[WrittenFile, ...]:
    """Write encoded files to the store.

    Raises:
        UnavailableError: the store does not respond.
    """
    begun = begin_files(objects, encoded)
    try:
        for file in begun:
            file.finish()
    except BaseException:
        for file in begun:
            file.leave(True)
        raise
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
) -> Iterator[tuple[int, int, bytes, dict[str, Any]]]:
    """Yield files of about the table's target size at most, as (rows, `sort_bytes`, content, statistics).

    The rows are in the table's sort order, so that several files have ranges of it.
    """
    ordered, order_id = in_order(rows, layout)
    data, statistics = _encode(ordered, layout)
    count = min(-(-len(data) // layout.options.target_bytes), ordered.num_rows)
    if whole or count <= 1:
        yield ordered.num_rows, _sort_bytes(ordered, layout), data, {**statistics, "sort_order_id": order_id}
        return
    del data
    size = -(-ordered.num_rows // count)
    for start in range(0, ordered.num_rows, size):
        part = ordered.slice(start, size)
        data, statistics = _encode(part, layout)
        yield part.num_rows, _sort_bytes(part, layout), data, {**statistics, "sort_order_id": order_id}


def _sort_bytes(rows: pa.Table, layout: WriteSchema) -> int:
    """See `WrittenFile.sort_bytes`."""
    return rows.nbytes if layout.order.fields else 0


def _encode(rows: pa.Table, layout: WriteSchema) -> tuple[bytes, dict[str, Any]]:
    sink = io.BytesIO()  # grows by an eighth at a time, and its content is not copied
    with _writer(sink, layout, rows) as writer:
        writer.write_table(rows.cast(writer.schema), row_group_size=ROW_GROUP_ROWS_MAX)
    return sink.getvalue(), statistics_of(rows, writer.writer.metadata)


def _writer(sink: io.BytesIO, layout: WriteSchema, rows: pa.Table) -> pq.ParquetWriter:
    """A writer of row groups like these rows."""
    options = layout.options
    return pq.ParquetWriter(
        sink,
        layout.stored,
        compression=options.codec,
        compression_level=options.level,
        use_dictionary=repeating(rows),
        bloom_filter_options=options.bloom_filters(rows.num_rows),
        store_decimal_as_integer=True,
        write_statistics=options.statistics,
        store_schema=False,
    )
