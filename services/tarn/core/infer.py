"""Columns for a topic, inferred from a sample of its JSON messages.

The types are those that decoding takes for every value seen; what fits none is named. Nothing is read from
the names of fields.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow as pa

from tarn.core.column_types import (
    DEPTH_MAX,
    FIELD_NAME,
    STRUCT_FIELDS_MAX,
    ColumnType,
    ListOf,
    MapOf,
    Primitive,
    Struct,
)
from tarn.core.convert import convert
from tarn.core.spec import REST, TRACE_COLUMN, FieldSpec

MAP_KEYS_MIN = 20
"""Objects are maps if they have this many keys in all, each few of them, and values of one form."""
MAP_KEYS_SHARE = 0.5
UNSIGNED = "decimal(20, 0)"
"""Integers up to 2^64, which a long does not hold."""
WIDE = "decimal(38, 0)"
"""Integers of up to 38 digits otherwise; longer ones are read as doubles."""
WIDE_END = 10**38
_NUMBERS = ("long", "unsigned", "wide", "double")
_LONG_NUMBER = re.compile(rb"\d{19}")
_LONG_DIGITS_MAX = 40
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,9})?")
_ZONED = re.compile(_TIME.pattern + r"(Z|[+-]\d\d:\d\d)")
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_TEXTS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("date", _DATE),
    ("timestamp", _TIME),
    ("timestamptz", _ZONED),
    ("uuid", _UUID),
)
_ZONED_TEXTS = (("timestamptz", _ZONED),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inferred:
    """Columns of a sample.

    Attributes:
        fields: columns, in the order in which the messages have them.
        notes: what the columns cannot hold, or could not be decided, for people.
        over: number of keys that have no column because there are too many.
        taken: keys that have no column because the table has their names for something else.
    """

    fields: tuple[FieldSpec, ...]
    notes: tuple[str, ...]
    over: int = 0
    taken: tuple[str, ...] = ()


def infer(messages: Iterable[bytes | None]) -> Inferred:
    """Infer columns from messages; those that are not JSON objects are passed over."""
    notes: list[str] = []
    fields: list[FieldSpec] = []
    taken: dict[str, str] = {}
    for key, kind in _types_of(messages, notes, guess=True):
        if "." in key or key in ("", REST):
            notes.append(f"{key!r}: left out, as the path of a column cannot name this key")
            continue
        name = _column_name(key)
        if name.lower() in taken:
            notes.append(f"{key!r}: left out, as {taken[name.lower()]!r} would have the same column name")
            continue
        taken[name.lower()] = key
        fields.append(
            FieldSpec.model_validate({"name": name, "type": str(kind), "from": None if name == key else key})
        )
    return Inferred(fields=tuple(fields), notes=tuple(notes))


def key_types(
    messages: Iterable[bytes | None], *, guess: bool = True
) -> tuple[dict[str, ColumnType], list[str]]:
    """Types of the keys of messages; those that are not JSON objects are passed over.

    Args:
        messages: messages of a sample.
        guess: whether somebody looks at the result before it is used: then objects may be taken for maps, and
            texts for dates, times without a zone and UUIDs. Otherwise texts are times with a zone or texts.

    Returns:
        Key to type, in the order of the messages, and what the types cannot hold, for people.
    """
    notes: list[str] = []
    return dict(_types_of(messages, notes, guess=guess)), notes


def _types_of(
    messages: Iterable[bytes | None], notes: list[str], *, guess: bool
) -> Iterator[tuple[str, ColumnType]]:
    """Keys and their types, one after the other; `notes` receives what they cannot hold."""
    seen = _Seen(guess=guess)
    for message in messages:
        try:
            value = _read(message or b"")
        except orjson.JSONDecodeError:
            continue
        if isinstance(value, dict):
            seen.add(value)
    for key, part in seen.fields.items():
        kind = _kind(part, key, 1, notes.append)
        if kind is not None:
            yield key, kind


def _read(message: bytes) -> Any:
    """A message; whole numbers beyond 64 bits, which `orjson` makes doubles, keep their digits.

    Raises:
        orjson.JSONDecodeError: it is not JSON.
    """
    value = orjson.loads(message)
    if _LONG_NUMBER.search(message) is None:
        return value

    def whole(text: str) -> float:
        return int(text) if len(text) <= _LONG_DIGITS_MAX else float(text)

    try:
        return json.loads(message, parse_int=whole)
    except RecursionError:
        return value


@dataclass(slots=True)
class _Seen:
    """What was seen at one place of the messages.

    Attributes:
        forms: number of values per form: boolean, long, unsigned, wide, double, text, list, object.
        texts: the texts.
        fields: key to what was seen below it, in objects.
        element: what was seen in lists.
        guess: as for `key_types`.
    """

    forms: Counter[str] = field(default_factory=Counter)
    texts: list[str] = field(default_factory=list)
    fields: dict[str, _Seen] = field(default_factory=dict)
    element: _Seen | None = None
    guess: bool = True

    def add(self, value: Any, depth: int = 0) -> None:
        """Count one value; what is nested too deeply is only counted as a whole."""
        if value is None:
            return
        if isinstance(value, bool):
            self.forms["boolean"] += 1
        elif isinstance(value, int):
            self.forms[_whole_form(value)] += 1
        elif isinstance(value, float):
            self.forms["double"] += 1
        elif isinstance(value, str):
            self.forms["text"] += 1
            self.texts.append(value)
        elif isinstance(value, list):
            self.forms["list"] += 1
            self.element = self.element or _Seen(guess=self.guess)
            for inner in value if depth <= DEPTH_MAX else ():
                self.element.add(inner, depth + 1)
        else:
            self.forms["object"] += 1
            for key, inner in value.items() if depth <= DEPTH_MAX else ():
                self.fields.setdefault(key, _Seen(guess=self.guess)).add(inner, depth + 1)


def _whole_form(value: int) -> str:
    if -(2**63) <= value < 2**64:
        return "long" if value < 2**63 else "unsigned"
    return "wide" if -WIDE_END < value < WIDE_END else "double"


def _kind(seen: _Seen, path: str, depth: int, note: Callable[[str], None]) -> ColumnType | None:
    """The type for what was seen; None if there is none, which is noted."""
    form = _form(seen, path, note)
    if form is None:
        note(f"{path!r}: left out, as every value is null or empty: its type is unknown")
        return None
    if form in ("list", "object") and depth > DEPTH_MAX:
        note(f"{path!r}: left out, as it is nested more than {DEPTH_MAX} levels deep")
        return None
    if form == "list":
        element = _kind(seen.element or _Seen(), f"{path}[]", depth + 1, note)
        return None if element is None else ListOf(element)
    return _object_kind(seen, path, depth, note) if form == "object" else Primitive(form)


def _form(seen: _Seen, path: str, note: Callable[[str], None]) -> str | None:
    """The commonest form, numbers counted as one; a primitive one as the name of its type."""
    forms = Counter(seen.forms)
    numbers = {name: forms.pop(name, 0) for name in _NUMBERS}
    forms["number"] = sum(numbers.values())
    found = [(name, count) for name, count in forms.most_common() if count]
    if not found:
        return None
    form, count = found[0]
    if len(found) > 1:
        others = " and ".join(f"{name} in {more:,}" for name, more in found[1:])
        note(f"{path!r}: {form} in {count:,} values, {others}: the latter would be bad records")
    if form == "text":
        texts = _TEXTS if seen.guess else _ZONED_TEXTS
        return next((name for name, pattern in texts if _all_are(name, pattern, seen.texts)), "string")
    if form != "number":
        return form
    if numbers["double"]:
        return "double"
    if numbers["wide"]:
        return WIDE
    return UNSIGNED if numbers["unsigned"] else "long"


def _all_are(kind: str, pattern: re.Pattern[str], texts: Sequence[str]) -> bool:
    """Whether each of the texts looks like a value of this type, and is one."""
    if not all(map(pattern.fullmatch, texts)):
        return False
    _, wrong = convert(FieldSpec(name="text", type=kind), pa.array(texts, pa.string()))
    return not wrong


def _object_kind(seen: _Seen, path: str, depth: int, note: Callable[[str], None]) -> ColumnType | None:
    values = _value_of_all(seen.fields) if seen.guess else None
    if values is not None and _is_map(seen):
        value = _kind(values, f"{path}.*", depth + 1, note)
        return None if value is None else MapOf(value)
    fields: list[tuple[str, ColumnType]] = []
    lower: set[str] = set()
    for key, part in seen.fields.items():
        kind = _kind(part, f"{path}.{key}", depth + 1, note)
        if kind is None:
            continue
        if not re.fullmatch(FIELD_NAME, key):
            note(f"{path}.{key!r}: left out, as a field of a struct has letters, digits and _ in its name")
        elif key.lower() in lower:
            note(f"{path}.{key!r}: left out, as another field differs by upper and lower case only")
        else:
            fields.append((key, kind))
            lower.add(key.lower())
    if len(fields) > STRUCT_FIELDS_MAX:
        note(f"{path!r}: left out, as its {len(fields):,} fields are more than {STRUCT_FIELDS_MAX:,}")
        return None
    if not fields:
        note(f"{path!r}: left out, as nothing in these objects can be read")
        return None
    return Struct(tuple(fields))


def _is_map(seen: _Seen) -> bool:
    if not all(re.fullmatch(FIELD_NAME, key) for key in seen.fields):
        return True
    held = sum(part.forms.total() for part in seen.fields.values())
    sparse = held < MAP_KEYS_SHARE * len(seen.fields) * seen.forms["object"]
    return sparse and len(seen.fields) >= MAP_KEYS_MIN


def _value_of_all(fields: Mapping[str, _Seen]) -> _Seen | None:
    """What was seen below all keys as one; None if their values have different forms."""
    whole = _Seen()
    for part in fields.values():
        _merge(whole, part)
    forms = {"number" if form in _NUMBERS else form for form in whole.forms}
    return whole if len(forms) == 1 else None


def _merge(whole: _Seen, part: _Seen) -> None:
    whole.forms.update(part.forms)
    whole.texts += part.texts
    for key, inner in part.fields.items():
        _merge(whole.fields.setdefault(key, _Seen()), inner)
    if part.element is not None:
        whole.element = whole.element or _Seen()
        _merge(whole.element, part.element)


def _column_name(key: str) -> str:
    name = re.sub(r"[^A-Za-z0-9_]", "_", key)[:128]
    if not re.fullmatch(FIELD_NAME, name):
        name = f"_{name}"[:128]
    return f"{name}_" if name.lower() == TRACE_COLUMN else name
