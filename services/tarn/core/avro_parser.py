"""Parsing of messages in Avro: plain datums, single-object encoding, containers of one datum each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

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
_SYNC_BYTES = 16
_CONFLUENT_HEAD_BYTES = 5


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
        groups: dict[str, list[tuple[int, Mapping[str, Any]]]] = {}
        for i, value in enumerate(values):
            try:
                schema, found = self._read(value)
            except AvroValueError as e:
                bad[i] = f"{e}{_hint(value, self._encoding)}"
            except RecursionError:
                bad[i] = "its Avro value is nested too deeply"
            else:
                groups.setdefault(schema, []).append((i, found))
        parts = [self._rows(parse_schema(schema), held) for schema, held in groups.items()]
        return joined(self._fields, parts, bad)

    def _read(self, value: bytes) -> tuple[str, Mapping[str, Any]]:
        """The schema of a message, as text, and its record.

        Raises:
            AvroValueError: it is no such message.
        """
        if self._encoding == "container":
            schema, datum = _contained(value)
            return schema, _record(schema, datum, 0)
        assert self._schema is not None, "only containers have their own schema"
        if not self._head:
            return self._schema, _record(self._schema, value, 0)
        if not value.startswith(SINGLE_MAGIC):
            raise AvroValueError("not in Avro's single-object encoding: it does not begin with C3 01")
        if not value.startswith(self._head):
            raise AvroValueError(
                f"written with the Avro schema of fingerprint {value[2:10].hex()}, the spec's has "
                f"{self._head[2:].hex()}"
            )
        return self._schema, _record(self._schema, value, len(self._head))

    def _rows(self, schema: AvroType, held: Sequence[tuple[int, Mapping[str, Any]]]) -> Parsed:
        records = [record for _, record in held]
        found = rows_of(self._fields, [_column(schema, field, records) for field in self._fields], len(held))
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


def _record(schema: str, value: bytes, at: int) -> Mapping[str, Any]:
    """The record that is all of a message from `at` on.

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
    return found


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


def _column(
    schema: AvroType, field: FieldSpec, records: Sequence[Mapping[str, Any]]
) -> pa.Array | WrongTypeError:
    """A column of the records, or why there can be none."""
    try:
        kind = column_type(schema, field.path)
    except ValueError as e:
        return WrongTypeError(f"{field.name}: {e}")
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
