"""Rows over HTTP: what is taken, what is named as bad, and that it can be read when the answer comes."""

from __future__ import annotations

import io
import json
from typing import Any

import pyarrow as pa
import pytest

from tests.support.gateway import World, row


def arrow(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue()


BODIES: dict[str, tuple[str, Any, list[int]]] = {
    "one object": ("application/json", row(1), [1]),
    "an array": ("application/json; charset=utf-8", [row(1), row(2)], [1, 2]),
    "lines": (
        "application/x-ndjson",
        b"\n".join(json.dumps(row(n)).encode() for n in (1, 2, 3)) + b"\r\n\n",
        [1, 2, 3],
    ),
    "arrow": ("application/vnd.apache.arrow.stream", arrow(pa.table({"id": [4, 5]})), [4, 5]),
}


@pytest.mark.parametrize("form", BODIES)
def test_rows_can_be_read_when_the_answer_comes(world: World, form: str) -> None:
    kind, body, ids = BODIES[form]
    gateway = world.gateway()
    answer = world.post(gateway, body, kind=kind)
    assert (answer.status_code, answer.json()) == (
        200,
        {
            "durability": "lake",
            "accepted": len(ids),
            "rejected": [],
            "snapshot-id": world.lake.table().head_id,
            "repeated": False,
        },
    )
    assert world.ids() == ids


def test_bad_rows_are_named_with_the_field_and_the_others_are_in(world: World) -> None:
    gateway = world.gateway()
    rows = [
        row(1),
        {"id": "x"},
        {**row(2), "idd": 3},
        {},
        7,
        {**row(3), "at": "y" * 1_100_000},
        row(4),
        {**row(5), "at": "never"},
    ]
    found = world.post(gateway, rows).json()
    assert found["accepted"] == 2
    reasons = {one["row"]: one["reason"] for one in found["rejected"]}
    assert list(reasons) == [1, 2, 3, 4, 5, 7]
    assert "id: expected a whole number, found text 'x'" in reasons[1]
    assert "unknown field `idd`" in reasons[2]
    assert "the columns are id, at" in reasons[2]
    assert "id: required" in reasons[3]
    assert "object" in reasons[4]
    assert "more than the limit of a row" in reasons[5]
    assert "at:" in reasons[7]
    assert world.ids() == [1, 4]


def test_an_arrow_field_without_a_column_is_named(world: World) -> None:
    gateway = world.gateway()
    body = arrow(pa.table({"id": [1], "idd": [2]}))
    answer = world.post(gateway, body, kind="application/vnd.apache.arrow.stream")
    assert answer.status_code == 422
    assert "unknown field `idd`" in answer.json()["rejected"][0]["reason"]


def test_a_write_without_a_good_row_is_no_success(world: World) -> None:
    gateway = world.gateway()
    answer = world.post(gateway, [{}, {}])
    assert (answer.status_code, answer.json()["accepted"]) == (422, 0)
    assert world.ids() == []


def test_a_table_in_a_nested_namespace_and_with_a_name_that_is_encoded(world: World) -> None:
    gateway = world.gateway()
    for levels in (["a"], ["a", "b"]):
        world.admin("POST", "/v1/namespaces", {"namespace": levels})
    field = {"id": 1, "name": "id", "type": "long", "required": False}
    made = {"name": "ä b", "schema": {"type": "struct", "fields": [field]}}
    world.admin("POST", "/v1/namespaces/a%1Fb/tables", made)
    answer = world.post(gateway, {"id": 1}, table="a.b.%C3%A4%20b")
    assert answer.status_code == 200, answer.text
    assert [r["id"] for r in world.lake.rows("a.b.ä b")] == [1]


def test_a_column_added_meanwhile_is_taken(world: World) -> None:
    gateway = world.gateway()
    assert world.post(gateway, row(1)).status_code == 200
    schema = world.lake.table().metadata["schemas"][-1]
    last = world.lake.table().metadata["last-column-id"]
    fields = [*schema["fields"], {"id": last + 1, "name": "note", "type": "string", "required": False}]
    updates = [
        {"action": "add-schema", "schema": {**schema, "schema-id": 9, "fields": fields}},
        {"action": "set-current-schema", "schema-id": -1},
    ]
    world.admin("POST", "/v1/namespaces/bronze/tables/orders", {"requirements": [], "updates": updates})
    # The version that the gateway knows is refuted by the next commit.
    assert world.post(gateway, row(2)).status_code == 200
    assert world.post(gateway, {**row(3), "note": "n"}).status_code == 200
    assert [r.get("note") for r in sorted(world.lake.rows(), key=lambda r: r["id"])] == [None, None, "n"]


def test_a_table_that_cannot_take_rows_says_why(world: World) -> None:
    gateway = world.gateway()
    field = {"id": 1, "name": "a b", "type": "long", "required": True}
    made = {"name": "odd", "schema": {"type": "struct", "fields": [field]}}
    world.admin("POST", "/v1/namespaces/bronze/tables", made)
    answer = world.post(gateway, {"id": 1}, table="bronze.odd")
    assert answer.status_code == 409
    assert "column a b" in answer.json()["error"]["message"]
