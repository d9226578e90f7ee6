"""Casts that a spec's `mapping` asks for: text as a number or truth value, and these as text.

They work on columns. What is read is exactly what JSON writes for a value of the type; anything else is
rejected with the reason, and so is what would change: a cast to `long` takes `"12"`, not `"12.5"` or `"012"`.
"""

from __future__ import annotations

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tarn.core.cast_rules import EPOCHS, becomes_text, is_text
from tarn.core.convert import cast_halves, convert
from tarn.core.json_values import EXACT_FLOAT_END, is_whole
from tarn.core.spec import FieldSpec

SHOWN_CHARS_MAX = 60
RAW = pa.binary()
"""Type of a value of JSON as it was sent, before a cast."""
_WHOLE = r"^-?(0|[1-9]\d*)$"
_POINT_ZERO = r"^-?\d{1,15}\.0+$"
"""Whole numbers with a point that a double holds exactly."""
_NUMBER = r"^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$"


def cast_json(field: FieldSpec, raw: pa.Array) -> tuple[pa.Array, dict[int, str]]:
    """Cast values of JSON.

    Args:
        field: column of the spec.
        raw: `RAW` values, one per message; null where a message has none.

    Returns:
        The column in the field's type, and {row index: reason} of the rejected values.
    """
    reasons: dict[int, str] = {}
    raw = _without(raw, pc.equal(raw, b"null"))
    first = pc.binary_slice(raw, 0, 1)
    quoted = pc.equal(first, b'"')
    plain = pc.if_else(quoted, pc.binary_slice(raw, 1, -1), raw)
    texts = _unescaped(field, plain, raw, quoted, reasons).cast(pa.string())
    truth = pc.is_in(raw, pa.array([b"true", b"false"], RAW))
    nested = pc.is_in(first, pa.array([b"{", b"["], RAW))
    wrong = nested
    if not _takes_truth(field):
        wrong = pc.or_(wrong, truth)
    if not _takes_numbers(field):
        numbers = pc.invert(pc.or_(pc.or_(quoted, truth), nested))
        wrong = pc.or_(wrong, numbers)
    for i in _where(wrong):
        reasons[i] = f"{field.name}: expected {_expected(field)}, found {_found(raw[i].as_py())}"
    return _converted(field, _without(texts, wrong), reasons)


def cast_typed(field: FieldSpec, column: pa.Array) -> tuple[pa.Array, dict[int, str]] | None:
    """Cast values that have a type of their own.

    Args:
        field: column of the spec.
        column: the values, without dictionary or extension type.

    Returns:
        As `cast_json`; None if the values need no cast, or none helps.
    """
    if is_text(column.type):
        if field.type in ("string", "uuid", "binary"):
            return None
        return _converted(field, column.cast(pa.string()), {})
    if field.type != "string" or not becomes_text(column.type):
        return None
    texts = column.cast(pa.string())
    if pa.types.is_timestamp(column.type):
        texts = pc.replace_substring(texts, " ", "T", max_replacements=1)
    return _converted(field, texts, {})


def _converted(field: FieldSpec, texts: pa.Array, reasons: dict[int, str]) -> tuple[pa.Array, dict[int, str]]:
    """Texts in the field's type.

    Args:
        field: column of the spec.
        texts: the texts; null where there is none.
        reasons: {row index: reason} of values that are rejected already.
    """
    if field.type == "boolean":
        texts = _kept(field, texts, pc.is_in(texts, pa.array(["true", "false"])), "true or false", reasons)
        source = pc.equal(texts, "true")
    elif field.type in ("int", "long") or field.encoding in EPOCHS:
        source = _whole(field, texts, reasons)
    elif field.type in ("float", "double"):
        source = _doubles(field, texts, reasons)
    elif field.type.startswith("decimal"):
        source = _numbers(field, texts, reasons)
    else:
        source = texts
    converted, wrong = convert(field, source)
    # A rejected value is null by now: that it is missing is not the reason.
    return converted, wrong | reasons


def _numbers(field: FieldSpec, texts: pa.Array, reasons: dict[int, str]) -> pa.Array:
    return _kept(field, texts, pc.match_substring_regex(texts, _NUMBER), "a number", reasons)


def _doubles(field: FieldSpec, texts: pa.Array, reasons: dict[int, str]) -> pa.Array:
    numbers = _numbers(field, texts, reasons).cast(pa.float64())
    huge = pc.is_inf(numbers)
    for i in _where(huge):
        reasons[i] = f"{field.name}: the number {_cut(texts[i].as_py())} is too large"
    return _without(numbers, huge)


def _whole(field: FieldSpec, texts: pa.Array, reasons: dict[int, str]) -> pa.Array:
    """Whole numbers; those with a point or an exponent as far as a double holds them exactly."""
    plain = pc.match_substring_regex(texts, _WHOLE)
    parts: list[pa.Array] = []
    cast_halves(field, _without(texts, pc.invert(plain)), 0, pa.int64(), parts, reasons, cast=_longs)
    found = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
    other = _without(texts, plain)
    if other.null_count == len(other):
        return found
    numbers = _kept(field, other, pc.match_substring_regex(other, _NUMBER), "a whole number", reasons)
    doubles = numbers.cast(pa.float64())
    exact = pc.and_(pc.equal(pc.floor(doubles), doubles), pc.less(pc.abs(doubles), EXACT_FLOAT_END))
    # A double rounds some texts to a whole number: `1e-400` is not 0. Those that end in `.0` are exact.
    doubtful = pc.and_(exact, pc.invert(pc.match_substring_regex(numbers, _POINT_ZERO)))
    if rounded := [i for i in _where(doubtful) if not is_whole(numbers[i].as_py())]:
        mask = [True] * len(exact)
        for i in rounded:
            mask[i] = False
        exact = pc.and_(exact, pa.array(mask))
    kept = _kept(field, numbers, exact, "a whole number", reasons)
    return pc.coalesce(found, _without(doubles, kept.is_null()).cast(pa.int64()))


def _longs(texts: pa.Array) -> pa.Array:
    try:
        return texts.cast(pa.int64())
    except pa.ArrowInvalid:
        raise ValueError("it does not fit 64 bits") from None


def _kept(
    field: FieldSpec, texts: pa.Array, fits: pa.Array, expected: str, reasons: dict[int, str]
) -> pa.Array:
    """The texts that fit, the others null with a reason."""
    wrong = pc.invert(fits)
    for i in _where(pc.and_(wrong, texts.is_valid())):
        reasons[i] = f"{field.name}: {_cut(repr(texts[i].as_py()))} is no {field.type}: expected {expected}"
    return _without(texts, wrong)


def _unescaped(
    field: FieldSpec, plain: pa.Array, raw: pa.Array, quoted: pa.Array, reasons: dict[int, str]
) -> pa.Array:
    """The contents of quotes; those with escapes, which few have, one by one."""
    escaped = pc.and_(quoted, pc.match_substring(plain, b"\\"))
    rows = _where(escaped)
    if not rows:
        return plain
    texts: list[bytes | None] = []
    for i in rows:
        try:
            texts.append(orjson.loads(raw[i].as_py()).encode())
        except (orjson.JSONDecodeError, UnicodeEncodeError) as e:
            texts.append(None)
            reasons[i] = f"{field.name}: not JSON: {e}"
    return pc.replace_with_mask(plain, pc.fill_null(escaped, False), pa.array(texts, RAW))


def _takes_truth(field: FieldSpec) -> bool:
    return field.type in ("string", "boolean")


def _takes_numbers(field: FieldSpec) -> bool:
    numbers = ("string", "int", "long", "float", "double")
    return field.type in numbers or field.type.startswith("decimal") or field.encoding in EPOCHS


def _expected(field: FieldSpec) -> str:
    if field.type == "string":
        return "text, a number or a truth value"
    if field.type == "boolean":
        return "true or false"
    return "a number" if _takes_numbers(field) else "text"


def _found(raw: bytes) -> str:
    text = raw.decode("utf-8", "replace")
    kinds = {"{": "an object", "[": "a list", "t": "a truth value", "f": "a truth value"}
    return kinds.get(text[:1], f"the number {_cut(text)}")


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_CHARS_MAX else f"{text[:SHOWN_CHARS_MAX]}..."


def _without(column: pa.Array, wrong: pa.Array) -> pa.Array:
    """The column with null where `wrong` is true."""
    return pc.if_else(pc.fill_null(wrong, False), pa.scalar(None, column.type), column)


def _where(mask: pa.Array) -> list[int]:
    found: list[int] = pc.indices_nonzero(pc.fill_null(mask, False)).to_pylist()
    return found
