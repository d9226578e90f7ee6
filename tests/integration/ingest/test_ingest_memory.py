"""Large messages that compress well, and many ingestors, in the memory that the Compose file gives ingest."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyiceberg.table.snapshots import Operation

from tarn.core.small_files import EVERY_S
from tests.integration.ingest.conftest import SPEC, Ingest, Stack, eventually, serving
from tests.support.inside import said_inside

PARTITIONS = 4
SIZES = (200, 1_700, 1_700, 1_700, 1_700, 1_700, 1_700, 40_000)
MESSAGES = 24_000
LARGE_EVERY = 1_500
LARGE_BYTES = 700_000
TABLE = "bronze.backlog"
DRAIN_S = 240.0
SMALL_BYTES = 4 << 20
STORE_HANGS_S = 6.0
MERGED_S = 180.0
INGESTORS = 40
ROWS = 50
STARTED_S = 180.0
COMMITTED_S = 180.0


def value(number: int) -> bytes:
    """A message with a text that compresses to almost nothing, as logs and nested documents do."""
    size = LARGE_BYTES if number % LARGE_EVERY == 0 else SIZES[number % len(SIZES)]
    return json.dumps({"id": number, "at": "2026-11-21T08:30:00Z", "text": "abcdefgh" * (size // 8)}).encode()


def peak_mib(ingest: Ingest) -> int:
    """The most that the service's process had resident, in MiB."""
    status = said_inside(ingest.wrapped, ["sh", "-c", "cat /proc/[0-9]*/status"]).output.decode()
    return max(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")) // 1024


@pytest.mark.in_turn(3, "a backlog of large messages ends ingest at its memory limit")
@pytest.mark.timeout(1_200)
def test_a_backlog_of_large_messages_is_read_within_the_memory_of_ingest(
    stack: Stack, tmp_path: Path, record_property: Any
) -> None:
    """The store hangs once; a minute later small files of one table are merged, beside a second backlog."""
    spec = SPEC.replace("partitions: 3", f"partitions: {PARTITIONS}").replace(
        "topic: orders", "topic: backlog"
    )
    spec = spec.replace("{namespace: bronze, name: orders}", "{namespace: bronze, name: backlog}").replace(
        "batching: {maxRecords: 2000, ", "batching: {"
    )
    small = spec.replace("metadata: {name: orders}", "metadata: {name: small}").replace(
        "name: backlog}", "name: small}"
    )
    small = small.replace("batching: {", f"batching: {{maxBytes: {SMALL_BYTES}, ")
    (tmp_path / "small.yaml").write_text(small)
    login = stack.login()
    options = {
        "bootstrap.servers": stack.kafka,
        "security.protocol": login.protocol,
        "sasl.mechanism": login.mechanism,
        "sasl.username": login.user,
        "sasl.password": login.password,
        "compression.type": "lz4",
        "linger.ms": 20,
    }
    sent = 0
    with serving(stack, tmp_path, spec) as ingest:
        eventually("both run", lambda: ingest.status("small").get("state") == "Running", timeout_s=STARTED_S)
        due_s = time.monotonic() + EVERY_S + 1.0
        tables = [stack.open().load_table(name) for name in (TABLE, "bronze.small")]

        def send(numbers: range) -> None:
            """Send these while ingest does not read, which has all of them before it then."""
            nonlocal sent
            ingest.wrapped.pause()
            producer = Producer(options)
            for number in numbers:
                message = value(number)
                sent += len(message)
                until = time.monotonic() + 60
                while True:
                    try:
                        producer.produce("backlog", message, partition=number % PARTITIONS)
                        break
                    except BufferError:
                        assert time.monotonic() < until, f"Kafka takes nothing after {number} messages"
                        producer.poll(0.1)
            assert producer.flush(60) == 0

        def is_well() -> bool:
            ingest.wrapped.reload()
            state = ingest.wrapped.attrs["State"]
            assert (state["OOMKilled"], state["Running"]) == (False, True), state
            return True

        def read() -> int:
            assert is_well()
            found = (ingest.status(name).get("committedOffsets", {}) for name in ("orders", "small"))
            return min(sum(offsets.values()) for offsets in found)

        def is_merged() -> bool:
            operations = [s.summary.operation for s in tables[1].refresh().snapshots() if s.summary]
            return is_well() and Operation.REPLACE in operations

        send(range(MESSAGES))
        ingest.wrapped.unpause()
        eventually("the first rows are in the table", lambda: read() > 0, timeout_s=DRAIN_S)
        stack.wrapped("minio").pause()
        time.sleep(STORE_HANGS_S)
        stack.wrapped("minio").unpause()
        seconds = eventually("the backlog is read", lambda: read() == MESSAGES, timeout_s=DRAIN_S)
        send(range(MESSAGES, 2 * MESSAGES))
        time.sleep(max(0.0, due_s - time.monotonic()))
        ingest.wrapped.unpause()
        seconds += eventually("the second is read", lambda: read() == 2 * MESSAGES, timeout_s=DRAIN_S)
        eventually("small files are merged", is_merged, timeout_s=MERGED_S)
        assert ingest.wrapped.attrs["RestartCount"] == 0
        for table in tables:
            ids = table.refresh().scan(selected_fields=("id",)).to_arrow()["id"].to_pylist()
            assert sorted(ids) == list(range(2 * MESSAGES))
        counts = {"rows": 2 * len(ids), "mb": round(sent / 1e6), "seconds": round(seconds, 1)}
        counts["peak_mib"] = peak_mib(ingest)
        record_property("counts", counts)
        sys.stderr.write(f"{counts}\n")


@pytest.mark.in_turn(6, "many ingestors want more threads or memory than ingest has")
def test_forty_ingestors_run_within_the_limits_of_ingest(
    stack: Stack, tmp_path: Path, record_property: Any
) -> None:
    """A class of people, each with a stream of their own."""
    names = [f"s{number:02d}" for number in range(1, INGESTORS)]
    for name in names:
        spec = SPEC.replace("metadata: {name: orders}", f"metadata: {{name: {name}}}")
        spec = spec.replace("topic: orders", f"topic: {name}").replace("name: orders}", f"name: {name}}}")
        (tmp_path / f"{name}.yaml").write_text(spec)
    with serving(stack, tmp_path, SPEC) as ingest:

        def state(name: str) -> str:
            return str(ingest.status(name).get("state"))

        def all_run() -> bool:
            return all(state(name) == "Running" for name in names)

        seconds = eventually("all ingestors run", all_run, timeout_s=STARTED_S)
        producer = stack.producer()
        for name in names:
            for number in range(ROWS):
                value = f'{{"id": {number}, "at": "2026-11-21T08:30:00Z", "text": "{name}"}}'
                producer.send(name, value=value.encode())
        producer.flush(120)
        producer.close(30)

        def all_committed() -> bool:
            return all(
                sum(ingest.status(name).get("committedOffsets", {}).values()) == ROWS for name in names
            )

        eventually("all rows are committed", all_committed, timeout_s=COMMITTED_S)
        ingest.wrapped.reload()
        found = ingest.wrapped.attrs["State"]
        assert (found["OOMKilled"], found["Running"]) == (False, True), found
        stats = ingest.wrapped.stats(stream=False)
        counts = {
            "ingestors": INGESTORS,
            "seconds": round(seconds, 1),
            "threads": stats["pids_stats"]["current"],
            "mib": round(stats["memory_stats"]["stats"].get("rss", 0) / 2**20),
        }
        record_property("counts", counts)
        sys.stderr.write(f"{counts}\n")
        catalog = stack.open()
        for name in names[:: len(names) // 3]:
            rows = catalog.load_table(f"bronze.{name}").scan().to_arrow()
            assert sorted(rows["id"].to_pylist()) == list(range(ROWS))
            assert set(rows["text"].to_pylist()) == {name}
