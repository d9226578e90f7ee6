"""An ingestor over the real catalog: topic to table, restarts, gaps, dead letters, a changed source."""

from __future__ import annotations

import json

import pytest

from tarn.adapters import partitions
from tarn.core.errors import ForbiddenError, InvalidSpecError, OffsetGapError, SourceChangedError
from tarn.core.table_catalog import TableName
from tarn.core.table_state import Retention
from tarn.ingest.batch_commit import BatchCommit, offsets_in
from tarn.ingest.bookkeeper import Seat
from tarn.ingest.ingestor import Ingestor
from tarn.ingest.status import State
from tarn.testing.memory_topic import HOLE, Topic
from tests.support.lake import Lake, order, spec


def lake_with(per_partition: int, **options: object) -> tuple[Lake, Topic]:
    topic = Topic("orders", 2)
    for p in topic.logs:
        topic.send(p, *(order(100 * p + n) for n in range(per_partition)))
    return Lake(topic, **options), topic  # type: ignore[arg-type]


def expected(topic: Topic) -> list[tuple[int, int]]:
    return [
        (p, o)
        for p, log in topic.logs.items()
        for o, v in enumerate(log)
        if isinstance(v, bytes) and v.startswith(b'{"id"')
    ]


@pytest.mark.parametrize("format_version", [2, 3])
@pytest.mark.parametrize("partitioning", ["[]", "['bucket(4, id)']", "['day(at)', 'truncate(10, id)']"])
def test_every_record_is_one_row_with_its_values_and_its_trace(format_version, partitioning):
    lake, topic = lake_with(23)
    lake.work(lake.ingestor(spec(format_version=format_version, partitioning=partitioning)))
    assert lake.offsets() == expected(topic)
    by_place = {(r["_tarn"]["partition"], r["_tarn"]["offset"]): r for r in lake.rows()}
    assert by_place[1, 5]["id"] == 105
    assert by_place[1, 5]["at"].isoformat() == "2026-11-21T08:00:00+00:00"
    assert by_place[1, 5]["_tarn"]["source"] == "orders"
    assert by_place[1, 5]["_tarn"]["time"].timestamp() * 1_000 == 1_700_000_000_005
    assert lake.registry.get("orders").rows == 46
    assert lake.registry.get("orders").lag == 0
    assert lake.registry.get("orders").state is State.RUNNING
    lake.history_is_a_chain()


def test_the_map_the_commit_id_and_the_tag_are_in_the_snapshot():
    lake, _ = lake_with(7)
    lake.work(lake.ingestor())
    state = lake.table()
    head = state.head
    assert head is not None
    assert json.loads(head["summary"]["tarn.offsets.orders"]) == {
        "v": 1,
        "cluster": "c-1",
        "topic": "orders",
        "topic-id": "id-1",
        "next": {"0": 7, "1": 7},
        "epochs": 0,
    }
    assert head["summary"]["tarn.commit-id"]
    assert state.refs["tarn-offsets-orders"]["snapshot-id"] == head["snapshot-id"]
    assert state.refs["tarn-offsets-orders"]["type"] == "tag"


def test_a_restart_goes_on_exactly_there():
    lake, topic = lake_with(11)
    lake.work(lake.ingestor())
    topic.send(0, order(1_000), order(1_001))
    lake.work(lake.ingestor())
    assert lake.offsets() == expected(topic)
    assert [r["id"] for r in lake.rows() if r["id"] >= 1_000] == [1_000, 1_001]


def test_a_partition_has_its_start_in_the_table_before_a_record_is_read():
    lake, topic = lake_with(5)
    topic.starts[0] = 2
    seen = []

    def polled() -> None:
        found = offsets_in(lake.table(), "orders")
        seen.append(found and dict(found.next))

    lake.sources.on_poll = polled
    lake.work(lake.ingestor())
    assert seen[0] == {0: 2, 1: 0}
    topic.logs[2], topic.starts[2] = [], 0
    topic.send(2, order(7))
    seen.clear()
    lake.work(lake.ingestor())
    assert seen[0] == {0: 5, 1: 5, 2: 0}
    assert lake.offsets() == [(0, 2), (0, 3), (0, 4), *((1, n) for n in range(5)), (2, 0)]


def test_records_that_expire_before_the_first_commit_of_their_rows_stop_the_stream():
    """Without the start in the table, the next plan would begin behind them, and nobody would miss them."""
    lake, topic = lake_with(5)

    def polled() -> None:
        topic.starts[1] = 3

    lake.sources.on_poll = polled
    for _ in range(2):
        with pytest.raises(OffsetGapError):
            lake.ingestor().cycle(lambda: False)
    assert lake.offsets() == []


def test_group_offsets_follow_the_table():
    lake, _ = lake_with(5)
    lake.work(lake.ingestor())
    assert lake.sources.group_offsets == {0: 5, 1: 5}


def test_holes_in_the_log_are_covered_and_lose_nothing():
    topic = Topic("orders", 2)
    topic.send(0, HOLE, order(1), HOLE, HOLE, order(4), HOLE)
    topic.send(1, HOLE, HOLE)
    lake = Lake(topic)
    lake.work(lake.ingestor())
    assert lake.offsets() == [(0, 1), (0, 4)]
    found = offsets_in(lake.table(), "orders")
    assert found is not None
    assert dict(found.next) == {0: 6, 1: 2}


def test_positions_without_records_are_committed_at_the_stated_interval_only():
    topic = Topic("orders", 1)
    topic.send(0, order(0))
    lake = Lake(topic)
    ingestor = lake.ingestor(limits=None)
    lake.work(ingestor, turns=50)
    commits = lake.local.commits
    topic.send(0, HOLE, HOLE)
    lake.work(ingestor, turns=20)
    assert lake.local.commits == commits, "an empty commit was made at once"
    lake.clock.now_s += 6
    # The plan restarts the interval; it expires within one cycle.
    left = [400]

    def until() -> bool:
        left[0] -= 1
        lake.clock.now_s += 0.05
        return left[0] < 0

    ingestor.cycle(until)
    found = offsets_in(lake.table(), "orders")
    assert found is not None
    assert dict(found.next) == {0: 3}
    assert lake.local.commits == commits + 1, "the position is committed once, not at every turn"
    assert lake.offsets() == [(0, 0)]


def test_bad_records_become_dead_letters_and_their_neighbours_rows():
    topic = Topic("orders", 2)
    topic.send(0, order(0), b"junk", order(2), None)
    topic.send(1, b'{"id":"text"}', b'{"at":"2026-11-21T08:00:00Z"}')
    lake = Lake(topic)
    lake.work(lake.ingestor())
    assert lake.offsets() == [(0, 0), (0, 2)]
    letters = sorted(lake.rows("ops.dead_letters"), key=lambda r: (r["partition"], r["offset"]))
    assert [(r["partition"], r["offset"], r["value"]) for r in letters] == [
        (0, 1, b"junk"),
        (0, 3, None),
        (1, 0, b'{"id":"text"}'),
        (1, 1, b'{"at":"2026-11-21T08:00:00Z"}'),
    ]
    assert "not JSON" in letters[0]["reason"]
    assert "tombstone" in letters[1]["reason"]
    assert "expected a whole number" in letters[2]["reason"]
    assert "required" in letters[3]["reason"]
    assert {(r["ingestor"], r["source"]) for r in letters} == {("orders", "orders")}
    status = lake.registry.get("orders")
    assert (status.rows, status.bad_records, status.lag) == (2, 4, 0)


def test_dead_letters_named_by_a_commit_are_registered_by_the_next_process():
    """Killed between commit and registration: the file is in the summary, and nowhere else."""
    topic = Topic("orders", 1)
    topic.send(0, order(0), b"junk")
    lake = Lake(topic)
    first = lake.ingestor()
    first._dead_letters.register = lambda _state: 0  # type: ignore[method-assign]
    lake.work(first)
    assert lake.rows("ops.dead_letters") == []
    lake.work(lake.ingestor())
    lake.work(lake.ingestor())
    assert [(r["offset"], r["value"]) for r in lake.rows("ops.dead_letters")] == [(1, b"junk")]


def test_unregistered_dead_letters_are_carried_forward_until_they_are_seen():
    topic = Topic("orders", 1)
    lake = Lake(topic, retention=Retention(newest=2, steps=(), total_min=0))
    first = lake.ingestor()
    first._dead_letters.register = lambda _state: 0  # type: ignore[method-assign]
    topic.send(0, b"junk-0")
    lake.work(first, turns=40)
    for n in range(6):
        topic.send(0, order(n))
        lake.work(first, turns=40)
    assert len(lake.table().metadata["snapshots"]) <= 3, "the commit that named the file is not expired yet"
    lake.work(lake.ingestor())
    assert [r["value"] for r in lake.rows("ops.dead_letters")] == [b"junk-0"]


def seconds_of(
    lake: Lake, topic: Topic, ingestor: Ingestor, number: int, *, bad: range, batches: int = 2
) -> list[list[int]]:
    """So many seconds of some batches each; in those of `bad`, each has a bad record.

    Returns:
        What the dead-letter table held at the end of each second, by offset.
    """
    turn, found = [0], list[list[int]]()

    def until() -> bool:
        second, step = divmod(turn[0], 24)
        if step % (24 // batches) == 0:
            topic.send(0, order(turn[0]), *([b"junk"] if second in bad else []))
        lake.clock.now_s += 1 / 24
        turn[0] += 1
        if turn[0] % 24 == 0:
            found.append(sorted(row["offset"] for row in lake.rows("ops.dead_letters")))
        return turn[0] >= number * 24

    ingestor.cycle(until)
    return found


@pytest.mark.parametrize(("batches", "commits_max", "waiting_max"), [(1, 10, 7), (4, 16, 8)])
def test_bad_records_in_every_batch_do_not_make_two_commits_for_each(
    batches: int, commits_max: int, waiting_max: int
):
    topic = Topic("orders", 1)
    lake = Lake(topic)
    found = seconds_of(lake, topic, lake.ingestor(), 24, bad=range(24), batches=batches)
    assert lake.table().last_sequence >= 24 * batches
    assert lake.table("ops.dead_letters").last_sequence <= commits_max, "every 5 seconds, or 8 of them"
    all_bad = list(range(1, 48 * batches, 2))
    assert sorted(row["offset"] for row in lake.rows("ops.dead_letters")) == all_bad, "none waits at the end"
    late = [batches * (second + 1) - len(offsets) for second, offsets in enumerate(found)]
    assert max(late) <= waiting_max + 1, "of a batch that is not committed yet"
    kept = lake.table().metadata["snapshots"]
    named = [json.loads(snapshot["summary"].get("tarn.dead-letters.orders", "[]")) for snapshot in kept]
    assert max(len(files) for files in named) <= waiting_max


def test_bad_records_are_registered_within_seconds_although_none_follow_and_batches_go_on():
    topic = Topic("orders", 1)
    lake = Lake(topic)
    found = seconds_of(lake, topic, lake.ingestor(), 12, bad=range(2))
    assert found[0] == [1], "the first at once"
    assert found[7] == [1, 3, 5, 7]


def test_bad_records_are_registered_within_seconds_while_a_batch_is_open():
    topic = Topic("orders", 1)
    lake = Lake(topic)
    body = spec().model_dump(by_alias=True)
    body["spec"]["batching"]["maxLatencySeconds"] = 60
    body["spec"]["batching"]["maxRecords"] = 2
    ingestor = lake.ingestor(type(spec()).model_validate(body))
    seen: list[tuple[float, int]] = []
    began_s = lake.clock.now_s
    sent = [0]

    def until() -> bool:
        at_s = lake.clock.now_s - began_s
        if sent[0] < 4 and at_s >= sent[0] / 4:
            # Two full batches with a bad record each, then a batch that stays open.
            topic.send(0, order(sent[0]), *([b"junk"] if sent[0] < 3 else []))
            sent[0] += 1
        lake.clock.now_s += 1 / 24
        seen.append((at_s, len(lake.rows("ops.dead_letters"))))
        return at_s > 10

    ingestor.cycle(until)
    assert next(at_s for at_s, count in seen if count == 3) < 7
    assert lake.registry.get("orders").rows == 3


def test_two_streams_share_a_dead_letter_table():
    one, two = Topic("orders", 1), Topic("returns", 1)
    one.send(0, b"bad-1")
    two.send(0, b"bad-2", order(1))
    lake = Lake(one, two)
    body = spec().model_dump(by_alias=True)
    body["metadata"]["name"] = "returns"
    body["spec"]["source"]["kafka"]["topic"] = "returns"
    body["spec"]["table"]["name"] = "returns"
    returns = type(spec()).model_validate(body)
    for made in (spec(), returns, spec(), returns):
        lake.work(lake.ingestor(made))
    assert sorted(r["value"] for r in lake.rows("ops.dead_letters")) == [b"bad-1", b"bad-2"]


def test_dead_letters_that_wait_are_registered_although_the_topic_was_recreated_meanwhile():
    topic = Topic("orders", 1)
    lake = Lake(topic)
    turn = [0]

    def until() -> bool:
        turn[0] += 1
        if turn[0] in (10, 20):
            topic.send(0, b"junk", order(turn[0]))
        if turn[0] == 40:
            assert len(lake.rows("ops.dead_letters")) == 1, "the second one waits"
            lake.sources.topics["orders"] = Topic("orders", 1, topic_id="id-2")
        return turn[0] > 100

    with pytest.raises((SourceChangedError, OffsetGapError)):
        lake.ingestor().cycle(until)
    assert sorted(row["offset"] for row in lake.rows("ops.dead_letters")) == [0, 2]


def test_dead_letters_of_a_killed_process_are_registered_although_the_topic_was_recreated():
    topic = Topic("orders", 1)
    topic.send(0, order(0), b"junk")
    lake = Lake(topic)
    killed = lake.ingestor()
    killed._dead_letters.register = lambda _state: 0  # type: ignore[method-assign]
    lake.work(killed)
    lake.sources.topics["orders"] = Topic("orders", 1, topic_id="id-2")
    with pytest.raises(SourceChangedError):
        lake.work(lake.ingestor())
    assert [row["offset"] for row in lake.rows("ops.dead_letters")] == [1]


def many_partitions(monkeypatch) -> tuple[Lake, Topic]:
    """A lake with one partition of the table for each record, of which a commit may touch three."""
    monkeypatch.setattr(partitions, "PARTITIONS_PER_BATCH_MAX", 3)
    topic = Topic("orders", 2)
    for p in topic.logs:
        for n in range(11):
            topic.send(p, order(100 * p + n), *([HOLE] if n % 3 else []), *([b"{"] if n == 5 else []))
    return Lake(topic), topic


def test_a_batch_of_too_many_partitions_becomes_several_commits(monkeypatch):
    lake, topic = many_partitions(monkeypatch)
    lake.work(lake.ingestor(spec(partitioning="[id]")))
    assert lake.offsets() == expected(topic)
    assert lake.sources.group_offsets == {p: len(log) for p, log in topic.logs.items()}
    assert len(lake.files()) == 22
    assert len(lake.rows("ops.dead_letters")) == 2
    added = [
        int(s["summary"].get("added-data-files", 0))
        for s in lake.table().ancestors()
        if s["summary"]["operation"] == "append"
    ]
    assert max(added) <= 3
    assert sum(added) == 22
    assert len([n for n in added if n]) <= 16
    assert (lake.registry.get("orders").rows, lake.registry.get("orders").lag) == (22, 0)
    assert lake.registry.get("orders").state is State.RUNNING
    lake.history_is_a_chain()


@pytest.mark.parametrize("commits", range(1, 9))
@pytest.mark.parametrize("stops", [False, True])
def test_a_batch_in_parts_goes_on_behind_its_last_commit(monkeypatch, commits, stops):
    """Whether it fails or the process stops after any of its parts."""
    lake, topic = many_partitions(monkeypatch)
    made, left, commit = spec(partitioning="[id]"), [commits], Seat.commit

    def ends(self, change, writer):
        left[0] -= isinstance(change, BatchCommit)
        if left[0] < 0 and not stops:
            raise ForbiddenError("not now")
        result = commit(self, change, writer)
        lake.stop = lake.stop or (stops and left[0] == 0)
        return result

    monkeypatch.setattr(Seat, "commit", ends)
    if stops:
        lake.ingestor(made).run()
        assert left[0] == 0, "nothing is begun after the process was asked to stop"
    else:
        with pytest.raises(ForbiddenError):
            lake.work(lake.ingestor(made))
    assert set(lake.offsets()) < set(expected(topic))
    lake.stop = False
    monkeypatch.undo()
    lake.work(lake.ingestor(made))
    assert lake.offsets() == expected(topic)
    lake.history_is_a_chain()


def test_a_topic_recreated_stops_the_ingestor():
    lake, _ = lake_with(5)
    lake.work(lake.ingestor())
    again = Topic("orders", 2, topic_id="id-2")
    again.send(0, *(order(n) for n in range(50)))
    lake.sources.topics["orders"] = again
    with pytest.raises(SourceChangedError, match="'id-1', is 'id-2'"):
        lake.work(lake.ingestor())
    assert len(lake.rows()) == 10


def test_a_topic_recreated_while_it_is_read_stops_before_the_commit():
    """The new topic extends beyond the old position: only the topic id reveals the change."""
    lake, _ = lake_with(5)
    ingestor = lake.ingestor()
    lake.work(ingestor, turns=30)
    again = Topic("orders", 2, topic_id="id-2")
    for p in again.logs:
        again.send(p, *(order(9_000 + n) for n in range(50)))

    def replace() -> None:
        lake.sources.topics["orders"] = again

    left = [10]

    def until() -> bool:
        left[0] -= 1
        if left[0] == 5:
            replace()
        return left[0] < 0

    with pytest.raises(SourceChangedError):
        ingestor.cycle(until)
    assert len(lake.rows()) == 10


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda t: t.starts.update({0: 7}), "the log starts at 7: 2 offsets are gone unread"),
        (lambda t: t.logs[0].__delitem__(slice(3, None)), "the log ends at 3, before it"),
        (lambda t: (t.logs.pop(1), t.starts.pop(1)), "does not have"),
    ],
)
def test_a_log_that_lacks_what_comes_next_stops_the_ingestor(change, told):
    lake, topic = lake_with(5)
    lake.work(lake.ingestor())
    topic.send(0, *(order(n) for n in range(5)))
    change(topic)
    with pytest.raises(OffsetGapError, match=told):
        lake.work(lake.ingestor())
    assert len(lake.rows()) == 10


def test_a_stopped_ingestor_says_why_and_heals_when_the_reason_is_gone(logged):
    lake, topic = lake_with(5)
    lake.work(lake.ingestor())
    kept = list(topic.logs[0])
    topic.logs[0] = kept[:2]
    seen: list[State] = []
    ingestor = lake.ingestor()

    def on_sleep_restore() -> None:
        seen.append(lake.registry.get("orders").state)
        topic.logs[0] = [*kept, order(77)]

    world = ingestor._context
    plain = world.ports.sleep

    def sleep(seconds: float) -> None:
        on_sleep_restore()
        plain(seconds)

    object.__setattr__(world.ports, "sleep", sleep)

    polls = [0]

    def count() -> None:
        polls[0] += 1
        lake.stop = polls[0] > 60

    lake.sources.on_poll = count
    ingestor.run()
    assert seen[0] is State.STOPPED
    errors = [line for line in logged if line["log_level"] == "error"]
    assert [(e["event"], e["reason"]) for e in errors] == [("ingestor stopped", "OffsetGap")]
    logged.clear()
    assert 77 in [r["id"] for r in lake.rows()]
    assert lake.registry.get("orders").state is State.FINISHED


def test_new_partitions_are_read_from_their_start():
    lake, topic = lake_with(3)
    ingestor = lake.ingestor()
    left = [300]

    def until() -> bool:
        left[0] -= 1
        if left[0] == 250:
            topic.logs[2], topic.starts[2] = [], 0
            topic.send(2, order(200), order(201))
        return left[0] < 0

    while left[0] > 0:
        ingestor.cycle(until)
    assert lake.offsets() == expected(topic)


def test_a_rollback_takes_the_offsets_back_with_the_rows():
    lake, topic = lake_with(4)
    lake.work(lake.ingestor())
    early = lake.table()
    topic.send(0, order(50))
    lake.work(lake.ingestor())
    lake.local.catalog.tables.commit(
        lake.local._slot(TableName(("bronze",), "orders")),
        [],
        [{"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": early.head_id}],
    )
    assert len(lake.rows()) == 8
    lake.work(lake.ingestor())
    assert lake.offsets() == expected(topic)


def test_a_table_that_is_dropped_under_a_running_ingestor_is_filled_from_the_start():
    """Between plan and commit: a batch from the middle of the log must not be the table's first one."""
    lake, topic = lake_with(4)
    ingestor = lake.ingestor()
    name = TableName(("bronze",), "orders")
    left = [400]
    taken = []

    def take_away() -> None:
        if left[0] > 360 or taken:
            return
        taken.append(len(lake.rows()))
        lake.local.drop(name)
        lake.local.create(name, ingestor.files.create_request())
        topic.send(0, order(900), order(901))

    lake.sources.on_poll = take_away

    def until() -> bool:
        left[0] -= 1
        return left[0] < 0

    while left[0] > 0:
        left[0] -= 1
        ingestor.cycle(until)
    assert taken == [8]
    assert lake.offsets() == expected(topic)


def test_a_table_that_was_dropped_is_made_and_filled_again():
    lake, topic = lake_with(4)
    lake.work(lake.ingestor())
    lake.local.drop(TableName(("bronze",), "orders"))
    lake.work(lake.ingestor())
    assert lake.offsets() == expected(topic)


def test_a_table_with_another_schema_is_refused_with_every_difference():
    lake, _ = lake_with(1)
    lake.work(lake.ingestor())
    body = spec().model_dump(by_alias=True)
    body["spec"]["schema"]["fields"][0]["type"] = "string"
    body["spec"]["schema"]["fields"] += ({"name": "extra", "type": "int"},)
    other = type(spec()).model_validate(body)
    with pytest.raises(InvalidSpecError) as caught:
        lake.work(lake.ingestor(other))
    assert "column id is long in the table, string in the spec" in caught.value.message
    assert "column extra (int) is missing in the table" in caught.value.message


def test_snapshots_and_manifests_stay_bounded_however_many_commits():
    topic = Topic("orders", 1)
    lake = Lake(topic, retention=Retention(newest=10, steps=(), total_min=0))
    ingestor = lake.ingestor()
    for n in range(150):
        topic.send(0, order(n))
        lake.work(ingestor, turns=12)
    state = lake.table()
    assert len(lake.rows()) == 150
    assert len(state.metadata["snapshots"]) <= 11
    from tarn.adapters.manifests import read_list

    head = state.head
    assert head is not None
    assert len(read_list(lake.objects.read(head["manifest-list"]))) <= 32
    assert lake.offsets() == [(0, n) for n in range(150)]


def test_an_upgrade_of_the_format_between_two_commits_stops_nothing():
    """The next commit builds on the version that the last one made, and lacks what the new format needs."""
    topic = Topic("orders", 1)
    lake = Lake(topic)
    ingestor = lake.ingestor(spec())
    topic.send(0, order(0))

    def upgrade() -> None:
        state = lake.table()
        if state.head is not None and state.total("records") and state.format_version < 3:
            lake.local.catalog.tables.commit(
                lake.local._slot(ingestor.table),
                [],
                [{"action": "upgrade-format-version", "format-version": 3}],
            )
            topic.send(0, order(1))

    lake.sources.on_poll = upgrade
    lake.work(ingestor, turns=40)
    assert lake.table().format_version == 3
    assert [offset for _, offset in lake.offsets()] == [0, 1]
    assert lake.registry.get("orders").state is State.RUNNING


def test_row_ids_of_format_3_are_given_once_and_survive_merging():
    topic = Topic("orders", 1)
    lake = Lake(topic)
    ingestor = lake.ingestor(spec(format_version=3))
    seen: dict[int, int] = {}
    for n in range(40):
        topic.send(0, order(2 * n), order(2 * n + 1))
        lake.work(ingestor, turns=12)
        for entry in lake.files():
            import io

            import pyarrow.parquet as pq

            first = entry.data_file._data[16]
            ids = pq.read_table(io.BytesIO(lake.objects.read(entry.data_file.file_path)))["id"].to_pylist()
            for row_id, number in enumerate(ids, start=first):
                assert seen.setdefault(number, row_id) == row_id, "a row's id changed"
    assert len(set(seen.values())) == 80
    assert lake.table().metadata["next-row-id"] > max(seen.values())
