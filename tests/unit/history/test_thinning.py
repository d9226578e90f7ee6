"""Snapshot history gets sparser with age: the ladder, required snapshots, odd clocks, uncertain commits."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest

from tarn.core.history import READER_SNAPSHOTS_MAX, Retention, Step, may_be_thinned, snapshots_to_expire, step
from tests.support.plays import seeds

START_MS = 1_795_000_000_000
DAY_MS = 86_400_000
Json = dict[str, Any]


def snapshot(number: int, at_ms: int, parent: int | None = None, **summary: str) -> Json:
    return {
        "snapshot-id": number,
        "parent-snapshot-id": number - 1 if parent is None else parent,
        "sequence-number": number,
        "timestamp-ms": at_ms,
        "summary": {"operation": "append", **summary},
    }


def meta(snapshots: list[Json], **refs: Json) -> Json:
    refs.setdefault("main", {"snapshot-id": snapshots[-1]["snapshot-id"], "type": "branch"})
    return {"snapshots": snapshots, "refs": refs, "last-sequence-number": snapshots[-1]["sequence-number"]}


def grown(
    count: int, every_ms: int, *, retention: Retention | None = None, clock: Any = None, first: int = 1
) -> tuple[list[Json], int]:
    """The snapshots kept after `count` commits, and the largest number kept at once."""
    rule = retention or Retention()
    kept: list[Json] = []
    most = 0
    for number in [*range(1, first, 10), *range(first, count + 1)]:
        now_ms = START_MS + number * every_ms
        kept = [*kept, snapshot(number, clock(now_ms) if clock else now_ms)]
        gone = set(snapshots_to_expire(meta(kept), rule, now_ms=now_ms, keep=frozenset({number})))
        kept = [s for s in kept if s["snapshot-id"] not in gone]
        most = max(most, len(kept))
    return kept, most


@pytest.mark.long
def test_a_commit_a_second_for_a_day_and_an_hour_keeps_a_ladder() -> None:
    count = 26 * 3_600
    # The first day in steps of ten seconds to save time: only hourly snapshots of it are left.
    kept, most = grown(count, 1_000, first=count - 2 * 3_600)
    assert most <= Retention().count_max == 96
    ages_s = [count - s["snapshot-id"] for s in kept]
    assert ages_s[-40:] == list(range(39, -1, -1)), "the newest, without a gap"
    half_minutes = [age for age in ages_s if 40 <= age < 900]
    assert 27 <= len(half_minutes) <= 30
    assert all(a - b == 30 for a, b in pairwise(half_minutes))
    hours = [age for age in ages_s if age >= 900]
    assert 23 <= len(hours) <= 25
    assert all(3_590 <= a - b <= 3_610 for a, b in pairwise(hours))
    assert max(ages_s) > 22 * 3_600


@pytest.mark.long
@pytest.mark.parametrize("every_ms", [20, 100, 10_000, 30_000, 600_000, 7_200_000, DAY_MS])
def test_whatever_the_pace_eighty_to_a_hundred_stay(every_ms: int) -> None:
    kept, most = grown(3_000, every_ms)
    assert 80 <= len(kept) <= most <= Retention().count_max
    newest = [s["snapshot-id"] for s in kept[-40:]]
    assert newest == list(range(2_961, 3_001))


def test_few_commits_keep_everything() -> None:
    assert len(grown(80, DAY_MS)[0]) == 80
    assert [s["snapshot-id"] for s in grown(81, DAY_MS)[0]][:2] == [2, 3], "the oldest goes first"


@pytest.mark.long
@pytest.mark.plays
@pytest.mark.parametrize("seed", seeds(20))
def test_clocks_of_any_kind_neither_fill_the_history_nor_touch_the_newest(seed: int) -> None:
    chance = random.Random(seed)

    def clock(now_ms: int) -> int:
        return now_ms + chance.choice([0, 0, 0, -3_600_000, 3_600_000, 30 * DAY_MS, -400 * DAY_MS])

    kept, most = grown(3_000, 1_000, clock=clock)
    assert most <= Retention().count_max
    assert [s["snapshot-id"] for s in kept[-40:]] == list(range(2_961, 3_001))


def test_what_refs_branches_and_audits_need_stays() -> None:
    old = [snapshot(n, START_MS + n, staged="x") for n in range(1, 13)]
    old[6]["summary"]["wap.id"] = "audit-7"
    given = meta(
        old,
        nightly={"snapshot-id": 2, "type": "tag"},
        audit={"snapshot-id": 4, "type": "branch"},
    )
    rule = Retention(newest=2, steps=(), total_min=0)
    gone = snapshots_to_expire(given, rule, now_ms=START_MS + DAY_MS, keep=frozenset({6}))
    assert gone == [5, 8, 9, 10], "tag, branch with its ancestors, staged, kept, and the two newest stay"


def test_branches_whose_ancestry_is_a_circle_end_where_they_begin_again() -> None:
    snapshots = [snapshot(1, 1, parent=3), snapshot(2, 2, parent=1), *(snapshot(n, n) for n in range(3, 7))]
    refs = {name: {"snapshot-id": at, "type": "branch"} for name, at in (("one", 3), ("two", 2))}
    found = meta(snapshots, **refs)
    rule = Retention(newest=1, steps=(), total_min=1)
    assert snapshots_to_expire(found, rule, now_ms=7) == [4, 5], "a circle is what one branch needs"


def test_beyond_a_gap_snapshots_still_age() -> None:
    kept = [
        snapshot(1, START_MS),
        snapshot(50, START_MS + 1),
        *(snapshot(n, START_MS + n) for n in range(90, 95)),
    ]
    rule = Retention(newest=3, steps=(step(1_000, 10_000),), total_min=0)
    assert snapshots_to_expire(meta(kept), rule, now_ms=START_MS + 5_000) == [50, 90, 91]
    assert snapshots_to_expire(meta(kept), rule, now_ms=START_MS + 50_000) == [1, 50, 90, 91]


def test_one_commit_removes_a_bounded_number_and_leaves_the_least() -> None:
    many = [snapshot(n, START_MS + n) for n in range(1, 51)]
    rule = Retention(newest=5, steps=(), total_min=45, removed_max=7)
    assert snapshots_to_expire(meta(many), rule, now_ms=START_MS) == [1, 2, 3, 4, 5]
    assert snapshots_to_expire(meta(many), rule, now_ms=START_MS, coming=9) == [1, 2, 3, 4, 5, 6, 7]


def test_a_step_without_spans_keeps_all_up_to_its_count() -> None:
    many = [snapshot(n, START_MS + n) for n in range(1, 31)]
    rule = Retention(newest=5, steps=(Step(every_ms=1, until_ms=DAY_MS, count_max=15),), total_min=5)
    assert snapshots_to_expire(meta(many), rule, now_ms=START_MS + 40) == list(range(1, 11))


def test_a_commit_that_may_have_been_thinned_is_told_from_one_that_was_not() -> None:
    history = [snapshot(n, START_MS + n * 1_000) for n in (10, 50, 51, 90)]
    given = meta(history)
    assert may_be_thinned(given, snapshot(20, START_MS + 20_000)), "its place is gone"
    assert not may_be_thinned(given, snapshot(51, START_MS + 51_000)), "another one has its number"
    assert not may_be_thinned(given, snapshot(91, START_MS + 91_000)), "its turn has not come"
    late = snapshot(20, START_MS + 300_000)
    assert not may_be_thinned(given, late), "what came after it was there before it was made"
    assert not may_be_thinned(given, {"snapshot-id": 1, "timestamp-ms": 5}), "format 1 has no numbers"


def run_beside(tags: dict[str, int], count: int, *, known: int = 1) -> list[int]:
    """Ids kept after `count` commits of one second each, if these readers never move on."""
    kept: list[Json] = []
    for number in range(known, count + 1):
        now_ms = START_MS + number * 1_000
        kept = [*kept, snapshot(number, now_ms)]
        refs = {name: {"snapshot-id": at, "type": "tag"} for name, at in tags.items() if at <= number}
        gone = set(snapshots_to_expire(meta(kept, **refs), Retention(), now_ms=now_ms))
        kept = [s for s in kept if s["snapshot-id"] not in gone]
    return [s["snapshot-id"] for s in kept]


def test_nothing_after_a_readers_tag_goes_and_before_it_everything_as_usual() -> None:
    kept = run_beside({"tarn-reader-mine": 300, "tarn-reader-later": 400, "tarn-offsets-x": 100}, 600)
    assert [n for n in kept if n >= 300] == list(range(300, 601))
    assert 1 <= len([n for n in kept if n < 300]) <= 30
    assert 100 in kept


def test_without_such_a_tag_history_does_not_wait() -> None:
    assert len(run_beside({"mine": 300, "tarn-reader": 310}, 600)) <= Retention().count_max + 2


@pytest.mark.long
def test_a_reader_too_far_behind_holds_nothing_and_does_not_take_others_along() -> None:
    both = run_beside({"tarn-reader-dead": 100, "tarn-reader-alive": 1_000}, 1_150)
    assert [n for n in both if n >= 1_000] == list(range(1_000, 1_151))
    assert len([n for n in both if n < 1_000]) <= 40
    assert 100 in both, "its tag still names a snapshot"
    metadata_max = run_beside({"tarn-reader-dead": 100}, 1_090)
    assert len(metadata_max) <= READER_SNAPSHOTS_MAX + Retention().count_max
