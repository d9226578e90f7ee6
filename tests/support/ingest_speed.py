"""What ingest costs from a consumer's record to a committed file, in rows a second and a processor second.

`python -m tests.support.ingest_speed --messages 200`. The shipped reader, decoder, writer and committer, with
a store and a catalog in memory. Records come through librdkafka from the broker that it has inside for tests,
in a process of its own. So the figures are those of the ingest process alone: no Kafka, network or disk. Two
versions are compared by running both in turn, each in its own checkout.
"""

from __future__ import annotations

import argparse
import gc
import logging
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from itertools import cycle, islice
from pathlib import Path

import structlog
from confluent_kafka import Producer

from tarn.adapters.kafka_client import KafkaConnection
from tarn.adapters.kafka_librdkafka import LibrdkafkaConsumer
from tarn.core.batch import RawRecords
from tarn.core.spec import IngestorSpec, parse_spec
from tarn.ingest.context import one_thread
from tarn.ingest.ingestor import Ingestor
from tarn.ingest.status import StatusRegistry
from tarn.testing.memory_topic import MemoryTopicClient, MemoryTopicReader, Topic
from tarn_demo.bench import peers
from tarn_demo.flights.dataset import read_flights, read_reference
from tarn_demo.flights.events import NoiseRates, Stream
from tests.support.lake import Lake

ROOT = Path(__file__).parents[2]
PARTITIONS = 4
ROWS = {"200": 300_000, "1700": 80_000, "flights": 200_000}
"""The broker keeps 100,000 messages and 5 MiB, compressed, of a partition."""
WAIT_S_MAX = 60.0
SPEC = """
apiVersion: tarn/v1
kind: Ingestor
metadata: {name: speed}
spec:
  source: {kafka: {topic: speed}}
  table: {namespace: bench, name: speed}
  schema:
    fields:
      - {name: id, type: long, required: true}
      - {name: at, type: timestamptz}
      - {name: carrier, type: string}
      - {name: delay, type: double}
      - {name: text, type: string}
  batching: {maxLatencySeconds: 1.0}
  deadLetters: {table: {namespace: bench, name: letters}}
"""


class Reader(MemoryTopicReader):
    """A topic in memory for everything but its records, which librdkafka reads."""

    def __init__(self, client: MemoryTopicClient, topic: str, address: str) -> None:
        super().__init__(client, topic)
        connection = KafkaConnection(bootstrap=address, client_id="speed")
        self._records = LibrdkafkaConsumer(connection, topic, group="tarn-speed")

    def seek(self, positions: Mapping[int, int]) -> None:
        self._records.assign(positions)

    def poll(self, *, records_max: int, timeout_s: float) -> list[RawRecords]:
        return self._records.poll(records_max=records_max, timeout_s=timeout_s)

    def close(self) -> None:
        self._records.close()


def spec(kind: str) -> IngestorSpec:
    """The spec of these messages: that of `scripts/bench peers`, or of the demo.

    A batch waits shorter: for the last one, which is not full, it is time without work.
    """
    text = (ROOT / "services/specs/flights.yaml").read_text() if kind == "flights" else SPEC
    return parse_spec(text.replace("maxLatencySeconds: 1.0", "maxLatencySeconds: 0.25"), file=f"{kind}.yaml")


def messages(kind: str, count: int) -> Iterator[bytes]:
    """The values of these messages; those of a day of flights come again and again."""
    if kind != "flights":
        yield from (value for _, value in peers.messages(count, int(kind)))
        return
    stream = Stream(read_flights().slice(0, 50_000), read_reference("airports"), noise=NoiseRates(), seed=1)
    some = [message.value for message in stream.messages(0, len(stream), now=datetime.now(UTC))]
    yield from islice(cycle(some), count)


def serve(topic: str, kind: str, count: int) -> None:
    """Be a broker with a full topic until standard input ends; print its address."""
    options = {"linger.ms": 20, "compression.type": "zstd"}
    broker = Producer({"bootstrap.servers": "none", "test.mock.num.brokers": 1, "log_level": 0, **options})
    for number, value in enumerate(messages(kind, count)):
        while True:
            try:
                broker.produce(topic, value, partition=number % PARTITIONS)
                break
            except BufferError:
                broker.poll(0.1)
    assert broker.flush(WAIT_S_MAX) == 0
    (address,) = [f"{b.host}:{b.port}" for b in broker.list_topics(timeout=WAIT_S_MAX).brokers.values()]
    sys.stdout.write(f"{address}\n")
    sys.stdout.flush()
    sys.stdin.read()


def run(kind: str, rows: int, address: str) -> tuple[float, float, int, int]:
    """Seconds, processor seconds, rows and batches; checks that every message is a row or a dead letter."""
    made = spec(kind)
    topic = Topic(made.topic, PARTITIONS)
    lake, registry, stop = Lake(topic), StatusRegistry(), threading.Event()
    lake.sources.open = lambda name, stream: Reader(lake.sources, name, address)  # type: ignore[method-assign]
    context = replace(
        lake.context(registry=registry), clock=time.monotonic, stopping=stop.is_set, executor=one_thread
    )
    ingestor = Ingestor(made, context)
    gc.collect()
    gc.freeze()
    with ThreadPoolExecutor(1) as pool:
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        running = pool.submit(ingestor.run)
        try:
            while time.monotonic() < began_s + WAIT_S_MAX:
                status = registry.get(made.metadata.name)
                if status.rows + status.bad_records >= rows:
                    break
                time.sleep(0.005)
            took_s, took_cpu_s = time.monotonic() - began_s, time.process_time() - began_cpu_s
        finally:
            stop.set()
        running.result()
    status = registry.get(made.metadata.name)
    assert status.rows + status.bad_records == rows, f"{status.message}: {status}"
    assert lake.table(str(ingestor.table)).total("records") == status.rows
    return took_s, took_cpu_s, status.rows, status.commits


def main() -> int:
    """Print the figures of each round."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.ingest_speed", description=__doc__)
    parser.add_argument("--messages", choices=sorted(ROWS), default="200", help="which (default 200 bytes)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds (default 3)")
    parser.add_argument("--rows", type=int, default=0, help="messages of a round")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    kind, rows = options.messages, options.rows or ROWS[options.messages]
    if options.serve:
        serve(options.serve, kind, rows)
        return 0
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    again = [sys.executable, "-m", "tests.support.ingest_speed", "--messages", kind, "--rows", str(rows)]
    again += ["--serve", spec(kind).topic]
    broker = subprocess.Popen(again, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert broker.stdin is not None
    assert broker.stdout is not None
    try:
        address = broker.stdout.readline().strip()
        for number in range(options.rounds + 1):
            took_s, cpu_s, good, batches = run(kind, rows, address)
            if not number:
                continue  # the first one loads what is loaded once
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            line = f"{kind}: {rows / took_s:,.0f} messages/s, {rows / cpu_s:,.0f} per processor second"
            line += (
                f" ({cpu_s * 1e9 / rows:,.0f} ns), {good:,} rows in {batches} batches, peak {peak:,.0f} MiB"
            )
            sys.stdout.write(f"round {number}: {line}\n")
            sys.stdout.flush()
    finally:
        broker.stdin.close()
        broker.wait()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
