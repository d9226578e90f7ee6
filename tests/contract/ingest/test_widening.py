"""Columns are added, widened and made optional in one chain of commits, with answers lost between them."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from typing import Any

import pytest

from tarn.core.errors import InvalidSpecError
from tarn.core.spec import IngestorSpec
from tarn.testing.memory_topic import HOLE, Topic
from tests.contract.ingest.test_evolution import columns, spec
from tests.contract.ingest.test_extremes import read_by_pyiceberg
from tests.contract.ingest.test_faults import faulty_lake
from tests.support.lake import Lake
from tests.support.plays import seeds

CHAIN: tuple[tuple[str, ...], ...] = (
    (
        "{name: id, type: int, required: true}",
        "{name: ratio, type: float}",
        "{name: price, type: 'decimal(5, 2)'}",
        "{name: who, type: 'struct<n: int>'}",
        "{name: tags, type: 'list<struct<a: int>>'}",
    ),
    ("{name: id, type: long, required: true}", "{name: ratio, type: float}"),
    ("{name: id, type: long, required: true}", "{name: ratio, type: double}"),
    ("{name: id, type: long, required: true}", "{name: price, type: 'decimal(9, 2)'}"),
    ("{name: id, type: long}", "{name: price, type: 'decimal(9, 2)'}"),
    ("{name: id, type: long}", "{name: who, type: 'struct<n: long, m: string>'}"),
    ("{name: id, type: long}", "{name: tags, type: 'list<struct<a: long, b: string>>'}"),
    ("{name: id, type: long}", "{name: note, type: string}"),
)
"""Each step names what changes; the rest is as it was before."""
LAST = {
    "id": "long",
    "ratio": "double",
    "price": "decimal(9, 2)",
    "note": "string",
}


def chain() -> list[IngestorSpec]:
    held: dict[str, str] = {}
    found = []
    for step in CHAIN:
        for column in step:
            held[column.split(",")[0]] = column
        found.append(spec(*held.values()))
    return found


def message(step: int, number: int) -> dict[str, Any]:
    """A message that the spec of this step takes, and the one before does not hold or does not read."""
    row: dict[str, Any] = {
        "id": number,
        "ratio": 0.5,
        "price": "1.25",
        "who": {"n": number},
        "tags": [{"a": 1}],
    }
    if step >= 1:
        row["id"] = 2**40 + number
    if step >= 2:
        row["ratio"] = 1e300
    if step >= 3:
        row["price"] = "1234567.25"
    if step >= 4:
        row["n"], row["id"] = number, None
    if step >= 5:
        row["who"] = {"n": 2**40 + number, "m": "m"}
    if step >= 6:
        row["tags"] = [{"a": 2**40, "b": "b"}, None]
    if step >= 7:
        row["note"] = f"n{number}"
    return row


def expected(step: int, number: int) -> dict[str, Any]:
    sent = message(step, number)
    who, tags = sent["who"], sent["tags"]
    return {
        "id": sent["id"],
        "ratio": sent["ratio"],
        "price": Decimal(sent["price"]),
        "who": {"n": who["n"], "m": who.get("m")},
        "tags": [None if tag is None else {"a": tag["a"], "b": tag.get("b")} for tag in tags],
        "note": sent.get("note"),
    }


@pytest.mark.plays
@pytest.mark.parametrize("seed", seeds(6))
def test_every_message_is_there_once_with_its_value_whatever_is_lost_between_the_steps(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    topic = Topic("orders", 2)
    lake, faults = faulty_lake(topic, seed, rate=0.5)
    if seed % 3 == 0:
        faults.kinds = ("reply", "late-twice", "lie")
    sent: dict[tuple[int, int], dict[str, Any]] = {}
    steps = chain()
    for step, made in enumerate(steps):
        ingestors = [lake.ingestor(made), lake.ingestor(made)]
        for number in range(chance.randrange(1, 7)):
            partition = chance.randrange(2)
            sent[(partition, len(topic.logs[partition]))] = expected(step, number)
            topic.send(partition, json.dumps(message(step, number)).encode())
            if chance.random() < 0.3:
                topic.send(partition, HOLE)
            lake.work(chance.choice(ingestors), turns=chance.randrange(1, 15))
        # A reader of the former spec that is still there can neither narrow a column nor add what is bad.
        faults.rate = 0.0
        lake.work(ingestors[0], turns=60)
        faults.rate = 0.5
        if step and chance.random() < 0.5:
            with pytest.raises(InvalidSpecError):
                lake.work(lake.ingestor(steps[0]), turns=20)
    faults.land_all()
    faults.rate = 0.0
    lake.work(lake.ingestor(steps[-1]), turns=60)
    lake.history_is_a_chain()
    kinds = columns(lake)
    assert {name: kinds[name] for name in LAST} == {name: (kind, False) for name, kind in LAST.items()}
    assert len(lake.table().metadata["schemas"]) == len(CHAIN), (
        "one schema for each step, however often it was sent"
    )
    assert lake.rows("ops.dead_letters") == []
    table = read_by_pyiceberg(lake, "bronze.orders", monkeypatch).scan().to_arrow()
    found: dict[tuple[int, int], dict[str, Any]] = {}
    for row in table.to_pylist():
        origin = row.pop("_tarn")
        at = (origin["partition"], origin["offset"])
        assert at not in found, "twice"
        found[at] = row
    assert found == sent


def test_a_date_does_not_become_a_timestamp_in_version_3_either() -> None:
    lake = Lake(Topic("orders", 1))
    lake.work(lake.ingestor(spec("{name: day, type: date}", version=3)), turns=10)
    with pytest.raises(InvalidSpecError, match="column day is date in the table, timestamp in the spec"):
        lake.work(lake.ingestor(spec("{name: day, type: timestamp}", version=3)))
    assert columns(lake)["day"] == ("date", False)


def test_a_step_back_is_refused_and_changes_nothing() -> None:
    lake = Lake(Topic("orders", 1))
    steps = chain()
    for made in steps:
        lake.work(lake.ingestor(made), turns=10)
    before = lake.table().metadata["schemas"]
    refused = []
    for number, made in enumerate(steps):
        try:
            lake.work(lake.ingestor(made), turns=10)
        except InvalidSpecError:
            refused.append(number)
        assert lake.table().metadata["schemas"] == before
    assert refused == list(range(len(steps) - 2)), "the last but one only lacks a column, which takes nothing"
