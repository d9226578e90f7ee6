"""JSON values of columns: how each type is parsed and checked, before `convert` gives it the column's type.

Texts, integers, doubles and booleans, in objects and lists as the columns are nested. The parser (msgspec)
and `checked` accept the same values, but for decimals that are numbers and whole numbers written with a
point, which only `checked` takes.
"""

from __future__ import annotations

import math
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Self, TypedDict

import msgspec
import pyarrow as pa

from tarn.core.column_types import ColumnType, ListOf, MapOf, Struct
from tarn.core.spec import FieldSpec

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
EXACT_FLOAT_END = 2**53
"""From this value on, a double may represent a different integer than the message contains."""
_NUMBER = object()
"""In place of a number that a decimal is: a double would lose digits, so its text is filled in."""


class Rounded(float):
    """A number that no whole one is, and whose double is whole: `1e-400`, `4503599627370497.3`."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> Self:
        """The double of a number as text."""
        found = super().__new__(cls, text)
        found.text = text
        return found

    def __repr__(self) -> str:
        return self.text


def is_whole(text: str) -> bool:
    """Whether a number as text is the whole one that its double is.

    Args:
        text: a number as JSON writes it, whose double is whole.
    """
    try:
        return Decimal(text) == int(float(text))
    except InvalidOperation:  # an exponent beyond what Python's decimals hold
        return False


class WrongTypeError(Exception):
    """A value has the wrong type; the text is the reason of rejection."""


def source_type(field: FieldSpec) -> pa.DataType:
    """Arrow type of a value as parsed from JSON, before conversion or a cast to the column's type."""
    if field.cast:
        return pa.binary()
    return pa.int64() if field.encoding != "iso8601" else _source_of(field.kind)


def _source_of(kind: ColumnType) -> pa.DataType:
    if isinstance(kind, Struct):
        return pa.struct([pa.field(name, _source_of(inner)) for name, inner in kind.fields])
    if isinstance(kind, ListOf):
        return pa.list_(pa.field("element", _source_of(kind.element)))
    if isinstance(kind, MapOf):
        return pa.map_(pa.string(), _source_of(kind.value))
    if kind.name == "boolean":
        return pa.bool_()
    if kind.name in ("int", "long"):
        return pa.int64()
    if kind.name in ("float", "double"):
        return pa.float64()
    return pa.string()


def python_type(source: pa.DataType) -> Any:
    """The parser's type of values of a source type."""
    if pa.types.is_struct(source):
        # An object that becomes a dict; its other keys are passed over.
        return TypedDict("Object", {f.name: python_type(f.type) | None for f in source}, total=False)  # type: ignore[operator]
    if pa.types.is_list(source):
        return list[python_type(source.value_type) | None]  # type: ignore[misc]
    if pa.types.is_map(source):
        return dict[str, python_type(source.item_type) | None]  # type: ignore[misc]
    if pa.types.is_binary(source):
        return msgspec.Raw
    if pa.types.is_boolean(source):
        return bool
    if pa.types.is_int64(source):
        return Annotated[int, msgspec.Meta(ge=INT64_MIN, le=INT64_MAX)]
    return float if pa.types.is_float64(source) else str


def checked(kind: ColumnType, source: pa.DataType, value: object, where: str) -> object:
    """The value in the form of source columns.

    Args:
        kind: type of the column, or of a part of it.
        source: its source type.
        value: the value as parsed.
        where: its path, for the reason.

    Raises:
        WrongTypeError: it has the wrong type.
    """
    if value is None:
        return None
    if isinstance(kind, Struct):
        holder = as_object(value, where)
        return {
            name: checked(inner, source.field(name).type, holder.get(name), f"{where}.{name}")
            for name, inner in kind.fields
        }
    if isinstance(kind, MapOf):
        return {
            key: checked(kind.value, source.item_type, inner, f"{where}.{key}")
            for key, inner in as_object(value, where).items()
        }
    if isinstance(kind, ListOf):
        if not isinstance(value, list):
            raise WrongTypeError(f"{where}: expected a list, found {kind_name(value)}")
        return [
            checked(kind.element, source.value_type, inner, f"{where}[{n}]") for n, inner in enumerate(value)
        ]
    if isinstance(value, float) and not math.isfinite(value):
        raise WrongTypeError(f"{where}: the number is too large")
    if pa.types.is_boolean(source):
        if not isinstance(value, bool):
            raise WrongTypeError(f"{where}: expected true or false, found {kind_name(value)}")
        return value
    if pa.types.is_int64(source):
        if type(value) is float and value.is_integer() and abs(value) < EXACT_FLOAT_END:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise WrongTypeError(f"{where}: expected a whole number, found {kind_name(value)}")
        if not INT64_MIN <= value <= INT64_MAX:
            raise WrongTypeError(f"{where}: {value} does not fit 64 bits")
        return value
    if pa.types.is_float64(source):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise WrongTypeError(f"{where}: expected a number, found {kind_name(value)}")
        return float(value)
    if kind.name.startswith("decimal") and type(value) in (int, float, Rounded):
        return _NUMBER
    if not isinstance(value, str):
        raise WrongTypeError(f"{where}: expected text, found {kind_name(value)}")
    return value


def as_object(value: object, where: str) -> dict[str, object]:
    """The value, which is an object.

    Raises:
        WrongTypeError: it is none.
    """
    if isinstance(value, dict):
        return value
    if isinstance(value, float) and not math.isfinite(value):
        raise WrongTypeError(f"{where}: the number is too large")
    raise WrongTypeError(f"{where}: expected an object, found {kind_name(value)}")


def has_number(value: object) -> bool:
    """Whether a decimal at this place, or within it, is a number whose text is still to be filled in."""
    if isinstance(value, dict):
        return any(map(has_number, value.values()))
    return any(map(has_number, value)) if isinstance(value, list) else value is _NUMBER


def filled(value: object, texts: Any) -> object:
    """The value with its numbers of decimals replaced by those of the same message with numbers as text."""
    if isinstance(value, dict):
        return {key: None if inner is None else filled(inner, texts[key]) for key, inner in value.items()}
    if isinstance(value, list):
        return [filled(inner, text) for inner, text in zip(value, texts, strict=True)]
    return texts if value is _NUMBER else value


def kind_name(value: object) -> str:
    """What a parsed value is, for a reason of rejection."""
    kinds: dict[type, str] = {dict: "an object", list: "a list", bool: "a truth value", type(None): "null"}
    if type(value) in kinds:
        return kinds[type(value)]
    text = repr(value)
    return f"{'text' if isinstance(value, str) else 'the number'} {text[:60]}"
