"""What replicas bring: rows a second with one reader of a topic and with several, as threads of this process.

`python -m tests.support.replica_speed`. Topic, store and catalog are in memory and messages have about 200
bytes, so the figures are those of Tarn's own code under the interpreter's lock: no broker, network or disk.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import structlog

from tarn.core.batch import RawRecords
from tarn.core.spec import IngestorSpec, parse_spec
from tarn.ingest.context import one_thread
from tarn.ingest.ingestor import Ingestor
from tarn.ingest.status import StatusRegistry
from tarn.testing.memory_topic import MemoryTopicReader, Topic
from tests.support.lake import SPEC, Lake

PARTITIONS, ROWS = 6, 600_000
RUN_S_MAX = 300.0
POLL_MAX = 5_000
"""A partition gives half of it to a poll."""


class Reader(MemoryTopicReader):
    """A reader whose polls are as small as those of a Kafka client."""

    def poll(self, *, records_max: int, timeout_s: float) -> list[RawRecords]:
        return super().poll(records_max=min(records_max, POLL_MAX), timeout_s=timeout_s)


def spec(replicas: int, commit: str) -> IngestorSpec:
    """The spec of orders, with batches of the usual size."""
    text = SPEC.replace("FORMAT", "2").replace("PARTITIONING", "[]").replace("maxRecords: 10,", "")
    text = text.replace("maxLatencySeconds: 0.05", "maxLatencySeconds: 1.0")
    text = text.replace("      - {name: at,", "      - {name: note, type: string}\n      - {name: at,")
    return parse_spec(f"{text}  replicas: {replicas}\n  commit: {commit}\n", file="orders.yaml")


def message(number: int) -> bytes:
    """An order of about 200 bytes."""
    return json.dumps({"id": number, "at": "2026-11-21T08:00:00Z", "note": f"{number:0150}"}).encode()


def run(replicas: int, commit: str, rows: int) -> tuple[float, float, int, int]:
    """Rows a second, the same of processor time, snapshots and batches; checks that every row is there."""
    topic = Topic("orders", PARTITIONS)
    values = [message(n) for n in range(1_000)]
    for p in range(PARTITIONS):
        topic.send(p, *(values * (rows // PARTITIONS // len(values))))
    sent = sum(len(log) for log in topic.logs.values())
    lake, registry, stop = Lake(topic), StatusRegistry(), threading.Event()
    lake.sources.open = lambda name, stream: Reader(lake.sources, name)  # type: ignore[method-assign]
    context = replace(
        lake.context(registry=registry), clock=time.monotonic, stopping=stop.is_set, executor=one_thread
    )
    made = spec(replicas, commit)
    readers = [Ingestor(made, context, replica=n) for n in range(replicas)]
    with ThreadPoolExecutor(replicas) as pool:
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        running = [pool.submit(reader.run) for reader in readers]
        try:
            while registry.get("orders").rows < sent and time.monotonic() < began_s + RUN_S_MAX:
                time.sleep(0.005)
            took_s, took_cpu_s = time.monotonic() - began_s, time.process_time() - began_cpu_s
        finally:
            stop.set()
        for one in running:
            one.result()
    assert lake.table().total("records") == sent, f"{lake.table().total('records')} of {sent} rows"
    status = registry.get("orders")
    return sent / took_s, sent / took_cpu_s, status.snapshots, status.commits


def main() -> int:
    """Print the figures, each kind once per round, in turn."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.replica_speed", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="rounds (default 3)")
    parser.add_argument("--rows", type=int, default=ROWS, help=f"rows of a run (default {ROWS})")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    for number in range(options.rounds):
        for replicas, commit in ((1, "bookkeeper"), (3, "bookkeeper"), (3, "direct")):
            speed, per_cpu_s, snapshots, batches = run(replicas, commit, options.rows)
            line = f"{replicas} x {commit}: {speed:,.0f} rows/s, {per_cpu_s:,.0f} per processor second"
            line += f", {batches} batches in {snapshots} snapshots"
            sys.stdout.write(f"round {number + 1}: {line}\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
