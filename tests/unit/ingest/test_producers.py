"""Producers of rows over HTTP: what a table states of them after a commit, and which commits it refuses."""

from __future__ import annotations

import random

import pytest

from tarn.core.offsets import OffsetMap
from tarn.core.outcome import AlreadyCommitted, Rejected
from tarn.core.producers import (
    LAST_COMMITS_MAX,
    WINDOW_DAYS,
    Advanced,
    Claim,
    Producer,
    ProducerBook,
    Slot,
    advance,
    next_sequence,
    source_of,
)
from tarn.core.quota import Quota, Used
from tests.support.plays import seeds

UUID = "6f1c3a52-0000-0000-0000-000000000001"


def claim(producer: str, number: int, start: int, end: int, first: int = 0) -> Claim:
    return Claim(producer=producer, slot=Slot(number=number, first=first), start=start, end=end)


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
def test_a_number_belongs_to_one_producer_as_long_as_the_table_knows_it(wrong: Claim, why: str) -> None:
    found = tried(committed(None, claim("a", 0, 0, 3)), wrong)
    assert isinstance(found, Rejected)
    assert why in found.reason


def forgotten() -> Advanced:
    """Of two producers the first, number 0 with three rows, is forgotten."""
    begun = committed(None, claim("a", 0, 0, 3), claim("b", 1, 0, 1), day=10)
    last = committed(begun, claim("b", 1, 1, 2), day=10 + WINDOW_DAYS - 1)
    assert set(last.book.producers) == {"a", "b"}
    found = committed(last, claim("b", 1, 2, 3), day=10 + WINDOW_DAYS)
    assert set(found.book.producers) == {"b"}
    return found


def test_a_producer_that_commits_nothing_for_a_week_is_forgotten_and_its_number_keeps_its_offset() -> None:
    later = forgotten()
    assert later.offsets.next == {0: 3, 1: 3}
    assert isinstance(tried(later, claim("a", 2, 3, 4), day=10 + WINDOW_DAYS), Rejected)
    assert isinstance(tried(later, claim("a", 0, 3, 4), day=10 + WINDOW_DAYS), Rejected)


def test_the_number_of_a_forgotten_producer_goes_on_with_the_next_new_one() -> None:
    before = forgotten()
    ends = before.offsets.next
    assert before.book.new_slot(ends, ()) == Slot(number=0, first=3)
    assert before.book.new_slot(ends, (0,)) == Slot(number=2), "another new one has it"
    after = committed(before, claim("c", 0, 0, 2, first=3), claim("d", 2, 0, 1), day=20)
    assert after.offsets.next == {0: 5, 1: 3, 2: 1}
    assert after.book.next_number == 3
    assert ProducerBook.from_json(after.book.to_json()) == after.book
    assert next_sequence(after.book, after.offsets, "c") == 2
    assert isinstance(tried(after, claim("c", 0, 0, 2, first=3), day=20), AlreadyCommitted)
    assert committed(after, claim("c", 0, 2, 3, first=3), day=20).offsets.next[0] == 6


@pytest.mark.parametrize(
    ("late", "why"),
    [
        (claim("a", 0, 3, 4), "number 0 was given to another"),
        (claim("e", 0, 0, 1, first=3), "number 0 was given to another"),
        (claim("c", 0, 2, 3), "its row 0 has offset 3, not 0"),
        (claim("e", 1, 0, 1, first=2), "its row 0 has offset 3, not 2"),
        (claim("e", 1, 1, 2, first=3), "begins behind row 0"),
    ],
)
def test_a_claim_that_was_planned_before_a_number_went_on_does_not_fit(late: Claim, why: str) -> None:
    after = committed(forgotten(), claim("c", 0, 0, 2, first=3), day=20 + WINDOW_DAYS)
    assert set(after.book.producers) == {"c"}, "and nobody has number 1"
    found = tried(after, late, day=20)
    assert isinstance(found, Rejected)
    assert why in found.reason


@pytest.mark.parametrize("end", [4, 3, 1, None])
def test_a_producer_whose_rows_were_rolled_back_with_those_before_it_writes_no_more(end: int | None) -> None:
    after = committed(forgotten(), claim("c", 0, 0, 2, first=3), day=20)
    ends = {0: end, 1: 3} if end is not None else {1: 3}
    back = Advanced(book=after.book, offsets=OffsetMap(source=source_of(UUID), next=ends))
    assert back.book.slot_of("c", ends) == Slot(number=0, first=3)
    start = max(0, (end or 0) - 3)
    assert (next_sequence(back.book, back.offsets, "c") or 0) == start
    assert isinstance(tried(back, claim("c", 0, 2, 3, first=3), day=20), Rejected)
    gone = (end or 0) < 3
    assert back.book.rolled_back("c", ends) == gone
    if gone:
        for first in (3, end or 0):
            found = tried(back, claim("c", 0, 0, 9, first=first), day=20)
            assert isinstance(found, Rejected)
            assert "rolled back" in found.reason
        return
    again = committed(back, claim("c", 0, start, 9, first=3), day=20)
    assert again.offsets.next == {0: 12, 1: 3}


def test_a_gateways_own_id_whose_rows_were_rolled_back_begins_where_its_number_ends() -> None:
    after = committed(forgotten(), claim("gateway:c", 0, 0, 2, first=3), day=20)
    ends = {0: 1, 1: 3}
    back = Advanced(book=after.book, offsets=OffsetMap(source=source_of(UUID), next=ends))
    assert not back.book.rolled_back("gateway:c", ends)
    assert back.book.slot_of("gateway:c", ends) == Slot(number=0, first=1)
    again = committed(back, claim("gateway:c", 0, 0, 9, first=1), day=20)
    assert again.offsets.next == {0: 10, 1: 3}
    assert again.book.producers["gateway:c"].first == 1


def test_a_number_whose_offset_was_lost_is_never_given_again() -> None:
    """Earlier versions dropped the offset with the producer; its rows may be in the table."""
    text = '{"v":2,"next":2,"producers":{"b":[1,20,4,0,1]},"used":[0,0,0]}'
    book = ProducerBook.from_json(text)
    assert book.producers["b"] == Producer(number=1, day=20, judged=4, rejected=((4, 5),))
    old = Advanced(book=book, offsets=OffsetMap(source=source_of(UUID), next={1: 6}))
    assert book.new_slot(old.offsets.next, ()) == Slot(number=2)
    assert isinstance(tried(old, claim("c", 0, 0, 1), day=20), Rejected)
    assert committed(old, claim("c", 2, 0, 1), claim("b", 1, 6, 7), day=20).offsets.next == {1: 7, 2: 1}


def test_a_book_is_readable_for_the_release_before_while_each_producer_begins_at_offset_0() -> None:
    known = {
        "a": Producer(number=0, day=20),
        "b": Producer(number=1, day=20, judged=4, rejected=((4, 5),)),
        "c": Producer(number=2, day=20, rejected=((0, 2),)),
    }
    plain = ProducerBook(next_number=4, producers=known)
    assert plain.to_json() == (
        '{"v":2,"next":4,"producers":{"a":[0,20],"b":[1,20,4,0,1],"c":[2,20,0,0,2]},"used":[0,0,0]}'
    )
    behind = ProducerBook(next_number=4, producers={**known, "d": Producer(number=3, day=20, first=9)})
    assert behind.to_json() == (
        '{"v":3,"next":4,"producers":{"a":[0,20],"b":[1,20,0,4,0,1],"c":[2,20,0,0,0,2],"d":[3,20,9,0]},'
        '"used":[0,0,0]}'
    )
    assert '"v":2' in plain.to_json([0, 1, 2])
    assert '"v":3' in plain.to_json([0, 1, 2, 3]), "the release before would drop the offset of number 3"
    assert ProducerBook.from_json(plain.to_json([3])) == plain
    for book in (plain, behind):
        assert ProducerBook.from_json(book.to_json()) == book


def test_rows_are_perhaps_in_the_table_if_it_passed_them_and_knows_no_producer_that_did() -> None:
    before = forgotten()
    rows = claim("e", 0, 0, 2, first=3)
    assert not before.book.may_have_had(rows, before.offsets.next), "nobody wrote there"
    other = committed(before, claim("c", 0, 0, 2, first=3), day=30)
    assert not other.book.may_have_had(rows, other.offsets.next), "another wrote just there"
    since = committed(other, claim("d", 1, 0, 1, first=3), day=30 + WINDOW_DAYS)
    assert since.book.may_have_had(rows, since.offsets.next)
    again = committed(since, claim("f", 0, 0, 1, first=5), day=30 + WINDOW_DAYS)
    assert again.book.may_have_had(rows, again.offsets.next)
    known = committed(before, rows, day=20)
    assert not known.book.may_have_had(rows, known.offsets.next), "it knows the producer"


@pytest.mark.plays
@pytest.mark.parametrize("seed", seeds(20))
def test_each_offset_of_a_number_is_one_row_whoever_comes_and_is_forgotten(seed: int) -> None:
    """Producers come, go on and are forgotten; the map grows with those known at one time only."""
    chance = random.Random(seed)
    now: Advanced | None = None
    day = most = 0
    rows: dict[int, list[tuple[str, int]]] = {}
    for turn in range(200):
        day += chance.choice((0, 0, 1, 3, WINDOW_DAYS + 1))
        known = list(now.book.producers) if now is not None else []
        names = {chance.choice([f"new-{turn}", f"more-{turn}", *known]) for _ in range(3)}
        book, ends = (now.book, now.offsets.next) if now is not None else (ProducerBook(), {})
        claims: list[Claim] = []
        for name in sorted(names):
            slot = book.slot_of(name, ends) or book.new_slot(ends, [one.slot.number for one in claims])
            start = next_sequence(book, now.offsets if now is not None else None, name) or 0
            claims.append(Claim(producer=name, slot=slot, start=start, end=start + chance.randint(1, 4)))
            offsets = rows.setdefault(slot.number, [])
            assert len(offsets) == slot.first + start, "no gap, no overlap"
            offsets += [(name, row) for row in range(start, claims[-1].end)]
        most = max(most, len({*known, *names}))
        now = committed(now, *claims, day=day)
        assert dict(now.offsets.next) == {number: len(offsets) for number, offsets in sorted(rows.items())}
        assert ProducerBook.from_json(now.book.to_json()) == now.book
    assert len(rows) <= most


def test_a_clock_that_goes_back_makes_nobody_idle() -> None:
    begun = committed(None, claim("a", 0, 0, 1), day=20)
    back = committed(begun, claim("a", 0, 1, 2), day=10)
    assert back.book.producers["a"].day == 20
    assert back.book.used == Used(day=10, rows=1, bytes=10)


@pytest.mark.parametrize(
    ("counted", "today", "used"),
    [
        (20, 20, Used(day=20, rows=3, bytes=9)),
        (20, 21, Used(day=21, rows=1, bytes=2)),
        # Of a gateway whose clock is past midnight already.
        (21, 20, Used(day=21, rows=3, bytes=9)),
        # Of one whose clock was days ahead: it would be the count of all days until then.
        (22, 20, Used(day=20, rows=1, bytes=2)),
        (50, 20, Used(day=20, rows=1, bytes=2)),
    ],
)
def test_a_day_is_counted_by_clocks_that_are_less_than_two_days_apart(
    counted: int, today: int, used: Used
) -> None:
    assert Used(day=counted, rows=2, bytes=7).plus(today, 1, 2) == used


@pytest.mark.parametrize(("written", "now", "kept"), [(20, 26, True), (20, 27, False), (19, 26, False)])
def test_what_clocks_are_off_by_is_taken_from_the_week_of_a_producer(
    written: int, now: int, kept: bool
) -> None:
    """As docs/gateway.md states it; on the right days, 20 and 26, the producer is known."""
    begun = committed(None, claim("a", 0, 0, 1), day=written)
    after = committed(begun, claim("b", 1, 0, 1), day=now)
    assert ("a" in after.book.producers) == kept
    assert "b" in after.book.producers, "with rows in the commit"
    assert isinstance(tried(after, claim("a", 0, 0, 1), day=now), AlreadyCommitted if kept else Rejected)


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
