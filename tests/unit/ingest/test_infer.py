"""Columns inferred from messages: they decode the very messages, and what they cannot hold is named."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tarn.core.decode import Decoder
from tarn.core.infer import infer
from tests.unit.ingest.test_decode import batch, texts


def kinds(*messages: Any) -> tuple[dict[str, str], list[str]]:
    found = infer([m if isinstance(m, bytes) else json.dumps(m).encode() for m in messages])
    return {f.name: f.type for f in found.fields}, list(found.notes)


def test_each_form_of_a_value_has_its_type() -> None:
    found, notes = kinds(
        {
            "flag": True,
            "n": 1,
            "big": 2**64 - 1,
            "x": 1,
            "day": "2026-11-22",
            "local": "2026-11-22T08:00:00.5",
            "at": "2026-11-22T08:00:00Z",
            "u": "123e4567-e89b-12d3-a456-426614174000",
            "hex": "123e4567e89b12d3a456426614174000",
            "text": "a",
            "tags": ["a", None],
            "legs": [{"carrier": "x", "n": 1}, {"n": 2.5}],
            "place": {"lat": 1.5, "city": None},
        },
        {"x": 2.5, "place": {"city": "Oslo"}, "tags": [], "legs": None},
        b"junk",
        None,
        [1],
    )
    assert found == {
        "flag": "boolean",
        "n": "long",
        "big": "decimal(20, 0)",
        "x": "double",
        "day": "date",
        "local": "timestamp",
        "at": "timestamptz",
        "u": "uuid",
        "hex": "string",
        "text": "string",
        "tags": "list<string>",
        "legs": "list<struct<carrier: string, n: double>>",
        "place": "struct<lat: double, city: string>",
    }
    assert notes == []


@pytest.mark.parametrize(
    ("numbers", "kind", "held"),
    [
        (["1", "18446744073709551615"], "decimal(20, 0)", ["1", "18446744073709551615"]),
        (["18446744073709551615", "18446744073709551616"], "decimal(38, 0)", None),
        (["-9223372036854775808"], "long", None),
        (["1", "-9223372036854775809"], "decimal(38, 0)", None),
        ([str(10**38 - 1), str(1 - 10**38)], "decimal(38, 0)", None),
        ([str(10**38)], "double", [str(int(1e38))]),
        (["18446744073709551617", "1.5"], "double", ["18446744073709551616", "1.5"]),
        (["1e20", "1"], "double", ["100000000000000000000", "1"]),
    ],
)
def test_whole_numbers_keep_their_digits(numbers: list[str], kind: str, held: list[str] | None) -> None:
    messages: list[bytes | None] = [
        f'{{"n": {number}, "in": [{{"n": {number}}}]}}'.encode() for number in numbers
    ]
    found = infer(messages)
    assert [f.type for f in found.fields] == [kind, f"list<struct<n: {kind}>>"]
    decoded = Decoder(found.fields, source="t", trace=True, record_bytes_max=100_000).decode(batch(messages))
    assert decoded.bad == {}
    values = [Decimal(value) for value in decoded.rows["n"].to_pylist()]
    assert values == [Decimal(value) for value in held or numbers]
    assert [Decimal(value[0]["n"]) for value in decoded.rows["in"].to_pylist()] == values


@pytest.mark.parametrize(
    "values", [["2026-02-30"], ["2026-11-22", "soon"], ["2026-11-22T25:00:00Z"], ["0000-01-01"]]
)
def test_texts_that_only_look_like_a_date_are_texts(values: list[str]) -> None:
    assert kinds(*({"d": value} for value in values))[0] == {"d": "string"}


def test_the_commonest_form_wins_and_the_others_are_named() -> None:
    found, notes = kinds({"v": 1}, {"v": 2.5}, {"v": "x"}, {"v": [1]})
    assert found == {"v": "double"}
    assert notes == ["'v': number in 2 values, text in 1 and list in 1: the latter would be bad records"]


def test_objects_with_many_keys_of_one_form_are_maps() -> None:
    many = [{"m": {f"k{n}": n}, "s": {"a": n, "b": 1}} for n in range(30)]
    assert kinds(*many)[0] == {"m": "map<string, long>", "s": "struct<a: long, b: long>"}
    assert kinds({"m": {"a-b": ["x"], "c d": []}})[0] == {"m": "map<string, list<string>>"}
    wide = [{"m": {f"k{n}": n for n in range(30)}}] * 3
    assert kinds(*wide)[0]["m"].startswith("struct<k0: long"), "all keys in every message"


def test_keys_that_are_not_names_get_one_and_are_read_from_their_path() -> None:
    found = infer([b'{"a key": 1, "1st": 2, "_tarn": 3, "plain": 4}'])
    assert [(f.name, f.path) for f in found.fields] == [
        ("a_key", ("a key",)),
        ("_1st", ("1st",)),
        ("_tarn_", ("_tarn",)),
        ("plain", ("plain",)),
    ]
    assert found.notes == ()


def test_what_cannot_be_a_column_is_named() -> None:
    _, notes = kinds(
        {
            "nothing": None,
            "none": [],
            "a.b": 1,
            "Id": 1,
            "id": 2,
            "s": {"x-y": 1, "n": "a", "N": 2},
            "e": {},
        }
    )
    assert notes == [
        "'nothing': left out, as every value is null or empty: its type is unknown",
        "'none[]': left out, as every value is null or empty: its type is unknown",
        "'a.b': left out, as the path of a column cannot name this key",
        "'id': left out, as 'Id' would have the same column name",
        "s.'x-y': left out, as a field of a struct has letters, digits and _ in its name",
        "s.'N': left out, as another field differs by upper and lower case only",
        "'e': left out, as nothing in these objects can be read",
    ]
    wide = {"w": {f"c{n}": n for n in range(1_001)}}
    assert kinds(wide) == ({}, ["'w': left out, as its 1,001 fields are more than 1,000"])
    assert kinds(b'{"a":' * 1_000 + b"1" + b"}" * 1_000)[0] == {}
    deep: Any = 1
    for _ in range(9):
        deep = [deep]
    found, notes = kinds({"deep": deep})
    assert (found, notes) == ({}, [f"'deep{'[]' * 8}': left out, as it is nested more than 8 levels deep"])


def test_no_messages_give_no_columns() -> None:
    assert kinds() == ({}, [])
    assert kinds(b"junk", b"[]") == ({}, [])


keys = st.sampled_from(["a", "b", "A", "a-b", "c d", "", "_tarn", "1"]) | texts
leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.integers(-(10**40), 10**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
    | st.sampled_from(["2026-11-22", "2026-11-22T08:00:00Z", "2026-02-30", "2026-11-22T08:00:00"])
)
trees = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.long
@settings(max_examples=300, deadline=None)
@given(messages=st.lists(st.dictionaries(keys, trees, max_size=4), min_size=1, max_size=5))
@example(messages=[{"*": False}])
def test_the_columns_decode_the_messages_that_they_were_inferred_from(messages: list[dict[str, Any]]) -> None:
    held: list[bytes | None] = [json.dumps(message).encode() for message in messages]
    found = infer(held)
    if not found.fields:
        return
    decoded = Decoder(found.fields, source="t", trace=True, record_bytes_max=100_000).decode(batch(held))
    if not any("bad records" in note for note in found.notes):
        assert decoded.bad == {}, (found, messages)
