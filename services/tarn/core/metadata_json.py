"""Metadata files of tables and views: JSON, which gzip may have compressed.

Iceberg table specification, "Table Metadata"; the names of compressed files end in `.gz.metadata.json`. What
a file is, its first bytes say: names of other writers differ. Pure.
"""

from __future__ import annotations

import zlib
from typing import Any

import orjson

from tarn.core.object_store import GET_BYTES_MAX

GZIP_SUFFIX = ".gz.metadata.json"
JSON_BYTES_MAX = GET_BYTES_MAX
"""Limit of what a file may hold. A compressed one of a few kilobytes must not fill the memory either."""
_MAGIC = b"\x1f\x8b"
_WINDOW = 31  # zlib's code for gzip's header and trailer
_LEVEL = 1


def packed(text: bytes) -> bytes:
    """Compress JSON; the same JSON always gives the same bytes."""
    packer = zlib.compressobj(_LEVEL, wbits=_WINDOW)
    return packer.compress(text) + packer.flush()


def unpacked(data: bytes, bytes_max: int | None = None) -> bytes:
    """Return the JSON of a metadata file.

    Args:
        data: content of the file.
        bytes_max: longest JSON of a compressed one; `JSON_BYTES_MAX` by default.

    Raises:
        ValueError: damaged gzip data, or too much JSON.
    """
    if not data.startswith(_MAGIC):
        return data
    bytes_max = JSON_BYTES_MAX if bytes_max is None else bytes_max
    unpacker = zlib.decompressobj(wbits=_WINDOW)
    try:
        text = unpacker.decompress(data, bytes_max)
    except zlib.error as e:
        raise ValueError(f"damaged gzip data: {e}") from e
    if unpacker.unconsumed_tail:
        raise ValueError(f"more than {bytes_max // 1024**2} MiB when decompressed")
    if not unpacker.eof or unpacker.unused_data:
        raise ValueError("damaged gzip data: its end is missing, or more follows")
    return text


def loads(data: bytes) -> Any:
    """Parse a metadata file.

    Raises:
        ValueError: not JSON, or damaged gzip data.
    """
    return orjson.loads(unpacked(data))
