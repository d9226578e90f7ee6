"""Values that have types of their own, as in Arrow and Avro, in the spec's column types.

Only what is exact: a value that would change is rejected, and so is a type that means something else.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tarn.core.casts import cast_typed
from tarn.core.column_types import ColumnType, ListOf, MapOf, Struct
from tarn.core.convert import PER_SECOND, cast_halves, convert, narrow, part_field, target_type, uuids_of_text
from tarn.core.decimals import rescaled, rescales
from tarn.core.json_values import WrongTypeError
from tarn.core.parsing import Parsed
from tarn.core.spec import FieldSpec

_NANOS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_UUID_BYTES = 16
_PLAIN_OF_VIEW = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}


def rows_of(fields: Sequence[FieldSpec], columns: Sequence[pa.Array | WrongTypeError], count: int) -> Parsed:
    """Rows from typed columns.

    Args:
        fields: columns of the spec.
        columns: values of each, or why no message has such values.
        count: number of messages.
    """
    good: list[pa.Array] = []
    wrong: dict[int, str] = {}
    for field, column in zip(fields, columns, strict=True):
        if isinstance(column, WrongTypeError):
            wrong.update({row: str(column) for row in range(count) if row not in wrong})
            good.append(pa.nulls(count, target_type(field.kind)))
            continue
        converted, reasons = convert_typed(field, column)
        good.append(converted)
        for row, reason in reasons.items():
            wrong.setdefault(row, reason)
    return Parsed(columns=good, index=list(range(count)), bad={}).without(wrong)


def joined(fields: Sequence[FieldSpec], parts: Sequence[Parsed], bad: dict[int, str]) -> Parsed:
    """Rows of several parts in the order of their messages.

    Args:
        fields: columns of the spec.
        parts: rows of groups of messages.
        bad: messages that are in no part, with the reason.
    """
    if not parts:
        parts = [rows_of(fields, [pa.nulls(0)] * len(fields), 0)]
    bad = bad | {i: reason for part in parts for i, reason in part.bad.items()}
    if len(parts) == 1:
        return Parsed(columns=parts[0].columns, index=parts[0].index, bad=bad)
    index = [i for part in parts for i in part.index]
    order = pa.array(sorted(range(len(index)), key=index.__getitem__), pa.int64())
    columns = [
        pa.concat_arrays(column).take(order) for column in zip(*(part.columns for part in parts), strict=True)
    ]
    return Parsed(columns=columns, index=sorted(index), bad=bad)


def convert_typed(field: FieldSpec, column: pa.Array) -> tuple[pa.Array, dict[int, str]]:
    """Convert a column to the field's type.

    Returns:
        The converted column, and {row index: reason} of the rejected values.
    """
    reasons: dict[int, str] = {}
    if field.cast:
        column = _plain(column)
        found = cast_typed(field, column)
        if found is not None:
            return found
    typed = _typed(field, field.kind, column, lambda i: i, reasons)
    converted, more = convert(field, typed)
    return converted, more | reasons


def _typed(
    field: FieldSpec,
    kind: ColumnType,
    column: pa.Array,
    row_of: Callable[[int], int],
    reasons: dict[int, str],
) -> pa.Array:
    """The values in the type's Arrow type; where that is not possible, null with a reason.

    Args:
        field: field for these values, whose name is their path.
        kind: type of the values.
        column: the values.
        row_of: index in `column` to the index of the row.
        reasons: receives {row index: reason}.
    """
    column = _plain(column)
    target = target_type(kind)
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), target)
    try:
        if isinstance(kind, Struct):
            return _struct(field, kind, column, row_of, reasons)
        if isinstance(kind, ListOf | MapOf):
            return _repeated(field, kind, column, row_of, reasons)
        if _is_text(column.type) and _reads_text(field):
            converted, unread = convert(_optional(field), column.cast(pa.string()))
            for i, reason in unread.items():
                reasons.setdefault(row_of(i), reason)
            return converted
        cast = _cast_for(field, column.type, target)
    except WrongTypeError as e:
        for i in pc.indices_nonzero(column.is_valid()).to_pylist():
            reasons.setdefault(row_of(i), str(e))
        return pa.nulls(len(column), target)
    parts: list[pa.Array] = []
    wrong: dict[int, str] = {}
    cast_halves(field, column, 0, target, parts, wrong, cast=cast)
    for i, reason in wrong.items():
        reasons.setdefault(row_of(i), reason)
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def plain_type(found: pa.DataType) -> pa.DataType:
    """The type of the values without an extension type, dictionary or run-end encoding."""
    while True:
        if isinstance(found, pa.BaseExtensionType):
            found = found.storage_type
        elif isinstance(found, pa.DictionaryType | pa.RunEndEncodedType):
            found = found.value_type
        else:
            return found


def _plain(column: pa.Array) -> pa.Array:
    """The values without an extension type, dictionary or run-end encoding."""
    while True:
        if isinstance(column, pa.ExtensionArray):
            column = column.storage
        elif isinstance(column, pa.DictionaryArray):
            column = _decoded(column)
        elif isinstance(column, pa.RunEndEncodedArray):
            column = pc.run_end_decode(column)
        else:
            return column


def _decoded(column: pa.DictionaryArray) -> pa.Array:
    """The values of a dictionary array; Arrow (26.0) takes no views by their indexes."""
    plain = _PLAIN_OF_VIEW.get(column.dictionary.type)
    if plain is not None:
        column = pa.DictionaryArray.from_arrays(column.indices, column.dictionary.cast(plain))
    return column.dictionary_decode()


def _struct(
    field: FieldSpec, kind: Struct, column: pa.Array, row_of: Callable[[int], int], reasons: dict[int, str]
) -> pa.Array:
    if not pa.types.is_struct(column.type):
        raise _wrong(field, "a struct", column.type)
    children = []
    for name, inner in kind.fields:
        path = f"{field.name}.{name}"
        if sum(one.name == name for one in column.type) > 1:
            raise WrongTypeError(f"{path}: the struct has two fields of that name")
        known = column.type.get_field_index(name) >= 0
        values = pc.struct_field(column, name) if known else pa.nulls(len(column))
        children.append(_typed(part_field(path, str(inner)), inner, values, row_of, reasons))
    return pa.StructArray.from_arrays(children, fields=list(target_type(kind)), mask=column.is_null())


def _repeated(
    field: FieldSpec,
    kind: ListOf | MapOf,
    column: pa.Array,
    row_of: Callable[[int], int],
    reasons: dict[int, str],
) -> pa.Array:
    source = column.type
    map_ = pa.types.is_map(source)
    if map_ != isinstance(kind, MapOf) or not (map_ or _is_list(source)):
        raise _wrong(field, "a map" if isinstance(kind, MapOf) else "a list", source)
    if map_:
        # As a list of its own entries: it may be a part of what is in a list, which does not begin at 0.
        # Without elements a writer need not send any offset.
        offsets = column.offsets if len(column) else pa.array([0], pa.int32())
        first, end = offsets[0].as_py(), offsets[-1].as_py()
        parts = [part.slice(first, end - first) for part in (column.keys, column.items)]
        entries = pa.StructArray.from_arrays(parts, names=["key", "value"])
        own = pc.subtract(offsets, offsets[0])
        column = pa.ListArray.from_arrays(own, entries, mask=column.is_null())
    lengths = pc.fill_null(pc.list_value_length(column), 0).cast(pa.int64())
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths)]).cast(pa.int32())
    values, ends = column.flatten(), offsets.to_pylist()

    def holder(i: int) -> int:
        return row_of(bisect_right(ends, i) - 1)

    target, null = target_type(kind), column.is_null()
    if isinstance(kind, ListOf):
        inner = part_field(f"{field.name}[]", str(kind.element))
        return pa.ListArray.from_arrays(
            offsets, _typed(inner, kind.element, values, holder, reasons), type=target, mask=null
        )
    keys = _plain(pc.struct_field(values, "key"))
    if not _is_text(keys.type):
        raise WrongTypeError(f"{field.name}: its keys are {keys.type}, not text")
    keys = keys.cast(pa.string())
    _check_keys(field, keys.to_pylist(), ends, row_of, reasons)
    inner = part_field(f"{field.name}.*", str(kind.value))
    items = _typed(inner, kind.value, pc.struct_field(values, "value"), holder, reasons)
    return pa.MapArray.from_arrays(offsets, keys, items, type=target, mask=null)


def _check_keys(
    field: FieldSpec,
    keys: Sequence[str],
    ends: Sequence[int],
    row_of: Callable[[int], int],
    reasons: dict[int, str],
) -> None:
    for i, (start, end) in enumerate(pairwise(ends)):
        if len(set(keys[start:end])) < end - start:
            reasons.setdefault(row_of(i), f"{field.name}: the map has a key twice")


def _cast_for(field: FieldSpec, source: pa.DataType, target: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    """How values of the source type become the target's.

    Raises:
        WrongTypeError: they do not, whatever they are.
    """
    if pa.types.is_boolean(target) or pa.types.is_boolean(source):
        if source == target:
            return _same
        raise _wrong(field, field.type, source)
    if field.encoding != "iso8601" and pa.types.is_integer(source):
        return lambda column: pc.multiply_checked(column.cast(pa.int64()), PER_SECOND[field.encoding]).cast(
            target
        )
    wanted: tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], pa.Array]] | None = {
        "int": (pa.types.is_integer, lambda column: column.cast(target)),
        "long": (pa.types.is_integer, lambda column: column.cast(target)),
        "float": (_is_number, lambda column: _floating(column, target)),
        "double": (_is_number, lambda column: _floating(column, target)),
        "decimal": (lambda kind: _is_exact(kind, target), lambda column: rescaled(_decimals(column), target)),
        "string": (_is_text, lambda column: column.cast(target)),
        "date": (pa.types.is_date, lambda column: column.cast(target)),
        "timestamp": (lambda kind: _is_time(kind, zone=False), lambda column: _micros(column, target)),
        "timestamptz": (lambda kind: _is_time(kind, zone=True), lambda column: _micros(column, target)),
        "uuid": (_is_bytes, lambda column: _uuids(column, target)),
        "binary": (_is_bytes, lambda column: column.cast(pa.large_binary()).cast(target)),
    }.get(field.type.partition("(")[0])
    assert wanted is not None, f"{field.type} is no primitive type"
    fits, cast = wanted
    if fits(source):
        return cast
    if _is_text(source) and field.type == "uuid":
        return lambda column: uuids_of_text(column, target)
    raise _wrong(field, field.type, source)


def _optional(field: FieldSpec) -> FieldSpec:
    return field.model_copy(update={"required": False, "values": None})


def _reads_text(field: FieldSpec) -> bool:
    """Whether texts are read by the rules of JSON."""
    kinds = ("date", "timestamp", "timestamptz", "decimal")
    return field.type.partition("(")[0] in kinds and field.encoding == "iso8601"


def _same(column: pa.Array) -> pa.Array:
    return column


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or types.is_binary_view(kind)
    )


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _is_exact(kind: pa.DataType, target: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or (pa.types.is_decimal(kind) and rescales(kind, target)))


def _is_time(kind: pa.DataType, *, zone: bool) -> bool:
    return bool(pa.types.is_timestamp(kind)) and (kind.tz is not None) == zone


def _floating(column: pa.Array, target: pa.DataType) -> pa.Array:
    """Numbers as floats or doubles, rounded to the nearest; of whole ones only those that are exact.

    Raises:
        ValueError: one is too large, or whole and not exact.
    """
    if not pa.types.is_integer(column.type):
        return narrow(column, target)
    found = column.cast(target, safe=False)
    try:
        column.cast(target)
    except pa.ArrowInvalid:
        # Arrow refuses all beyond what it holds without gaps. Python compares the numbers themselves.
        if any(value != held for value, held in zip(column.to_pylist(), found.to_pylist(), strict=True)):
            raise ValueError(f"a {target} does not hold it exactly") from None
    return found


def _decimals(column: pa.Array) -> pa.Array:
    """Whole numbers as decimals; decimals as they are."""
    if not pa.types.is_integer(column.type):
        return column
    return column.cast(pa.decimal128(20 if pa.types.is_uint64(column.type) else 19, 0))


def _micros(column: pa.Array, target: pa.DataType) -> pa.Array:
    """Timestamps in microseconds; nanoseconds are cut, as the digits of a text are.

    Raises:
        ArrowException: one does not fit.
    """
    unit = column.type.unit
    if unit != "ns":
        return pc.multiply_checked(column.cast(pa.int64()), _NANOS[unit] // _NANOS["us"]).cast(target)
    nanos = column.cast(pa.int64())
    whole = pc.divide(nanos, 1_000)
    below = pc.less(nanos, pc.multiply(whole, 1_000))
    return pc.subtract(whole, below.cast(pa.int64())).cast(target)


def _uuids(column: pa.Array, target: pa.DataType) -> pa.Array:
    """Bytes of UUIDs.

    Raises:
        ValueError: one does not have 16.
    """
    values: list[Any] = column.to_pylist()
    for value in values:
        if value is not None and len(value) != _UUID_BYTES:
            raise ValueError(f"it has {len(value)} bytes, not {_UUID_BYTES}")
    return pa.array(values, target)


def _wrong(field: FieldSpec, wanted: str, found: pa.DataType) -> WrongTypeError:
    hint = ""
    if pa.types.is_integer(found) and field.type in ("timestamp", "timestamptz"):
        hint = "; say what the number counts: encoding"
    return WrongTypeError(f"{field.name}: expected {wanted}, found {found!s:.80}{hint}")
