"""Messages in Arrow and Avro for tests; the Avro encoder is written from the specification."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa


def arrow(row: pa.RecordBatch | Mapping[str, Any], schema: pa.Schema | None = None, **options: Any) -> bytes:
    """An Arrow IPC stream; a mapping is one row."""
    batch = row if isinstance(row, pa.RecordBatch) else pa.RecordBatch.from_pylist([dict(row)], schema=schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def zigzag(value: int) -> bytes:
    """A long of Avro."""
    left = (value << 1) ^ (value >> 63)
    found = bytearray()
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*found, left])


def avro(schema: Any, value: Any) -> bytes:
    """A datum. Of a union the value is (branch, value) or None; a schema has no named references."""
    if isinstance(schema, list):
        branch, inner = (schema.index("null"), None) if value is None else value
        return zigzag(branch) + avro(schema[branch], inner)
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(kind, dict | list):
        return avro(kind, value)
    if kind == "record":
        return b"".join(avro(field["type"], value[field["name"]]) for field in schema["fields"])
    if kind == "enum":
        return zigzag(schema["symbols"].index(value))
    if kind == "array":
        return _blocks([avro(schema["items"], item) for item in value])
    if kind == "map":
        return _blocks([avro("string", key) + avro(schema["values"], item) for key, item in value.items()])
    if isinstance(value, Decimal):
        whole = int(value.scaleb(schema.get("scale", 0)))
        value = whole.to_bytes(schema.get("size", 16), "big", signed=True)
    return _primitive(kind, value)


def _primitive(kind: str, value: Any) -> bytes:
    if kind == "null":
        return b""
    if kind == "boolean":
        return bytes([value])
    if kind in ("int", "long"):
        return zigzag(value)
    if kind in ("float", "double"):
        return struct.pack("<f" if kind == "float" else "<d", value)
    if kind == "fixed":
        return bytes(value)
    data = value.encode() if isinstance(value, str) else value
    return zigzag(len(data)) + data


def _blocks(items: Sequence[bytes]) -> bytes:
    return (zigzag(len(items)) + b"".join(items) if items else b"") + zigzag(0)


def container(schema_text: str, blocks: Sequence[tuple[int, bytes]], *, codec: str = "null") -> bytes:
    """A container file with these blocks, as (number of records, bytes)."""
    sync = bytes(range(16))
    meta = {"avro.schema": schema_text.encode(), "avro.codec": codec.encode()}
    head = zigzag(len(meta)) + b"".join(avro("string", k) + avro("bytes", v) for k, v in meta.items())
    body = b"".join(zigzag(count) + zigzag(len(data)) + data + sync for count, data in blocks)
    return b"Obj\x01" + head + zigzag(0) + sync + body
