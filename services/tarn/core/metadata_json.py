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
KEPT_BYTES_MAX = 64 * 1024 * 1024
"""Longest JSON that the catalog stores or registers."""
KEPT_PARSED_BYTES_MAX = 320 * 1024 * 1024
"""What such JSON may take once parsed: the catalog's container has 512 MiB. Some 50,000 snapshots."""
# Bytes of a parsed value on CPython 3.11 to 3.13, rounded up: an object, a list, and any value with its key
# or slot. Delimiters inside strings are counted too: this is a bound, not a measurement.
OBJECT_BYTES = 240
LIST_BYTES = 110
VALUE_BYTES = 96
# The JSON itself and its strings: one character beyond ASCII may make each one of its string take 4 bytes.
PLAIN_FACTOR = 2
TEXT_FACTOR = 5
PER_BYTE_MAX = TEXT_FACTOR + (OBJECT_BYTES + VALUE_BYTES) // 3 + 1
"""The most that one byte may take: a list of empty objects has one and a comma in three bytes."""
_MAGIC = b"\x1f\x8b"
_WINDOW = 31  # zlib's code for gzip's header and trailer
_LEVEL = 1


class TooLongError(ValueError):
    """The JSON of a metadata file is longer, or once parsed larger, than the catalog takes."""


def parsed_bytes(text: bytes) -> int:
    """Return an upper bound of the memory that JSON takes once parsed, bytes."""
    plain = text.isascii() and b"\\" not in text
    return (
        (PLAIN_FACTOR if plain else TEXT_FACTOR) * len(text)
        + OBJECT_BYTES * text.count(b"{")
        + LIST_BYTES * text.count(b"[")
        + VALUE_BYTES * (text.count(b",") + text.count(b":"))
    )


def check_kept(text: bytes) -> None:
    """Require that the catalog has room for this JSON.

    Raises:
        TooLongError: it has not.
    """
    if len(text) > KEPT_BYTES_MAX:
        raise TooLongError(f"it has {len(text)} bytes of JSON, at most {KEPT_BYTES_MAX >> 20} MiB are taken")
    size = parsed_bytes(text)
    if size > KEPT_PARSED_BYTES_MAX:
        raise TooLongError(
            f"its {len(text)} bytes may take {size >> 20} MiB once parsed, at most "
            f"{KEPT_PARSED_BYTES_MAX >> 20} MiB are taken"
        )


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
        TooLongError: it has more JSON.
        ValueError: damaged gzip data.
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
        raise TooLongError(f"it has more than {bytes_max // 1024**2} MiB when decompressed")
    if not unpacker.eof or unpacker.unused_data:
        raise ValueError("damaged gzip data: its end is missing, or more follows")
    return text


def loads_kept(data: bytes) -> Any:
    """Parse a metadata file that the catalog is to commit to.

    Raises:
        TooLongError: the catalog has no room for it.
        ValueError: not JSON, or damaged gzip data.
    """
    text = unpacked(data, KEPT_BYTES_MAX)
    check_kept(text)
    return orjson.loads(text)


def loads(data: bytes) -> Any:
    """Parse a metadata file.

    Raises:
        ValueError: not JSON, or damaged gzip data.
    """
    return orjson.loads(unpacked(data))
