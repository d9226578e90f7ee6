"""Several changes in one snapshot: each is judged, and settled, for itself (I3, I4, I5)."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tarn.adapters import manifest_audit
from tarn.adapters.bulk import PlainBulk
from tarn.core.errors import InvalidError, SourceChangedError
from tarn.core.offsets import TopicIdentity
from tarn.core.outcome import AlreadyCommitted, Rejected
from tarn.core.table_catalog import CommitOutcome, TableName
from tarn.core.table_state import Append, CommitRequest, TableState, WrittenFile, commit_ids
from tarn.ingest.changes import Done, NeedsReplan
from tarn.ingest.merge_commit import MergeCommit
from tarn.keeper.fsck import fsck
from tarn.testing.memory_topic import Topic
from tests.contract.ingest.test_faults import Scripted, faulty_lake
from tests.support.batches import Hands
from tests.support.lake import BUCKET, Lake
from tests.support.plays import seeds


@pytest.fixture
def lake() -> Lake:
    return Lake(Topic("orders", 3))


def summary(lake: Lake) -> dict[str, str]:
    head = lake.table().head
    assert head is not None
    found: dict[str, str] = head["summary"]
    return found


def clean(lake: Lake) -> list[Any]:
    report = fsck(
        PlainBulk(lake.store), manifest_audit, bucket=BUCKET, tell=lambda _: None, sleep=lambda _: None
    )
    return [finding for finding in report.findings if finding.damage]


def test_replicas_of_a_stream_make_one_snapshot_with_one_map(lake: Lake) -> None:
    hands = Hands(lake)
    batches = [hands.batch(p, 0, 4 + p) for p in range(3)]
    results = hands.commit(*batches)
    assert [(one.by_us, one.attempts, one.first) for one in results] == [
        (True, 1, True),
        (True, 1, False),
        (True, 1, False),
    ]
    assert lake.local.commits == 1
    assert hands.next() == {0: 4, 1: 5, 2: 6}
    assert len(lake.offsets()) == 15
    found = summary(lake)
    assert commit_ids(found) == tuple(batch.commit_id for batch in batches)
    assert found["tarn.commit-id"] == batches[0].commit_id
    assert (found["added-data-files"], found["added-records"], found["total-records"]) == ("3", "15", "15")
    assert found["changed-partition-count"] == "1", "one partition of the table"
    assert clean(lake) == []


def test_ranges_that_follow_one_another_may_share_a_snapshot(lake: Lake) -> None:
    hands = Hands(lake)
    assert all(one.by_us for one in hands.commit(hands.batch(0, 0, 4), hands.batch(0, 4, 9)))
    assert lake.local.commits == 1
    assert hands.next() == {0: 9}


def test_streams_of_several_topics_begin_in_one_snapshot(lake: Lake) -> None:
    hands = Hands(lake)
    ends = {"a": 3, "b": 8, "c": 5}
    results = hands.commit(*(hands.batch(0, 0, end, stream=name) for name, end in ends.items()))
    assert [type(one) for one in results] == [Done] * 3
    assert lake.local.commits == 1
    state = lake.table()
    for name, end in ends.items():
        assert hands.next(name) == {0: end}
        assert state.refs[f"tarn-offsets-{name}"]["snapshot-id"] == state.head_id
        assert f"tarn.offsets.{name}.since" in state.properties
    assert clean(lake) == [], "rows are counted for all streams of a snapshot together"
    later = {"a": 9, "b": 20, "c": 6}
    hands.commit(*(hands.batch(0, ends[name], end, stream=name) for name, end in later.items()))
    assert clean(lake) == [], "a file fits one of the streams, not all"


def test_a_second_stream_of_one_topic_is_no_neighbour_but_plans_again(lake: Lake) -> None:
    """It would add the same messages: also if both begin at the same moment."""
    hands = Hands(lake)
    twin = replace(
        hands.batch(0, 0, 3, stream="b"),
        source=TopicIdentity(cluster="c-1", topic="orders", topic_id="id-orders"),
    )
    first, second = hands.commit(hands.batch(0, 0, 3), twin)
    assert isinstance(first, Done)
    assert isinstance(second, NeedsReplan)
    assert "another stream of the topic has such records: orders" in second.reason
    assert len(lake.rows()) == 3


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_bad_one_takes_no_other_along(lake: Lake, place: int) -> None:
    hands = Hands(lake)
    hands.commit(hands.batch(2, 0, 1))
    changes: list[Any] = [hands.batch(0, 0, 4), hands.batch(1, 0, 4)]
    gap, wrong = hands.batch(2, 5, 9), hands.batch(2, 1, 4)
    wrong = replace(wrong, source=TopicIdentity(cluster="c-1", topic="orders", topic_id="another"))
    changes[place:place] = [gap, wrong]
    results = hands.commit(*changes)
    refused, failed = results[place : place + 2]
    assert isinstance(refused, NeedsReplan)
    assert "the batch starts at 5, the table ends at 1" in refused.reason
    assert isinstance(failed, SourceChangedError)
    good = [one for at, one in enumerate(results) if at not in (place, place + 1)]
    assert all(isinstance(one, Done) and one.by_us for one in good)
    assert hands.next() == {0: 4, 1: 4, 2: 1}
    assert lake.local.commits == 2, "the good ones share a snapshot"


def test_what_fails_to_judge_fails_alone(lake: Lake) -> None:
    hands = Hands(lake)

    @dataclass(frozen=True)
    class Broken:
        commit_id: str = "broken"
        table_uuid: str = lake.table().uuid
        files: tuple[WrittenFile, ...] = ()
        removed: tuple[WrittenFile, ...] = ()

        def on(self, state: TableState) -> Append | AlreadyCommitted | Rejected:
            raise ZeroDivisionError("a defect")

    failed, done = hands.commit(Broken(), hands.batch(0, 0, 4))
    assert isinstance(failed, ZeroDivisionError)
    assert isinstance(done, Done)
    assert hands.next() == {0: 4}


def test_one_of_a_table_that_was_recreated_plans_again(lake: Lake) -> None:
    hands = Hands(lake)
    old = replace(hands.batch(1, 0, 4), table_uuid="another")
    first, second = hands.commit(old, hands.batch(0, 0, 4))
    assert isinstance(first, NeedsReplan)
    assert "recreated" in first.reason
    assert isinstance(second, Done)


def test_a_range_twice_in_a_group_is_committed_once(lake: Lake) -> None:
    """The second is settled after the first is in: what is not committed yet decides nothing."""
    hands = Hands(lake)
    one, other = hands.commit(hands.batch(0, 0, 4), hands.batch(0, 0, 4))
    assert (one.by_us, other.by_us) == (True, False)
    assert lake.offsets() == [(0, n) for n in range(4)]


def test_what_was_judged_with_a_neighbour_s_uncommitted_range_is_judged_again(lake: Lake) -> None:
    """The group lost a race: its range is not in the table yet, so the twin of it is not settled by it."""
    other = Hands(lake)

    class Beaten(Scripted):
        def commit(self, table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
            if not self.sent:
                other.commit(other.batch(2, 0, 1))
            return super().commit(table, request, key=key)

    hands = Hands(lake, Beaten(lake.local, "fine", "lost"))
    hands.committer.load()
    one, twin = hands.batch(0, 0, 4), hands.batch(0, 0, 4)
    members = [hands.member(one), hands.member(twin)]
    seen: list[tuple[bool, dict[int, int]]] = []
    hands.committer.commit_all(
        members, on_wait=lambda _reason: seen.append((members[1].result is None, hands.next()))
    )
    assert seen == [(True, {2: 1})], "while the range is not in the table, the twin is open"
    assert [getattr(member.result, "by_us", None) for member in members] == [True, False]
    assert lake.offsets() == [*((0, n) for n in range(4)), (2, 0)]


def test_a_snapshot_that_was_rolled_back_is_not_asked_for_again(lake: Lake) -> None:
    """Its reply was lost. The same request with the same key would be answered as done, without its rows."""
    hands = Hands(lake)
    hands.commit(hands.batch(2, 0, 1))
    kept = lake.table().head_id

    class RolledBack(Scripted):
        def commit(self, table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
            outcome = super().commit(table, request, key=key)
            if len(self.sent) == 1:
                refs = (("main", "branch"), ("tarn-offsets-orders", "tag"))
                lake.local.catalog.tables.commit(
                    lake.local._slot(table),
                    [],
                    [
                        {"action": "set-snapshot-ref", "ref-name": ref, "type": kind, "snapshot-id": kept}
                        for ref, kind in refs
                    ],
                )
            return outcome

    catalog = RolledBack(lake.local, "reply")
    hands = Hands(lake, catalog)
    results = hands.commit(hands.batch(0, 0, 4), hands.batch(1, 0, 4))
    assert all(isinstance(one, Done) and one.by_us for one in results)
    assert catalog.sent[0] != catalog.sent[1]
    assert len(lake.offsets()) == 9
    assert hands.next() == {0: 4, 1: 4, 2: 1}


class Refusing(Scripted):
    """Refuses every snapshot of several, or that of one change, as a limit of the catalog would."""

    def __init__(self, lake: Lake, bad: str = "") -> None:
        super().__init__(lake.local)
        self.bad = bad

    def commit(self, table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
        ids = commit_ids(request.updates[0]["snapshot"]["summary"])
        if self.bad in ids:
            self.sent.append((key, ""))
            raise InvalidError("a summary as this one is refused")
        return super().commit(table, request, key=key)


def test_if_the_catalog_refuses_a_group_each_is_sent_alone(lake: Lake) -> None:
    hands = Hands(lake)
    batches = [hands.batch(p, 0, 4) for p in range(3)]
    hands = Hands(lake, Refusing(lake, bad=batches[1].commit_id))
    results = hands.commit(*batches)
    assert [type(one) for one in results] == [Done, InvalidError, Done]
    assert hands.next() == {0: 4, 2: 4}
    lake.history_is_a_chain()


def test_a_merge_is_a_snapshot_of_its_own(lake: Lake) -> None:
    """Its operation says that no row is new: a reader of appends skips it."""
    hands = Hands(lake)
    small = [hands.batch(0, n, n + 1) for n in range(3)]
    for batch in small:
        hands.commit(batch)
    before = hands.batch(1, 0, 4)
    merge = hands.merge([file for batch in small for file in batch.files])
    results = hands.commit(before, merge, hands.batch(2, 0, 4))
    assert all(isinstance(one, Done) and one.by_us for one in results)
    operations = [s["summary"]["operation"] for s in lake.table().ancestors()]
    assert operations[:2] == ["replace", "append"], "what appends goes together, before or after it"
    heads = [commit_ids(s["summary"]) for s in lake.table().ancestors()]
    assert heads[0] == (merge.commit_id,)
    assert len(heads[1]) == 2
    assert len(lake.offsets()) == 11


def test_a_merge_first_leaves_the_others_for_the_next_snapshot(lake: Lake) -> None:
    hands = Hands(lake)
    small = [hands.batch(0, n, n + 1) for n in range(2)]
    for batch in small:
        hands.commit(batch)
    merge: MergeCommit = hands.merge([file for batch in small for file in batch.files])
    results = hands.commit(merge, hands.batch(1, 0, 4), hands.batch(2, 0, 4))
    assert all(isinstance(one, Done) and one.by_us for one in results)
    assert [s["summary"]["operation"] for s in lake.table().ancestors()][:2] == ["append", "replace"]
    assert hands.next() == {0: 2, 1: 4, 2: 4}


def test_files_that_are_gone_are_the_merge_s_own_trouble(lake: Lake) -> None:
    hands = Hands(lake)
    small = [hands.batch(0, n, n + 1) for n in range(2)]
    for batch in small:
        hands.commit(batch)
    paths = [file for batch in small for file in batch.files]
    one, other = hands.merge(paths), hands.merge(paths)
    results = hands.commit(one, other, hands.batch(1, 0, 4))
    assert [type(found) for found in results] == [Done, NeedsReplan, Done]
    assert len(lake.offsets()) == 6


def test_a_lost_reply_is_found_for_each_member_and_sent_no_second_time(lake: Lake) -> None:
    catalog = Scripted(lake.local, "reply")
    hands = Hands(lake, catalog)
    results = hands.commit(*(hands.batch(p, 0, 4) for p in range(3)))
    assert [(one.by_us, one.first) for one in results] == [(True, True), (True, False), (True, False)]
    assert len(catalog.sent) == 1
    assert len(lake.offsets()) == 12


def test_a_lost_request_of_a_group_is_sent_again_the_same_with_the_same_key(lake: Lake) -> None:
    catalog = Scripted(lake.local, "lost", "fine")
    hands = Hands(lake, catalog)
    hands.commit(*(hands.batch(p, 0, 4) for p in range(3)))
    assert len(catalog.sent) == 2
    assert catalog.sent[0] == catalog.sent[1]


def test_a_lost_reply_and_another_commit_on_top(lake: Lake) -> None:
    other = Hands(lake)

    class OnTop(Scripted):
        def commit(self, table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
            outcome = super().commit(table, request, key=key)
            if len(self.sent) == 1:
                other.commit(other.batch(2, 0, 3))
            return outcome

    catalog = OnTop(lake.local, "reply")
    hands = Hands(lake, catalog)
    results = hands.commit(hands.batch(0, 0, 4), hands.batch(1, 0, 4))
    assert all(one.by_us for one in results)
    assert len(catalog.sent) == 1
    assert hands.next() == {0: 4, 1: 4, 2: 3}


def test_after_a_conflict_each_is_judged_again(lake: Lake) -> None:
    """Another bookkeeper committed the range of one member: that one is done, the other goes in."""
    other = Hands(lake)

    class Beaten(Scripted):
        def commit(self, table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
            if not self.sent:
                other.commit(other.batch(0, 0, 4))
            return super().commit(table, request, key=key)

    catalog = Beaten(lake.local)
    hands = Hands(lake, catalog)
    first, second = hands.commit(hands.batch(0, 0, 4), hands.batch(1, 0, 4))
    assert (first.by_us, second.by_us) == (False, True)
    assert len(catalog.sent) == 2
    assert len(lake.offsets()) == 8


def test_a_version_that_is_only_remembered_decides_nothing_but_an_append(lake: Lake) -> None:
    """The table was rolled back since: on the remembered version the batch is in already, and it is not."""
    hands = Hands(lake)
    hands.commit(hands.batch(0, 0, 4), hands.batch(1, 0, 2))
    kept = lake.table()
    hands.commit(hands.batch(0, 4, 9))
    lake.local.catalog.tables.commit(
        lake.local._slot(lake.ingestor().table),
        [],
        [
            {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": kept.head_id},
            {
                "action": "set-snapshot-ref",
                "ref-name": "tarn-offsets-orders",
                "type": "tag",
                "snapshot-id": kept.head_id,
            },
        ],
    )
    again, gap = hands.commit(hands.batch(0, 4, 9), hands.batch(1, 3, 5))
    assert again.by_us, "AlreadyCommitted on the version before the rollback would lose five rows"
    assert isinstance(gap, NeedsReplan)
    assert hands.next() == {0: 9, 1: 2}


def test_a_snapshot_of_one_change_is_as_without_a_group(lake: Lake) -> None:
    hands = Hands(lake)
    batch = hands.batch(0, 0, 4)
    hands.commit(batch)
    found = summary(lake)
    assert found["tarn.commit-id"] == batch.commit_id
    assert "tarn.commit-ids" not in found


def test_what_a_member_states_no_more_does_not_stay(lake: Lake) -> None:
    one = Append.of((), commit_id="1", summary={"tarn.dead-letters.s": "[x]", "tarn.dead-letters.t": "[y]"})
    restated = frozenset({"tarn.offsets.s", "tarn.dead-letters.s"})
    other = Append.of((), commit_id="2", summary={"tarn.offsets.s": "map"}, restated=restated)
    assert one.followed_by(other, partitions=0).summary == {
        "tarn.dead-letters.t": "[y]",
        "tarn.offsets.s": "map",
        "tarn.commit-ids": "1 2",
    }
    with pytest.raises(ValueError, match="a snapshot of its own"):
        replace(one, removed_files=1).followed_by(other, partitions=0)


@dataclass
class Stream:
    """A reader of one partition: its next batch is planned from the table, as an ingestor does."""

    name: str
    partition: int
    length: int
    at: int = 0
    batch: Any = None
    wants: list[tuple[int, int]] = field(default_factory=list)


@pytest.mark.plays
@pytest.mark.parametrize("seed", seeds(30))
def test_groups_with_faults_lose_and_double_nothing(seed: int) -> None:
    """Two bookkeepers take random groups of five readers' batches; requests are lost, late and denied."""
    chance = random.Random(seed)
    lake, faults = faulty_lake(Topic("orders", 3), seed, rate=0.5)
    hands = [Hands(lake), Hands(lake)]
    readers = [Stream("orders", p, 30) for p in range(3)] + [Stream("b", 0, 30), Stream("c", 0, 30)]
    for turn in range(400):
        if turn == 300:
            faults.land_all()
            faults.rate = 0.0
        taken = [one for one in readers if one.at < one.length and chance.random() < 0.6]
        keeper = chance.choice(hands)
        for one in taken:
            if one.batch is None:
                end = min(one.length, one.at + chance.randrange(1, 6))
                one.batch = keeper.batch(one.partition, one.at, end, stream=one.name)
        results = keeper.commit(*(one.batch for one in taken))
        for one, result in zip(taken, results, strict=True):
            assert isinstance(result, Done | NeedsReplan), result
            one.batch = None
            if chance.random() < 0.1:
                continue  # a crash before it was noted: the next plan looks at the table
            one.at = keeper.next(one.name).get(one.partition, 0)
        faults.land_some()
        for one in readers:
            if one.batch is None and chance.random() < 0.2:
                one.at = hands[0].next(one.name).get(one.partition, 0)
        if all(one.at == one.length for one in readers) and not faults.late:
            break
    rows = sorted((r["_tarn"]["source"], r["_tarn"]["partition"], r["_tarn"]["offset"]) for r in lake.rows())
    wanted = sorted((one.name, one.partition, n) for one in readers for n in range(one.length))
    assert rows == wanted
    assert sum(n for kind, n in faults.counts.items() if kind != "fine") >= 5, faults.counts
    assert any(len(commit_ids(s["summary"])) > 1 for s in lake.table().ancestors())
    assert clean(lake) == []
    lake.history_is_a_chain()
