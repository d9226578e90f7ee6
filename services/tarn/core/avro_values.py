"""Values of Avro's binary encoding: a reader for each type of a schema (Avro specification 1.12).

The bytes are not trusted: whatever they are, a reader ends after work in proportion to their number, with a
value or an `AvroValueError`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa

from tarn.core.avro_schema import AvroType

DECIMAL_DIGITS_MAX = 38
STEPS_PER_BYTE, STEPS_MIN = 16, 2_000
PARTS_MAX = 10_000
"""Parts of the type of one column."""
_UUID_BYTES = pa.binary(16)
_UNIT = {"millis": "ms", "micros": "us", "nanos": "ns"}
_PLAIN = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}


class AvroValueError(Exception):
    """The bytes are no value of the schema; the text is the reason."""


class Cursor:
    """A place in a message.

    Attributes:
        data: the message.
        at: index of the next byte.
        left: number of further elements that its arrays and maps may have: one per byte, as those of some
            types take none.
        steps: number of further fields that its records may have: records may share types, so that a short
            schema can stand for very many fields without a byte.
    """

    __slots__ = ("at", "data", "left", "steps")

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self.at = at
        self.left = len(data)
        self.steps = STEPS_PER_BYTE * len(data) + STEPS_MIN

    @property
    def read(self) -> int:
        """Number of fields and elements that were read."""
        data = len(self.data)
        return (STEPS_PER_BYTE * data + STEPS_MIN - self.steps) + (data - self.left)


Reader: TypeAlias = Callable[[Cursor], Any]


def arrow_type(
    kind: AvroType,
    path: tuple[AvroType, ...] = (),
    parts: list[AvroType] | None = None,
    *,
    uuid: pa.DataType = _UUID_BYTES,
) -> pa.DataType:
    """The Arrow type of the values.

    Args:
        kind: type of the values.
        path: types that hold it.
        parts: all parts of the column's type so far.
        uuid: type of a UUID of 16 bytes.

    Raises:
        ValueError: there is none: a union of several types, a record within itself, a decimal of more than
            38 digits, or more than `PARTS_MAX` parts.
    """
    kind = kind.value
    parts = [] if parts is None else parts
    parts.append(kind)
    if len(parts) > PARTS_MAX:
        raise ValueError(f"its type has more than {PARTS_MAX} parts")
    if kind in path:
        raise ValueError(f"{kind} holds itself, which no column can")
    of = partial(arrow_type, path=(*path, kind), parts=parts, uuid=uuid)
    if kind.kind == "union":
        raise ValueError(f"it is {kind}; a column has one type")
    if kind.kind == "record":
        return pa.struct([pa.field(name, of(inner)) for name, inner in kind.fields])
    if kind.kind == "array":
        return pa.list_(of(kind.inner[0]))
    if kind.kind == "map":
        return pa.map_(pa.string(), of(kind.inner[0]))
    if kind.logical == "decimal":
        if kind.precision > DECIMAL_DIGITS_MAX:
            raise ValueError(f"a decimal of {kind.precision} digits is beyond {DECIMAL_DIGITS_MAX}")
        return pa.decimal128(kind.precision, kind.scale)
    if kind.logical == "date":
        return pa.date32()
    if "timestamp-" in kind.logical:
        zone = None if kind.logical.startswith("local-") else "UTC"
        return pa.timestamp(_UNIT[kind.logical.rpartition("-")[2]], zone)
    if kind.kind == "fixed":
        # An array of a large fixed size would take that size even for a null.
        return uuid if kind.logical == "uuid" else pa.binary()
    return _PLAIN[kind.kind]


def column_type(schema: AvroType, path: Sequence[str]) -> pa.DataType | None:
    """The Arrow type of the values at a path; None if the schema has no such field.

    Raises:
        ValueError: there is a field, and its values are of no such type.
    """
    here = schema
    for depth, key in enumerate(path):
        if here.value.kind != "record":
            raise ValueError(f"{'.'.join(path[:depth]) or 'the message'} is {here.value}, not a record")
        found = dict(here.value.fields).get(key)
        if found is None:
            return None
        here = found
    return arrow_type(here)


class Readers:
    """Readers of the types of one schema, each made once: a record may hold itself."""

    def __init__(self) -> None:
        self._records: dict[AvroType, Reader] = {}

    def of(self, kind: AvroType) -> Reader:
        """The reader of values of this type, as `pa.array` takes them for `arrow_type(kind)`."""
        if kind.logical == "decimal":
            return _decimal(_fixed(kind.size) if kind.kind == "fixed" else read_bytes, kind)
        if kind.kind == "fixed":
            return _fixed(kind.size)
        if kind.kind == "enum":
            return _enum(kind.symbols)
        if kind.kind == "union":
            return _union([self.of(branch) for branch in kind.inner])
        if kind.kind == "array":
            return _items(self.of(kind.inner[0]))
        if kind.kind == "map":
            return _items(_entry(self.of(kind.inner[0])))
        return self._record(kind) if kind.kind == "record" else _READERS[kind.kind]

    def _record(self, kind: AvroType) -> Reader:
        if kind not in self._records:
            parts: list[tuple[str, Reader]] = []

            def record(cursor: Cursor) -> dict[str, Any]:
                cursor.steps -= 1 + len(parts)
                if cursor.steps < 0:
                    raise AvroValueError("more fields than a message of its length may have")
                return {name: read(cursor) for name, read in parts}

            self._records[kind] = record
            parts += [(name, self.of(inner)) for name, inner in kind.fields]
        return self._records[kind]


def read_long(cursor: Cursor) -> int:
    """A whole number in zigzag form, of at most 64 bits."""
    data, at = cursor.data, cursor.at
    byte = data[at]
    at += 1
    found, shift = byte & 0x7F, 7
    while byte & 0x80:
        byte = data[at]
        at += 1
        found |= (byte & 0x7F) << shift
        shift += 7
        if shift > 70:
            raise AvroValueError("a number of more than ten bytes")
    cursor.at = at
    if found >> 64:
        raise AvroValueError("a number of more than 64 bits")
    return (found >> 1) ^ -(found & 1)


def read_bytes(cursor: Cursor) -> bytes:
    """Bytes after their number."""
    return _take(cursor, read_long(cursor))


def _int(cursor: Cursor) -> int:
    found = read_long(cursor)
    if not -(2**31) <= found < 2**31:
        raise AvroValueError(f"{found} where an int is due")
    return found


def _string(cursor: Cursor) -> str:
    try:
        return str(read_bytes(cursor), "utf-8")
    except UnicodeDecodeError as e:
        raise AvroValueError(f"a string that is not UTF-8: {e}") from e


def _boolean(cursor: Cursor) -> bool:
    found = cursor.data[cursor.at]
    if found > 1:
        raise AvroValueError(f"the byte {found} where a boolean is due")
    cursor.at += 1
    return found == 1


def _float(cursor: Cursor) -> float:
    return float(struct.unpack("<f", _take(cursor, 4))[0])


def _double(cursor: Cursor) -> float:
    return float(struct.unpack("<d", _take(cursor, 8))[0])


_READERS: dict[str, Reader] = {
    "null": lambda cursor: None,
    "boolean": _boolean,
    "int": _int,
    "long": read_long,
    "float": _float,
    "double": _double,
    "bytes": read_bytes,
    "string": _string,
}


def _take(cursor: Cursor, size: int) -> bytes:
    end = cursor.at + size
    if size < 0 or end > len(cursor.data):
        raise AvroValueError(f"{size} bytes are due, {len(cursor.data) - cursor.at} are left")
    found = cursor.data[cursor.at : end]
    cursor.at = end
    return found


def _fixed(size: int) -> Reader:
    return lambda cursor: _take(cursor, size)


def _decimal(read: Reader, kind: AvroType) -> Reader:
    limit = 10**kind.precision

    def decimal(cursor: Cursor) -> Decimal:
        found = int.from_bytes(read(cursor), "big", signed=True)
        if abs(found) >= limit:  # before its digits are computed, which takes long for many bytes
            raise AvroValueError(f"a decimal of more than {kind.precision} digits")
        return Decimal(f"{found}E-{kind.scale}")

    return decimal


def _enum(symbols: Sequence[str]) -> Reader:
    def enum(cursor: Cursor) -> str:
        found = read_long(cursor)
        if not 0 <= found < len(symbols):
            raise AvroValueError(f"symbol {found} of an enum with {len(symbols)}")
        return symbols[found]

    return enum


def _union(branches: Sequence[Reader]) -> Reader:
    def union(cursor: Cursor) -> Any:
        found = read_long(cursor)
        if not 0 <= found < len(branches):
            raise AvroValueError(f"branch {found} of a union of {len(branches)}")
        return branches[found](cursor)

    return union


def _entry(read: Reader) -> Reader:
    return lambda cursor: (_string(cursor), read(cursor))


def _items(read: Reader) -> Reader:
    """Elements of an array, or entries of a map, in blocks."""

    def items(cursor: Cursor) -> list[Any]:
        found: list[Any] = []
        while count := read_long(cursor):
            if count < 0:
                count, size = -count, read_long(cursor)
                if size < 0:
                    raise AvroValueError(f"a block of {size} bytes")
            if count > cursor.left:
                raise AvroValueError(f"{count} elements, more than so few bytes can hold")
            cursor.left -= count
            found += [read(cursor) for _ in range(count)]
        return found

    return items
