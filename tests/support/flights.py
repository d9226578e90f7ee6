"""Expected contents of the lake after a year of flights, and ways to query it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pandas as pd
from kafka import KafkaConsumer, TopicPartition
from pyspark.sql import SparkSession

from tarn.adapters import spark_remote
from tests.support import oracle
from tests.support.stack import Stack

TOPIC = "flight-events"
KEPT = ("silver.flights", *(f"gold.{name}" for name in oracle.GOLD_KEYS))
ALL = ("bronze.flight_events", *KEPT)
EXPORT = re.compile(r"^export ([A-Z_0-9]+)=(.*)$")
SHARES = ("--duplicates", "0.02", "--late", "0.05", "--broken", "0.001")


def messages_of_a_year() -> int:
    """Number of messages in a year with SHARES: every event, the duplicates, and the broken messages."""
    events = oracle.Expected().events
    return events + round(events * 0.02) + round(events * 0.001)


def host_env(stack: Stack) -> dict[str, str]:
    """Variables that `scripts/tarn env` prints, parsed as a shell would."""
    answer = stack.script("tarn", "env", timeout_s=240)
    assert answer.code == 0, answer.text
    found = (EXPORT.match(row) for row in answer.text.splitlines())
    return {m.group(1): m.group(2).strip("'\"") for m in found if m is not None}


@contextmanager
def spark_of(stack: Stack) -> Iterator[SparkSession]:
    """A session on the stack's Spark Connect server, from the host."""
    with spark_remote.session(
        host_env(stack)["TARN_SPARK_REMOTE"], {"spark.sql.session.timeZone": "UTC"}
    ) as session:
        yield session


def end_offsets(stack: Stack) -> dict[int, int]:
    """End offset of each partition of the topic, read by a client on the host; empty without a topic."""
    env = host_env(stack)
    login = {}
    if env.get("TARN_KAFKA_SASL_MECHANISM"):
        login = {
            "sasl_mechanism": env["TARN_KAFKA_SASL_MECHANISM"],
            "sasl_plain_username": env["TARN_KAFKA_USERNAME"],
            "sasl_plain_password": env["TARN_KAFKA_PASSWORD"],
        }
    consumer = KafkaConsumer(
        bootstrap_servers=env["TARN_KAFKA_BOOTSTRAP"],
        security_protocol=env["TARN_KAFKA_SECURITY_PROTOCOL"],
        **login,
    )
    try:
        partitions = [TopicPartition(TOPIC, n) for n in consumer.partitions_for_topic(TOPIC) or ()]
        return {p.partition: end for p, end in consumer.end_offsets(partitions).items()}
    finally:
        consumer.close()


def wrong(stack: Stack) -> list[str]:
    """Every difference between the lake and what the oracle and the topic say."""
    told = []
    ends = sum(end_offsets(stack).values())
    with spark_of(stack) as spark:
        bronze = _number(spark, "SELECT count(*) FROM tarn.bronze.flight_events")
        dead = _number(spark, "SELECT count(*) FROM tarn.ops.dead_letters WHERE ingestor = 'flights'")
        different = _number(
            spark,
            "SELECT count(DISTINCT `partition`, offset) FROM (SELECT _tarn.partition, _tarn.offset "
            "FROM tarn.bronze.flight_events UNION ALL SELECT `partition`, offset FROM tarn.ops.dead_letters "
            "WHERE ingestor = 'flights')",
        )
        if not bronze + dead == different == ends:
            told.append(f"bronze {bronze} + dead letters {dead}, {different} of them different, ends {ends}")
        silver = spark.table("tarn.silver.flights").toPandas()
        silver["time_hour"] = pd.to_datetime(silver["time_hour"], utc=True)
        told += oracle.differences(oracle.flights(), silver, oracle.KEY)
        for name, answers in oracle.gold().items():
            found = spark.table(f"tarn.gold.{name}").toPandas()
            told += [f"{name}: {d}" for d in oracle.differences(answers, found, oracle.GOLD_KEYS[name])]
    return told


def checksums(stack: Stack, tables: tuple[str, ...] = KEPT) -> dict[str, tuple[int, int]]:
    """Row count of each table, and a checksum over all its columns but `_tarn`."""
    with spark_of(stack) as spark:
        return {table: _checksum(spark, table) for table in tables}


def _checksum(spark: SparkSession, table: str) -> tuple[int, int]:
    columns = ", ".join(f"`{c}`" for c in spark.table(f"tarn.{table}").columns if c != "_tarn")
    # A sum instead of XOR: pairs of equal rows must not cancel out.
    found = spark.sql(
        f"SELECT count(*), CAST(sum(CAST(xxhash64({columns}) AS DECIMAL(38, 0))) AS STRING) FROM tarn.{table}"
    ).first()
    assert found is not None
    return int(found[0]), int(found[1] or 0)


def load(stack: Stack, *words: str, timeout_s: float) -> str:
    """Run `scripts/tarn demo load` until it succeeds; returns its output."""
    answer = stack.script("tarn", "demo", "load", *words, timeout_s=timeout_s)
    assert answer.code == 0, answer.text[-4_000:]
    return answer.text


def _number(spark: SparkSession, sql: str) -> int:
    first = spark.sql(sql).first()
    assert first is not None
    return int(first[0])
