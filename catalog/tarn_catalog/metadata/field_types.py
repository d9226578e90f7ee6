"""Primitive types and default values of columns, as far as Iceberg's readers can parse them. Pure.

A type or value that they cannot parse makes the whole table unreadable, not only its column. Iceberg table
specification: "Primitive Types", "Default values", "Appendix C: JSON serialization" and "Appendix D:
Single-value serialization" (JSON).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Any

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
PRECISION_MAX = 38
EDGES = ("spherical", "vincenty", "thomas", "andoyer", "karney")
DECIMAL_TEXT_MAX = 100

PRIMITIVE = re.compile(
    r"boolean|int|long|float|double|date|time|timestamp|timestamptz|timestamp_ns|timestamptz_ns|string|uuid|"
    r"binary|variant|unknown|fixed\[\d+\]|decimal\(\s*\d+\s*,\s*\d+\s*\)|geometry(\(.*\))?|geography(\(.*\))?",
    re.ASCII,
)
_NUMBERS = re.compile(r"\d+", re.ASCII)
_GEOMETRY = re.compile(r"geometry(\(\s*[^\s)][^)]*\))?")
# Possessive: what they took is not tried again in parts, which would take the square of its length.
_GEOGRAPHY = re.compile(r"geography(\(\s*[^\s,][^,]*(,\s*+(?P<edges>\w*+)\s*+)?\))?", re.ASCII)

_DATE = r"(?P<date>(?P<year>\d{4})-\d\d-\d\d)"
_TIME = r"([01]\d|2[0-3]):[0-5]\d(:[0-5]\d(\.\d{1,9})?)?"
_UTC = r"(Z|[+-]00:00)"
_TEXTS = {
    "date": re.compile(_DATE, re.ASCII),
    "time": re.compile(_TIME, re.ASCII),
    "timestamp": re.compile(f"{_DATE}T{_TIME}", re.ASCII),
    "timestamptz": re.compile(f"{_DATE}T{_TIME}{_UTC}", re.ASCII),
    "uuid": re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"),
    "binary": re.compile(r"([0-9a-fA-F]{2})*"),
}
_DECIMAL = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)
_NANOSECONDS = range(1678, 2262)  # the years that 64 bits of them reach


def problem_of(kind: str) -> str | None:
    """Return why readers do not know a type that has the form of one, and what to give; None if they do."""
    numbers = _numbers(kind)
    if kind.startswith("fixed") and numbers[0] > INT_MAX:
        return f"its length is at most {INT_MAX}"
    if kind.startswith("decimal"):
        if numbers[0] > PRECISION_MAX:
            return f"its precision is at most {PRECISION_MAX}"
        if numbers[1] > INT_MAX:
            return f"its scale is at most {INT_MAX}"
    if kind.startswith("geometry") and not _GEOMETRY.fullmatch(kind):
        return "give geometry, or geometry(…) with a coordinate reference system such as srid:4326"
    if kind.startswith("geography"):
        found = _GEOGRAPHY.fullmatch(kind)
        edges = found["edges"] if found else ""
        if edges is not None and edges.lower() not in EDGES:
            return (
                "give geography, or geography(…) with a coordinate reference system such as srid:4326 and, "
                f"after a comma, one of {', '.join(EDGES)}"
            )
    return None


def _numbers(kind: str) -> list[int]:
    """Return the numbers in a type; Python's `int` refuses long ones, with zeros before them too."""
    return [int(digits.lstrip("0")[:11] or "0") for digits in _NUMBERS.findall(kind)]


def is_value(kind: Any, value: Any) -> bool:
    """Return whether a JSON value other than null is a default value of a type.

    Args:
        kind: JSON of a valid type; columns of a struct, list or map, and of variant, unknown, geometry and
            geography have no default value.
        value: the parsed JSON.
    """
    if not isinstance(kind, str):
        return False
    plain = _VALUES.get(kind)
    if plain is not None:
        return plain(value)
    if not isinstance(value, str):
        return False
    if kind.startswith("fixed"):
        return len(value) == 2 * _numbers(kind)[0] and _is_text("binary", value)
    if kind.startswith("decimal"):
        # Readers compare the scale, not the precision.
        scale = _numbers(kind)[1]
        known = len(value) <= DECIMAL_TEXT_MAX and _DECIMAL.fullmatch(value)
        return bool(known) and Decimal(value).as_tuple().exponent == -scale
    nanoseconds = kind.endswith("_ns")
    return _is_text(kind.removesuffix("_ns"), value, nanoseconds=nanoseconds)


def _is_text(form: str, value: Any, *, nanoseconds: bool = False) -> bool:
    known = _TEXTS.get(form)
    found = known.fullmatch(value) if known and isinstance(value, str) else None
    parts = found.groupdict() if found else {}
    if "date" not in parts:
        return found is not None
    try:
        date.fromisoformat(parts["date"])
    except ValueError:
        return False
    return not nanoseconds or int(parts["year"]) in _NANOSECONDS


_VALUES: dict[str, Callable[[Any], bool]] = {
    "boolean": lambda value: isinstance(value, bool),
    "int": lambda value: type(value) is int and -INT_MAX - 1 <= value <= INT_MAX,
    "long": lambda value: type(value) is int and -LONG_MAX - 1 <= value <= LONG_MAX,
    # Readers do not take a number without a point or an exponent.
    "float": lambda value: isinstance(value, float),
    "double": lambda value: isinstance(value, float),
    "string": lambda value: isinstance(value, str),
}
_EXAMPLES = {
    "boolean": "true or false",
    "int": "a number of 32 bits",
    "long": "a number of 64 bits",
    "float": "a number with a point, such as 1.0",
    "double": "a number with a point, such as 1.0",
    "string": "a text",
    "uuid": "a text such as 'f79c3e09-677c-4bbd-a479-3f349cb785e7'",
    "date": "a text such as '2007-12-03'",
    "time": "a text such as '10:15:30'",
    "timestamp": "a text such as '2007-12-03T10:15:30'",
    "timestamptz": "a text such as '2007-12-03T10:15:30+00:00'",
    "timestamp_ns": "a text such as '2007-12-03T10:15:30', from 1678 to 2261",
    "timestamptz_ns": "a text such as '2007-12-03T10:15:30+00:00', from 1678 to 2261",
    "binary": "a text of hexadecimal digits, such as '00ff'",
}


def value_for(kind: Any) -> str | None:
    """Return what to give as a default value of a type, for messages; None if it has none."""
    if isinstance(kind, str) and kind.startswith("fixed"):
        return f"a text of {2 * _numbers(kind)[0]} hexadecimal digits"
    if isinstance(kind, str) and kind.startswith("decimal"):
        return f"a text of a number with {_numbers(kind)[1]} decimal places"
    return _EXAMPLES.get(kind) if isinstance(kind, str) else None
