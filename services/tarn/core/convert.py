"""Conversion of JSON columns to the spec's column types; values that do not fit are reported, not guessed."""

from __future__ import annotations

import base64
import binascii
import re
import uuid
from bisect import bisect_right
from collections.abc import Callable
from functools import lru_cache, partial

import pyarrow as pa
import pyarrow.compute as pc

from tarn.core.column_types import ColumnType, ListOf, MapOf, Primitive, Struct
from tarn.core.decimals import decimals_of_text
from tarn.core.spec import FieldSpec
from tarn.core.years import outside

VALUES_NAMED_MAX = 10

_TARGET: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "string": pa.string(),
    "uuid": pa.binary(16),
    "binary": pa.binary(),
}
_UUID = re.compile(r"(urn:uuid:)?\{?([0-9a-fA-F]-?){31}[0-9a-fA-F]\}?")
_FINE = r"^(.{10}[T ]\d\d:\d\d:\d\d\.\d{6})\d{1,3}(\D.*)?$"
PER_SECOND = {"epoch-seconds": 1_000_000, "epoch-millis": 1_000, "epoch-micros": 1}


def target_type(kind: ColumnType) -> pa.DataType:
    """Arrow type of a column of this type."""
    if isinstance(kind, Struct):
        return pa.struct([pa.field(name, target_type(inner)) for name, inner in kind.fields])
    if isinstance(kind, ListOf):
        return pa.list_(pa.field("element", target_type(kind.element)))
    if isinstance(kind, MapOf):
        return pa.map_(pa.string(), target_type(kind.value))
    if kind.name.startswith("decimal("):
        precision, scale = (int(n) for n in kind.name[8:-1].split(","))
        return pa.decimal128(precision, scale)
    return _TARGET[kind.name]


def convert(field: FieldSpec, column: pa.Array) -> tuple[pa.Array, dict[int, str]]:
    """Convert a column to the field's type.

    Returns:
        The converted column, and {row index: reason} of the rejected values.
    """
    reasons: dict[int, str] = {}
    if field.required and column.null_count:
        missing = pc.indices_nonzero(column.is_null()).to_pylist()
        reasons.update(dict.fromkeys(missing, f"{field.name}: required, but missing or null"))
    kind = field.kind
    if not isinstance(kind, Primitive):
        return _convert_nested(kind, column, field.name, lambda i: i, reasons), reasons
    target = target_type(kind)
    source = column
    if column.type != target:
        parts: list[pa.Array] = []
        cast = partial(_cast, field, target=target)
        cast_halves(field, column, 0, target, parts, reasons, cast=cast)
        column = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
    if pa.types.is_date32(target) or pa.types.is_timestamp(target):
        for i in outside(column):
            reasons[i] = f"{field.name}: {_shown(source[i])} is outside the years 1 to 9999{_hint(field)}"
    if field.values is not None:
        allowed = pa.array(field.values, target)
        strange = pc.and_(column.is_valid(), pc.invert(pc.is_in(column, allowed)))
        for i in pc.indices_nonzero(strange).to_pylist():
            reasons[i] = (
                f"{field.name}: {column[i].as_py()!r:.80} is none of the spec's values: {_list(field)}"
            )
    return column, reasons


def _convert_nested(
    kind: ColumnType, column: pa.Array, path: str, row_of: Callable[[int], int], reasons: dict[int, str]
) -> pa.Array:
    """Convert a part of a nested column.

    Args:
        kind: type of the part.
        column: its values.
        path: keys that lead to it, for reasons.
        row_of: index of a value in `column` to the index of its row.
        reasons: receives {row index: reason} of the rejected rows.
    """
    if isinstance(kind, Struct):
        children = [
            _convert_nested(inner, pc.struct_field(column, name), f"{path}.{name}", row_of, reasons)
            for name, inner in kind.fields
        ]
        return pa.StructArray.from_arrays(children, fields=list(target_type(kind)), mask=column.is_null())
    if isinstance(kind, ListOf | MapOf):
        offsets = column.offsets
        first, end = offsets[0].as_py(), offsets[-1].as_py()
        own = pc.subtract(offsets, offsets[0])

        def holder(i: int) -> int:
            return row_of(bisect_right(offsets, i + first, key=lambda offset: offset.as_py()) - 1)

        if isinstance(kind, ListOf):
            inside = column.values.slice(first, end - first)
            values = _convert_nested(kind.element, inside, f"{path}[]", holder, reasons)
            return pa.ListArray.from_arrays(own, values, type=target_type(kind), mask=column.is_null())
        inside = column.items.slice(first, end - first)
        items = _convert_nested(kind.value, inside, f"{path}.*", holder, reasons)
        keys = column.keys.slice(first, end - first)
        return pa.MapArray.from_arrays(own, keys, items, type=target_type(kind), mask=column.is_null())
    converted, wrong = convert(part_field(path, kind.name), column)
    for i, reason in wrong.items():
        reasons.setdefault(row_of(i), reason)
    return converted


@lru_cache(maxsize=10_000)
def part_field(path: str, kind: str) -> FieldSpec:
    """A field for a value within a column: its path is no name that a column could have."""
    return FieldSpec.model_construct(
        name=path, type=kind, required=False, source=None, encoding="iso8601", values=None
    )


def _hint(field: FieldSpec) -> str:
    return "" if field.encoding == "iso8601" else f" as {field.encoding}; is that the unit?"


def _shown(value: pa.Scalar) -> str:
    """The value for a reason; a date or time that Python does not have as the number that it is."""
    try:
        return f"{value.as_py()!r:.80}"
    except (OverflowError, ValueError, LookupError):  # LookupError: a time zone that nobody knows.
        number = value.cast(pa.int32() if pa.types.is_date32(value.type) else pa.int64())
        return f"{number.as_py()} as {value.type}"


def _list(field: FieldSpec) -> str:
    named = [str(value) for value in field.values or ()]
    return ", ".join(named[:VALUES_NAMED_MAX]) + (", ..." if len(named) > VALUES_NAMED_MAX else "")


def cast_halves(
    field: FieldSpec,
    column: pa.Array,
    first: int,
    target: pa.DataType,
    parts: list[pa.Array],
    reasons: dict[int, str],
    *,
    cast: Callable[[pa.Array], pa.Array],
) -> None:
    """Cast the whole column; if that fails, cast each half separately, down to the values that do not fit.

    Args:
        field: column of the spec.
        column: values to cast.
        first: row index of the first value.
        target: Arrow type to cast to.
        parts: receives the converted chunks, in order.
        reasons: receives {row index: reason} of the rejected values.
        cast: casts values; raises ArrowException or ValueError if one does not fit.
    """
    try:
        parts.append(cast(column))
        return
    except (pa.ArrowException, ValueError) as e:
        if not len(column):
            raise
        if len(column) == 1:
            why = str(e).split("\n")[0].split(" If these timestamps")[0]
            reasons[first] = f"{field.name}: {_shown(column[0])} is no {field.type}: {why}"
            parts.append(pa.nulls(1, target))
            return
    middle = len(column) // 2
    cast_halves(field, column.slice(0, middle), first, target, parts, reasons, cast=cast)
    cast_halves(field, column.slice(middle), first + middle, target, parts, reasons, cast=cast)


def _cast(field: FieldSpec, column: pa.Array, target: pa.DataType) -> pa.Array:
    """Cast a column.

    Raises:
        ArrowException, ValueError: a value does not fit.
    """
    if field.type == "float":
        return narrow(column, target)
    if field.type in ("timestamp", "timestamptz") and field.encoding == "iso8601":
        return _cast_times(column, target)
    if field.encoding != "iso8601":
        micros = pc.multiply_checked(column, PER_SECOND[field.encoding])
        return micros.cast(target)
    if pa.types.is_decimal(target):
        return decimals_of_text(column, target)
    if field.type == "uuid":
        return uuids_of_text(column, target)
    if field.type == "binary":
        try:
            return pa.array(
                [None if v is None else base64.b64decode(v, validate=True) for v in column.to_pylist()],
                target,
            )
        except binascii.Error as e:
            raise ValueError(f"not base64: {e}") from e
    return column.cast(target)


def _cast_times(column: pa.Array, target: pa.DataType) -> pa.Array:
    """ISO 8601 strings to timestamps; digits 7 to 9 of a fraction, as .NET, Java and Go write, are truncated.

    Raises:
        ArrowException: a string is not a timestamp.
    """
    try:
        return column.cast(target)
    except pa.ArrowException:
        return pc.replace_substring_regex(column, _FINE, r"\1\2").cast(target)


def uuids_of_text(column: pa.Array, target: pa.DataType) -> pa.Array:
    """Bytes of UUIDs: 32 hexadecimal digits, with or without hyphens, braces or `urn:uuid:`.

    Raises:
        ValueError: a text is none.
    """
    return pa.array([None if v is None else _uuid(v) for v in column.to_pylist()], target)


def _uuid(text: str) -> bytes:
    # Python's UUID also takes what `int` takes: spaces, a sign, 0x, underscores, digits of any script.
    if _UUID.fullmatch(text) is None:
        raise ValueError("not 32 hexadecimal digits")
    return uuid.UUID(text).bytes


def narrow(column: pa.Array, target: pa.DataType) -> pa.Array:
    """Doubles rounded to the nearest float.

    Raises:
        ValueError: a value exceeds the largest float.
    """
    found = column.cast(target, safe=False)
    if pc.any(pc.and_(pc.is_inf(found), pc.is_finite(column)), min_count=0).as_py():
        raise ValueError("it is beyond the largest float")
    return found
