"""Messages in Arrow and Avro through a whole stream: rows, dead letters, audit, replay, several topics."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from tarn.core.errors import InvalidSpecError
from tarn.core.spec import IngestorSpec, parse_spec
from tarn.testing.memory_topic import HOLE, Topic
from tests.contract.cli.test_dead_letters import World
from tests.contract.ingest.test_extremes import read_by_pyiceberg
from tests.support.lake import SPEC, Lake
from tests.support.messages import arrow, avro, container

SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
    ],
}
AT_MS = 1_795_248_000_000
Write = Callable[[Mapping[str, Any]], bytes]


def arrow_order(row: Mapping[str, Any]) -> bytes:
    kinds = {"id": pa.int64(), "at": pa.timestamp("ms", "UTC")}
    return arrow(row, pa.schema([(name, kinds[name]) for name in row]))


def avro_order(row: Mapping[str, Any]) -> bytes:
    at = row.get("at")
    return avro(SCHEMA, {"id": row["id"], "at": None if at is None else (1, at)})


def container_order(row: Mapping[str, Any]) -> bytes:
    return container(json.dumps(SCHEMA), [(1, avro_order(row))])


FORMATS: dict[str, tuple[Write, str]] = {
    "arrow": (arrow_order, "format: arrow"),
    "avro": (avro_order, f"format: avro, avro: {{schema: {json.dumps(SCHEMA)}}}"),
    "container": (container_order, "format: avro, avro: {encoding: container}"),
}


def spec(
    format_: str, *, kind: str = "long", topics: str = "topic: orders", schema: bool = True
) -> IngestorSpec:
    text = SPEC.replace("FORMAT", "2").replace("PARTITIONING", "[]").replace("type: long", f"type: {kind}")
    text = text.replace("kafka: {topic: orders", f"{FORMATS[format_][1]}, kafka: {{{topics}")
    if not schema:
        head, _, tail = text.partition("  schema:")
        text = (head + tail[tail.index("  deadLetters") :]).replace(", partitioning: []", "")
    return parse_spec(text, file="orders.yaml")


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as made:
        yield made


@pytest.mark.parametrize("format_", FORMATS)
def test_each_message_is_a_row_or_a_dead_letter_and_is_replayed_once(
    format_: str, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = FORMATS[format_][0]
    world = World(pool)
    topic = Topic("orders", 2)
    lake = Lake(topic)
    lake.clock.now_s = world.lake.clock.now_s
    world.lake, world.topic, world.catalog = lake, topic, lake.local  # type: ignore[assignment]
    rows: list[dict[str, Any]] = [{"id": n, "at": AT_MS + n} if n % 3 else {"id": n} for n in range(25)]
    rows[7]["id"], rows[20]["id"] = 2**31, -(2**63)
    bad: list[Any] = [b"", None, b"{}", write(rows[0])[:-3], write(rows[0]) * 2, HOLE]
    topic.send(0, *map(write, rows[:20]), *bad)
    topic.send(1, *map(write, rows[20:]))
    lake.work(lake.ingestor(spec(format_, kind="int")), turns=60)
    lake.history_is_a_chain()
    wide = {2**31, -(2**63)}
    assert sorted(row["id"] for row in lake.rows()) == sorted({row["id"] for row in rows} - wide)
    assert len(lake.rows("ops.dead_letters")) == 2 + 5
    evolved = SPEC.replace("fields:", "evolution: evolve\n    fields:")
    monkeypatch.setattr("tests.contract.ingest.test_formats.SPEC", evolved)
    lake.work(lake.ingestor(spec(format_)), turns=60)
    done = world.replay(spec(format_))
    assert (done.letters, done.rows, done.bad.total()) == (7, 2, 5)
    assert world.replay(spec(format_)).rows == 0
    assert sorted(row["id"] for row in lake.rows()) == sorted(row["id"] for row in rows)
    report = world.audit()
    assert report.whole, report.findings
    found = read_by_pyiceberg(lake, "bronze.orders", monkeypatch).scan().to_arrow()
    times = dict(zip(found["id"].to_pylist(), found["at"].cast(pa.int64()).to_pylist(), strict=True))
    wanted = {row["id"]: None if row.get("at") is None else row["at"] * 1_000 for row in rows}
    assert times == wanted


@pytest.mark.parametrize("format_", FORMATS)
def test_several_topics_and_columns_of_the_table(format_: str) -> None:
    write = FORMATS[format_][0]
    one, two = Topic("orders", 1), Topic("more", 1, topic_id="id-2")
    lake = Lake(one, two)
    one.send(0, write({"id": 1, "at": AT_MS}))
    two.send(0, write({"id": 2}), b"junk")
    whole = spec(format_, topics="topics: [orders, more]")
    for part in whole.per_topic(whole.spec.source.kafka.names):
        lake.work(lake.ingestor(part), turns=40)
    assert sorted(row["id"] for row in lake.rows()) == [1, 2]
    one.send(0, write({"id": 3}))
    own = spec(format_, topics="topics: [orders]", schema=False)
    (part,) = own.per_topic(own.spec.source.kafka.names)
    lake.work(lake.ingestor(part), turns=40)
    assert sorted(row["id"] for row in lake.rows()) == [1, 2, 3]


COLUMNS_OF_ITS_OWN = """
apiVersion: tarn/v1
kind: Ingestor
metadata: {name: orders}
spec:
  source: {kafka: {topics: [TOPICS]}}
  table: {namespace: bronze, name: orders, partitioning: [day(at)]}
  schema:
    evolution: evolve
    fields:
      - {name: id, type: long, required: true, from: key}
      - {name: at, type: timestamptz, encoding: epoch-millis, from: sent}
      - {name: note, type: string, from: remark}
  batching: {maxRecords: 10, maxLatencySeconds: 0.05}
"""


@pytest.mark.parametrize("alone", [False, True])
def test_a_log_has_the_columns_of_the_table_as_json(alone: bool) -> None:
    """A gateway judges rows by them before it answers, whatever the spec says of its other messages."""
    log = "tarn.log.0b9c6b0e-0000-4000-8000-000000000000"
    one, rows = Topic("orders", 1), Topic(log, 1, topic_id="id-2")
    lake = Lake(one, rows)
    one.send(0, b'{"key": 1, "sent": 1700000000000}')
    own = COLUMNS_OF_ITS_OWN.replace("TOPICS", f"orders, {log}")
    first, second = parse_spec(own, file="x").per_topic(["orders", log])
    if alone:
        # A release before took such a spec of a log alone.
        named = own.replace("{name: orders}", "{name: log-orders}", 1)
        (second,) = parse_spec(
            named.replace(f"topics: [orders, {log}]", f"topic: {log}"), file="x"
        ).per_topic([log])
    lake.work(lake.ingestor(first), turns=40)
    rows.send(0, b'{"id": 2, "at": "2023-11-14T22:13:20Z", "note": "as the table has it"}')
    lake.work(lake.ingestor(second), turns=40)
    assert sorted((row["id"], row["note"]) for row in lake.rows()) == [(1, None), (2, "as the table has it")]
    assert len({row["at"] for row in lake.rows()}) == 1


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("format: xml", "spec.source.format: 'xml' is not allowed"),
        ("format: avro", "format avro needs avro"),
        ("format: avro, avro: {}", "schema is missing"),
        ("format: avro, avro: {encoding: container, schema: {}}", "is no Avro type"),
        ('format: avro, avro: {schema: "{"}', "the Avro schema is not JSON"),
        ("avro: {encoding: container}", "avro is for format: avro"),
        (f"format: avro, avro: {{encoding: container, schema: {json.dumps(SCHEMA)}}}", "has its own"),
        ("format: avro, avro: {encodng: x}", "did you mean encoding"),
    ],
)
def test_a_format_that_is_none_is_refused(source: str, reason: str) -> None:
    text = SPEC.replace("FORMAT", "2").replace("PARTITIONING", "[]")
    with pytest.raises(InvalidSpecError, match=reason):
        parse_spec(text.replace("{kafka:", f"{{{source}, kafka:"), file="orders.yaml")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (
            "name: at, type: timestamptz",
            "name: att, type: timestamptz",
            r"lacks \(did you mean at\?\); its fields",
        ),
        (
            "name: at, type: timestamptz",
            "name: at, from: at.x, type: long",
            "at is timestamp-millis, not a record",
        ),
        ("name: at, type: timestamptz", "name: at, type: string, encoding: json", "is for format: json"),
    ],
)
def test_columns_that_the_avro_schema_lacks_are_refused(old: str, new: str, reason: str) -> None:
    text = SPEC.replace("FORMAT", "2").replace("PARTITIONING", "[]").replace(old, new)
    with pytest.raises(InvalidSpecError, match=reason):
        parse_spec(text.replace("{kafka:", f"{{{FORMATS['avro'][1]}, kafka:"), file="orders.yaml")
