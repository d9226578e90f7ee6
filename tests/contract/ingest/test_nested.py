"""Nested columns through a whole stream: rows, statistics, merges, tables of other clients, and evolution."""

from __future__ import annotations

import json
import struct
from decimal import Decimal
from typing import Any

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
)

from tarn.core.errors import InvalidSpecError
from tarn.core.table_catalog import TableName
from tarn.testing.memory_topic import Topic
from tests.contract.ingest.test_evolution import send, spec
from tests.contract.ingest.test_extremes import read_by_pyiceberg
from tests.support.lake import Lake

ID = "{name: id, type: long, required: true}"
PLACE = "{name: place, type: 'struct<lat: double, city: string, price: decimal(6, 2)>'}"
LEGS = "{name: legs, type: 'list<struct<carrier: string, n: int>>'}"
TAGS = "{name: tags, type: 'map<string, list<int>>'}"
ALL = (ID, PLACE, LEGS, TAGS)


def message(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "place": {"lat": number + 0.5, "city": f"c{number}", "price": "1.25"} if number % 3 else None,
        "legs": [{"carrier": "x", "n": n} for n in range(number % 4)] if number % 5 else None,
        "tags": {f"k{number}": [number, None], "none": None},
    }


def wanted(number: int) -> dict[str, Any]:
    held = message(number)
    if held["place"] is not None:
        held["place"]["price"] = Decimal(held["place"]["price"])
    held["tags"] = list(held["tags"].items())
    return held


def by_pyiceberg(number: int) -> dict[str, Any]:
    """pyiceberg 0.12 reads a missing list of structs as an empty one; a map of them as well."""
    held = wanted(number)
    return {**held, "legs": held["legs"] or []}


def plain(rows: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    return {row["id"]: {k: v for k, v in row.items() if k != "_tarn"} for row in rows}


@pytest.mark.parametrize("version", [2, 3])
def test_nested_rows_are_read_back_by_another_library(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic("orders", 1)
    lake = Lake(topic)
    send(topic, *(message(n) for n in range(20)), {"id": 20, "legs": [{"n": "many"}]}, {"id": 21})
    lake.work(lake.ingestor(spec(*ALL, version=version)), turns=30)
    (letter,) = lake.rows("ops.dead_letters")
    assert (letter["offset"], letter["reason"]) == (
        20,
        "legs[0].n: expected a whole number, found text 'many'",
    )
    table = read_by_pyiceberg(lake, "bronze.orders", monkeypatch)
    found = plain(table.scan().to_arrow().to_pylist())
    empty = {"id": 21, "place": None, "legs": None, "tags": None}
    assert found == {**{n: by_pyiceberg(n) for n in range(20)}, 21: {**empty, "legs": []}}
    assert plain(lake.rows()) == {**{n: wanted(n) for n in range(20)}, 21: empty}
    far = table.scan(row_filter="place.lat > 17").to_arrow()
    assert sorted(far.column("id").to_pylist()) == [17, 19]


def test_values_below_a_struct_have_bounds_and_those_of_lists_and_maps_have_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = Topic("orders", 1)
    lake = Lake(topic)
    send(topic, *(message(n) for n in range(1, 9)))
    lake.work(lake.ingestor(spec(*ALL)), turns=30)
    schema = read_by_pyiceberg(lake, "bronze.orders", monkeypatch).schema()
    (entry,) = lake.files()
    file = entry.data_file
    lat = schema.find_field("place.lat").field_id
    assert (file.value_counts[lat], file.null_value_counts[lat]) == (8, 2)
    assert struct.unpack("<2d", file.lower_bounds[lat] + file.upper_bounds[lat]) == (1.5, 8.5)
    paths = ("legs.element.n", "tags.key", "tags.value.element")
    below = [schema.find_field(path).field_id for path in paths]
    for field_id in below:
        assert file.column_sizes[field_id] > 0
        assert field_id not in file.value_counts
        assert field_id not in file.lower_bounds
    assert (
        not read_by_pyiceberg(lake, "bronze.orders", monkeypatch)
        .scan(row_filter="place.lat > 99")
        .plan_files()
    )


def test_small_files_with_nested_rows_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic("orders", 1)
    lake = Lake(topic)
    ingestor = lake.ingestor(spec(*ALL))
    turn = [0]

    def until() -> bool:
        turn[0] += 1
        if turn[0] % 12 == 0 and turn[0] <= 120:
            send(topic, *(message(n) for n in range(turn[0], turn[0] + 3)))
        if turn[0] == 140:
            lake.clock.now_s += 61
        return turn[0] > 160

    ingestor.cycle(until)
    numbers = [first + n for first in range(12, 121, 12) for n in range(3)]
    assert len(lake.files()) == 1, "ten files of three rows became one"
    assert plain(lake.rows()) == {n: wanted(n) for n in numbers}
    read = read_by_pyiceberg(lake, "bronze.orders", monkeypatch).scan().to_arrow()
    assert plain(read.to_pylist()) == {n: by_pyiceberg(n) for n in numbers}


def test_fields_are_added_and_widened_within_structs_lists_and_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic("orders", 1)
    lake = Lake(topic)
    send(topic, message(1))
    lake.work(lake.ingestor(spec(*ALL)), turns=30)
    wider = (
        ID,
        PLACE.replace("city: string", "country: string, at: struct<h: int>").replace("(6, 2)", "(9, 2)"),
        "{name: legs, type: 'list<struct<carrier: string, n: long, seats: list<string>>>'}",
        "{name: tags, type: 'map<string, list<long>>'}",
        "{name: more, type: 'map<string, struct<a: int>>'}",
    )
    with pytest.raises(
        InvalidSpecError, match=r"place\.country \(string\) is missing .* `evolution: evolve`"
    ):
        lake.work(lake.ingestor(spec(*wider, evolution="strict")))
    big = 2**40
    send(
        topic,
        {
            "id": 2,
            "place": {"country": "NZ", "lat": 1, "city": "lost", "price": "123456.00", "at": {"h": 3}},
            "legs": [{"n": big, "seats": ["1A"]}],
            "tags": {"k": [big]},
            "more": {"m": {"a": 1}},
        },
    )
    lake.work(lake.ingestor(spec(*wider)), turns=30)
    table = read_by_pyiceberg(lake, "bronze.orders", monkeypatch)
    first, second = (plain(table.scan().to_arrow().to_pylist())[n] for n in (1, 2))
    assert first["place"] == {"lat": 1.5, "city": "c1", "price": Decimal("1.25"), "country": None, "at": None}
    assert first["legs"] == [{"carrier": "x", "n": 0, "seats": None}]
    assert (first["tags"], first["more"]) == ([("k1", [1, None]), ("none", None)], None)
    assert second["place"] == {
        "lat": 1.0,
        "city": None,
        "price": Decimal("123456.00"),
        "country": "NZ",
        "at": {"h": 3},
    }
    assert second["legs"] == [{"carrier": None, "n": big, "seats": ["1A"]}]
    assert (second["tags"], second["more"]) == ([("k", [big])], [("m", {"a": 1})])
    schemas = len(lake.table().metadata["schemas"])
    assert table.schema().highest_field_id == lake.table().metadata["last-column-id"]
    lake.work(lake.ingestor(spec(*wider)), turns=10)
    assert len(lake.table().metadata["schemas"]) == schemas == 2, "what fits is left alone"


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        ("{name: place, type: 'struct<lat: string>'}", "column place.lat is double in the table, string in"),
        (
            "{name: place, type: 'list<double>'}",
            "column place is struct<lat: double, city: string, price: dec",
        ),
        (
            "{name: legs, type: string}",
            "column legs is list<struct<carrier: string, n: int>> in the table, str",
        ),
        (
            "{name: legs, type: 'list<string>'}",
            "column legs.element is struct<carrier: string, n: int> in the",
        ),
        (
            "{name: legs, type: 'list<struct<N: int>>'}",
            "column legs.element.N of the spec is legs.element.n in",
        ),
        ("{name: tags, type: 'map<string, list<string>>'}", "column tags.value.element is int in the table"),
        (
            "{name: id, type: 'list<long>', required: true}",
            "column id is long in the table, list<long> in the",
        ),
    ],
)
def test_a_nested_difference_that_evolution_cannot_mend_is_named(column: str, reason: str) -> None:
    topic = Topic("orders", 1)
    lake = Lake(topic)
    lake.work(lake.ingestor(spec(*ALL)), turns=10)
    name = column.split(",")[0]
    kept = [c for c in ALL if not c.startswith(name)]
    before = lake.table().metadata["schemas"]
    with pytest.raises(InvalidSpecError) as caught:
        lake.work(lake.ingestor(spec(*kept, column, "{name: note, type: string}")))
    assert reason in str(caught.value)
    assert lake.table().metadata["schemas"] == before


def created_elsewhere(lake: Lake, *, required: bool) -> None:
    """A table as another client creates it: more fields than the spec, and its own order."""
    legs = StructType(
        NestedField(11, "gate", StringType(), required=False),
        NestedField(12, "n", IntegerType(), required=required),
        NestedField(13, "carrier", StringType(), required=False),
    )
    schema = Schema(
        NestedField(1, "tags", MapType(21, StringType(), 22, ListType(23, IntegerType(), False), False)),
        NestedField(2, "legs", ListType(31, legs, False)),
        NestedField(3, "id", LongType(), required=True),
    )
    lake.local.create_namespace(("bronze",))
    body = {
        "schema": schema.model_dump(mode="json", by_alias=True),
        **{"partition-spec": None, "write-order": None, "properties": {}},
    }
    lake.local.create(TableName(("bronze",), "orders"), body)


def test_a_table_of_another_client_may_have_more_fields_and_another_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = Topic("orders", 1)
    lake = Lake(topic)
    created_elsewhere(lake, required=False)
    send(topic, message(7))
    lake.work(lake.ingestor(spec(ID, LEGS, TAGS, trace=False, evolution="strict")), turns=30)
    (row,) = read_by_pyiceberg(lake, "bronze.orders", monkeypatch).scan().to_arrow().to_pylist()
    assert row["legs"] == [{"gate": None, "n": n, "carrier": "x"} for n in range(3)]
    assert row["tags"] == [("k7", [7, None]), ("none", None)]


def test_a_nested_value_that_the_table_requires_is_made_optional_or_named() -> None:
    topic = Topic("orders", 1)
    lake = Lake(topic)
    created_elsewhere(lake, required=True)
    with pytest.raises(
        InvalidSpecError, match=r"legs\.element\.n is required in the table; in a spec nested"
    ):
        lake.work(lake.ingestor(spec(ID, LEGS, TAGS, trace=False, evolution="strict")))
    fewer = spec(
        ID, "{name: legs, type: 'list<struct<carrier: string>>'}", TAGS, trace=False, evolution="strict"
    )
    with pytest.raises(InvalidSpecError, match=r"legs\.element\.n is required in the table and not in the"):
        lake.work(lake.ingestor(fewer))
    send(topic, {"id": 1, "legs": [{"carrier": "x"}]})
    lake.work(lake.ingestor(spec(ID, LEGS, TAGS, trace=False)), turns=30)
    (row,) = lake.rows()
    assert row["legs"] == [{"n": None, "carrier": "x"}]


def test_a_struct_with_an_identifier_stays_required_and_is_named() -> None:
    inner = NestedField(2, "key", LongType(), required=True)
    schema = Schema(
        NestedField(1, "who", StructType(inner), required=True),
        NestedField(3, "id", LongType(), required=False),
        identifier_field_ids=[2],
    )
    lake = Lake(Topic("orders", 1))
    lake.local.create_namespace(("bronze",))
    empty = {"partition-spec": None, "write-order": None, "properties": {}}
    body = {"schema": schema.model_dump(mode="json", by_alias=True), **empty}
    lake.local.create(TableName(("bronze",), "orders"), body)
    with pytest.raises(InvalidSpecError, match="column who is required in the table and not in the spec"):
        lake.work(lake.ingestor(spec("{name: id, type: long}", "{name: note, type: string}", trace=False)))
    assert len(lake.table().metadata["schemas"]) == 1


def test_a_nested_column_is_no_partition() -> None:
    with pytest.raises(InvalidSpecError, match=r"column place is struct<.*only a column of a primitive type"):
        spec(*ALL, partitioning="[place]")


def test_messages_of_nested_streams_are_json_with_nothing_lost_beside_bad_ones() -> None:
    topic = Topic("orders", 2)
    lake = Lake(topic)
    for n in range(200):
        bad = json.dumps({"id": n, "tags": {"k": [str(n)]}}).encode()
        topic.send(n % 2, bad if n % 7 == 0 else json.dumps(message(n)).encode())
    lake.work(lake.ingestor(spec(*ALL)), turns=60)
    letters = {(r["partition"], r["offset"]) for r in lake.rows("ops.dead_letters")}
    assert len(letters) == len(range(0, 200, 7))
    assert sorted([*lake.offsets(), *letters]) == [(p, o) for p in range(2) for o in range(100)]
