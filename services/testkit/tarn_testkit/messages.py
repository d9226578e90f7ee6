"""Rows as messages of a topic. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import orjson

from tarn_testkit.errors import InvalidRowsError

Row = Mapping[str, Any] | str | bytes
Key = str | Callable[[Row], bytes | None] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Key and value of a message; without a key, any partition may get it."""

    key: bytes | None
    value: bytes


def messages_of(rows: Iterable[Row], *, key: Key = None) -> list[Message]:
    """The messages of the rows, in their order.

    A mapping becomes a JSON object: dates and times in ISO 8601, decimals and UUIDs as text, NaN as null. A
    text becomes its UTF-8 bytes, and bytes stay as they are: that is how a bad record is sent.

    Args:
        rows: the rows.
        key: name of the column whose text is the key of the message, or what makes the key of a row; None: no
            message has a key, as none has whose column is None.

    Raises:
        InvalidRowsError: a row cannot be a message; names its number, from 0.
    """
    if isinstance(rows, Mapping | str | bytes):
        raise InvalidRowsError(f"rows is a single {type(rows).__name__}; give a list of rows")
    found = []
    for number, row in enumerate(rows):
        try:
            value = _value(row)
        except (TypeError, ValueError) as e:
            raise InvalidRowsError(f"row {number} cannot be a JSON message: {e}; row: {row!r:.200}") from e
        found.append(Message(key=_key(row, key, number), value=value))
    return found


def _value(row: Row) -> bytes:
    if isinstance(row, bytes):
        return row
    if isinstance(row, str):
        return row.encode()
    if not isinstance(row, Mapping):
        raise TypeError(f"it is a {type(row).__name__}, not a mapping, a text or bytes")
    return orjson.dumps(dict(row), default=_plain)


def _plain(value: object) -> object:
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError


def _key(row: Row, key: Key, number: int) -> bytes | None:
    if key is None:
        return None
    if callable(key):
        return key(row)
    if not isinstance(row, Mapping) or key not in row:
        raise InvalidRowsError(f"row {number} has no column {key!r} to be the key: {row!r:.200}")
    value = row[key]
    return None if value is None else str(value).encode()
