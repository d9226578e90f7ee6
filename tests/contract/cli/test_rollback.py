"""Rollbacks of an ingested table: rows and offsets go together, or offsets stay and rows stay away."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tarn.adapters import manifest_audit
from tarn.adapters.bulk import PlainBulk
from tarn.cli.ports import Clock, Offsets
from tarn.cli.rollback import ATTEMPTS_MAX, RollbackPorts, RolledBack, roll_back
from tarn.cli.tables import rollback, rollback_data, rollback_lines, table_name
from tarn.core.errors import (
    ConflictError,
    CorruptStateError,
    InvalidError,
    OffsetGapError,
    OutcomeUnknownError,
)
from tarn.core.outcome import Conflict, Unknown
from tarn.core.table_catalog import CommitOutcome, TableName
from tarn.core.table_state import CommitRequest, TableState
from tarn.ingest.batch_commit import offsets_in, watermark_in
from tarn.ingest.wiring import uuid7
from tarn.keeper.fsck import fsck
from tarn.testing.memory_topic import Topic
from tests.contract.ingest.test_watermarks import order as timed_order
from tests.contract.ingest.test_watermarks import timed
from tests.support.lake import BUCKET, TABLE, Lake, foreign_snapshot, order, spec

NAME = TableName(("bronze",), "orders")
WATERMARK = "tarn.watermark.orders"
FIRST, SECOND = 20, 30


class World:
    """A lake of two commits: FIRST rows, then up to SECOND; the snapshot after the first is `middle`."""

    def __init__(self, format_version: int = 2) -> None:
        self.topic = Topic("orders", 1)
        self.lake = Lake(self.topic)
        self.spec = spec(format_version=format_version)
        self.send(FIRST)
        self.middle = self.lake.table().head_id
        self.send(SECOND - FIRST)
        self.log_start = 0
        numbers = itertools.count(1)
        self.ports = RollbackPorts(
            catalog=self.lake.catalog,
            objects=self.lake.objects,
            bounds=lambda: {"orders": {0: (self.log_start, len(self.topic.logs[0]))}},
            identity=lambda _: self.topic.identity,
            new_key=uuid7,
            new_snapshot_id=lambda: 10**15 + next(numbers),
            clock=Clock(wait=lambda _: None),
        )

    def send(self, number: int) -> None:
        """Send orders and ingest them."""
        first = len(self.topic.logs[0])
        self.topic.send(0, *(order(n) for n in range(first, first + number)))
        self.ingest()

    def ingest(self) -> None:
        self.lake.work(self.lake.ingestor(self.spec), turns=60)

    def roll_back(self, ref: str, offsets: Offsets | None) -> RolledBack:
        return roll_back(self.ports, NAME, ref, offsets)

    def found(self) -> list[int]:
        return [offset for _, offset in self.lake.offsets()]

    def is_whole(self) -> None:
        report = fsck(
            PlainBulk(self.lake.store),
            manifest_audit,
            bucket=BUCKET,
            tell=lambda _: None,
            sleep=lambda _: None,
        )
        assert report.damage == []


@pytest.fixture(params=[2, 3])
def world(request: pytest.FixtureRequest) -> World:
    return World(request.param)


def test_rewound_the_rows_go_and_are_read_again_once(world: World) -> None:
    done = world.roll_back(str(world.middle), Offsets.REWIND)
    assert world.found() == list(range(FIRST))
    assert done.rows == (SECOND, FIRST)
    assert {s: (b.next, a.next) for s, (b, a) in done.streams.items()} == {
        "orders": ({0: SECOND}, {0: FIRST})
    }
    world.is_whole()
    world.ingest()
    assert world.found() == list(range(SECOND))
    world.lake.history_is_a_chain()
    world.is_whole()


def test_kept_the_rows_stay_away_and_reading_goes_on(world: World) -> None:
    done = world.roll_back(str(world.middle), Offsets.KEEP)
    assert world.found() == list(range(FIRST))
    assert {s: (b, b == a) for s, (b, a) in done.streams.items()}["orders"][1]
    world.is_whole()
    world.send(5)
    assert world.found() == [*range(FIRST), *range(SECOND, SECOND + 5)]
    world.lake.history_is_a_chain()
    world.is_whole()


def test_the_list_of_a_kept_snapshot_is_a_file_of_its_own(world: World) -> None:
    """Spark deletes the manifest list of a snapshot that it expires, whoever else names it."""
    world.roll_back(str(world.middle), Offsets.KEEP)
    lists = [s["manifest-list"] for s in world.lake.table().metadata["snapshots"]]
    assert len(lists) == len(set(lists))


@pytest.mark.parametrize("offsets", Offsets)
def test_what_somebody_said_of_the_history_of_the_branch_stays(world: World, offsets: Offsets) -> None:
    rule = {"max-snapshot-age-ms": 864_000_000, "min-snapshots-to-keep": 100}
    main = {"action": "set-snapshot-ref", "ref-name": "main", "snapshot-id": world.lake.table().head_id}
    world.lake.local.catalog.tables.commit(
        world.lake.local._slot(NAME), [], [{**main, "type": "branch", **rule}]
    )
    world.roll_back(str(world.middle), offsets)
    world.send(5)
    assert world.lake.table().refs["main"].items() >= rule.items()


def test_a_stream_keeps_what_is_said_of_the_history_of_the_branch_while_it_runs() -> None:
    topic = Topic("orders", 1)
    lake = Lake(topic)
    ingestor = lake.ingestor()
    topic.send(0, order(0))
    lake.work(ingestor)
    for keep in (100, 5):
        main = {"action": "set-snapshot-ref", "ref-name": "main", "snapshot-id": lake.table().head_id}
        rule = {"type": "branch", "min-snapshots-to-keep": keep}
        lake.local.catalog.tables.commit(lake.local._slot(NAME), [], [{**main, **rule}])
        topic.send(0, order(keep))
        lake.work(ingestor)
        assert lake.table().refs["main"]["min-snapshots-to-keep"] == keep
    assert len(lake.rows()) == 3


@pytest.mark.parametrize("offsets", Offsets)
def test_a_rollback_can_be_rolled_back_by_its_tag(world: World, offsets: Offsets) -> None:
    before = world.lake.table().head_id
    done = world.roll_back(str(world.middle), offsets)
    world.send(5)
    again = world.roll_back(done.tag, Offsets.REWIND)
    assert again.target == before
    world.ingest()
    assert world.found() == list(range(SECOND + 5))
    world.is_whole()


def test_kept_at_a_snapshot_that_is_ahead_its_rows_are_not_read_again(world: World) -> None:
    done = world.roll_back(str(world.middle), Offsets.REWIND)
    kept = world.roll_back(done.tag, Offsets.KEEP)
    before, after = kept.streams["orders"]
    assert before is not None
    assert after is not None
    assert (before.next, after.next) == ({0: FIRST}, {0: SECOND})
    assert world.found() == list(range(SECOND))
    world.is_whole()
    world.send(5)
    assert world.found() == list(range(SECOND + 5))
    world.is_whole()


def test_an_ingestor_that_runs_meanwhile_loses_and_doubles_nothing(world: World) -> None:
    ingestor, left = world.lake.ingestor(world.spec), [120]

    def until() -> bool:
        left[0] -= 1
        if left[0] == 90:
            world.roll_back(str(world.middle), Offsets.REWIND)
        if left[0] % 10 == 0:
            world.topic.send(0, order(left[0]))
        return left[0] < 0

    while left[0] > 0:
        ingestor.cycle(until)
    world.ingest()
    assert world.found() == list(range(len(world.topic.logs[0])))


def test_a_name_leads_to_a_snapshot(world: World) -> None:
    with pytest.raises(InvalidError, match=f"is at snapshot {world.lake.table().head_id} already"):
        world.roll_back("tarn-offsets-orders", Offsets.REWIND)


@pytest.mark.parametrize("ref", ["nightly", "12", "main2", "-1"])
def test_a_name_that_leads_nowhere_is_told_with_those_that_do(world: World, ref: str) -> None:
    before = world.lake.table().metadata
    with pytest.raises(
        InvalidError, match=rf"no snapshot, tag or branch '{ref}'.*{world.middle}.*tarn-offsets-orders"
    ):
        world.roll_back(ref, Offsets.REWIND)
    assert world.lake.table().metadata == before


def test_what_happens_to_the_offsets_must_be_said(world: World) -> None:
    with pytest.raises(InvalidError, match="holds offsets of orders: say --offsets rewind"):
        world.roll_back(str(world.middle), None)


def test_a_log_that_lacks_the_rows_refuses_to_rewind_and_changes_nothing(world: World) -> None:
    world.log_start = FIRST + 1
    before = world.lake.table().metadata
    with pytest.raises(
        OffsetGapError, match=rf"would read partition 0 of topic orders from {FIRST}, and the log holds"
    ):
        world.roll_back(str(world.middle), Offsets.REWIND)
    assert world.lake.table().metadata == before
    world.roll_back(str(world.middle), Offsets.KEEP)
    assert world.found() == list(range(FIRST))


def test_a_topic_that_was_created_again_is_not_the_one_whose_rows_would_be_read_again(world: World) -> None:
    """It may be as long as the former one, and has none of its messages."""
    world.topic.topic_id = "id-2"
    before = world.lake.table().metadata
    with pytest.raises(OffsetGapError, match=r"Kafka has another topic of that name now.*--offsets keep"):
        world.roll_back(str(world.middle), Offsets.REWIND)
    assert world.lake.table().metadata == before
    world.roll_back(str(world.middle), Offsets.KEEP)
    assert world.found() == list(range(FIRST))


@pytest.mark.parametrize("gone", [True, False])
def test_a_stream_that_reads_nothing_again_needs_no_log(world: World, gone: bool) -> None:
    """What is rolled back is another writer's; the topic was deleted, or is another one by now."""
    target = world.lake.table().head_id
    assert foreign_snapshot(world.lake.local, NAME, 4711)
    world.topic.topic_id = "id-2"
    world.ports = replace(world.ports, bounds=lambda: {} if gone else {"orders": {0: (0, 1)}})
    world.roll_back(str(target), Offsets.REWIND)
    assert world.lake.table().head_id == target
    assert world.found() == list(range(SECOND))


@pytest.mark.parametrize(("start", "refused"), [(0, False), (3, True)])
def test_a_partition_that_joined_later_must_be_in_the_log_from_its_beginning(
    start: int, refused: bool
) -> None:
    """Its rows go with the rollback, and the target's map says nothing of it."""
    world = World()
    world.topic.logs[1], world.topic.starts[1] = [], 0
    world.topic.send(1, *(order(n) for n in range(500, 510)))
    world.ingest()
    world.topic.starts[1] = start
    bounds = {"orders": {0: (0, SECOND), 1: (start, 10)}}
    world.ports = replace(world.ports, bounds=lambda: bounds)
    if refused:
        with pytest.raises(
            OffsetGapError, match=r"would read partition 1 of topic orders from 0.*holds \[3, 10\)"
        ):
            world.roll_back(str(world.middle), Offsets.REWIND)
    else:
        world.roll_back(str(world.middle), Offsets.REWIND)
    world.ingest()
    assert [row for row in world.lake.offsets() if row[0] == 1] == [(1, n) for n in range(10)]


@pytest.mark.parametrize("damage", ["unreadable", "expired"])
def test_a_table_whose_offsets_are_damaged_can_go_back(world: World, damage: str) -> None:
    """It is what CorruptState advises; the log must then reach back to every partition's beginning."""
    state = world.lake.table()
    bad = {
        **state.head,
        "snapshot-id": 79,
        "parent-snapshot-id": state.head_id if damage == "unreadable" else 4711,
        "sequence-number": state.last_sequence + 1,
        "summary": {
            **{k: v for k, v in state.head["summary"].items() if not k.startswith("tarn.")},
            **({"tarn.offsets.orders": "{"} if damage == "unreadable" else {}),
        },
    }
    if state.format_version >= 3:
        bad |= {"first-row-id": state.metadata["next-row-id"], "added-rows": 0}
    world.lake.local.catalog.tables.commit(
        world.lake.local._slot(NAME),
        [],
        [
            {"action": "add-snapshot", "snapshot": bad},
            {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 79},
            {"action": "remove-snapshot-ref", "ref-name": "tarn-offsets-orders"},
        ],
    )
    with pytest.raises(CorruptStateError):
        offsets_in(world.lake.table(), "orders")
    done = world.roll_back(str(world.middle), Offsets.REWIND)
    assert done.streams["orders"][0] is None
    world.ingest()
    assert world.found() == list(range(SECOND))


@pytest.mark.parametrize("start", [0, 1])
def test_before_the_streams_first_commit_it_begins_again_if_the_log_reaches_back(start: int) -> None:
    world = World()
    oldest = world.lake.table().metadata["snapshots"][0]
    assert "tarn.offsets.orders" in oldest["summary"], "the first snapshot is a batch"
    # A snapshot without a map, older than the stream: a foreign append to a table made by hand.
    state = world.lake.table()
    made = {
        **oldest,
        "snapshot-id": 77,
        "sequence-number": state.last_sequence + 1,
        "timestamp-ms": oldest["timestamp-ms"],
    }
    made["summary"] = {k: v for k, v in oldest["summary"].items() if not k.startswith("tarn.")}
    world.lake.local.catalog.tables.commit(
        world.lake.local._slot(NAME),
        [],
        [
            {
                "action": "add-snapshot",
                "snapshot": {k: v for k, v in made.items() if k != "parent-snapshot-id"},
            },
            {"action": "set-snapshot-ref", "ref-name": "bare", "type": "branch", "snapshot-id": 77},
        ],
    )
    world.log_start = start
    if start:
        with pytest.raises(OffsetGapError, match="from 0, and the log holds"):
            world.roll_back("bare", Offsets.REWIND)
        return
    done = world.roll_back("bare", Offsets.REWIND)
    assert done.streams["orders"][1] is None
    assert "tarn-offsets-orders" not in world.lake.table().refs


def test_offsets_that_expiry_removed_are_not_guessed(world: World) -> None:
    state = world.lake.table()
    middle = state.snapshot(world.middle)
    bare = {
        **middle,
        "snapshot-id": 78,
        "parent-snapshot-id": 4711,
        "sequence-number": state.last_sequence + 1,
        "timestamp-ms": state.head["timestamp-ms"],
        "summary": {k: v for k, v in middle["summary"].items() if not k.startswith("tarn.")},
    }
    if state.format_version >= 3:
        bare |= {"first-row-id": state.metadata["next-row-id"], "added-rows": 0}
    world.lake.local.catalog.tables.commit(
        world.lake.local._slot(NAME),
        [],
        [
            {"action": "add-snapshot", "snapshot": bare},
            {"action": "set-snapshot-ref", "ref-name": "cut", "type": "branch", "snapshot-id": 78},
            {"action": "remove-snapshot-ref", "ref-name": "tarn-offsets-orders"},
        ],
    )
    with pytest.raises(CorruptStateError, match="expiry"):
        world.roll_back("cut", Offsets.REWIND)
    world.roll_back("cut", Offsets.KEEP)
    world.send(3)
    assert world.found()[-3:] == list(range(SECOND, SECOND + 3))


def test_dead_letters_that_wait_are_not_forgotten_by_a_kept_rollback() -> None:
    world = World()
    world.topic.send(0, b"junk")
    # The process ends after the commit that names the dead letters, before they are registered.
    killed = world.lake.ingestor(world.spec)
    killed._dead_letters.register = lambda _state: 0  # type: ignore[method-assign]
    world.lake.work(killed, turns=60)
    pending = world.lake.table().head["summary"]["tarn.dead-letters.orders"]
    world.roll_back(str(world.middle), Offsets.KEEP)
    assert world.lake.table().head["summary"]["tarn.dead-letters.orders"] == pending
    assert world.lake.rows("ops.dead_letters") == []
    world.send(1)
    assert [row["value"] for row in world.lake.rows("ops.dead_letters")] == [b"junk"]


def timed_world(minutes: int, later: int) -> World:
    """A world whose orders have event times: first these minutes, in `middle`, then the later ones."""
    world = World()
    world.spec = timed()
    for number, at in enumerate((minutes, later)):
        world.topic.send(0, timed_order(100 + number, at))
        world.ingest()
        if number == 0:
            world.middle = world.lake.table().head_id
    return world


def mark_of(world: World) -> int | None:
    found = watermark_in(world.lake.table(), "orders")
    return None if found is None else found.at_us


def test_the_watermark_goes_back_with_the_offsets_and_stays_with_them() -> None:
    world = timed_world(5, 9)
    nine = mark_of(world)
    world.roll_back(str(world.middle), Offsets.KEEP)
    assert mark_of(world) == nine
    world = timed_world(5, 9)
    world.roll_back(str(world.middle), Offsets.REWIND)
    assert nine is not None
    assert mark_of(world) == nine - 4 * 60_000_000
    world = timed_world(5, 9)
    done = world.roll_back(str(world.middle), Offsets.REWIND)
    world.roll_back(done.tag, Offsets.KEEP)
    assert mark_of(world) == nine, "the one of the target is later"


def test_a_damaged_watermark_does_not_hold_up_a_rollback() -> None:
    world = timed_world(5, 9)
    inner = world.lake.local.load

    def load(table: TableName) -> TableState:
        state = inner(table)
        for snapshot in state.metadata["snapshots"]:
            if WATERMARK in snapshot["summary"]:
                snapshot["summary"][WATERMARK] = "{}"
        return state

    world.lake.local.load = load  # type: ignore[method-assign]
    world.roll_back(str(world.middle), Offsets.KEEP)
    world.lake.local.load = inner  # type: ignore[method-assign]
    assert mark_of(world) is None
    world.topic.send(0, timed_order(200, 7))
    world.ingest()
    assert mark_of(world) is not None


def test_a_table_without_streams_needs_no_word_about_offsets() -> None:
    world = World()
    world.lake.local.catalog.tables.commit(
        world.lake.local._slot(NAME),
        [],
        [
            {"action": "remove-properties", "removals": ["tarn.offsets.orders.since"]},
            {"action": "remove-snapshot-ref", "ref-name": "tarn-offsets-orders"},
        ],
    )
    done = world.roll_back(str(world.middle), None)
    assert done.streams == {}
    assert len(world.lake.rows()) == FIRST


@pytest.mark.parametrize("offsets", list(Offsets))
def test_a_table_without_a_current_snapshot_gets_its_rows_back(world: World, offsets: Offsets) -> None:
    """Spark's CREATE OR REPLACE TABLE without rows leaves such a one; its former snapshots are there."""
    world.lake.local.catalog.tables.commit(
        world.lake.local._slot(NAME), [], [{"action": "remove-snapshot-ref", "ref-name": "main"}]
    )
    assert world.lake.table().head_id is None
    done = world.roll_back(str(world.middle), offsets)
    assert (done.before, done.tag, done.rows[1]) == (0, None, FIRST)
    assert rollback_data(done)["tag"] is None
    assert not [line for line in rollback_lines(done) if "None" in line or "Tag" in line]
    assert len(world.lake.rows()) == FIRST
    world.is_whole()


def answering(
    world: World, answers: Callable[[int, Callable[[], CommitOutcome]], CommitOutcome]
) -> list[str]:
    """Let the n-th commit be answered by the function; returns the keys that were sent."""
    inner, keys = world.ports.catalog, list[str]()

    class Catalog:
        def load(self, table: TableName) -> Any:
            return inner.load(table)

        def commit(self, table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
            keys.append(key)
            return answers(len(keys), lambda: inner.commit(table, request, key=key))

    world.ports = replace(world.ports, catalog=Catalog())
    return keys


def test_a_lost_answer_is_asked_for_again_with_the_same_key(world: World) -> None:
    def answer(number: int, send: Callable[[], CommitOutcome]) -> CommitOutcome:
        done = send()
        return Unknown(reason="504") if number < 3 else done

    keys = answering(world, answer)
    assert world.roll_back(str(world.middle), Offsets.KEEP).target == world.middle
    assert len(keys) == 3
    assert len(set(keys)) == 1
    assert world.found() == list(range(FIRST))


def test_a_conflict_that_is_a_lie_is_found_by_the_tag(world: World) -> None:
    def answer(number: int, send: Callable[[], CommitOutcome]) -> CommitOutcome:
        send()
        return Conflict(reason="409 after a resend")

    keys = answering(world, answer)
    done = world.roll_back(str(world.middle), Offsets.KEEP)
    assert (len(keys), done.rows) == (1, (SECOND, FIRST))
    before, after = done.streams["orders"]
    assert before == after, "it kept the offsets, and says so"


@pytest.mark.parametrize("micros", [False, True])
@pytest.mark.parametrize("offsets", Offsets)
def test_one_that_somebody_undid_meanwhile_is_not_sent_again(
    world: World, offsets: Offsets, micros: bool
) -> None:
    """The log then ends as it did before; after a writer with a time in microseconds, all have its time."""
    if micros:
        assert foreign_snapshot(world.lake.local, NAME, 4711, at_ms=time.time_ns() // 1_000)
    world.send(4)
    world.middle = world.lake.table().head_id
    world.send(4)
    ports, first = world.ports, world.lake.table()
    back: list[str] = []

    def answer(number: int, send: Callable[[], CommitOutcome]) -> CommitOutcome:
        send()
        if not back:
            back.append(f"before-rollback-{first.head_id}")
            roll_back(ports, NAME, back[0], Offsets.REWIND)
        return Conflict(reason="409 after a resend")

    keys = answering(world, answer)
    done = world.roll_back(str(world.middle), offsets)
    assert (len(keys), done.target, done.rows) == (1, world.middle, (SECOND + 8, SECOND + 4))
    assert world.lake.table().head_id == first.head_id, "whoever went back again has the last word"
    assert world.found() == list(range(SECOND + 8))


def test_a_tag_of_an_earlier_rollback_is_no_proof(world: World) -> None:
    """There and back leaves a tag on the snapshot that the next rollback starts from."""
    first = world.lake.table().head_id
    world.roll_back(str(world.middle), Offsets.REWIND)
    world.roll_back(str(first), Offsets.REWIND)

    def answer(number: int, send: Callable[[], CommitOutcome]) -> CommitOutcome:
        return Conflict(reason="409") if number == 1 else send()

    keys = answering(world, answer)
    done = world.roll_back(str(world.middle), Offsets.REWIND)
    assert len(keys) == 2
    assert (done.target, world.found()) == (world.middle, list(range(FIRST)))


@pytest.mark.parametrize("other", Offsets)
@pytest.mark.parametrize("mine", Offsets)
def test_of_two_rollbacks_at_once_each_takes_effect(world: World, mine: Offsets, other: Offsets) -> None:
    """Both make the tag of the snapshot that they start from, so it does not say whose rollback it was."""
    second = world.lake.table().head_id
    world.send(4)
    ports = world.ports

    def answer(number: int, send: Callable[[], CommitOutcome]) -> CommitOutcome:
        if number == 1:
            roll_back(ports, NAME, str(second), other)
        return send()

    keys = answering(world, answer)
    done = world.roll_back(str(world.middle), mine)
    assert (len(keys), done.target, done.rows) == (2, world.middle, (SECOND, FIRST))
    assert world.found() == list(range(FIRST))
    world.is_whole()


def test_of_two_rollbacks_at_once_to_one_snapshot_one_is_enough(world: World) -> None:
    ports = world.ports

    def answer(number: int, send: Callable[[], CommitOutcome]) -> CommitOutcome:
        roll_back(ports, NAME, str(world.middle), Offsets.REWIND)
        world.send(4)
        return send()

    keys = answering(world, answer)
    assert world.roll_back(str(world.middle), Offsets.REWIND).target == world.middle
    assert len(keys) == 1
    assert world.found() == list(range(SECOND + 4))


def test_another_commit_in_between_is_rolled_back_too(world: World) -> None:
    def answer(number: int, send: Callable[[], CommitOutcome]) -> CommitOutcome:
        if number == 1:
            world.send(4)
        return send()

    answering(world, answer)
    done = world.roll_back(str(world.middle), Offsets.REWIND)
    assert done.rows == (SECOND + 4, FIRST)
    world.ingest()
    assert world.found() == list(range(SECOND + 4))


def test_no_answer_at_all_is_no_yes(world: World) -> None:
    keys = answering(world, lambda number, send: Unknown(reason="the store is away"))
    with pytest.raises(
        OutcomeUnknownError, match=r"may have happened; if the table has no tag before-rollback-\d+"
    ):
        world.roll_back(str(world.middle), Offsets.REWIND)
    assert len(set(keys)) == 1


def test_the_tag_of_the_former_rows_stays_however_old_they_are(world: World) -> None:
    """Iceberg counts the greatest age of a tag from its snapshot: with one, it could be over at once."""
    done = world.roll_back(str(world.middle), Offsets.REWIND)
    refs = world.lake.table().metadata["refs"]
    assert refs[f"before-rollback-{done.before}"] == {"snapshot-id": done.before, "type": "tag"}


def test_it_gives_up_where_others_always_win(world: World) -> None:
    keys = answering(world, lambda number, send: Conflict(reason="409"))
    with pytest.raises(ConflictError, match="others committed first"):
        world.roll_back(str(world.middle), Offsets.REWIND)
    assert len(keys) == ATTEMPTS_MAX


def test_one_that_is_overtaken_asks_for_a_turn_and_takes_it_at_once(world: World) -> None:
    inner, asked, waits = world.ports.catalog, list[tuple[int, str | None]](), list[float]()

    class Catalog:
        def load(self, table: TableName) -> Any:
            return inner.load(table)

        def commit(self, table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
            asked.append((request.overtaken, request.turn))
            if len(asked) <= 3:
                return Conflict(reason="409", turn="mine" if len(asked) == 3 else None)
            return inner.commit(table, request, key=key)

    world.ports = replace(world.ports, catalog=Catalog(), clock=Clock(wait=waits.append))
    assert world.roll_back(str(world.middle), Offsets.REWIND).target == world.middle
    assert asked == [(0, None), (1, None), (2, None), (3, "mine")]
    assert len(waits) == 2, "no pause before the request that has a turn"


def test_people_and_programs_read_what_was_done() -> None:
    world = World()
    done = world.roll_back(str(world.middle), Offsets.REWIND)
    assert rollback_data(done) == {
        "table": TABLE,
        "before": done.before,
        "target": world.middle,
        "tag": f"before-rollback-{done.before}",
        "rows": {"before": SECOND, "after": FIRST},
        "streams": {"orders": {"before": {"0": SECOND}, "after": {"0": FIRST}}},
    }
    assert rollback_lines(done) == [
        f"bronze.orders has the rows of snapshot {world.middle}: 20 (before: 30).",
        "stream orders: reads again from 20 in partition 0 (it was at 30 in partition 0).",
        f"Tag before-rollback-{done.before} keeps the former rows until it is dropped. To go back: "
        f"scripts/tarn rollback bronze.orders --to before-rollback-{done.before} --offsets rewind",
        "Tables that were derived from it are as they were: drop them, and they are filled again.",
    ]
    other = World()
    kept = rollback_lines(other.roll_back(str(other.middle), Offsets.KEEP))
    assert kept[1] == "stream orders: goes on at 30 in partition 0; what was rolled back stays away."


@pytest.mark.parametrize("text", ["orders", "", "a..b", ".a", "a.", "a b", "a.b\nc", "a.b\x1bc"])
def test_a_name_without_a_namespace_or_with_a_control_character_is_refused(text: str) -> None:
    with pytest.raises(InvalidError, match="is not the name of a table"):
        table_name(text)


def test_a_name_may_have_spaces_and_quotes_and_the_way_back_is_typed_in_quotes() -> None:
    assert table_name('my shop.o\'r "ders"') == TableName(("my shop",), 'o\'r "ders"')
    done = RolledBack(table="my shop.orders", before=2, target=1, tag="former", rows=(3, 2), streams={})
    assert rollback_lines(done)[1].endswith("scripts/tarn rollback 'my shop.orders' --to former")


def test_names_that_others_gave_are_printed_without_control_characters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who may write a table names its streams."""
    streams = {"a\x1b[2J": (None, None)}
    done = RolledBack(table="a.b", before=2, target=1, tag="former", rows=(3, 2), streams=streams)
    monkeypatch.setattr("tarn.cli.rollback.roll_back", lambda *_: done)
    monkeypatch.setattr("tarn.cli.wiring.rollback_ports", lambda _: None)
    rollback("a.b", "1", None, as_json_=False)
    assert "stream a\\x1b[2J: goes on" in capsys.readouterr().out
