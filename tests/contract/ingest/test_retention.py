"""Retention of rows: files go when all their rows are old, and the audit knows that they are not lost."""

from __future__ import annotations

import json
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from tarn.adapters import manifest_audit
from tarn.adapters.bulk import PlainBulk
from tarn.adapters.origins import ParquetOrigins
from tarn.cli.ports import Offsets
from tarn.cli.replay import ReplayPorts, replay
from tarn.cli.rollback import RollbackPorts, roll_back
from tarn.cli.trace import Where, parse_message, trace
from tarn.core.audit.model import Kind
from tarn.core.errors import CorruptStateError, InvalidSpecError
from tarn.core.history import Retention
from tarn.core.retired import RUNS_MAX, Retired
from tarn.core.spec import IngestorSpec, parse_spec
from tarn.core.table_catalog import TableName
from tarn.core.table_state import CommitRequest
from tarn.ingest import retirement
from tarn.ingest.audit import Report, audit
from tarn.ingest.batch_commit import open_in, retired_in, watermark_in
from tarn.ingest.context import Limits
from tarn.ingest.ingestor import Ingestor
from tarn.ingest.lake_files import LakePorts
from tarn.ingest.lake_ports import Clock
from tarn.ingest.replay_commit import ReplayCommit
from tarn.ingest.status import State
from tarn.ingest.wiring import uuid7
from tarn.keeper.walk import Places
from tarn.testing.memory_topic import HOLE, Topic
from tests.contract.ingest.test_faults import faulty_lake
from tests.support.lake import BUCKET, SPEC, TABLE, Lake
from tests.support.plays import seeds

NOW = datetime.fromtimestamp(1_700_001_000, tz=UTC)
"""The clock of a lake in memory, at its start."""
LIMITS = Limits(
    check_interval_s=0.5, watermark_s=5.0, group_commit_interval_s=0.1, stopped_retry_s=1.0, retire_s=1.0
)
KEPT_H = 48
ANNOUNCED = "{column: at, completeTopic: tarn.complete.x}"


def kept(
    retention: str = "{age: 48h, column: at}", *, partitioning: str = "[]", more: str = "", version: int = 2
) -> IngestorSpec:
    text = SPEC.replace("FORMAT", str(version)).replace("PARTITIONING", partitioning)
    return parse_spec(text + f"  retention: {retention}\n{more}", file="orders.yaml")


def order(number: int, hours_ago: float | None) -> bytes:
    at = None if hours_ago is None else (NOW - timedelta(hours=hours_ago)).isoformat()
    return json.dumps({"id": number, "at": at}).encode()


class World:
    """A lake of one topic whose rows are kept for two days."""

    def __init__(
        self, made: IngestorSpec | None = None, *, partitions: int = 1, lake: Lake | None = None
    ) -> None:
        self.topic = Topic("orders", partitions)
        self.lake = lake or Lake(self.topic)
        self.lake.sources.topics["orders"] = self.topic
        self.spec = made or kept()
        self.ingestor = self.made()

    def made(self) -> Ingestor:
        return self.lake.ingestor(self.spec, limits=LIMITS)

    def send(self, *hours_ago: float | None, partition: int = 0) -> None:
        """One file with these rows."""
        self.raw(*(order(n, at) for n, at in enumerate(hours_ago)), partition=partition)

    def raw(self, *values: Any, partition: int = 0) -> None:
        self.topic.send(partition, *values)
        self.lake.work(self.ingestor, turns=20)

    def wait(self, turns: int = 60) -> None:
        def pass_time() -> None:
            self.lake.clock.now_s += 0.1

        self.lake.sources.on_poll = pass_time
        self.lake.work(self.ingestor, turns=turns)
        self.lake.sources.on_poll = lambda: None

    def offsets(self) -> list[int]:
        return [offset for _, offset in self.lake.offsets()]

    def retired(self) -> Retired:
        return retired_in(self.lake.table(), "orders") or Retired()

    @property
    def ports(self) -> LakePorts:
        store = PlainBulk(self.lake.store)
        return LakePorts(
            tables=Tables(self.lake),
            store=store,
            manifests=manifest_audit,
            origins=ParquetOrigins(store, Places(BUCKET).key),
            topics=self.lake.sources,
            bucket=BUCKET,
            pool=POOL,
            clock=Clock(now_s=self.lake.clock),
            tell=lambda _text: None,
        )

    def audit(self) -> Report:
        return audit(TABLE, self.ports)


POOL = ThreadPoolExecutor(max_workers=2)
"""Of the process: other modules use a `World` too."""


class Tables:
    def __init__(self, lake: Lake) -> None:
        self.lake = lake

    def tables(self) -> list[str]:
        return [TABLE, "ops.dead_letters"]

    def state(self, table: str) -> Any:
        return self.lake.table(table)


def test_a_file_of_dates_stays_when_the_column_has_become_a_time() -> None:
    """Format version 3 allows that; the bounds of the file are days, and would be times of 1970."""
    text = SPEC.replace("FORMAT", "3").replace("PARTITIONING", "[]")
    world = World(parse_spec(text.replace("timestamptz", "date"), file="orders.yaml"))
    world.raw(json.dumps({"id": 1, "at": (NOW - timedelta(hours=24)).date().isoformat()}).encode())
    schema = json.loads(json.dumps(world.lake.table().metadata["schemas"][-1]))
    schema["schema-id"] += 1
    (column,) = [column for column in schema["fields"] if column["name"] == "at"]
    column["type"] = "timestamp"
    updates = [{"action": "add-schema", "schema": schema}, {"action": "set-current-schema", "schema-id": -1}]
    world.lake.local.commit(
        world.ingestor.table, CommitRequest(requirements=[], updates=updates), key=uuid7()
    )
    kept_since = "  retention: {age: 48h, column: at}\n"
    world.spec = parse_spec(text.replace("timestamptz", "timestamp") + kept_since, file="orders.yaml")
    world.ingestor = world.made()
    world.wait()
    assert world.lake.table().total("records") == 1


def test_a_file_goes_when_all_its_rows_are_old_and_not_before() -> None:
    world = World()
    world.send(60, 50)
    world.send(60, 47)
    world.send(47.9, 1)
    world.wait()
    assert world.offsets() == [2, 3, 4, 5]
    world.lake.clock.now_s += 2 * 3_600
    world.wait()
    assert world.offsets() == [4, 5], "the row of 49 hours stays with its neighbour"
    assert world.retired() == Retired(rows=4, runs={0: ((0, 4),)})
    head = world.lake.table().head
    assert head is not None
    summary = head["summary"]
    assert (summary["operation"], summary["deleted-data-files"], summary["deleted-records"]) == (
        "delete",
        "1",
        "2",
    )
    assert summary["changed-partition-count"] == "1"
    status = world.lake.registry.get("orders")
    assert (status.retired_rows, status.retired_files) == (4, 2)
    world.lake.history_is_a_chain()


def test_rows_without_a_time_and_files_of_others_stay() -> None:
    world = World()
    world.send(60, None)
    world.send(70)
    state = world.lake.table()
    writer = world.ingestor.files.writer(state)
    rows = world.lake.rows()[:1]
    assert rows
    # Rows that another writer added, without an origin.
    schema = writer._layout.arrow  # type: ignore[attr-defined]
    foreign = pa.Table.from_pylist([{"id": 9, "at": NOW - timedelta(hours=99), "_tarn": None}], schema=schema)
    files = writer.put(writer.encode(foreign))
    change = ReplayCommit(
        commit_id="x", table_uuid=state.uuid, stream="orders", looked_at=state.head_id, ends={}, files=files
    )
    world.ingestor._commits.commit(change, writer)
    world.wait()
    assert sorted(row["id"] for row in world.lake.rows()) == [0, 1, 9]
    assert world.retired().runs == {0: ((2, 3),)}


@pytest.mark.parametrize("version", [2, 3])
def test_the_audit_the_trace_and_the_next_commits_know_what_is_gone(version: int) -> None:
    world = World(kept(version=version), partitions=2)
    world.raw(order(0, 60), b"junk", HOLE, order(1, 60))
    world.send(60, 61, partition=1)
    world.send(1)
    world.wait()
    assert world.lake.offsets() == [(0, 4)]
    assert world.retired() == Retired(rows=4, runs={0: ((0, 1), (3, 4)), 1: ((0, 2),)})
    world.send(2, 1)
    world.send(1, partition=1)
    report = world.audit()
    assert (report.whole, report.findings) == (True, [])
    first, second = report.data()["partitions"]
    assert (first["retired"], first["rows"], first["dead_letters"], first["without_record"]) == (2, 3, 1, 1)
    assert (second["retired"], second["rows"], second["unknown"], second["missing"]) == (2, 1, 0, 0)
    (found,) = trace(parse_message("orders/0/3"), world.ports).found
    assert found.where is Where.REMOVED
    assert "older than stream orders keeps rows" in found.what
    (found,) = trace(parse_message("orders/0/4"), world.ports).found
    assert found.where is Where.ROW


def test_a_row_that_is_lost_beside_dropped_ones_is_still_found() -> None:
    world = World()
    world.send(60)
    world.send(1)
    world.send(60)
    world.wait()
    assert world.offsets() == [1]
    state = world.lake.table()
    files = [entry.data_file for entry in world.lake.files()]
    lost = tuple(
        retirement.WrittenFile(
            path=f.file_path, partition=(), spec_id=0, records=f.record_count, bytes=f.file_size_in_bytes
        )
        for f in files
    )
    writer = world.ingestor.files.writer(state)

    class Lose(ReplayCommit):
        removed = lost

        def on(self, state: Any) -> Any:
            from tarn.core.table_state import Append

            return Append.of((), commit_id="lost", summary={}, removed=lost)

    change = Lose(
        commit_id="lost", table_uuid=state.uuid, stream="orders", looked_at=0, ends={}, files=(), removed=lost
    )
    world.ingestor._commits.commit(change, writer)
    report = world.audit()
    assert [finding.kind for finding in report.findings] == [Kind.OFFSETS_MISSING]
    assert report.accounts[0].missing.to_array().tolist() == [1]


def test_watermark_open_partitions_dead_letters_and_merges_are_carried() -> None:
    world = World(kept("48h", partitioning="['day(at)']", more=f"  eventTime: {ANNOUNCED}\n"))
    world.send(100)
    world.raw(b"junk", order(1, 3))
    before = world.lake.table()
    mark, opened = watermark_in(before, "orders"), open_in(before, "orders")
    assert mark is not None
    assert opened is not None
    world.wait()
    after = world.lake.table()
    assert world.offsets() == [2]
    assert watermark_in(after, "orders") == mark
    world.send(2)
    assert world.retired().rows == 1
    world.made()
    assert world.audit().whole


def test_one_commit_drops_so_many_files_and_the_next_ones_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retirement, "FILES_MAX", 2)
    world = World()
    for _ in range(5):
        world.send(60)
    world.send(1)
    world.wait(turns=150)
    assert world.offsets() == [5]
    removed = [
        int(snapshot["summary"]["deleted-data-files"])
        for snapshot in world.lake.table().ancestors()
        if snapshot["summary"]["operation"] == "delete"
    ]
    assert (sum(removed), max(removed)) == (5, 2)


def test_a_batch_that_waits_goes_first() -> None:
    world = World()
    world.send(60)
    world.lake.clock.now_s += 10
    seen: list[str] = []
    for number in range(30):
        world.topic.send(0, order(number, 1))
    world.wait(turns=100)
    seen = [s["summary"]["operation"] for s in world.lake.table().ancestors()]
    assert seen.count("delete") == 1
    assert len(world.offsets()) == 30


def test_files_of_a_former_partition_spec_stay() -> None:
    """Their values of partitions are those of other fields than a commit of today names."""
    world = World()
    world.send(60)
    field = {"source-id": 1, "field-id": 1_000, "name": "id_bucket", "transform": "bucket[4]"}
    world.lake.local.catalog.tables.commit(
        world.lake.local._slot(TableName(("bronze",), "orders")),
        [],
        [
            {"action": "add-spec", "spec": {"spec-id": 1, "fields": [field]}},
            {"action": "set-default-spec", "spec-id": -1},
        ],
    )
    world.send(60)
    assert world.offsets() == [0, 1]
    assert sorted(len(entry.data_file.partition) for entry in world.lake.files()) == [0, 1]
    world.wait()
    assert world.offsets() == [0]
    assert world.retired() == Retired(rows=1, runs={0: ((1, 2),)})


def test_a_table_with_delete_files_is_left_alone(logged: list[Any]) -> None:
    world = World()
    world.send(60)
    state = world.lake.table()
    assert state.head is not None
    state.head["summary"]["total-delete-files"] = "1"
    assert retirement.why_kept(state) == "the table has delete files; compact it first"
    found = world.ingestor._upkeep._retirement
    assert found is not None
    assert found.change(state, world.ingestor.files, now_ms=10**15, new_id=lambda: "x") is None
    assert found.change(state, world.ingestor.files, now_ms=10**15, new_id=lambda: "x") is None
    assert [line["event"] for line in logged if line["log_level"] == "warning"] == [
        "old rows are left in the table"
    ]


def test_local_times_without_a_zone_go_as_if_they_were_utc() -> None:
    """As docs/ingestion.md says: of a `timestamp` column nobody knows the zone."""
    world = World()
    text = SPEC.replace("FORMAT", "2").replace("PARTITIONING", "[]").replace("timestamptz", "timestamp")
    made = parse_spec(f"{text}  retention: {{age: 48h, column: at}}\n", file="orders.yaml")
    world.ingestor = world.lake.ingestor(made, limits=LIMITS)
    behind = (NOW - timedelta(hours=44 + 5)).replace(tzinfo=None).isoformat()
    ahead = (NOW - timedelta(hours=50 - 9)).replace(tzinfo=None).isoformat()
    for at in (behind, ahead):
        world.raw(json.dumps({"id": 1, "at": at}).encode())
    world.wait()
    assert world.offsets() == [1], "44 hours old at UTC-5 is gone, 50 hours at UTC+9 is not"


def listed(world: World, path: str, hours_ago: float) -> None:
    """Another writer lists a file of its own, as `add_files` does."""
    state = world.lake.table()
    writer = world.ingestor.files.writer(state)
    schema = writer._layout.arrow  # type: ignore[attr-defined]
    at = NOW - timedelta(hours=hours_ago)
    (file,) = writer.put(
        writer.encode(pa.Table.from_pylist([{"id": 9, "at": at, "_tarn": None}], schema=schema))
    )
    change = ReplayCommit(
        commit_id=path,
        table_uuid=state.uuid,
        stream="orders",
        looked_at=state.head_id,
        ends={},
        files=(replace(file, path=path or file.path),),
    )
    world.ingestor._commits.commit(change, writer)


def test_files_outside_the_bucket_or_lost_stay_and_are_named_once(logged: list[Any]) -> None:
    world = World()
    world.send(60)
    for number in range(3):
        listed(world, f"s3://elsewhere/{number}.parquet", 70)
    listed(world, f"s3://{BUCKET}/warehouse/gone.parquet", 70)
    listed(world, f"s3://{BUCKET}/warehouse/gone-too.parquet", 70)
    world.send(61)
    world.wait()
    status = world.lake.registry.get("orders")
    assert (status.state, status.retired_rows) == (State.RUNNING, 2)
    said = sorted(line["reason"] for line in logged if line["event"] == "old rows are left in the table")
    assert [reason.split(" ", 1)[1] for reason in said] == [
        "is outside the warehouse, where it cannot be read",
        "is not in the store",
    ]
    world.send(1)
    assert world.lake.table().total("records") == 6


@pytest.mark.parametrize("what", ["records", "data-files", "files-size", "delete-files"])
def test_a_total_that_another_writer_left_out_is_named_as_that(what: str) -> None:
    world = World()
    world.lake.work(world.ingestor, turns=1)
    assert world.lake.rows() == []
    assert retirement.why_kept(world.lake.table()) is None, "nothing is there, and nothing is said"
    world.send(60)
    state = world.lake.table()
    assert state.head is not None
    del state.head["summary"][f"total-{what}"]
    reason = str(retirement.why_kept(state))
    assert reason.startswith("the summary of its snapshot has no totals")
    assert "scripts/tarn rollback" in reason


def test_a_manifest_is_read_again_only_once_a_file_of_it_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.send(1)
    world.send(2)
    state = world.lake.table()
    files = world.ingestor.files
    read: list[str] = []
    objects = files._objects  # type: ignore[attr-defined]
    inner = type(objects).read

    def seen(self: Any, location: str) -> bytes:
        read.append(location)
        return inner(self, location)

    monkeypatch.setattr(type(objects), "read", seen)
    now_us = int(NOW.timestamp() * 1e6)
    hour_us = 3_600_000_000

    def found(hours: float) -> int:
        read.clear()
        return len(list(files.old_files(state, "at", now_us - round(hours * hour_us))))

    assert (found(48), len(read)) == (0, 3)
    assert (found(47), len(read)) == (0, 1), "the list alone"
    assert (found(1.5), len(read)) == (1, 2), "and the manifest with the older file"
    assert (found(0.5), len(read)) == (2, 3)


@pytest.mark.plays
@pytest.mark.parametrize("seed", seeds(6))
def test_whatever_is_lost_or_repeated_rows_go_once_and_the_audit_is_whole(seed: int) -> None:
    lake, faults = faulty_lake(Topic("orders", 2), seed, 0.4)
    lake.retention = Retention(newest=8, steps=(), total_min=0)
    world = World(kept(partitioning="['day(at)']"), partitions=2, lake=lake)
    rival = world.made()
    chance = random.Random(seed)
    hours: dict[tuple[int, int], float] = {}
    for _ in range(12):
        for partition in (0, 1):
            first = len(world.topic.logs[partition])
            for n in range(chance.randrange(1, 5)):
                age = chance.choice([1, 1, 20, 60, 90])
                hours[partition, first + n] = age
                world.topic.send(partition, order(n, age))
        world.wait(turns=40)
        if chance.random() < 0.3:
            world.ingestor, rival = rival, world.ingestor
        if chance.random() < 0.2:
            world.ingestor = world.made()
        lake.clock.now_s += chance.choice([0, 0, 10, 3_600])
    faults.rate = 0.0
    faults.land_all()
    world.ingestor = world.made()
    world.wait(turns=300)
    report = world.audit()
    assert (report.whole, report.findings) == (True, [])
    live = lake.offsets()
    assert len(live) == len(set(live))
    retired = world.retired()
    dropped = {place for place in hours if place in retired}
    assert set(live) | dropped == set(hours)
    assert not set(live) & dropped
    assert len(dropped) == retired.rows
    passed_h = (lake.clock.now_s - 1_000) / 3_600
    assert all(hours[place] + passed_h >= KEPT_H for place in dropped), "never shorter"
    assert dropped == {place for place, age in hours.items() if age >= KEPT_H}


def test_runs_are_merged_bounded_and_read_back() -> None:
    one = Retired().plus({0: [(5, 7)], 1: [(0, 1)]}, rows=3)
    two = one.plus({0: [(7, 9), (1, 2)]}, rows=3)
    assert two.runs == {0: ((1, 2), (5, 9)), 1: ((0, 1),)}
    assert ((0, 8) in two, (0, 3) in two, (2, 0) in two) == (True, False, False)
    assert Retired.from_json(two.to_json()) == two
    many = Retired().plus({0: [(10 * n, 10 * n + 1 + (n == 7) * 8) for n in range(RUNS_MAX + 1)]}, rows=1)
    assert sum(map(len, many.runs.values())) == RUNS_MAX
    assert many.joined == 1, "the narrowest gap was closed"
    assert many.runs[0][7] == (70, 81)
    for text in ("{", '{"v":2}', '{"v":1,"rows":1,"joined":0,"runs":{"0":[[1]]}}'):
        with pytest.raises(CorruptStateError, match="retention"):
            Retired.from_json(text)


@pytest.mark.parametrize(
    ("retention", "more", "message"),
    [
        ("30d", "", "retention needs a column of event time"),
        ("{age: 30d, column: at}", "  trace: false\n", "retention needs trace: true"),
        ("{age: 30d, column: id}", "", "retention: column id is long"),
        ("{age: 30d, column: att}", "", "retention names column 'att', which schema.fields lacks"),
        ("{age: 30m, column: at}", "", "spec.retention.age: '30m' is not allowed"),
        ("{age: 0d, column: at}", "", "spec.retention.age: '0d' is not allowed"),
    ],
)
def test_a_retention_that_cannot_be_is_refused(retention: str, more: str, message: str) -> None:
    with pytest.raises(InvalidSpecError, match=message):
        kept(retention, more=more)


def test_a_rollback_that_keeps_the_offsets_keeps_what_is_known_of_dropped_rows() -> None:
    world = World(kept("48h", partitioning="['day(at)']", more=f"  eventTime: {ANNOUNCED}\n"))
    world.send(100)
    world.send(1)
    world.wait()
    before = world.lake.table()
    assert world.retired() == Retired(rows=1, runs={0: ((0, 1),)})
    world.send(2)
    ports = RollbackPorts(
        catalog=world.lake.local,
        objects=world.lake.objects,
        bounds=lambda: {"orders": {0: (0, 3)}},
        identity=lambda _: world.topic.identity,
        new_key=uuid7,
        new_snapshot_id=lambda: 10**15 + 1,
        clock=Clock(wait=lambda _: None),
    )
    roll_back(ports, world.ingestor.table, str(before.head_id), Offsets.KEEP)
    after = world.lake.table()
    assert after.head_id == 10**15 + 1
    assert world.retired() == Retired(rows=1, runs={0: ((0, 1),)})
    opened = open_in(after, "orders")
    assert opened is not None
    assert opened.runs
    world.send(1)
    assert world.retired().rows == 1


def test_a_replay_does_not_bring_back_what_was_dropped() -> None:
    wide = kept()
    column = "{name: id, type: long, required: true}"
    text = SPEC.replace(column, column.replace("}", ", values: [1]}"))
    text = text.replace("FORMAT", "2").replace("PARTITIONING", "[]") + "  retention: {age: 48h, column: at}\n"
    world = World(parse_spec(text, file="orders.yaml"))
    world.lake.clock.now_s = time.time() - 1_700_000_000
    old = (datetime.now(UTC) - timedelta(hours=60)).isoformat()
    world.raw(*(json.dumps({"id": number, "at": old}).encode() for number in (1, 5)))
    assert world.offsets() == [0]
    context = world.lake.context()
    ports = ReplayPorts(
        lake=world.ports,
        catalog=world.lake.local,
        tables=context.tables,
        commit=context.ports,
        new_id=world.lake.new_id,
    )
    assert replay(wide, ports, dry_run=False).rows == 1
    assert world.offsets() == [0, 1]
    world.wait()
    assert (world.offsets(), world.retired().runs) == ([], {0: ((0, 2),)})
    assert replay(wide, ports, dry_run=False).rows == 0
    assert world.offsets() == []
