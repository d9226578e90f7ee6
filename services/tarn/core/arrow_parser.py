"""Parsing of messages that are Arrow IPC streams of one row each.

Messages of one schema are converted together, as columns. Nothing in a message is trusted: its arrays are
validated, and buffers that are compressed are refused, since a short message could become one of any size.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tarn.core.json_values import WrongTypeError
from tarn.core.parsing import Parsed
from tarn.core.spec import FieldSpec
from tarn.core.typed_values import joined, rows_of

NOT_ARROW = (pa.ArrowException, OSError, EOFError, ValueError, KeyError, MemoryError, struct.error)
"""Exceptions for bytes that are no Arrow stream. Memory counts: they may claim to be of any size."""
END = b"\xff\xff\xff\xff\0\0\0\0"
"""End of a stream, which may be missing."""
FILE_MAGIC = b"ARROW1"
ELEMENTS_PER_BYTE_MAX = 8
"""Truth values take a bit each; nothing else takes less."""
_VIEW_BYTES = 16
_LISTS = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)
_COMPRESSION_SLOT = 3
"""Place of `compression` among the fields of RecordBatch in Arrow's Message.fbs; `header` is the third of
Message, `data` the second of DictionaryBatch."""
_HEADER_SLOT, _DICTIONARY_SLOT = 2, 1


class NoRowError(Exception):
    """A message is not a stream of one row; the text is the reason."""


class RowsTooLargeError(NoRowError):
    """A stream has rows that are too large together; the text says how large they may be."""


@dataclass(frozen=True, slots=True)
class Usual:
    """The schema that the next message probably has too, and how a message with it begins."""

    start: bytes
    schema: pa.Schema

    @staticmethod
    def of(value: bytes, schema: pa.Schema) -> Usual | None:
        """That of a message; None if its values may be larger than they look."""
        if not all(map(_is_plain, schema.types)):
            return None
        source = pa.BufferReader(value)
        pa.ipc.read_message(source)
        return Usual(value[: source.tell()], schema)

    def row(self, value: bytes) -> pa.RecordBatch | None:
        """What `read_row` returns, for a message that begins so; None if the message needs a closer look."""
        if not value.startswith(self.start):
            return None
        source = pa.BufferReader(value)
        source.seek(len(self.start))
        try:
            message = pa.ipc.read_message(source)
            if message.type != "record batch" or value[source.tell() :] not in (b"", END) or _packed(message):
                return None
            row = pa.ipc.read_record_batch(message, self.schema)
            row.validate(full=True)
        except NOT_ARROW:
            return None
        return row if row.num_rows == 1 else None


class ArrowParser:
    """A `Parser` of Arrow IPC streams.

    Args:
        fields: columns of the spec.
    """

    def __init__(self, fields: Sequence[FieldSpec]) -> None:
        self._fields = tuple(fields)
        self._usual: Usual | None = None

    def parse(self, values: Sequence[bytes]) -> Parsed:
        """See `Parser.parse`."""
        bad: dict[int, str] = {}
        groups: dict[pa.Schema, list[tuple[int, pa.RecordBatch]]] = {}
        usual = self._usual  # Another thread may parse a batch at the same time.
        held = groups.setdefault(usual.schema, []) if usual is not None else []
        for i, value in enumerate(values):
            row = None if usual is None else usual.row(value)
            if row is not None:
                held.append((i, row))
                continue
            try:
                row = read_row(value)
            except NoRowError as e:
                bad[i] = str(e)
                continue
            groups.setdefault(row.schema, []).append((i, row))
            found = Usual.of(value, row.schema)
            if found is not None:
                usual, held = found, groups[row.schema]
        self._usual = usual
        parts = [self._rows(schema, rows) for schema, rows in groups.items() if rows]
        return joined(self._fields, parts, bad)

    def _rows(self, schema: pa.Schema, held: Sequence[tuple[int, pa.RecordBatch]]) -> Parsed:
        table = pa.Table.from_batches([row for _, row in held], schema=schema)
        try:
            columns = [_column(table, field.path) for field in self._fields]
        except pa.ArrowException:  # Arrow joins most dictionaries, but not those of lists or with a null.
            if len(held) == 1:
                raise
            return joined(self._fields, [self._rows(schema, [one]) for one in held], {})
        found = rows_of(self._fields, columns, len(held))
        index = [i for i, _ in held]
        return Parsed(
            columns=found.columns,
            index=[index[row] for row in found.index],
            bad={index[row]: reason for row, reason in found.bad.items()},
        )


def read_row(value: bytes) -> pa.RecordBatch:
    """The row of a message, without the metadata of its schema.

    Raises:
        NoRowError: it is not an Arrow IPC stream of one row, or its buffers are compressed.
    """
    _, batches = _read(value, rows_max=1)
    rows = sum(batch.num_rows for batch in batches)
    if rows != 1:
        raise NoRowError(f"an Arrow stream of {rows} rows; a message is one row")
    return next(batch for batch in batches if batch.num_rows)


def split_rows(value: bytes, *, rows_max: int, bytes_max: int) -> list[bytes]:
    """The rows of an Arrow IPC stream, each as a stream of its own.

    Args:
        value: the stream.
        rows_max: how many rows it may have.
        bytes_max: how large they may be together, each with the schema.

    Raises:
        RowsTooLargeError: they are larger.
        NoRowError: it is not an Arrow IPC stream, has more rows, or its buffers are compressed.
    """
    schema, batches = _read(value, rows_max=rows_max)
    start = schema.serialize().to_pybytes()
    found: list[bytes] = []
    count, size = sum(batch.num_rows for batch in batches), 0
    for batch in batches:
        plain = all(map(_is_plain, schema.types))
        for at in range(batch.num_rows):
            row = batch.slice(at, 1)
            if plain:
                found.append(start + row.serialize().to_pybytes())
            else:  # Dictionaries are messages of their own.
                sink = pa.BufferOutputStream()
                with pa.ipc.new_stream(sink, schema) as stream:
                    stream.write_batch(row)
                found.append(sink.getvalue().to_pybytes())
            size += len(found[-1])
            if size > bytes_max:
                raise RowsTooLargeError(
                    f"an Arrow stream whose {count} rows take more than {bytes_max} bytes, each with the "
                    f"schema, of {len(start)} bytes; send fewer rows in a body, or JSON"
                )
    return found


def _read(value: bytes, *, rows_max: int) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """The schema and the record batches of a stream; nothing in it is trusted.

    Raises:
        NoRowError: it is not an Arrow IPC stream, has more rows, or its buffers are compressed.
    """
    if value.startswith(FILE_MAGIC):
        raise NoRowError("an Arrow file; send an Arrow IPC stream")
    try:
        if _compressed(value):
            raise NoRowError(
                "its Arrow buffers are compressed, so that a short message could be of any size; send them "
                "as they are"
            )
        source = pa.BufferReader(value)
        stream = pa.ipc.open_stream(source)
        batches = list(stream)
        rows = sum(batch.num_rows for batch in batches)
        if rows > rows_max > 1:
            raise NoRowError(f"an Arrow stream of {rows} rows, at most {rows_max} are allowed")
        if source.tell() != len(value):
            raise NoRowError(f"{len(value) - source.tell()} bytes after the end of the Arrow stream")
        elements = 0
        for batch in batches:
            batch.validate(full=True)
            elements += sum(map(_elements, batch.columns))
    except NOT_ARROW as e:
        raise NoRowError(
            f"no Arrow stream: {type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}"
        ) from e
    if elements > ELEMENTS_PER_BYTE_MAX * len(value):
        raise NoRowError(f"an Arrow stream of {elements} elements in {len(value)} bytes; send plain lists")
    # Messages whose schemas differ in nothing else are converted together.
    return stream.schema.remove_metadata(), [batch.replace_schema_metadata(None) for batch in batches]


def _compressed(value: bytes) -> bool:
    """Whether any record batch or dictionary of the stream is compressed."""
    source = pa.BufferReader(value)
    while source.tell() < len(value):
        try:
            message = pa.ipc.read_message(source)
        except EOFError:
            return False
        if message.type in ("record batch", "dictionary") and _packed(message):
            return True
    return False


def _packed(message: pa.ipc.Message) -> bool:
    """Whether a record batch or dictionary is compressed."""
    data = message.metadata.to_pybytes()
    batch = _table_at(data, _table_at(data, 0, None), _HEADER_SLOT)
    if message.type == "dictionary":
        batch = _table_at(data, batch, _DICTIONARY_SLOT)
    return _slot(data, batch, _COMPRESSION_SLOT) != 0


def _is_plain(kind: pa.DataType) -> bool:
    return bool(pa.types.is_primitive(kind) or pa.types.is_string(kind) or pa.types.is_binary(kind))


def _table_at(data: bytes, table: int, slot: int | None) -> int:
    """Position of a table in a flatbuffer: the root, or the one in a slot of another table."""
    at = table if slot is None else table + _slot(data, table, slot)
    return at + int(struct.unpack_from("<I", data, at)[0])


def _slot(data: bytes, table: int, slot: int) -> int:
    """Position of a field relative to its table; 0 if it is absent."""
    places = table - int(struct.unpack_from("<i", data, table)[0])
    size = struct.unpack_from("<H", data, places)[0]
    at = 4 + 2 * slot
    return int(struct.unpack_from("<H", data, places + at)[0]) if at < size else 0


def _elements(column: pa.Array) -> int:
    """Number of values in all parts of a column, with the bytes of those that stand for many.

    Without a limit on it, a few bytes that are referred to again and again would fill the memory.
    """
    kind = column.type
    if isinstance(column, pa.ExtensionArray):
        return _elements(column.storage)
    if pa.types.is_struct(kind):
        return len(column) + sum(_elements(column.field(i)) for i in range(kind.num_fields))
    if pa.types.is_map(kind):
        return len(column) + _elements(column.keys) + _elements(column.items)
    if any(is_kind(kind) for is_kind in _LISTS):
        return len(column) + _elements(column.values)
    if pa.types.is_dictionary(kind):
        # The values may be lists of nulls, which take no bytes: even one stands for any number of elements.
        own = _elements(column.dictionary)
        return len(column) + own + (_bytes_decoded(column, own) if len(column) > 1 else 0)
    if pa.types.is_run_end_encoded(kind):
        own = _elements(column.values)
        size = int(column.values.get_total_buffer_size())
        return len(column) + (len(column) * (own + size) if len(column) > 1 else own)
    if len(column) <= 1:
        return len(column)
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return len(column) + _bytes_viewed(column)
    return len(column)


def _bytes_decoded(column: pa.DictionaryArray, elements: int) -> int:
    """Bytes, and elements of nested ones, of the values that a dictionary array stands for, at most.

    Args:
        column: the array.
        elements: number of elements of its dictionary.
    """
    held = column.dictionary
    if pa.types.is_primitive(held.type):
        return 0  # No more than the elements themselves.
    kinds = (pa.types.is_string, pa.types.is_binary, pa.types.is_large_string, pa.types.is_large_binary)
    if not any(is_kind(held.type) for is_kind in kinds):
        return len(column) * (elements + int(held.get_total_buffer_size()))
    return int(pc.sum(pc.binary_length(held).take(column.indices), min_count=0).as_py())


def _bytes_viewed(column: pa.Array) -> int:
    """Bytes of the values of a view array: each view begins with its length."""
    views = column.buffers()[1].slice(column.offset * _VIEW_BYTES, len(column) * _VIEW_BYTES)
    return sum(max(length, 0) for (length,) in struct.iter_unpack("<i12x", views))


def _column(table: pa.Table, path: Sequence[str]) -> pa.Array | WrongTypeError:
    """The values at a path, null where there are none; or why there can be none."""
    where = ".".join(path)
    found: pa.Array | None = None
    for depth, key in enumerate(path):
        names = table.schema.names if found is None else [part.name for part in found.type]
        if names.count(key) > 1:
            return WrongTypeError(f"{where}: the Arrow schema has {key} twice")
        if key not in names:
            return pa.nulls(table.num_rows)
        found = table.column(key).combine_chunks() if found is None else pc.struct_field(found, key)
        if isinstance(found, pa.ChunkedArray):
            found = pa.concat_arrays(found.chunks)
        if depth < len(path) - 1 and not pa.types.is_struct(found.type):
            if pa.types.is_null(found.type):
                return pa.nulls(table.num_rows)
            return WrongTypeError(f"{'.'.join(path[: depth + 1])}: expected a struct, found {found.type}")
    assert found is not None, "a path has a key"
    return found
