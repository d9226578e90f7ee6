"""`mapping`: what it may say, the columns that it gives, and what a cast makes of each value."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tarn.core.cast_rules import takes
from tarn.core.column_types import SCALARS
from tarn.core.convert import target_type
from tarn.core.errors import InvalidSpecError
from tarn.core.spec import FieldMapping, FieldSpec, parse_spec
from tarn.core.typed_values import convert_typed
from tests.unit.ingest.test_decode import batch, decoder

SPEC = """
apiVersion: tarn/v1
kind: Ingestor
metadata: {name: orders}
spec:
  source: {kafka: {topic: orders}MORE}
  table: {namespace: bronze, name: orders, partitioning: [day(at)]}
  schema:
    fields:
      - {name: id, type: long, required: true}
      - {name: at, type: timestamptz}
      - {name: price, type: 'decimal(9, 2)', from: body.price}
      - {name: tags, type: list<string>}
      - {name: text, type: string, encoding: json}
      - {name: raw, type: string}
  mapping: MAPPING
"""
AVRO = (
    ", format: avro, avro: {schema: {type: record, name: R, fields: [{name: id, type: long}, "
    "{name: at, type: bytes}, {name: b, type: boolean}]}}"
)


def told(mapping: str, more: str = "") -> str:
    with pytest.raises(InvalidSpecError) as caught:
        parse_spec(SPEC.replace("MAPPING", mapping).replace("MORE", more), file="orders.yaml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        (
            "{rename: {a: idd}}",
            r"mapping\.rename names column 'idd', which schema\.fields lacks \(did you mean id",
        ),
        (
            "{cast: {pric: 'decimal(9, 2)'}}",
            r"mapping\.cast names column 'pric', which .* \(did you mean price",
        ),
        ("{rest: rwa}", r"mapping\.rest names column 'rwa', which schema\.fields lacks \(did you mean raw"),
        ("{rename: {a: id, b: id}}", "rename fills column id from a and b; one value fills a column"),
        (
            "{rename: {a: price}}",
            r"price is from 'body\.price' in schema\.fields and from 'a' in mapping\.rename",
        ),
        ("{rename: {at: id}}", "from 'at' is read by two columns"),
        ("{rename: {at.x: id}}", "from 'at.x' goes through 'at'"),
        ("{rename: {a..b: id}}", "'a..b': write the keys of a value, joined by single dots"),
        ("{rename: {'*': id}}", r"'\*': write the keys of a value"),
        ("{rename: {a: 'i d'}}", "'i d' is no column name"),
        ("{rename: {a: _tarn}}", "_tarn is Tarn's own column"),
        ("{rename: {a.b: id}, drop: [a]}", r"rename fills id from a\.b, and drop leaves a out; keep one"),
        (
            "{cast: {at: string}}",
            r"makes at a string, and the column is timestamptz; cast it to timestamptz, or",
        ),
        (
            "{cast: {tags: list<string>}}",
            r"spec\.mapping\.cast: cast of tags to list<string>: a cast gives a prim",
        ),
        ("{cast: {id: lng}}", r"spec\.mapping\.cast: 'lng' is not a type \(did you mean long"),
        ("{cast: {text: string}}", "names text, which keeps the text of JSON as it is sent"),
        ("{drop: [id]}", r"drop leaves id out, and column id of schema\.fields is required; remove one"),
        ("{drop: [body]}", r"drop leaves body out, and column price of schema\.fields reads it; remove one"),
        ("{drop: [a.b]}", r"drop 'a\.b': name a key of the message itself, not a part of one"),
        ("{drop: [a, a]}", "drop names a twice; name each once"),
        ("{rest: id}", "rest fills column id with the text of JSON: it is an optional string"),
        ("{rest: raw, cast: {raw: string}}", "cast and rest both name column raw"),
        ("{rest: raw, rename: {a: raw}}", "rename and rest both name column raw"),
        (
            "{renam: {a: id}}",
            r"spec\.mapping\.renam: unknown field \(did you mean rename\?\); allowed are rename",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_field_value_and_what_to_do(mapping: str, message: str) -> None:
    assert re.search(message, told(mapping)), told(mapping)


def test_a_cast_that_no_value_of_the_writers_schema_survives_is_refused() -> None:
    body = SPEC.partition("    fields:\n")
    text = (
        body[0]
        + "    fields: [{name: id, type: string}, {name: at, type: timestamptz}]\n  mapping: MAPPING\n"
    )
    for cast, good in (("{at: timestamptz}", False), ("{id: string}", True)):
        whole = text.replace("MORE", AVRO).replace("MAPPING", f"{{cast: {cast}}}")
        if good:
            assert parse_spec(whole, file="x").spec.fields is not None
            continue
        with pytest.raises(
            InvalidSpecError, match=r"makes at a timestamptz, and its values .* are binary: no such"
        ):
            parse_spec(whole, file="x")


def test_without_a_mapping_the_columns_are_the_specs_own() -> None:
    spec = parse_spec(SPEC.replace("MAPPING", "{}").replace("MORE", ""), file="orders.yaml").spec
    assert spec.columns is not None
    assert spec.fields == spec.columns.fields
    assert FieldMapping() == spec.mapping


def columns(*names: str, required: str = "") -> list[FieldSpec]:
    return [FieldSpec(name=name, type="string", required=name == required) for name in names]


def paths(fields: tuple[FieldSpec, ...]) -> dict[str, str]:
    return {field.name: ".".join(field.path) for field in fields}


def test_columns_of_a_table_whose_key_is_dropped_or_goes_elsewhere_are_not_filled() -> None:
    mapping = FieldMapping(rename={"a": "b", "x.y": "z"}, drop=("d",))
    assert paths(mapping.of_table(columns("a", "b", "c", "d", "x", "z"))) == {"b": "a", "c": "c", "z": "x.y"}
    swapped = FieldMapping(rename={"a": "b", "b": "a"})
    assert paths(swapped.of_table(columns("a", "b"))) == {"a": "b", "b": "a"}
    kept = FieldMapping(rename={"new": "d"}, drop=("d",))
    assert paths(kept.of_table(columns("d"))) == {"d": "new"}, "the key is dropped, the column has another"
    with pytest.raises(ValueError, match="column d is required in the table, and mapping leaves out the key"):
        mapping.of_table(columns("b", "d", "z", required="d"))
    with pytest.raises(ValueError, match=r"column a is required .* gives to another column the key"):
        mapping.of_table(columns("a", "b", "z", required="a"))
    with pytest.raises(ValueError, match="names column 'z', which the table lacks"):
        mapping.of_table(columns("a", "b"))
    with pytest.raises(ValueError, match=r"mapping\.cast names d, which mapping leaves empty"):
        FieldMapping(drop=("d",), cast={"d": "string"}).of_table(columns("c", "d"))


def test_what_no_column_reads_is_kept_but_for_what_is_dropped() -> None:
    mapping = FieldMapping(rename={"u.id": "id"}, drop=("debug",), rest="rest")
    for fields in (mapping.of_spec(columns("id", "rest")), mapping.of_table(columns("id", "rest"))):
        found = decoder(fields, trace=False).decode(
            batch([b'{"u": {"id": "7", "k": 1}, "id": 5, "debug": {"a": 1}, "rest": 3}', b'{"debug": 1}'])
        )
        assert found.bad == {}
        assert found.rows.to_pylist() == [
            {"id": "7", "rest": '{"id":5,"rest":3}'},
            {"id": None, "rest": None},
        ]


CASTS: dict[str, FieldSpec] = {
    kind: FieldSpec(name="v", type=kind).as_cast()
    for kind in ("boolean", "int", "long", "double", "decimal(6, 2)", "string", "date", "uuid")
}
NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
BITS = {"int": 32, "long": 64}
BAD = object()


def wanted(kind: str, text: str) -> object:
    """What a cast makes of the text of a JSON value, said once more and value by value."""
    value = json.loads(text, parse_int=str, parse_float=str) if text[0] in '"tfn[{' else text
    if value is None:
        return None
    if isinstance(value, list | dict):
        return BAD
    if isinstance(value, bool):
        return {"string": text, "boolean": value}.get(kind, BAD)
    if kind == "string":
        return value
    if kind == "boolean":
        return {"true": True, "false": False}.get(value, BAD) if text.startswith('"') else BAD
    if kind == "date" or kind == "uuid":
        return BAD
    if not NUMBER.fullmatch(value):
        return BAD
    if kind == "double":
        return BAD if float(value) in (float("inf"), float("-inf")) else float(value)
    number = Decimal(value)
    if kind in BITS:
        plain = re.fullmatch(r"-?\d+", value) is not None
        if number != int(number) or (not plain and abs(number) >= 2**53):
            return BAD
        return int(number) if -(2 ** (BITS[kind] - 1)) <= number < 2 ** (BITS[kind] - 1) else BAD
    return number if abs(number) < 10_000 and number == round(number, 2) else BAD


NUMBERS = st.one_of(
    st.integers(-(2**65), 2**65).map(str),
    st.integers(-300, 300).map(str),
    st.decimals(-20_000, 20_000, places=3, allow_nan=False).map(str),
    st.sampled_from(
        ["1e3", "-0", "0.0", "1E+2", "5e-1", "9007199254740993.0", "9007199254740991.0", "1e400"]
    ),
)
TEXTS = st.one_of(
    NUMBERS, st.text(max_size=6), st.sampled_from(["true", "false", "True", "", " 1", "01", "+1", "1."])
)
VALUES = st.one_of(
    NUMBERS,
    TEXTS.filter(lambda t: t.isprintable() or "\n" in t).map(json.dumps),
    st.sampled_from(["true", "false", "null", "[]", '{"a": 1}', '"\\u0031"', '"a\\"b"', '" \\n"']),
)


@pytest.mark.long
@pytest.mark.parametrize("kind", CASTS)
@settings(deadline=None, max_examples=150)
@given(st.lists(VALUES, min_size=1, max_size=8), st.booleans())
@example(["9007199254740993", '"1e3"', "1.50", "9223372036854775808"], True)
@example(['"12.50"', "12.5", "12.505", "1e3", "99999"], False)
def test_a_cast_takes_exactly_what_json_writes_for_the_type(kind: str, texts: list[str], odd: bool) -> None:
    fields = (FieldSpec(name="n", type="long"), CASTS[kind])
    # A whole number with a point is left to the slower parser, which must find the same.
    n = "1.0" if odd else "1"
    messages: list[bytes | None] = [f'{{"n": {n}, "v": {text}}}'.encode() for text in texts]
    found = decoder(fields, trace=False).decode(batch(messages))
    rows = dict(zip(found.index, found.rows.column("v").to_pylist(), strict=True))
    assert sorted([*rows, *found.bad]) == list(range(len(texts)))
    for i, text in enumerate(texts):
        expected = wanted(kind, text)
        if expected is BAD:
            assert i in found.bad, (text, rows.get(i))
            assert found.bad[i].startswith("v: "), found.bad[i]
        else:
            assert i in rows, (text, found.bad.get(i))
            assert rows[i] == expected, text
            assert type(rows[i]) is type(expected), text


def test_reasons_name_the_column_what_was_expected_and_what_came() -> None:
    def reason(kind: str, text: str) -> str:
        fields = (FieldSpec(name="v", type=kind).as_cast(),)
        return decoder(fields, trace=False).decode(batch([f'{{"v": {text}}}'.encode()])).bad[0]

    assert reason("long", '"12a"') == "v: '12a' is no long: expected a whole number"
    assert reason("long", "[1]") == "v: expected a number, found a list"
    assert reason("date", "5") == "v: expected text, found the number 5"
    assert reason("string", '{"a": 1}') == "v: expected text, a number or a truth value, found an object"
    assert reason("int", '"3000000000"').startswith("v: 3000000000 is no int: ")
    assert reason("boolean", '"yes"') == "v: 'yes' is no boolean: expected true or false"
    assert reason("double", '"1e999"') == "v: the number 1e999 is too large"
    for rounded in ("1e-400", "1e-999999999", "1.00000000000000000001", f"1e-{10**20}"):
        assert reason("long", rounded).endswith("is no long: expected a whole number"), "a double rounds it"
    assert len(reason("long", json.dumps("x" * 500))) < 150


def test_a_value_that_is_required_and_does_not_fit_is_not_called_missing() -> None:
    fields = (FieldSpec(name="v", type="long", required=True).as_cast(),)
    found = decoder(fields, trace=False).decode(batch([b'{"v": "x"}', b'{"v": null}', b"{}"]))
    assert found.bad[0] == "v: 'x' is no long: expected a whole number"
    assert found.bad[1] == found.bad[2] == "v: required, but missing or null"


def test_allowed_values_and_epochs_are_those_of_the_column() -> None:
    fields = (
        FieldSpec(name="s", type="long", values=(1, 2)).as_cast(),
        FieldSpec(name="at", type="timestamptz", encoding="epoch-millis").as_cast(),
    )
    found = decoder(fields, trace=False).decode(
        batch([b'{"s": "2", "at": "1000"}', b'{"s": "3"}', b'{"at": "999999999999999"}', b'{"at": "1.5"}'])
    )
    (row,) = found.rows.to_pylist()
    assert (row["s"], row["at"].timestamp()) == (2, 1.0)
    assert found.bad[1] == "s: 3 is none of the spec's values: 1, 2"
    assert "outside the years" in found.bad[2]
    assert found.bad[3] == "at: '1.5' is no timestamptz: expected a whole number"


SOURCES: list[tuple[pa.DataType, Any]] = [
    (pa.bool_(), True),
    (pa.int8(), 1),
    (pa.uint64(), 1),
    (pa.float32(), 1.0),
    (pa.float64(), 1.0),
    (pa.decimal128(5, 0), Decimal(1)),
    (pa.string(), None),
    (pa.large_string(), None),
    (pa.binary(), b"0123456789abcdef"),
    (pa.binary(16), b"0123456789abcdef"),
    (pa.date32(), 1),
    (pa.timestamp("ms"), 1),
    (pa.timestamp("ns", "UTC"), 1),
    (pa.time32("s"), 1),
    (pa.list_(pa.int8()), [1]),
    (pa.struct([("a", pa.int8())]), {"a": 1}),
]
TEXT_OF = {
    **{"boolean": "true", "date": "2026-11-22", "timestamp": "2026-11-22T00:00:00"},
    **{"timestamptz": "2026-11-22T00:00:00Z", "uuid": "00000000-0000-0000-0000-000000000001"},
}


@pytest.mark.parametrize("kind", [*SCALARS, "decimal(9, 2)"])
@pytest.mark.parametrize(("source", "value"), SOURCES, ids=lambda v: str(v))
def test_what_a_cast_can_take_is_what_it_takes(kind: str, source: pa.DataType, value: Any) -> None:
    text = value is None
    column = pa.array([TEXT_OF.get(kind, "1") if text else value], source)
    converted, wrong = convert_typed(FieldSpec(name="v", type=kind).as_cast(), column)
    assert (wrong == {}) is takes(kind, "iso8601", source)
    assert converted.type == target_type(FieldSpec(name="v", type=kind).kind)


def test_typed_values_become_text_as_json_would_have_it() -> None:
    field = FieldSpec(name="v", type="string").as_cast()

    def text(values: list[Any], kind: pa.DataType) -> list[str | None]:
        converted, wrong = convert_typed(field, pa.array(values, kind))
        assert wrong == {}
        found: list[str | None] = converted.to_pylist()
        return found

    assert text([True, None], pa.bool_()) == ["true", None]
    assert text([12], pa.int32()) == ["12"]
    assert text([Decimal("1.50")], pa.decimal128(5, 2)) == ["1.50"]
    assert text([0], pa.date32()) == ["1970-01-01"]
    assert text([1_500], pa.timestamp("ms", "UTC")) == ["1970-01-01T00:00:01.500Z"]


def test_names_of_a_mapping_are_limited() -> None:
    with pytest.raises(ValidationError, match="at most 1000"):
        FieldMapping(drop=tuple(f"k{n}" for n in range(1_001)))
