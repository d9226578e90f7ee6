"""Dead letters become rows once the spec can decode them, each once, whatever happens meanwhile (I12)."""

from __future__ import annotations

import contextlib
import io
import json
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tarn.adapters import manifest_audit, partitions
from tarn.adapters.bulk import PlainBulk
from tarn.adapters.origins import ParquetOrigins
from tarn.cli import replay as module
from tarn.cli.letters import as_lines, as_object, groups, newest, result_lines
from tarn.cli.ports import Clock, Offsets
from tarn.cli.replay import Replayed, ReplayPorts, replay
from tarn.cli.rollback import RollbackPorts, roll_back
from tarn.core.audit.manifests import ManifestReader
from tarn.core.audit.model import FileEntry
from tarn.core.errors import (
    ConflictError,
    CorruptStateError,
    InvalidError,
    InvalidSpecError,
    OutcomeUnknownError,
)
from tarn.core.history import Retention
from tarn.core.outcome import Conflict, Rejected, Unknown
from tarn.core.retired import Retired
from tarn.core.spec import IngestorSpec
from tarn.core.table_catalog import CommitOutcome, TableName
from tarn.core.table_state import Append, CommitRequest, TableState, WrittenFile
from tarn.ingest.audit import Report, audit
from tarn.ingest.audit_memory import AuditMemory
from tarn.ingest.committer import Committer, Done, NeedsReplan
from tarn.ingest.lake_files import LakePorts
from tarn.ingest.replay_commit import ReplayCommit
from tarn.ingest.wiring import uuid7
from tarn.keeper.fsck import fsck
from tarn.keeper.walk import Places
from tarn.testing.memory_topic import HOLE, Topic
from tests.contract.cli.test_audit import Foreign, Tables, WithDeletes
from tests.contract.ingest.test_evolution import spec
from tests.contract.ingest.test_merge import foreign
from tests.support.lake import BUCKET, TABLE, Lake, LocalCatalog
from tests.support.plays import seeds

NAME = TableName(("bronze",), "orders")
COLUMNS = ("{name: id, type: int, required: true}", "{name: note, type: string}")
COLUMNS_WIDE = ("{name: id, type: long, required: true}", "{name: note, type: string}")
NARROW, WIDE = spec(*COLUMNS), spec(*COLUMNS_WIDE)
BIG = 2**40


class Hooked(LocalCatalog):
    """Runs `before` before each commit of a replay, and may answer in its place."""

    def __init__(self, lake: Lake) -> None:
        self.__dict__ = lake.local.__dict__
        self.before: Callable[[Callable[[], CommitOutcome]], CommitOutcome] = lambda commit: commit()

    def commit(self, table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
        return self.before(lambda: LocalCatalog.commit(self, table, request, key=key))


class World:
    """A lake of one table: of 40 messages in two partitions, every fifth is a dead letter of the narrow spec.

    Of these eight, the last of each partition is no JSON and can never be a row.
    """

    def __init__(self, pool: ThreadPoolExecutor, *, partitioning: str = "[]") -> None:
        self.topic = Topic("orders", 2)
        self.lake = Lake(self.topic)
        # As in the stack, ingest and the catalog have one clock: it begins at 1.7e9 seconds here.
        self.lake.clock.now_s = time.time() - 1_700_000_000
        self.pool = pool
        self.catalog = Hooked(self.lake)
        self.manifests: ManifestReader = manifest_audit
        for n in range(40):
            value = json.dumps({"id": BIG + n if n % 5 == 0 else n, "note": f"n{n}"}).encode()
            self.topic.send(n % 2, b"junk" if n in (30, 35) else value)
        self.ingest(NARROW if partitioning == "[]" else spec(*COLUMNS, partitioning=partitioning))

    def ingest(self, made: IngestorSpec) -> None:
        self.lake.work(self.lake.ingestor(made), turns=60)

    def lake_ports(self) -> LakePorts:
        store = PlainBulk(self.lake.store)
        return LakePorts(
            tables=Tables(self.lake),
            store=store,
            manifests=self.manifests,
            origins=ParquetOrigins(store, Places(BUCKET).key),
            topics=self.lake.sources,
            bucket=BUCKET,
            pool=self.pool,
            clock=Clock(now_s=self.lake.clock),
            tell=lambda _: None,
        )

    def replay(self, made: IngestorSpec = WIDE, *, dry_run: bool = False) -> Replayed:
        context = self.lake.context()
        ports = ReplayPorts(
            lake=self.lake_ports(),
            catalog=self.catalog,
            tables=context.tables,
            commit=context.ports,
            new_id=self.lake.new_id,
        )
        return replay(made, ports, dry_run=dry_run)

    def rewind(self, snapshot_id: int) -> None:
        ports = RollbackPorts(
            catalog=self.lake.local,
            objects=self.lake.objects,
            bounds=lambda: {"orders": dict.fromkeys(range(2), (0, 20))},
            identity=lambda name: self.lake.sources.topics[name].identity,
            new_key=uuid7,
            new_snapshot_id=lambda: random.getrandbits(62),
            clock=Clock(wait=lambda _: None),
        )
        roll_back(ports, NAME, str(snapshot_id), Offsets.REWIND)

    def append(self, rows: pa.Table) -> None:
        """Commit rows as another writer does."""
        state = self.lake.table()
        fields = WIDE.spec.columns.fields if WIDE.spec.columns else ()
        writer = self.lake.context().tables.table(TABLE, fields, trace=True).writer(state)
        change = Foreign(files=writer.put(writer.encode(rows)), table_uuid=state.uuid)
        committer = Committer(self.lake.catalog, NAME, ports=self.lake.context().ports)
        assert isinstance(committer.commit(change, writer), Done)

    def delete(self, path: str, positions: list[int]) -> None:
        """Delete rows of a file by a position delete file, as merge-on-read does."""
        sink = io.BytesIO()
        pq.write_table(pa.table({"file_path": [path] * len(positions), "pos": positions}), sink)
        self.lake.store.put("warehouse/deletes.parquet", sink.getvalue())
        entry = FileEntry(f"s3://{BUCKET}/warehouse/deletes.parquet", len(sink.getvalue()), 1, deletes=True)
        self.manifests = WithDeletes(path, entry)

    def audit(self) -> Report:
        return audit(TABLE, self.lake_ports())

    def ids(self) -> list[int]:
        return sorted(row["id"] for row in self.lake.rows())

    def whole(self, *, with_replayed: bool = True) -> None:
        """Every message but the two that are not JSON is a row, once, and nothing is damaged."""
        wanted = [BIG + n if n % 5 == 0 else n for n in range(40) if n not in (30, 35)]
        if not with_replayed:
            wanted = [n for n in wanted if n < BIG]
        assert self.ids() == sorted(wanted)
        report = self.audit()
        assert report.whole, report.findings
        assert (
            fsck(PlainBulk(self.lake.store), manifest_audit, bucket=BUCKET, tell=lambda _: None).damage == []
        )


@pytest.fixture
def world() -> Iterator[World]:
    with ThreadPoolExecutor(2) as pool:
        yield World(pool)


def test_what_decodes_by_now_becomes_rows_with_their_own_origin_and_the_rest_is_named(world: World) -> None:
    with pytest.raises(InvalidSpecError, match="column id is int in the table, long in the spec"):
        world.replay()
    world.ingest(WIDE)
    done = world.replay()
    assert (done.letters, done.already, done.rows, done.bad.total()) == (8, 0, 6, 2)
    assert all(reason.startswith("not JSON") for reason in done.bad)
    (snapshot,) = done.snapshots
    assert world.lake.table().head_id == snapshot
    assert world.lake.table().snapshot(snapshot)["summary"]["tarn.dead-letters-replayed.orders"] == "6"
    origins = {row["id"]: (row["_tarn"]["partition"], row["_tarn"]["offset"]) for row in world.lake.rows()}
    assert {n: origins[BIG + n] for n in (0, 5, 10)} == {0: (0, 0), 5: (1, 2), 10: (0, 5)}
    times = {row["_tarn"]["time"] is None for row in world.lake.rows()}
    assert times == {False}
    world.whole()


def test_a_second_replay_adds_nothing_and_ingestion_goes_on(world: World) -> None:
    world.ingest(WIDE)
    world.replay()
    again = world.replay()
    assert (again.letters, again.already, again.rows, again.snapshots) == (8, 6, 0, [])
    world.topic.send(0, json.dumps({"id": 99, "note": "new"}).encode(), b"more junk")
    world.ingest(WIDE)
    assert 99 in world.ids()
    later = world.replay()
    assert (later.letters, later.already, later.rows, later.bad.total()) == (9, 6, 0, 3)
    assert world.audit().whole


def test_a_spec_without_a_schema_decodes_by_the_columns_of_the_table(world: World) -> None:
    world.ingest(WIDE)
    body = WIDE.model_dump(by_alias=True)
    del body["spec"]["schema"]
    done = world.replay(IngestorSpec.model_validate(body))
    assert (done.rows, done.bad.total()) == (6, 2)
    world.whole()


def test_a_dry_run_counts_the_same_and_adds_nothing(world: World) -> None:
    world.ingest(WIDE)
    head, objects = world.lake.table().head_id, len(list(world.lake.store.list("")))
    done = world.replay(dry_run=True)
    assert (done.letters, done.rows, done.bad.total(), done.snapshots) == (8, 6, 2, [])
    assert world.lake.table().head_id == head
    assert len(list(world.lake.store.list(""))) == objects
    world.whole(with_replayed=False)


def test_many_are_added_in_batches_of_limited_size(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.ingest(WIDE)
    monkeypatch.setattr(module, "RECORDS_MAX", 3)
    done = world.replay()
    assert (done.rows, done.bad.total(), len(done.snapshots)) == (6, 2, 3)
    world.whole()
    monkeypatch.setattr(module, "BYTES_MAX", 1)
    assert world.replay().rows == 0


def test_each_data_file_is_read_once_however_many_batches_there_are(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look that reads all files again takes longer than a busy table keeps the snapshot that it was of."""
    world.ingest(WIDE)
    monkeypatch.setattr(module, "RECORDS_MAX", 2)
    read: list[str] = []
    rows = ParquetOrigins.rows

    def counted(reader: ParquetOrigins, file: FileEntry, deleted: Any) -> Any:
        read.append(file.path)
        return rows(reader, file, deleted)

    monkeypatch.setattr(ParquetOrigins, "rows", counted)
    done = world.replay()
    assert (done.rows, len(done.snapshots)) == (6, 3)
    assert len(read) == len(set(read)), "a file never changes"
    world.whole()


def test_files_that_a_table_has_no_more_do_not_fill_the_memory(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy table files come and go, and what is not remembered is read by each look."""
    chain = list(world.lake.table().ancestors())
    earlier = chain[len(chain) // 2]["snapshot-id"]
    world.ingest(WIDE)
    monkeypatch.setattr(module, "RECORDS_MAX", 1)
    memory = AuditMemory()
    monkeypatch.setattr(module, "AuditMemory", lambda: memory)
    held: list[set[str]] = []

    def before(commit: Callable[[], CommitOutcome]) -> CommitOutcome:
        held.append(set(memory._files))
        if len(held) == 1:
            world.rewind(earlier)
        return commit()

    world.catalog.before = before
    assert world.replay().rows > 1
    there = {entry.data_file.file_path for entry in world.lake.files()}
    assert set(memory._files) == there
    assert held[0] - there, "some are gone"


def test_a_stream_that_began_at_no_time_of_a_calendar_is_replayed(world: World) -> None:
    """The time is that of a snapshot, which is not before the one that another writer stated."""
    world.ingest(WIDE)
    world.lake.local.catalog.tables.commit(
        world.lake.local._slot(NAME),
        [],
        [{"action": "set-properties", "updates": {"tarn.offsets.orders.since": str(2**62)}}],
    )
    done = world.replay()
    assert (done.rows, done.older) == (6, 0)


def test_another_replay_that_comes_first_is_seen(world: World) -> None:
    world.ingest(WIDE)
    others: list[Replayed] = []

    def before(commit: Callable[[], CommitOutcome]) -> CommitOutcome:
        if not others:
            others.append(Replayed(table="", stream=""))
            others[0] = world.replay()
        return commit()

    world.catalog.before = before
    done = world.replay()
    assert (others[0].rows, done.rows, done.snapshots) == (6, 0, [])
    world.whole()


def test_commits_of_ingest_meanwhile_do_not_matter(world: World) -> None:
    world.ingest(WIDE)
    turns = [0]

    def before(commit: Callable[[], CommitOutcome]) -> CommitOutcome:
        turns[0] += 1
        if turns[0] <= 3:
            world.topic.send(0, json.dumps({"id": 1_000 + turns[0], "note": "x"}).encode())
            world.ingest(WIDE)
        return commit()

    world.catalog.before = before
    assert world.replay().rows == 6
    assert [n for n in world.ids() if 1_000 < n < BIG] == [1_001, 1_002, 1_003]
    assert world.audit().whole


class Busy(Hooked):
    """Others commit three times between each look of a replay and its commit."""

    def __init__(self, world: World) -> None:
        super().__init__(world.lake)
        self.world = world
        self.looks, self.last = 0, ""
        self.held: list[str] = []

    def commit(self, table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
        self.held += [update["ref-name"] for update in request.updates if update.get("type") == "tag"]
        added = [one["snapshot"]["summary"] for one in request.updates if one["action"] == "add-snapshot"]
        if added and added[0]["tarn.commit-id"] != self.last:
            self.looks, self.last = self.looks + 1, added[0]["tarn.commit-id"]
            for number in range(3):
                value = {"id": 1_000 + 3 * self.looks + number, "note": "x"}
                self.world.topic.send(0, json.dumps(value).encode())
                self.world.ingest(WIDE)
        return super().commit(table, request, key=key)


def test_others_that_commit_faster_than_the_table_is_looked_at_are_no_obstacle(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A history of two snapshots stands for that of a minute, in which a large table is not looked at."""
    world.ingest(WIDE)
    world.lake.retention = Retention(newest=2, steps=(), total_min=0)
    world.catalog = Busy(world)
    monkeypatch.setattr(module, "ROUNDS_MAX", 4)
    assert world.replay().rows == 6
    assert world.catalog.looks == 2, "the second one holds the history"
    assert world.catalog.held == ["tarn-reader-replay-orders"]
    assert set(world.lake.table().refs) == {"main", "tarn-offsets-orders"}
    assert world.audit().whole


def test_a_tag_of_a_replay_that_was_killed_goes_with_the_next_one(world: World) -> None:
    world.ingest(WIDE)
    tag = {"ref-name": "tarn-reader-replay-orders", "type": "tag", "snapshot-id": world.lake.table().head_id}
    world.lake.local.catalog.tables.commit(
        world.lake.local._slot(NAME), [], [{"action": "set-snapshot-ref", **tag}]
    )
    world.replay(dry_run=True)
    assert "tarn-reader-replay-orders" in world.lake.table().refs, "it changes nothing"
    world.replay()
    assert "tarn-reader-replay-orders" not in world.lake.table().refs


def test_messages_that_are_read_again_after_a_rollback_are_not_added_as_well(world: World) -> None:
    first = list(world.lake.table().ancestors())[-1]["snapshot-id"]
    world.ingest(WIDE)
    struck = [False]

    def before(commit: Callable[[], CommitOutcome]) -> CommitOutcome:
        if not struck[0]:
            struck[0] = True
            world.rewind(first)
        return commit()

    world.catalog.before = before
    done = world.replay()
    assert done.rows < 6, "only what lies before the offsets that the table went back to"
    world.catalog.before = lambda commit: commit()
    world.ingest(WIDE)
    world.replay()
    world.whole()


def position(world: World, table: str, offset: int) -> tuple[str, int]:
    """The file with this offset of partition 0, and the row's position in it."""
    for entry in world.lake.files(table):
        path = entry.data_file.file_path
        rows = pq.read_table(io.BytesIO(world.lake.objects.read(path))).to_pylist()
        for number, row in enumerate(rows):
            place = row.get("_tarn") or row
            if (place["partition"], place["offset"]) == (0, offset):
                return path, number
    raise AssertionError(offset)


def test_a_row_that_was_deleted_does_not_come_back(world: World) -> None:
    world.ingest(WIDE)
    world.replay()
    path, number = position(world, TABLE, 0)
    world.delete(path, [number])
    done = world.replay()
    assert (done.letters, done.already, done.rows) == (8, 6, 0)


def test_rows_of_a_file_that_was_removed_do_not_come_back_while_history_shows_them(world: World) -> None:
    world.ingest(WIDE)
    world.replay()
    path, _ = position(world, TABLE, 0)
    (entry,) = [e.data_file for e in world.lake.files() if e.data_file.file_path == path]
    removed = WrittenFile(
        path=path, partition=(), spec_id=0, records=entry.record_count, bytes=entry.file_size_in_bytes
    )
    foreign(world.lake, world.lake.ingestor(WIDE), removed=(removed,), summary={})
    assert not [n for n in world.ids() if n >= BIG]
    done = world.replay()
    assert (done.already, done.rows) == (6, 0)


def retire(world: World, runs: tuple[tuple[int, int], ...], joined: int) -> None:
    """Let the table's last snapshot state that retention dropped these offsets of partition 0."""
    pointer = world.lake.store.get("catalog/v1/pointers/bronze/orders.json")
    assert pointer is not None
    key = json.loads(pointer.data)["metadata-location"].removeprefix(f"s3://{BUCKET}/")
    stored = world.lake.store.get(key)
    assert stored is not None
    metadata = json.loads(stored.data)
    retired = Retired(rows=1, runs={0: runs}, joined=joined)
    for snapshot in metadata["snapshots"]:
        snapshot["summary"]["tarn.retired.orders"] = retired.to_json()
    world.lake.store.put(key, json.dumps(metadata).encode())
    world.lake.local.catalog = type(world.lake.local)(world.lake.store).catalog
    world.catalog = Hooked(world.lake)


def test_a_dead_letter_in_a_gap_that_was_closed_is_replayed(world: World) -> None:
    """Messages 0, 10, 20 and 30 are offsets 0, 5, 10 and 15 of partition 0; 30 is no JSON."""
    world.ingest(WIDE)
    retire(world, ((0, 11),), joined=0)
    done = world.replay(dry_run=True)
    assert (done.letters, done.already, done.rows, done.joined) == (8, 3, 3, 0), "each of them was a row"
    retire(world, ((0, 11),), joined=1)
    done = world.replay()
    assert (done.letters, done.already, done.rows, done.joined) == (8, 0, 6, 3)
    assert done.data()["joined"] == 3
    assert any("3 of them lie in joined runs" in line for line in result_lines(done, dry_run=False))
    world.whole()
    again = world.replay()
    assert (again.already, again.rows, again.joined) == (6, 0, 0)


def test_a_dead_letter_that_was_deleted_is_neither_listed_nor_replayed(world: World) -> None:
    world.ingest(WIDE)
    path, number = position(world, "ops.dead_letters", 0)
    world.delete(path, [number])
    (group,) = groups(world.lake_ports())
    assert group.letters == 7
    assert len(newest(world.lake_ports(), "orders", 100)) == 7
    done = world.replay()
    assert (done.letters, done.rows) == (7, 5)
    assert BIG not in world.ids()


def test_rows_that_do_not_say_which_message_they_are_refuse_a_replay(world: World) -> None:
    world.ingest(WIDE)
    layout = pq.read_table(io.BytesIO(world.lake.objects.read(position(world, TABLE, 1)[0])))
    trace = pa.nulls(1, layout.schema.field("_tarn").type)
    world.append(pa.table({"id": pa.array([BIG], pa.int64()), "note": ["by hand"], "_tarn": trace}))
    with pytest.raises(InvalidError, match=r"1 rows of bronze\.orders have no origin in _tarn"):
        world.replay()
    assert world.ids().count(BIG) == 1


def test_dead_letters_of_an_earlier_table_of_the_stream_are_left_alone(world: World) -> None:
    world.lake.local.drop(NAME)
    world.topic.topic_id = "id-2"
    world.topic.logs = {0: [HOLE] * 6, 1: [HOLE] * 6}
    world.lake.clock.now_s += 3_600
    world.topic.send(0, json.dumps({"id": 1, "note": "new"}).encode(), b'{"id": "x"}')
    world.ingest(WIDE)
    world.lake.clock.now_s += 60
    done = world.replay()
    assert (done.letters, done.older, done.rows, done.bad.total()) == (1, 8, 0, 1)
    assert world.ids() == [1]
    assert "8 more are of an earlier table of this stream" in result_lines(done, dry_run=False)[1]


def test_rows_of_another_topic_of_the_same_name_refuse_a_replay(world: World) -> None:
    world.ingest(WIDE)
    world.topic.topic_id = "id-2"
    world.topic.logs = {0: [], 1: []}
    world.topic.send(0, json.dumps({"id": 1, "note": "new"}).encode())
    body = WIDE.model_dump(by_alias=True)
    body["metadata"] = {"name": "orders-2"}
    world.ingest(IngestorSpec.model_validate(body))
    with pytest.raises(InvalidError, match="rows of two topics named orders, of the streams orders and"):
        world.replay()


def test_an_offset_map_that_cannot_be_read_is_named(world: World) -> None:
    world.ingest(WIDE)
    state = world.lake.table()
    broken = json.loads(json.dumps(state.metadata))
    for snapshot in broken["snapshots"]:
        if "tarn.offsets.orders" in snapshot["summary"]:
            snapshot["summary"]["tarn.offsets.orders"] = "{"
    monkey = pytest.MonkeyPatch()
    monkey.setattr(Committer, "load", lambda _self: TableState(broken))
    try:
        with pytest.raises(CorruptStateError, match=r"stream orders: the offset map in the snapshot summary"):
            world.replay()
    finally:
        monkey.undo()


def test_a_batch_of_too_many_partitions_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadPoolExecutor(2) as pool:
        world = World(pool, partitioning="[id]")
        made = spec(*COLUMNS_WIDE, partitioning="[id]")
        world.ingest(made)
        monkeypatch.setattr(partitions, "PARTITIONS_PER_BATCH_MAX", 2)
        done = world.replay(made)
        assert (done.rows, done.bad.total()) == (6, 2)
        assert len(done.snapshots) >= 3
        assert world.audit().whole


def test_a_message_that_is_a_dead_letter_twice_becomes_one_row(world: World) -> None:
    world.rewind(list(world.lake.table().ancestors())[-1]["snapshot-id"])
    world.ingest(NARROW)
    assert len(world.lake.rows("ops.dead_letters")) > 8
    world.ingest(WIDE)
    done = world.replay()
    assert (done.letters, done.rows, done.bad.total()) == (8, 6, 2)
    world.whole()


def test_a_replay_fits_only_the_history_and_the_offsets_that_were_looked_at(world: World) -> None:
    state = world.lake.table()
    assert state.head_id is not None
    change = ReplayCommit(
        commit_id="c",
        table_uuid=state.uuid,
        stream="orders",
        looked_at=state.head_id,
        ends={0: 20, 1: 20},
        files=(),
    )
    assert isinstance(change.on(state), Append)
    beyond = replace(change, ends={0: 20, 1: 21}).on(state)
    assert isinstance(beyond, Rejected)
    assert "went back" in beyond.reason
    elsewhere = replace(change, looked_at=17).on(state)
    assert isinstance(elsewhere, Rejected)
    assert "snapshot 17, which was looked at, is not in the history" in elsewhere.reason
    assert isinstance(replace(change, stream="other").on(state), Rejected)


@pytest.mark.parametrize("applied", [False, True])
def test_a_lost_answer_adds_them_once(world: World, applied: bool) -> None:
    world.ingest(WIDE)
    lost = [3]

    def before(commit: Callable[[], CommitOutcome]) -> CommitOutcome:
        lost[0] -= 1
        if lost[0] < 0:
            return commit()
        if applied:
            commit()
        return Unknown(reason="504")

    world.catalog.before = before
    done = world.replay()
    assert (done.rows, len(done.snapshots)) == (6, 1)
    world.whole()


def test_a_commit_whose_answer_is_lost_and_that_is_rolled_back_meanwhile_is_made_once_more(
    world: World,
) -> None:
    world.ingest(WIDE)
    before = world.lake.table().head_id
    assert before is not None
    turn = [0]

    def hook(commit: Callable[[], CommitOutcome]) -> CommitOutcome:
        turn[0] += 1
        done = commit()
        if turn[0] > 1:
            return done
        world.rewind(before)
        return Unknown(reason="504")

    world.catalog.before = hook
    done = world.replay()
    assert (done.rows, turn[0]) == (6, 2)
    world.whole()


class KilledError(BaseException):
    pass


@pytest.mark.parametrize("applied", [False, True])
def test_after_a_kill_before_or_after_the_commit_the_next_one_adds_the_rest(
    world: World, applied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.ingest(WIDE)
    monkeypatch.setattr(module, "RECORDS_MAX", 4)

    def before(commit: Callable[[], CommitOutcome]) -> CommitOutcome:
        if applied:
            commit()
        raise KilledError

    world.catalog.before = before
    with pytest.raises(KilledError):
        world.replay()
    world.catalog.before = lambda commit: commit()
    done = world.replay()
    assert done.already + done.rows == 6
    assert (done.already > 0) == applied
    world.whole()


@pytest.mark.plays
@pytest.mark.parametrize("seed", seeds(10))
def test_two_replays_with_conflicts_lost_answers_and_kills_add_each_once(
    world: World, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.ingest(WIDE)
    chance = random.Random(seed)
    monkeypatch.setattr(module, "RECORDS_MAX", chance.randint(1, 5))
    depth = [0]

    def before(commit: Callable[[], CommitOutcome]) -> CommitOutcome:
        dice = chance.random()
        if dice < 0.15 and depth[0] < 2:
            depth[0] += 1
            attempt()
            depth[0] -= 1
        elif dice < 0.3:
            return Conflict(reason="409")
        elif dice < 0.5:
            if chance.random() < 0.5:
                commit()
            return Unknown(reason="503")
        elif dice < 0.6:
            if chance.random() < 0.5:
                commit()
            raise KilledError
        elif dice < 0.7:
            world.topic.send(1, json.dumps({"id": 7_000 + chance.randrange(10**6), "note": ""}).encode())
            world.ingest(WIDE)
        return commit()

    def attempt() -> None:
        with contextlib.suppress(KilledError):
            world.replay()

    world.catalog.before = before
    for _ in range(6):
        attempt()
    world.catalog.before = lambda commit: commit()
    world.replay()
    assert [n for n in world.ids() if n >= BIG] == [BIG + n for n in (0, 5, 10, 15, 20, 25)]
    assert world.audit().whole


def test_a_replay_that_never_comes_first_gives_up_and_says_how_far_it_came(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.ingest(WIDE)
    asked: list[object] = []

    def commit(self: Committer, change: object, writer: object) -> NeedsReplan:
        asked.append(change)
        return NeedsReplan(state=world.lake.table(), reason="others")

    monkeypatch.setattr(Committer, "commit", commit)
    with pytest.raises(ConflictError, match=r"others committed first 20 times; 0 dead letters became rows"):
        world.replay()
    assert len(asked) == module.ROUNDS_MAX


def test_a_catalog_that_never_settles_a_commit_is_not_waited_for_without_limit(world: World) -> None:
    world.ingest(WIDE)
    began_s = world.lake.clock.now_s
    world.catalog.before = lambda commit: Unknown(reason="504")
    with pytest.raises(OutcomeUnknownError, match=r"within 120 s; its rows may be there\. Run the same"):
        world.replay()
    assert 100 < world.lake.clock.now_s - began_s < 200
    world.catalog.before = lambda commit: commit()
    assert world.replay().rows == 6
    world.whole()


def test_the_spec_must_be_that_of_a_stream_of_the_table(world: World) -> None:
    with pytest.raises(InvalidError, match=r"no stream 'other' of topic orders; its streams: orders \(topic"):
        world.replay(spec("{name: id, type: int}", stream="other"))


def test_groups_and_the_newest_are_shown(world: World) -> None:
    (group,) = groups(world.lake_ports())
    assert (group.stream, group.topic, group.letters, group.table) == (
        "orders",
        "orders",
        8,
        "ops.dead_letters",
    )
    assert group.first <= group.last
    found = newest(world.lake_ports(), "orders", 3)
    assert len(found) == 3
    everything = newest(world.lake_ports(), "orders", 100)
    assert len(everything) == 8
    assert found == everything[-3:]
    row = next(row for row in everything if row["value"] == b"junk")
    head, reason, value = as_lines(row)
    assert head.startswith("orders/")
    assert reason.startswith("  reason  not JSON")
    assert value == "  value   junk"
    assert as_object(row)["value"] == "junk"
    binary = as_object({**row, "value": b"\xff", "key": None})
    assert (binary["valueBase64"], binary["key"], "value" in binary) == ("/w==", None, False)
    hostile = as_lines({**row, "reason": "\x9b2J", "value": b"\x1b]0;owned\x07\x1b[2J\tb\n"})
    assert hostile[1:] == ["  reason  \\x9b2J", "  value   \\x1b]0;owned\\x07\\x1b[2J\tb\n"]
    assert as_lines({**row, "value": b"x" * 5_000})[2].endswith("… (5,000 characters)")
    with pytest.raises(InvalidError, match="'nobody' has no dead letters; those that have some: orders"):
        newest(world.lake_ports(), "nobody", 1)


def test_the_result_says_what_was_added_and_why_others_were_not(world: World) -> None:
    world.ingest(WIDE)
    done = world.replay()
    first, second, *reasons = result_lines(done, dry_run=False)
    assert first == (
        "8 dead letters of stream orders: 0 were rows of bronze.orders already, 6 became rows, 2 cannot"
    )
    assert second == f"added by snapshot {done.snapshots[0]}"
    assert reasons == [f"  {count}: {reason}" for reason, count in done.bad.most_common()]
    assert done.data()["still_bad"] == 2
    assert "6 would become rows" in result_lines(done, dry_run=True)[0]
