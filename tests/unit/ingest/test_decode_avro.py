"""Messages in Avro: values as in its specification, a row or a bad record each, whatever the bytes are."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tarn.core import avro_parser
from tarn.core.avro_parser import OWN_SCHEMA_BYTES_MAX, AvroParser
from tarn.core.avro_schema import canonical, fingerprint, parse_schema
from tarn.core.avro_values import (
    PARTS_MAX,
    STEPS_MIN,
    STEPS_PER_BYTE,
    AvroValueError,
    Cursor,
    Readers,
    column_type,
)
from tarn.core.decode import Decoded, Decoder
from tarn.core.parsing import Parsed
from tarn.core.spec import FieldSpec, MessageFormat
from tests.support.messages import avro, container, zigzag
from tests.unit.ingest.test_decode import batch, every_type


def record(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields]}


def decoder(schema: Any, *fields: FieldSpec, encoding: str = "binary") -> Decoder:
    avro_ = {"encoding": encoding} if schema is None else {"encoding": encoding, "schema": schema}
    messages = MessageFormat.model_validate({"format": "avro", "avro": avro_})
    return Decoder(fields, source="t", trace=True, record_bytes_max=100_000, messages=messages)


def decode(schema: Any, values: list[bytes | None], *fields: FieldSpec, encoding: str = "binary") -> Decoded:
    return decoder(schema, *fields, encoding=encoding).decode(batch(values))


PAIR = record(("id", "long"), ("t", ["null", "string"]))
ID, T = FieldSpec(name="id", type="long", required=True), FieldSpec(name="t", type="string")
GOOD = avro(PAIR, {"id": 1, "t": (1, "a")})


def test_the_examples_of_the_specification() -> None:
    for number, data in [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (-64, "7f"),
        (64, "8001"),
        (-(2**63), "ff" * 9 + "01"),
    ]:
        assert Readers().of(parse_schema('"long"'))(Cursor(bytes.fromhex(data))) == number
    schema = json.dumps(record(("a", "long"), ("b", "string")))
    assert Readers().of(parse_schema(schema))(Cursor(bytes.fromhex("3606666f6f"))) == {"a": 27, "b": "foo"}
    items = parse_schema('{"type": "array", "items": "long"}')
    assert Readers().of(items)(Cursor(bytes.fromhex("04063600"))) == [3, 27]
    sized = bytes([*zigzag(-2), *zigzag(2), 6, 54, 0])
    assert Readers().of(items)(Cursor(sized)) == [3, 27]


@pytest.mark.parametrize(
    ("schema", "form", "number"),
    [
        ('"null"', '"null"', 7195948357588979594),
        ('{"type": "int", "logicalType": "date"}', '"int"', 8247732601305521295),
        ('{"type":"string"}', '"string"', -8142146995180207161),
        (
            '{"type":"record","name":"a.R","doc":"d","fields":[{"name":"f","type":{"type":"enum","name":"E",'
            '"symbols":["X"]},"default":"X"},{"name":"g","type":["null","E"]},{"name":"h","type":"a.R"}]}',
            '{"name":"a.R","type":"record","fields":[{"name":"f","type":{"name":"a.E","type":"enum",'
            '"symbols":["X"]}},{"name":"g","type":["null","a.E"]},{"name":"h","type":"a.R"}]}',
            None,
        ),
        (
            '{"type":"record","name":"R","namespace":"a","fields":[{"name":"f","type":{"type":"enum","name":"E",'
            '"namespace":"","symbols":["X"]}},{"name":"g","type":["null","E"]}]}',
            '{"name":"a.R","type":"record","fields":[{"name":"f","type":{"name":"E","type":"enum",'
            '"symbols":["X"]}},{"name":"g","type":["null","E"]}]}',
            None,
        ),
        (
            '{"type":"fixed","name":"F","namespace":"n","size":  4}',
            '{"name":"n.F","type":"fixed","size":4}',
            None,
        ),
    ],
)
def test_the_canonical_form_and_fingerprint(schema: str, form: str, number: int | None) -> None:
    assert canonical(parse_schema(schema)) == form
    if number is not None:
        assert int.from_bytes(fingerprint(parse_schema(schema)), "little", signed=True) == number


def test_every_type_is_read() -> None:
    at = datetime(2026, 11, 21, 8, 0, 0, 500_000, tzinfo=UTC)
    millis = int(at.timestamp() * 1_000)
    inner = {"type": "record", "name": "I", "fields": [{"name": "n", "type": "int"}]}
    schema = record(
        ("b", "boolean"),
        ("i", "int"),
        ("l", "long"),
        ("f", "float"),
        ("d", "double"),
        ("s", {"type": "enum", "name": "E", "symbols": ["x", "y"]}),
        ("day", {"type": "int", "logicalType": "date"}),
        ("at", {"type": "long", "logicalType": "timestamp-millis"}),
        ("local", {"type": "long", "logicalType": "local-timestamp-nanos"}),
        ("price", {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 2}),
        ("u", {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}),
        ("raw", "bytes"),
        ("legs", {"type": "array", "items": ["null", inner]}),
        ("m", {"type": "map", "values": "double"}),
        ("ms", "long"),
        ("unread", {"type": "long", "logicalType": "time-micros"}),
    )
    value = {
        **{"b": True, "i": -(2**31), "l": 2**63 - 1, "f": 0.5, "d": 0.1, "s": "y", "day": 20_778},
        **{"at": millis, "local": millis * 1_000_000 + 1, "price": Decimal("-12.50"), "u": b"0" * 16},
        **{"raw": b"\0", "legs": [(1, {"n": 1}), None], "m": {"k": 1.5}, "ms": millis, "unread": 5},
    }
    fields = every_type(map_of="double")
    ms = FieldSpec(name="ms", type="timestamptz", encoding="epoch-millis")
    found = decode(schema, [avro(schema, value)], *fields, ms)
    assert found.bad == {}
    wanted = value | {
        **{
            "day": date(2026, 11, 21),
            "at": at,
            "local": at.replace(tzinfo=None),
            "m": [("k", 1.5)],
            "ms": at,
        },
        **{"legs": [{"n": 1}, None]},
    }
    del wanted["unread"]
    assert found.rows.drop_columns("_tarn").to_pylist() == [wanted]


LONG, INT = zigzag(2**63 - 1), zigzag(2**31)


@pytest.mark.parametrize(
    ("schema", "field", "value", "reason"),
    [
        ("long", "int", LONG, "id: 9223372036854775807"),
        ("int", "long", INT, "2147483648 where an int is due"),
        ("long", "long", b"\xff" * 10, "more than ten bytes"),
        ("long", "long", b"\xff" * 9 + b"\x7f", "more than 64 bits"),
        ("boolean", "boolean", b"\x02", "the byte 2"),
        ("string", "string", b"\x02\xff", "not UTF-8"),
        ("string", "string", zigzag(-1), "-1 bytes"),
        ("bytes", "binary", zigzag(9) + b"x", "9 bytes are due, 2 are left"),
        ("double", "double", b"123456", "8 bytes are due"),
        ({"type": "enum", "name": "E", "symbols": ["x"]}, "string", b"\x02", "symbol 1 of an enum with 1"),
        (["null", "long"], "long", b"\x04", "branch 2 of a union of 2"),
        (["null", "long"], "long", b"\x01", "branch -1"),
        ({"type": "array", "items": "null"}, "list<long>", zigzag(2**40), "elements, more than"),
        ({"type": "array", "items": "long"}, "list<long>", zigzag(-5) + zigzag(-1), "a block of -1 bytes"),
        ({"type": "map", "values": "null"}, "map<string, long>", zigzag(2**40), "elements, more than"),
        (
            {"type": "map", "values": "long"},
            "map<string, long>",
            zigzag(2) + avro("string", "a") + zigzag(1) + avro("string", "a") + zigzag(2) + zigzag(0),
            "a key twice",
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 1},
            "decimal(2, 1)",
            avro("bytes", b"\x64"),
            "more than 2 digits",
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 2},
            "decimal(2, 0)",
            avro("bytes", b"\x01" * 60_000),
            "more than 2 digits",
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 3},
            "decimal(4, 2)",
            avro("bytes", b"\x01"),
            "0.001",
        ),
        ({"type": "int", "logicalType": "date"}, "date", zigzag(2**31 - 1), "years 1 to 9999"),
        ({"type": "long", "logicalType": "timestamp-millis"}, "timestamptz", LONG, "id: "),
        ({"type": "long", "logicalType": "timestamp-micros"}, "timestamptz", LONG, "years 1 to 9999"),
        ("int", "float", zigzag(2**24 + 1), "id: 16777217 is no float: a float does not hold it exactly"),
        ("long", "double", zigzag(2**53 + 1), "id: 9007199254740993 is no double: a double does not hold it"),
        ("string", "uuid", avro("string", "x"), "id: 'x' is no uuid"),
        ("long", "timestamptz", zigzag(5), "encoding"),
        ("null", "long", b"", "id: required"),
    ],
)
def test_values_at_the_limits_are_exact_or_bad(schema: Any, field: str, value: bytes, reason: str) -> None:
    whole, tail = record(("id", schema), ("t", ["null", "string"])), b"\x00"
    found = decode(whole, [value + tail], FieldSpec(name="id", type=field, required=True), T)
    assert found.rows.num_rows == 0
    assert reason in found.bad[0], found.bad


def test_floats_keep_nan_and_infinity() -> None:
    schema = record(("id", "double"))
    values: list[bytes | None] = [avro(schema, {"id": value}) for value in (float("inf"), float("nan"))]
    for kind in ("float", "double"):
        found = decode(schema, values, FieldSpec(name="id", type=kind)).rows["id"].to_pylist()
        assert found[0] == float("inf")
        assert found[1] != found[1]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "it ends after 0 bytes"),
        (GOOD[:-1], "1 bytes are due, 0 are left"),
        (GOOD + GOOD, f"{len(GOOD)} bytes are left after it"),
        (b"\0\0\0\0\x07" + GOOD, "Confluent's wire format, with schema id 7"),
        (b"\xc3\x01" + b"\0" * 8 + GOOD, "single-object"),
        (container(json.dumps(PAIR), [(1, GOOD)]), "source.avro.encoding: container"),
        (None, "tombstone"),
        (b"x" * 100_001, "maxRecordBytes"),
    ],
)
def test_a_message_that_is_no_row_says_why_and_its_neighbours_are_rows(
    value: bytes | None, reason: str
) -> None:
    found = decode(PAIR, [GOOD, value, GOOD], ID, T)
    assert list(found.index) == [0, 2]
    assert found.rows["t"].to_pylist() == ["a", "a"]
    assert reason in found.bad[1], found.bad


def test_single_object_encoding_is_of_the_schema_that_the_spec_has() -> None:
    head = b"\xc3\x01" + fingerprint(parse_schema(json.dumps(PAIR)))
    other = b"\xc3\x01" + fingerprint(parse_schema('"int"'))
    values: list[bytes | None] = [head + GOOD, other + GOOD, GOOD, head, head + GOOD + b"x"]
    found = decode(PAIR, values, ID, T, encoding="single-object")
    assert list(found.index) == [0]
    assert "fingerprint" in found.bad[1]
    assert "does not begin with C3 01" in found.bad[2]
    assert "it ends" in found.bad[3]
    assert "1 bytes are left" in found.bad[4]


def test_containers_have_their_own_schema() -> None:
    text, other = json.dumps(PAIR), record(("id", "int"), ("x", "string"))
    values: list[bytes | None] = [
        container(text, [(1, GOOD)]),
        container(json.dumps(other), [(1, avro(other, {"id": 9, "x": "y"}))]),
        container(text, [(2, GOOD + GOOD)]),
        container(text, []),
        container(text, [(1, GOOD)], codec="deflate"),
        container("{", [(1, GOOD)]),
        container('"long"', [(1, zigzag(1))]),
        container(text, [(1, GOOD)])[:-1],
        container(text, [(1, GOOD)])[:-16] + b"x" * 16,
        container(text, [(1, GOOD)])[:30],
        container(json.dumps(record(("id", ["int", "string"]))), [(1, zigzag(0) + zigzag(1))]),
        GOOD,
        container(text, [(0, b""), (1, GOOD), (0, b"")]),
        container(text, [(2, GOOD + GOOD), (-1, b"")]),
        container(text, [(1, GOOD), (1, GOOD)]),
    ]
    found = decode(None, values, ID, T, encoding="container")
    rows = found.rows.drop_columns("_tarn").to_pylist()
    assert rows == [{"id": 1, "t": "a"}, {"id": 9, "t": None}, {"id": 1, "t": "a"}]
    wanted = {
        **{2: "2 records", 3: "0 records", 4: "codec", 5: "its own schema cannot be used", 6: "not a record"},
        **{
            7: "ends after",
            8: "sync marker",
            9: "",
            10: "a union of int and string",
            11: "not an Avro container",
            13: "a block of -1 records",
            14: "2 records",
        },
    }
    assert list(found.bad) == list(wanted)
    for i, reason in wanted.items():
        assert reason in found.bad[i], (i, found.bad[i])


def test_a_record_within_itself_is_passed_over_and_ends() -> None:
    schema = record(("id", "long"), ("next", ["null", "R"]))
    deep = zigzag(1) + (b"\x02" + zigzag(2)) * 20_000 + b"\x00"
    found = decode(schema, [zigzag(1) + b"\x02" + zigzag(2) + b"\x00", deep], ID)
    assert found.rows["id"].to_pylist() == [1]
    assert found.bad == {1: "its Avro value is nested too deeply"}


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("{", "not JSON"),
        ('"long"', "a message is a record"),
        ('{"type": "record", "name": "1", "fields": []}', "has the name"),
        (record(("a", "nope")), "'nope', which it does not define"),
        (record(("a", "long"), ("a", "long")), "two fields of one name"),
        (record(("a", ["null", "null"])), "null twice"),
        (record(("a", {"type": "array"})), "no items"),
        (record(("a", {"type": "fixed", "name": "F", "size": -1})), "not a number of bytes"),
        (record(("a", record(("b", "long")))), "defines R twice"),
        ({**record(("a", "long")), "namespace": "a b"}, "has the namespace 'a b'"),
        (json.dumps("x") + " ", "does not define"),
        ("[" * 50_000 + "]" * 50_000, "nested too deeply"),
    ],
)
def test_a_schema_that_is_none_is_refused(schema: Any, reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        MessageFormat.model_validate({"format": "avro", "avro": {"schema": schema}})


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_whatever_the_bytes_are_the_neighbours_are_rows(data: st.DataObject) -> None:
    nested = {"type": "array", "items": {"type": "map", "values": ["null", "bytes"]}}
    schema = record(("id", "long"), ("n", nested), ("t", ["null", "string"]))
    maps = st.dictionaries(
        st.text(max_size=3), st.none() | st.binary(max_size=3).map(lambda b: (1, b)), max_size=3
    )
    rows = st.fixed_dictionaries(
        {
            "id": st.integers(-(2**63), 2**63 - 1),
            "n": st.lists(maps, max_size=3),
            "t": st.none() | st.text(max_size=5).map(lambda t: (1, t)),
        }
    )
    good = rows.map(lambda row: (avro(schema, row), row))

    def broken(pair: tuple[bytes, Any]) -> st.SearchStrategy[tuple[bytes | None, Any]]:
        value = pair[0]
        spot = st.integers(0, len(value) - 1)
        flipped = st.tuples(spot, st.integers(1, 255)).map(
            lambda p: value[: p[0]] + bytes([value[p[0]] ^ p[1]]) + value[p[0] + 1 :]
        )
        cut, twice = spot.map(lambda at: value[:at]), st.just(value + value)
        other = st.sampled_from([None, b"", b"{}", b"x" * 100_001])
        return st.one_of(flipped, cut, twice, other, st.binary(max_size=40)).map(lambda v: (v, None))

    drawn = data.draw(st.lists(st.one_of(good, good.flatmap(broken)), max_size=12))
    n = FieldSpec(name="n", type="list<map<string, binary>>")
    found = decode(schema, [value for value, _ in drawn], ID, n, T)
    assert sorted([*found.index, *found.bad]) == list(range(len(drawn)))
    assert [t["offset"] - 100 for t in found.rows["_tarn"].to_pylist()] == list(found.index)
    for row, i in enumerate(found.index):
        wanted = drawn[i][1]
        if wanted is not None:
            here = found.rows.drop_columns("_tarn").slice(row, 1).to_pylist()[0]
            assert here["id"] == wanted["id"]
            assert here["t"] == (None if wanted["t"] is None else wanted["t"][1])
            maps_ = [{k: None if v is None else v[1] for k, v in held.items()} for held in wanted["n"]]
            assert [dict(held) for held in here["n"]] == maps_
    assert all(i in found.index for i, (_, wanted) in enumerate(drawn) if wanted is not None)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 10**9},
            "an Avro decimal of 1000000000 digits",
        ),
        ({"type": "fixed", "name": "F", "size": 2**31}, "size of the Avro fixed F is 2147483648"),
    ],
)
def test_a_container_whose_own_schema_would_take_for_ever_is_a_bad_record(
    kind: dict[str, Any], reason: str
) -> None:
    """Its neighbour is a row: the schema comes with the message, and anybody may send one."""
    schema = record(("id", "long"), ("t", ["null", kind]))
    good = container(json.dumps(PAIR), [(1, GOOD)])
    odd = container(json.dumps(schema), [(1, bytes([2, 0]))])
    found = decode(None, [good, odd, good], ID, encoding="container")
    assert found.index == [0, 2]
    assert reason in found.bad[1]


def chain(depth: int) -> Any:
    """A record whose parts double with each level, and that takes no byte."""
    kind: Any = "null"
    for level in range(depth):
        inner = kind if level == 0 else {**kind} if isinstance(kind, dict) else kind
        again = inner["name"] if isinstance(inner, dict) else inner
        fields = [{"name": "a", "type": inner}, {"name": "b", "type": again}]
        kind = {"type": "record", "name": f"A{level}", "fields": fields}
    return kind


@pytest.mark.parametrize("where", ["unread", "column", "null"])
def test_a_schema_that_doubles_with_each_level_is_a_bad_record_at_once(where: str) -> None:
    deep = chain(40)
    name = "x" if where == "unread" else "t"
    schema = record(("id", "long"), (name, ["null", deep] if where == "null" else deep))
    odd = container(json.dumps(schema), [(1, bytes([2, 0]) if where == "null" else bytes([2]))])
    good = container(json.dumps(PAIR), [(1, GOOD)])
    found = decode(None, [good, odd, good], ID, T, encoding="container")
    assert found.index == [0, 2]
    assert "more than" in found.bad[1] or "more fields" in found.bad[1], found.bad


def test_a_null_of_a_large_fixed_takes_no_memory() -> None:
    large = {"type": "fixed", "name": "F", "size": 2**31 - 1}
    schema = record(("id", "long"), ("t", ["null", large]))
    odd = container(json.dumps(schema), [(1, bytes([2, 0]))])
    usual = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(pool)
    try:
        decode(None, [odd] * 4, ID, T, encoding="container")
    finally:
        pa.set_memory_pool(usual)
    most = pool.max_memory()
    assert most is not None
    assert 0 < most < 1_000_000, "the most that was held at a time"


def test_a_long_schema_of_its_own_makes_a_bad_record() -> None:
    schema = {**record(("id", "long")), "doc": "x" * 70_000}
    found = decode(None, [container(json.dumps(schema), [(1, bytes([2]))])], ID, encoding="container")
    assert "its own schema has" in found.bad[0]


def test_the_elements_of_all_arrays_together_are_no_more_than_the_bytes() -> None:
    """Each inner array of nulls takes two bytes, whatever its length: the sum counts, not each alone."""
    nested = {"type": "array", "items": {"type": "array", "items": "null"}}
    inner, outer = 40, 40
    value = zigzag(outer) + (zigzag(inner) + zigzag(0)) * outer + zigzag(0)
    assert inner < len(value) < inner * outer
    few = zigzag(2) + (zigzag(inner) + zigzag(0)) * 2 + zigzag(0) + b"\x02" + zigzag(100) + b"x" * 100
    schema = record(("v", nested), ("t", ["null", "string"]))
    field = FieldSpec(name="v", type="list<list<long>>")
    found = decode(schema, [value + b"\0", few], field)
    assert found.rows["v"].to_pylist() == [[[None] * inner] * 2]
    assert list(found.bad) == [0]
    assert "40 elements, more than so few bytes can hold" in found.bad[0]


@pytest.mark.parametrize(("spare", "good"), [(0, True), (-1, False)])
def test_as_many_elements_as_bytes_are_read_and_not_one_more(spare: int, good: bool) -> None:
    schema = record(("v", {"type": "array", "items": "null"}), ("t", "bytes"))
    value = zigzag(64) + zigzag(0) + zigzag(60 + spare) + b"x" * (60 + spare)
    assert len(value) == 64 + spare
    assert (decode(schema, [value], FieldSpec(name="v", type="list<long>")).bad == {}) == good


@pytest.mark.parametrize(("size", "good"), [(9_875, True), (9_874, False)])
def test_records_have_no_more_fields_than_the_length_allows(size: int, good: bool) -> None:
    fields = [{"name": f"f{n}", "type": "null"} for n in range(1_599)]
    items = {"type": "array", "items": {"type": "record", "name": "I", "fields": fields}}
    assert 100 * (1 + len(fields)) == STEPS_PER_BYTE * 9_875 + STEPS_MIN
    read = Readers().of(parse_schema(json.dumps(items)))
    cursor = Cursor((zigzag(100) + zigzag(0)).ljust(size, b"x"))
    if good:
        assert len(read(cursor)) == 100
    else:
        with pytest.raises(AvroValueError, match="more fields than a message of its length may have"):
            read(cursor)


def shared(levels: int, leaf: str) -> dict[str, Any]:
    """A record of 10 to the power of `levels` fields in a short schema, as records share types."""
    kind: Any = leaf
    for level in range(levels):
        names: list[Any] = [kind, *[f"L{level - 1}" if level else leaf] * 9]
        kind = {"type": "record", "name": f"L{level}"}
        kind["fields"] = [{"name": f"f{n}", "type": one} for n, one in enumerate(names)]
    return {**record(("id", "long"), ("v", kind)), "name": "M"}


def test_a_short_message_does_not_stand_for_very_many_fields() -> None:
    """A batch of such messages would fill the memory, and take minutes."""
    value = container(json.dumps(shared(4, "null")), [(1, bytes([2]))])
    assert len(value) < 2_000
    found = decode(None, [value, container(json.dumps(PAIR), [(1, GOOD)])], ID, encoding="container")
    assert found.index == [1]
    assert "more fields than a message of its length may have" in found.bad[0]


def held_at_once(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many records were made columns at a time, from now on."""
    counts: list[int] = []
    inner = AvroParser._rows

    def seen(self: AvroParser, kinds: Any, held: Any) -> Parsed:
        counts.append(len(held))
        return inner(self, kinds, held)

    monkeypatch.setattr(AvroParser, "_rows", seen)
    return counts


def test_few_records_are_objects_at_one_time_and_all_are_rows_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = record(("t", ["null", "string"]), ("id", "long"))
    values: list[bytes | None] = []
    for n in range(40):
        schema, datum = (PAIR, zigzag(n) + zigzag(0)) if n % 3 else (other, zigzag(0) + zigzag(n))
        values.append(b"junk" if n % 10 == 9 else container(json.dumps(schema), [(1, datum)]))
    whole = decode(None, values, ID, T, encoding="container")
    counts = held_at_once(monkeypatch)
    monkeypatch.setattr(avro_parser, "HELD_MAX", 11)
    found = decode(None, values, ID, T, encoding="container")
    assert found.rows.equals(whole.rows)
    assert (found.index, found.bad) == (whole.index, whole.bad)
    assert found.rows["id"].to_pylist() == [n for n in range(40) if n % 10 != 9]
    assert (sum(counts), max(counts)) == (36, 3), "three fields each, of two schemas"


def test_nulls_of_a_large_record_are_made_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow holds a null of it as a null of each of its parts."""
    schema = shared(2, "double")
    schema["fields"][1]["type"] = ["null", schema["fields"][1]["type"]]
    kind = "struct<f1: struct<f1: double>>"
    counts = held_at_once(monkeypatch)
    monkeypatch.setattr(avro_parser, "CELLS_MAX", 350)
    values: list[bytes | None] = [bytes([2 * n, 0]) for n in range(10)]
    found = decode(schema, values, ID, FieldSpec(name="v", type=kind))
    assert found.rows["id"].to_pylist() == list(range(10))
    assert found.rows["v"].to_pylist() == [None] * 10
    assert counts == [3, 3, 3, 1], "of 111 parts each"


@pytest.mark.parametrize(("levels", "good"), [(PARTS_MAX - 1, True), (PARTS_MAX, False)])
def test_the_type_of_a_column_has_a_limited_number_of_parts(levels: int, good: bool) -> None:
    fields = ",".join(f'{{"name": "f{n}", "type": "long"}}' for n in range(levels))
    schema = f'{{"type": "record", "name": "R", "fields": [{fields}]}}'
    held = f'{{"type": "record", "name": "M", "fields": [{{"name": "v", "type": ["null", {schema}]}}]}}'
    if good:
        assert column_type(parse_schema(held), ["v"]).num_fields == levels
    else:
        with pytest.raises(ValueError, match=f"more than {PARTS_MAX} parts"):
            column_type(parse_schema(held), ["v"])


def test_a_schema_of_its_own_has_as_many_bytes_as_are_read_and_not_one_more() -> None:
    def padded(size: int) -> bytes:
        schema = json.dumps(record(("id", "long")))
        return container(schema + " " * (size - len(schema)), [(1, bytes([2]))])

    values: list[bytes | None] = [padded(OWN_SCHEMA_BYTES_MAX), padded(OWN_SCHEMA_BYTES_MAX + 1)]
    found = decode(None, values, ID, encoding="container")
    assert found.rows["id"].to_pylist() == [1]
    assert "its own schema has 65537 bytes, at most 65536 are read" in found.bad[1]


def test_the_head_of_a_container_has_no_more_entries_than_bytes() -> None:
    good = container(json.dumps(PAIR), [(1, GOOD)])
    heads: list[bytes | None] = [b"Obj\x01" + zigzag(count) for count in (2**40, -(2**40))]
    found = decode(None, [good, *heads], ID, encoding="container")
    assert found.index == [0]
    assert f"whose header has {2**40} entries" in found.bad[1]
    assert "ends after" in found.bad[2]


def test_a_decimal_may_have_more_bytes_than_its_digits_need() -> None:
    """Some writers always take 16 bytes, and fill them with the sign."""
    kind = {"type": "fixed", "name": "F", "size": 16, "logicalType": "decimal", "precision": 4, "scale": 2}
    schema = record(("id", kind), ("t", {"type": "bytes", "logicalType": "decimal", "precision": 4}))
    values: list[bytes | None] = [
        avro(schema, {"id": Decimal(number), "t": Decimal(7)}) for number in ("12.34", "-12.34", "99.99")
    ]
    fields = FieldSpec(name="id", type="decimal(4, 2)"), FieldSpec(name="t", type="decimal(4, 0)")
    found = decode(schema, values, *fields)
    assert found.bad == {}
    assert found.rows["id"].to_pylist() == [Decimal("12.34"), Decimal("-12.34"), Decimal("99.99")]
    assert found.rows["t"].to_pylist() == [Decimal(7)] * 3
