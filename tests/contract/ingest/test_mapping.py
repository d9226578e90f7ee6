"""Mappings through a whole stream: in each format, in tables of others, with bad records, replayed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.types import DecimalType, LongType, StringType

from tarn.core.errors import InvalidSpecError
from tarn.core.spec import IngestorSpec, parse_spec
from tarn.testing.memory_topic import HOLE, Topic
from tests.contract.cli.test_dead_letters import World
from tests.contract.ingest.test_evolution import send
from tests.contract.ingest.test_faults import faulty_lake
from tests.contract.ingest.test_own_columns import alter, create
from tests.support.lake import Lake
from tests.support.messages import arrow, avro
from tests.support.plays import seeds

TEXT = """
apiVersion: tarn/v1
kind: Ingestor
metadata: {name: orders}
spec:
  source: {kafka: {topic: orders}, FORMAT}
  table: {namespace: bronze, name: orders}
  SCHEMA
  mapping: MAPPING
  deadLetters: {maxRecordBytes: 1024}
  batching: {maxRecords: 10, maxLatencySeconds: 0.05}
"""
SCHEMA = """schema:
    evolution: EVOLUTION
    fields:
      - {name: id, type: long, required: true}
      - {name: price, type: 'decimal(9, 2)'}
      - {name: code, type: string}"""
MAPPING = "{rename: {order.no: id}, cast: {id: long, price: 'decimal(9, 2)', code: string}, drop: [debug]}"
AVRO = {
    "type": "record",
    "name": "Message",
    "fields": [
        {
            "name": "order",
            "type": {"type": "record", "name": "Of", "fields": [{"name": "no", "type": "string"}]},
        },
        {"name": "price", "type": "string"},
        {"name": "code", "type": "long"},
    ],
}
ARROW = pa.schema([("order", pa.struct([("no", pa.string())])), ("price", pa.string()), ("code", pa.int64())])
FORMATS: dict[str, tuple[Callable[[Mapping[str, Any]], bytes], str]] = {
    "json": (lambda row: json.dumps(row).encode(), "format: json"),
    "arrow": (lambda row: arrow(row, ARROW), "format: arrow"),
    "avro": (lambda row: avro(AVRO, row), f"format: avro, avro: {{schema: {json.dumps(AVRO)}}}"),
}


def spec(
    mapping: str = MAPPING, *, form: str = "format: json", schema: str = SCHEMA, evolution: str = "strict"
) -> IngestorSpec:
    text = TEXT.replace("SCHEMA", schema).replace("EVOLUTION", evolution)
    return parse_spec(text.replace("MAPPING", mapping).replace("FORMAT", form), file="orders.yaml")


def message(number: int, **more: Any) -> dict[str, Any]:
    return {"order": {"no": str(number)}, "price": "1.50", "code": number, **more}


@pytest.mark.parametrize("format_", FORMATS)
def test_values_are_renamed_and_cast_and_what_does_not_fit_is_a_dead_letter(format_: str) -> None:
    write, form = FORMATS[format_]
    topic = Topic("orders", 1)
    lake = Lake(topic)
    bad = [message(3) | {"order": {"no": "3.5"}}, message(4, price="much")]
    topic.send(0, write(message(1)), write(bad[0]), HOLE, write(bad[1]), b"junk", write(message(2**40)))
    lake.work(lake.ingestor(spec(form=form)), turns=30)
    found = [(row["id"], str(row["price"]), row["code"]) for row in lake.rows()]
    assert found == [(1, "1.50", "1"), (2**40, "1.50", str(2**40))]
    letters = {row["offset"]: row["reason"] for row in lake.rows("ops.dead_letters")}
    assert letters[1] == "id: '3.5' is no long: expected a whole number"
    assert letters[3] == "price: 'much' is no decimal(9, 2): expected a number"
    assert len(lake.rows()) + len(letters) == 5


def test_columns_of_the_table_are_filled_by_the_mapping_also_when_they_change() -> None:
    topic = Topic("orders", 1)
    lake = Lake(topic)
    create(
        lake,
        ("id", LongType(), True),
        ("price", DecimalType(9, 2), False),
        ("order", LongType(), False),
        ("debug", StringType(), False),
        ("rest", StringType(), False),
    )
    own = spec(
        "{rename: {order.no: id}, cast: {id: long, price: 'decimal(9, 2)'}, drop: [debug], rest: rest}",
        schema="trace: false",
    )
    send(topic, message(1, debug="no", other={"a": 1}, id=5), message(2))
    ingestor = lake.ingestor(own)
    lake.work(ingestor, turns=30)
    rows = {row["id"]: row for row in lake.rows()}
    assert {n: (str(r["price"]), r.get("order"), r.get("debug")) for n, r in rows.items()} == {
        1: ("1.50", None, None),
        2: ("1.50", None, None),
    }
    assert json.loads(rows[1]["rest"]) == {"code": 1, "other": {"a": 1}, "id": 5}
    assert json.loads(rows[2]["rest"]) == {"code": 2}
    alter(lake, lambda fields: fields.append({"id": 9, "name": "code", "type": "long", "required": False}))
    send(topic, message(3))
    lake.work(ingestor, turns=40)
    (row,) = [row for row in lake.rows() if row["id"] == 3]
    assert (row["code"], row["rest"]) == (3, None), "a column that is there reads its key again"
    alter(lake, lambda fields: fields.pop(1))
    send(topic, message(4))
    with pytest.raises(InvalidSpecError, match=r"mapping\.cast names column 'price', which the table lacks"):
        lake.work(ingestor, turns=100)
    assert len(lake.rows()) == 3, "nothing is committed before somebody decides"


def test_a_cast_of_a_table_column_has_the_columns_type() -> None:
    lake = Lake(Topic("orders", 1))
    create(lake, ("id", LongType(), False))
    with pytest.raises(InvalidSpecError, match=r"makes id a string, and the column is long; cast it to long"):
        lake.work(lake.ingestor(spec("{cast: {id: string}}", schema="trace: false")))
    with pytest.raises(InvalidSpecError, match="no column is left that a message could fill; drop less"):
        lake.work(lake.ingestor(spec("{drop: [id]}", schema="trace: false")))


def test_an_evolving_table_gets_no_column_for_what_is_mapped_away() -> None:
    topic = Topic("orders", 1)
    lake = Lake(topic)
    lake.work(lake.ingestor(spec("{}", schema=SCHEMA.replace(", required: true", ""))), turns=10)
    more = SCHEMA + "\n      - {name: note, type: string}"
    made = spec(
        "{rename: {order.no: id, remark: note}, cast: {id: long}, drop: [debug]}",
        schema=more,
        evolution="evolve",
    )
    send(topic, message(1, code="c", remark="r", debug={"deep": 1}))
    lake.work(lake.ingestor(made), turns=30)
    (row,) = lake.rows()
    assert (row["id"], row["note"]) == (1, "r")
    assert set(row) == {"id", "price", "code", "note", "_tarn"}


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as made:
        yield made


@pytest.mark.parametrize("own", [False, True], ids=["the spec's columns", "the table's columns"])
def test_dead_letters_are_replayed_once_when_a_mapping_reads_them(
    pool: ThreadPoolExecutor, own: bool
) -> None:
    world = World(pool)
    topic = Topic("orders", 2)
    lake = Lake(topic)
    lake.clock.now_s = world.lake.clock.now_s
    world.lake, world.topic, world.catalog = lake, topic, lake.local  # type: ignore[assignment]
    plain, better = "{}", "{cast: {id: long}}"
    for n in range(20):
        value = {"id": str(n) if n % 4 == 0 else n, "price": "1.00"}
        topic.send(n % 2, b"junk" if n == 8 else json.dumps(value).encode())
    lake.work(lake.ingestor(spec(plain)), turns=60)
    assert len(lake.rows()) == 15
    mended = spec(better, schema="trace: true") if own else spec(better)
    lake.work(lake.ingestor(mended), turns=60)
    assert len(lake.rows()) == 15
    done = world.replay(mended)
    assert (done.letters, done.rows, done.bad.total()) == (5, 4, 1)
    assert world.replay(mended).rows == 0
    assert sorted(row["id"] for row in lake.rows()) == [n for n in range(20) if n != 8]
    report = world.audit()
    assert report.whole, report.findings


def mixed(chance: random.Random, number: int) -> bytes | None:
    """A message of any kind: good, with values in other forms, or broken."""
    good = json.dumps(
        message(number)
        | {
            "price": chance.choice(["2.50", 2.5, 3, None, "x", [1], 1e300]),
            "code": chance.choice(["a", 1, 2.5, True, None, {"a": 1}]),
            "debug": chance.choice([None, {"deep": [1] * 5}]),
        }
    ).encode()
    pad = b'{"order": {"no": 1}, "pad": "' + b"x" * 2_000 + b'"}'
    makes: list[bytes | None] = [
        good,
        good,
        good,
        good + good,
        good[: chance.randrange(len(good))],
        b"",
        None,
        pad,
        b'{"order": null}',
        b'{"order": {"no": "' + str(number).encode() + b'"}, "order": 3}',
        b"[]",
        b"\xff",
        b'{"order": {"no": 1.0}, "code": "\\ud800"}',
    ]
    return chance.choice(makes)


@pytest.mark.parametrize("seed", seeds(20))
@pytest.mark.plays
def test_of_any_messages_each_is_a_row_or_a_dead_letter_once_and_rows_are_what_was_sent(seed: int) -> None:
    chance = random.Random(seed)
    topic = Topic("orders", 2)
    lake, faults = faulty_lake(topic, seed, rate=0.3)
    sent: dict[tuple[int, int], bytes | None] = {}
    ingestor = lake.ingestor(spec())
    for number in range(60):
        value, partition = mixed(chance, number), chance.randrange(2)
        sent[(partition, len(topic.logs[partition]))] = value
        topic.send(partition, value)
        if chance.random() < 0.1:
            lake.work(ingestor, turns=chance.randrange(1, 8))
        if chance.random() < 0.05:
            ingestor = lake.ingestor(spec())
    lake.work(ingestor, turns=120)
    faults.land_all()
    faults.rate = 0.0
    lake.work(lake.ingestor(spec()), turns=60)
    rows = {(row["_tarn"]["partition"], row["_tarn"]["offset"]): row for row in lake.rows()}
    letters = [(row["partition"], row["offset"]) for row in lake.rows("ops.dead_letters")]
    assert sorted([*rows, *letters]) == sorted(sent), "each once"
    assert len(lake.rows()) == len(rows)
    for at, row in rows.items():
        value = sent[at]
        assert value is not None
        known = json.loads(value, parse_float=str)
        assert row["id"] == int(known["order"]["no"])
        price, code = known.get("price"), known.get("code")
        assert (row["price"] is None) == (price is None)
        assert (
            price is None
            or row["price"] == pytest.approx(float(price))
            or float(price) == float(row["price"])
        )
        texts = {True: "true", False: "false", None: None}
        assert row["code"] == (texts[code] if code is None or isinstance(code, bool) else str(code))
