"""The disks of the store and of Kafka's log fill up: nothing is lost or half-done, and both recover unaided.

The volumes are file systems of a fixed size; a helper container takes the remaining space and releases it.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitStateUnknownException, RESTError, ServerError

from tests.integration.ingest.conftest import Disk, Ingest, eventually, health
from tests.integration.ingest.test_ingest import Ledger, ends_now
from tests.support.containers import LogKeeper
from tests.support.healthy import await_health

with warnings.catch_warnings():
    # kafka-python reads its message schemas with a function that is deprecated in Python 3.11.
    warnings.filterwarnings("ignore", "(read_text|open_text) is deprecated", DeprecationWarning)
    from kafka import KafkaProducer
    from kafka.errors import KafkaError

pytestmark = pytest.mark.filterwarnings("ignore:(read_text|open_text) is deprecated:DeprecationWarning")


@pytest.fixture(scope="module")
def disk_mib() -> dict[str, int]:
    """Sizes in MiB; the metadata log of Kafka alone takes some 30 MiB."""
    return {"minio": 96, "kafka": 192}


def places(ingest: Ingest) -> Counter[tuple[int, int]]:
    """Partition and offset of each row of the table, counted."""
    rows = ingest.stack.open().load_table("bronze.orders").scan().to_arrow().to_pylist()
    return Counter((r["_tarn"]["partition"], r["_tarn"]["offset"]) for r in rows)


def good(ledger: Ledger) -> set[tuple[int, int]]:
    """Partition and offset of the readable records that Kafka has acknowledged."""
    return {place for place, (_, ok) in ledger.sent.items() if ok}


@pytest.mark.in_turn(5, "a full store loses rows or needs a hand afterwards")
def test_a_store_without_room_refuses_writes_by_name_and_goes_on_when_there_is_room(ingest: Ingest) -> None:
    start, ledger, disk = ends_now(ingest), Ledger(seed=6), ingest.stack.disks["minio"]
    producer = ingest.stack.producer()
    ledger.feed(producer, 500)
    ingest.await_caught_up(ledger.ends(start))
    lake = ingest.stack.open()
    notes = lake.create_table("bronze.notes", pa.schema([("n", pa.int64())]))
    notes.append(pa.table({"n": [1]}))
    before = lake.load_table("bronze.orders").metadata.current_snapshot_id
    kept = good(ledger)
    disk.fill()
    try:
        ledger.feed(producer, 500)
        eventually("ingest names it", lambda: "is full" in json.dumps(ingest.status()), timeout_s=180)
        assert lake.load_table("bronze.orders").metadata.current_snapshot_id == before, "no half commit"
        assert kept <= set(places(ingest)), "what is there can be read"
        assert lake.load_table("bronze.notes").scan().to_arrow().to_pylist() == [{"n": 1}]
        with pytest.raises((RESTError, ServerError, CommitStateUnknownException), match="is full"):
            lake.create_namespace("more")
    finally:
        disk.free()
    ledger.feed(producer, 500)
    producer.close()
    ingest.await_caught_up(ledger.ends(start))
    ingest.await_health()
    found = places(ingest)
    assert max(found.values()) == 1
    assert good(ledger) <= set(found)
    notes.append(pa.table({"n": [2]}))
    assert sorted(notes.scan().to_arrow()["n"].to_pylist()) == [1, 2]
    lake.create_namespace_if_not_exists("more")
    assert ("more",) in lake.list_namespaces()


@pytest.mark.in_turn(6, "a full log loses records")
def test_a_log_without_room_takes_nothing_and_loses_nothing_that_it_took(
    ingest: Ingest, log_keeper: LogKeeper
) -> None:
    """The broker exits, the engine restarts it repeatedly; given space it recovers its log unaided."""
    start, ledger, disk = ends_now(ingest), Ledger(seed=7), ingest.stack.disks["kafka"]
    kafka = ingest.stack.wrapped("kafka")
    log_keeper.expect_errors(kafka.short_id)
    producer = ingest.stack.producer()
    ledger.feed(producer, 500)
    ingest.await_caught_up(ledger.ends(start))
    refused = fill_by_sending(ingest, ledger, disk)
    eventually("it shows", lambda: health(kafka) != "healthy", timeout_s=180)
    disk.free()
    await_health(kafka, what="the broker")
    ledger.feed(producer, 500)
    producer.close()
    eventually("the table caught up", lambda: reached(ingest, ledger.ends(start)), timeout_s=180)
    found = places(ingest)
    assert max(found.values()) == 1
    assert good(ledger) <= set(found), "what was acknowledged is there"
    kafka.reload()
    sys.stderr.write(
        f"{refused} records refused, the broker was started {kafka.attrs['RestartCount']} times\n"
    )


def fill_by_sending(ingest: Ingest, ledger: Ledger, disk: Disk) -> int:
    """Fill the log's disk, then send until a record is rejected; returns the number of rejected records."""
    producer: Any = KafkaProducer(
        bootstrap_servers=ingest.stack.kafka,
        **ingest.stack.login().options(),
        acks="all",
        delivery_timeout_ms=20_000,
        request_timeout_ms=5_000,
        max_block_ms=10_000,
    )
    disk.fill()
    value = json.dumps({"id": 1, "at": "2026-11-21T08:00:00Z", "text": "x" * 4_000}).encode()
    refused = 0
    try:
        for _ in range(2_000):
            try:
                meta = producer.send("orders", value, partition=0).get(timeout=30)
                ledger.sent[meta.partition, meta.offset] = (value, True)
            except KafkaError:
                refused += 1
                break
    finally:
        producer.close(timeout=5)
    assert refused, "a log without room refuses"
    return refused


def reached(ingest: Ingest, ends: dict[int, int]) -> bool:
    """Whether the table holds at least what was acknowledged; the log may hold a little more."""
    committed = {int(p): o for p, o in ingest.status().get("committedOffsets", {}).items()}
    return all(committed.get(p, 0) >= end for p, end in ends.items())
