"""What a table keeps of producers: which of their rows it did not take, and how little of both."""

from __future__ import annotations

import random

import pytest

from tarn.core.errors import CorruptStateError
from tarn.core.producers import (
    BOOK_RUNS_MAX,
    OWN_MAX,
    OWN_PREFIX,
    Claim,
    ProducerBook,
    Slot,
)
from tarn.core.rejected_rows import RUNS_MAX, Runs, clipped, from_gaps, numbers_in, runs_of, to_gaps
from tests.support.plays import seeds


def claim(start: int, end: int, *rejected: int, producer: str = "c/p", number: int = 0) -> Claim:
    return Claim(
        producer=producer, slot=Slot(number=number), start=start, end=end, rejected=runs_of(rejected)
    )


def after(book: ProducerBook, *claims: Claim, day: int = 1) -> ProducerBook:
    found = book.claimed(claims, {}, day)
    assert isinstance(found, ProducerBook)
    kept = found.without_idle(day).with_few_runs()
    assert ProducerBook.from_json(kept.to_json()) == kept
    assert list(ProducerBook.from_json(kept.to_json()).producers) == list(kept.producers)
    return kept


def test_runs_are_short_in_json_and_the_same_again() -> None:
    runs = runs_of([3, 4, 5, 9, 100])
    assert runs == ((3, 6), (9, 10), (100, 101))
    assert to_gaps(runs, 3) == [0, 3, 3, 1, 90, 1]
    assert from_gaps(to_gaps(runs, 3), 3) == runs
    assert numbers_in(runs) == [3, 4, 5, 9, 100]
    assert clipped(runs, 4, 10) == ((4, 6), (9, 10))


@pytest.mark.parametrize("gaps", [[1], [1, 0], [-1, 2], [True, 1], ["a", 1]])
def test_gaps_that_are_none_are_damage(gaps: list[object]) -> None:
    with pytest.raises(ValueError, match="no runs"):
        from_gaps(gaps)
    text = ProducerBook(next_number=1, producers={}).to_json()
    with pytest.raises(CorruptStateError):
        ProducerBook.from_json(
            text.replace("{}", f'{{"p":[0,1,0,{str(gaps)[1:-1].replace(chr(39), chr(34))}]}}')
        )


def test_rows_that_were_rejected_are_known_by_their_numbers() -> None:
    book = after(after(ProducerBook(), claim(0, 10, 2, 3)), claim(10, 12, 10))
    assert book.rejected_of("c/p", 0, 10) == ((2, 4),)
    assert book.rejected_of("c/p", 3, 12) == ((3, 4), (10, 11))
    assert book.rejected_of("c/p", 4, 10) == ()
    assert book.rejected_of("c/other", 0, 1) is None


def test_rows_that_come_again_after_a_rollback_are_judged_again() -> None:
    book = after(after(ProducerBook(), claim(0, 10, 2, 7)), claim(5, 8, 6))
    assert book.rejected_of("c/p", 0, 8) == ((2, 3), (6, 7))


def test_of_producers_from_before_nothing_is_known_but_of_their_next_rows() -> None:
    old = ProducerBook.from_json('{"v":1,"next":1,"producers":{"c/p":[0,1]},"used":[0,0,0]}')
    assert old.rejected_of("c/p", 0, 5) is None
    new = after(old, claim(5, 8, 6))
    assert new.rejected_of("c/p", 4, 8) is None
    assert new.rejected_of("c/p", 5, 8) == ((6, 7),)


def test_the_oldest_runs_go_first_and_what_they_said_is_unknown() -> None:
    book = after(ProducerBook(), claim(0, 1_000, *range(0, 1_000, 2)))
    first = 1_000 - 2 * RUNS_MAX
    assert book.rejected_of("c/p", first, 1_000) == runs_of(range(first, 1_000, 2))
    assert book.rejected_of("c/p", first - 2, 1_000) is None


def test_a_book_of_many_producers_with_bad_rows_stays_small() -> None:
    book = ProducerBook()
    for number in range(200):
        book = after(book, claim(0, 200, *range(0, 200, 2), producer=f"c/{number}", number=number))
    assert sum(len(one.rejected) for one in book.producers.values()) <= BOOK_RUNS_MAX
    assert len(book.to_json()) < 16_000
    assert book.rejected_of("c/199", 198, 200) == ((198, 199),)


def test_the_last_gateways_alone_are_kept_and_clients_all() -> None:
    book = after(ProducerBook(), claim(0, 1), claim(0, 1, producer=f"{OWN_PREFIX}lasting", number=1))
    for number in range(2, OWN_MAX + 50):
        book = after(
            book,
            claim(0, 1, producer=f"{OWN_PREFIX}{number}", number=number),
            claim(number - 1, number, producer=f"{OWN_PREFIX}lasting", number=1),
        )
    assert len(book.producers) == OWN_MAX + 1
    assert book.clients == 1
    assert f"{OWN_PREFIX}lasting" in book.producers
    assert f"{OWN_PREFIX}2" not in book.producers
    forged = claim(0, 1, producer=f"{OWN_PREFIX}x/p", number=book.next_number)
    assert after(book, forged).clients == 2, "a client id with such a beginning is a client all the same"


@pytest.mark.plays
@pytest.mark.parametrize("seed", seeds(20))
def test_what_is_said_of_rows_is_what_happened_to_them(seed: int) -> None:
    """Rows come, are rolled back and come again; whatever is answered is true, and the newest is known."""
    chance = random.Random(seed)
    book = after(ProducerBook(), *(claim(0, 1, producer=f"c/{at}", number=at) for at in range(2)))
    truth = {at: [False] for at in range(2)}
    for _ in range(60):
        at = chance.randrange(2)
        if chance.random() < 0.2:
            del truth[at][chance.randrange(len(truth[at]) + 1) :]
        start = len(truth[at])
        truth[at] += [chance.random() < 0.3 for _ in range(chance.randint(1, 40))]
        bad = [n for n in range(start, len(truth[at])) if truth[at][n]]
        book = after(book, claim(start, len(truth[at]), *bad, producer=f"c/{at}", number=at))
        first = chance.randrange(len(truth[at]))
        end = chance.randint(first + 1, len(truth[at]))
        found: Runs | None = book.rejected_of(f"c/{at}", first, end)
        if found is not None:
            assert numbers_in(found) == [n for n in range(first, end) if truth[at][n]]
        if len(runs_of(bad)) <= RUNS_MAX:
            assert book.rejected_of(f"c/{at}", start, len(truth[at])) == runs_of(bad)
