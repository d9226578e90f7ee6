"""Decoding: parsing in blocks and one by one agree, and every record is a row or a bad one."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tarn.core.batch import RawBatch
from tarn.core.decode import Decoder
from tarn.core.json_parser import JsonParser
from tarn.core.spec import FieldSpec

FIELDS = (
    FieldSpec(name="s", type="string", required=True),
    FieldSpec(name="i", type="int"),
    FieldSpec(name="l", type="long"),
    FieldSpec(name="d", type="double"),
    FieldSpec(name="f", type="float"),
    FieldSpec(name="b", type="boolean"),
    FieldSpec(name="day", type="date"),
    FieldSpec(name="at", type="timestamptz"),
    FieldSpec(name="local", type="timestamp"),
    FieldSpec(name="ms", type="timestamptz", encoding="epoch-millis"),
    FieldSpec(name="price", type="decimal(9, 2)"),
    FieldSpec(name="u", type="uuid"),
    FieldSpec(name="raw", type="binary"),
    FieldSpec(name="deep", type="long", source="outer.inner.x"),
)


TYPES = {"b": "boolean", "i": "int", "l": "long", "f": "float", "d": "double", "s": "string", "day": "date"}
TYPES |= {"at": "timestamptz", "local": "timestamp", "price": "decimal(9, 2)", "u": "uuid", "raw": "binary"}


def every_type(*, map_of: str) -> list[FieldSpec]:
    """A column of each type, for formats whose values have types."""
    kinds = TYPES | {"legs": "list<struct<n: long>>", "m": f"map<string, {map_of}>"}
    return [FieldSpec(name=name, type=kind) for name, kind in kinds.items()]


def decoder(fields: tuple[FieldSpec, ...] = FIELDS, *, trace: bool = True, size: int = 10_000) -> Decoder:
    return Decoder(fields, source="topic", trace=trace, record_bytes_max=size)


def batch(values: list[bytes | None], first: int = 100) -> RawBatch:
    n = len(values)
    return RawBatch(
        partitions=[3] * n,
        offsets=list(range(first, first + n)),
        times_ms=[1_700_000_000_000 + i for i in range(n)],
        keys=[None] * n,
        values=values,
        ranges=(),
    )


def same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (math.isnan(a) and math.isnan(b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return type(a) is type(b) and a == b


def test_every_type_is_read():
    message = {
        "s": "é\u0000\U0001f600",
        "i": -(2**31),
        "l": 2**63 - 1,
        "d": 1,
        "f": 0.5,
        "b": False,
        "day": "2026-02-28",
        "at": "2026-11-21T08:00:00.123456+02:00",
        "local": "2026-11-21 08:00:00",
        "ms": 1_700_000_000_123,
        "price": "1234567.89",
        "u": "123e4567-e89b-12d3-a456-426614174000",
        "raw": "aGk=",
        "outer": {"inner": {"x": 7, "y": [1]}, "z": None},
        "ignored": {"a": [1, {"b": None}]},
    }
    found = decoder().decode(batch([json.dumps(message).encode()]))
    assert found.bad == {}
    row = found.rows.to_pylist()[0]
    assert row["s"] == "é\u0000\U0001f600"
    assert (row["i"], row["l"], row["d"], row["f"], row["b"]) == (-(2**31), 2**63 - 1, 1.0, 0.5, False)
    assert str(row["day"]) == "2026-02-28"
    assert row["at"].isoformat() == "2026-11-21T06:00:00.123456+00:00"
    assert row["local"].isoformat() == "2026-11-21T08:00:00"
    assert row["ms"].isoformat() == "2023-11-14T22:13:20.123000+00:00"
    assert str(row["price"]) == "1234567.89"
    assert row["u"].hex() == "123e4567e89b12d3a456426614174000"
    assert row["raw"] == b"hi"
    assert row["deep"] == 7
    assert row["_tarn"]["source"] == "topic"
    assert (row["_tarn"]["partition"], row["_tarn"]["offset"]) == (3, 100)
    assert row["_tarn"]["time"].isoformat() == "2023-11-14T22:13:20+00:00"


def test_a_number_that_a_double_makes_whole_spoils_only_whole_columns():
    text = b'{"s":"a","i":1.0,"l":18014398509481985,"d":1.00000000000000001,"price":12.50000000000000000000,'
    text += b'"zz":[1e-400,123456789012345678901234567890]}'
    found = decoder().decode(batch([text]))
    assert found.bad == {}
    (row,) = found.rows.to_pylist()
    assert (row["i"], row["l"], row["d"], str(row["price"])) == (1, 18014398509481985, 1.0, "12.50")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "no value (a tombstone)"),
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b'{"s":"a"', "not JSON"),
        (b'{"s":"\xff"}', "not JSON"),
        (b'{"s":"a\nb"}', "not JSON"),
        (b'{"s":"\\ud800"}', "not JSON"),
        (b'{"s":"a","d":NaN}', "not JSON"),
        (b'{"s":"a","zz":Infinity}', "not JSON"),
        (b'{"s":"a"}{"s":"b"}', "not JSON"),
        (b"[1]", "a list, not an object"),
        (b'"text"', "text 'text', not an object"),
        (b"{}", "s: required, but missing or null"),
        (b'{"s":null}', "s: required, but missing or null"),
        (b'{"s":1}', "s: expected text, found the number 1"),
        (b'{"s":"a","i":1.5}', "i: expected a whole number, found the number 1.5"),
        (b'{"s":"a","l":9007199254740992.0}', "l: expected a whole number, found the number 900719925474099"),
        (
            b'{"s":"a","l":4503599627370497.3}',
            "l: expected a whole number, found the number 4503599627370497.3",
        ),
        (
            b'{"s":"a","i":1.00000000000000001}',
            "i: expected a whole number, found the number 1.00000000000000001",
        ),
        (b'{"s":"a","i":-1e-400}', "i: expected a whole number, found the number -1e-400"),
        (b'{"s":"a","f":1e39}', "f: 1e+39 is no float: it is beyond the largest float"),
        (b'{"s":"a","at":"2026-11-21T08:00:00.1234567891Z"}', "is no timestamptz"),
        (b'{"s":"a","at":"0001-01-01T00:00:00.0000000+01:00"}', "is outside the years 1 to 9999"),
        (
            b'{"s":"a","ms":1763712000000000}',
            "outside the years 1 to 9999 as epoch-millis; is that the unit?",
        ),
        (b'{"s":"a","i":true}', "i: expected a whole number, found a truth value"),
        (b'{"s":"a","i":2147483648}', "i: 2147483648 is no int"),
        (b'{"s":"a","l":9223372036854775808}', "l: 9223372036854775808 does not fit 64 bits"),
        (b'{"s":"a","d":"1"}', "d: expected a number, found text '1'"),
        (b'{"s":"a","b":1}', "b: expected true or false"),
        (b'{"s":"a","day":"2026-02-30"}', "day: '2026-02-30' is no date"),
        (b'{"s":"a","at":"2026-11-21T08:00:00"}', "at: '2026-11-21T08:00:00' is no timestamptz"),
        (b'{"s":"a","local":"2026-11-21T08:00:00Z"}', "is no timestamp"),
        (b'{"s":"a","ms":9223372036854775807}', "ms: 9223372036854775807 is no timestamptz"),
        (b'{"s":"a","price":"1.234"}', "price: '1.234' is no decimal(9, 2)"),
        (b'{"s":"a","price":true}', "price: expected text, found a truth value"),
        (b'{"s":"a","price":1.125}', "price: '1.125' is no decimal(9, 2)"),
        (b'{"s":"a","price":1e7}', "price: '1e7' is no decimal(9, 2)"),
        (b'{"s":"a","price":1e400}', "price: the number is too large"),
        (b'{"s":"a","d":1e400}', "d: the number is too large"),
        (b'{"s":"a","i":1%s}' % (b"0" * 400), "i: the number is too large"),
        (b'{"s":"a","zz":1e400,}', "not JSON"),
        (b'{"s":"a","zz":[1e400,NaN]}', "not JSON"),
        (b'{"s":"a","u":"nope"}', "u: 'nope' is no uuid"),
        (b'{"s":"a","raw":"%%"}', "raw: '%%' is no binary"),
        (b'{"s":"a","outer":1}', "outer: expected an object, found the number 1"),
        (b'{"s":"a","outer":{"inner":{"x":"1"}}}', "outer.inner.x: expected a whole number"),
        (b'{"s":"' + b"x" * 10_000 + b'"}', "10008 bytes, more than deadLetters.maxRecordBytes = 10000"),
    ],
)
def test_a_bad_record_is_told_and_its_neighbours_are_rows(value, reason):
    found = decoder().decode(batch([b'{"s":"before"}', value, b'{"s":"after","i":1}']))
    assert list(found.bad) == [1]
    assert reason in found.bad[1]
    assert found.rows.column("s").to_pylist() == ["before", "after"]
    assert [t["offset"] for t in found.rows.column("_tarn").to_pylist()] == [100, 102]


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("2026-11-21T08:00:00.1234567Z", "2026-11-21T08:00:00.123456+00:00"),
        ("2026-11-21T08:00:00.999999999+02:00", "2026-11-21T06:00:00.999999+00:00"),
        ("1969-12-31 23:59:59.9999999Z", "1969-12-31T23:59:59.999999+00:00"),
        ("0001-01-01T00:00:00.0000000Z", "0001-01-01T00:00:00+00:00"),
        ("9999-12-31T23:59:59.9999999Z", "9999-12-31T23:59:59.999999+00:00"),
    ],
)
@pytest.mark.parametrize("beside", [b'{"s":"x","at":"2026-11-21T08:00:00Z"}', b"junk"])
def test_the_fraction_of_a_second_is_cut_to_microseconds(text: str, held: str, beside: bytes):
    found = decoder().decode(batch([beside, json.dumps({"s": "a", "at": text}).encode()]))
    assert found.rows.column("at").to_pylist()[-1].isoformat() == held


@pytest.mark.parametrize(
    ("number", "held"),
    [
        ("1234567.89", "1234567.89"),
        ("-0.1", "-0.10"),
        ("5", "5.00"),
        ("1.5e1", "15.00"),
        ("1.10", "1.10"),
        ("1.100", "1.10"),
        ("-9999999.99", "-9999999.99"),
    ],
)
def test_a_decimal_may_be_a_number_and_loses_no_digit(number: str, held: str):
    found = decoder().decode(batch([b'{"s":"a","price":%s}' % number.encode()]))
    assert found.bad == {}
    assert [str(v) for v in found.rows.column("price").to_pylist()] == [held]
    wide = (FieldSpec(name="v", type="decimal(38, 10)", source="a.v"), FieldSpec(name="n", type="int"))
    digits = b"1234567890123456789012345678.0123456789"
    both = decoder(wide).decode(
        batch([b'{"a":{"v":%s},"n":1}' % digits, b'{"a":{"v":"%s"},"n":1.0}' % digits])
    )
    assert [str(v) for v in both.rows.column("v").to_pylist()] == [digits.decode()] * 2


@pytest.mark.parametrize("depth", [1_000, 1_025, 50_000])
def test_depth_in_a_field_that_nobody_reads_is_no_fault_whoever_stands_beside(depth: int):
    deep = b'{"s":"a","i":7,"zz":%s%s}' % (b"[" * depth, b"]" * depth)
    for beside in (b'{"s":"b"}', b"junk", b'{"s":1}'):
        found = decoder(size=200_000).decode(batch([beside, deep]))
        assert 1 not in found.bad
        assert found.rows.column("i").to_pylist()[-1] == 7


def test_a_whole_number_may_be_written_with_a_point():
    values = [b'{"s":"a","i":1.0,"l":-3e3,"ms":1.7e12}', b'{"s":"a","l":9007199254740991.0}']
    found = decoder().decode(batch(values))
    assert found.bad == {}
    assert found.rows.column("i").to_pylist() == [1, None]
    assert found.rows.column("l").to_pylist() == [-3_000, 2**53 - 1]
    assert found.rows.column("ms").to_pylist()[0].isoformat() == "2023-11-14T22:13:20+00:00"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b'{"s":"up","n":3}', None),
        (b'{"s":"down"}', None),
        (b'{"s":null,"n":2}', None),
        (b'{"s":"Up"}', "s: 'Up' is none of the spec's values: up, down"),
        (b'{"s":""}', "s: '' is none of the spec's values"),
        (b'{"s":"up","n":4}', "n: 4 is none of the spec's values: 2, 3"),
        (b'{"s":"' + b"x" * 200 + b'"}', "s: '" + "x" * 79 + " is none of the spec's values"),
    ],
)
def test_a_value_that_the_spec_does_not_list_is_bad(value: bytes, reason: str | None):
    fields = (
        FieldSpec(name="s", type="string", values=("up", "down")),
        FieldSpec(name="n", type="int", values=(2, 3)),
    )
    for before in (b'{"s":"up"}', b"junk"):
        found = decoder(fields).decode(batch([before, value, b'{"s":"down"}']))
        told = {i: why for i, why in found.bad.items() if i != 0}
        assert list(told) == ([] if reason is None else [1])
        assert reason is None or reason in told[1]
        assert found.rows.num_rows + len(found.bad) == 3


def test_a_long_list_of_values_is_told_by_its_beginning():
    fields = (FieldSpec(name="n", type="long", values=tuple(range(500))),)
    found = decoder(fields).decode(batch([b'{"n":500}']))
    assert found.bad == {0: "n: 500 is none of the spec's values: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ..."}


def test_few_bad_records_among_many_are_found_and_the_rest_is_parsed_in_blocks(monkeypatch: Any):
    """Only what no other parser takes is given to the slowest one."""
    total, each = 10_000, list[int]()
    values: list[bytes | None] = [b'{"s":"a","i":%d}' % n for n in range(total)]
    wrong = {
        7: b"junk",
        3_000: b'{"s":"a","i":"x"}',
        3_001: None,
        9_999: b'{"s":"a"',
        5_000: b'{"s":"a",\n"i":5000}',
    }
    for at, value in wrong.items():
        values[at] = value
    plain = JsonParser._parse_each

    def counting(self: Decoder, held: Any) -> Any:
        each.append(len(held))
        return plain(self, held)

    monkeypatch.setattr(JsonParser, "_parse_each", counting)
    found = decoder().decode(batch(values))
    assert sorted(found.bad) == [7, 3_000, 3_001, 9_999], "a line break between fields is no fault"
    good = [n for n in range(total) if n not in found.bad]
    assert found.rows.column("i").to_pylist() == good
    assert [t["offset"] - 100 for t in found.rows.column("_tarn").to_pylist()] == good
    assert sum(each) == 3


@pytest.mark.parametrize("number", ["1e400", "-1e999", "1" + "0" * 400, "1" * 5_000])
@pytest.mark.parametrize("beside", [b'{"s":"b"}', b"junk", b'{"s":1}'])
def test_a_huge_number_that_nobody_reads_is_no_fault_whoever_stands_beside(number: str, beside: bytes):
    found = decoder().decode(batch([beside, b'{"s":"a","l":9223372036854775807,"zz":%s}' % number.encode()]))
    assert 1 not in found.bad
    assert found.rows.column("l").to_pylist()[-1] == 2**63 - 1


def test_keys_that_are_no_names_are_read_by_every_parser():
    fields = (
        FieldSpec(name="a", type="string", source="a key"),
        FieldSpec(name="b", type="long", source="ключ.class.self"),
    )
    value = '{"a key":"x","ключ":{"class":{"self":3}}}'.encode()
    for beside in (b"{}", b"junk"):
        assert decoder(fields).decode(batch([beside, value])).rows.to_pylist()[-1]["b"] == 3


def test_a_pretty_printed_message_is_read():
    found = decoder().decode(batch([json.dumps({"s": "a", "i": 1}, indent=2).encode()]))
    assert found.bad == {}
    assert found.rows.column("i").to_pylist() == [1]


def test_no_records_give_no_rows():
    found = decoder().decode(batch([]))
    assert (found.rows.num_rows, found.bad) == (0, {})
    assert found.rows.column_names[-1] == "_tarn"


def test_the_trace_can_be_switched_off():
    assert decoder(trace=False).decode(batch([b'{"s":"a"}'])).rows.column_names == [f.name for f in FIELDS]


def test_a_record_without_a_time_has_none_in_the_trace():
    raw = batch([b'{"s":"a"}', b'{"s":"b"}'])
    timeless = RawBatch(
        partitions=raw.partitions,
        offsets=raw.offsets,
        times_ms=[-1, 5],
        keys=raw.keys,
        values=raw.values,
        ranges=(),
    )
    times = [t["time"] for t in decoder().decode(timeless).rows.column("_tarn").to_pylist()]
    assert times[0] is None
    assert times[1].timestamp() == 0.005


texts = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=8)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    texts,
    st.sampled_from(["2026-11-21", "2026-11-21T08:00:00Z", "1.5", "aGk=", "2026-11-21 08:00:00.5"]),
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2)
)
typed = st.fixed_dictionaries(
    {"s": texts},
    optional={
        "i": st.integers(-(2**31), 2**31 - 1) | st.integers(-(2**31), 2**31 - 1).map(float),
        "l": st.integers(-(2**63), 2**63 - 1) | st.integers(-(2**63), 2**63 - 1).map(float),
        "price": st.decimals(-10_000_000, 10_000_000, places=2).flatmap(
            lambda d: st.sampled_from([str(d), float(d), int(d)])
        ),
        "d": st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**70), 2**70),
        "f": st.floats(width=32, allow_nan=False, allow_infinity=False),
        "b": st.booleans(),
        "at": st.datetimes().map(lambda t: t.isoformat() + "Z") | st.just("2026-11-21T08:00:00.1234567Z"),
        "outer": st.fixed_dictionaries(
            {}, optional={"inner": st.fixed_dictionaries({"x": st.integers(0, 9)})}
        ),
        "zz": values,
    },
)
messages = st.one_of(
    typed.map(lambda m: json.dumps(m).encode()),
    typed.map(lambda m: json.dumps(m, ensure_ascii=False).encode()),
    typed.map(lambda m: json.dumps(m).encode()),
)
mutated = st.one_of(
    messages,
    st.dictionaries(st.sampled_from(["s", "i", "l", "d", "b", "at", "outer", "zz"]), values, max_size=4).map(
        lambda m: json.dumps(m).encode()
    ),
    st.tuples(messages, st.integers(0, 60), st.binary(min_size=0, max_size=2)).map(
        lambda t: t[0][: t[1]] + t[2] + t[0][t[1] :]
    ),
    st.binary(max_size=12),
    st.none(),
)


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(records=st.lists(mutated, max_size=6))
@example(records=[b'{"s":"}', b'{"s":"x"}'])
@example(records=[b'{"s":{"b":1}', b'{"c":2}}'])
@example(records=[b'{"s":"a","d":-0}'])
@example(records=[b'{"s":"a","s":"b"}', b'{"s":"c"}'])
@example(records=[b'{"zz":1,"zz":2,"s":"a"}'])
@example(records=[b'{"s":"a","d":1e400}'])
def test_a_batch_decodes_like_its_records_alone(records):
    """Neighbouring records never affect a record's result, and neither does the batch before."""
    one = decoder()
    whole = one.decode(batch(records))
    again = one.decode(batch(records))
    assert again.bad == whole.bad
    for a, b in zip(whole.rows.to_pylist(), again.rows.to_pylist(), strict=True):
        assert same(a, b), (records, a, b)
    assert whole.rows.num_rows + len(whole.bad) == len(records)
    rows = iter(whole.rows.to_pylist())
    for i, record in enumerate(records):
        alone = decoder().decode(batch([record], first=100 + i))
        assert bool(alone.bad) == (i in whole.bad), (record, alone.bad, whole.bad)
        if alone.bad:
            assert alone.bad[0] == whole.bad[i]
            continue
        expected, found = alone.rows.to_pylist()[0], next(rows)
        expected["_tarn"] = found["_tarn"] | {"time": expected["_tarn"]["time"]}
        found["_tarn"]["time"] = expected["_tarn"]["time"]
        assert same(expected, found), (record, expected, found)


def test_a_batch_is_parsed_in_pieces_and_is_whole(monkeypatch: Any):
    monkeypatch.setattr("tarn.core.json_parser.TYPED_RECORDS", 7)
    values: list[bytes | None] = [b'{"s":"a","i":%d}' % n for n in range(100)]
    values[20], values[41], values[99] = b"junk", None, b'{"s":"a","i":99.0}'
    found = decoder().decode(batch(values))
    assert sorted(found.bad) == [20, 41]
    assert found.rows.column("i").to_pylist() == [n for n in range(100) if n not in found.bad]
    assert [t["offset"] - 100 for t in found.rows.column("_tarn").to_pylist()] == list(found.index)


@pytest.mark.long
@settings(max_examples=300, deadline=None)
@given(record=messages | mutated.filter(lambda record: record is not None))
@example(record=b'{"s":"a",\n"i":1}')
@example(record=b'{"s":"a","d":NaN}')
@example(record=b'{"s":"a"}{"s":"b"}')
@example(record=b"[]")
@example(record=b'  {"s":"a"}\r\n')
@example(record=b'{"s":"a","zz":"\xff"}')
@example(record=b'{"s":"a","\xff":1}')
@example(record=b'{"s":"a","zz":1e400}')
@example(record=b'{"s":"a","i":1.0}')
@example(record=b'{"s":"a","l":9007199254740992.0}')
@example(record=b'{"s":"a","outer":{"inner":null}}')
@example(record=b'{"s":"a","outer":{"inner":{"x":1}},"outer":{"inner":{}}}')
def test_the_quick_parser_takes_nothing_that_the_slow_one_refuses_or_reads_otherwise(record):
    one = decoder()
    quick, kept, reasons = one._parser._parse_typed([record])
    slow, also_kept, why = one._parser._parse_each([record])
    assert (kept, reasons) == (also_kept, why)
    for a, b in zip(quick, slow, strict=True):
        assert a.type == b.type
        assert same(dict(enumerate(a.to_pylist())), dict(enumerate(b.to_pylist())))


@pytest.mark.parametrize(
    "text",
    [
        " 2345678123456781234567812345678",
        "0x345678123456781234567812345678",
        "1234567812345678_234567812345678",
        "+2345678123456781234567812345678",
        "\u06612345678123456781234567812345678"[:32],
    ],
)
def test_a_uuid_is_32_hexadecimal_digits_and_is_not_guessed(text: str):
    forms = ["12345678-1234-5678-1234-567812345678", "12345678123456781234567812345678"]
    forms += [f"{{{forms[0]}}}", f"urn:uuid:{forms[0]}", forms[0].upper()]
    values: list[bytes | None] = [json.dumps({"s": "a", "u": u}).encode() for u in [*forms, text]]
    found = decoder().decode(batch(values))
    assert {v.hex() for v in found.rows.column("u").to_pylist()} == {forms[1]}
    assert list(found.bad) == [len(forms)]
    assert "is no uuid: not 32 hexadecimal digits" in found.bad[len(forms)]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b'{"x":1e400,"s":"\\ud800"}', "half of a surrogate pair"),
        (b'{"x":1e400,"s":"a","y":["\\udc00"]}', "half of a surrogate pair"),
        (b'{"s":"a","price":1.5,"z":%s%s}' % (b"[" * 1_015, b"]" * 1_015), "send the decimal as text"),
    ],
)
def test_what_only_the_slowest_parser_reads_is_no_fault_of_the_parser(value: bytes, reason: str):
    """An exception would make the batch be halved again and again, and in the end reject good messages."""
    parsed = JsonParser(FIELDS).parse([b'{"s":"b"}', value, b'{"x":1e400,"s":"\\ud83d\\ude00"}'])
    assert parsed.columns[0].to_pylist()[::2] in (["b"], ["b", "\U0001f600"])
    assert parsed.columns[0].to_pylist()[-1] == "\U0001f600"
    if sys.version_info < (3, 12) or "surrogate" in reason:
        assert reason in parsed.bad[1]
