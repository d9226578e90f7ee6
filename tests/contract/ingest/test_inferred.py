"""A table that does not exist is created with the columns of the first messages, which are then its rows."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

from tarn.core.errors import InvalidSpecError, NoSuchTableError, UnavailableError
from tarn.core.source import NoMessagesError
from tarn.core.spec import IngestorSpec, parse_spec
from tarn.core.table_catalog import TableName
from tarn.core.table_state import Json, TableState
from tarn.ingest import sampling
from tarn.ingest.health import faults
from tarn.ingest.ingestor import Ingestor
from tarn.ingest.sampling import SAMPLE_RECORDS_MAX
from tarn.ingest.status import State
from tarn.testing.memory_topic import HOLE, MemoryTopicReader, Topic
from tests.contract.ingest.test_bad_input import Story
from tests.contract.ingest.test_evolution import columns, send
from tests.support.lake import Lake
from tests.support.messages import avro

TABLE = TableName(("bronze",), "orders")
TEXT = """
apiVersion: tarn/v1
kind: Ingestor
metadata: {name: orders}
spec:
  source: {kafka: {topic: orders}FORMAT}
  table: {namespace: bronze, name: ordersTABLE}
  schema: SCHEMA
  mapping: MAPPING
  batching: {maxRecords: 500, maxLatencySeconds: 0.05}
"""
AVRO = {
    "type": "record",
    "name": "O",
    "fields": [{"name": "id", "type": "long"}, {"name": "n", "type": "int"}],
}


def spec(schema: str = "infer", mapping: str = "{}", table: str = "", form: str = "") -> IngestorSpec:
    text = TEXT.replace("FORMAT", form).replace("TABLE", table).replace("SCHEMA", schema)
    return parse_spec(text.replace("MAPPING", mapping), file="orders.yaml")


def kinds(lake: Lake) -> dict[str, Any]:
    return {name: kind for name, (kind, _) in columns(lake).items() if name != "_tarn"}


def add_column(lake: Lake, name: str, kind: str) -> None:
    """Add an optional column as another client does."""
    schema = json.loads(json.dumps(lake.table().metadata["schemas"][-1]))
    schema["fields"].append({"id": 20, "name": name, "type": kind, "required": False})
    lake.local.catalog.tables.commit(
        lake.local._slot(TABLE),
        [],
        [{"action": "add-schema", "schema": schema}, {"action": "set-current-schema", "schema-id": -1}],
    )


def arrow(row: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, row.schema) as writer:
        writer.write_table(row)
    return bytes(sink.getvalue())


def test_columns_are_those_of_the_first_messages_and_the_messages_are_rows() -> None:
    topic = Topic("orders", 2)
    lake = Lake(topic)
    send(
        topic,
        {
            "id": 1,
            "price": 1,
            "at": "2026-11-22T08:00:00Z",
            "who": {"name": "a"},
            "tags": ["x"],
            "none": None,
        },
        {"id": 2, "price": 2.5, "at": None, "day": "2026-11-22", "who": {"name": "b", "n": 1}},
    )
    topic.send(1, b"junk", HOLE, b'{"id": 3, "ok": true}')
    lake.work(lake.ingestor(spec(table=", partitioning: [day(at), 'bucket(4, id)']")), turns=30)
    assert kinds(lake) == {
        **{"id": "long", "price": "double", "at": "timestamptz"},
        **{"who": "struct", "tags": "struct", "day": "string", "ok": "boolean"},
    }, "what is null in all of them has no column"
    assert all(not required for _, required in columns(lake).values())
    found = {row["id"]: row for row in lake.rows()}
    assert sorted(found) == [1, 2, 3]
    assert (found[1]["who"], found[2]["who"]) == ({"name": "a", "n": None}, {"name": "b", "n": 1})
    assert (found[1]["price"], found[1]["tags"], found[2]["day"]) == (1.0, ["x"], "2026-11-22")
    assert [letter["offset"] for letter in lake.rows("ops.dead_letters")] == [0]
    fields = [field["transform"] for field in lake.table().metadata["partition-specs"][0]["fields"]]
    assert fields == ["day", "bucket[4]"]


def test_objects_are_structs_however_many_keys_they_have() -> None:
    topic = Topic("orders", 1)
    lake = Lake(topic)
    send(topic, *({"id": n, "many": {f"k{n}": n}} for n in range(40)))
    lake.work(lake.ingestor(spec()), turns=40)
    (many,) = [c for c in lake.table().metadata["schemas"][-1]["fields"] if c["name"] == "many"]
    assert many["type"]["type"] == "struct"
    assert len(many["type"]["fields"]) == 40


def test_the_sample_is_bounded_and_what_it_cannot_use_is_passed_over() -> None:
    topic = Topic("orders", 1)
    lake = Lake(topic)
    topic.send(0, *([b"junk"] * SAMPLE_RECORDS_MAX))
    send(topic, *({"id": n} for n in range(SAMPLE_RECORDS_MAX)), {"id": 0, "late": 1})
    lake.work(lake.ingestor(spec()), turns=60)
    assert kinds(lake) == {"id": "long"}, "what comes after the sample has no column"
    assert len(lake.rows()) == SAMPLE_RECORDS_MAX + 1
    assert len(lake.rows("ops.dead_letters")) == SAMPLE_RECORDS_MAX


def test_a_sample_of_long_messages_is_bounded_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "SAMPLE_BYTES_MAX", 1_000)
    topic = Topic("orders", 1)
    lake = Lake(topic)
    send(topic, *({"id": n} for n in range(SAMPLE_RECORDS_MAX // 2)), {"id": 0, "late": 1})
    lake.work(lake.ingestor(spec()), turns=60)
    assert kinds(lake) == {"id": "long"}


def test_a_sample_that_does_not_come_is_waited_for_with_signs_of_life_and_then_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log has a message, and the broker does not give it."""
    topic = Topic("orders", 1)
    lake = Lake(topic)
    send(topic, {"id": 1})
    ages: list[float] = []

    def nothing(_self: MemoryTopicReader, **_limits: Any) -> list[Any]:
        ages.append(lake.clock.now_s - lake.registry.get("orders").beat_s)
        lake.clock.now_s += 7.0
        lake.stop = len(ages) == 100
        return []

    with monkeypatch.context() as patched:
        patched.setattr(MemoryTopicReader, "poll", nothing)
        with pytest.raises(UnavailableError, match="has records for a sample, and none came in 30 s"):
            lake.ingestor(spec()).cycle(lambda: True)
    assert max(ages) == 0.0
    lake.stop = False
    lake.work(lake.ingestor(spec()), turns=30)
    assert [row["id"] for row in lake.rows()] == [1]


def test_without_a_message_it_waits_and_begins_with_the_first() -> None:
    topic = Topic("orders", 1)
    lake = Lake(topic)
    topic.send(0, b"junk", HOLE)
    ingestor = lake.ingestor(spec())
    with pytest.raises(NoMessagesError, match=r"no message yet that the columns of bronze\.orders"):
        ingestor.cycle(lambda: False)
    assert not lake_has(lake), "nothing is created from nothing"
    send(topic, {"id": 7})
    lake.work(ingestor, turns=30)
    assert [row["id"] for row in lake.rows()] == [7]
    assert lake.offsets() == [(0, 2)]


def test_while_it_waits_the_service_is_healthy_and_says_what_for() -> None:
    lake = Lake(Topic("orders", 1))
    lake.registry.record_check("kafka", ok=True, message="", looked_s=lake.clock())
    story = Story(lake, spec(), turns=6)
    story.run()
    assert set(story.seen) == {(State.WAITING, "NoMessages")}
    lake.registry.record_check("kafka", ok=True, message="", looked_s=lake.clock())
    assert faults(lake.registry, now_s=lake.clock()) == []


def test_several_topics_and_replicas_fill_one_table_of_inferred_columns() -> None:
    one, two = Topic("orders", 4), Topic("more", 1, topic_id="id-2")
    lake = Lake(one, two)
    for partition in range(4):
        one.send(partition, json.dumps({"id": partition, "a": 1}).encode())
    two.send(0, b'{"id": 4, "b": 2}', b'{"id": "x"}')
    text = TEXT.replace("topic: orders", "topics: [orders, more]").replace("FORMAT", "").replace("TABLE", "")
    text = text.replace("SCHEMA", "{infer: true, evolution: evolve}").replace("MAPPING", "{}")
    whole = parse_spec(text + "  replicas: 2\n", file="orders.yaml")
    for part in whole.per_topic(("orders", "more")):
        for replica in range(2):
            lake.work(Ingestor(part, lake.context(), replica=replica), turns=30)
    assert kinds(lake) == {"id": "long", "a": "long", "b": "long"}
    assert sorted(row["id"] for row in lake.rows()) == [0, 1, 2, 3, 4]
    assert len(lake.rows("ops.dead_letters")) == 1


def lake_has(lake: Lake) -> bool:
    try:
        lake.table()
    except NoSuchTableError:
        return False
    return True


@pytest.mark.parametrize("when", ["before", "between"])
def test_of_two_engines_that_create_it_one_wins_and_the_other_takes_its_table(when: str) -> None:
    topic = Topic("orders", 1)
    lake = Lake(topic)
    send(topic, {"id": 1, "note": "a"})
    create = lake.local.create
    theirs: list[TableState] = []

    def raced(table: TableName, request: Json) -> TableState:
        if table == TABLE and not theirs:
            other = json.loads(json.dumps(request))
            other["schema"]["fields"] = [f for f in other["schema"]["fields"] if f["name"] != "note"]
            theirs.append(create(table, other))
        return create(table, request)

    lake.local.create = raced  # type: ignore[method-assign]
    if when == "before":
        send(topic, {"id": 2})
    lake.work(lake.ingestor(spec()), turns=30)
    assert lake.table().uuid == theirs[0].uuid
    assert kinds(lake) == {"id": "long"}
    assert len(lake.rows()) == len(topic.logs[0])


def test_a_crash_between_creation_and_the_first_commit_loses_nothing() -> None:
    topic = Topic("orders", 2)
    lake = Lake(topic)
    send(topic, {"id": 1})
    topic.send(1, b'{"id": 2}')
    first = lake.ingestor(spec())
    with pytest.raises(KeyboardInterrupt):
        first.cycle(_interrupt)
    assert lake.offsets() == [], "created, and without a row"
    send(topic, {"id": 3, "more": "x"})
    lake.work(lake.ingestor(spec()), turns=30)
    assert sorted(row["id"] for row in lake.rows()) == [1, 2, 3]
    assert kinds(lake) == {"id": "long"}, "the table stays as it was created"


def _interrupt() -> bool:
    raise KeyboardInterrupt


def test_what_the_first_messages_lacked_is_added_later_if_the_spec_says_so() -> None:
    topic = Topic("orders", 1)
    lake = Lake(topic)
    mapping = "{rename: {'who.id': user_id}, drop: [debug], cast: {price: 'decimal(9, 2)'}, rest: rest}"
    evolve = "{infer: true, evolution: evolve}"
    send(topic, {"id": 1, "in": {"a": 1}, "who": {"id": 5}, "debug": 1, "price": 1.25, "x": None})
    lake.work(lake.ingestor(spec(evolve, mapping)), turns=30)
    before = kinds(lake)
    assert list(before) == ["id", "in", "user_id", "price", "rest"]
    assert before["price"] == "decimal(9, 2)"
    send(topic, {"id": 2.5, "in": {"a": 2, "b": "x"}, "who": {"id": 6, "no": 1}, "debug": 2, "x": "late"})
    send(topic, {"id": 3, "in": {"a": 2, "b": "x"}, "who": {"id": 7}, "ID": 5, "x": "late", "y z": 1})
    lake.work(lake.ingestor(spec("infer", mapping)), turns=1)
    lake.work(lake.ingestor(spec(evolve, mapping)), turns=30)
    assert list(kinds(lake)) == ["id", "in", "user_id", "price", "rest", "x"], (
        "what is mapped away stays away"
    )
    rows = {row["id"]: row for row in lake.rows()}
    assert sorted(rows) == [1, 3]
    assert (rows[3]["in"], rows[3]["x"], rows[3]["user_id"]) == ({"a": 2, "b": "x"}, "late", 7)
    assert json.loads(rows[3]["rest"]) == {"ID": 5, "y z": 1}
    (letter,) = lake.rows("ops.dead_letters")
    assert letter["reason"].startswith("id: expected a whole number"), "types are not changed"


@pytest.mark.parametrize("partitioning", ["", ", partitioning: ['bucket(4, id)']"])
def test_keys_whose_names_the_table_has_for_something_else_stop_nothing(
    partitioning: str, logged: list[Any]
) -> None:
    """A column that no message can fill, and a partition field, whose name no column may have."""
    topic = Topic("orders", 1)
    lake = Lake(topic)
    send(topic, {"id": 1})
    lake.work(lake.ingestor(spec("infer", table=", partitioning: ['bucket(4, id)']")), turns=30)
    add_column(lake, "Clock", "time")
    send(topic, {"id": 2, "Clock": "08:00", "clock": 3, "id_bucket": 4, "new": "x"})
    evolving = spec("{infer: true, evolution: evolve}", "{rest: rest}", table=partitioning)
    ingestor = lake.ingestor(evolving)
    lake.work(ingestor, turns=30)
    for number, key in enumerate(("clock", "id_bucket", "clock"), 3):
        send(topic, {"id": number, key: 3})
        lake.work(ingestor, turns=30)
    assert kinds(lake) == {"id": "long", "Clock": "time", "new": "string", "rest": "string"}
    (row,) = [row for row in lake.rows() if row["id"] == 2]
    assert json.loads(row["rest"]) == {"Clock": "08:00", "clock": 3, "id_bucket": 4}
    said = [line for line in logged if line["event"].startswith("keys of the messages get no column")]
    assert [line["keys"] for line in said] == [["Clock", "clock", "id_bucket"]]


@pytest.mark.parametrize("within", ["a", "a.element"])
def test_a_key_within_an_object_whose_name_a_partition_field_has_stops_nothing(
    within: str, logged: list[Any]
) -> None:
    """Spark names a partition by days(a.at) so: `a.at_day`."""
    topic = Topic("orders", 1)
    lake = Lake(topic)

    def held(**keys: Any) -> Any:
        return keys if within == "a" else [keys]

    send(topic, {"id": 1, "a": held(x=1)})
    lake.work(lake.ingestor(spec("infer")), turns=30)
    columns = lake.table().metadata["schemas"][-1]["fields"]
    number = next(field["id"] for field in columns if field["name"] == "id")
    fields = [
        {"name": f"{within}.{name}", "transform": f"bucket[{n}]", "source-id": number}
        for n, name in enumerate(("at_day", "w.at_day"), 4)
    ]
    lake.local.catalog.tables.commit(
        lake.local._slot(TABLE),
        [],
        [{"action": "add-spec", "spec": {"fields": fields}}, {"action": "set-default-spec", "spec-id": -1}],
    )
    inner = {"x": 2, "at_day": 3, "y": {"at_day": 4}, "w": {"at_day": 5}}
    send(topic, {"id": 2, "a": held(**inner), "b": {"at_day": 6}})
    ingestor = lake.ingestor(spec("{infer: true, evolution: evolve}"))
    for _ in range(2):
        lake.work(ingestor, turns=30)
    (row,) = [row for row in lake.rows() if row["id"] == 2]
    assert row["a"] == held(x=2, y={"at_day": 4})
    assert row["b"] == {"at_day": 6}
    said = [line for line in logged if line["event"].startswith("keys of the messages get no column")]
    assert [line["keys"] for line in said] == [[f"{within}.at_day", f"{within}.w.at_day"]]


@pytest.mark.parametrize("wrong", [True, {"x": 1}])
def test_a_sample_of_wrong_values_for_a_cast_column_makes_bad_records_and_stops_nothing(wrong: Any) -> None:
    topic = Topic("orders", 1)
    lake = Lake(topic)
    evolving = spec("{infer: true, evolution: evolve}", "{cast: {id: long}}")
    send(topic, {"id": "1"})
    lake.work(lake.ingestor(evolving), turns=30)
    send(topic, {"id": wrong}, {"id": wrong}, {"id": 2, "new": "x"})
    lake.work(lake.ingestor(evolving), turns=30)
    assert kinds(lake) == {"id": "long", "new": "string"}
    assert sorted(row["id"] for row in lake.rows()) == [1, 2]
    assert [letter["offset"] for letter in lake.rows("ops.dead_letters")] == [1, 2]


def test_too_many_keys_create_nothing_and_stop_no_table_that_exists(logged: list[Any]) -> None:
    topic, wide = Topic("orders", 1), {f"k{n}": n for n in range(1_001)}
    lake = Lake(topic)
    evolving = spec("{infer: true, evolution: evolve}", "{rest: rest}")
    send(topic, wide)
    with pytest.raises(InvalidSpecError, match=r"bronze\.orders cannot be created .* 1,002 columns are more"):
        lake.work(lake.ingestor(evolving))
    assert not lake_has(lake)
    del topic.logs[0][:]
    send(topic, {"id": 0})
    lake.work(lake.ingestor(evolving), turns=30)
    send(topic, {"id": 1, **wide})
    ingestor = lake.ingestor(evolving)
    for _ in range(2):
        lake.work(ingestor, turns=30)
    assert (len(kinds(lake)), sorted(row["id"] for row in lake.rows())) == (1_000, [0, 1])
    (row,) = [row for row in lake.rows() if row["id"] == 1]
    assert sorted(json.loads(row["rest"])) == ["k1000", "k998", "k999"]
    said = [line for line in logged if line["event"].startswith("keys of the messages get no column")]
    assert [(line["keys"], line["columns_max"]) for line in said] == [(3, 1_000)]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"table": ", partitioning: [day(id)]"}, "column id is long, and day takes date"),
        ({"table": ", partitioning: [nothing]"}, "partitioning names column 'nothing'"),
        ({"mapping": "{rename: {a.b: c}}"}, "fills c from a.b, which no message of the sample has"),
        ({"mapping": "{cast: {id: date}}"}, "makes id a date, and its values are long"),
        ({"mapping": "{cast: {who: string}}"}, "makes who a string, and its values are struct<n: long>"),
    ],
)
def test_a_spec_that_the_messages_do_not_fit_creates_nothing(more: dict[str, str], why: str) -> None:
    topic = Topic("orders", 1)
    lake = Lake(topic)
    send(topic, {"id": 1, "who": {"n": 1}})
    with pytest.raises(
        InvalidSpecError, match="cannot be created with the columns of the first messages"
    ) as e:
        lake.work(lake.ingestor(spec(**more)))
    assert why in str(e.value)
    assert not lake_has(lake)


def test_arrow_messages_give_their_own_types() -> None:
    topic = Topic("orders", 1)
    lake = Lake(topic)
    one = pa.table(
        {
            "id": pa.array([1], pa.int32()),
            "d": pa.array(["x"]).dictionary_encode(),
            "t": pa.array([1], pa.time32("s")),
        }
    )
    two = pa.table(
        {"id": pa.array([2**40], pa.int64()), "m": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int8()))}
    )
    topic.send(0, arrow(one), b"junk", arrow(two))
    lake.work(lake.ingestor(spec(form=", format: arrow")), turns=30)
    assert kinds(lake) == {"id": "long", "d": "string", "m": "struct"}
    assert sorted(row["id"] for row in lake.rows()) == [1, 2**40]


def test_a_schema_of_the_writer_needs_no_message() -> None:
    lake = Lake(Topic("orders", 1))
    form = f", format: avro, avro: {{schema: {json.dumps(AVRO)}}}"
    lake.work(lake.ingestor(spec(form=form, mapping="{cast: {n: string}}")), turns=3)
    assert kinds(lake) == {"id": "long", "n": "string"}


def record(**fields: Any) -> Json:
    return {
        "type": "record",
        "name": "O",
        "fields": [{"name": n, "type": kind} for n, kind in fields.items()],
    }


def of_writer(schema: Json, *, schema_of_spec: str = "infer", mapping: str = "{}") -> IngestorSpec:
    form = f", format: avro, avro: {{schema: {json.dumps(schema)}}}"
    return spec(schema_of_spec, form=form, mapping=mapping)


def test_bytes_that_avro_calls_a_uuid_are_one_in_the_table_also_within_other_types() -> None:
    def fixed(name: str) -> Json:
        return {"type": "fixed", "name": name, "size": 16, "logicalType": "uuid"}

    inner = {"type": "record", "name": "I", "fields": [{"name": "id", "type": fixed("B")}]}
    many = {"type": "array", "items": fixed("C")}
    schema = record(id=fixed("A"), inner=inner, many=many, by={"type": "map", "values": fixed("D")})
    topic = Topic("orders", 1)
    lake = Lake(topic)
    ids = [uuid.UUID(int=n) for n in range(1, 6)]
    first, second, *others, last = (one.bytes for one in ids)
    row = {"id": first, "inner": {"id": second}, "many": others, "by": {"k": last}}
    topic.send(0, avro(schema, row))
    lake.work(lake.ingestor(of_writer(schema)), turns=30)
    assert kinds(lake)["id"] == "uuid"
    (found,) = lake.rows()
    assert found["id"] in (ids[0], ids[0].bytes)
    assert found["inner"]["id"] in (ids[1], ids[1].bytes)
    assert [uuid.UUID(bytes=getattr(one, "bytes", one)) for one in found["many"]] == ids[2:4]
    assert [uuid.UUID(bytes=getattr(one, "bytes", one)) for _, one in found["by"]] == ids[4:]


EVOLVE = "{infer: true, evolution: evolve}"


def test_a_column_of_the_table_that_the_schema_of_the_writer_lacks_is_null() -> None:
    """The producer dropped one field and added another, and somebody added a column in an engine."""
    topic = Topic("orders", 1)
    lake = Lake(topic)
    first, second = record(id="long", n="int"), record(id="long", extra="string")
    topic.send(0, avro(first, {"id": 1, "n": 5}))
    lake.work(lake.ingestor(of_writer(first, schema_of_spec=EVOLVE)), turns=30)
    add_column(lake, "theirs", "long")
    topic.send(0, avro(second, {"id": 2, "extra": "x"}))
    lake.work(lake.ingestor(of_writer(second, schema_of_spec=EVOLVE)), turns=30)
    assert kinds(lake) == {"id": "long", "n": "int", "theirs": "long", "extra": "string"}
    rows = {row["id"]: row for row in lake.rows()}
    assert (rows[1]["n"], rows[1].get("extra")) == (5, None)
    assert (rows[2]["n"], rows[2]["theirs"], rows[2]["extra"]) == (None, None, "x")


@pytest.mark.parametrize("seed", range(6))
def test_any_number_of_restarts_and_engines_adds_every_message_once(seed: int) -> None:
    chance = random.Random(seed)
    topic = Topic("orders", 2)
    lake = Lake(topic)
    evolve = "{infer: true, evolution: evolve}"
    sent = 0
    for _ in range(12):
        for _ in range(chance.randrange(4)):
            message: dict[str, Any] = {
                "id": sent,
                f"k{chance.randrange(5)}": chance.choice([1, None, {"a": 2}]),
            }
            topic.send(chance.randrange(2), json.dumps(message).encode())
            sent += 1
        ingestor = lake.ingestor(spec(chance.choice([evolve, "infer"])))
        turns = chance.randrange(1, 6)
        _some(lake, ingestor.cycle, turns)
    topic.send(0, b'{"id": -1}')
    lake.work(lake.ingestor(spec(evolve)), turns=60)
    letters = [(row["partition"], row["offset"]) for row in lake.rows("ops.dead_letters")]
    everything = sorted(lake.offsets() + letters)
    assert len(everything) == len(set(everything)) == sent + 1


def _some(lake: Lake, cycle: Callable[[Callable[[], bool]], None], turns: int) -> None:
    left = [turns]

    def until() -> bool:
        left[0] -= 1
        return left[0] < 0

    with suppress(NoMessagesError):
        cycle(until)
