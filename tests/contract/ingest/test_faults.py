"""Commits that are lost, late, duplicated, denied or raced: no row is lost or doubled (I3, I4, I5, I12)."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tarn.adapters.catalog_client import RestCatalog
from tarn.core.errors import UnavailableError
from tarn.core.offsets import OffsetMap, OffsetRange, TopicIdentity
from tarn.core.outcome import Conflict, Unknown
from tarn.core.table_catalog import CommitOutcome, TableName
from tarn.core.table_state import CommitRequest
from tarn.ingest import batch_commit
from tarn.ingest.batch_commit import BatchCommit, offsets_in
from tarn.ingest.committer import Committer, Done, NeedsReplan
from tarn.testing.faulty_catalog import Faults, FaultyCatalog
from tarn.testing.memory_topic import Topic
from tarn_catalog.rest import app
from tarn_catalog.rest.lines import Lines
from tarn_catalog.testing.server import serving
from tests.support.lake import Lake, LocalCatalog, foreign_snapshot, order, spec
from tests.support.plays import seeds

TABLE = TableName(("bronze",), "orders")
SOURCE = TopicIdentity(cluster="c-1", topic="orders", topic_id="id-1")


def faulty_lake(topic: Topic, seed: int, rate: float) -> tuple[Lake, Faults]:
    lake = Lake(topic)
    faults = Faults(random.Random(seed), rate)

    def foreign(table: TableName) -> None:
        # A twin may commit first: then this foreign commit gives up.
        foreign_snapshot(lake.local, table, faults.chance.getrandbits(62))

    lake.catalog = FaultyCatalog(lake.local, faults, foreign=foreign)
    # Whether a commit that is under way has ended is looked at each turn; half of the seeds leave it open.
    looks = random.Random(seed)
    lake.commits_now = lambda: seed % 2 == 0 or looks.random() < 0.3
    lake.decode_records = (8_192, 1, 4)[seed % 3]
    return lake, faults


def feed(topic: Topic, chance: random.Random, number: int) -> dict[int, list[int]]:
    """Send orders and junk; returns the expected offsets per partition, of rows and of dead letters."""
    rows: list[int] = []
    bad: list[int] = []
    for n in range(number):
        p = chance.randrange(len(topic.logs))
        place = 1_000 * p + len(topic.logs[p])
        if chance.random() < 0.05:
            topic.send(p, b"junk %d" % n)
            bad.append(place)
        else:
            topic.send(p, order(n))
            rows.append(place)
    return {0: sorted(rows), 1: sorted(bad)}


def audit(lake: Lake, expected: dict[int, list[int]]) -> None:
    found = sorted(1_000 * p + o for p, o in lake.offsets())
    assert len(found) == len(set(found)), f"doubled: {[x for x in set(found) if found.count(x) > 1]}"
    assert found == expected[0], f"lost: {sorted(set(expected[0]) - set(found))}"
    letters = sorted(1_000 * r["partition"] + r["offset"] for r in lake.rows("ops.dead_letters"))
    assert letters == expected[1]
    lake.history_is_a_chain()


@pytest.mark.plays
@pytest.mark.parametrize("seed", seeds(50))
def test_faults_and_restarts_lose_and_double_nothing(seed: int) -> None:
    topic = Topic("orders", 3)
    lake, faults = faulty_lake(topic, seed, rate=0.4)
    chance = random.Random(seed)
    expected = feed(topic, chance, 150)
    for _ in range(12):
        # A new process each time: it knows only what the table says.
        lake.work(lake.ingestor(), turns=40)
        faults.land_some()
    faults.land_all()
    faults.rate = 0.0
    lake.work(lake.ingestor(), turns=400)
    lake.work(lake.ingestor(), turns=50)
    audit(lake, expected)
    assert sum(n for kind, n in faults.counts.items() if kind != "fine") >= 3, faults.counts


@pytest.mark.plays
@pytest.mark.parametrize("seed", seeds(10))
def test_twins_of_one_stream_race_and_lose_and_double_nothing(seed: int) -> None:
    """Three processes consider themselves owners of the stream, with faults on top: slower, never wrong."""
    topic = Topic("orders", 2)
    lake, faults = faulty_lake(topic, seed, rate=0.3)
    expected = feed(topic, random.Random(seed), 200)
    errors: list[Exception] = []
    lock = threading.Lock()
    inner = lake.catalog.commit

    def commit(table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
        with lock:
            return inner(table, request, key=key)

    lake.catalog.commit = commit  # type: ignore[method-assign]

    def run() -> None:
        try:
            for _ in range(6):
                lake.work(lake.ingestor(), turns=60)
        except Exception as e:  # noqa: BLE001 - told by the main thread
            errors.append(e)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors, errors
    faults.land_all()
    faults.rate = 0.0
    lake.work(lake.ingestor(), turns=400)
    lake.work(lake.ingestor(), turns=50)
    audit(lake, expected)


class Pieces:
    """A committer of the table, with a batch for it, each step called separately."""

    def __init__(self, lake: Lake, catalog: Any = None, sleep: Callable[[float], None] | None = None) -> None:
        self.lake = lake
        world = lake.context()
        self.committer = Committer(
            catalog or lake.local,
            TABLE,
            ports=world.ports if sleep is None else replace(world.ports, sleep=sleep),
        )
        self.new_id = world.new_id
        files = world.tables.table("bronze.orders", spec().spec.columns.fields, trace=True)
        self.writer = files.writer(lake.table())

    def batch(self, partition: int, start: int, end: int) -> BatchCommit:
        from tarn.core.batch import RawBatch
        from tarn.core.decode import Decoder

        n = end - start
        decoder = Decoder(spec().spec.columns.fields, source="orders", trace=True, record_bytes_max=10_000)
        rows = decoder.decode(
            RawBatch(
                partitions=[partition] * n,
                offsets=list(range(start, end)),
                times_ms=[0] * n,
                keys=[None] * n,
                values=[order(o) for o in range(start, end)],
                ranges=(),
            )
        ).rows
        files = self.writer.put(self.writer.encode(rows))
        return BatchCommit(
            commit_id=self.new_id(),
            table_uuid=self.lake.table().uuid,
            fresh=frozenset({0, 1}),
            stream="orders",
            source=SOURCE,
            ranges=(OffsetRange(partition=partition, start=start, end=end),),
            files=files,
        )


@pytest.fixture
def lake() -> Lake:
    made = Lake(Topic("orders", 2))
    made.work(made.ingestor(), turns=20)
    return made


class Scripted:
    """A catalog that answers one commit by a script and counts the requests."""

    def __init__(self, inner: LocalCatalog, *script: str) -> None:
        self.inner = inner
        self.script = list(script)
        self.sent: list[tuple[str, str]] = []
        self.asked: list[tuple[int, str | None]] = []
        self.load = inner.load

    def commit(self, table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
        self.sent.append((key, json.dumps(request.body(), sort_keys=True)))
        self.asked.append((request.overtaken, request.turn))
        step = self.script.pop(0) if self.script else "fine"
        if step == "lost":
            return Unknown(reason="no answer")
        if step == "away":
            raise UnavailableError("no connection")
        if step in ("raced", "next"):
            return Conflict(reason="another commit was first", turn="t-1" if step == "next" else None)
        outcome = self.inner.commit(table, request, key=key)
        return Unknown(reason="no answer") if step == "reply" else outcome


def test_a_lost_reply_is_found_by_the_commit_id_and_sent_no_second_time(lake: Lake) -> None:
    catalog = Scripted(lake.local, "reply")
    pieces = Pieces(lake, catalog)
    result = pieces.committer.commit(pieces.batch(0, 0, 5), pieces.writer)
    assert isinstance(result, Done)
    assert result.by_us
    assert len(catalog.sent) == 1
    assert lake.offsets() == [(0, n) for n in range(5)]


def test_a_lost_reply_with_another_commit_on_top_is_still_ours(lake: Lake) -> None:
    """It is no longer the head, but an ancestor."""
    pieces = Pieces(lake)

    class OnTop(Scripted):
        def commit(self, table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
            outcome = super().commit(table, request, key=key)
            other = Pieces(lake)
            assert isinstance(other.committer.commit(other.batch(1, 0, 3), other.writer), Done)
            return outcome

    catalog = OnTop(lake.local, "reply")
    ours = Pieces(lake, catalog)
    result = ours.committer.commit(pieces.batch(0, 0, 5), ours.writer)
    assert isinstance(result, Done)
    assert result.by_us
    assert len(catalog.sent) == 1
    assert lake.offsets() == [*((0, n) for n in range(5)), *((1, n) for n in range(3))]


def test_a_lost_request_is_sent_again_the_same_with_the_same_key(lake: Lake) -> None:
    catalog = Scripted(lake.local, "lost", "away", "lost")
    pieces = Pieces(lake, catalog)
    result = pieces.committer.commit(pieces.batch(0, 0, 5), pieces.writer)
    assert isinstance(result, Done)
    assert len(catalog.sent) == 4
    assert len(set(catalog.sent)) == 1, "same base: same payload, same key"
    assert lake.offsets() == [(0, n) for n in range(5)]


def test_after_a_rebase_the_payload_is_new_and_so_is_the_key_and_the_commit_id_stays(lake: Lake) -> None:
    catalog = Scripted(lake.local)
    pieces = Pieces(lake, catalog)
    pieces.committer.load()
    other = Pieces(lake)
    other.committer.commit(other.batch(1, 0, 3), other.writer)
    batch = pieces.batch(0, 0, 5)
    result = pieces.committer.commit(batch, pieces.writer)
    assert isinstance(result, Done)
    assert result.attempts == 2
    (key_1, body_1), (key_2, body_2) = catalog.sent
    assert key_1 != key_2
    assert body_1 != body_2
    for body in (body_1, body_2):
        assert batch.commit_id in body
    (path,) = (f.path for f in batch.files)
    named = [entry.data_file.file_path for entry in lake.files()]
    assert named.count(path) == 1, "the file of the first attempt is used again"
    written = [one.key for one in lake.store.list("") if one.key.endswith(".parquet")]
    assert len(written) == len(named) == 2, "no attempt wrote another"
    assert lake.offsets() == [*((0, n) for n in range(5)), *((1, n) for n in range(3))]


@pytest.mark.parametrize("step", ["raced", "lost", "away"])
def test_each_attempt_after_the_first_comes_after_a_longer_pause(lake: Lake, step: str) -> None:
    paused_s: list[float] = []
    pieces = Pieces(lake, Scripted(lake.local, step, step, step), paused_s.append)
    result = pieces.committer.commit(pieces.batch(0, 0, 5), pieces.writer)
    assert isinstance(result, Done)
    assert len(paused_s) == 3
    for attempt, pause_s in enumerate(paused_s, start=1):
        longest_s = 0.05 * 2 ** (attempt - 1)
        assert longest_s / 2 <= pause_s <= longest_s


def test_a_writer_for_which_the_catalog_keeps_a_turn_does_not_pause(lake: Lake) -> None:
    paused_s: list[float] = []
    catalog = Scripted(lake.local, "raced", "lost", "raced", "next", "next")
    pieces = Pieces(lake, catalog, paused_s.append)
    assert isinstance(pieces.committer.commit(pieces.batch(0, 0, 5), pieces.writer), Done)
    assert [pause_s > 0 for pause_s in paused_s] == [True, True, True, False, False], "but it may be stopped"
    assert catalog.asked == [(0, None), (1, None), (1, None), (2, None), (3, "t-1"), (4, "t-1")]
    assert isinstance(pieces.committer.commit(pieces.batch(0, 5, 6), pieces.writer), Done)
    assert catalog.asked[6:] == [(0, None)], "those of another commit do not count"


def test_a_writer_whose_turns_come_to_nothing_pauses_again(lake: Lake) -> None:
    paused_s: list[float] = []
    catalog = Scripted(lake.local, *["next"] * 5, "raced", "next")
    pieces = Pieces(lake, catalog, paused_s.append)
    assert isinstance(pieces.committer.commit(pieces.batch(0, 0, 5), pieces.writer), Done)
    assert [pause_s > 0 for pause_s in paused_s] == [False] * 3 + [True] * 3 + [False]
    assert [turn for _, turn in catalog.asked] == [None, *["t-1"] * 3, *[None] * 3, "t-1"]


def test_a_writer_that_others_overtake_again_and_again_is_served_at_its_fourth_request_at_last(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over HTTP, beside one that never pauses and whose requests are always built on what it just wrote."""

    class Paused(RestCatalog):
        """Before each request the other one commits, unless the catalog keeps the turn for this one."""

        def commit(self, table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
            if request.turn is None:
                overtake()
            else:
                beside.append(threading.Thread(target=overtake))
                beside[0].start()  # it comes first, and waits
                deadline = time.monotonic() + 60
                while lines[0].waiting("bronze.orders") == 0 and time.monotonic() < deadline:
                    time.sleep(0.005)
            return super().commit(table, request, key=key)

    def rest(kind: type[RestCatalog]) -> RestCatalog:
        return kind(running.published, warehouse="tarn", credential=lambda: running.credential)

    def overtake() -> None:
        start = len(overtaken)
        overtaken.append(start)
        done = faster.committer.commit(faster.batch(1, start, start + 1), faster.writer)
        assert isinstance(done, Done)

    lines: list[Lines] = []
    overtaken: list[int] = []
    beside: list[threading.Thread] = []
    monkeypatch.setattr(app, "Lines", lambda: lines.append(Lines(reserved_s=60)) or lines[0])
    with serving(lake.local.catalog, tmp_path / "secrets") as running:
        faster = Pieces(lake, rest(RestCatalog))
        slower = Pieces(lake, rest(Paused))
        slower.committer.load()
        done = slower.committer.commit(slower.batch(0, 0, 5), slower.writer)
        beside[0].join(60)
    assert isinstance(done, Done)
    assert done.attempts == 4
    assert len(overtaken) == 4, "the last one waited, was refused and came after it"
    assert lake.offsets() == [*((0, n) for n in range(5)), *((1, n) for n in range(4))]


def test_a_zombie_that_wakes_up_is_refused_by_the_range_alone(lake: Lake) -> None:
    zombie = Pieces(lake)
    zombie.committer.load()
    batch = zombie.batch(0, 0, 5)
    # While it sleeps, its successor goes on, with other batch boundaries.
    successor = Pieces(lake)
    assert isinstance(successor.committer.commit(successor.batch(0, 0, 3), successor.writer), Done)
    assert isinstance(successor.committer.commit(successor.batch(0, 3, 9), successor.writer), Done)
    woken = zombie.committer.commit(batch, zombie.writer)
    assert isinstance(woken, Done)
    assert not woken.by_us, "covered: nothing was added"
    beyond = zombie.committer.commit(zombie.batch(0, 5, 12), zombie.writer)
    assert isinstance(beyond, NeedsReplan)
    assert "starts at 5, the table ends at 9 (overlap)" in beyond.reason
    ahead = zombie.committer.commit(zombie.batch(0, 11, 12), zombie.writer)
    assert isinstance(ahead, NeedsReplan)
    assert "(gap)" in ahead.reason
    assert lake.offsets() == [(0, n) for n in range(9)]


def test_the_auditor_finds_what_a_zombie_does_without_the_chain(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: the same zombie, with an offset check that accepts every batch."""

    def gullible(
        table: OffsetMap | None,
        source: TopicIdentity,
        ranges: tuple[OffsetRange, ...],
        *,
        fresh: frozenset[int],
        epochs: Mapping[int, int],
    ) -> OffsetMap:
        known = dict(table.next) if table is not None else {}
        return OffsetMap(source=source, next=known | {r.partition: r.end for r in ranges})

    monkeypatch.setattr(batch_commit, "check_offsets", gullible)
    zombie, successor = Pieces(lake), Pieces(lake)
    batch = zombie.batch(0, 0, 5)
    successor.committer.commit(successor.batch(0, 0, 9), successor.writer)
    zombie.committer.commit(batch, zombie.writer)
    with pytest.raises(AssertionError, match="doubled"):
        audit(lake, {0: list(range(9)), 1: []})


def test_nothing_is_deleted_whatever_happens(lake: Lake) -> None:
    deleted: list[str] = []
    lake.store.delete = deleted.append  # type: ignore[method-assign]
    catalog = Scripted(lake.local, "lost", "reply")
    pieces = Pieces(lake, catalog)
    pieces.committer.commit(pieces.batch(0, 0, 5), pieces.writer)
    other = Pieces(lake)
    other.committer.load()
    pieces.committer.commit(pieces.batch(0, 5, 7), pieces.writer)
    other.committer.commit(other.batch(0, 5, 7), other.writer)
    assert deleted == []


def test_the_map_survives_the_expiry_of_every_snapshot_but_the_newest_foreign_ones(lake: Lake) -> None:
    """A foreign engine keeps one snapshot: the tag preserves ingest's, and the stream continues from it."""
    pieces = Pieces(lake)
    pieces.committer.commit(pieces.batch(0, 0, 5), pieces.writer)
    _, faults = faulty_lake(Topic("x", 1), 1, 0.0)
    state = lake.table()
    ids = []
    for n in range(3):
        state = lake.table()
        assert state.head is not None
        snapshot_id = 1_000 + n
        snapshot = {
            **state.head,
            "snapshot-id": snapshot_id,
            "parent-snapshot-id": state.head_id,
            "sequence-number": state.last_sequence + 1,
            "timestamp-ms": int(state.metadata["last-updated-ms"]) + 1,
            "summary": {k: v for k, v in state.head["summary"].items() if not k.startswith("tarn.")},
        }
        ref = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": snapshot_id}
        lake.local.catalog.tables.commit(
            lake.local._slot(TABLE), [], [{"action": "add-snapshot", "snapshot": snapshot}, ref]
        )
        ids.append(snapshot_id)
    lake.local.catalog.tables.commit(
        lake.local._slot(TABLE), [], [{"action": "remove-snapshots", "snapshot-ids": ids[:2]}]
    )
    found = offsets_in(lake.table(), "orders")
    assert found is not None
    assert dict(found.next)[0] == 5
    again = Pieces(lake)
    assert isinstance(again.committer.commit(again.batch(0, 0, 5), again.writer), Done)
    assert isinstance(again.committer.commit(again.batch(0, 5, 6), again.writer), Done)
    assert lake.offsets() == [(0, n) for n in range(6)]
    assert faults.counts == {}


def test_a_table_recreated_under_its_name_takes_no_batch_of_the_old_one(lake: Lake) -> None:
    """Its first rows must be the log's first, not those of the batch that was in flight."""
    pieces = Pieces(lake)
    assert isinstance(pieces.committer.commit(pieces.batch(0, 0, 5), pieces.writer), Done)
    batch = pieces.batch(0, 5, 7)
    lake.local.drop(TABLE)
    lake.local.create(TABLE, lake.ingestor().files.create_request())
    result = pieces.committer.commit(batch, pieces.writer)
    assert isinstance(result, NeedsReplan)
    assert "recreated" in result.reason
    assert lake.rows() == []


def test_a_table_rolled_back_behind_the_first_commit_takes_no_batch_from_the_middle(lake: Lake) -> None:
    pieces = Pieces(lake)
    assert isinstance(pieces.committer.commit(pieces.batch(0, 0, 5), pieces.writer), Done)
    batch = replace(pieces.batch(0, 5, 7), fresh=frozenset())
    lake.local.catalog.tables.commit(
        lake.local._slot(TABLE), [], [{"action": "remove-snapshot-ref", "ref-name": "main"}]
    )
    result = pieces.committer.commit(batch, pieces.writer)
    assert isinstance(result, NeedsReplan)
    assert "does not know the partition (gap)" in result.reason
    assert lake.rows() == []
    lake.sources.topics["orders"].send(0, *(order(n) for n in range(7)))
    lake.work(lake.ingestor())
    assert lake.offsets() == [(0, n) for n in range(7)]
