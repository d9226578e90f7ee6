"""A stream that falls silent keeps no files of the table; what it stated stays, for every reader of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tarn.adapters import manifest_audit
from tarn.adapters.bulk import PlainBulk
from tarn.cli.ports import Offsets
from tarn.core.completion import OpenPartitions
from tarn.core.dead_letter import PendingFile
from tarn.core.errors import CorruptStateError
from tarn.core.offsets import SUMMARY_PREFIX, TAG_PREFIX, OffsetMap, TopicIdentity
from tarn.core.producers import STREAM
from tarn.core.retired import Retired
from tarn.core.table_catalog import CommitOutcome, TableName
from tarn.core.table_state import Append, CommitRequest, TableState, WrittenFile, restated_property
from tarn.core.watermark import PartitionTime, Watermark
from tarn.core.write_keys import KeyEntry, summary_key
from tarn.ingest.batch_commit import (
    former_head,
    offsets_in,
    open_in,
    pending_in,
    retired_in,
    stated,
    stream_append,
    watermark_in,
)
from tarn.ingest.changes import Done
from tarn.ingest.retire_commit import RetireCommit
from tarn.keeper.fsck import fsck
from tarn.testing.memory_topic import Topic
from tests.contract.ingest.test_replaced import back, deletes_all, update
from tests.support.batches import Hands
from tests.support.lake import BUCKET, Lake, replace_table, spec
from tests.support.readers import Client, places

NAME = TableName(("bronze",), "orders")
DAY_S = 86_400.0
HISTORY = "3, 1s for 1m, 1h for 1d"
MARK = Watermark(column="at", at_us=5, partitions={0: PartitionTime(latest_us=5, active_ms=1)})
OPEN = OpenPartitions(field="at_day", runs=((20_000, 20_002),))


@dataclass(frozen=True)
class Stated:
    """A commit of a stream that states all that a stream can."""

    commit_id: str
    table_uuid: str
    offsets: OffsetMap
    stream: str = "silent"
    files: tuple[WrittenFile, ...] = ()
    removed: tuple[WrittenFile, ...] = ()

    def on(self, state: TableState) -> Append:
        return stream_append(
            self.files,
            commit_id=self.commit_id,
            stream=self.stream,
            offsets=self.offsets,
            pending=(PendingFile(path="s3://tarn/x", records=1, bytes=9, sequence=state.last_sequence + 1),),
            mark=MARK,
            opened=OPEN,
            retired=Retired(rows=2, runs={0: ((0, 2),)}).to_json(),
        )


def from_now_on(lake: Lake) -> None:
    """Let the lake's clock be ahead of the catalog's, which is the machine's."""
    lake.clock.now_s = time.time() - 1_700_000_000 + 60


def world(history: str = HISTORY) -> Hands:
    lake = Lake(Topic("orders", 3))
    from_now_on(lake)
    hands = Hands(lake)
    update(lake, {"action": "set-properties", "updates": {"tarn.history": history}})
    return hands


def with_topics() -> Hands:
    """A table whose silent stream was repeated; both streams' topics are there, for a rollback."""
    hands = world()
    for name in ("silent", "busy"):
        hands.lake.sources.topics[name] = Topic(name, 1, topic_id=f"id-{name}")
        hands.lake.sources.topics[name].send(0, *[b"{}"] * 200)
    hands.commit(hands.batch(0, 0, 4, stream="silent", fresh=frozenset({0})))
    busy(hands, 31, every_s=3_000.0)
    return hands


def busy(hands: Hands, number: int, *, every_s: float = 60.0, stream: str = "busy") -> None:
    """Commits of another stream, each with a row."""
    for _ in range(number):
        hands.lake.clock.now_s += every_s
        at = hands.next(stream).get(0, 0)
        (done,) = hands.commit(hands.batch(0, at, at + 1, stream=stream))
        assert isinstance(done, Done)


def tagged(lake: Lake, stream: str = "silent") -> int:
    return int(lake.table().refs[TAG_PREFIX + stream]["snapshot-id"])


def ids(lake: Lake) -> set[int]:
    return {one["snapshot-id"] for one in lake.table().metadata["snapshots"]}


def said(state: TableState, stream: str = "silent") -> Mapping[str, str]:
    """What the version states of a stream, as it is."""
    return {
        k: v for k, v in stated(state, stream).items() if k.endswith(f".{stream}") and "restated" not in k
    }


def clean(lake: Lake) -> list[Any]:
    report = fsck(
        PlainBulk(lake.store), manifest_audit, bucket=BUCKET, tell=lambda _: None, sleep=lambda _: None
    )
    return [finding for finding in report.findings if finding.damage]


@pytest.mark.long
def test_the_last_snapshot_of_a_silent_stream_goes_and_all_that_it_stated_stays() -> None:
    hands = world()
    lake = hands.lake
    first = hands.batch(0, 0, 4, stream="silent")
    hands.commit(first)
    offsets = OffsetMap(source=first.source, next={0: 4, 1: 7}, epochs={0: 3, 1: 5})
    hands.commit(Stated(hands.new_id(), lake.table().uuid, offsets))
    before, last = said(lake.table()), tagged(lake)
    assert len(before) == 5
    busy(hands, 30)
    assert tagged(lake) == last, "it may have a message any minute"
    busy(hands, 70, every_s=3_600.0)
    assert last not in ids(lake)
    state = lake.table()
    assert said(state) == before
    found = offsets_in(state, "silent")
    assert found is not None
    assert (found, dict(found.epochs)) == (offsets, dict(offsets.epochs))
    assert watermark_in(state, "silent") == MARK
    assert open_in(state, "silent") == OPEN
    assert retired_in(state, "silent") == Retired(rows=2, runs={0: ((0, 2),)})
    assert [file.path for file in pending_in(state, "silent")] == ["s3://tarn/x"]
    # The rows of the silent stream go: nothing of the history reaches them any more.
    drop = RetireCommit(
        commit_id=hands.new_id(), table_uuid=state.uuid, stream="silent", removed=first.files,
        dropped={0: ((0, 4),)},
    )  # fmt: skip
    assert isinstance(hands.commit(drop)[0], Done)
    busy(hands, 70, every_s=3_600.0)
    names = {
        file.data_file.file_path
        for one in lake.table().metadata["snapshots"]
        for file in lake.files(state=lake.table().at(one["snapshot-id"]))
    }
    assert not {file.path for file in first.files} & names
    assert retired_in(lake.table(), "silent") == Retired(rows=6, runs={0: ((0, 4),)})


def test_a_stream_is_stated_again_once_a_day_and_goes_on_where_it_was() -> None:
    hands = world()
    hands.commit(hands.batch(0, 0, 4, stream="silent"))
    busy(hands, 4)
    moves = set()
    for _ in range(3):
        hands.lake.clock.now_s += DAY_S
        busy(hands, 3)
        moves.add(tagged(hands.lake))
    assert len(moves) == 3
    kept = [s for s in hands.lake.table().metadata["snapshots"] if SUMMARY_PREFIX + "silent" in s["summary"]]
    assert len(kept) <= 2
    assert isinstance(hands.commit(hands.batch(0, 4, 6, stream="silent"))[0], Done)
    assert hands.next("silent") == {0: 6}
    head = hands.lake.table().head
    assert head is not None
    assert restated_property(SUMMARY_PREFIX + "silent") not in head["summary"]
    assert sorted(hands.lake.offsets())[:6] == [(0, n) for n in (0, 0, 1, 1, 2, 2)]
    assert clean(hands.lake) == []


@pytest.mark.parametrize("history", ["all", "3, 1s for 1m, 1h for 30d"])
def test_a_history_that_is_kept_for_longer_keeps_the_tag(history: str) -> None:
    hands = world(history)
    hands.commit(hands.batch(0, 0, 4, stream="silent"))
    last = tagged(hands.lake)
    hands.lake.clock.now_s += 2 * DAY_S
    busy(hands, 6)
    assert tagged(hands.lake) == last


def test_a_stream_that_commits_at_the_same_moment_is_first_or_second_and_loses_nothing() -> None:
    hands, rival = world(), None
    lake = hands.lake
    hands.commit(hands.batch(0, 0, 4, stream="silent"))
    busy(hands, 4)
    lake.clock.now_s += 2 * DAY_S
    rival = Hands(lake)
    late = rival.batch(0, 4, 6, stream="silent")
    inner, raced = lake.local.commit, list[Any]()

    def commit(table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
        if not raced:
            raced.append(request)
            raced.extend(rival.commit(late))
        return inner(table, request, key=key)

    lake.local.commit = commit  # type: ignore[method-assign]
    busy(hands, 1)
    lake.local.commit = inner  # type: ignore[method-assign]
    assert any(u.get("ref-name") == TAG_PREFIX + "silent" for u in raced[0].updates), "it would have moved it"
    assert isinstance(raced[1], Done)
    assert hands.next("silent") == {0: 6}
    head = lake.table().head
    assert head is not None
    assert SUMMARY_PREFIX + "silent" not in head["summary"], "it is not silent any more"
    # The other way round: the stream's batch was made on the version before it was stated again.
    lake.clock.now_s += 2 * DAY_S
    rival.committer.load()
    busy(hands, 4)
    (done,) = rival.commit(rival.batch(0, 6, 8, stream="silent"))
    assert isinstance(done, Done)
    assert hands.next("silent") == {0: 8}
    assert clean(lake) == []


def test_in_one_snapshot_with_its_own_batch_the_batch_counts() -> None:
    hands = world()
    hands.commit(hands.batch(0, 0, 4, stream="silent"))
    busy(hands, 4)
    hands.lake.clock.now_s += 2 * DAY_S
    at = hands.next("busy")[0]
    hands.commit(hands.batch(0, at, at + 1, stream="busy"), hands.batch(0, 4, 6, stream="silent"))
    assert hands.next("silent") == {0: 6}
    head = hands.lake.table().head
    assert head is not None
    assert restated_property(SUMMARY_PREFIX + "silent") not in head["summary"]


def test_many_silent_streams_are_stated_a_few_at_a_time_the_oldest_first() -> None:
    hands = world()
    names = [f"s{n:02}" for n in range(20)]
    for name in names:
        hands.commit(hands.batch(0, 0, 1, stream=name))
    before = {name: said(hands.lake.table(), name) for name in names}
    hands.lake.clock.now_s += 2 * DAY_S
    moved = []
    for _ in range(4):
        was = {name: tagged(hands.lake, name) for name in names}
        busy(hands, 1)
        moved.append([name for name in names if tagged(hands.lake, name) != was[name]])
    assert moved == [names[:8], names[8:16], names[16:], []]
    assert {name: said(hands.lake.table(), name) for name in names} == before
    assert clean(hands.lake) == []


def test_a_stream_that_states_much_is_stated_alone() -> None:
    hands = world()
    uuid = hands.lake.table().uuid
    source = TopicIdentity(cluster="c-1", topic="t", topic_id="x")
    offsets = OffsetMap(source=source, next={p: 10**12 + p for p in range(800)})
    for name in ("a", "b"):
        one = replace(offsets, source=replace(source, topic_id=name))
        hands.commit(Stated(hands.new_id(), uuid, one, stream=name))
    busy(hands, 4)
    hands.lake.clock.now_s += 2 * DAY_S
    last = tagged(hands.lake, "a"), tagged(hands.lake, "b")
    busy(hands, 1)
    assert (tagged(hands.lake, "a") != last[0], tagged(hands.lake, "b") != last[1]) == (True, False)
    busy(hands, 1)
    assert tagged(hands.lake, "b") != last[1]


def test_rows_over_http_keep_their_keys() -> None:
    hands = world()
    entry = KeyEntry(path="s3://tarn/x/write-keys-1", at_ms=7)
    uuid = hands.lake.table().uuid
    offsets = OffsetMap(source=TopicIdentity(cluster="http", topic="http", topic_id=uuid), next={0: 3})

    class Keyed(Stated):
        def on(self, state: TableState) -> Append:
            made = super().on(state)
            return replace(made, summary={**made.summary, summary_key(STREAM): entry.to_json()})

    hands.commit(Keyed(hands.new_id(), uuid, offsets, stream=STREAM))
    last = tagged(hands.lake, STREAM)
    hands.lake.clock.now_s += 2 * DAY_S
    busy(hands, 6)
    assert last not in ids(hands.lake)
    assert stated(hands.lake.table(), STREAM)[summary_key(STREAM)] == entry.to_json()


def test_every_kept_version_says_of_the_silent_stream_what_it_said_before_the_tag_moved() -> None:
    hands = world()
    lake = hands.lake
    hands.commit(hands.batch(0, 0, 4, stream="silent"))
    last = tagged(lake)
    busy(hands, 31, every_s=3_000.0)
    state = lake.table()
    moved = state.snapshot(tagged(lake))["sequence-number"]
    between = [one for one in state.metadata["snapshots"] if one["sequence-number"] < moved]
    assert last not in ids(lake)
    assert len(between) > 5
    assert not any(SUMMARY_PREFIX + "silent" in one["summary"] for one in between)
    for one in between:
        then = offsets_in(state.at(one["snapshot-id"]), "silent")
        assert then is not None
        assert dict(then.next) == {0: 4}


def test_a_rollback_behind_the_move_leaves_the_stream_where_it_was() -> None:
    hands = with_topics()
    lake = hands.lake
    moved = tagged(lake)
    target = lake.table().metadata["snapshots"][3]
    assert target["sequence-number"] < lake.table().snapshot(moved)["sequence-number"]
    back(lake, str(target["snapshot-id"]), Offsets.REWIND)
    assert tagged(lake) == moved, "no snapshot of this history states it"
    assert hands.next("silent") == {0: 4}
    assert clean(lake) == []
    busy(hands, 6, every_s=1.0)
    lake.clock.now_s += 2 * DAY_S
    busy(hands, 4)
    assert tagged(lake) != moved
    assert hands.next("silent") == {0: 4}
    assert isinstance(hands.commit(hands.batch(0, 4, 5, stream="silent"))[0], Done)
    assert clean(lake) == []


def test_a_stream_behind_whose_last_commit_another_client_went_vouches_for_no_version_before() -> None:
    """An engine's rollback leaves the tag where it is; a version of either history may be chosen later."""
    hands = world()
    lake = hands.lake
    hands.commit(hands.batch(0, 0, 4, stream="silent"))
    target = tagged(lake)
    tag = {"action": "set-snapshot-ref", "type": "tag"}
    update(lake, {**tag, "ref-name": "target", "snapshot-id": target})
    hands.commit(hands.batch(0, 4, 9, stream="silent"))
    busy(hands, 5)
    apart = lake.table().head_id or 0
    update(lake, {**tag, "ref-name": "apart", "snapshot-id": apart})
    at = {"ref-name": "main", "type": "branch", "snapshot-id": target}
    update(lake, {"action": "set-snapshot-ref", **at})
    assert hands.next("silent") == {0: 4}
    lake.clock.now_s += 2 * DAY_S
    busy(hands, 6)
    state, repeated = lake.table(), restated_property(SUMMARY_PREFIX + "silent")
    assert hands.next("silent") == {0: 4}, "not what the tag said"
    moved = state.snapshot(tagged(lake))
    assert moved["summary"][repeated] == str(moved["sequence-number"])
    with pytest.raises(CorruptStateError):
        offsets_in(state.at(apart), "silent")


def test_a_table_that_was_replaced_and_emptied_has_no_rows_of_it_although_it_was_stated_since() -> None:
    """Somebody tried the former history once more, and there the stream was stated again."""
    hands = world()
    lake = hands.lake
    hands.commit(hands.batch(0, 0, 4, stream="silent"))
    busy(hands, 3)
    former, tag = lake.table().head_id, {"action": "set-snapshot-ref", "type": "tag"}
    main = {"action": "set-snapshot-ref", "type": "branch", "ref-name": "main"}
    update(lake, {**tag, "ref-name": "former", "snapshot-id": former})
    replace_table(lake.local, NAME, 4_711)
    update(lake, {**tag, "ref-name": "replaced", "snapshot-id": 4_711}, {**main, "snapshot-id": former})
    lake.clock.now_s += 2 * DAY_S
    busy(hands, 4)
    state = lake.table()
    assert state.snapshot(tagged(lake))["sequence-number"] > state.snapshot(4_711)["sequence-number"]
    update(lake, {**main, "snapshot-id": 4_711})
    deletes_all(lake, 5_000)
    busy(hands, 6)
    found = offsets_in(lake.table(), "silent")
    assert found is not None
    assert dict(found.next) == {}, "it reads its topic again from the beginning"


def test_the_former_rows_of_a_replaced_table_are_found_behind_the_move() -> None:
    hands = with_topics()
    lake = hands.lake
    target = int(lake.table().metadata["snapshots"][3]["snapshot-id"])
    assert target not in (tagged(lake), tagged(lake, "busy"))
    back(lake, str(target), Offsets.REWIND)
    replace_table(lake.local, NAME, 4_711)
    assert former_head(lake.table()) == target


def test_a_reader_of_the_queue_reads_on_over_it() -> None:
    hands = world()
    client = Client(hands.lake)

    def read() -> list[tuple[str, int]]:
        return sorted(place for batch in client.subscribe("g") for place in places(batch))

    hands.commit(hands.batch(0, 0, 2, stream="silent"))
    busy(hands, 2)
    assert len(read()) == 4
    hands.lake.clock.now_s += 2 * DAY_S
    busy(hands, 3)
    assert len(read()) == 3
    hands.commit(hands.batch(0, 2, 3, stream="silent"))
    assert len(read()) == 1
    assert len(list(places(next(iter(Client(hands.lake).subscribe("new")))))) == 8


@pytest.mark.parametrize("direct", [False, True])
def test_a_topic_that_stands_still_reads_on_where_it_was(direct: bool) -> None:
    lake = Lake(Topic("orders", 1), Topic("others", 1, topic_id="id-2"))
    from_now_on(lake)
    text = spec(direct=direct).model_dump(by_alias=True, mode="json")
    text["metadata"] = {"name": "others"}
    text["spec"]["source"]["kafka"]["topic"] = "others"
    busy_spec, silent_spec = type(spec()).model_validate(text), spec(direct=direct)
    topics = lake.sources.topics
    value = b'{"id": 1, "at": "2026-11-21T08:00:00Z"}'
    topics["orders"].send(0, *[value] * 3)
    silent = lake.ingestor(silent_spec)
    lake.work(silent, turns=40)
    update(lake, {"action": "set-properties", "updates": {"tarn.history": HISTORY}})
    last = tagged(lake, "orders")
    lake.clock.now_s += 2 * DAY_S
    for _ in range(5):
        topics["others"].send(0, value)
        lake.work(lake.ingestor(busy_spec), turns=40)
    assert last not in ids(lake)
    topics["orders"].send(0, *[value] * 2)
    lake.work(silent, turns=40)
    assert len(lake.rows()) == 10
    assert clean(lake) == []
