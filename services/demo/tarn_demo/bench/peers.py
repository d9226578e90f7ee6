"""The network side of `scripts/bench peers`: `python -m tarn_demo.bench.peers VERB`, JSON on stdout.

What others do with a topic of JSON: Spark Structured Streaming, Iceberg's sink of Kafka Connect, and the loop
that one writes by hand with librdkafka and pyiceberg. All as their own documents show it, with the same
columns and checks as ingest.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from pyiceberg.catalog import Catalog

from tarn.adapters.kafka_client import KafkaConnection, create_topic
from tarn.adapters.spark_remote import session, with_token
from tarn.cli.clients.lake import rest_catalog
from tarn.cli.settings import Settings, load_secrets
from tarn.core.errors import UnavailableError
from tarn_demo.bench import sink
from tarn_demo.bench.lines import printed

PARTITIONS = 4
BAD_EVERY = 50
"""One message in so many is bad: 2 %."""
RECORDS_MAX = 100_000
LATENCY_S_MAX = 1.0
CONSUME_MAX = 10_000
FLUSH_S_MAX = 120.0
STALL_S_MAX = 30.0
CARRIERS = ("9E", "AA", "AS", "B6", "DL", "EV", "F9", "FL")
SCHEMA = pa.schema(
    [
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("id", pa.int64(), nullable=False),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("carrier", pa.string()),
        pa.field("delay", pa.float64()),
        pa.field("text", pa.string()),
    ]
)
SPARK_TYPE = "id BIGINT, at TIMESTAMP, carrier STRING, delay DOUBLE, text STRING"


def messages(count: int, size: int) -> Iterator[tuple[int | None, bytes]]:
    """Messages of about `size` bytes, each with its id; None for a bad one."""
    for number in range(count):
        row: dict[str, Any] = {
            "id": number,
            "at": f"2026-11-23T{number % 24:02}:{number % 60:02}:{number % 59:02}.{number % 1000:03}Z",
            "carrier": CARRIERS[number % len(CARRIERS)],
            "delay": (number % 1_000) / 4 - 50,
        }
        row["text"] = f"{number:x}-".ljust(max(1, size - len(orjson.dumps(row)) - 11), "abcdefgh"[number % 8])
        if number % BAD_EVERY:
            yield number, orjson.dumps(row)
        elif number % (2 * BAD_EVERY):
            yield None, orjson.dumps(row)[:-7]
        else:
            del row["id"]
            yield None, orjson.dumps(row)


class Bench:
    """The verbs, as the cli's own user."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._login = settings.kafka_login()

    def produce(self, topic: str, count: int, size: int) -> dict[str, Any]:
        """Fill a topic, which is created if it is not there; returns what a correct table of it holds."""
        producer = self.producer(linger_ms=20)
        rows = total = sent = 0
        for number, (good, value) in enumerate(messages(count, size)):
            while True:
                try:
                    producer.produce(topic, value, partition=number % PARTITIONS)
                    break
                except BufferError:
                    producer.poll(0.1)
            sent += len(value)
            if good is not None:
                rows, total = rows + 1, total + good
        if producer.flush(FLUSH_S_MAX):
            raise UnavailableError(f"{topic} was not filled in {FLUSH_S_MAX:.0f} s; see the log of kafka")
        return {"messages": count, "bytes": sent, "rows": rows, "sum": total}

    def producer(self, *, linger_ms: float, queue_mib: int = 256) -> Producer:
        """A producer of librdkafka that collects messages for so long, and holds at most so many bytes."""
        bounds = {"linger.ms": linger_ms, "queue.buffering.max.kbytes": queue_mib * 1_024}
        return Producer({**self._kafka(), **bounds, "compression.type": "lz4"})

    def create(self, topic: str) -> dict[str, Any]:
        """Create an empty topic."""
        self._create(topic, PARTITIONS)
        return {}

    def spark(self, topic: str, table: str) -> dict[str, Any]:
        """Drain a topic by Spark Structured Streaming; its processor time is its container's."""
        remote = with_token(self._settings.spark_remote, self._settings.secrets_dir)
        with session(remote, {"spark.sql.shuffle.partitions": "4"}) as spark:
            spark.sql("CREATE NAMESPACE IF NOT EXISTS bench")
            rows = (
                spark.readStream.format("kafka")
                .option("kafka.bootstrap.servers", self._settings.kafka_bootstrap)
                .option("kafka.security.protocol", "SASL_PLAINTEXT")
                .option("kafka.sasl.mechanism", "SCRAM-SHA-512")
                .option("subscribe", topic)
                .option("startingOffsets", "earliest")
                .load()
                .selectExpr("partition", "offset", f"from_json(CAST(value AS STRING), '{SPARK_TYPE}') AS row")
                .where("row.id IS NOT NULL")
                .selectExpr("partition", "offset", "row.*")
            )
            began = time.monotonic()
            query = (
                rows.writeStream.queryName(table).format("iceberg").trigger(availableNow=True).toTable(table)
            )
            query.awaitTermination()
            seconds = time.monotonic() - began
            if (failed := query.exception()) is not None:
                raise UnavailableError(f"Spark's stream into {table} failed: {failed}")
        return {"seconds": seconds}

    def loop(self, topic: str, table: str) -> dict[str, Any]:
        """Drain a topic by a plain loop: consume, parse, append."""
        catalog = self._catalog()
        catalog.create_namespace_if_not_exists("bench")
        target = catalog.create_table(table, SCHEMA)
        consumer = Consumer({**self._kafka(), "group.id": "tarn-bench", "enable.auto.commit": False})
        ends = self._ends(topic, PARTITIONS)
        at = dict.fromkeys(ends, 0)
        consumer.assign([TopicPartition(topic, p, 0) for p in ends])
        began, cpu, commits, moved = time.monotonic(), time.process_time(), 0, time.monotonic()
        rows: list[dict[str, Any]] = []
        opened = began
        while at != ends or rows:
            for message in consumer.consume(CONSUME_MAX, 0.2):
                if (error := message.error()) is not None:
                    raise KafkaException(error)
                partition, offset, value = message.partition(), message.offset(), message.value()
                assert partition is not None
                assert offset is not None
                at[partition], moved = offset + 1, time.monotonic()
                try:
                    row = orjson.loads(value or b"")
                    row["at"] = _time(row["at"])
                    rows.append({"partition": partition, "offset": offset, "id": int(row["id"]), **row})
                except (ValueError, KeyError, TypeError):
                    continue
            if len(rows) >= RECORDS_MAX or at == ends or time.monotonic() > opened + LATENCY_S_MAX:
                if rows:
                    target.append(pa.Table.from_pylist(rows, schema=SCHEMA))
                    commits += 1
                rows, opened = [], time.monotonic()
            if time.monotonic() > moved + STALL_S_MAX:
                raise UnavailableError(f"{topic} gave nothing for {STALL_S_MAX:.0f} s; see the log of kafka")
        seconds = time.monotonic() - began
        consumer.close()
        return {
            "seconds": seconds,
            "cpu_s": time.process_time() - cpu,
            "memory_peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "commits": commits,
        }

    def sink(self, topic: str, table: str, rows: int) -> dict[str, Any]:
        """Drain a topic by Iceberg's sink of Kafka Connect; its processor time is its container's."""
        for name in (sink.control_topic(table), sink.letters_topic(table)):
            self._create(name, 1)
        catalog = self._catalog()
        catalog.create_namespace_if_not_exists("bench")
        catalog.create_table(table, SCHEMA)
        found = sink.drain(catalog, self._settings, topic, table, rows)
        return {**found, "dead_letters": self._ends(sink.letters_topic(table), 1)[0]}

    def count(self, table: str) -> dict[str, Any]:
        """What a table holds: rows and the sum of their ids; nothing if it does not exist."""
        catalog = self._catalog()
        if not catalog.table_exists(table):
            return {"rows": 0, "sum": 0}
        found = catalog.load_table(table)
        ids = found.scan(selected_fields=("id",)).to_arrow()["id"]
        return {"rows": len(ids), "sum": pc.sum(ids).as_py() or 0}

    def _create(self, topic: str, partitions: int) -> None:
        admin = KafkaConnection(
            bootstrap=self._settings.kafka_bootstrap, login=self._login, client_id="bench"
        ).admin()
        try:
            create_topic(admin, topic, partitions)
        finally:
            admin.close()

    def _ends(self, topic: str, partitions: int) -> dict[int, int]:
        """The end offset of each partition."""
        consumer = Consumer({**self._kafka(), "group.id": "tarn-bench"})
        try:
            places = [TopicPartition(topic, partition) for partition in range(partitions)]
            return {place.partition: consumer.get_watermark_offsets(place)[1] for place in places}
        finally:
            consumer.close()

    def _kafka(self) -> dict[str, Any]:
        login = self._login
        return {
            "bootstrap.servers": self._settings.kafka_bootstrap,
            "security.protocol": login.protocol,
            "sasl.mechanism": login.mechanism,
            "sasl.username": login.user,
            "sasl.password": login.password,
        }

    def _catalog(self) -> Catalog:
        settings = self._settings
        return rest_catalog(settings, load_secrets(settings.secrets_dir))


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def main(arguments: Sequence[str]) -> int:
    """Run one verb and return the exit code."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="tarn_demo.bench.peers")
    verbs = parser.add_subparsers(dest="verb", required=True)
    for name, words in (
        ("create", ("topic",)),
        ("produce", ("topic",)),
        ("spark", ("topic", "table")),
        ("sink", ("topic", "table")),
        ("loop", ("topic", "table")),
        ("count", ("table",)),
    ):
        verb = verbs.add_parser(name, allow_abbrev=False)
        for word in words:
            verb.add_argument(f"--{word}", required=True)
        if name == "produce":
            verb.add_argument("--count", type=int, required=True)
            verb.add_argument("--size", type=int, required=True)
        elif name == "sink":
            verb.add_argument("--rows", type=int, required=True)
    options = vars(parser.parse_args(arguments))
    named: dict[str, Callable[..., dict[str, Any]]] = {
        "create": Bench.create,
        "produce": Bench.produce,
        "spark": Bench.spark,
        "sink": Bench.sink,
        "loop": Bench.loop,
        "count": Bench.count,
    }
    asked = named[options.pop("verb")]
    return printed(lambda: [asked(Bench(Settings.read()), **options)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
