"""Types of columns: Iceberg's primitive types, and `struct<…>`, `list<…>` and `map<string, …>` of them.

A spec writes them as text, a table's metadata as JSON (Iceberg specification, Appendix C); every nested value
is optional.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

SCALARS = (
    "boolean",
    "int",
    "long",
    "float",
    "double",
    "date",
    "timestamp",
    "timestamptz",
    "string",
    "uuid",
    "binary",
)
FIELD_NAME = r"[A-Za-z_][A-Za-z0-9_]{0,127}"
DEPTH_MAX = 8
STRUCT_FIELDS_MAX = 1_000
_DECIMAL = re.compile(r"decimal\((\d{1,2}),\s*(\d{1,2})\)")
_NESTED = re.compile(r"(\w+)\s*<(.*)>", re.DOTALL)
_FORMS = "struct<name: type, …>, list<type>, map<string, type>"


@dataclass(frozen=True, slots=True)
class Primitive:
    """A type without parts, by its name in Iceberg."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Struct:
    """An object with these fields, as (name, type)."""

    fields: tuple[tuple[str, ColumnType], ...]

    def __str__(self) -> str:
        return f"struct<{', '.join(f'{name}: {kind}' for name, kind in self.fields)}>"


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list of elements of one type."""

    element: ColumnType

    def __str__(self) -> str:
        return f"list<{self.element}>"


@dataclass(frozen=True, slots=True)
class MapOf:
    """An object with any keys and values of one type."""

    value: ColumnType

    def __str__(self) -> str:
        return f"map<string, {self.value}>"


ColumnType: TypeAlias = Primitive | Struct | ListOf | MapOf


@lru_cache(maxsize=10_000)
def parse_type(text: str) -> ColumnType:
    """Parse a type as a spec writes it; `str` of the result is its canonical text.

    Raises:
        ValueError: says what is wrong in the text and what is allowed.
    """
    return _parse(text, 1)


def iceberg_type(kind: ColumnType, next_id: Callable[[], int]) -> str | dict[str, Any]:
    """The type as in table metadata, with ids from `next_id`: a struct's fields first, then their parts."""
    if isinstance(kind, Struct):
        ids = [next_id() for _ in kind.fields]
        fields = [
            {"id": number, "name": name, "type": iceberg_type(inner, next_id), "required": False}
            for number, (name, inner) in zip(ids, kind.fields, strict=True)
        ]
        return {"type": "struct", "fields": fields}
    if isinstance(kind, ListOf):
        number = next_id()
        element = iceberg_type(kind.element, next_id)
        return {"type": "list", "element-id": number, "element": element, "element-required": False}
    if isinstance(kind, MapOf):
        key, number = next_id(), next_id()
        value = iceberg_type(kind.value, next_id)
        return {
            **{"type": "map", "key-id": key, "key": "string"},
            **{"value-id": number, "value": value, "value-required": False},
        }
    return kind.name


def type_of(kind: str | dict[str, Any]) -> ColumnType:
    """The type that table metadata have, with the fields of structs in their order.

    Raises:
        ValueError: it has a part that is required, or of a type that a spec does not have.
    """
    if isinstance(kind, str):
        return Primitive(_primitive(kind))
    required = [f["name"] for f in kind.get("fields") or () if f.get("required")]
    if required or kind.get("element-required") or kind.get("value-required"):
        raise ValueError(f"{type_text(kind)} has a required part; in a spec nested values are optional")
    # Names and keys are checked as those of a spec are.
    return parse_type(type_text(kind))


def type_text(kind: str | dict[str, Any]) -> str:
    """A type of table metadata in the notation of a spec."""
    if isinstance(kind, str):
        return kind
    if kind["type"] == "struct":
        inner = ", ".join(f"{field['name']}: {type_text(field['type'])}" for field in kind["fields"])
        return f"struct<{inner}>"
    if kind["type"] == "list":
        return f"list<{type_text(kind['element'])}>"
    return f"map<{type_text(kind['key'])}, {type_text(kind['value'])}>"


def suggest(value: str, allowed: Sequence[str]) -> str:
    """` (did you mean …?)` with the allowed word that is most similar, or nothing."""
    near = difflib.get_close_matches(value, allowed, n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def _parse(text: str, depth: int) -> ColumnType:
    text = text.strip()
    nested = _NESTED.fullmatch(text)
    if nested is None:
        return Primitive(_primitive(text))
    if depth > DEPTH_MAX:
        raise ValueError(f"types are nested more than {DEPTH_MAX} levels deep; use fewer")
    form, parts = nested[1], [part.strip() for part in _split(nested[2])]
    if form == "struct":
        return _struct(parts, depth)
    if form == "list":
        if len(parts) != 1:
            raise ValueError(f"{text!r}: a list has one type, as in list<string>")
        return ListOf(_parse(parts[0], depth + 1))
    if form == "map":
        if len(parts) != 2:
            raise ValueError(f"{text!r}: a map has two types, as in map<string, long>")
        if parts[0] != "string":
            raise ValueError(f"{text!r}: the keys are {parts[0]}; keys of a JSON object are string")
        return MapOf(_parse(parts[1], depth + 1))
    hint = " (did you mean list?)" if form == "array" else suggest(form, ("struct", "list", "map"))
    raise ValueError(f"{form!r} is not a nested type{hint}; allowed are {_FORMS}")


def _struct(parts: Sequence[str], depth: int) -> Struct:
    if len(parts) > STRUCT_FIELDS_MAX:
        raise ValueError(f"a struct has {len(parts)} fields, more than {STRUCT_FIELDS_MAX}")
    fields: list[tuple[str, ColumnType]] = []
    lower: set[str] = set()
    for part in parts:
        name, colon, kind = part.partition(":")
        name = name.strip()
        if not colon or not re.fullmatch(FIELD_NAME, name):
            raise ValueError(
                f"{part!r} is not a field of a struct; write name: type, the name in letters, digits and _"
            )
        if name.lower() in lower:
            raise ValueError(f"a struct names {name} twice (upper and lower case count as one)")
        lower.add(name.lower())
        fields.append((name, _parse(kind, depth + 1)))
    return Struct(tuple(fields))


def _split(text: str) -> Iterator[str]:
    """The parts between commas that are in no bracket."""
    level = start = 0
    for at, char in enumerate(text):
        level += (char in "<(") - (char in ">)")
        if char == "," and level == 0:
            yield text[start:at]
            start = at + 1
    yield text[start:]


def _primitive(text: str) -> str:
    decimal = _DECIMAL.fullmatch(text)
    if decimal is not None:
        precision, scale = int(decimal[1]), int(decimal[2])
        if 1 <= precision <= 38 and scale <= precision:
            return f"decimal({precision}, {scale})"
        raise ValueError(f"{text!r}: precision is 1 to 38, scale at most the precision")
    if text not in SCALARS:
        raise ValueError(
            f"{text!r} is not a type{suggest(text, SCALARS)}; "
            f"allowed are {', '.join(SCALARS)}, decimal(p, s), {_FORMS}"
        )
    return text
