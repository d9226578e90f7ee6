"""Which values a cast takes, by their Arrow type: so that one that can never work is refused beforehand."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

EPOCHS = ("epoch-seconds", "epoch-millis", "epoch-micros")


def is_text(kind: pa.DataType) -> bool:
    """Whether values of this type are texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def becomes_text(kind: pa.DataType) -> bool:
    """Whether a cast makes text of values of this type, which are none."""
    types = pa.types
    number = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
    return bool(number or types.is_boolean(kind) or types.is_date(kind) or types.is_timestamp(kind))


def takes(target: str, encoding: str, source: pa.DataType) -> bool:
    """Whether any value of a type can fill a column by a cast, or as it is.

    Args:
        target: type of the column, a primitive one.
        encoding: encoding of the column, as in a spec.
        source: type of the values.
    """
    if pa.types.is_null(source):
        return True
    if is_text(source):
        return target != "binary"
    if encoding in EPOCHS and pa.types.is_integer(source):
        return True
    return _WITHOUT_TEXT[target.partition("(")[0]](source)


def _number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _exact(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_decimal(kind))


def _bytes(kind: pa.DataType) -> bool:
    types = pa.types
    plain = types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)
    return bool(plain or types.is_fixed_size_binary(kind))


def _time(kind: pa.DataType, *, zone: bool) -> bool:
    return bool(pa.types.is_timestamp(kind)) and (kind.tz is not None) == zone


_WITHOUT_TEXT: dict[str, Callable[[pa.DataType], bool]] = {
    "boolean": pa.types.is_boolean,
    "int": pa.types.is_integer,
    "long": pa.types.is_integer,
    "float": _number,
    "double": _number,
    "decimal": _exact,
    "date": pa.types.is_date,
    "timestamp": lambda kind: _time(kind, zone=False),
    "timestamptz": lambda kind: _time(kind, zone=True),
    "string": becomes_text,
    "uuid": _bytes,
    "binary": _bytes,
}
