"""Spark's own streams: Kafka as their source, checkpoints in the store, a new Spark after a kill."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from docker.models.containers import Container
from kafka import KafkaAdminClient
from kafka.admin import NewTopic
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tarn.adapters import spark_remote
from tests.integration.ingest.conftest import Stack, eventually, free_port, hardened
from tests.support.containers import LogKeeper
from tests.support.documents import to_try
from tests.support.healthy import await_health

# Both: the second reads what the first has sent.
pytestmark = pytest.mark.in_turn(5, "a stream of Spark from Kafka loses its place with its container")

ROOT = Path(__file__).resolve().parents[3]
PARTITIONS = 3
WAIT_S = 240.0
SASL = {"kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.mechanism": "SCRAM-SHA-512"}


@contextmanager
def a_spark(stack: Stack) -> Iterator[tuple[SparkSession, Container]]:
    """A client of a new Spark, as the stack runs it, and its container."""
    port = free_port()
    container = hardened("spark", mem_limit="2g").with_network(stack.network).with_network_aliases("spark")
    container.with_volume_mapping(stack.secrets["spark"], "/run/tarn/secrets", "ro")
    container.ports["15002/tcp"] = ("127.0.0.1", port)  # type: ignore[assignment]
    with container:
        wrapped = container.get_wrapped_container()
        await_health(wrapped, what="spark")
        token = stack.secret("spark", "spark_token")
        with spark_remote.session(f"sc://localhost:{port}/;token={token}", {}) as session:
            yield session, wrapped


@pytest.fixture(scope="module")
def second(stack: Stack) -> Iterator[tuple[SparkSession, Container]]:
    """The Spark that stays."""
    with a_spark(stack) as found:
        yield found


@pytest.fixture(scope="module")
def topic(stack: Stack) -> str:
    admin = KafkaAdminClient(bootstrap_servers=stack.kafka, **stack.login().options())
    admin.create_topics([NewTopic("numbers", num_partitions=PARTITIONS, replication_factor=1)])
    admin.close()
    return "numbers"


def send(stack: Stack, topic: str, numbers: range) -> None:
    producer = stack.producer()
    for number in numbers:
        producer.send(topic, value=str(number).encode(), partition=number % PARTITIONS)
    producer.flush()
    producer.close()


def block() -> str:
    """The stream of docs/pipeline.md."""
    (found,) = [one.text for one in to_try(ROOT / "docs/pipeline.md") if 'format("kafka")' in one.text]
    return found


def start(spark: SparkSession, topic: str) -> None:
    """Run the stream of the documents, into the same table and with the same name each time."""
    code = block().replace("flight-events", topic).partition("query.awaitTermination")[0]
    exec(code.replace("bronze.raw_events", "numbers.raw"), {"spark": spark})


def numbers_in(stack: Stack) -> list[int]:
    table = stack.open().load_table("numbers.raw")
    return sorted(int(text) for text in table.scan().to_arrow()["value"].to_pylist())


def await_numbers(stack: Stack, count: int) -> None:
    eventually(f"{count} rows", lambda: len(numbers_in(stack)) >= count, timeout_s=WAIT_S)


def test_a_stream_from_kafka_goes_on_in_a_new_spark_without_a_loss_or_a_double(
    stack: Stack, topic: str, request: pytest.FixtureRequest
) -> None:
    """The first Spark is killed while records arrive; its container and all that was in it are gone."""
    stack.open().create_namespace("numbers")
    with a_spark(stack) as (spark, container):
        send(stack, topic, range(300))
        start(spark, topic)
        await_numbers(stack, 300)
        send(stack, topic, range(300, 2_000))
        time.sleep(0.5)  # Somewhere within a batch.
        container.kill()
    send(stack, topic, range(2_000, 2_500))
    spark, _ = request.getfixturevalue("second")
    start(spark, topic)
    await_numbers(stack, 2_500)
    for query in spark.streams.active:
        query.processAllAvailable()  # A repeated batch would come now.
        query.stop()
    assert numbers_in(stack) == list(range(2_500))
    batches = stack.open().load_table("numbers.raw").metadata.snapshots
    assert len(batches) >= 2, "the second Spark read it all at once, and the checkpoint was of no use"


def test_spark_reads_topics_and_writes_none(
    topic: str, second: tuple[SparkSession, Container], log_keeper: LogKeeper
) -> None:
    spark, container = second
    log_keeper.expect_errors(str(container.short_id))
    where: dict[str, str] = {
        "kafka.bootstrap.servers": spark.conf.get("spark.tarn.kafka.bootstrap.servers"),
        **SASL,
    }
    rows = spark.read.format("kafka").options(**where, subscribe=topic).load()
    assert rows.select("partition").distinct().count() == PARTITIONS
    with pytest.raises(PySparkException, match=r"(?s)not authorized|Authorization"):
        rows.select("value").write.format("kafka").options(**where, topic=topic).save()
    with pytest.raises(PySparkException, match=r"(?s)Access Denied|AccessDenied|403"):
        spark.read.text("s3a://tarn/catalog/v1/grants.json").collect()
    with pytest.raises(PySparkException, match=r"(?s)Access Denied|AccessDenied|403"):
        spark.range(3).write.parquet("s3a://tarn/elsewhere/numbers")
