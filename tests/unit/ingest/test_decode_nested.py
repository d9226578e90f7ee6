"""Decoding of objects and lists into nested columns: values, reasons, one result by two parsers."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tarn.core.decode import Decoder
from tarn.core.json_parser import JsonParser
from tarn.core.spec import FieldSpec
from tests.unit.ingest.test_decode import batch, decoder, texts, values

FIELDS = (
    FieldSpec(name="id", type="long", required=True),
    FieldSpec(
        name="place",
        type="struct<lat: double, at: timestamptz, price: decimal(9, 2), tags: list<string>>",
        source="outer.place",
    ),
    FieldSpec(name="legs", type="list<struct<carrier: string, day: date, n: int>>"),
    FieldSpec(name="costs", type="map<string, list<decimal(9, 2)>>"),
    FieldSpec(name="grid", type="list<list<long>>"),
    FieldSpec(name="flags", type="map<string, boolean>"),
)


def rows(*messages: Any) -> tuple[list[dict[str, Any]], dict[int, str]]:
    held = [m if isinstance(m, bytes) else json.dumps(m).encode() for m in messages]
    found = decoder(FIELDS, trace=False).decode(batch(list(held)))
    found.rows.validate(full=True)
    assert found.rows.num_rows + len(found.bad) == len(messages)
    return found.rows.to_pylist(), found.bad


@pytest.mark.parametrize("beside", [{"id": 1}, b"junk"])
def test_nested_values_are_read(beside: Any) -> None:
    place = {"lat": 1, "at": "2026-11-21T08:00:00+02:00", "price": "1.25", "tags": ["a", None, "é"], "zz": 3}
    found, _ = rows(
        beside,
        {
            "id": 1,
            "outer": {"place": place},
            "legs": [{"carrier": "x", "day": "2026-01-02", "n": 3.0}, None, {}, {"n": 4, "zz": []}],
            "costs": {"a": ["1.5"], "": [], "b": None},
            "grid": [[1, 2], [], None, [None]],
            "flags": {"up": True, "down": None},
        },
    )
    row = found[-1]
    assert row["place"]["lat"] == 1.0
    assert row["place"]["at"].isoformat() == "2026-11-21T06:00:00+00:00"
    assert (row["place"]["price"], row["place"]["tags"]) == (Decimal("1.25"), ["a", None, "é"])
    assert [leg and (leg["carrier"], str(leg["day"]), leg["n"]) for leg in row["legs"]] == [
        ("x", "2026-01-02", 3),
        None,
        (None, "None", None),
        (None, "None", 4),
    ]
    assert row["costs"] == [("a", [Decimal("1.50")]), ("", []), ("b", None)]
    assert row["grid"] == [[1, 2], [], None, [None]]
    assert row["flags"] == [("up", True), ("down", None)]


def test_null_missing_and_empty_are_three_things() -> None:
    found, bad = rows(
        {"id": 1},
        {"id": 2, "outer": None, "legs": None, "costs": None},
        {"id": 3, "outer": {"place": None}},
        {"id": 4, "outer": {"place": {}}, "legs": [], "costs": {}, "grid": [[]]},
    )
    assert bad == {}
    assert [(r["place"], r["legs"], r["costs"], r["grid"]) for r in found[:3]] == [(None,) * 4] * 3
    empty = dict.fromkeys(("lat", "at", "price", "tags"))
    assert (found[3]["place"], found[3]["legs"], found[3]["costs"], found[3]["grid"]) == (empty, [], [], [[]])


@pytest.mark.parametrize("number", ["1234567.89", "0.10", "3", "1e2", "-0.5"])
def test_a_nested_decimal_may_be_a_number_and_loses_no_digit(number: str) -> None:
    message = b'{"id":1,"outer":{"place":{"lat":2.5,"price":%s}},"costs":{"a":["1",%s,null],"b":null}}'
    (row,), bad = rows(message % (number.encode(), number.encode()))
    assert bad == {}
    assert (row["place"]["lat"], row["place"]["price"]) == (2.5, Decimal(number))
    assert row["costs"] == [("a", [Decimal(1), Decimal(number), None]), ("b", None)]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"outer": {"place": [1]}}, "outer.place: expected an object, found a list"),
        ({"outer": {"place": {"lat": "1"}}}, "outer.place.lat: expected a number, found text '1'"),
        ({"outer": {"place": {"tags": "a"}}}, "outer.place.tags: expected a list, found text 'a'"),
        ({"outer": {"place": {"tags": ["a", 2]}}}, "outer.place.tags[1]: expected text, found the number 2"),
        ({"outer": {"place": {"at": "soon"}}}, "place.at: 'soon' is no timestamptz"),
        ({"outer": {"place": {"at": "0001-01-01T00:00:00+01:00"}}}, "is outside the years 1 to 9999"),
        ({"legs": {"n": 1}}, "legs: expected a list, found an object"),
        ({"legs": [{"n": 1}, {"n": 2**31}]}, f"legs[].n: {2**31} is no int"),
        ({"legs": [{"n": 2**63}]}, f"legs[0].n: {2**63} does not fit 64 bits"),
        ({"legs": [{"n": 1}, {"n": True}]}, "legs[1].n: expected a whole number, found a truth value"),
        ({"legs": [1]}, "legs[0]: expected an object, found the number 1"),
        ({"costs": {"a": [], "b": ["1.234"]}}, "costs.*[]: '1.234' is no decimal(9, 2)"),
        ({"costs": {"a": [True]}}, "costs.a[0]: expected text, found a truth value"),
        ({"costs": [["a", []]]}, "costs: expected an object, found a list"),
        ({"flags": {"x": 1}}, "flags.x: expected true or false, found the number 1"),
        (b'{"id":1,"outer":{"place":{"lat":1e400}}}', "outer.place.lat: the number is too large"),
        (b'{"id":1,"outer":{"place":1e400}}', "outer.place: the number is too large"),
        (b'{"id":1,"grid":[[1,[2]]]}', "grid[0][1]: expected a whole number, found a list"),
    ],
)
def test_one_wrong_value_in_it_makes_a_bad_record_and_its_neighbours_are_rows(
    message: Any, reason: str
) -> None:
    wrong = message if isinstance(message, bytes) else {"id": 1, **message}
    good = {"id": 2, "legs": [{"n": 1}, {"n": 2}], "costs": {"a": ["1.00", "2.00"]}, "grid": [[1], [2, 3]]}
    found, bad = rows(good, wrong, good, {"id": 3})
    assert list(bad) == [1]
    assert reason in bad[1]
    assert [row["id"] for row in found] == [2, 2, 3]
    assert [row["grid"] for row in found] == [[[1], [2, 3]], [[1], [2, 3]], None]


def test_a_required_nested_column_may_be_empty_and_not_missing() -> None:
    fields = (FieldSpec(name="tags", type="list<string>", required=True),)
    found = decoder(fields, trace=False).decode(batch([b'{"tags":[]}', b"{}", b'{"tags":null}']))
    assert found.rows.column("tags").to_pylist() == [[]]
    assert found.bad == dict.fromkeys((1, 2), "tags: required, but missing or null")


def test_no_records_give_nested_columns_without_rows() -> None:
    for held in ([], [b"junk"]):
        found = decoder(FIELDS).decode(batch(held))
        assert (found.rows.num_rows, len(found.bad)) == (0, len(held))


@pytest.mark.parametrize("beside", [b'{"id":1}', b"junk"])
def test_depth_that_nobody_reads_is_no_fault_up_to_1024(beside: bytes) -> None:
    for levels, read in ((1_000, True), (1_025, False)):
        found = decoder(FIELDS).decode(
            batch([beside, b'{"id":7,"zz":%s1%s}' % (b"[" * levels, b"]" * levels)])
        )
        assert (1 not in found.bad) == read, found.bad
        if not read:
            assert "depth limit" in found.bad[1]


typed = st.fixed_dictionaries(
    {"id": st.integers(0, 9)},
    optional={
        "outer": st.fixed_dictionaries(
            {},
            optional={
                "place": st.fixed_dictionaries(
                    {},
                    optional={
                        "lat": st.floats(allow_nan=False, allow_infinity=False) | st.none(),
                        "price": st.sampled_from(["1.25", 1.25, 3, None]),
                        "tags": st.lists(texts | st.none(), max_size=3),
                        "zz": values,
                    },
                )
            },
        ),
        "legs": st.lists(
            st.none()
            | st.fixed_dictionaries({}, optional={"n": st.integers(-(2**33), 2**33), "carrier": texts}),
            max_size=4,
        ),
        "costs": st.dictionaries(
            texts, st.lists(st.sampled_from(["1", "2.50", 2.5, "x", None]), max_size=2), max_size=2
        ),
        "grid": values | st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=2), max_size=2),
        "flags": st.dictionaries(texts, st.booleans() | st.none(), max_size=2) | values,
    },
).map(lambda m: json.dumps(m).encode())


@pytest.mark.long
@settings(max_examples=300, deadline=None)
@given(record=typed)
@example(record=b'{"id":1,"legs":[{"n":1.0},{"n":2}]}')
@example(record=b'{"id":1,"flags":{"a":true,"a":null}}')
@example(record=b'{"id":1,"outer":{"place":{"tags":["a"],"tags":["b","c"]}}}')
@example(record=b'{"id":1,"outer":{"place":{"zz":1e400}}}')
@example(record=b'{"id":1,"flags":{"\xff":true}}')
@example(record=b'{"id":1,"grid":[[1e400]]}')
def test_the_quick_parser_reads_nested_values_as_the_slow_one_does(record: bytes) -> None:
    held = batch([record, record])
    quick = decoder(FIELDS, trace=False).decode(held)
    slow_decoder = decoder(FIELDS, trace=False)
    slow_decoder._parser._typed = None
    slow = slow_decoder.decode(held)
    assert quick.bad == slow.bad
    assert quick.rows.equals(slow.rows)


def test_good_nested_records_are_left_to_the_quick_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    given_: list[int] = []
    plain = JsonParser._parse_each

    def counting(self: Decoder, held: Any) -> Any:
        given_.append(len(held))
        return plain(self, held)

    monkeypatch.setattr(JsonParser, "_parse_each", counting)
    message = {"id": 1, "legs": [{"n": 1, "day": "2026-01-01"}], "costs": {"a": ["1.00"]}, "grid": [[1]]}
    _, bad = rows(*[message] * 100)
    assert (bad, given_) == ({}, [])
