"""Extreme values of every type, as JSON, and what a table must hold for them; computed in plain Python.

An oracle: it shares no code with the decoder, the writer or the library that computes partition values.
"""

from __future__ import annotations

import base64
import struct
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import mmh3
from hypothesis import strategies as st

DAY = 86_400_000_000
DAYS = (
    date.min.toordinal() - date(1970, 1, 1).toordinal(),
    date.max.toordinal() - date(1970, 1, 1).toordinal(),
)
MICROS = (DAYS[0] * DAY, (DAYS[1] + 1) * DAY - 1)


@dataclass(frozen=True)
class Kind:
    """One column type.

    Attributes:
        type: Iceberg's name of the type.
        extremes: JSON values at and beyond the limits.
        any: strategy for random ones.
        stored: JSON value -> stored value (days, microseconds, unscaled numbers, bytes); None if it is bad.
        order: sort key with Iceberg's order.
        bound: stored value -> the bytes of a bound.
        encoding: encoding in the spec.
    """

    type: str
    extremes: tuple[Any, ...]
    any: st.SearchStrategy[Any]
    stored: Callable[[Any], Any]
    bound: Callable[[Any], bytes]
    encoding: str = "iso8601"


def whole(bits: int) -> Kind:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return Kind(
        type="int" if bits == 32 else "long",
        extremes=(low, low - 1, high, high + 1, -1, 0, 1, 2**80),
        any=st.integers(low, high) | st.integers(low - 2**16, low + 2**16),
        stored=lambda v: v if low <= v <= high else None,
        bound=lambda v: struct.pack("<i" if bits == 32 else "<q", v),
    )


def floating(name: str, form: str, largest: float) -> Kind:
    def stored(value: float) -> float | None:
        try:
            found: float = struct.unpack(form, struct.pack(form, value))[0]
        except OverflowError:
            return None
        return found

    return Kind(
        type=name,
        extremes=(0.0, -0.0, largest, -largest, 5e-324, 1e300, -1e300, 3.4e38, 3.5e38, 1),
        any=st.floats(allow_nan=False, allow_infinity=False),
        stored=stored,
        bound=lambda v: struct.pack(form, v),
    )


def decimal(precision: int, scale: int) -> Kind:
    most = 10**precision - 1

    def text(unscaled: int) -> str:
        return str(Decimal((int(unscaled < 0), tuple(int(d) for d in str(abs(unscaled))), -scale)))

    def stored(value: str) -> int | None:
        sign, digits, exponent = Decimal(value).as_tuple()
        assert isinstance(exponent, int)
        number = int("".join(map(str, digits))) * 10 ** (exponent + scale) * (-1 if sign else 1)
        return number if abs(number) <= most else None

    return Kind(
        type=f"decimal({precision}, {scale})",
        extremes=tuple(text(n) for n in (most, -most, 0, -1, 1, most + 1, -most - 1, -most + 1)),
        any=st.integers(-most, most).map(text),
        stored=stored,
        bound=lambda v: v.to_bytes((v if v >= 0 else -v - 1).bit_length() // 8 + 1, "big", signed=True),
    )


def text_kind() -> Kind:
    return Kind(
        type="string",
        extremes=(
            "",
            "\U0010ffff" * 20,
            "a" * 15 + "\ud7ff" + "b",
            "\x00",
            "a" * 6_000,
            "é" * 17,
            "/ ?#%+=",
            ".",
        ),
        any=st.text(st.characters(codec="utf-8"), max_size=40),
        stored=lambda v: v,
        bound=lambda v: v.encode(),
    )


def bytes_kind() -> Kind:
    return Kind(
        type="binary",
        extremes=("%", *(base64.b64encode(v).decode() for v in (b"", b"\xff" * 40, b"\x00", b"a" * 5_000))),
        any=st.binary(max_size=40).map(lambda v: base64.b64encode(v).decode()),
        stored=lambda v: None if v == "%" else base64.b64decode(v),
        bound=lambda v: v,
    )


def uuid_kind() -> Kind:
    return Kind(
        type="uuid",
        extremes=(str(uuid.UUID(int=0)), str(uuid.UUID(int=2**128 - 1)), "nope"),
        any=st.uuids().map(str),
        stored=lambda v: None if v == "nope" else uuid.UUID(v).bytes,
        bound=lambda v: v,
    )


def date_kind() -> Kind:
    def stored(value: str) -> int | None:
        try:
            return date.fromisoformat(value).toordinal() - date(1970, 1, 1).toordinal()
        except ValueError:
            return None

    return Kind(
        type="date",
        extremes=(
            "0001-01-01",
            "9999-12-31",
            "0000-12-31",
            "1969-12-31",
            "1970-01-01",
            "2024-02-30",
            "10000-01-01",
        ),
        any=st.dates().map(lambda d: d.isoformat()),
        stored=stored,
        bound=lambda v: struct.pack("<i", v),
    )


def epoch(name: str, encoding: str, unit: int) -> Kind:
    """Numbers since 1970: milliseconds written as microseconds, .NET's minimum, and the limits of 64 bits."""

    def stored(value: int) -> int | None:
        return value * unit if MICROS[0] <= value * unit <= MICROS[1] else None

    low, high = MICROS[0] // unit, MICROS[1] // unit
    return Kind(
        type=name,
        encoding=encoding,
        extremes=(low, low - 1, high, high + 1, -1, 0, 1_763_712_000_000_000, 2**63 - 1, -(2**63)),
        any=st.integers(low, high) | st.integers(-(2**63), 2**63 - 1),
        stored=stored,
        bound=lambda v: struct.pack("<q", v),
    )


def clock(name: str) -> Kind:
    """Text: a timestamp with or without an offset."""
    zone = "Z" if name == "timestamptz" else ""

    def stored(value: str) -> int | None:
        moment, offset = value.removesuffix("Z"), 0
        if moment[-6] in "+-" and name == "timestamptz":
            hours, minutes = int(moment[-5:-3]), int(moment[-2:])
            offset = (hours * 60 + minutes) * (-1 if moment[-6] == "-" else 1)
            moment = moment[:-6]
        try:
            found = (datetime.fromisoformat(moment) - datetime(1970, 1, 1)) // timedelta(microseconds=1)
        except ValueError:
            return None
        found -= offset * 60_000_000
        return found if MICROS[0] <= found <= MICROS[1] else None

    ends = [
        "0001-01-01T00:00:00",
        "9999-12-31T23:59:59.999999",
        "1969-12-31T23:59:59.999999",
        "0000-12-31T23:59:59",
    ]
    shifted = ["0001-01-01T00:00:00+02:00", "9999-12-31T23:59:59-02:00", "0001-01-01T01:00:00+01:00"]
    return Kind(
        type=name,
        extremes=tuple(f"{e}{zone}" for e in ends) + tuple(shifted if zone else ()),
        any=st.datetimes().map(lambda t: t.isoformat() + zone),
        stored=stored,
        bound=lambda v: struct.pack("<q", v),
    )


def boolean() -> Kind:
    return Kind(
        type="boolean",
        extremes=(True, False),
        any=st.booleans(),
        stored=lambda v: v,
        bound=lambda v: bytes([v]),
    )


KINDS: dict[str, Kind] = {
    "boolean": boolean(),
    "int": whole(32),
    "long": whole(64),
    "float": floating("float", "<f", struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]),
    "double": floating("double", "<d", 1.7976931348623157e308),
    "decimal(9, 2)": decimal(9, 2),
    "decimal(18, 0)": decimal(18, 0),
    "decimal(38, 10)": decimal(38, 10),
    "string": text_kind(),
    "binary": bytes_kind(),
    "uuid": uuid_kind(),
    "date": date_kind(),
    "timestamp": clock("timestamp"),
    "timestamptz": clock("timestamptz"),
    "timestamp in seconds": epoch("timestamp", "epoch-seconds", 1_000_000),
    "timestamptz in milliseconds": epoch("timestamptz", "epoch-millis", 1_000),
    "timestamptz in microseconds": epoch("timestamptz", "epoch-micros", 1),
}


def _numbers(kind: str) -> tuple[int, int] | None:
    """Minimum and maximum of a numeric type, unscaled; None for others."""
    if kind in ("int", "long"):
        bits = 32 if kind == "int" else 64
        return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    if kind.startswith("decimal"):
        most = 10 ** int(kind[8:].split(",")[0]) - 1
        return -most, most
    return None


def partition_value(rule: str, kind: str, stored: Any) -> tuple[bool, Any]:
    """Whether the stored value has a partition value, and that value: the specification as Python."""
    if stored is None:
        return True, None
    name, _, width = rule.partition("[")
    if name == "identity":
        return True, stored
    if name == "truncate":
        step = int(width[:-1])
        ends = _numbers(kind)
        if ends is None:
            return True, stored[:step]
        found = stored // step * step
        return ends[0] <= found, found
    if name == "bucket":
        return True, (mmh3.hash(_hashed(kind, stored)) & 0x7FFFFFFF) % int(width[:-1])
    days = stored if kind == "date" else stored // DAY
    if name == "day":
        return True, days
    if name == "hour":
        return True, stored // 3_600_000_000
    at = date.fromordinal(days + date(1970, 1, 1).toordinal())
    years = at.year - 1970
    return True, years if name == "year" else years * 12 + at.month - 1


def _hashed(kind: str, stored: Any) -> bytes:
    if isinstance(stored, str):
        return stored.encode()
    if isinstance(stored, bytes):
        return stored
    if kind.startswith("decimal"):
        bits = (stored if stored >= 0 else -stored - 1).bit_length()
        return bytes(stored.to_bytes(bits // 8 + 1, "big", signed=True))
    return struct.pack("<q", stored)
