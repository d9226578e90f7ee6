"""Drops of old rows beside other commits: in one queue, with lost answers, other processes, and readers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tarn.adapters import manifest_audit
from tarn.adapters.bulk import PlainBulk
from tarn.core.completion import PREFIX as OPEN_PREFIX
from tarn.core.completion import Announced, OpenPartitions
from tarn.core.dead_letter import PENDING_PREFIX, PendingFile, pending_to_json
from tarn.core.errors import InvalidSpecError
from tarn.core.offsets import SUMMARY_PREFIX
from tarn.core.retired import PREFIX as RETIRED_PREFIX
from tarn.core.retired import Retired
from tarn.core.spec import parse_spec
from tarn.core.table_catalog import CommitOutcome, TableName
from tarn.core.table_state import Append, CommitRequest, WrittenFile
from tarn.core.watermark import PREFIX as WATERMARK_PREFIX
from tarn.core.watermark import EventTimeRule, PartitionTime, Watermark
from tarn.ingest import upkeep
from tarn.ingest.batch_commit import retired_in
from tarn.ingest.changes import Done, NeedsReplan
from tarn.ingest.ingestor import Ingestor
from tarn.ingest.mark_commit import MarkCommit
from tarn.ingest.merge_commit import MergeCommit
from tarn.ingest.retire_commit import RetireCommit
from tarn.keeper.fsck import fsck
from tarn.testing.memory_topic import Topic
from tests.contract.ingest.test_faults import Scripted
from tests.contract.ingest.test_retention import LIMITS, World, order
from tests.support.batches import Hands
from tests.support.lake import BUCKET, SPEC, Lake, spec
from tests.support.readers import Client, places


def clean(lake: Lake) -> list[Any]:
    report = fsck(
        PlainBulk(lake.store), manifest_audit, bucket=BUCKET, tell=lambda _: None, sleep=lambda _: None
    )
    return [finding for finding in report.findings if finding.damage]


def operations(lake: Lake) -> list[str]:
    """Of the snapshots of the table, oldest first; the first of a stream has only where it begins."""
    return [s["summary"]["operation"] for s in lake.table().ancestors()][::-1]


@pytest.fixture
def lake() -> Lake:
    return Lake(Topic("orders", 3))


def retire(hands: Hands, *files: WrittenFile, stream: str = "orders", **options: Any) -> RetireCommit:
    """The drop of these files, whose rows are the offsets 0 to 3 of partition 0."""
    return RetireCommit(
        commit_id=hands.new_id(),
        table_uuid=hands.lake.table().uuid,
        stream=stream,
        removed=files,
        **{"dropped": {0: ((0, 4),)}, **options},
    )


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_drop_that_waits_with_batches_is_a_snapshot_of_its_own(lake: Lake, place: int) -> None:
    hands = Hands(lake)
    first = hands.batch(0, 0, 4)
    hands.commit(first)
    changes: list[Any] = [hands.batch(1, 0, 5), hands.batch(2, 0, 6)]
    changes.insert(place, retire(hands, *first.files))
    results = hands.commit(*changes)
    assert [type(one) for one in results] == [Done] * 3
    assert all(one.by_us for one in results)
    wanted = [(1, n) for n in range(5)] + [(2, n) for n in range(6)]
    assert lake.offsets() == wanted
    assert hands.next() == {0: 4, 1: 5, 2: 6}
    assert sorted(operations(lake)) == ["append", "append", "delete"]
    found = retired_in(lake.table(), "orders")
    assert found is not None
    assert (found.rows, dict(found.runs)) == (4, {0: ((0, 4),)})
    assert clean(lake) == []


def test_two_drops_at_once_are_both_stated(lake: Lake) -> None:
    hands = Hands(lake)
    first, second = hands.batch(0, 0, 4), hands.batch(1, 0, 5)
    hands.commit(first, second)
    other = retire(hands, *second.files, dropped={1: ((0, 5),)})
    assert all(one.by_us for one in hands.commit(retire(hands, *first.files), other))
    found = retired_in(lake.table(), "orders")
    assert found is not None
    assert (found.rows, dict(found.runs)) == (9, {0: ((0, 4),), 1: ((0, 5),)})
    assert lake.offsets() == []


def test_a_merge_and_a_drop_of_the_same_file_exclude_each_other(lake: Lake) -> None:
    """Whoever is second finds the file gone, and nothing of it is committed."""
    hands = Hands(lake)
    first, second = hands.batch(0, 0, 4), hands.batch(0, 4, 9)
    hands.commit(first)
    hands.commit(second)
    merge, drop = hands.merge([*first.files, *second.files]), retire(hands, *first.files)
    merged, refused = hands.commit(merge, drop)
    assert isinstance(merged, Done)
    assert isinstance(refused, NeedsReplan)
    assert retired_in(lake.table(), "orders") is None
    assert lake.offsets() == [(0, n) for n in range(9)]
    dropped, late = hands.commit(
        retire(hands, *merge.files, dropped={0: ((0, 9),)}), hands.merge(merge.files)
    )
    assert isinstance(dropped, Done)
    assert isinstance(late, NeedsReplan)
    assert lake.offsets() == []
    assert clean(lake) == []


@pytest.mark.parametrize("step", ["lost reply", "lost request"])
def test_a_drop_whose_answer_is_lost_is_found_or_sent_again_once(lake: Lake, step: str) -> None:
    hands = Hands(lake)
    first = hands.batch(0, 0, 4)
    hands.commit(first)
    scripted = Scripted(lake.local, step)
    other = Hands(lake, catalog=scripted)
    (done,) = other.commit(retire(other, *first.files))
    assert isinstance(done, Done)
    assert done.by_us
    assert operations(lake).count("delete") == 1
    found = retired_in(lake.table(), "orders")
    assert found is not None
    assert found.rows == 4, "stated once"


def test_a_drop_that_another_process_did_first_plans_again_and_states_nothing_twice(lake: Lake) -> None:
    hands, rival = Hands(lake), Hands(lake)
    first = hands.batch(0, 0, 4)
    hands.commit(first)
    rival.committer.load()
    assert isinstance(hands.commit(retire(hands, *first.files))[0], Done)
    (refused,) = rival.commit(retire(rival, *first.files))
    assert isinstance(refused, NeedsReplan)
    found = retired_in(lake.table(), "orders")
    assert found is not None
    assert found.rows == 4


def test_a_drop_of_one_stream_says_nothing_of_another(lake: Lake) -> None:
    hands = Hands(lake)
    one, other = hands.batch(0, 0, 4, stream="a"), hands.batch(0, 0, 3, stream="b")
    hands.commit(one, other)
    hands.commit(retire(hands, *one.files, stream="a"))
    assert hands.next("b") == {0: 3}
    hands.commit(hands.batch(0, 3, 5, stream="b"))
    assert retired_in(lake.table(), "b") is None
    found = retired_in(lake.table(), "a")
    assert found is not None
    assert found.rows == 4


def test_a_statement_that_no_longer_holds_does_not_survive_a_snapshot_of_several(lake: Lake) -> None:
    """What the second member states counts: so a group cannot bring back what its last one left out."""
    hands = Hands(lake)
    first, second = hands.batch(0, 0, 4), hands.batch(1, 0, 5)
    state = lake.table()
    one, two = first.on(state), second.on(state)
    assert isinstance(one, Append)
    assert isinstance(two, Append)
    held = replace(
        one, summary={**one.summary, "tarn.retired.orders": "x", "tarn.open-partitions.orders": "y"}
    )
    joined = held.followed_by(two, partitions=1)
    assert "tarn.retired.orders" not in joined.summary
    assert "tarn.open-partitions.orders" not in joined.summary


def test_a_late_row_after_its_neighbours_went_is_a_row_and_goes_at_the_next_look() -> None:
    world = World()
    world.send(60)
    world.send(1)
    world.wait()
    assert (world.offsets(), world.retired().runs) == ([1], {0: ((0, 1),)})
    reader = world.ingestor
    reader._upkeep._retired_s = world.lake.clock.now_s + 1_000
    world.send(61)
    assert world.offsets() == [1, 2], "late, and a row like any other"
    report = world.audit()
    assert (report.whole, report.findings) == (True, [])
    reader._upkeep._retired_s = None
    world.wait()
    assert world.offsets() == [1]
    assert world.retired() == Retired(rows=2, runs={0: ((0, 1), (2, 3))})
    assert world.audit().whole
    assert clean(world.lake) == []


def test_two_processes_that_drop_drop_each_row_once() -> None:
    world = World(partitions=2)
    rival = world.made()
    inner, raced = world.lake.local.commit, [False]

    def commit(table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
        (added,) = [u for u in request.updates if u["action"] == "add-snapshot"] or [{}]
        drops = added and added["snapshot"]["summary"]["operation"] == "delete"
        if drops and not raced[0]:
            raced[0] = True
            rival._upkeep._retired_s = -1e9
            world.lake.work(rival, turns=10)
        return inner(table, request, key=key)

    world.lake.local.commit = commit  # type: ignore[method-assign]
    for partition in (0, 1):
        world.topic.send(partition, order(0, 60))
    world.wait()
    for partition in (0, 1):
        world.send(1, partition=partition)
    world.wait()
    assert raced[0]
    assert world.lake.offsets() == [(0, 1), (1, 1)]
    assert world.retired().rows == 2
    assert operations(world.lake).count("delete") == 1
    assert world.audit().whole


def test_a_reader_of_the_queue_passes_over_what_went_and_misses_nothing_else() -> None:
    world = World()
    client = Client(world.lake)

    def read(group: str) -> list[int]:
        return [offset for batch in client.subscribe(group) for _, offset in places(batch)]

    world.send(60)
    world.send(1)
    assert read("before") == [0, 1]
    world.wait()
    world.send(1)
    assert operations(world.lake) == ["append", "append", "append", "delete", "append"]
    assert read("before") == [2]
    assert read("after") == [1, 2], "what went is not there, and stops nobody"
    world.wait()
    world.send(70)
    world.wait()
    assert read("before") == []
    world.send(2)
    assert (read("before"), read("after")) == ([4], [4])


def test_the_first_look_is_an_interval_after_the_start_and_the_next_ones_follow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upkeep, "RETIRE_PAUSE_S", 0.25)
    world = World()
    keep = world.ingestor._upkeep
    limits = LIMITS
    assert not keep.retire_due(100.0)
    assert not keep.retire_due(100.0 + limits.retire_s - 0.1)
    assert keep.retire_due(100.0 + limits.retire_s)
    world.send(60)
    state, files = world.lake.table(), world.ingestor.files
    found = keep.retire(state, files, files.writer(state), on_removed=lambda _files: None)
    assert not isinstance(found, NeedsReplan)
    now = world.lake.clock.now_s
    assert not keep.retire_due(now)
    assert keep.retire_due(now + 0.3), "there may be more, so the next look is soon"
    state = found.state
    keep.retire(state, files, files.writer(state), on_removed=lambda _files: None)
    assert not keep.retire_due(world.lake.clock.now_s + 0.3), "there was nothing, so it is an interval away"


def test_files_that_went_are_no_small_files_any_more() -> None:
    """Else a merge with one of them finds it gone, the ingestor plans again, and forgets the others."""
    world = World()
    world.send(60)
    world.send(1)
    plan = world.ingestor._plan()
    for entry in world.lake.files():
        file = entry.data_file
        one = WrittenFile(
            path=file.file_path, partition=(), spec_id=0, records=1, bytes=file.file_size_in_bytes
        )
        world.ingestor._small_files.add([one])
    world.ingestor._upkeep._retired_s = -1e9
    world.ingestor._retire(plan)
    left = [file.path for files in world.ingestor._small_files._held.values() for file in files]
    assert left == [entry.data_file.file_path for entry in world.lake.files()]
    assert (len(left), world.ingestor._small_files._count) == (1, 1)


RULE = EventTimeRule(column="at")
HOUR = 1_700_000_000 // 3_600
STATED = {
    PENDING_PREFIX + "orders": pending_to_json(
        [PendingFile(path="s3://l/x", records=1, bytes=9, sequence=1)]
    ),
    WATERMARK_PREFIX + "orders": Watermark(
        column="at",
        at_us=(HOUR + 1) * 3_600_000_000,
        partitions={0: PartitionTime(latest_us=(HOUR + 1) * 3_600_000_000, active_ms=5)},
    ).to_json(),
    OPEN_PREFIX + "orders": OpenPartitions(
        field="at_hour", unit="hour", runs=((HOUR, HOUR + 1),), late=((HOUR, HOUR + 1, 1),)
    ).to_json(),
    RETIRED_PREFIX + "orders": Retired(rows=3, runs={1: ((0, 3),)}).to_json(),
}
"""All that a stream can state beside its offsets."""


@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        ("merge", set()),
        ("drop", {RETIRED_PREFIX}),
        ("mark", {WATERMARK_PREFIX}),
        ("record", {OPEN_PREFIX}),
        ("batch", {WATERMARK_PREFIX, SUMMARY_PREFIX}),
    ],
)
def test_each_kind_of_commit_states_again_what_it_does_not_change(kind: str, changed: set[str]) -> None:
    """What the last commit of a stream does not state holds no more: events and letters would be lost."""
    lake = Lake(Topic("orders", 3, topic_id="id-orders"))
    lake.work(lake.ingestor(spec(partitioning="['hour(at)']")), turns=20)
    hands = Hands(lake)
    hands.commit(hands.batch(0, 0, 4))
    state = lake.table()
    assert state.head is not None
    state.head["summary"].update(STATED)
    before = {key: state.head["summary"][key] for key in (SUMMARY_PREFIX + "orders", *STATED)}
    uuid, now_ms = state.uuid, 1_700_009_999_000
    common: dict[str, Any] = {"commit_id": "c", "table_uuid": uuid, "stream": "orders"}
    mark = MarkCommit(**common, event_time=RULE, now_ms=now_ms)
    file = WrittenFile(path="s3://l/f", records=4, bytes=9, partition=(HOUR,), spec_id=0)
    changes: dict[str, Any] = {
        "merge": MergeCommit(**common, files=(file,), removed=(file, file)),
        "drop": RetireCommit(**common, removed=(file,), dropped={0: ((0, 4),)}),
        "mark": replace(mark, announced=Announced()),
        "record": replace(
            mark,
            still=False,
            announced=Announced(at=state.head_id, unit="hour", numbers={HOUR: state.last_sequence}),
        ),
        "batch": replace(
            hands.batch(0, 4, 5),
            files=(),
            event_time=RULE,
            latest={0: (HOUR + 2) * 3_600_000_000},
            at_ms=now_ms,
            announced=Announced(),
        ),
    }
    found = changes[kind].on(state)
    assert isinstance(found, Append)
    different = {key for key, text in before.items() if found.summary.get(key) != text}
    assert different == {prefix + "orders" for prefix in changed}
    assert set(found.summary) == set(before), "all of it is there"
    assert found.restated == set(before), "and what is left out would hold no more"


def test_each_topic_of_a_table_drops_its_own_rows_only() -> None:
    world = World()
    world.lake.sources.topics["returns"] = Topic("returns", 1, topic_id="id-2")
    text = SPEC.replace("FORMAT", "2").replace("PARTITIONING", "[]")
    text = (
        text.replace("topic: orders", "topics: [orders, returns]") + "  retention: {age: 48h, column: at}\n"
    )
    context = world.lake.context(limits=LIMITS)
    specs = parse_spec(text, file="orders.yaml").per_topic(["orders", "returns"])
    orders, returns = (Ingestor(one, context) for one in specs)
    world.lake.sources.topics["returns"].send(0, order(0, 60))
    world.topic.send(0, order(1, 60), order(2, 1))
    returns._upkeep._retired_s = orders._upkeep._retired_s = world.lake.clock.now_s + 1_000
    world.lake.work(returns, turns=20)
    world.lake.work(orders, turns=20)

    def look(one: Ingestor) -> None:
        one._upkeep._retired_s = -1e9
        world.lake.work(one, turns=10)

    def ids() -> list[int]:
        return sorted(row["id"] for row in world.lake.rows())

    look(orders)
    assert ids() == [0, 1, 2], "its file has a young row, the other file is not its own"
    world.lake.clock.now_s += 48 * 3_600
    look(orders)
    assert ids() == [0]
    found = retired_in(world.lake.table(), "orders.orders")
    assert found is not None
    assert (found.rows, dict(found.runs)) == (2, {0: ((0, 2),)})
    assert retired_in(world.lake.table(), "orders.returns") is None
    look(returns)
    assert ids() == []
    found = retired_in(world.lake.table(), "orders.returns")
    assert found is not None
    assert (found.rows, dict(found.runs)) == (1, {0: ((0, 1),)})


@pytest.mark.parametrize(
    ("column", "message"),
    [("when", "retention 'when': table bronze.orders has no such column"), ("id", "retention 'id' of table")],
)
def test_a_column_that_the_table_lacks_stops_the_ingestor_before_it_reads(column: str, message: str) -> None:
    """Without `schema` in the spec the table alone knows its columns."""
    lake = Lake(Topic("orders", 1))
    lake.work(lake.ingestor(), turns=10)
    text = SPEC.replace("FORMAT", "2").replace("PARTITIONING", "[]")
    start, end = text.index("  schema:"), text.index("  deadLetters")
    made = parse_spec(
        f"{text[:start]}{text[end:]}  retention: {{age: 48h, column: {column}}}\n", file="orders.yaml"
    )
    with pytest.raises(InvalidSpecError, match=message):
        lake.ingestor(made).cycle(lambda: True)


def test_a_batch_that_is_due_at_the_same_moment_goes_before_a_drop() -> None:
    text = (
        SPEC.replace("FORMAT", "2").replace("PARTITIONING", "[]").replace("maxRecords: 10", "maxRecords: 1")
    )
    world = World(parse_spec(f"{text}  retention: {{age: 48h, column: at}}\n", file="orders.yaml"))
    world.topic.send(0, order(0, 60))
    keep = world.ingestor._upkeep
    keep._retired_s = world.lake.clock.now_s + 1_000
    world.lake.work(world.ingestor, turns=20)
    world.topic.send(0, order(1, 1))

    def both_due() -> None:
        keep._retired_s = -1e9

    world.lake.sources.on_poll = both_due
    world.lake.work(world.ingestor, turns=20)
    assert operations(world.lake)[:4] == ["append", "append", "append", "delete"]
