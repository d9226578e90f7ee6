"""Avro files of Iceberg metadata, read by decoders that are built once per schema.

pyiceberg converts the schema in a file's header and builds its decoder for every file, which takes longer
than decoding a manifest of a few entries. The decoders have no state, so files and threads can share them.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any

import orjson
from pyiceberg.avro.decoder import new_decoder
from pyiceberg.avro.file import META_SCHEMA, AvroFile, AvroFileHeader
from pyiceberg.avro.reader import Reader
from pyiceberg.avro.resolver import construct_reader, resolve_reader
from pyiceberg.io import InputFile, InputStream
from pyiceberg.schema import Schema
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

DECODERS_MAX = 256
SCHEMA_KEY = "avro.schema"
_HEADER = construct_reader(META_SCHEMA, {-1: AvroFileHeader})


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


@lru_cache(maxsize=DECODERS_MAX)
def _decoder(avro_schema: str, layout: Layout) -> tuple[Schema, Reader]:
    """Return the Iceberg schema of a file, and the decoder from it to a layout."""
    schema = AvroSchemaConversion().avro_to_iceberg(orjson.loads(avro_schema))
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
