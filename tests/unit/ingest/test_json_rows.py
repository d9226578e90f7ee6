"""Typed rows as JSON: read again they are the same rows, and what JSON has no form for is named."""

from __future__ import annotations

import datetime as dt
import json
import math
import re
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tarn.core import json_rows as module
from tarn.core.column_types import parse_type
from tarn.core.convert import target_type
from tarn.core.json_parser import JsonParser
from tarn.core.json_rows import JsonRows, json_rows
from tarn.core.spec import FieldSpec

UTC = dt.UTC
FINITE = {"allow_nan": False, "allow_infinity": False}
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, **FINITE),  # type: ignore[arg-type]
    "double": st.floats(**FINITE),  # type: ignore[arg-type]
    "date": st.dates(),
    "timestamp": st.datetimes(),
    "timestamptz": st.datetimes(timezones=st.just(UTC)),
    "string": st.text(st.characters(exclude_categories=["Cs"])),
    "uuid": st.binary(min_size=16, max_size=16),
    "binary": st.binary(max_size=40),
    "decimal(38, 0)": st.integers(-(10**38) + 1, 10**38 - 1).map(Decimal),
    "decimal(38, 38)": st.integers(-(10**38) + 1, 10**38 - 1).map(lambda n: Decimal((n < 0, digits(n), -38))),
    "decimal(9, 2)": st.integers(-(10**9) + 1, 10**9 - 1).map(lambda n: Decimal((n < 0, digits(n), -2))),
}


def digits(number: int) -> tuple[int, ...]:
    return tuple(map(int, str(abs(number))))


def values_of(kind: str) -> st.SearchStrategy[Any]:
    plain = st.none() | VALUES[kind]
    return st.tuples(
        plain,
        st.none() | st.lists(plain, max_size=3),
        st.none() | st.dictionaries(VALUES["string"], plain, max_size=3).map(lambda d: list(d.items())),
        st.none() | st.fixed_dictionaries({"a": plain, "b": st.none() | st.lists(plain, max_size=2)}),
        st.none()
        | st.lists(
            st.none() | st.fixed_dictionaries({"m": st.none() | st.lists(st.tuples(st.just("k"), plain))}),
            max_size=2,
        ).filter(lambda ones: all(one is None or len(one["m"] or ()) < 2 for one in ones)),
    )


def fields_of(kind: str) -> list[FieldSpec]:
    kinds = (
        kind,
        f"list<{kind}>",
        f"map<string, {kind}>",
        f"struct<a: {kind}, b: list<{kind}>>",
        f"list<struct<m: map<string, {kind}>>>",
    )
    return [FieldSpec(name=f"c{n}", type=one) for n, one in enumerate(kinds)]


def table_of(fields: list[FieldSpec], rows: list[Any]) -> pa.Table:
    """Rows as decoding leaves them."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(fields)
    return pa.Table.from_arrays(
        [
            pa.array(column, target_type(parse_type(str(field.type))))
            for field, column in zip(fields, columns, strict=True)
        ],
        names=[field.name for field in fields],
    )


def written(fields: list[FieldSpec], rows: list[Any], **more: int) -> JsonRows:
    limits = {"row_bytes_max": 1 << 20, "bytes_max": 1 << 24} | more
    return json_rows(fields, table_of(fields, rows), **limits)


@pytest.mark.long
@pytest.mark.parametrize("kind", VALUES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_every_type_reads_as_it_was(kind: str, data: st.DataObject) -> None:
    fields = fields_of(kind)
    rows = data.draw(st.lists(values_of(kind), min_size=1, max_size=4))
    wanted = table_of(fields, rows)
    both = pa.concat_tables([table_of(fields, rows[:1]), wanted])
    before = both.combine_chunks()  # of which a slice has offsets that begin elsewhere
    found = json_rows(fields, before.slice(1), row_bytes_max=1 << 20, bytes_max=1 << 24)
    assert found.bad == {}
    parsed = JsonParser(fields).parse([found.texts[at] for at in range(len(rows))])
    assert parsed.bad == {}
    assert pa.Table.from_arrays(parsed.columns, names=wanted.column_names).equals(wanted)


def test_values_have_the_forms_that_others_read_too() -> None:
    values: dict[str, Any] = {
        "decimal(38, 10)": Decimal("0.0000000001"),
        "timestamptz": dt.datetime(1, 1, 1, 0, 0, 0, 5, tzinfo=UTC),
        "timestamp": dt.datetime(9999, 12, 31, 23, 59, 59),
        "date": dt.date(33, 4, 3),
        "uuid": bytes(range(16)),
        "binary": b"\xff\xfe",
    }
    fields = [FieldSpec(name=f"c{n}", type=kind) for n, kind in enumerate(values)]
    found = written(fields, [tuple(values.values())])
    assert list(json.loads(found.texts[0]).values()) == [
        "0.0000000001",
        "0001-01-01T00:00:00.000005Z",
        "9999-12-31T23:59:59.000000",
        "0033-04-03",
        "00010203-0405-0607-0809-0a0b0c0d0e0f",
        "//4=",
    ]


def test_bits_that_comparison_does_not_see_stay_too() -> None:
    fields = [FieldSpec(name="f", type="double"), FieldSpec(name="g", type="float")]
    found = written(fields, [(-0.0, -0.0)])
    columns = JsonParser(fields).parse([found.texts[0]]).columns
    assert [math.copysign(1, column[0].as_py()) for column in columns] == [-1, -1]


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        ("double", math.nan, "v: nan has no form in JSON"),
        ("float", -math.inf, "v: -inf has no form in JSON"),
        ("list<double>", [1.0, math.inf], r"v\[\]: inf has"),
        ("struct<a: map<string, float>>", {"a": [("k", math.nan)]}, r"v\.a\.\*: nan has"),
        ("map<string, int>", [("k", 1), ("l", 2), ("k", 3)], "v: a map with the key 'k' twice"),
        ("list<map<string, int>>", [[("k", 1), ("k", None)]], r"v\[\]: a map with the key 'k' twice"),
    ],
)
def test_what_has_no_form_is_named_and_the_rows_beside_it_are_written(
    kind: str, value: Any, reason: str
) -> None:
    found = written([FieldSpec(name="v", type=kind)], [(None,), (value,), (None,)])
    assert found.texts == {0: b"{}", 2: b"{}"}
    assert list(found.bad) == [1]
    assert re.match(reason, found.bad[1])
    assert "durability=lake" in found.bad[1]


def test_rows_that_are_longer_as_json_than_a_row_may_be_are_named() -> None:
    fields = [FieldSpec(name="v", type="list<boolean>"), FieldSpec(name="s", type="string")]
    rows = [([True] * 30, "a"), ([True], "x" * 90), ([True] * 60, "a"), ([False], "b")]
    found = written(fields, rows, row_bytes_max=100)
    assert {at: json.loads(text)["s"] for at, text in found.texts.items()} == {3: "b"}
    assert found.bad[0] == "165 bytes as JSON, more than the 100 of a row"
    assert found.bad[1] == "109 bytes as JSON, more than the 100 of a row"
    assert found.bad[2].startswith("its lists take more than 100 bytes as JSON")


def test_lists_are_not_made_objects_before_their_size_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A truth value is a bit in Arrow and a reference of 8 bytes here; a row behind a null counts as well."""
    counted: list[int] = []
    values = module._values
    monkeypatch.setattr(module, "_values", lambda *a: counted.append(len(a[1])) or values(*a))
    kind = pa.list_(pa.field("element", pa.bool_()))
    inner = pa.array([True] * 4_000, pa.bool_())
    offsets = pa.array([0, 1_000, 2_000, 3_000, 4_000], pa.int32())
    mask = pa.array([False, True, False, False])
    rows = pa.table({"v": pa.ListArray.from_arrays(offsets, inner, type=kind, mask=mask)})
    fields = [FieldSpec(name="v", type="list<boolean>")]
    found = json_rows(fields, rows, row_bytes_max=1_999, bytes_max=1 << 20)
    assert (list(found.bad), counted) == ([0, 1, 2, 3], [])
    found = json_rows(fields, rows, row_bytes_max=6_000, bytes_max=1 << 20)
    assert list(found.texts) == [0, 1, 2, 3]
    assert found.texts[1] == b"{}"
    assert max(counted) == 2_000


def test_all_rows_together_have_a_limit() -> None:
    fields = [FieldSpec(name="s", type="string")]
    found = written(fields, [("x" * 10,), ("y" * 60,), ("z" * 10,)], bytes_max=50)
    assert [json.loads(text)["s"][0] for text in found.texts.values()] == ["x", "z"]
    reason = "68 bytes as JSON, and the rows of its body before it take 18 of 50; send it in another body, or"
    assert found.bad == {1: f"{reason} with durability=lake"}


def test_no_rows_are_none() -> None:
    assert written(fields_of("int"), []) == JsonRows(texts={}, bad={})
