"""Parsing of messages that are JSON objects, some thousand at a time.

Messages are parsed by `_parse_typed`, and by `_parse_each` those that it refuses or that it cannot be trusted
with. The result of `_parse_each` is authoritative. Both produce strings, integers, doubles and booleans
first, nested as the columns are; `convert` turns them into the spec's types.
"""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import attrgetter
from typing import Any

import msgspec
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from tarn.core.casts import cast_json
from tarn.core.column_types import Primitive
from tarn.core.convert import convert
from tarn.core.json_texts import PARTS, JsonTexts, text_at
from tarn.core.json_values import (
    INT64_MIN,
    Rounded,
    WrongTypeError,
    as_object,
    checked,
    filled,
    has_number,
    is_whole,
    kind_name,
    python_type,
    source_type,
)
from tarn.core.parsing import Parsed, mask_without
from tarn.core.spec import FieldSpec

TYPED_RECORDS = 1_024
"""Messages that are objects at one time: each takes about a kilobyte, and all should stay in the cache."""
BLOCK_BYTES_MIN = 1 << 20
_ROUNDED = re.compile(rb"[\d.]{17,}|[eE]-\d{3,}")
"""In each number whose double may be whole although it is not: those of up to 15 digits are exact."""
WHOLE_CHARS_MAX = 20
"""Of a whole number that fits 64 bits."""
DIGITS_MAX = 30
"""An integer of more digits is read as a double if the message needs the slowest parser."""


@dataclass(frozen=True, slots=True)
class _Node:
    """One key on a path to columns: either a column or an object with further keys."""

    column: int | None
    children: dict[str, _Node]


class JsonParser:
    """A `Parser` of JSON.

    Args:
        fields: columns of the spec.
    """

    def __init__(self, fields: Sequence[FieldSpec]) -> None:
        self._columns = tuple(fields)
        self._fields = tuple(field for field in fields if field.encoding != "json")
        self._texts = JsonTexts(fields) if len(self._fields) < len(fields) else None
        self._tree = _tree(self._fields)
        self._source_types = [source_type(field) for field in self._fields]
        self._wholes = any(map(_has_whole, self._source_types))
        self._flat = all(isinstance(field.kind, Primitive) and not field.cast for field in self._fields)
        self._source_schema = pa.schema(_arrow_fields(self._tree, self._fields))
        self._casts = [column for column, field in enumerate(self._fields) if field.cast]
        self._typed = _typed_decoder(self._tree, self._fields)

    def parse(self, values: Sequence[bytes]) -> Parsed:
        """See `Parser.parse`."""
        columns, kept, bad = self._parse_typed(values)
        held = dict(zip((field.name for field in self._fields), columns, strict=True))
        wrong: dict[int, str] = {}
        if self._texts is not None:
            texts, wrong = self._texts.of([values[i] for i in kept])
            held.update(texts)
        good: list[pa.Array] = []
        for field in self._columns:
            turn = cast_json if field.cast else convert
            converted, reasons = turn(field, held[field.name])
            good.append(converted)
            for i, reason in reasons.items():
                wrong.setdefault(i, reason)
        return Parsed(columns=good, index=kept, bad=bad).without(wrong)

    def _parse_typed(self, values: Sequence[bytes]) -> tuple[list[pa.Array], list[int], dict[int, str]]:
        """As `_parse_each`, which it leaves the messages to that it cannot vouch for.

        The parser (msgspec) checks the columns' types, and everything but the encoding of what no column
        reads. A whole number written with a point and a decimal that is a number are left to `_parse_each`.
        """
        if self._typed is None:
            return self._parse_each(values)
        parts: list[list[pa.Array]] = []
        kept: list[int] = []
        reasons: dict[int, str] = {}
        for at in range(0, max(1, len(values)), TYPED_RECORDS):
            columns, here, why = self._parse_some(self._typed.decode, values[at : at + TYPED_RECORDS])
            parts.append(columns)
            kept += range(at, at + len(here)) if isinstance(here, range) else map(at.__add__, here)
            reasons.update({at + i: reason for i, reason in why.items()})
        return [pa.concat_arrays(column) for column in zip(*parts, strict=True)], kept, reasons

    def _parse_some(
        self, parse: Callable[[bytes], Any], values: Sequence[bytes]
    ) -> tuple[list[pa.Array], Sequence[int], dict[int, str]]:
        """As `_parse_typed`, for so few messages that their objects stay in the processor's cache."""
        refused: set[int] = set()
        if not all(map(bytes.isascii, values)):
            refused.update(i for i, value in enumerate(values) if not _is_utf8(value))
        usable = range(len(values)) if not refused else _without(len(values), refused)
        rows: list[Any] = []
        parsed = map(parse, [values[i] for i in usable] if refused else values)
        unread = len(refused)
        while True:
            try:
                rows.extend(parsed)  # keeps what came before an exception
                break
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                refused.add(usable[len(rows) + len(refused) - unread])
        kept = _without(len(values), refused) if refused else usable
        found: dict[int, list[Any]] = {}
        _gather(self._tree, rows, found)
        columns = [_source_column(found[c], kind) for c, kind in enumerate(self._source_types)]
        if not refused:
            return columns, kept, {}
        left = sorted(refused)
        more, here, why = self._parse_each([values[i] for i in left])
        reasons = {left[i]: reason for i, reason in why.items()}
        if not here:
            return columns, kept, reasons
        kept = [*kept, *(left[i] for i in here)]
        order = pa.array(sorted(range(len(kept)), key=kept.__getitem__), pa.int64())
        columns = [pa.concat_arrays(pair).take(order) for pair in zip(columns, more, strict=True)]
        return columns, sorted(kept), reasons

    def _parse_each(self, values: Sequence[bytes]) -> tuple[list[pa.Array], list[int], dict[int, str]]:
        """Parse each message alone.

        Returns:
            Source columns of the parsed messages, indexes of these messages, and {index: reason} of the
            others.
        """
        rows: list[list[object]] = []
        kept: list[int] = []
        reasons: dict[int, str] = {}
        for i, value in enumerate(values):
            try:
                message = orjson.loads(value)
            except orjson.JSONDecodeError as e:
                deep = self._parse_deep(value) if "depth limit" in str(e) else None
                if deep is not None:
                    rows.append(deep)
                    kept.append(i)
                    continue
                try:
                    message = _with_huge_numbers(value) if "infinity" in str(e) else None
                except UnicodeEncodeError:
                    reasons[i] = "not JSON: a text has half of a surrogate pair"
                    continue
                if message is None:
                    reasons[i] = f"not JSON: {e}"
                    continue
            if self._wholes and _ROUNDED.search(value) is not None:
                message = _with_rounded(value, message)
            if not isinstance(message, dict):
                reasons[i] = f"the message is {kind_name(message)}, not an object"
                continue
            row: list[object] = [None] * len(self._fields)
            try:
                _read(self._tree, message, "", row, self._fields)
                self._fill_texts(row, value)
                if any(map(has_number, row)):
                    _fill_numbers(row, value, self._fields)
            except WrongTypeError as e:
                reasons[i] = str(e)
                continue
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
                reasons[i] = f"its JSON cannot be cast: {e}"
                continue
            rows.append(row)
            kept.append(i)
        columns = [pa.array([row[c] for row in rows], kind) for c, kind in enumerate(self._source_types)]
        return columns, kept, reasons

    def _fill_texts(self, row: list[object], value: bytes) -> None:
        """Fill in the texts of the values that are cast.

        Raises:
            WrongTypeError, MsgspecError, UnicodeDecodeError, RecursionError: the message has none there.
        """
        if not self._casts:
            return
        top = PARTS.decode(value)
        for column in self._casts:
            row[column] = text_at(self._fields[column].path, top)

    def _parse_deep(self, value: bytes) -> list[object] | None:
        """Source values of a message nested more deeply than the other parsers go; None if it is not JSON.

        Arrow's parser knows no limit, but some literals that are not JSON, and takes lines for messages. It
        reads no object as a map, so a message with nested columns is not read that deep.
        """
        if not self._flat:
            return None
        value = value.strip(b" \t\r\n")
        if not _is_utf8(value) or any(found in value for found in (b"\n", b"\r", b"NaN", b"Inf")):
            return None
        try:
            table = pj.read_json(
                io.BytesIO(value),
                read_options=pj.ReadOptions(
                    use_threads=False, block_size=max(len(value) + 1, BLOCK_BYTES_MIN)
                ),
                parse_options=pj.ParseOptions(
                    explicit_schema=self._source_schema,
                    newlines_in_values=False,
                    unexpected_field_behavior="ignore",
                ),
            )
        except (pa.ArrowException, UnicodeDecodeError):
            return None
        if table.num_rows != 1:
            return None
        found: dict[int, pa.Array] = {}
        _collect(self._tree, table, found)
        row = [found[c][0].as_py() for c in range(len(self._fields))]
        return row if all(math.isfinite(v) for v in row if isinstance(v, float)) else None


def _without(count: int, out: Collection[int]) -> list[int]:
    """The indexes in [0, count) that are not out."""
    return list(compress(range(count), mask_without(count, out)))


def _is_utf8(value: bytes) -> bool:
    if value.isascii():
        return True
    try:
        value.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _tree(fields: Sequence[FieldSpec]) -> _Node:
    root = _Node(None, {})
    for column, field in enumerate(fields):
        node = root
        for key in field.path[:-1]:
            node = node.children.setdefault(key, _Node(None, {}))
        node.children[field.path[-1]] = _Node(column, {})
    return root


def _typed_decoder(node: _Node, fields: Sequence[FieldSpec]) -> msgspec.json.Decoder[Any] | None:
    """Parser of messages into objects of the columns' types; None if a key cannot be the name of a field."""
    try:
        return msgspec.json.Decoder(_struct(node, fields))
    except ValueError:
        return None


def _struct(node: _Node, fields: Sequence[FieldSpec]) -> type[msgspec.Struct]:
    """The type of an object with the keys of this node; its attributes are `c0`, `c1` in their order."""
    members = [
        (f"c{n}", _optional(_member(child, fields)), None) for n, child in enumerate(node.children.values())
    ]
    keys = {f"c{n}": key for n, key in enumerate(node.children)}
    return msgspec.defstruct("Message", members, rename=keys, gc=False)


def _optional(kind: Any) -> Any:
    # A text as it was sent may be that of null; the parser takes no union with it.
    return kind if kind is msgspec.Raw else kind | None


def _member(node: _Node, fields: Sequence[FieldSpec]) -> Any:
    if node.column is None:
        return _struct(node, fields)
    return python_type(source_type(fields[node.column]))


def _source_column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_binary(kind):
        values = [None if value is None else bytes(value) for value in values]
    return pa.array(values, kind)


def _gather(node: _Node, rows: Sequence[Any], found: dict[int, list[Any]]) -> None:
    """Collect the columns of parsed objects; below a null object everything is null."""
    some_null = None in rows
    for n, child in enumerate(node.children.values()):
        get = attrgetter(f"c{n}")
        values = [None if row is None else get(row) for row in rows] if some_null else list(map(get, rows))
        if child.column is not None:
            found[child.column] = values
        else:
            _gather(child, values, found)


def _arrow_fields(node: _Node, fields: Sequence[FieldSpec]) -> list[pa.Field]:
    found = []
    for key, child in node.children.items():
        if child.column is not None:
            found.append(pa.field(key, source_type(fields[child.column])))
        else:
            found.append(pa.field(key, pa.struct(_arrow_fields(child, fields))))
    return found


def _collect(node: _Node, holder: pa.Table | pa.StructArray, found: dict[int, pa.Array]) -> None:
    """Collect the leaf columns of the parsed structs; below a null object everything is null."""
    for key, child in node.children.items():
        array = (
            holder.column(key).combine_chunks()
            if isinstance(holder, pa.Table)
            else pc.struct_field(holder, key)
        )
        if child.column is not None:
            found[child.column] = array
        else:
            _collect(child, array, found)


def _read(
    node: _Node, holder: dict[str, object], path: str, row: list[object], fields: Sequence[FieldSpec]
) -> None:
    """Fill a row from one message.

    Args:
        node: tree of the columns' keys.
        holder: the object at that node.
        path: keys so far, for the reason.
        row: receives the values, by column.
        fields: columns of the spec.

    Raises:
        WrongTypeError: a value has the wrong type.
    """
    for name, child in node.children.items():
        value = holder.get(name)
        if value is None:
            continue
        where = f"{path}{name}"
        if child.column is None:
            _read(child, as_object(value, where), f"{where}.", row, fields)
        else:
            field = fields[child.column]
            if field.cast:
                continue
            row[child.column] = checked(field.kind, source_type(field), value, where)


def _with_huge_numbers(value: bytes) -> object:
    """A message with numbers that no double holds, which become infinite; None if it is not JSON either.

    They are JSON (RFC 8259, section 6), and harmless where no column reads them.

    Raises:
        UnicodeEncodeError: a text is no Unicode; the other parsers refuse that too.
    """

    def whole(text: str) -> float:
        return int(text) if len(text) <= DIGITS_MAX else float(text)

    def refuse(literal: str) -> None:
        raise ValueError(literal)

    try:
        found = json.loads(value, parse_int=whole, parse_constant=refuse)
        if b"\\u" in value:
            json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise
    except (ValueError, RecursionError):
        return None
    return found


def _has_whole(kind: pa.DataType) -> bool:
    """Whether values of a source type are or hold whole numbers."""
    return bool(pa.types.is_int64(kind)) or any(
        _has_whole(kind.field(n).type) for n in range(kind.num_fields)
    )


def _with_rounded(value: bytes, message: object) -> object:
    """A message with `Rounded` for each number that is such a one.

    Args:
        value: the message, which is JSON.
        message: the same as it was parsed, with doubles.
    """

    def fraction(text: str) -> float:
        found = float(text)
        return Rounded(text) if found.is_integer() and not is_whole(text) else found

    def whole(text: str) -> float:
        fits = len(text) <= WHOLE_CHARS_MAX and INT64_MIN <= int(text) < 2**64
        return int(text) if fits else float(text)

    try:
        return json.loads(value, parse_float=fraction, parse_int=whole)
    except RecursionError:
        return message


def _fill_numbers(row: list[object], value: bytes, fields: Sequence[FieldSpec]) -> None:
    """Replace the numbers that `_read` left for decimals by their text: a double would lose digits.

    Raises:
        WrongTypeError: the message is nested too deeply.
    """
    try:
        message = json.loads(value, parse_float=str, parse_int=str)
    except RecursionError:
        raise WrongTypeError(
            "nested too deeply for a message with a number for a decimal; send the decimal as text"
        ) from None
    for column, field in enumerate(fields):
        if has_number(row[column]):
            found = message
            for key in field.path:
                found = found[key]
            row[column] = filled(row[column], found)
