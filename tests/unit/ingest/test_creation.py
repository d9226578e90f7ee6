"""Columns for a table that does not exist, from samples in each format; pure."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tarn.core.column_types import STRUCT_FIELDS_MAX, Primitive, Struct
from tarn.core.creation import Sampled, columns_for, columns_of_writer, needs_messages, sampled
from tarn.core.errors import InvalidSpecError
from tarn.core.spec import FieldSpec, IngestorBody, parse_spec
from tarn.core.spec.fields import FIELDS_MAX
from tests.support.messages import arrow, avro, container

TEXT = """
apiVersion: tarn/v1
kind: Ingestor
metadata: {name: orders}
spec:
  source: {kafka: {topic: orders}, SOURCE}
  table: {namespace: bronze, name: orders, partitioning: PARTITIONING}
  schema: {infer: true}
  mapping: MAPPING
"""


def body(source: str = "format: json", mapping: str = "{}", partitioning: str = "[]") -> IngestorBody:
    text = TEXT.replace("SOURCE", source).replace("MAPPING", mapping)
    return parse_spec(text.replace("PARTITIONING", partitioning), file="orders.yaml").spec


def types(fields: tuple[FieldSpec, ...]) -> dict[str, str]:
    return {field.name: field.type for field in fields}


def of_json(*messages: dict[str, Any], mapping: str = "{}") -> tuple[dict[str, str], tuple[str, ...]]:
    made = body(mapping=mapping)
    found = columns_for(made, sampled(made, [json.dumps(message).encode() for message in messages]))
    return types(found.fields), found.notes


def test_types_are_the_plain_ones() -> None:
    found, notes = of_json(
        {
            "i": 1,
            "d": 1.5,
            "mix": 1,
            "b": True,
            "at": "2026-11-22T08:00:00+01:00",
            "half": "2026-11-22T08:00:00Z",
        },
        {"mix": 2.5, "half": "soon", "at": "2026-11-22T08:00:00.123456789Z", "no": None, "empty": []},
        {"day": "2026-11-22", "u": "00000000-0000-0000-0000-000000000001", "local": "2026-11-22T08:00:00"},
        {"o": {"x": 1, "l": [{"y": "a"}]}},
    )
    assert found == {
        **{
            "i": "long",
            "d": "double",
            "mix": "double",
            "b": "boolean",
            "at": "timestamptz",
            "half": "string",
        },
        **{"day": "string", "u": "string", "local": "string"},
        "o": "struct<x: long, l: list<struct<y: string>>>",
    }
    assert [note.partition(":")[0] for note in notes] == ["'no'", "'empty[]'"], "what is left out is named"


def test_names_that_no_column_can_have_are_left_out_unless_a_mapping_renames_them() -> None:
    found, notes = of_json({"a b": 1, "ok": 1, "OK": 2, "_tarn": 3, "x.y": 4})
    assert found == {"ok": "long"}
    assert len(notes) == 4
    assert "mapping.rename gives it another" in notes[0]
    assert of_json({"a b": 1}, mapping="{rename: {a b: ab}}") == ({"ab": "long"}, ())


def test_a_mapping_names_types_and_leaves_out() -> None:
    mapping = "{rename: {u.id: user, a: b}, cast: {n: string, later: date}, drop: [debug], rest: rest}"
    found, notes = of_json(
        {"n": 5, "u": {"id": 1, "x": 2}, "a": "x", "b": 7, "debug": 1, "rest": {"z": 1}}, mapping=mapping
    )
    assert found == {"n": "string", "user": "long", "b": "string", "later": "date", "rest": "string"}
    assert notes == ("'b': left out, as mapping.rename fills the column of this name",)


@pytest.mark.parametrize(
    ("value", "cast", "fits"),
    [
        (1, "string", True),
        (1, "decimal(9, 2)", True),
        (1.5, "decimal(9, 2)", True),
        (1.5, "long", True),
        ("1", "long", True),
        (1, "timestamptz", False),
        (1, "boolean", False),
        (True, "long", False),
        ([1], "string", False),
    ],
)
def test_a_cast_that_can_never_work_is_refused(value: Any, cast: str, fits: bool) -> None:
    if fits:
        assert of_json({"v": value}, mapping=f"{{cast: {{v: '{cast}'}}}}")[0] == {"v": cast}
        return
    with pytest.raises(ValueError, match=r"makes v a .* no such value can be cast; choose another type"):
        of_json({"v": value}, mapping=f"{{cast: {{v: {cast}}}}}")


def test_what_a_table_has_is_kept_and_only_added_to() -> None:
    made = body(mapping="{rename: {gone: here}, cast: {old: string}, rest: rest}")
    known = [
        FieldSpec(name="a", type="string"),
        FieldSpec(name="s", type="struct<x: int, l: list<struct<p: long>>>"),
        FieldSpec(name="here", type="long"),
        FieldSpec(name="old", type="string"),
        FieldSpec(name="rest", type="string"),
    ]
    sample = sampled(
        made, [b'{"a": 1, "s": {"x": 2.5, "y": 1, "l": [{"p": "t", "q": true}]}, "A": 2, "n": 1}']
    )
    found = columns_for(made, sample, known=known)
    assert types(found.fields) == {
        "a": "string",
        "s": "struct<x: int, l: list<struct<p: long, q: boolean>>, y: long>",
        **{"here": "long", "old": "string", "rest": "string", "n": "long"},
    }
    assert found.notes == ("'A': left out, as another column differs by upper and lower case only",)


@pytest.mark.parametrize("value", [True, {"x": 1}, [1]])
def test_values_that_no_cast_takes_are_for_the_decoder_once_the_table_has_the_column(value: Any) -> None:
    made = body(mapping="{rename: {u.id: user}, cast: {id: long, user: long}}")
    sample = sampled(made, [json.dumps({"id": value, "u": {"id": value}, "n": 1}).encode()])
    known = [FieldSpec(name="id", type="long"), FieldSpec(name="user", type="long")]
    assert types(columns_for(made, sample, known=known).fields) == {"id": "long", "user": "long", "n": "long"}
    with pytest.raises(ValueError, match="no such value can be cast"):
        columns_for(made, sample, known=known[:1])
    with pytest.raises(ValueError, match="no such value can be cast"):
        columns_for(made, sample)


def keys(count: int, kind: str = "k") -> dict[str, int]:
    return {f"{kind}{n}": n for n in range(count)}


@pytest.mark.long
def test_a_new_table_of_more_columns_than_a_spec_may_name_is_refused() -> None:
    assert len(of_json(keys(FIELDS_MAX))[0]) == FIELDS_MAX
    for mapping, count in (("{}", 1_001), ("{rest: rest}", 1_000), ("{cast: {k0: long, x: date}}", 1_000)):
        with pytest.raises(
            ValueError, match=r"1,001 columns are more than 1,000: .* schema\.fields, .*\.drop"
        ):
            of_json(keys(count), mapping=mapping)
    assert len(of_json(keys(1_001), mapping="{drop: [k7]}")[0]) == FIELDS_MAX
    with pytest.raises(ValueError, match="8,000 columns"):
        of_json(keys(8_000))


def test_keys_that_a_table_has_no_room_for_are_counted_and_what_the_mapping_names_is_added() -> None:
    made = body(mapping="{cast: {late: long}, rest: rest}")
    known = [FieldSpec(name=name, type="long") for name in keys(FIELDS_MAX - 3)]
    sample = sampled(made, [json.dumps({**keys(FIELDS_MAX), "late": 1, "K1": 1}).encode()])
    found = columns_for(made, sample, known=known)
    assert list(types(found.fields))[-4:] == ["k996", "k997", "late", "rest"]
    assert (len(found.fields), found.over) == (FIELDS_MAX, 2)
    assert found.notes == ("'K1': left out, as another column differs by upper and lower case only",)
    more = [*found.fields, FieldSpec(name="own", type="long")]
    assert columns_for(made, sample, known=more).fields == tuple(more), "a table may have more than that"


def test_a_struct_grows_to_as_many_fields_as_a_spec_may_give_it() -> None:
    known = [FieldSpec(name="s", type="struct<a: long, B: long>")]
    sample = sampled(body(), [json.dumps({"s": {**keys(FIELDS_MAX - 1), "b": 1}}).encode()])
    (field,) = columns_for(body(), sample, known=known).fields
    assert isinstance(field.kind, Struct)
    assert len(field.kind.fields) == STRUCT_FIELDS_MAX
    wide = pa.schema([("s", pa.struct([(name, pa.int8()) for name in keys(FIELDS_MAX + 1)]))])
    made = body("format: arrow")
    found = sampled(made, [arrow({"s": keys(0)}, wide)])
    assert (dict(found.types), len(found.notes)) == ({}, 1)
    assert "1,001 fields of a struct are more than 1,000" in found.notes[0]
    one, two = (pa.schema([("s", pa.struct([(name, pa.int8())]))]) for name in ("a", "A"))
    both = sampled(made, [arrow({"s": {"a": 1}}, one), arrow({"s": {"A": 1}}, two)])
    assert types(columns_for(made, both).fields) == {"s": "struct<a: int>"}


@pytest.mark.long
def test_many_keys_cost_as_many_steps() -> None:
    """Each name is looked up, not compared with all others: that would take an hour."""
    made = body()
    sample = Sampled(types={f"k{n}": Primitive("long") for n in range(200_000)}, notes=())
    found = columns_for(made, sample, known=[FieldSpec(name="id", type="long")])
    assert (len(found.fields), found.over) == (FIELDS_MAX, 199_001)


def test_partitioning_and_event_time_are_checked_against_the_sample() -> None:
    made = body(partitioning="[day(at)]")
    with pytest.raises(ValueError, match=r"column at is string, and day takes date, .* for string use"):
        columns_for(made, sampled(made, [b'{"at": "soon"}']))
    assert columns_for(made, sampled(made, [b'{"at": "2026-11-22T08:00:00Z"}'])).fields


ARROW = {
    "i": (pa.int16(), 1, "int"),
    "l": (pa.uint32(), 1, "long"),
    "u": (pa.uint64(), 1, "decimal(20, 0)"),
    "f": (pa.float32(), 1.0, "float"),
    "m": (pa.decimal128(5, 2), Decimal("1.00"), "decimal(5, 2)"),
    "d": (pa.date64(), 0, "date"),
    "t": (pa.timestamp("ns", "UTC"), 0, "timestamptz"),
    "n": (pa.timestamp("s"), 0, "timestamp"),
    "x": (pa.large_binary(), b"x", "binary"),
    "c": (pa.dictionary(pa.int8(), pa.string()), "x", "string"),
    "s": (pa.struct([("a", pa.large_list(pa.int8()))]), {"a": [1]}, "struct<a: list<int>>"),
    "k": (pa.map_(pa.string(), pa.bool_()), [("a", True)], "map<string, boolean>"),
}


def test_arrow_has_types_of_its_own() -> None:
    made = body("format: arrow")
    whole = {name: value for name, (_, value, _) in ARROW.items()} | {"no": None, "clock": 1, "bad": [(1, 1)]}
    odd = {"no": pa.null(), "clock": pa.time64("us"), "bad": pa.map_(pa.int8(), pa.int8())}
    schema = pa.schema([(name, kind) for name, (kind, _, _) in ARROW.items()] + list(odd.items()))
    found = columns_for(made, sampled(made, [b"junk", None, arrow(whole, schema)]))
    assert types(found.fields) == {name: kind for name, (_, _, kind) in ARROW.items()}
    assert [note.split(",")[0] for note in found.notes] == [f"'{name}': left out" for name in odd]


def test_types_of_several_schemas_are_widened_or_the_first() -> None:
    made = body("format: arrow")
    one = arrow(
        {"i": 1, "t": "x", "s": {"a": 1}},
        pa.schema([("i", pa.int8()), ("t", pa.string()), ("s", pa.struct([("a", pa.int8())]))]),
    )
    two = arrow(
        {"i": 1, "t": 1, "s": {"b": 1}},
        pa.schema([("i", pa.int64()), ("t", pa.int8()), ("s", pa.struct([("b", pa.int8())]))]),
    )
    found = columns_for(made, sampled(made, [one, two]))
    assert types(found.fields) == {"i": "long", "t": "string", "s": "struct<a: int, b: int>"}


AVRO = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "either", "type": ["int", "string"]},
    ],
}


def test_avro_is_known_from_the_schema_of_the_writer_in_the_spec_or_in_a_container() -> None:
    of_spec = body(f"format: avro, avro: {{schema: {json.dumps(AVRO)}}}")
    assert not needs_messages(of_spec)
    assert types(columns_of_writer(of_spec, file="x")) == {"id": "long", "note": "string"}
    wrong = body(f"format: avro, avro: {{schema: {json.dumps(AVRO)}}}", partitioning="[day(id)]")
    with pytest.raises(InvalidSpecError, match=r"x: spec: partitioning day\(id\): column id is long"):
        columns_of_writer(wrong, file="x")
    own = body("format: avro, avro: {encoding: container}")
    assert needs_messages(own)
    assert columns_of_writer(own, file="x") == ()
    row = avro(AVRO, {"id": 1, "note": None, "either": (0, 1)})
    sample = sampled(own, [b"junk", container(json.dumps(AVRO), [(1, row)])])
    assert types(columns_for(own, sample).fields) == {"id": "long", "note": "string"}
    assert sample.notes[0].startswith("'either': left out, as it is")


def test_bytes_that_avro_calls_a_uuid_are_one_in_the_table() -> None:
    """Its type never changes afterwards, and bytes cannot be joined with the UUIDs of other tables."""
    made = {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}
    fields = [
        {"name": "id", "type": made},
        {"name": "other", "type": ["null", "U"]},
        {"name": "list", "type": {"type": "array", "items": "U"}},
        {"name": "map", "type": {"type": "map", "values": "U"}},
        {"name": "in", "type": {"type": "record", "name": "I", "fields": [{"name": "id", "type": "U"}]}},
        {"name": "text", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "plain", "type": {"type": "fixed", "name": "F", "size": 16}},
    ]
    schema = json.dumps({"type": "record", "name": "R", "fields": fields})
    wanted = {
        **{"id": "uuid", "other": "uuid", "list": "list<uuid>", "map": "map<string, uuid>"},
        **{"in": "struct<id: uuid>", "text": "string", "plain": "binary"},
    }
    made_body = body(f"format: avro, avro: {{schema: {json.dumps(schema)}}}")
    assert types(columns_of_writer(made_body, file="x")) == wanted
    kept = body(f"format: avro, avro: {{schema: {json.dumps(schema)}}}", mapping="{cast: {id: binary}}")
    assert types(columns_of_writer(kept, file="x")) == {**wanted, "id": "binary"}
    known = [FieldSpec(name="id", type="binary")]
    assert types(columns_for(made_body, sampled(made_body, ()), known=known).fields)["id"] == "binary"


@pytest.mark.parametrize(
    ("column", "kind", "cast"),
    [
        ("gone", "string", False),
        ("either", "long", False),
        ("s", "struct<x: long>", False),
        ("id", "timestamptz", True),
    ],
)
def test_a_column_of_the_table_need_not_go_with_the_schema_of_the_writer(
    column: str, kind: str, cast: bool
) -> None:
    """Its values are null, or bad records: as where the schema is in the message."""
    schema = {**AVRO, "fields": [*AVRO["fields"], {"name": "s", "type": "int"}]}
    form = f"format: avro, avro: {{schema: {json.dumps(schema)}}}"
    made = body(form, mapping=f"{{cast: {{{column}: {kind}}}}}" if cast else "{}")
    known = [FieldSpec(name="n", type="long"), FieldSpec(name=column, type=kind)]
    found = types(columns_for(made, sampled(made, ()), known=known).fields)
    assert found == {"id": "long", "note": "string", "s": "int", "n": "long"} | {column: kind}


def test_a_column_that_the_table_lacks_must_go_with_the_schema_of_the_writer() -> None:
    made = body(f"format: avro, avro: {{schema: {json.dumps(AVRO)}}}", mapping="{cast: {late: date}}")
    known = [FieldSpec(name="id", type="long")]
    with pytest.raises(ValueError, match="late is from 'late', which the Avro schema lacks"):
        columns_for(made, sampled(made, ()), known=known)


def test_a_sample_without_values_gives_no_columns() -> None:
    assert columns_for(body(), Sampled(types={}, notes=())).fields == ()
