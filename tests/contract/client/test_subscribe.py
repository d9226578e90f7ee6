"""A table as a queue: every row once per group, in order, from where the reader stopped."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table.update import RemoveSnapshotsUpdate, SetSnapshotRefUpdate
from pyiceberg.types import LongType, StringType

from tarn import client
from tarn.adapters.lake_reader import LakeReader, LoadedTable
from tarn.adapters.manifests import read_list
from tarn.adapters.store import S3Store
from tarn.core.decode import TRACE_TYPE
from tarn.core.errors import (
    CorruptStateError,
    ForbiddenError,
    InvalidError,
    InvalidSettingError,
    NoSuchTableError,
    ReaderPlaceError,
    ReaderTakenError,
    TarnError,
    UnavailableError,
)
from tarn.core.history import Retention
from tarn.core.offsets import OffsetMap
from tarn.core.reading import FileSpans, ReaderPosition
from tarn.core.spec import IngestorSpec, parse_spec
from tarn.core.table_catalog import TableName
from tarn.testing.memory_topic import HOLE, Topic
from tests.contract.ingest.test_merge import commits
from tests.support.documents import to_try
from tests.support.lake import SPEC, Lake, order, spec
from tests.support.pages import ROOT
from tests.support.readers import Client, delete_positions, places

OFFSETS = "tarn.offsets.orders"
SHORT = Retention(newest=3, steps=(), total_min=0)


class World:
    """A lake with one topic, its ingestor and a client."""

    def __init__(self, partitions: int = 1, *, partitioning: str = "[]", retention: Retention = SHORT):
        self.topic = Topic("orders", partitions)
        self.lake = Lake(self.topic, retention=retention)
        self.spec = spec(partitioning=partitioning)
        self.client = Client(self.lake)

    def send(self, number: int, partition: int = 0) -> None:
        """Send orders of one partition and ingest them, ten per commit."""
        first = len(self.topic.logs[partition])
        self.topic.send(partition, *(order(n) for n in range(first, first + number)))
        self.ingest()

    def ingest(self) -> None:
        self.lake.work(self.lake.ingestor(self.spec), turns=40 + sum(map(len, self.topic.logs.values())))

    def read(self, group: str | None = "g", **options: Any) -> list[tuple[int, int]]:
        """Places of all rows that a new reader of the group gets, in order."""
        return [place for batch in self.client.subscribe(group, **options) for place in places(batch)]


def spec_of(name: str, topic: str) -> IngestorSpec:
    text = (
        SPEC.replace("FORMAT", "2").replace("PARTITIONING", "[]").replace("topic: orders", f"topic: {topic}")
    )
    text = text.replace("metadata: {name: orders}", f"metadata: {{name: {name}}}")
    return parse_spec(text, file=f"{name}.yaml")


def spec_without_columns() -> IngestorSpec:
    text = SPEC.replace("FORMAT", "2").replace("PARTITIONING", "[]")
    start, end = text.index("  schema:"), text.index("  deadLetters")
    return parse_spec(text[:start] + text[end:], file="orders.yaml")


def offsets(*ranges: Iterable[int], partition: int = 0) -> list[tuple[int, int]]:
    return [(partition, offset) for one in ranges for offset in one]


@pytest.fixture
def world() -> World:
    world = World()
    world.send(25)
    return world


def test_a_group_gets_each_row_once_and_goes_on_where_it_was(world: World) -> None:
    assert world.read() == offsets(range(25))
    assert world.read() == []
    world.send(7)
    assert world.read() == offsets(range(25, 32))
    assert world.read("other") == offsets(range(32)), "each group has its own position"
    assert world.read(None) == offsets(range(32)), "without a group, nothing is stored"


def test_rows_have_all_columns_in_the_order_of_offsets_or_those_that_were_asked_for(world: World) -> None:
    (batch,) = world.client.subscribe()
    assert batch.rows.column_names == ["id", "at", "_tarn"]
    assert batch.rows["id"].to_pylist() == list(range(25))
    (some,) = world.client.subscribe("h", columns=["id"])
    assert some.rows.column_names == ["id"]
    assert some.rows["id"].to_pylist() == list(range(25))
    with pytest.raises(InvalidError, match=r"has no column price; it has id, at, _tarn"):
        world.client.subscribe(columns=["price"])


def test_a_column_whose_name_has_dots_is_read(world: World) -> None:
    with world.client.table().update_schema() as change:
        change.add_column(("id.of.order",), LongType())
        change.add_column(("_tarn.note",), StringType())
    world.send(1)
    (batch,) = world.client.subscribe("g")
    assert batch.rows.column_names == ["id", "at", "_tarn", "id.of.order", "_tarn.note"]
    (some,) = world.client.subscribe("h", columns=["_tarn.note", "id.of.order", "_tarn.offset"])
    assert some.rows.column_names == ["_tarn.note", "id.of.order", "_tarn"]
    assert some.rows["id.of.order"].to_pylist() == [None] * 26


@pytest.mark.parametrize("kind", [UnavailableError, ForbiddenError])
def test_after_an_error_the_table_is_loaded_again_with_its_store_keys(
    world: World, monkeypatch: pytest.MonkeyPatch, kind: type[TarnError]
) -> None:
    """Vended keys end while a laptop sleeps, and the clock of a plan's age stands still meanwhile."""
    reader = world.client.subscribe(rows_max=8)
    found = places(next(reader))
    with monkeypatch.context() as patch:
        patch.setattr(LakeReader, "read", fails(kind("the keys have ended")))
        with pytest.raises(kind):
            next(reader)
    loads: list[LakeReader] = []
    load = LakeReader.load

    def loaded(table: LakeReader) -> LoadedTable:
        loads.append(table)
        return load(table)

    monkeypatch.setattr(LakeReader, "load", loaded)
    for batch in reader:
        found += places(batch)
        assert loads
    assert found == offsets(range(25))


def fails(error: Exception) -> Callable[..., Any]:
    def fail(*_: object) -> None:
        raise error

    return fail


def test_a_batch_that_ctrl_c_kept_back_comes_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was left of the plan was looked through behind the batch, whose position was kept already."""
    reader = world.client.subscribe(rows_max=8)
    found = places(next(reader))
    within = FileSpans.within
    stops = iter([*4 * [False], True])  # three files and the one of the window, then what is left

    def stopped(file: FileSpans, wanted: Any) -> bool:
        if next(stops, False):
            raise KeyboardInterrupt
        return within(file, wanted)

    with monkeypatch.context() as patch:
        patch.setattr(FileSpans, "within", stopped)
        with pytest.raises(KeyboardInterrupt):
            next(reader)
    for batch in reader:
        found += places(batch)
    assert found == offsets(range(25))


def test_partitions_are_each_in_order() -> None:
    world = World(3)
    for partition, number in enumerate((12, 5, 30)):
        world.topic.send(partition, *(order(n) for n in range(number)))
    world.ingest()
    found = world.read(rows_max=7)
    for partition, number in enumerate((12, 5, 30)):
        assert [o for p, o in found if p == partition] == list(range(number))


def test_a_batch_has_at_most_so_many_rows_whatever_the_files_hold(world: World) -> None:
    batches = list(world.client.subscribe("a", rows_max=4))
    assert [batch.rows.num_rows for batch in batches] == [4, 4, 4, 4, 4, 4, 1], "files of 8, 8, 8 and 1"
    assert [batch.rows.num_rows for batch in world.client.subscribe("b", rows_max=1)] == [1] * 25
    assert [batch.rows.num_rows for batch in world.client.subscribe("c", files_max=1)] == [8, 8, 8, 1]
    assert [batch.rows.num_rows for batch in world.client.subscribe("d", rows_max=20)] == [16, 9]


def test_each_position_is_that_of_its_batch_and_can_be_kept_as_json(world: World) -> None:
    kept = [(places(b), b.position.to_json()) for b in world.client.subscribe("g", rows_max=4)]
    assert len(kept) == 7
    for number, (_, text) in enumerate(kept):
        position = ReaderPosition.from_json(text)
        assert world.read(None, position=position) == [p for later, _ in kept[number + 1 :] for p in later]


def test_a_position_is_stored_with_the_next_batch_or_at_the_end(world: World) -> None:
    reader = world.client.subscribe(rows_max=8)
    assert places(next(reader)) == offsets(range(8))
    assert world.read() == offsets(range(25)), "the first batch was not known to be done"
    reader = world.client.subscribe("h", rows_max=8)
    next(reader)
    next(reader)
    assert world.read("h") == offsets(range(8, 25)), "the second was asked for: the first is done"


def test_without_auto_commit_only_commit_stores(world: World) -> None:
    for batch in world.client.subscribe(auto_commit=False, rows_max=8):
        assert batch.rows.num_rows
    reader = world.client.subscribe(auto_commit=False, rows_max=8)
    assert places(next(reader)) == offsets(range(8))
    reader.commit()
    next(reader)
    assert world.read() == offsets(range(8, 25))


def test_a_loop_that_is_left_has_not_done_its_batch(world: World) -> None:
    with world.client.subscribe(rows_max=8) as reader:
        for _ in reader:
            break
    with contextlib.suppress(RuntimeError), world.client.subscribe(rows_max=8) as reader:
        for _ in reader:
            raise RuntimeError("cannot use it")
    assert world.read() == offsets(range(25))


# -- where to begin ----------------------------------------------------------------------------------------


def test_latest_begins_after_what_is_there_when_the_group_first_subscribes(world: World) -> None:
    assert world.read(start="latest") == []
    table = world.client.table()
    table.overwrite(table.scan().to_arrow())
    assert world.read(start="latest") == [], "in new files, and still not new"
    reader = world.client.subscribe("h", start="latest")
    table = world.client.table()
    table.overwrite(table.scan().to_arrow())
    assert list(reader) == []
    world.send(3)
    assert world.read(start="latest") == offsets(range(25, 28)), "the group has a position by now"
    assert world.read(position="earliest") == offsets(range(28)), "which this replaces"
    assert world.read() == []


def test_a_time_begins_at_the_first_message_of_each_partition_that_is_not_older() -> None:
    world = World(2)
    micros = 1_763_712_000_000_000
    for partition in (0, 1):
        world.topic.send(partition, *(order(n) for n in range(20)))
    world.topic.times_ms = {n: micros // 1_000 + n * 60_000 for n in range(20)}
    world.ingest()

    def at(minutes: float) -> datetime:
        return datetime.fromtimestamp(micros / 1e6 + minutes * 60, tz=UTC)

    for minutes, first in ((-1, 0), (0, 0), (6.5, 7), (19, 19), (19.1, 20)):
        found = world.read(None, start=at(minutes))
        assert sorted(found) == offsets(range(first, 20)) + offsets(range(first, 20), partition=1)
    table = world.client.table()
    old = table.scan(row_filter="id < 4").to_arrow()
    table.overwrite(old, overwrite_filter="id < 4")
    assert sorted(world.read(None, start=at(2))) == offsets(range(2, 20)) + offsets(range(2, 20), partition=1)
    world.send(1, partition=1)
    assert world.read(None, start=at(30)) == [], "its time is unknown to this test's topic"


@pytest.mark.parametrize("start", ["newest", datetime(2026, 1, 1), 5, None])
def test_another_start_is_refused(world: World, start: Any) -> None:
    with pytest.raises(InvalidError, match="give 'earliest', 'latest', a time with a time zone"):
        world.client.subscribe(None, start=start)


def test_a_partition_that_appears_later_is_read_from_its_first_row(world: World) -> None:
    assert world.read(start="latest") == []
    world.topic.logs[1] = [order(n) for n in range(4)]
    world.topic.starts[1] = 0
    world.ingest()
    assert world.read() == offsets(range(4), partition=1)


# -- waiting -----------------------------------------------------------------------------------------------


def test_it_waits_for_rows_and_ends_after_so_long_without_any(world: World) -> None:
    reader = world.client.subscribe(timeout_s=10.0, poll_s=2.0)
    assert places(next(reader)) == offsets(range(25))
    world.client.on_wait = lambda: world.send(1) if len(world.client.waits) == 3 else None
    assert places(next(reader)) == offsets(range(25, 26))
    assert world.client.waits == [2.0] * 3
    world.client.on_wait = lambda: None
    began_s = world.lake.clock.now_s
    assert next(reader, None) is None
    assert 10.0 <= world.lake.clock.now_s - began_s < 11.0
    world.send(2)
    assert places(next(reader)) == offsets(range(26, 28)), "it may be iterated again"


def test_offsets_without_rows_are_passed_over_and_the_place_is_kept(world: World) -> None:
    assert world.read() == offsets(range(25))
    world.topic.send(0, b"junk", HOLE, HOLE, b"junk")
    world.ingest()
    reader = world.client.subscribe()
    assert list(reader) == []
    assert reader.position.next == {("orders", 0): 29}
    stored = world.client.group().position()
    assert stored is not None
    assert stored.next == {("orders", 0): 29}


@pytest.mark.parametrize(
    "limits", [{"rows_max": 0}, {"files_max": 0}, {"poll_s": 0}, {"timeout_s": -1}, {"poll_s": float("nan")}]
)
def test_limits_that_cannot_be_are_refused(world: World, limits: dict[str, Any]) -> None:
    with pytest.raises(InvalidError, match=f"Invalid {next(iter(limits))}"):
        world.client.subscribe(**limits)


# -- the table changes -------------------------------------------------------------------------------------


def test_a_merge_of_small_files_changes_nothing_for_a_reader() -> None:
    world = World()
    ingestor = world.lake.ingestor(world.spec)
    reader = world.client.subscribe
    world.send(1)
    assert world.read() == offsets(range(1))
    half = world.client.subscribe(rows_max=7)
    commits(world.lake, world.topic, ingestor, 12)
    assert len(world.lake.files()) < 5
    found = [p for batch in half for p in places(batch)]
    assert found == offsets(range(1, 61))
    assert [p for b in reader() for p in places(b)] == []


def test_files_that_are_not_newer_than_what_was_read_are_not_opened(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.read()
    world.send(3)
    opened: list[str] = []
    inner = world.lake.store.get
    monkeypatch.setattr(world.lake.store, "get", lambda key, **k: opened.append(key) or inner(key, **k))
    assert world.read() == offsets(range(25, 28))
    assert len({key for key in opened if key.endswith(".parquet")}) == 1
    assert len({key for key in opened if key.endswith("-m0.avro")}) == 1


def test_files_in_a_merged_manifest_are_not_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(2)
    world.send(40)
    world.topic.send(1, *(order(n) for n in range(3)))
    world.send(3)
    assert len(world.read()) == 46
    opened: list[str] = []
    inner = world.lake.store.get
    monkeypatch.setattr(world.lake.store, "get", lambda key, **k: opened.append(key) or inner(key, **k))
    merged = 0
    for number in range(16):
        world.send(1, partition=1)
        opened.clear()
        assert world.read() == offsets(range(3 + number, 4 + number), partition=1)
        assert len({key for key in opened if key.endswith(".parquet")}) == 1
        head = world.lake.table().head
        assert head is not None
        listed = read_list(world.lake.objects.read(head["manifest-list"]))
        fresh = [m for m in listed if m.sequence_number == head["sequence-number"]]
        merged += any((m.existing_files_count or 0) > 10 for m in fresh)
    assert merged == 1, "a manifest that is new, and has old files"


def test_rows_that_others_delete_or_rewrite_are_not_read_twice_and_not_missed(world: World) -> None:
    reader = world.client.subscribe(rows_max=8)
    assert places(next(reader)) == offsets(range(8))
    world.client.table().delete("id = 3 or id = 22")
    assert [p for b in reader for p in places(b)] == offsets(range(8, 25)), "as it was planned"
    table = world.client.table()
    table.overwrite(table.scan().to_arrow())
    assert list(reader) == []
    assert reader.position.seen is not None
    assert reader.position.seen.snapshot_id == world.lake.table().head_id, "the new files hold nothing new"
    world.send(2)
    assert world.read() == offsets(range(25, 27))
    assert world.read("later") == offsets(range(3), range(4, 22), range(23, 27))


def test_rows_that_a_delete_file_removes_are_not_read(world: World) -> None:
    (second,) = [e.data_file.file_path for e in world.lake.files() if e.data_file.record_count == 1]
    (first, *_) = [e.data_file.file_path for e in world.lake.files() if e.data_file.record_count == 8]
    gone = world.lake.rows()
    at = next(n for n, e in enumerate(world.lake.files()) if e.data_file.file_path == first)
    before = sum(e.data_file.record_count for e in world.lake.files()[:at])
    deleted = {gone[before + n]["_tarn"]["offset"] for n in (2, 5)}
    delete_positions(world.client, first, [2, 5])
    delete_positions(world.client, second, [0])
    expected = [o for o in range(24) if o not in deleted]
    assert world.read(rows_max=3) == offsets(expected)
    world.send(2)
    assert world.read() == offsets(range(25, 27)), "delete files are not applied to what is newer"


def test_a_batch_without_live_rows_is_passed_over(world: World) -> None:
    first = next(e.data_file for e in world.lake.files() if e.data_file.record_count == 8)
    rows = [place for batch in world.client.subscribe(None, files_max=1) for place in places(batch)]
    delete_positions(world.client, first.file_path, list(range(8)))
    left = world.read(files_max=1)
    assert len(left) == 17
    assert set(left) < set(rows)


def test_a_file_that_cannot_be_decoded_is_named(world: World) -> None:
    for key in [e.key for e in world.lake.store.list("") if e.key.endswith(".parquet")]:
        world.lake.store.put(key, b"no Parquet at all")
    with pytest.raises(CorruptStateError, match=r"a file cannot be decoded.*scripts/tarn fsck"):
        next(world.client.subscribe())


def test_a_column_that_was_widened_has_one_type_in_all_batches() -> None:
    world = World()
    schema = pa.schema([("id", pa.int32()), ("_tarn", TRACE_TYPE)])
    world.client.catalog.create_namespace("bronze")
    table = world.client.catalog.create_table("bronze.orders", schema)
    world.spec = spec_without_columns()
    world.send(9)
    with table.update_schema() as update:
        update.update_column("id", LongType())
    world.send(9)
    batches = list(world.client.subscribe(rows_max=5))
    assert {batch.rows.schema.field("id").type for batch in batches} == {pa.int64()}
    assert [n for batch in batches for n in batch.rows["id"].to_pylist()] == list(range(18))


def test_rows_of_other_writers_are_no_messages(world: World) -> None:
    table = world.client.table()
    schema = table.schema().as_arrow()
    table.append(pa.Table.from_pylist([{"id": 99}], schema=schema))
    assert world.read() == offsets(range(25))


def test_a_column_that_appears_is_in_later_batches(world: World) -> None:
    world.read()
    with world.client.table().update_schema() as update:
        update.add_column("note", StringType())
    world.send(2)
    (batch,) = world.client.subscribe()
    assert batch.rows["note"].to_pylist() == [None, None]


def test_a_reader_outlives_thinned_history_and_the_reaper(world: World) -> None:
    reader = world.client.subscribe(rows_max=8)
    assert places(next(reader)) == offsets(range(8))
    table = world.client.table()
    table.overwrite(table.scan().to_arrow())
    for _ in range(6):
        world.send(5)
    kept = [s["snapshot-id"] for s in world.lake.table().metadata["snapshots"]]
    assert len(kept) <= 5
    assert world.client.reap() > 3, "the files that the reader has planned are gone"
    assert [p for b in reader for p in places(b)] == offsets(range(8, 55))


def test_files_that_are_always_gone_end_in_an_error(world: World) -> None:
    for key in [e.key for e in world.lake.store.list("") if e.key.endswith(".parquet")]:
        world.lake.store.delete(key)
    reader = world.client.subscribe()
    with pytest.raises(UnavailableError, match=r"could not read table bronze\.orders"):
        next(reader)


def test_a_plan_is_not_used_for_longer_than_files_are_sure_to_stay(world: World) -> None:
    reader = world.client.subscribe(rows_max=8)
    next(reader)
    world.client.table().delete("id = 22")
    world.lake.clock.now_s += 301
    assert [p for b in reader for p in places(b)] == offsets(range(8, 22), range(23, 25))


@pytest.mark.parametrize("partitioning", ["['bucket(4, id)']", "['day(at)']", "['truncate(7, id)']"])
def test_files_of_one_commit_that_hold_the_same_offsets_are_read_together(partitioning: str) -> None:
    world = World(2, partitioning=partitioning)
    world.topic.send(1, *(order(n) for n in range(100, 140)))
    world.send(40)
    assert len(world.lake.files()) > 8 or "day" in partitioning
    for number, (rows_max, files_max) in enumerate(((100, 1), (3, 64), (10, 2), (1_000, 1_000))):
        found = world.read(f"g{number}", rows_max=rows_max, files_max=files_max)
        assert sorted(found) == offsets(range(40)) + offsets(range(40), partition=1)
        assert [o for p, o in found if p == 0] == list(range(40))


def test_several_topics_of_a_table_are_each_read_once() -> None:
    topics = [Topic(name, 2 if name == "a" else 1, topic_id=f"id-{name}") for name in "abc"]
    lake = Lake(*topics)
    client = Client(lake)
    for topic in topics:
        made = spec_of(topic.name, topic.name)
        for partition in topic.logs:
            topic.send(partition, *(order(n) for n in range(15)))
        lake.work(lake.ingestor(made), turns=60)
    rows = [
        (row["source"], row["partition"], row["offset"])
        for batch in client.subscribe(rows_max=4)
        for row in batch.rows["_tarn"].to_pylist()
    ]
    table = client.table()
    table.overwrite(table.scan().to_arrow())
    compacted = [p for batch in client.subscribe("h", rows_max=4) for p in places(batch)]
    assert len(compacted) == 60, "one file has rows of all topics"
    topics[1].logs[0] = topics[1].logs[0][:15] + [order(n) for n in range(5)]
    topics[0].send(0, *(order(n) for n in range(10)))
    for topic in topics[:2]:
        lake.work(lake.ingestor(spec_of(topic.name, topic.name)), turns=60)
    assert len([p for batch in client.subscribe("h") for p in places(batch)]) == 15
    topics[1].send(0, *(order(n) for n in range(5)))
    lake.work(lake.ingestor(spec_of("b", "b")), turns=60)
    table = client.table()
    table.overwrite(table.scan().to_arrow())
    found = [row for batch in client.subscribe("h") for row in batch.rows["_tarn"].to_pylist()]
    assert [(row["source"], row["offset"]) for row in found] == [("b", o) for o in range(20, 25)]
    assert len(rows) == 60
    assert sorted(rows) == [(t, p, o) for t, p in (("a", 0), ("a", 1), ("b", 0), ("c", 0)) for o in range(15)]


# -- what ends a reader ------------------------------------------------------------------------------------


def test_a_table_that_no_ingestor_writes_is_refused(world: World) -> None:
    schema = world.client.table().schema()
    world.client.catalog.create_table("bronze.other", schema)
    with pytest.raises(InvalidError, match=r"no ingestor has written table bronze\.other"):
        world.client.subscribe(table="bronze.other")
    world.client.catalog.create_table("bronze.plain", pa.schema([("id", pa.int64())]))
    with pytest.raises(InvalidError, match=r"rows of table bronze\.plain do not name their messages"):
        world.client.subscribe(table="bronze.plain")
    with pytest.raises(NoSuchTableError, match="name a table that exists"):
        world.client.subscribe(None, table="bronze.none")


def test_a_table_that_is_dropped_or_recreated_ends_the_reader(world: World) -> None:
    reader = world.client.subscribe()
    before = next(reader).position
    world.lake.local.drop(TableName(("bronze",), "orders"))
    with pytest.raises(NoSuchTableError):
        next(reader)
    world.ingest()
    with pytest.raises(ReaderPlaceError, match=r"bronze\.orders was recreated"):
        next(reader)
    for group in ("g", None):
        with pytest.raises(ReaderPlaceError, match="was recreated"):
            world.client.subscribe(group, position=before)
    assert world.read("new") == offsets(range(25)), "a group of the new table begins at its start"


def test_a_topic_that_was_recreated_ends_the_reader(world: World) -> None:
    (batch,) = world.client.subscribe()
    source = batch.position.topics["orders"].source
    other = OffsetMap(source=type(source)(cluster="c-1", topic="orders", topic_id="id-2"), next={0: 3})
    position = ReaderPosition(table=batch.position.table, topics={"orders": other})
    with pytest.raises(ReaderPlaceError, match="topic orders was recreated"):
        world.client.subscribe(position=position)


def test_two_topics_of_one_name_cannot_be_read(world: World) -> None:
    world.topic.topic_id = "id-2"
    world.topic.logs[0] = [order(1)]
    world.lake.work(world.lake.ingestor(spec_of("again", "orders")), turns=60)
    with pytest.raises(InvalidError, match="two topics named orders"):
        world.client.subscribe()


def test_a_table_that_was_rolled_back_behind_the_reader_ends_it_until_it_is_full_again() -> None:
    world = World(retention=Retention(newest=50, steps=(), total_min=0))
    world.send(25)
    first = world.lake.table().head_id
    world.send(10)
    reader = world.client.subscribe()
    assert len(places(next(reader))) == 35
    world.client.catalog.commit_table(world.client.table(), (), _set_main(first))
    with pytest.raises(ReaderPlaceError, match=r"orders/0 was read up to 35, the table ends at 25"):
        next(reader)
    with pytest.raises(ReaderPlaceError, match="rolled back behind this reader"):
        world.client.subscribe()
    world.send(5)
    assert [p for b in reader for p in places(b)] == offsets(range(35, 40)), "no message twice"


def test_rows_of_older_files_that_come_back_with_a_rollback_of_a_rollback_are_read() -> None:
    world = World(retention=Retention(newest=50, steps=(), total_min=0))
    world.send(25)
    first = world.lake.table().head_id
    world.send(16)
    second = world.lake.table().head_id
    reader = world.client.subscribe(position="earliest", rows_max=25)
    assert places(next(reader)) == offsets(range(25))
    world.client.catalog.commit_table(world.client.table(), (), _set_main(first))
    world.topic.logs[0], held = world.topic.logs[0][:30], world.topic.logs[0]
    world.ingest()
    reader.commit()
    assert world.read() == offsets(range(25, 30)), "of newer files, that have fewer rows"
    world.topic.logs[0] = held
    world.client.catalog.commit_table(world.client.table(), (), _set_main(second))
    assert world.read() == offsets(range(30, 41))


def test_offsets_that_history_lost_are_an_error(world: World) -> None:
    reader = world.client.subscribe()
    next(reader)
    table = world.client.table()
    for _ in range(6):
        table.append(pa.Table.from_pylist([{"id": 1}], schema=table.schema().as_arrow()))
    with table.manage_snapshots() as manage:
        manage.remove_tag("tarn-offsets-orders")
    held = [s["snapshot-id"] for s in world.lake.table().metadata["snapshots"] if OFFSETS in s["summary"]]
    world.client.catalog.commit_table(world.client.table(), (), (RemoveSnapshotsUpdate(snapshot_ids=held),))
    with pytest.raises(CorruptStateError, match="the tag 'tarn-offsets-orders' is gone"):
        next(reader)


def _set_main(snapshot_id: int | None) -> Any:
    return (SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=snapshot_id),)


def test_the_reader_that_subscribed_last_owns_the_group(world: World) -> None:
    old = world.client.subscribe(rows_max=8)
    next(old)
    new = world.client.subscribe(rows_max=8)
    assert places(next(new)) == offsets(range(8)), "the old one had not stored it"
    with pytest.raises(ReaderTakenError, match="group g was taken over by another reader"):
        next(old)
    assert [p for b in new for p in places(b)] == offsets(range(8, 25))


# -- subscribe() -------------------------------------------------------------------------------------------


def test_subscribe_opens_catalog_and_store(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def open_store(location: str, *_: Any) -> tuple[Any, str]:
        asked.append(location)
        return world.lake.store, location.removeprefix("s3://tarn/")

    monkeypatch.setattr(client, "open_store", open_store)
    with client.subscribe("bronze.orders", group="g", catalog=world.client.catalog, timeout_s=0) as reader:
        assert [p for batch in reader for p in places(batch)] == offsets(range(25))
    assert asked == [world.lake.table().root]
    stored = world.client.group().position()
    assert stored is not None
    assert stored.next == {("orders", 0): 25}
    with client.subscribe("bronze.orders", group=None, catalog=world.client.catalog, timeout_s=0) as reader:
        assert len(list(reader)) == 1
    assert len(asked) == 1, "without a group, no store is opened"


def test_subscribe_refuses_what_cannot_be(world: World) -> None:
    with pytest.raises(InvalidError, match="Invalid group 'a/b'"):
        client.subscribe("bronze.orders", group="a/b", catalog=world.client.catalog)
    with pytest.raises(InvalidError, match="Invalid table 'orders': give namespace and name"):
        client.subscribe("orders", group=None, catalog=world.client.catalog)
    with pytest.raises(InvalidError, match="Invalid rows_max 0"):
        client.subscribe("bronze.orders", group=None, catalog=world.client.catalog, rows_max=0)


def test_the_catalog_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("TARN_CATALOG_URI", "TARN_CATALOG_CREDENTIAL", "TARN_WAREHOUSE")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(
        InvalidSettingError, match=r'TARN_CATALOG_CREDENTIAL.* not set: run eval "\$\(scripts'
    ):
        client.subscribe("bronze.orders", group=None)
    asked: dict[str, str] = {}
    monkeypatch.setattr(client, "load_catalog", lambda name, **properties: asked.update(properties))
    client._catalog({name: name.lower() for name in names})
    assert asked == {
        "type": "rest",
        "uri": "tarn_catalog_uri",
        "credential": "tarn_catalog_credential",
        "warehouse": "tarn_warehouse",
    }


def test_the_store_is_found_by_the_location(tmp_path: Path) -> None:
    store, prefix = client.open_store(tmp_path.as_uri(), {}, {})
    store.put("readers/g.json", b"x")
    assert (prefix, (tmp_path / "readers/g.json").read_bytes()) == ("", b"x")
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "s"}
    found, prefix = client.open_store("s3://tarn/warehouse/b/t-1/", {"s3.endpoint": "http://h:9000"}, keys)
    assert isinstance(found, S3Store)
    assert (found.bucket, found.endpoint, prefix) == ("tarn", "http://h:9000", "warehouse/b/t-1")
    with pytest.raises(InvalidSettingError, match=r"set s3\.endpoint, s3\.access-key-id"):
        client.open_store("s3://tarn/t", {}, {})
    vended = {"s3.access-key-id": "v", "s3.secret-access-key": "v", "s3.session-token": "v"}
    with pytest.raises(
        InvalidSettingError, match=r"set s3\.access-key-id.*keys that the catalog vends do not"
    ):
        client.open_store("s3://tarn/t", {"s3.endpoint": "http://h:9000", **vended}, {})
    with pytest.raises(InvalidSettingError, match="only s3 and file are supported"):
        client.open_store("gs://tarn/t", {}, keys)


def test_the_example_of_the_docs_works(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    canary = Topic("tarn.canary", 1)
    canary.send(0, b'{"id": "a", "sent_at": "2026-11-21T08:00:00Z", "note": "hello"}')
    lake = Lake(canary)
    made = parse_spec((ROOT / "services/specs/canary.yaml").read_text(), file="canary.yaml")
    lake.work(lake.ingestor(made), turns=300)
    found = Client(lake)
    for name in ("TARN_CATALOG_URI", "TARN_CATALOG_CREDENTIAL", "TARN_WAREHOUSE"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setattr(client, "load_catalog", lambda *_, **__: found.catalog)
    monkeypatch.setattr(client, "open_store", lambda root, *_: (lake.store, root.removeprefix("s3://tarn/")))
    (example,) = [b.text for b in to_try(ROOT / "docs/ingestion.md") if b.language == "python"]
    exec(example, {})
    assert capsys.readouterr().out.startswith("1 ['hello'] {\"v\":1,")
    exec(example, {})
    assert capsys.readouterr().out == ""
