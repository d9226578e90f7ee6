"""Columns that keep JSON as text: the very text of a value, what no column reads, and what has none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tarn.core.spec import FieldSpec, SchemaSpec
from tarn.ingest.batch_commit import decode
from tests.unit.ingest.test_decode import batch, decoder, texts, values

FIELDS = (
    FieldSpec(name="id", type="long", required=True),
    FieldSpec(name="rest", type="string", source="*", encoding="json"),
    FieldSpec(name="p", type="string", encoding="json"),
    FieldSpec(name="name", type="string", source="p.name"),
    FieldSpec(name="deep", type="string", source="p.a.b", encoding="json"),
)


def rows(*messages: bytes) -> tuple[list[dict[str, Any]], dict[int, str]]:
    found = decoder(FIELDS, trace=False).decode(batch(list(messages)))
    return found.rows.to_pylist(), found.bad


@pytest.mark.parametrize("beside", [b'{"id":0}', b"junk", b'{"id":0.0}'])
def test_the_text_is_kept_as_it_was_sent(beside: bytes) -> None:
    message = '{"id":1, "p": {"name":"x","a":{"b":[1, 2e400]}} , "z":1e400, "é":"\\u00e9é" }'
    found, bad = rows(beside, message.encode())
    assert 1 not in bad
    assert found[-1] == {
        "id": 1,
        "rest": '{"z":1e400,"é":"\\u00e9é"}',
        "p": '{"name":"x","a":{"b":[1, 2e400]}}',
        "name": "x",
        "deep": "[1, 2e400]",
    }


def test_null_and_missing_values_have_no_text_and_any_other_has() -> None:
    found, bad = rows(
        b'{"id":1}',
        b'{"id":2,"p":null,"z":null}',
        b'{"id":3,"p":{"a":null}}',
        b'{"id":4,"p":{"a":{"b":"t"}}}',
        b'{"id":5.0,"p":{},"y":{}}',
    )
    assert bad == {}
    assert [(r["p"], r["deep"], r["rest"]) for r in found] == [
        (None, None, None),
        (None, None, '{"z":null}'),
        ('{"a":null}', None, None),
        ('{"a":{"b":"t"}}', '"t"', None),
        ("{}", None, '{"y":{}}'),
    ]


def test_a_path_through_something_else_than_an_object_is_a_bad_record_beside_good_ones() -> None:
    deep = b'{"id":3,"q":%s1%s}' % (b"[" * 1_100, b"]" * 1_100)
    found, bad = rows(b'{"id":1}', b'{"id":2,"p":{"a":[7]}}', deep, b'{"id":4,"k":1}', b'{"id":"x"}')
    assert [row["id"] for row in found] == [1, 4]
    assert found[1]["rest"] == '{"k":1}'
    assert bad[1] == "p.a: expected an object"
    assert bad[2].startswith("its JSON cannot be kept as text: ")
    assert bad[4] == "id: expected a whole number, found text 'x'"


def test_a_required_text_must_be_there() -> None:
    fields = (FieldSpec(name="p", type="string", encoding="json", required=True),)
    found = decoder(fields, trace=False).decode(batch([b'{"p":[]}', b'{"p":null}']))
    assert found.rows.to_pylist() == [{"p": "[]"}]
    assert found.bad == {1: "p: required, but missing or null"}


def test_many_wrong_paths_among_good_records_reject_only_themselves() -> None:
    wrong = b'{"id":1,"p":{"a":1e999}}'
    values = [wrong if n % 3 == 0 else b'{"id":2,"p":{"a":{"b":1}}}' for n in range(9_000)]
    found = decode(decoder(FIELDS, trace=False), batch(list(values)))
    assert len(found.bad) == 3_000
    assert set(found.bad.values()) == {"p.a: expected an object"}


def test_a_key_that_is_a_star_is_not_read_and_kept() -> None:
    (row,), _ = rows(b'{"id":1,"*":5,"z":2}')
    assert row["rest"] == '{"*":5,"z":2}'


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(
    message=st.fixed_dictionaries(
        {"id": st.integers(0, 9) | st.floats(0, 9).map(round).map(float)},
        optional={"p": st.dictionaries(st.sampled_from(["b", "c"]) | texts, values, max_size=3)},
    ).flatmap(lambda m: st.dictionaries(texts, values, max_size=3).map(lambda more: {**more, **m})),
    spaces=st.booleans(),
)
def test_nothing_of_a_message_is_lost(message: dict[str, Any], spaces: bool) -> None:
    p = {} if message.get("p") is None else message["p"]
    if not isinstance(p, dict):
        p = message["p"] = {}
    if not isinstance(p.get("name", ""), str | None):
        p.pop("name")
    if not isinstance(p.get("a", {}), dict | None):
        p.pop("a")
    text = json.dumps(message, indent=1 if spaces else None, ensure_ascii=False)
    (row,), bad = rows(text.encode())
    assert bad == {}
    whole = {**json.loads(row["rest"] or "{}"), "id": row["id"]}
    if row["p"] is not None:
        whole["p"] = json.loads(row["p"])
    assert whole == {key: value for key, value in message.items() if key != "p" or value is not None}


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        ({"type": "long", "encoding": "json"}, "encoding 'json' is for string, not for long"),
        ({"type": "list<string>", "encoding": "json"}, "not for list<string>: the text is kept"),
        ({"type": "string", "from": "*"}, "from '*' is what no column reads; it needs type string, encoding"),
        ({"type": "string", "encoding": "json", "values": ["a"]}, "values is for a text that is sent"),
        ({"type": "string", "encoding": "epoch-millis"}, "is for timestamp and timestamptz, not for string"),
    ],
)
def test_what_makes_no_sense_is_refused(field: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=r".") as caught:
        FieldSpec.model_validate({"name": "c", **field})
    assert reason in str(caught.value)


def test_a_text_may_hold_what_other_columns_read() -> None:
    read = {"name": "name", "type": "string", "from": "p.name"}
    SchemaSpec.model_validate({"fields": [{"name": "p", "type": "string", "encoding": "json"}, read]})
    with pytest.raises(ValidationError, match="which is a column's own value"):
        SchemaSpec.model_validate({"fields": [{"name": "p", "type": "string"}, read]})
