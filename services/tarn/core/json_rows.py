"""Typed rows as JSON objects that read as the same rows: what `tarn.core.json_parser` undoes.

JSON has no form for each value. A row with one that it cannot have is named, with the field: a number that is
not finite, or a map with a key twice.
"""

from __future__ import annotations

import base64
import math
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tarn.core.column_types import ColumnType, ListOf, MapOf, Struct
from tarn.core.spec import FieldSpec

ROWS_AT_ONCE = 256
"""Rows that are objects at one time, if they are small."""
ELEMENT_BYTES_MIN = 2
"""The least that an element of a list takes as text: a digit and a comma."""
ELSEWHERE = "send it with durability=lake"


class _NoFormError(Exception):
    """A value that has no form in JSON; the text is the reason."""


class _NoForm:
    """Stands for such a value until its row is written; no dataclass, which the encoder would write."""

    __slots__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason = reason


def _refuse(value: object) -> object:
    raise _NoFormError(value.reason if isinstance(value, _NoForm) else f"{type(value).__name__} has no form")


_ENCODER = msgspec.json.Encoder(enc_hook=_refuse)


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonRows:
    """Rows as JSON.

    Attributes:
        texts: index of a row to its object.
        bad: index of each other row to the reason why it has none.
    """

    texts: dict[int, bytes]
    bad: dict[int, str]


def json_rows(fields: Sequence[FieldSpec], rows: pa.Table, *, row_bytes_max: int, bytes_max: int) -> JsonRows:
    """Write rows as JSON objects; a null of a column is left out.

    Args:
        fields: the columns.
        rows: their values, each column of its field's Arrow type.
        row_bytes_max: a row whose object is longer has none.
        bytes_max: size of all objects; the rows behind it have none.
    """
    found = JsonRows(texts={}, bad={})
    names = [field.name for field in fields]
    left = bytes_max
    pending = [(at, min(ROWS_AT_ONCE, rows.num_rows - at)) for at in range(0, rows.num_rows, ROWS_AT_ONCE)]
    pending.reverse()
    while pending:
        at, count = pending.pop()
        part = rows.slice(at, count)
        if ELEMENT_BYTES_MIN * _elements(part) > row_bytes_max:
            if count > 1:  # each for itself: they are many objects
                pending += [(at + count // 2, count - count // 2), (at, count // 2)]
            else:
                found.bad[at] = f"its lists take more than {row_bytes_max} bytes as JSON; {ELSEWHERE}"
            continue
        columns = [
            _values(field.kind, part.column(name).combine_chunks(), name)
            for field, name in zip(fields, names, strict=True)
        ]
        for i in range(count):
            row = {name: column[i] for name, column in zip(names, columns, strict=True)}
            try:
                text = _ENCODER.encode({name: value for name, value in row.items() if value is not None})
            except _NoFormError as e:
                found.bad[at + i] = str(e)
                continue
            if len(text) > row_bytes_max:
                found.bad[at + i] = f"{len(text)} bytes as JSON, more than the {row_bytes_max} of a row"
            elif len(text) > left:
                found.bad[at + i] = (
                    f"{len(text)} bytes as JSON, and the rows of its body before it take "
                    f"{bytes_max - left} of {bytes_max}; send it in another body, or with durability=lake"
                )
            else:
                left -= len(text)
                found.texts[at + i] = text
    return found


def _elements(part: pa.Table) -> int:
    """Number of elements of all lists and maps, at any depth."""
    return sum(_inside(chunk) for column in part.columns for chunk in column.chunks)


def _inside(array: pa.Array) -> int:
    kind = array.type
    if pa.types.is_struct(kind):
        return sum(map(_inside, array.flatten()))
    if pa.types.is_map(kind) or pa.types.is_list(kind):
        # Also those behind a null, which become objects too.
        inner = _part(array, array.items if pa.types.is_map(kind) else array.values)
        return len(inner) + _inside(inner)
    return 0


def _values(kind: ColumnType, column: pa.Array, path: str) -> list[Any]:
    """The values of a column as JSON has them; `_NoForm` for those that it has not."""
    if isinstance(kind, Struct):
        children = [
            _values(inner, child, f"{path}.{name}")
            for (name, inner), child in zip(kind.fields, column.flatten(), strict=True)
        ]
        names = [name for name, _ in kind.fields]
        there = column.is_valid().to_pylist()
        return [
            {name: child[i] for name, child in zip(names, children, strict=True)} if there[i] else None
            for i in range(len(column))
        ]
    if isinstance(kind, ListOf):
        return _parted(column, _values(kind.element, _part(column, column.values), f"{path}[]"), list)
    if isinstance(kind, MapOf):
        items = _values(kind.value, _part(column, column.items), f"{path}.*")
        pairs = list(zip(_part(column, column.keys).to_pylist(), items, strict=True))
        return _parted(column, pairs, lambda own: _object(own, path))
    if kind.name in ("float", "double"):
        return [
            _NoForm(f"{path}: {value!r} has no form in JSON; {ELSEWHERE}")
            if value is not None and not math.isfinite(value)
            else value
            for value in column.to_pylist()
        ]
    form = _FORMS.get(kind.name.split("(")[0])
    if kind.name in ("date", "timestamp", "timestamptz"):
        column = pc.replace_substring(column.cast(pa.string()), " ", "T")  # ISO 8601, and RFC 3339
    values: list[Any] = column.to_pylist()
    return values if form is None else [None if value is None else form(value) for value in values]


_FORMS: dict[str, Callable[[Any], str]] = {
    "decimal": lambda value: format(value, "f"),
    "uuid": lambda value: str(uuid.UUID(bytes=value)),
    "binary": lambda value: base64.b64encode(value).decode(),
}


def _part(column: pa.Array, values: pa.Array) -> pa.Array:
    """The values of a list or map column that its offsets name."""
    first, end = column.offsets[0].as_py(), column.offsets[-1].as_py()
    return values.slice(first, end - first)


def _parted(column: pa.Array, values: list[Any], form: Callable[[list[Any]], Any]) -> list[Any]:
    """The values of each list or map of a column."""
    offsets = column.offsets.to_pylist()
    there = column.is_valid().to_pylist()
    return [
        form(values[offsets[i] - offsets[0] : offsets[i + 1] - offsets[0]]) if there[i] else None
        for i in range(len(column))
    ]


def _object(pairs: list[tuple[str, Any]], path: str) -> dict[str, Any] | _NoForm:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    keys = [key for key, _ in pairs]
    twice = next(key for at, key in enumerate(keys) if key in keys[:at])
    return _NoForm(f"{path}: a map with the key {twice[:60]!r} twice has no form in JSON; {ELSEWHERE}")
