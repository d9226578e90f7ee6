"""Producers of rows over HTTP: what a table states of them after a commit, and which commits it refuses."""

from __future__ import annotations

import pytest

from tarn.core.offsets import OffsetMap
from tarn.core.outcome import AlreadyCommitted, Rejected
from tarn.core.producers import (
    LAST_COMMITS_MAX,
    WINDOW_DAYS,
    Advanced,
    Claim,
    ProducerBook,
    advance,
    next_sequence,
    source_of,
)
from tarn.core.quota import Quota, Used

UUID = "6f1c3a52-0000-0000-0000-000000000001"


def claim(producer: str, number: int, start: int, end: int) -> Claim:
    return Claim(producer=producer, number=number, start=start, end=end)


def committed(before: Advanced | None, *claims: Claim, day: int = 0, quota: Quota | None = None) -> Advanced:
    found = tried(before, *claims, day=day, quota=quota)
    assert isinstance(found, Advanced), found
    return found


def tried(
    before: Advanced | None, *claims: Claim, day: int = 0, quota: Quota | None = None
) -> Advanced | AlreadyCommitted | Rejected:
    book = before.book if before is not None else ProducerBook()
    offsets = before.offsets if before is not None else None
    return advance(book, offsets, claims, table_uuid=UUID, day=day, size=10, quota=quota)


def test_each_producer_goes_on_where_its_rows_end() -> None:
    first = committed(None, claim("a", 0, 0, 3), claim("b", 1, 0, 2))
    assert first.book.next_number == 2
    second = committed(first, claim("a", 0, 3, 5), claim("c", 2, 0, 1))
    ends = [next_sequence(second.book, second.offsets, name) for name in ("a", "b", "c", "d")]
    assert ends == [5, 2, 1, None]
    assert isinstance(tried(second, claim("a", 0, 3, 5)), AlreadyCommitted)
    assert isinstance(tried(second, claim("a", 0, 6, 7)), Rejected), "a gap"


def test_a_producer_that_the_table_does_not_know_begins_at_row_0() -> None:
    found = tried(None, claim("a", 0, 5, 6))
    assert isinstance(found, Rejected)
    assert "begins behind row 0" in found.reason
    known = committed(None, claim("a", 0, 0, 6))
    rolled_back = Advanced(book=known.book, offsets=OffsetMap(source=source_of(UUID), next={}))
    assert isinstance(tried(rolled_back, claim("a", 0, 6, 7)), Rejected), "its rows are gone"
    assert committed(rolled_back, claim("a", 0, 0, 1)).offsets.next == {0: 1}


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (claim("b", 0, 0, 1), "number 0 was given to another"),
        (claim("a", 1, 3, 4), "has number 0, not 1"),
    ],
)
def test_a_number_belongs_to_one_producer_for_ever(wrong: Claim, why: str) -> None:
    found = tried(committed(None, claim("a", 0, 0, 3)), wrong)
    assert isinstance(found, Rejected)
    assert why in found.reason


def test_a_producer_that_commits_nothing_for_a_week_is_forgotten_with_its_offset() -> None:
    begun = committed(None, claim("a", 0, 0, 3), claim("b", 1, 0, 1), day=10)
    last = committed(begun, claim("b", 1, 1, 2), day=10 + WINDOW_DAYS - 1)
    assert set(last.book.producers) == {"a", "b"}
    later = committed(last, claim("b", 1, 2, 3), day=10 + WINDOW_DAYS)
    assert set(later.book.producers) == {"b"}
    assert later.offsets.next == {1: 3}
    assert later.book.next_number == 2, "its number is not given again"
    assert isinstance(tried(later, claim("a", 2, 3, 4), day=10 + WINDOW_DAYS), Rejected)
    assert isinstance(tried(later, claim("a", 0, 0, 1), day=10 + WINDOW_DAYS), Rejected)
    again = committed(later, claim("a", 2, 0, 1), day=10 + WINDOW_DAYS)
    assert again.offsets.next == {1: 3, 2: 1}


def test_a_clock_that_goes_back_makes_nobody_idle() -> None:
    begun = committed(None, claim("a", 0, 0, 1), day=20)
    back = committed(begun, claim("a", 0, 1, 2), day=10)
    assert back.book.producers["a"].day == 20
    assert back.book.used == Used(day=20, rows=2, bytes=20)


def test_the_quota_counts_each_commit_of_the_day() -> None:
    quota = Quota(rows=5)
    first = committed(None, claim("a", 0, 0, 3), quota=quota)
    assert first.book.used == Used(day=0, rows=3, bytes=10)
    found = tried(first, claim("a", 0, 3, 6), quota=quota)
    assert isinstance(found, Rejected)
    assert "6 rows in one day" in found.reason
    assert committed(first, claim("a", 0, 3, 5), quota=quota).book.used.rows == 5, "as many as it allows"
    next_day = committed(first, claim("a", 0, 3, 8), day=1, quota=quota)
    assert next_day.book.used == Used(day=1, rows=5, bytes=10)


def test_two_claims_of_one_producer_are_a_mistake_of_the_caller() -> None:
    begun = committed(None, claim("a", 0, 0, 1))
    with pytest.raises(ValueError, match="at most one range per partition"):
        tried(begun, claim("a", 0, 1, 2), claim("a", 0, 2, 3))


def test_the_book_keeps_the_last_commit_of_the_gateways_that_committed_last() -> None:
    book = ProducerBook()
    assert "commits" not in book.to_json()
    for number in range(LAST_COMMITS_MAX + 2):
        book = book.with_commit(f"gateway:{number}", f"commit-{number}")
    book = book.with_commit("gateway:2", "commit-later")
    kept = [*range(3, LAST_COMMITS_MAX + 2)]
    wanted = {**{f"gateway:{n}": f"commit-{n}" for n in kept}, "gateway:2": "commit-later"}
    assert list(book.last_commits.items()) == list(wanted.items())
    assert ProducerBook.from_json(book.to_json()) == book
