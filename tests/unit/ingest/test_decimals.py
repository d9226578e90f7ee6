"""Decimals of messages: exact or rejected, whatever their size, scale and form."""

from __future__ import annotations

from decimal import Context, Decimal
from fractions import Fraction

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tarn.core.batch import RawBatch
from tarn.core.decimals import decimals_of_text, rescaled, rescales
from tarn.core.decode import Decoded, Decoder
from tarn.core.spec import FieldSpec, MessageFormat
from tests.support.messages import arrow
from tests.unit.ingest.test_decode import batch

PLAIN = Context(prec=200, Emin=-10_000, Emax=10_000)
TARGETS = st.integers(0, 38).flatmap(
    lambda scale: st.integers(max(scale, 1), 38).map(lambda digits: pa.decimal128(digits, scale))
)
DIGITS = st.integers(0, 45).flatmap(lambda most: st.integers(0, 10**most)).map(str)
SIGNS, FRACTIONS = st.sampled_from(["", "-", "00"]), DIGITS.map(".{}".format) | st.just("")
TEXTS = st.builds("{}{}{}".format, SIGNS, DIGITS, FRACTIONS)
SOURCES = {pa.decimal32: 9, pa.decimal64: 18, pa.decimal128: 38, pa.decimal256: 76}


def wanted(value: Fraction, target: pa.DataType) -> Decimal | None:
    """The value as the type holds it; None if it does not."""
    whole = value * 10**target.scale
    if whole.denominator != 1 or abs(whole) >= 10**target.precision:
        return None
    return Decimal(int(whole)).scaleb(-target.scale, PLAIN)


@pytest.mark.long
@given(TEXTS, st.none() | st.integers(-90, 90), TARGETS)
@example("12345678901234567890123456789012345678", None, pa.decimal128(38, 10))
@example("1", -77, pa.decimal128(10, 2))
@example("1." + "0" * 41, None, pa.decimal128(10, 2))
@example("1", 38, pa.decimal128(38, 0))
def test_a_text_is_its_exact_value_or_none(digits: str, exponent: int | None, target: pa.DataType) -> None:
    text = digits if exponent is None else f"{digits}e{exponent}"
    value = Fraction(digits.rstrip(".")) * Fraction(10) ** (exponent or 0)
    try:
        got = decimals_of_text(pa.array([None, "0", text]), target).to_pylist()
    except ValueError:
        got = [None, 0, None]
    assert got == [None, 0, wanted(value, target)]


@pytest.mark.long
@given(st.sampled_from(sorted(SOURCES, key=SOURCES.__getitem__)), st.integers(-76, 76), TARGETS, st.data())
def test_a_decimal_of_another_type_is_its_exact_value_or_none(
    make: type[pa.DataType], power: int, target: pa.DataType, data: st.DataObject
) -> None:
    digits = SOURCES[make]
    source = make(digits, target.scale - power)
    edges = st.sampled_from([0, 1, 10 ** (digits - 1), 10**digits - 1, 1 - 10**digits])
    number = data.draw(edges | st.integers(1 - 10**digits, 10**digits - 1))
    held = pa.py_buffer(number.to_bytes(source.bit_width // 8, "little", signed=True))
    column = pa.Array.from_buffers(source, 1, [None, held])
    assert rescales(source, target)
    try:
        got = rescaled(column, target)[0].as_py()
    except ValueError:
        got = None
    assert got == wanted(Fraction(number) * Fraction(10) ** -source.scale, target)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1e-999999999", "more than 2 digits after the point"),
        ("1e-77", "more than 2 digits after the point"),
        ("1e99999999", "too many digits before the point"),
        ("1e99999999999999999999", "not a decimal number"),
        ("12345678901234567890123456789012345678", "digits before the point"),
        ("1_0", "not a decimal number"),
        ("\u0661", "not a decimal number"),
        ("nan", "not a decimal number"),
        (" 1", "not a decimal number"),
    ],
)
def test_a_text_beyond_the_type_is_a_bad_record_alone(text: str, reason: str) -> None:
    field = FieldSpec(name="d", type="decimal(10, 2)")
    messages: list[bytes | None] = [b'{"d":"%s"}' % v.encode() for v in ("1.5", text, "0e-999999999")]
    found = decoded(messages, field)
    assert found.rows["d"].to_pylist() == [Decimal("1.50"), Decimal("0.00")]
    assert list(found.bad) == [1]
    assert reason in found.bad[1]
    assert text in found.bad[1]


def test_a_number_beyond_the_type_is_a_bad_record_not_another_number() -> None:
    messages: list[bytes | None] = [b'{"d":1e-999999999}', b'{"d":12345678901234567890123456789012345678}']
    found = decoded(messages, FieldSpec(name="d", type="decimal(38, 10)"))
    assert list(found.bad) == [0, 1]


@pytest.mark.parametrize("scale", [-(2**31), -1_000_000_000, -100, 100, 1_000_000_000, 2**31 - 1])
def test_the_scale_of_an_arrow_type_may_be_any_number(scale: int) -> None:
    column = pa.Array.from_buffers(pa.decimal128(10, scale), 1, [None, pa.py_buffer(b"\5" + b"\0" * 15)])
    message = arrow(pa.record_batch([column], names=["d"]))
    found = decoded([message], FieldSpec(name="d", type="decimal(10, 2)"), MessageFormat(format="arrow"))
    assert found.rows.num_rows == 0
    assert "expected decimal(10, 2), found decimal128(10, " in found.bad[0]


def test_whole_numbers_of_arrow_fit_or_are_bad() -> None:
    messages: list[bytes | None] = [
        arrow(pa.record_batch([pa.array([n], pa.int64())], names=["d"])) for n in (10**7, 10**18)
    ]
    found = decoded(messages, FieldSpec(name="d", type="decimal(38, 30)"), MessageFormat(format="arrow"))
    assert found.rows["d"].to_pylist() == [Decimal(10**7)]
    assert "too many digits before the point" in found.bad[1]


def decoded(messages: list[bytes | None], field: FieldSpec, form: MessageFormat | None = None) -> Decoded:
    raw: RawBatch = batch(messages)
    return Decoder([field], source="t", trace=False, record_bytes_max=10_000, messages=form).decode(raw)
