"""Avro schemas: parsed from JSON, their canonical form and their fingerprint (Avro specification 1.12)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
SCHEMAS_MAX = 64
DECIMAL_PRECISION_MAX = 1_000
"""More digits than any column has; a message may bring its own schema, and reading computes powers of ten."""
FIXED_BYTES_MAX = 2**31 - 1
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LOGICAL = {
    "date": ("int",),
    "timestamp-millis": ("long",),
    "timestamp-micros": ("long",),
    "timestamp-nanos": ("long",),
    "local-timestamp-millis": ("long",),
    "local-timestamp-micros": ("long",),
    "local-timestamp-nanos": ("long",),
    "decimal": ("bytes", "fixed"),
    "uuid": ("string", "fixed"),
}
"""Logical types that mean something here, and what they annotate; others are ignored, as Avro says."""
_EMPTY = 0xC15D213AA4D7A795


@dataclass(slots=True, eq=False)
class AvroType:
    """A type of a schema. A record may hold itself.

    Attributes:
        kind: name of the primitive type, or record, enum, fixed, array, map or union.
        name: full name of a record, enum or fixed.
        fields: fields of a record.
        symbols: symbols of an enum.
        size: bytes of a fixed.
        inner: elements of an array, values of a map, branches of a union.
        logical: logical type; empty for none.
        precision: digits of a decimal.
        scale: digits of a decimal behind the point.
    """

    kind: str
    name: str = ""
    fields: Sequence[tuple[str, AvroType]] = ()
    symbols: Sequence[str] = ()
    size: int = 0
    inner: Sequence[AvroType] = ()
    logical: str = ""
    precision: int = 0
    scale: int = 0

    @property
    def value(self) -> AvroType:
        """The type without null: the other branch of a union with null; else itself."""
        some = [branch for branch in self.inner if branch.kind != "null"]
        return some[0] if self.kind == "union" and len(some) == 1 else self

    def __str__(self) -> str:
        if self.kind == "union":
            return f"a union of {' and '.join(map(str, self.inner))}"
        return f"{self.kind} {self.name}" if self.name else self.logical or self.kind


@lru_cache(maxsize=SCHEMAS_MAX)
def parse_schema(text: str) -> AvroType:
    """Parse a schema.

    Raises:
        ValueError: it is no Avro schema; says what is wrong.
    """
    try:
        return _parse(json.loads(text), "", {})
    except json.JSONDecodeError as e:
        raise ValueError(f"the Avro schema is not JSON: {e}") from e
    except RecursionError as e:
        raise ValueError("the Avro schema is nested too deeply") from e


def canonical(schema: AvroType) -> str:
    """The Parsing Canonical Form."""
    return _canonical(schema, set())


def fingerprint(schema: AvroType) -> bytes:
    """The 64-bit Rabin fingerprint of the canonical form, in the byte order of single-object encoding."""
    return _rabin(canonical(schema).encode()).to_bytes(8, "little")


def _rabin(data: bytes) -> int:
    found = _EMPTY
    for byte in data:
        found = (found >> 8) ^ _table()[(found ^ byte) & 0xFF]
    return found


@lru_cache(maxsize=1)
def _table() -> tuple[int, ...]:
    return tuple(_shifted(n) for n in range(256))


def _shifted(value: int) -> int:
    for _ in range(8):
        value = (value >> 1) ^ (_EMPTY if value & 1 else 0)
    return value


def _parse(value: Any, space: str, named: dict[str, AvroType]) -> AvroType:
    if isinstance(value, str):
        if value in PRIMITIVES:
            return AvroType(value)
        found = named.get(_full(value, space)) or named.get(value)
        if found is None:
            raise ValueError(f"the Avro schema names {value!r}, which it does not define before")
        return found
    if isinstance(value, list):
        return AvroType("union", inner=tuple(_branches(value, space, named)))
    if not isinstance(value, dict) or "type" not in value:
        raise ValueError(f"{value!r:.80} is no Avro type: a name, a list (union) or an object with a type")
    kind = value["type"]
    if isinstance(kind, dict | list) or kind not in (
        *PRIMITIVES,
        "record",
        "error",
        "enum",
        "fixed",
        "array",
        "map",
    ):
        return _parse(kind, space, named)
    if kind in PRIMITIVES:
        return _with_logical(AvroType(kind), value)
    if kind in ("array", "map"):
        key = "items" if kind == "array" else "values"
        if key not in value:
            raise ValueError(f"the Avro {kind} has no {key}")
        return AvroType(kind, inner=(_parse(value[key], space, named),))
    return _parse_named("record" if kind == "error" else kind, value, space, named)


def _parse_named(kind: str, value: dict[str, Any], space: str, named: dict[str, AvroType]) -> AvroType:
    name = value.get("name")
    if not isinstance(name, str) or not all(_NAME.fullmatch(part) for part in name.split(".")):
        raise ValueError(f"the Avro {kind} has the name {name!r:.80}; names have letters, digits and _")
    space = name.rpartition(".")[0] if "." in name else _namespace(value, space, name)
    found = AvroType(kind, name=_full(name, space))
    if found.name in named:
        raise ValueError(f"the Avro schema defines {found.name} twice")
    named[found.name] = found
    if kind == "record":
        fields = value.get("fields")
        if not isinstance(fields, list):
            raise ValueError(f"the Avro record {found.name} has no list of fields")
        found.fields = tuple(_field(one, space, named, found.name) for one in fields)
        names = [name for name, _ in found.fields]
        if len(set(names)) < len(names):
            raise ValueError(f"the Avro record {found.name} has two fields of one name")
    elif kind == "enum":
        symbols = value.get("symbols")
        if not isinstance(symbols, list) or not all(
            isinstance(symbol, str) and _NAME.fullmatch(symbol) for symbol in symbols
        ):
            raise ValueError(f"the Avro enum {found.name} has no list of symbols, which are names")
        found.symbols = tuple(symbols)
    else:
        found.size = _count(value.get("size"), f"size of the Avro fixed {found.name}")
    return _with_logical(found, value)


def _branches(values: list[Any], space: str, named: dict[str, AvroType]) -> Iterator[AvroType]:
    seen: set[str] = set()
    for value in values:
        found = _parse(value, space, named)
        key = found.name or found.kind
        if found.kind == "union" or key in seen:
            raise ValueError(f"an Avro union holds {'a union' if found.kind == 'union' else key + ' twice'}")
        seen.add(key)
        yield found


def _field(value: Any, space: str, named: dict[str, AvroType], record: str) -> tuple[str, AvroType]:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or "type" not in value:
        raise ValueError(f"a field of the Avro record {record} has no name or no type: {value!r:.80}")
    return value["name"], _parse(value["type"], space, named)


def _with_logical(found: AvroType, value: dict[str, Any]) -> AvroType:
    """The type with its logical type; one that Avro calls invalid is ignored."""
    logical = value.get("logicalType")
    if not isinstance(logical, str) or found.kind not in _LOGICAL.get(logical, ()):
        return found
    if logical == "decimal":
        precision, scale = value.get("precision"), value.get("scale", 0)
        if (
            type(precision) is not int
            or type(scale) is not int
            or not 0 <= scale <= precision
            or not precision
        ):
            return found
        if precision > DECIMAL_PRECISION_MAX:
            raise ValueError(
                f"an Avro decimal of {precision} digits; at most {DECIMAL_PRECISION_MAX} are read"
            )
        found.precision, found.scale = precision, scale
    if logical == "uuid" and found.kind == "fixed" and found.size != 16:
        return found
    found.logical = logical
    return found


def _namespace(value: dict[str, Any], space: str, name: str) -> str:
    """The namespace of a named type: its own, of which an empty one is none at all, or the enclosing one."""
    own = value.get("namespace")
    if own is None:
        return space
    if not isinstance(own, str) or not (own == "" or all(_NAME.fullmatch(part) for part in own.split("."))):
        raise ValueError(f"the Avro type {name} has the namespace {own!r:.80}; it is names joined by dots")
    return own


def _full(name: str, space: str) -> str:
    return name if "." in name or not space else f"{space}.{name}"


def _count(value: Any, what: str) -> int:
    if type(value) is not int or not 0 <= value <= FIXED_BYTES_MAX:
        raise ValueError(f"the {what} is {value!r:.40}, not a number of bytes up to {FIXED_BYTES_MAX}")
    return value


def _canonical(found: AvroType, seen: set[str]) -> str:
    if found.kind == "union":
        return f"[{','.join(_canonical(branch, seen) for branch in found.inner)}]"
    if found.kind in ("array", "map"):
        key = "items" if found.kind == "array" else "values"
        return f'{{"type":"{found.kind}","{key}":{_canonical(found.inner[0], seen)}}}'
    if not found.name:
        return f'"{found.kind}"'
    if found.name in seen:
        return f'"{found.name}"'
    seen.add(found.name)
    head = f'{{"name":"{found.name}","type":"{found.kind}"'
    if found.kind == "record":
        inner = ",".join(f'{{"name":"{n}","type":{_canonical(kind, seen)}}}' for n, kind in found.fields)
        return f'{head},"fields":[{inner}]}}'
    if found.kind == "enum":
        symbols = ",".join(json.dumps(symbol, ensure_ascii=False) for symbol in found.symbols)
        return f'{head},"symbols":[{symbols}]}}'
    return f'{head},"size":{found.size}}}'
