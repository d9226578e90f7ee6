"""Spark's `readStream` over a table whose history is thinned: with a reader's tag it loses nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from tests.integration.engines.clients import open_catalog
from tests.integration.engines.conftest import Lake
from tests.support.documents import to_try

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[3]
WAIT_S = 240.0
PAUSE_COMMITS = 100
"""More than the 80 snapshots that every table keeps."""


@pytest.fixture(scope="module")
def catalog(lake: Lake) -> Catalog:
    return open_catalog(lake)


@pytest.fixture(scope="module")
def namespace(catalog: Catalog) -> str:
    catalog.create_namespace("read_stream")
    return "read_stream"


def append(table: Table, *numbers: int) -> None:
    """One commit per number."""
    for number in numbers:
        table.append(pa.table({"id": pa.array([number], pa.int64())}))


@contextmanager
def copying(spark: SparkSession, source: str, since_ms: int, **options: str) -> Iterator[StreamingQuery]:
    """A stream from one table into another, from where it was; ended afterwards, idle unless it failed."""
    reader = spark.readStream.option("stream-from-timestamp", str(since_ms)).options(**options)
    stream = reader.table(source)
    query = (
        stream.writeStream.format("iceberg")
        .queryName(f"copy of {source}")
        .trigger(processingTime="1 second")
        .toTable(f"{source}_copy")
    )
    try:
        yield query
        query.processAllAvailable()
    finally:
        query.stop()


def await_rows(spark: SparkSession, table: str, number: int, query: StreamingQuery) -> None:
    until = time.monotonic() + WAIT_S
    while spark.table(table).count() < number:
        if not query.isActive:
            raise AssertionError(f"the stream ended: {query.exception()}")
        assert time.monotonic() < until, query.lastProgress
        time.sleep(1)


def reached(query: StreamingQuery) -> int:
    """Id of the snapshot that the stream has read to its end."""
    progress = query.lastProgress
    assert progress is not None
    return int(json.loads(progress["sources"][0]["endOffset"])["snapshot_id"])


def started(spark: SparkSession, catalog: Catalog, name: str) -> tuple[Table, int]:
    """A table of three rows and its copy, which a stream has filled; the snapshot that it reached."""
    table = catalog.create_table(name, schema=pa.schema([("id", pa.int64())]))
    spark.sql(f"CREATE TABLE {name}_copy (id bigint) USING iceberg")
    append(table, 0)
    since_ms = int(time.time() * 1_000) + 1
    time.sleep(0.01)
    append(table, 1, 2, 3)
    with copying(spark, name, since_ms) as query:
        await_rows(spark, f"{name}_copy", 3, query)
        query.processAllAvailable()
        return table, reached(query)


@pytest.mark.in_turn(4, "the documented stream no longer runs")
def test_the_stream_of_the_documents_moves_its_tag_while_it_reads(
    spark: SparkSession, catalog: Catalog, namespace: str
) -> None:
    """As in docs/pipeline.md, but for the name of the table and how often the tag is moved."""
    name = f"{namespace}.documented"
    (block,) = (one for one in to_try(ROOT / "docs/pipeline.md") if "tarn-reader-" in one.text)
    code = block.text.replace("bronze.flight_events", name).replace(
        "awaitTermination(30)", "awaitTermination(1)"
    )
    table = catalog.create_table(name, schema=pa.schema([("id", pa.int64())]))
    spark.sql(f"CREATE TABLE {name}_copy (id bigint) USING iceberg")
    append(table, 0)
    time.sleep(0.01)
    with ThreadPoolExecutor(1) as executor:
        running = executor.submit(exec, code, {"spark": spark})
        try:
            numbers = range(1, PAUSE_COMMITS + 20)
            begun = until_there(lambda: spark.streams.active, running)
            append(table, *numbers)
            await_rows(spark, f"{name}_copy", len(numbers), begun[0])
            tagged = until_there(lambda: tag_of(table), running)
            append(table, 1_000)
            until_there(lambda: tag_of(table) != tagged, running)
        finally:
            for query in spark.streams.active:
                query.processAllAvailable()
                query.stop()
        running.result(WAIT_S)
    found = sorted(row["id"] for row in spark.table(f"{name}_copy").collect())
    assert found in ([*numbers], [*numbers, 1_000])


def tag_of(table: Table) -> int | None:
    """The snapshot of the reader's tag."""
    ref = table.refresh().refs().get("tarn-reader-mine")
    return None if ref is None else ref.snapshot_id


def until_there(look: Callable[[], T], running: Future[None]) -> T:
    """What `look` finds as soon as it finds something; the code that runs must not have ended."""
    until = time.monotonic() + WAIT_S
    while not (found := look()):
        if running.done():
            running.result()
            raise AssertionError("the stream ended")
        assert time.monotonic() < until
        time.sleep(0.2)
    return found


@pytest.mark.in_turn(6, "thinning takes the place of a reader that paused")
def test_a_tagged_reader_goes_on_after_a_pause_of_many_commits(
    spark: SparkSession, catalog: Catalog, namespace: str
) -> None:
    name = f"{namespace}.tagged"
    table, snapshot = started(spark, catalog, name)
    spark.sql(f"ALTER TABLE {name} CREATE OR REPLACE TAG `tarn-reader-copy` AS OF VERSION {snapshot}")
    table.refresh()
    numbers = range(4, 4 + PAUSE_COMMITS)
    append(table, *numbers)
    with copying(spark, name, 0) as query:
        await_rows(spark, f"{name}_copy", 3 + PAUSE_COMMITS, query)
    found = sorted(row["id"] for row in spark.table(f"{name}_copy").collect())
    assert found == [1, 2, 3, *numbers]


@pytest.mark.in_turn(4, "a reader without a tag skips rows in silence")
def test_without_the_tag_the_same_stream_finds_that_its_place_is_gone(
    spark: SparkSession, catalog: Catalog, namespace: str
) -> None:
    """Not a silent loss; and the reason why there are tags of readers."""
    name = f"{namespace}.untagged"
    table, _ = started(spark, catalog, name)
    append(table, *range(4, 4 + PAUSE_COMMITS))
    with (
        pytest.raises((PySparkException, AssertionError), match=r"expired or removed|not found"),
        copying(spark, name, 0) as query,
    ):
        await_rows(spark, f"{name}_copy", 3 + PAUSE_COMMITS, query)


@pytest.mark.in_turn(5, "a stream ends where retention drops old files, or loses rows with the option for it")
def test_a_stream_passes_over_dropped_files_with_the_option_of_the_documents(
    spark: SparkSession, catalog: Catalog, namespace: str
) -> None:
    """As retention does it: whole files, in a snapshot whose operation is `delete`."""
    name = f"{namespace}.dropped"
    table, _ = started(spark, catalog, name)
    table.refresh()
    table.delete("id == 1")
    snapshot = table.refresh().current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary.operation.value == "delete"
    append(table, 4, 5)
    with (
        pytest.raises((PySparkException, AssertionError), match="delete snapshot"),
        copying(spark, name, 0) as query,
    ):
        await_rows(spark, f"{name}_copy", 5, query)
    with copying(spark, name, 0, **{"streaming-skip-delete-snapshots": "true"}) as query:
        await_rows(spark, f"{name}_copy", 5, query)
    found = sorted(row["id"] for row in spark.table(f"{name}_copy").collect())
    assert found == [1, 2, 3, 4, 5], "the copy keeps what it had, and gets all that came after"
