"""A spec without a schema: messages fill the columns of the table as it is, whoever made and alters it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DateType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
    TimeType,
)
from structlog.testing import capture_logs

from tarn.adapters.write_schema import known_schema
from tarn.core.column_types import parse_type, type_of
from tarn.core.errors import InvalidSpecError
from tarn.core.spec import IngestorSpec, parse_spec
from tarn.core.table_catalog import TableName
from tarn.core.table_state import CommitRequest, current_schema
from tarn.ingest.status import State
from tarn.ingest.wiring import uuid7
from tarn.testing.memory_topic import Topic
from tests.contract.ingest.test_evolution import send
from tests.support.lake import Lake

TABLE = TableName(("bronze",), "orders")
TEXT = """
apiVersion: tarn/v1
kind: Ingestor
metadata: {name: orders}
spec:
  source: {kafka: {topic: orders}}
  table: {namespace: bronze, name: orders}
  batching: {maxRecords: 10, maxLatencySeconds: 0.05}
  trace: TRACE
"""

WITH_ID = TEXT.replace("TRACE", "false") + "  schema: {fields: [{name: id, type: long}]}\n"


def spec(*, trace: bool = False) -> IngestorSpec:
    return parse_spec(TEXT.replace("TRACE", str(trace).lower()), file="orders.yaml")


def create(lake: Lake, *columns: tuple[str, IcebergType, bool], version: int = 2) -> None:
    """Create the table as another client does."""
    fields = [NestedField(n, name, kind, required=need) for n, (name, kind, need) in enumerate(columns, 1)]
    schema = Schema(*fields).model_dump(mode="json", by_alias=True)
    lake.local.create_namespace(TABLE.namespace)
    properties = {"format-version": str(version)}
    lake.local.create(
        TABLE, {"schema": schema, "partition-spec": None, "write-order": None, "properties": properties}
    )


def alter(lake: Lake, change: Any) -> None:
    """Alter the current schema as another client does; `change` gets the list of fields."""
    metadata = lake.table().metadata
    schema = json.loads(json.dumps(metadata["schemas"][-1]))
    change(schema["fields"])
    schema["schema-id"] = schema["schema-id"] + 1
    updates = [{"action": "add-schema", "schema": schema}, {"action": "set-current-schema", "schema-id": -1}]
    lake.local.commit(TABLE, CommitRequest(requirements=[], updates=updates), key=uuid7())


LEGS = ListType(20, StructType(NestedField(21, "n", LongType(), required=False)), False)
COLUMNS = (
    ("id", LongType(), True),
    ("at", TimestamptzType(), False),
    ("legs", LEGS, False),
)


def test_messages_fill_the_columns_of_the_table() -> None:
    topic = Topic("orders", 1)
    lake = Lake(topic)
    create(lake, *COLUMNS)
    send(
        topic, {"id": 1, "at": "2026-11-22T08:00:00Z", "legs": [{"n": 2, "zz": 1}], "other": 3}, {"at": None}
    )
    lake.work(lake.ingestor(spec()), turns=30)
    (row,) = lake.rows()
    assert (row["id"], row["legs"], row["at"].isoformat()) == (1, [{"n": 2}], "2026-11-22T08:00:00+00:00")
    (letter,) = lake.rows("ops.dead_letters")
    assert letter["reason"] == "id: required, but missing or null"


def test_a_column_that_somebody_adds_drops_or_renames_is_followed_while_messages_flow() -> None:
    topic = Topic("orders", 1)
    lake = Lake(topic)
    create(lake, *COLUMNS)
    ingestor = lake.ingestor(spec())
    note = {"id": 40, "name": "note", "type": "string", "required": False}
    changes = {
        20: lambda fields: fields.append(note),
        40: lambda fields: fields.pop(1),
        60: lambda fields: fields[-1].update(name="remark"),
    }
    turn = [0]

    def until() -> bool:
        turn[0] += 1
        if turn[0] in changes:
            alter(lake, changes[turn[0]])
        if turn[0] <= 80:
            day = f"2026-11-22T08:00:{turn[0] % 60:02}Z"
            send(topic, {"id": turn[0], "at": day, "note": f"n{turn[0]}", "remark": f"r{turn[0]}"})
        return turn[0] > 130

    with capture_logs() as logged:
        while turn[0] <= 130:
            ingestor.cycle(until)
    taken = [entry["columns"] for entry in logged if entry["event"] == "columns taken from the table"]
    assert [[text.split()[0] for text in columns] for columns in taken] == [
        ["id", "at", "legs"],
        ["id", "at", "legs", "note"],
        ["id", "legs", "note"],
        ["id", "legs", "remark"],
    ]
    found = {row["id"]: row for row in lake.rows()}
    assert sorted(found) == list(range(1, 81)), "none is lost, none is there twice"
    assert lake.rows("ops.dead_letters") == []
    assert found[1].get("note") is None
    assert found[39]["note"] == "n39"
    assert found[80]["remark"] == "r80"
    assert lake.registry.get("orders").state is State.RUNNING


def test_without_a_table_it_stops_with_the_reason_and_begins_when_there_is_one() -> None:
    topic = Topic("orders", 1)
    lake = Lake(topic)
    send(topic, {"id": 1})
    ingestor = lake.ingestor(spec())
    with pytest.raises(InvalidSpecError, match=r"bronze\.orders does not exist, and the spec of orders has"):
        ingestor.cycle(lambda: False)
    create(lake, *COLUMNS)
    lake.work(ingestor, turns=30)
    assert [row["id"] for row in lake.rows()] == [1]


def test_columns_that_no_message_can_fill_are_left_out_unless_they_are_required() -> None:
    topic = Topic("orders", 1)
    lake = Lake(topic)
    create(lake, ("id", LongType(), False), ("clock", TimeType(), False), ("a name", StringType(), False))
    send(topic, {"id": 1, "clock": "08:00:00", "a name": "x"})
    with capture_logs() as logged:
        lake.work(lake.ingestor(spec()), turns=30)
    (left,) = [entry["left_out"] for entry in logged if entry["event"] == "columns taken from the table"]
    assert left[0].startswith("column clock (time): 'time' is not a type")
    assert left[1] == "column a name (string): its name has other characters than letters, digits and _"
    assert [row["id"] for row in lake.rows()] == [1]

    lake = Lake(Topic("orders", 1))
    create(lake, ("id", LongType(), False), ("clock", TimeType(), True))
    with pytest.raises(InvalidSpecError, match=r"cannot be filled without a schema in the spec: column"):
        lake.work(lake.ingestor(spec()))
    lake = Lake(Topic("orders", 1))
    create(lake, ("clock", TimeType(), False))
    with pytest.raises(InvalidSpecError, match="it has no column that a message could fill"):
        lake.work(lake.ingestor(spec()))


@pytest.mark.parametrize("kind", ["variant", "geometry(srid:4326)"])
@pytest.mark.parametrize("own", [True, False])
def test_a_column_of_a_type_that_pyiceberg_does_not_read_is_left_out_unless_it_is_required(
    kind: str, own: bool
) -> None:
    topic = Topic("orders", 1)
    lake = Lake(topic)
    create(lake, ("id", LongType(), False), version=3)
    made = spec() if own else parse_spec(WITH_ID, file="orders.yaml")
    ingestor = lake.ingestor(made)
    send(topic, {"id": 1})
    lake.work(ingestor, turns=20)
    alter(lake, lambda fields: fields.append({"id": 9, "name": "v", "type": kind, "required": False}))
    send(topic, {"id": 2, "v": 1})
    lake.work(ingestor, turns=40)
    assert lake.table().total("records") == 2
    assert lake.registry.get("orders").state is State.RUNNING
    required = parse_spec(
        WITH_ID.replace("[{name: id", "[{name: v, type: string}, {name: id"), file="orders.yaml"
    )
    with pytest.raises(
        InvalidSpecError, match=r"column v is (variant|geometry.*) in the table, string in the"
    ):
        lake.ingestor(required).cycle(lambda: False)


def test_an_identifier_beside_a_type_that_pyiceberg_does_not_read_stops_nothing() -> None:
    """Its column is left out with what it is in, and so is no field of the schema that is left."""
    lake = Lake(Topic("orders", 1))
    create(lake, ("id", LongType(), False), version=3)
    inner = [
        {"id": 10, "name": "key", "type": "long", "required": True},
        {"id": 11, "name": "v", "type": "variant", "required": False},
    ]
    column = {"id": 9, "name": "s", "type": {"type": "struct", "fields": inner}, "required": True}
    metadata = lake.table().metadata
    schema = {**current_schema(metadata), "identifier-field-ids": [10]}
    schema["fields"] = [*schema["fields"], column]
    assert [f.name for f in known_schema({**metadata, "schemas": [schema]}).fields] == ["id"]


@pytest.mark.parametrize("own", [True, False])
def test_a_table_of_format_version_1_is_refused_and_taken_once_it_is_upgraded(own: bool) -> None:
    """Its snapshots have no sequence numbers, by which dead letters that wait are known."""
    topic = Topic("orders", 1)
    lake = Lake(topic)
    create(lake, ("id", LongType(), False), version=1)
    ingestor = lake.ingestor(spec() if own else parse_spec(WITH_ID, file="orders.yaml"))
    send(topic, {"id": 1})
    with pytest.raises(InvalidSpecError, match=r"it is of format version 1.* upgrade it to 2"):
        ingestor.cycle(lambda: False)
    assert lake.table().head is None
    updates = [{"action": "upgrade-format-version", "format-version": 2}]
    lake.local.commit(TABLE, CommitRequest(requirements=[], updates=updates), key=uuid7())
    lake.work(ingestor, turns=20)
    assert [row["id"] for row in lake.rows()] == [1]


def test_a_partition_field_that_was_voided_holds_nulls_also_if_its_column_is_required() -> None:
    """As a table has it that was of format version 1 once. Its manifests are merged as others."""
    topic = Topic("orders", 1)
    lake = Lake(topic)
    create(lake, ("id", LongType(), True), ("note", StringType(), False))
    fields = [
        {"source-id": 1, "field-id": 1000, "name": "id", "transform": "void"},
        {"source-id": 2, "field-id": 1001, "name": "note", "transform": "identity"},
    ]
    updates = [
        {"action": "add-spec", "spec": {"fields": fields}},
        {"action": "set-default-spec", "spec-id": -1},
    ]
    lake.local.commit(TABLE, CommitRequest(requirements=[], updates=updates), key=uuid7())
    ingestor = lake.ingestor(spec())
    for number in range(18):
        send(topic, {"id": number, "note": "a"})
        lake.work(ingestor, turns=12)
    assert sorted(row["id"] for row in lake.rows()) == list(range(18))
    assert {tuple(entry.data_file.partition) for entry in lake.files()} == {(None, "a")}

    alter(lake, lambda columns: columns.remove(next(c for c in columns if c["name"] == "id")))
    send(topic, {"id": 18, "note": "a"})
    with pytest.raises(InvalidSpecError, match="partition field id is of a column that was dropped, drop it"):
        ingestor.cycle(lambda: False)
    assert lake.table().total("records") == 18


@pytest.mark.parametrize("transform", ["identity", "bucket[4]", "void"])
def test_a_partition_field_of_a_column_that_only_has_a_default_is_refused(transform: str) -> None:
    """Rows without the column read as 'eu'; a partition value of null would hide them from queries for it."""
    topic = Topic("orders", 1)
    lake = Lake(topic)
    create(lake, ("id", LongType(), False), version=3)
    region = {"id": 2, "name": "region", "type": "string", "required": False, "initial-default": "eu"}
    alter(lake, lambda columns: columns.append(region))
    of_id = parse_spec(WITH_ID, file="orders.yaml")
    send(topic, {"id": 1})
    lake.work(lake.ingestor(of_id), turns=20)
    assert len(lake.files()) == 1, "without a partition field it is read as the default"
    fields = [{"source-id": 2, "field-id": 1_000, "name": "by_region", "transform": transform}]
    updates = [
        {"action": "add-spec", "spec": {"fields": fields}},
        {"action": "set-default-spec", "spec-id": -1},
    ]
    lake.local.commit(TABLE, CommitRequest(requirements=[], updates=updates), key=uuid7())
    send(topic, {"id": 2, "region": "us"})
    if transform == "void":
        lake.work(lake.ingestor(of_id), turns=20)
        assert len(lake.files()) == 2
        return
    with pytest.raises(
        InvalidSpecError, match="field by_region is of column region, which has an initial-def"
    ):
        lake.work(lake.ingestor(of_id), turns=20)
    lake.work(lake.ingestor(spec()), turns=20)
    assert len(lake.files()) == 2, "a spec with the column goes on"


def test_long_values_of_many_partition_fields_make_no_key_that_a_store_refuses() -> None:
    """S3 takes keys of up to 1,024 bytes, MinIO also names of up to 255 in them."""
    topic = Topic("orders", 1)
    lake = Lake(topic)
    names = [f"c{n}" for n in range(8)]
    create(lake, *((name, StringType(), False) for name in names))
    fields = [
        {"source-id": n, "field-id": 999 + n, "name": name, "transform": "identity"}
        for n, name in enumerate(names, 1)
    ]
    updates = [
        {"action": "add-spec", "spec": {"fields": fields}},
        {"action": "set-default-spec", "spec-id": -1},
    ]
    lake.local.commit(TABLE, CommitRequest(requirements=[], updates=updates), key=uuid7())
    send(topic, *(dict.fromkeys(names, letter * 300) for letter in "ab"))
    lake.work(lake.ingestor(spec()), turns=20)
    paths = {entry.data_file.file_path.removeprefix("s3://tarn/") for entry in lake.files()}
    assert len(paths) == 2
    assert all(len(path) <= 1_024 and max(map(len, path.split("/"))) <= 255 for path in paths)


def test_the_trace_column_is_there_or_switched_off() -> None:
    topic = Topic("orders", 1)
    lake = Lake(topic)
    create(lake, ("id", LongType(), False))
    with pytest.raises(InvalidSpecError, match=r"column _tarn is missing in the table \(or set trace"):
        lake.work(lake.ingestor(spec(trace=True)))


def test_what_is_for_a_table_that_ingest_creates_needs_a_schema() -> None:
    for more in ("partitioning: [day(at)]", "properties: {a: b}"):
        text = TEXT.replace("name: orders}\n  batching", f"name: orders, {more}}}\n  batching")
        with pytest.raises(
            InvalidSpecError, match="which needs a schema; without one, the columns are those"
        ):
            parse_spec(text.replace("TRACE", "true"), file="orders.yaml")


def test_nested_types_of_a_table_are_those_of_a_spec() -> None:
    kind = StructType(
        NestedField(1, "d", DateType(), required=False), NestedField(2, "l", LEGS, required=False)
    )
    held = kind.model_dump(mode="json")
    assert type_of(held) == parse_type("struct<d: date, l: list<struct<n: long>>>")
    for part in ("element-required", "required"):
        bad = json.loads(json.dumps(held).replace(f'"{part}": false', f'"{part}": true', 3))
        with pytest.raises(ValueError, match="has a required part"):
            type_of(bad["fields"][1]["type"] if part == "element-required" else bad)


@pytest.mark.parametrize("mapping", ["{drop: [at]}", "{rename: {at: other}}"])
@pytest.mark.parametrize("what", ["eventTime: {column: at}", "retention: {age: 30d, column: at}"])
def test_a_column_of_event_time_that_the_mapping_leaves_empty_is_refused(mapping: str, what: str) -> None:
    lake = Lake(Topic("orders", 1))
    trace = StructType(
        NestedField(11, "source", StringType(), required=False),
        NestedField(12, "partition", IntegerType(), required=False),
        NestedField(13, "offset", LongType(), required=False),
        NestedField(14, "time", TimestamptzType(), required=False),
    )
    times = (("at", TimestamptzType(), False), ("other", TimestamptzType(), False))
    create(lake, ("id", LongType(), True), *times, ("_tarn", trace, False))
    text = f"{TEXT.replace('TRACE', 'true')}  mapping: {mapping}\n  {what}\n"
    send(lake.sources.topics["orders"], {"id": 1, "at": "2026-11-21T08:00:00Z"})
    with pytest.raises(InvalidSpecError, match=f"{what.partition(':')[0]} goes by column at, which mapping"):
        lake.work(lake.ingestor(parse_spec(text, file="orders.yaml")), turns=20)
