"""Avro files of Iceberg metadata, read and written by decoders and encoders that are built once per schema.

pyiceberg converts the schema and builds its decoder or encoder for every file, which takes longer than to
read or write a manifest of a few entries. They have no state, so files and threads can share them.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, Self

import orjson
from pyiceberg.avro.codecs import AVRO_CODEC_KEY, CODEC_MAPPING_ICEBERG_TO_AVRO
from pyiceberg.avro.decoder import new_decoder
from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.avro.file import MAGIC, META_SCHEMA, SYNC_SIZE, AvroFile, AvroFileHeader, AvroOutputFile
from pyiceberg.avro.reader import Reader
from pyiceberg.avro.resolver import construct_reader, construct_writer, resolve_reader, resolve_writer
from pyiceberg.avro.writer import Writer
from pyiceberg.io import InputFile, InputStream, OutputFile
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, TimestampNanoType, TimestamptzNanoType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

DECODERS_MAX = 256
SCHEMA_KEY = "avro.schema"
_HEADER = construct_reader(META_SCHEMA, {-1: AvroFileHeader})
_HEADER_WRITER = construct_writer(META_SCHEMA)


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """What is read of a kind of file. Keep it: a decoder is remembered for this very object.

    Attributes:
        schema: the fields to read.
        types: field id of a struct -> its class; -1 is pyiceberg's id of the root.
        enums: field id -> the class of its values.
    """

    schema: Schema
    types: Mapping[int, Callable[..., Any]]
    enums: Mapping[int, Callable[..., Enum]]


def read(data: bytes, layout: Layout) -> Iterator[Any]:
    """Yield the records of an Avro object container file.

    Args:
        data: content of the file.
        layout: the fields to read, and the classes of the records.

    Raises:
        ValueError: the header has no schema; other errors of arbitrary bytes are of many types.
    """
    with _File(data, layout) as records:
        yield from records


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """What is written to a kind of file. Keep it, as a `Layout`.

    Attributes:
        schema: the fields in the file.
        records: the fields of the records to write; those that the file does not have are left out.
        name: name of the record in the file's Avro schema.
    """

    schema: Schema
    records: Schema
    name: str


class _Encoder(BinaryEncoder):
    """pyiceberg's encoder into a buffer: its own makes an object and two calls for each byte of a number."""

    def __init__(self) -> None:
        self.buffer = bytearray()

    def write(self, b: bytes) -> None:
        self.buffer += b

    def write_int(self, integer: int) -> None:
        datum = (integer << 1) ^ (integer >> 63)
        while datum & ~0x7F:
            self.buffer.append((datum & 0x7F) | 0x80)
            datum >>= 7
        self.buffer.append(datum)


class Output(AvroOutputFile[Any]):
    """pyiceberg's writer of an Avro object container file, with an encoder from the cache."""

    def __init__(self, output_file: OutputFile, written: Written, metadata: Mapping[str, str]) -> None:
        # The base class would build an encoder here.
        self.output_file, self.file_schema, self.schema_name = output_file, written.schema, written.name
        self.sync_bytes = os.urandom(SYNC_SIZE)
        self.writer, self._avro_schema = _encoder(written)
        self.metadata = dict(metadata)

    def __enter__(self) -> Self:
        """Write the header."""
        super().__enter__()
        return self

    def encode(self, record: Any) -> bytes:
        """Return a record as it is in a block; it is the same in every file of this kind."""
        encoder = _Encoder()
        self.writer.write(encoder, record)
        return bytes(encoder.buffer)

    def write_block(self, objects: Sequence[Any]) -> None:
        """Write records as one block."""
        self.write_encoded([self.encode(one) for one in objects])

    def write_encoded(self, records: Sequence[bytes]) -> None:
        """Write encoded records as one block."""
        codec = self.compression_codec()
        content = b"".join(records)
        if codec is not None:
            content, _ = codec.compress(content)
        self.encoder.write_int(len(records))
        self.encoder.write_bytes(content)
        self.encoder.write(self.sync_bytes)

    def _write_header(self) -> None:
        codec = self.metadata[AVRO_CODEC_KEY]
        meta = {
            **self.metadata,
            SCHEMA_KEY: self._avro_schema,
            AVRO_CODEC_KEY: CODEC_MAPPING_ICEBERG_TO_AVRO.get(codec) or codec,
        }
        _HEADER_WRITER.write(self.encoder, AvroFileHeader(MAGIC, meta, self.sync_bytes))


@lru_cache(maxsize=DECODERS_MAX)
def _encoder(written: Written) -> tuple[Writer, str]:
    """Return the encoder of a kind of file, and its Avro schema as JSON."""
    avro = AvroSchemaConversion().iceberg_to_avro(written.schema, schema_name=written.name)
    return resolve_writer(record_schema=written.records, file_schema=written.schema), json.dumps(avro)


class _Conversion(AvroSchemaConversion):
    """pyiceberg's, with times in nanoseconds: it (0.12) writes them as partition values, and reads none."""

    def _convert_logical_type(self, avro_logical_type: dict[str, Any]) -> IcebergType:
        if avro_logical_type["logicalType"] == "timestamp-nanos":
            zoned = avro_logical_type.get("adjust-to-utc") is True
            return TimestamptzNanoType() if zoned else TimestampNanoType()
        return super()._convert_logical_type(avro_logical_type)


@lru_cache(maxsize=DECODERS_MAX)
def _decoder(avro_schema: str, layout: Layout) -> tuple[Schema, Reader]:
    """Return the Iceberg schema of a file, and the decoder from it to a layout."""
    schema = _Conversion().avro_to_iceberg(orjson.loads(avro_schema))
    return schema, resolve_reader(schema, layout.schema, dict(layout.types), dict(layout.enums))


class _File(AvroFile[Any]):
    """pyiceberg's reader of such a file, with a decoder from the cache."""

    def __init__(self, data: bytes, layout: Layout) -> None:
        super().__init__(MemoryInput(data), layout.schema)
        self._layout = layout

    def __enter__(self) -> _File:
        with self.input_file.open() as stream:
            self.decoder = new_decoder(stream.read())
        self.header = _HEADER.read(self.decoder)
        if SCHEMA_KEY not in self.header.meta:
            raise ValueError(f"no {SCHEMA_KEY} in the header of the Avro file")
        self.schema, self.reader = _decoder(self.header.meta[SCHEMA_KEY], self._layout)
        return self


class MemoryInput(InputFile):
    """An in-memory `InputFile` for the Avro reader."""

    def __init__(self, data: bytes) -> None:
        super().__init__("memory")
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def exists(self) -> bool:
        """Return true."""
        return True

    def open(self, seekable: bool = True) -> InputStream:
        """Return the content as a stream."""
        return io.BytesIO(self._data)
