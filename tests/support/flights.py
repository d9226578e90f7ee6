"""What the lake must hold after a year of flights, and ways to ask it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pandas as pd
from kafka import KafkaConsumer, TopicPartition
from pyspark.sql import SparkSession

from tests.support import oracle
from tests.support.stack import Stack

TOPIC = "flight-events"
KEPT = ("silver.flights", *(f"gold.{name}" for name in oracle.GOLD_KEYS))
ALL = ("bronze.flight_events", *KEPT)
EXPORT = re.compile(r"^export ([A-Z_0-9]+)=(.*)$")
SHARES = ("--duplicates", "0.02", "--late", "0.05", "--broken", "0.001")


def messages_of_a_year() -> int:
    """How many messages a year with SHARES is: every event, those sent twice, and those that are none."""
    events = oracle.Expected().events
    return events + round(events * 0.02) + round(events * 0.001)


def host_env(stack: Stack) -> dict[str, str]:
    """What `scripts/tarn env` prints, as a shell would understand it."""
    answer = stack.script("tarn", "env", timeout_s=60)
    assert answer.code == 0, answer.text
    found = (EXPORT.match(row) for row in answer.text.splitlines())
    return {m.group(1): m.group(2).strip("'\"") for m in found if m is not None}


@contextmanager
def spark_of(stack: Stack) -> Iterator[SparkSession]:
    """A session of the stack's Spark Connect server, from the host."""
    session = SparkSession.builder.remote(host_env(stack)["TARN_SPARK_REMOTE"]).create()
    try:
        session.conf.set("spark.sql.session.timeZone", "UTC")
        yield session
    finally:
        session.stop()


def end_offsets(stack: Stack) -> dict[int, int]:
    """The end of each partition of the topic, as a client on the host sees it; none for no topic."""
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
    """Everything in the lake that is not as the oracle and the topic say."""
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
    """Rows, and a checksum over all columns but `_tarn`, of each table."""
    with spark_of(stack) as spark:
        return {table: _checksum(spark, table) for table in tables}


def _checksum(spark: SparkSession, table: str) -> tuple[int, int]:
    columns = ", ".join(f"`{c}`" for c in spark.table(f"tarn.{table}").columns if c != "_tarn")
    # A sum, not an exclusive or: rows that come in pairs must not cancel each other.
    found = spark.sql(
        f"SELECT count(*), CAST(sum(CAST(xxhash64({columns}) AS DECIMAL(38, 0))) AS STRING) FROM tarn.{table}"
    ).first()
    assert found is not None
    return int(found[0]), int(found[1] or 0)


def load(stack: Stack, *words: str, timeout_s: float) -> str:
    """Run `scripts/tarn demo load` until it ends well; gives what it said."""
    answer = stack.script("tarn", "demo", "load", *words, timeout_s=timeout_s)
    assert answer.code == 0, answer.text[-4_000:]
    return answer.text


def _number(spark: SparkSession, sql: str) -> int:
    first = spark.sql(sql).first()
    assert first is not None
    return int(first[0])
