"""Parsing of rows that somebody sent to a table on purpose: JSON or Arrow, and no field without a column.

A stream's messages may have keys that nobody wants in the table. A client that sends rows to a table would
lose what it misspells, so here a row with a field that no column takes is a bad one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from tarn.core.arrow_parser import ArrowParser
from tarn.core.column_types import ColumnType, ListOf, MapOf, Struct
from tarn.core.json_parser import JsonParser
from tarn.core.parsing import Parsed
from tarn.core.spec import FieldSpec
from tarn.core.typed_values import joined, plain_type, rows_of

ARROW_START = b"\xff\xff\xff\xff"
"""How an Arrow IPC stream begins; no JSON text does."""
UNKNOWN = "unknown field"
NAMES_SHOWN_MAX = 12


class RowParser:
    """A `Parser` of rows: JSON objects, and Arrow IPC streams of one row, side by side.

    Args:
        fields: columns of the table that rows can fill.
    """

    def __init__(self, fields: Sequence[FieldSpec]) -> None:
        self._fields = tuple(fields)
        self._json = JsonParser(fields)
        self._arrow = _StrictArrowParser(fields)
        self._known = msgspec.json.Decoder(_known({field.name: field.kind for field in fields}))

    def parse(self, values: Sequence[bytes]) -> Parsed:
        """See `Parser.parse`."""
        arrow = [i for i, value in enumerate(values) if value.startswith(ARROW_START)]
        streams = set(arrow)
        bad: dict[int, str] = {}
        texts: list[int] = []
        for i, value in enumerate(values):
            if i not in streams:
                reason = self._unknown(value)
                if reason is None:
                    texts.append(i)
                else:
                    bad[i] = reason
        parts = []
        for parser, index in ((self._json, texts), (self._arrow, arrow)):
            if index:
                found = parser.parse([values[i] for i in index])
                parts.append(
                    Parsed(
                        columns=found.columns,
                        index=[index[row] for row in found.index],
                        bad={index[row]: reason for row, reason in found.bad.items()},
                    )
                )
        return joined(self._fields, parts, bad)

    def _unknown(self, value: bytes) -> str | None:
        """Why a JSON object has a field that no column takes; None if it has none, or is no such object."""
        try:
            self._known.decode(value)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
            if UNKNOWN in str(e):
                return f"{str(e).replace('Object contains ', '')}; {_columns(self._fields)}"
        return None


class _StrictArrowParser(ArrowParser):
    def _rows(self, schema: pa.Schema, held: Sequence[tuple[int, pa.RecordBatch]]) -> Parsed:
        extra = _extra({f.name: f.type for f in schema}, {f.name: f.kind for f in self._fields}, "$")
        if extra is None:
            return super()._rows(schema, held)
        reason = f"{UNKNOWN} {extra}; {_columns(self._fields)}"
        empty = rows_of(self._fields, [pa.nulls(0)] * len(self._fields), 0)
        return Parsed(columns=empty.columns, index=[], bad=dict.fromkeys((i for i, _ in held), reason))


def _columns(fields: Sequence[FieldSpec]) -> str:
    names = [field.name for field in fields]
    more = len(names) - NAMES_SHOWN_MAX
    shown = ", ".join(names[:NAMES_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")
    return f"correct the name, or add the column; the columns are {shown}"


def _known(kinds: Mapping[str, ColumnType]) -> type[msgspec.Struct]:
    """The type of objects with these keys and no others; values are not examined."""
    return msgspec.defstruct(
        "Row",
        [(f"c{n}", _member(kind), None) for n, kind in enumerate(kinds.values())],
        rename={f"c{n}": name for n, name in enumerate(kinds)},
        forbid_unknown_fields=True,
        gc=False,
    )


def _member(kind: ColumnType) -> Any:
    if isinstance(kind, Struct):
        return _known(dict(kind.fields)) | None
    if isinstance(kind, ListOf) and _has_struct(kind):
        return list[_member(kind.element)] | None  # type: ignore[misc]
    if isinstance(kind, MapOf) and _has_struct(kind):
        return dict[str, _member(kind.value)] | None  # type: ignore[misc]
    return msgspec.Raw


def _has_struct(kind: ColumnType) -> bool:
    if isinstance(kind, ListOf):
        return _has_struct(kind.element)
    return _has_struct(kind.value) if isinstance(kind, MapOf) else isinstance(kind, Struct)


def _extra(types: Mapping[str, pa.DataType], kinds: Mapping[str, ColumnType], where: str) -> str | None:
    """A field of an Arrow schema that no column takes, with its place; None if there is none."""
    for name, found in types.items():
        if name not in kinds:
            return f"`{name}`" + (f" - at `{where}`" if where != "$" else "")
        inner = _extra_below(found, kinds[name], f"{where}.{name}")
        if inner is not None:
            return inner
    return None


def _extra_below(found: pa.DataType, kind: ColumnType, where: str) -> str | None:
    found = plain_type(found)
    if isinstance(kind, Struct) and pa.types.is_struct(found):
        return _extra({part.name: part.type for part in found}, dict(kind.fields), where)
    if isinstance(kind, ListOf) and hasattr(found, "value_type"):
        return _extra_below(found.value_type, kind.element, f"{where}[]")
    if isinstance(kind, MapOf) and pa.types.is_map(found):
        return _extra_below(found.item_type, kind.value, f"{where}[]")
    return None
