"""Where the rows of data files and dead-letter files come from: a few columns of Parquet, batch by batch."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import ValidationError
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.puffin import PuffinFile
from pyroaring import BitMap64

from tarn.core.audit.accounts import LetterPlace, Origins, Place, Tally, bitmap
from tarn.core.audit.model import FileEntry
from tarn.core.audit.origins import Letter
from tarn.core.errors import CorruptStateError, InvalidError
from tarn.core.object_store import BulkStore
from tarn.core.spec import TRACE_COLUMN

WHOLE_BYTES_MAX = 4 * 1024 * 1024
"""A file up to this size is read by one request; of a larger one only the columns."""
BATCH_ROWS = 65_536
T = TypeVar("T")

PARTS = ("source", "partition", "offset")
LETTER_PLACE = ("ingestor", "source", "partition", "offset")
LETTER_REASON = ("reason", "decoded_at")
READING_ERRORS = (OSError, pa.ArrowException, ValidationError, ValueError, NotImplementedError, KeyError)
"""Exceptions that pyarrow and pyiceberg raise if a file cannot be read, for any reason."""


class ParquetOrigins:
    """An `OriginReader` over the object store.

    Args:
        store: object store of the lake.
        key_of: key of a location; None outside the warehouse, or if no object can be there.
    """

    def __init__(self, store: BulkStore, key_of: Callable[[str], str | None]) -> None:
        self._store = store
        self._key_of = key_of

    def rows(self, file: FileEntry, deleted: BitMap64) -> Origins | None:
        """See `OriginReader.rows`."""
        return self._read(file, lambda data: _rows(data, deleted))

    def letters(self, file: FileEntry) -> Mapping[LetterPlace, Tally] | None:
        """See `OriginReader.letters`."""
        return self._read(file, _letters)

    def letter(self, file: FileEntry, place: LetterPlace, offset: int) -> Sequence[Letter] | None:
        """See `OriginReader.letter`."""
        return self._read(file, lambda data: _letter(data, place, offset))

    def records(self, file: FileEntry, columns: Sequence[str]) -> pa.Table | None:
        """See `OriginReader.records`."""
        return self._read(file, lambda data: pq.read_table(data, columns=list(columns), use_threads=False))

    def deleted(self, file: FileEntry) -> Mapping[str, BitMap64] | None:
        """See `OriginReader.deleted`."""
        work = _vectors if file.path.endswith(".puffin") else _positions
        return self._read(file, lambda data: work(data, file.path))

    def _read(self, file: FileEntry, work: Callable[[Any], T]) -> T | None:
        key = self._key_of(file.path)
        if key is None:
            raise InvalidError(f"{file.path} is outside the warehouse, where it cannot be read")
        source: io.RawIOBase | io.BytesIO
        if file.bytes <= WHOLE_BYTES_MAX or file.path.endswith(".puffin"):
            stored = self._store.get(key)
            if stored is None:
                return None
            source = io.BytesIO(stored.data)
        else:
            opened = self._store.open(key, bytes_max=0)
            if opened is None:
                return None
            source = _Ranged(self._store, key, opened.size_bytes)
        try:
            return work(source)
        except READING_ERRORS as error:
            reason = str(error).splitlines()[0][:300] if str(error) else ""
            raise CorruptStateError(
                f"{file.path} cannot be read ({type(error).__name__}: {reason}); restore it "
                "from a backup, or roll the table back",
                path=file.path,
            ) from error


class _Ranged(io.RawIOBase):
    """An object as a seekable file; each read is one ranged request."""

    def __init__(self, store: BulkStore, key: str, size: int) -> None:
        self._store = store
        self._key = key
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        end = self._size if size < 0 else min(self._size, self._at + size)
        data = self._store.part(self._key, self._at, end) if end > self._at else b""
        self._at += len(data)
        return data


def _batches(data: Any, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield batches with those of the columns that the file has; an inner column by its path."""
    file = pq.ParquetFile(data)
    paths = [file.schema.column(number).path for number in range(len(file.schema))]
    yield from file.iter_batches(BATCH_ROWS, columns=[name for name in columns if name in paths])


def _rows(data: Any, deleted: BitMap64) -> Origins:
    rows: dict[Place, Tally] = {}
    gone: dict[Place, BitMap64] = {}
    untraced = 0
    base = 0
    for batch in _batches(data, [f"{TRACE_COLUMN}.{part}" for part in PARTS]):
        live = _live(deleted, base, batch.num_rows)
        base += batch.num_rows
        if TRACE_COLUMN not in batch.schema.names or batch.column(TRACE_COLUMN).type.num_fields < len(PARTS):
            untraced += len(live) - live.false_count
            continue
        trace = batch.column(TRACE_COLUMN)
        topic, partition, offset = (pc.struct_field(trace, part) for part in PARTS)
        known = pc.and_(pc.and_(topic.is_valid(), partition.is_valid()), offset.is_valid())
        known = pc.and_(known, pc.fill_null(pc.greater_equal(offset, 0), False))
        untraced += pc.sum(pc.and_(live, pc.invert(known)), min_count=0).as_py()
        columns = pa.table({"topic": topic, "partition": partition, "offset": offset, "live": live})
        for key, part in _groups(columns.filter(known), ["topic", "partition"]):
            place = str(key[0]), int(key[1])
            _count(rows.setdefault(place, Tally()), part.filter(part["live"])["offset"])
            if deleted:
                dead = part.filter(pc.invert(part["live"]))["offset"]
                gone[place] = gone.get(place, BitMap64()) | _offsets(dead)
    return Origins(rows=rows, deleted=gone, untraced=untraced)


def _live(deleted: BitMap64, base: int, count: int) -> pa.Array:
    """Whether each row in [base, base + count) of a file is live."""
    positions = pa.array(range(base, base + count), pa.int64()) if deleted else None
    if positions is None:
        return pa.repeat(True, count)
    inside = deleted & BitMap64(range(base, base + count))
    return pc.invert(pc.is_in(positions, value_set=pa.array(list(inside), pa.int64())))


def _letters(data: Any) -> dict[LetterPlace, Tally]:
    found: dict[LetterPlace, Tally] = {}
    for batch in _batches(data, LETTER_PLACE):
        for key, part in _groups(pa.table(batch), list(LETTER_PLACE[:3])):
            place = str(key[0]), str(key[1]), int(key[2])
            _count(found.setdefault(place, Tally()), part["offset"])
    return found


def _letter(data: Any, place: LetterPlace, offset: int) -> list[Letter]:
    found = []
    for batch in _batches(data, (*LETTER_PLACE, *LETTER_REASON)):
        same = pa.repeat(True, batch.num_rows)
        for name, value in zip(LETTER_PLACE, (*place, offset), strict=True):
            same = pc.and_(same, pc.equal(batch.column(name), value))
        for row in batch.filter(same).select(LETTER_REASON).to_pylist():
            found.append(Letter(reason=str(row["reason"]), at=row["decoded_at"]))
    return found


def _vectors(data: Any, _path: str) -> dict[str, BitMap64]:
    """Positions by data file, from the deletion vectors of a Puffin file."""
    found: dict[str, BitMap64] = {}
    for vector in deletion_vectors_from_puffin_file(PuffinFile(data.read())):
        positions = _offsets(vector.to_vector())
        found[vector.referenced_data_file] = found.get(vector.referenced_data_file, BitMap64()) | positions
    return found


def _positions(data: Any, path: str) -> dict[str, BitMap64]:
    """Positions by data file, from a position delete file.

    Raises:
        InvalidError: it is an equality delete file.
    """
    names = pq.ParquetFile(data).schema_arrow.names
    if "file_path" not in names or "pos" not in names:
        raise InvalidError(
            f"{path} deletes rows by their values (an equality delete), which cannot be applied here; "
            "rewrite the data files first, with Trino: ALTER TABLE … EXECUTE optimize"
        )
    found: dict[str, BitMap64] = {}
    for batch in _batches(data, ("file_path", "pos")):
        for key, part in _groups(pa.table(batch), ["file_path"]):
            found[str(key[0])] = found.get(str(key[0]), BitMap64()) | _offsets(part["pos"])
    return found


def _groups(table: pa.Table, by: list[str]) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
    """Yield (key, rows) of each distinct key."""
    if table.num_rows == 0:
        return
    keys = table.group_by(by).aggregate([]).to_pylist()
    for key in keys:
        part = table
        for name in by if len(keys) > 1 else ():
            part = part.filter(pc.equal(part[name], key[name]))
        yield tuple(key[name] for name in by), part


def _count(tally: Tally, offsets: pa.ChunkedArray) -> None:
    """Add offsets, of which some may be equal, to a tally."""
    found = _offsets(offsets)
    if len(found) == len(offsets):
        tally.add(found)
        return
    # Rare: the same offset twice in one batch of one file.
    counts = offsets.value_counts().to_pylist()
    for times in range(1, max(entry["counts"] for entry in counts) + 1):
        tally.add(BitMap64([entry["values"] for entry in counts if entry["counts"] >= times]))


def _offsets(values: pa.ChunkedArray) -> BitMap64:
    found = BitMap64()
    for chunk in values.chunks:
        whole = chunk.cast(pa.uint64())
        data = whole.buffers()[1]
        if data is not None:
            start = whole.offset * 8
            found |= bitmap(data.slice(start, len(whole) * 8).to_pybytes())
    return found
