"""The ring of commits: what it holds, what it forgets, and what a reader of it is told."""

from __future__ import annotations

import pytest

from tarn.ingest.commit_ring import CommitKind, CommitOutcome, CommitRing, CommitSeen

START_MS = 1_700_000_000_000


def seen(name: str, at_ms: int) -> CommitSeen:
    return CommitSeen(
        at_ms=at_ms,
        ingestor="orders",
        reader="orders",
        table="a.b",
        kind=CommitKind.BATCH,
        outcome=CommitOutcome.COMMITTED,
        commit_id=name,
        snapshot_id=1,
        attempts=1,
        took_ms=1.0,
    )


def ring(*at_ms: int, count_max: int = 1_000) -> CommitRing:
    made = CommitRing(since_ms=START_MS, count_max=count_max)
    for number, one in enumerate(at_ms):
        made.add(seen(f"c{number}", START_MS + one))
    return made


def ids(page: object) -> list[str]:
    return [one.commit_id for one in page.commits]  # type: ignore[attr-defined]


def test_commits_are_read_in_order_and_each_once() -> None:
    made = ring(5, 5, 5, 9, 20)
    assert ids(made.last(2)) == ["c3", "c4"]
    assert ids(made.last(100)) == ["c0", "c1", "c2", "c3", "c4"]
    read, at = [], START_MS * 1_000
    while page := made.after(at, 2):
        if not page.commits:
            break
        assert not page.missed
        read += ids(page)
        at = page.next
    assert read == ["c0", "c1", "c2", "c3", "c4"], "also those of one millisecond"
    assert (made.after(at, 2).next, made.last(1).next) == (at, at)
    made.add(seen("c5", START_MS + 20))
    assert ids(made.after(at, 2)) == ["c5"]


def test_a_number_is_the_time_of_the_commit_or_one_more_than_the_last() -> None:
    numbers = [one.number - START_MS * 1_000 for one in ring(5, 5, 9, 3, 10).last(9).commits]
    assert numbers == [5_000, 5_001, 9_000, 9_001, 10_000], "it grows also if the clock is set back"


def test_what_is_forgotten_is_said_to_be_missed() -> None:
    made = ring(1, 2, 3, 4, 5, count_max=3)
    first, *_ = made.last(9).commits
    assert ids(made.last(9)) == ["c2", "c3", "c4"]
    assert made.after(START_MS * 1_000, 9).missed
    assert made.after(first.number - 1_001, 9).missed, "c1 is not held any more"
    assert not made.after(first.number - 1_000, 9).missed, "that is the number of c1"
    assert ids(made.after(first.number - 1_001, 9)) == ["c2", "c3", "c4"]


@pytest.mark.parametrize("before", [0, START_MS * 1_000 - 1])
def test_commits_of_an_earlier_process_are_missed(before: int) -> None:
    assert ring(1).after(before, 9).missed
    assert ring().after(before, 9).missed
    assert not ring().after(START_MS * 1_000, 9).missed
    assert not ring().last(9).missed
    assert ring().last(9).next == START_MS * 1_000, "whoever goes on from here misses nothing"


def test_a_number_of_a_clock_that_was_ahead_does_not_end_the_reading() -> None:
    made = ring(1, 2)
    page = made.after(START_MS * 1_000 + 10**12, 9)
    assert (ids(page), page.missed) == (["c0", "c1"], True)
    assert not made.after(page.next, 9).missed
    assert ring().after(START_MS * 1_000 + 1, 9).next == START_MS * 1_000
