"""Decimals of messages, exactly: a value of any size or scale becomes the column's, or is rejected.

Arrow's own casts (26.0) are not used where a power of ten could be outside their tables or exceed 128 bits:
they then return other numbers (`12345678901234567890123456789012345678` as `decimal(38, 10)`) or end the
process (`1e-999999999`).
"""

from __future__ import annotations

import re
from decimal import Context, Decimal, Inexact, InvalidOperation

import pyarrow as pa
import pyarrow.compute as pc

DIGITS_MAX = 38
WIDE_DIGITS_MAX = 76
"""Digits of Arrow's widest decimal, and the largest power of ten by which it is rescaled."""
FRACTION_DIGITS = 18
"""Up to so many digits after the point, Arrow reads a text whatever the type's scale."""
_TEXT = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,18})?", re.ASCII)
_EXACT = Context(prec=DIGITS_MAX, Emin=-DIGITS_MAX, Emax=DIGITS_MAX, traps=[Inexact, InvalidOperation])


def decimals_of_text(column: pa.Array, target: pa.DataType) -> pa.Array:
    """Numbers as text, with or without an exponent, as decimals.

    Args:
        column: texts.
        target: type of the result.

    Raises:
        ArrowException, ValueError: a text is no number, or has more digits than the type.
    """
    fraction = max(target.scale, FRACTION_DIGITS)
    whole = DIGITS_MAX - fraction  # Rescaled to no more than 38 digits.
    plain = pc.match_substring_regex(column, rf"^[+-]?\d{{0,{whole}}}(\.\d{{0,{fraction}}})?$")
    others = pc.indices_nonzero(pc.invert(plain)).to_pylist()
    if not others:
        return column.cast(target)
    values = pc.if_else(plain, column, None).cast(target).to_pylist()
    for i in others:
        values[i] = _exact(column[i].as_py(), target)
    return pa.array(values, target)


def rescales(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether `rescaled` takes decimals of this type: the scale of a message's type may be any number."""
    return abs(int(target.scale) - int(source.scale)) <= WIDE_DIGITS_MAX


def rescaled(column: pa.Array, target: pa.DataType) -> pa.Array:
    """Decimals as decimals of another type.

    Args:
        column: decimals, of a type that `rescales`.
        target: type of the result.

    Raises:
        ArrowException, ValueError: one has more digits than the type.
    """
    scale = column.type.scale
    power = target.scale - scale
    if column.type.bit_width <= 128 and power >= -DIGITS_MAX and column.type.precision + power <= DIGITS_MAX:
        return column.cast(target)
    digits = min(max(target.precision - target.scale + scale, 1), WIDE_DIGITS_MAX)
    try:
        small = column.cast(pa.decimal256(digits, scale))
    except pa.ArrowInvalid:
        raise ValueError("it has too many digits before the point") from None
    try:
        return small.cast(pa.decimal256(WIDE_DIGITS_MAX, target.scale)).cast(target)
    except pa.ArrowInvalid:
        raise ValueError("it has too many digits") from None


def _exact(text: str, target: pa.DataType) -> Decimal:
    if _TEXT.fullmatch(text) is None:
        raise ValueError("it is not a decimal number")
    try:
        return Decimal(text).quantize(Decimal(1).scaleb(-target.scale), context=_EXACT)
    except Inexact:
        raise ValueError(f"it has more than {target.scale} digits after the point") from None
    except InvalidOperation:
        raise ValueError("it has too many digits before the point") from None
