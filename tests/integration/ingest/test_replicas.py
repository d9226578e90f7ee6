"""Three readers of one topic on the real broker: killed, and each row once; complete hours are announced."""

from __future__ import annotations

import json
import random
import sys
import threading
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.integration.ingest.conftest import SPEC, Ingest, Stack, eventually, serving

with warnings.catch_warnings():
    # kafka-python reads its message schemas with a function that is deprecated in Python 3.11.
    warnings.filterwarnings("ignore", "(read_text|open_text) is deprecated", DeprecationWarning)
    from kafka import KafkaConsumer, TopicPartition

pytestmark = pytest.mark.filterwarnings("ignore:(read_text|open_text) is deprecated:DeprecationWarning")

PARTITIONS = 6
MESSAGES = 12_000
HOURS = 4
TABLE = "bronze.parts"
EVENTS = "tarn.complete.parts"


def replicated() -> str:
    table = "{namespace: bronze, name: parts, partitioning: ['hour(at)']}"
    spec = SPEC.replace("partitions: 3", f"partitions: {PARTITIONS}").replace("topic: orders", "topic: parts")
    spec = spec.replace("{namespace: bronze, name: orders}", table)
    return f"{spec}  replicas: 3\n  eventTime: {{column: at, completeTopic: {EVENTS}}}\n"


def feed(stack: Stack, sent: dict[tuple[int, int], int]) -> None:
    """Send messages whose event times go on by the hour; note the number of each by its place."""
    producer, waiting = stack.producer(), []
    chance = random.Random(8)
    for n in range(MESSAGES):
        hour = 8 + n * HOURS // MESSAGES
        value = json.dumps({"id": n, "at": f"2026-11-21T{hour:02d}:30:00Z", "text": f"part {n}"}).encode()
        waiting.append((n, producer.send("parts", value, partition=chance.randrange(PARTITIONS))))
        if n % 200 == 0:
            time.sleep(0.05)
    for n, future in waiting:
        meta = future.get(timeout=120)
        sent[meta.partition, meta.offset] = n
    producer.close()


def announced(stack: Stack) -> list[str]:
    """The hours of all events, in their order."""
    consumer = KafkaConsumer(bootstrap_servers=stack.kafka, **stack.login().options())
    try:
        place = TopicPartition(EVENTS, 0)
        end = (consumer.end_offsets([place]) or {}).get(place, 0)
        consumer.assign([place])
        consumer.seek(place, 0)
        found: list[str] = []
        until = time.monotonic() + 60
        while len(found) < end and time.monotonic() < until:
            for records in consumer.poll(timeout_ms=1_000).values():
                found += [json.loads(record.value)["partition"]["value"] for record in records]
        return found
    finally:
        consumer.close()


def audited(ingest: Ingest, snapshot_id: int) -> dict[str, Any]:
    """The scheduled audit of this snapshot; empty before."""
    status, body = ingest.get("/status")
    found: dict[str, Any] = json.loads(body)["audits"].get(TABLE, {}) if status == 200 else {}
    return found if found.get("snapshotId") == snapshot_id else {}


@pytest.mark.in_turn(2, "replicas of a topic on a broker lose or double rows when they are killed")
def test_three_readers_that_are_killed_bring_in_each_row_once_and_announce_each_hour(
    stack: Stack, tmp_path: Path, record_property: Any
) -> None:
    with serving(stack, tmp_path, replicated(), TARN_INGEST_AUDIT_EVERY_S="3") as ingest:
        sent: dict[tuple[int, int], int] = {}
        feeding = threading.Thread(target=feed, args=(stack, sent))
        feeding.start()
        chance, kills = random.Random(3), 4
        for _ in range(kills):
            time.sleep(chance.uniform(0.5, 2.0))
            ingest.wrapped.kill(signal="SIGKILL")
            ingest.wrapped.start()
            ingest.await_running()
        feeding.join(240)
        assert not feeding.is_alive()
        assert len(sent) == MESSAGES
        ends = {p: 1 + max(o for q, o in sent if q == p) for p in range(PARTITIONS)}
        ingest.await_caught_up(ends)

        rows = stack.open().load_table(TABLE).scan().to_arrow().to_pylist()
        found = Counter((row["_tarn"]["partition"], row["_tarn"]["offset"]) for row in rows)
        assert (set(found), max(found.values())) == (set(sent), 1)
        assert all(sent[row["_tarn"]["partition"], row["_tarn"]["offset"]] == row["id"] for row in rows)

        eventually("all run", lambda: ingest.status().get("readyReplicas") == 3, timeout_s=180)
        status = ingest.status()
        assert (status["replicas"], status["partitions"]) == (3, list(range(PARTITIONS)))
        hours = {f"2026-11-21-{8 + n:02d}" for n in range(HOURS - 1)}
        eventually("hours were announced", lambda: hours <= set(announced(stack)), timeout_s=90)
        now = stack.open().load_table(TABLE).metadata.current_snapshot_id
        assert now is not None

        def whole() -> bool:
            current = stack.open().load_table(TABLE).metadata.current_snapshot_id
            return bool(audited(ingest, int(current or 0)))

        eventually("an audit of the last snapshot", whole, timeout_s=120)
        report = json.loads(ingest.get("/status")[1])["audits"][TABLE]
        assert (report["whole"], report["findings"]) == (True, []), report
        assert (report["missing"], report["doubled"], report["unknown"]) == (0, 0, 0), report
        counts = {"rows": len(rows), "kills": kills, "events": len(announced(stack))}
        record_property("counts", counts)
        sys.stderr.write(f"{counts}\n")
