"""Parsing of messages in Avro: plain datums, single-object encoding, containers of one datum each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import pyarrow as pa

from tarn.core.avro_schema import AvroType, fingerprint, parse_schema
from tarn.core.avro_values import (
    AvroValueError,
    Cursor,
    Reader,
    Readers,
    column_type,
    read_bytes,
    read_long,
)
from tarn.core.json_values import WrongTypeError
from tarn.core.parsing import Parsed
from tarn.core.spec import AvroMessages, FieldSpec
from tarn.core.typed_values import joined, rows_of

SINGLE_MAGIC = b"\xc3\x01"
CONTAINER_MAGIC = b"Obj\x01"
PARSERS_MAX = 64
OWN_SCHEMA_BYTES_MAX = 65_536
HELD_MAX = 500_000
"""Fields and elements that are Python objects at one time: each takes some 10 to 100 bytes."""
CELLS_MAX = 1_000_000
"""Rows times parts of a column's type that are made at one time: a null of a record takes all its parts."""
_SYNC_BYTES = 16
_CONFLUENT_HEAD_BYTES = 5

Kind: TypeAlias = pa.DataType | WrongTypeError | None
"""Type of a column's values, why there is none, or None if the records have no such value."""


class AvroParser:
    """A `Parser` of Avro.

    Args:
        fields: columns of the spec.
        messages: encoding of the messages, and their schema.
    """

    def __init__(self, fields: Sequence[FieldSpec], messages: AvroMessages) -> None:
        self._fields = tuple(fields)
        self._encoding = messages.encoding
        self._schema = messages.avro_schema
        self._head = b""
        if messages.encoding == "single-object" and messages.avro_schema is not None:
            self._head = SINGLE_MAGIC + fingerprint(parse_schema(messages.avro_schema))

    def parse(self, values: Sequence[bytes]) -> Parsed:
        """See `Parser.parse`."""
        bad: dict[int, str] = {}
        parts: list[Parsed] = []
        groups: dict[str, list[tuple[int, Mapping[str, Any]]]] = {}
        held = 0
        for i, value in enumerate(values):
            try:
                schema, found, read = self._read(value)
            except AvroValueError as e:
                bad[i] = f"{e}{_hint(value, self._encoding)}"
            except RecursionError:
                bad[i] = "its Avro value is nested too deeply"
            else:
                groups.setdefault(schema, []).append((i, found))
                held += read
                if held > HELD_MAX:
                    parts += self._parts(groups)
                    groups, held = {}, 0
        return joined(self._fields, [*parts, *self._parts(groups)], bad)

    def _read(self, value: bytes) -> tuple[str, Mapping[str, Any], int]:
        """The schema of a message, as text, its record, and how many fields and elements that has.

        Raises:
            AvroValueError: it is no such message.
        """
        if self._encoding == "container":
            schema, datum = _contained(value)
            return schema, *_record(schema, datum, 0)
        assert self._schema is not None, "only containers have their own schema"
        if not self._head:
            return self._schema, *_record(self._schema, value, 0)
        if not value.startswith(SINGLE_MAGIC):
            raise AvroValueError("not in Avro's single-object encoding: it does not begin with C3 01")
        if not value.startswith(self._head):
            raise AvroValueError(
                f"written with the Avro schema of fingerprint {value[2:10].hex()}, the spec's has "
                f"{self._head[2:].hex()}"
            )
        return self._schema, *_record(self._schema, value, len(self._head))

    def _parts(self, groups: Mapping[str, Sequence[tuple[int, Mapping[str, Any]]]]) -> Iterator[Parsed]:
        """Yield rows of the records of each schema, so many at a time that their arrays are not too large."""
        for text, held in groups.items():
            schema = parse_schema(text)
            kinds = [_kind(schema, field) for field in self._fields]
            size = max(1, CELLS_MAX // max(map(_cells, kinds), default=1))
            for start in range(0, len(held), size):
                yield self._rows(kinds, held[start : start + size])

    def _rows(self, kinds: Sequence[Kind], held: Sequence[tuple[int, Mapping[str, Any]]]) -> Parsed:
        records = [record for _, record in held]
        columns = [_column(kind, field, records) for kind, field in zip(kinds, self._fields, strict=True)]
        found = rows_of(self._fields, columns, len(held))
        return Parsed(
            columns=found.columns,
            index=[held[row][0] for row in found.index],
            bad={held[row][0]: reason for row, reason in found.bad.items()},
        )


@lru_cache(maxsize=PARSERS_MAX)
def _reader(schema: str) -> Reader:
    """The reader of a record.

    Raises:
        AvroValueError: the schema is none, or not of a record.
    """
    try:
        found = parse_schema(schema)
        if found.kind != "record":
            raise ValueError(f"it is {found}, not a record")
    except ValueError as e:
        raise AvroValueError(f"its own schema cannot be used: {e}") from e
    return Readers().of(found)


def _record(schema: str, value: bytes, at: int) -> tuple[Mapping[str, Any], int]:
    """The record that is all of a message from `at` on, and how many fields and elements it has.

    Raises:
        AvroValueError: it is none of this schema.
    """
    cursor = Cursor(value, at)
    try:
        found: Mapping[str, Any] = _reader(schema)(cursor)
    except IndexError:
        raise AvroValueError(f"no value of the Avro schema: it ends after {len(value)} bytes") from None
    except AvroValueError as e:
        raise AvroValueError(f"no value of the Avro schema: {e}, at byte {cursor.at}") from e
    if cursor.at != len(value):
        raise AvroValueError(
            f"no value of the Avro schema: {len(value) - cursor.at} bytes are left after it; is the schema "
            "that of the writer?"
        )
    return found, cursor.read


def own_schema(value: bytes) -> str:
    """The schema of the one record in a container file.

    Raises:
        AvroValueError: it is no such file, or its schema cannot be used.
    """
    schema, _ = _contained(value)
    _reader(schema)
    return schema


def _contained(value: bytes) -> tuple[str, bytes]:
    """The schema and the datum of a container file.

    Raises:
        AvroValueError: it is none with one datum.
    """
    if not value.startswith(CONTAINER_MAGIC):
        raise AvroValueError("not an Avro container file: it does not begin with Obj and 1")
    cursor = Cursor(value, len(CONTAINER_MAGIC))
    try:
        meta = dict(_meta(cursor))
        sync = _end_of(cursor)
        blocks: list[tuple[int, bytes]] = []
        while cursor.at < len(value):
            count, data = read_long(cursor), read_bytes(cursor)
            if _end_of(cursor) != sync:
                raise AvroValueError("a block without the sync marker at its end")
            if count < 0:
                raise AvroValueError(f"an Avro container with a block of {count} records")
            if count:
                blocks.append((count, data))
    except IndexError:
        raise AvroValueError(f"an Avro container that ends after {len(value)} bytes") from None
    count = sum(count for count, _ in blocks)
    if count != 1 or len(blocks) != 1:
        raise AvroValueError(f"an Avro container of {count} records; a message is one row")
    codec = meta.get("avro.codec", b"null")
    if codec != b"null":
        raise AvroValueError(
            f"an Avro container with the codec {codec!r:.40}, so that a short message could be of any size; "
            "write it with the codec null and let Kafka compress"
        )
    schema = meta.get("avro.schema", b"")
    if len(schema) > OWN_SCHEMA_BYTES_MAX:
        raise AvroValueError(
            f"its own schema has {len(schema)} bytes, at most {OWN_SCHEMA_BYTES_MAX} are read"
        )
    return schema.decode("utf-8", "replace"), blocks[0][1]


def _meta(cursor: Cursor) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    while count := read_long(cursor):
        if count < 0:
            count = -count
            read_long(cursor)
        if count > cursor.left:
            raise AvroValueError(f"an Avro container whose header has {count} entries")
        cursor.left -= count
        found += [(read_bytes(cursor).decode("utf-8", "replace"), read_bytes(cursor)) for _ in range(count)]
    return found


def _end_of(cursor: Cursor) -> bytes:
    end = cursor.at + _SYNC_BYTES
    if end > len(cursor.data):
        raise IndexError(end)
    found = cursor.data[cursor.at : end]
    cursor.at = end
    return found


def _kind(schema: AvroType, field: FieldSpec) -> Kind:
    """The type of a column's values; None if records have none, or why there can be none."""
    try:
        return column_type(schema, field.path)
    except ValueError as e:
        return WrongTypeError(f"{field.name}: {e}")


def _cells(kind: Kind | pa.DataType) -> int:
    """Number of values that one value of this type consists of, at least."""
    if kind is None or isinstance(kind, WrongTypeError):
        return 1
    return 1 + sum(_cells(kind.field(n).type) for n in range(kind.num_fields))


def _column(kind: Kind, field: FieldSpec, records: Sequence[Mapping[str, Any]]) -> pa.Array | WrongTypeError:
    """A column of the records, or why there can be none."""
    if isinstance(kind, WrongTypeError):
        return kind
    if kind is None:
        return pa.nulls(len(records))
    values: list[Any] = list(records)
    for key in field.path:
        values = [None if value is None else value[key] for value in values]
    return pa.array(values, kind)


def _hint(value: bytes, encoding: str) -> str:
    """What a message may be that is not in the spec's encoding."""
    if encoding != "container" and value.startswith(CONTAINER_MAGIC):
        return "; it begins as an Avro container file: source.avro.encoding: container"
    if encoding != "single-object" and value.startswith(SINGLE_MAGIC):
        return "; it begins as in single-object encoding: source.avro.encoding: single-object"
    if value.startswith(b"\0") and len(value) > _CONFLUENT_HEAD_BYTES:
        number = int.from_bytes(value[1:_CONFLUENT_HEAD_BYTES], "big")
        return (
            f"; it begins as in Confluent's wire format, with schema id {number}: there is no schema "
            "registry here, so let the producer write plain Avro or single-object encoding"
        )
    return ""
