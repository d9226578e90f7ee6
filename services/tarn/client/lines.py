"""Rows as lines of JSON that read as the same values; what has no such form is refused. Pure."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from math import isfinite
from typing import Any, NamedTuple

import orjson

from tarn.adapters.gateway_client import BODY_BYTES_MAX
from tarn.client.repeats import Row
from tarn.core.errors import InvalidError

Path = tuple[object, ...]

LEAVES = frozenset((str, int, bool, type(None)))
"""Types of most values that are not gone through for a number."""


class Entry(NamedTuple):
    """A row of a batch.

    Attributes:
        row: a copy of the mapping, with the caller's values.
        line: the row as JSON, as it is sent.
    """

    row: dict[str, Any]
    line: bytes

    def as_sent(self) -> Row:
        """The row as it was given; if a value in it was changed since, as its line reads."""
        try:
            same = line_of(self.row) == self.line
        except InvalidError:
            same = False
        if same:
            return self.row
        found: dict[str, Any] = orjson.loads(self.line)
        return found


def entry_of(row: Row) -> Entry:
    """A row for a batch.

    Raises:
        InvalidError: a value has no form in JSON, or the row does not fit into a request.
    """
    given, line = _given_and_line(row)
    if len(line) > BODY_BYTES_MAX:
        raise InvalidError(
            f"a row does not fit into a request: it has {len(line)} bytes as JSON, a request "
            f"{BODY_BYTES_MAX} at most, and a row of a table 1 MiB; make its values smaller. Its fields are "
            f"{list(row)[:20]}",
            bytes=len(line),
        )
    return Entry(given, line)


def line_of(row: Row) -> bytes:
    """A row as JSON.

    Raises:
        InvalidError: a value has no form in JSON, or two keys have the same.
    """
    return _given_and_line(row)[1]


def _given_and_line(row: Row) -> tuple[dict[str, Any], bytes]:
    given: dict[str, Any] = {}
    try:
        given = dict(row) if type(row) is dict else _pairs_of(row)
        try:
            line = _dumps(given)
        except orjson.JSONEncodeError:
            named = _named(given, ())  # perhaps a key is not text
            line = _dumps(named)
    except (orjson.JSONEncodeError, TypeError, ValueError, OverflowError, RecursionError) as e:
        raise InvalidError(f"a row has no form in JSON: {e}; its fields are {list(given)[:20]}") from e
    nulls = line.count(b"null")
    # orjson writes null for a number that is not finite. If as many fields are None, there is none.
    if nulls and nulls != sum(value is None for value in given.values()):
        found = _not_finite(given)
        if found is not None:
            path, number = found
            raise _no_number(_text(path), number)
    return given, line


def _pairs_of(row: Any) -> dict[str, Any]:
    """The fields of what is a mapping, or pairs.

    Raises:
        InvalidError: it is neither: a text of two letters would pass for a pair.
    """
    if hasattr(row, "keys"):
        return dict(row)
    pairs = [] if isinstance(row, (str, bytes)) or not isinstance(row, Iterable) else list(row)
    if not pairs or not all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in pairs):
        raise InvalidError(
            f"a row is a mapping from column to value, and this is of type {type(row).__name__}: "
            f"{' '.join(repr(row)[:100].split())}. Arrow data are sent as a whole, and a DataFrame as "
            "pyarrow.Table.from_pandas(frame)"
        )
    return dict(pairs)


def _dumps(value: object) -> bytes:
    # Dates and times pass through, as orjson rounds an offset to minutes.
    return orjson.dumps(value, default=_form, option=orjson.OPT_PASSTHROUGH_DATETIME)


def _form(value: object) -> str:
    """The form that a column of the value's type reads, for what has none in JSON."""
    kind = type(value)
    if kind is datetime:
        return _time(value)  # type: ignore[arg-type]
    if kind is date or (kind is time and value.tzinfo is None):  # type: ignore[attr-defined]
        return value.isoformat()  # type: ignore[attr-defined, no-any-return]
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"{kind.__name__} is not supported")


def _time(value: datetime) -> str:
    """A time as ISO 8601, whose offsets are whole minutes; in UTC if the zone's is not."""
    if value.tzinfo is not None and value.tzinfo is not UTC:
        offset = value.utcoffset()
        if offset is not None and (offset.seconds % 60 or offset.microseconds):
            value = value.astimezone(UTC)
    return value.isoformat()


def _named(value: object, path: Path) -> object:
    """A value whose keys are text.

    Raises:
        InvalidError: two keys of a mapping are the same text.
    """
    if isinstance(value, dict):
        keys: dict[str, object] = {}
        named: dict[str, object] = {}
        for key, inner in value.items():
            name = _name(key, path)
            if name in keys:
                raise InvalidError(
                    f"{keys[name]!r} and {key!r} are the same key in JSON, {name!r}, and one value would be "
                    f"lost: rename one of them in {_text(path) or 'the row'}"
                )
            keys[name] = key
            named[name] = _named(inner, (*path, name))
        return named
    if isinstance(value, Enum):
        return _named(value.value, path)
    inside = [(step, _named(inner, (*path, step))) for step, inner in _inside(value)]
    if not inside:
        return value
    return [inner for _, inner in inside] if isinstance(value, (list, tuple)) else dict(inside)


def _name(key: object, path: Path) -> str:
    """The text of a key."""
    if isinstance(key, str) and type(key) is str:
        return key
    if isinstance(key, float) and not isfinite(key):
        raise _no_number(f"a key of {_text(path) or 'the row'}", key)
    if type(key) is datetime:
        return _time(key)
    made: dict[str, None] = orjson.loads(orjson.dumps({key: None}, option=orjson.OPT_NON_STR_KEYS))
    return next(iter(made))


def _not_finite(value: object) -> tuple[Path, float] | None:
    """A number without a form in JSON and where it is; None if there is none."""
    if isinstance(value, float):
        return None if isfinite(value) else ((), value)
    if isinstance(value, Enum):
        return _not_finite(value.value)
    for step, inner in _inside(value):
        found = None if type(inner) in LEAVES else _not_finite(inner)
        if found is not None:
            return (step, *found[0]), found[1]
    return None


def _inside(value: object) -> Iterator[tuple[object, object]]:
    """The values in a value, each with its key, name or index, as orjson goes through them."""
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, list) or type(value) is tuple:
        yield from enumerate(value)
    elif is_dataclass(value) and not isinstance(value, type):
        yield from ((f.name, getattr(value, f.name)) for f in fields(value) if not f.name.startswith("_"))


def _text(path: Path) -> str:
    """A path as text, such as `places[0].height`."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


def _no_number(what: str, number: float) -> InvalidError:
    return InvalidError(
        f"{what} is {number}, which JSON has no form for: write None, or send Arrow data, which keeps it "
        "(send with a pyarrow table)"
    )
