"""Claims of a table's log: what is written is read, what is outdated goes, and nothing else is understood."""

from __future__ import annotations

import pytest

from tarn.core.errors import CorruptStateError
from tarn.core.log_claims import (
    FORGET_MAX,
    KEY_MS,
    MARKS_MAX,
    PRODUCER_MS,
    RECENT_MAX,
    Appended,
    Change,
    Fate,
    KeyClaim,
    LogBook,
    ProducerClaim,
    Run,
    runs_of,
)
from tarn.core.quota import Used
from tarn.core.spec.source import KafkaSource

NOW_MS = 1_800_000_000_000


def run(first: int, last: int, partition: int = 0) -> Run:
    return Run(partition=partition, first=first, last=last)


def change(**more: object) -> Change:
    return Change(**({"mark": "m1", "writer": "w1", "at_ms": NOW_MS} | more))  # type: ignore[arg-type]


def test_offsets_become_runs_where_they_are_consecutive() -> None:
    places = [(0, 5), (0, 6), (0, 8), (1, 9), (1, 10), (0, 9)]
    assert runs_of(places) == (run(5, 6), run(8, 8), run(9, 10, 1), run(9, 9))
    assert runs_of([]) == ()


def test_what_is_claimed_is_read_by_another_process() -> None:
    producer = ProducerClaim(end=0, at_ms=0).plus(
        Appended(start=0, end=3, fate=Fate(runs=(run(7, 8),), rejected=((1, 2),))), NOW_MS
    )
    key = KeyClaim(digest="d", at_ms=NOW_MS, fate=Fate.of([(1, 1), (0, 4)], range(0, 200, 2)))
    made = change(producers={"a/p": producer}, keys={"k": key}, used=Used(day=3, rows=4, bytes=5))
    own, other = LogBook("t"), LogBook("t")
    own.apply(made)
    other.read(made.records())
    for book in (own, other):
        assert book.producers == {"a/p": producer}
        assert book.keys == {"k": key}
        assert book.used == Used(day=3, rows=4, bytes=5)
        assert (book.mark("w1"), book.mark("w2")) == ("m1", None)
    assert producer.find(0, 3) == Fate(runs=(run(7, 8),), rejected=((1, 2),))
    assert producer.find(0, 2) is None
    assert (key.fate.runs, key.fate.rejected, key.fate.accepted) == ((run(1, 1, 1), run(4, 4)), None, 2)


def test_the_names_of_a_change_are_the_keys_of_its_records() -> None:
    fate = Fate.of([(0, 5)], [])
    claim = ProducerClaim(end=0, at_ms=0).plus(Appended(start=0, end=1, fate=fate), 5)
    keys = {"k": KeyClaim(digest="d", at_ms=1, fate=fate)}
    for used in (None, Used(day=1, rows=2, bytes=3)):
        change = Change(
            mark="m", writer="w", at_ms=1, producers={"p": claim}, keys=keys, used=used, forgotten=["old"]
        )
        assert change.names() == {key.decode() for key, value in change.records() if value is not None}
        assert len(change.names()) == 3 + (used is not None)


def test_a_producer_keeps_its_last_writes_only() -> None:
    claim = ProducerClaim(end=0, at_ms=0)
    for at in range(RECENT_MAX + 2):
        claim = claim.plus(Appended(start=at, end=at + 1, fate=Fate(runs=(run(at, at),))), NOW_MS - at)
    assert (claim.end, claim.at_ms) == (RECENT_MAX + 2, NOW_MS)
    assert [one.start for one in claim.recent] == list(range(2, RECENT_MAX + 2))


def test_outdated_claims_are_named_and_their_removal_is_read() -> None:
    old = NOW_MS - 1
    book = LogBook("t")
    book.apply(
        change(
            at_ms=0,
            producers={
                "old": ProducerClaim(end=1, at_ms=old - PRODUCER_MS),
                "young": ProducerClaim(end=1, at_ms=NOW_MS - PRODUCER_MS),
            },
            keys={
                "old": KeyClaim(digest="d", at_ms=old - KEY_MS, fate=Fate()),
                "young": KeyClaim(digest="d", at_ms=NOW_MS - KEY_MS, fate=Fate()),
            },
        )
    )
    found = book.outdated(NOW_MS)
    assert sorted(found) == ["k/old", "p/old"]
    other = LogBook("t")
    other.read(change(mark="m2", writer="w2", forgotten=found).records())
    book.apply(change(mark="m2", writer="w2", forgotten=found))
    assert (set(book.producers), set(book.keys), book.mark("w1")) == ({"young"}, {"young"}, "m1")
    many = {str(n): KeyClaim(digest="d", at_ms=0, fate=Fate()) for n in range(FORGET_MAX + 1)}
    book = LogBook("t")
    book.apply(change(keys=many))
    book.apply(change(keys={"0": KeyClaim(digest="d", at_ms=NOW_MS, fate=Fate())}))
    assert "k/0" not in book.outdated(NOW_MS)
    assert len(book.outdated(NOW_MS)) == FORGET_MAX


def dated(at_ms: int) -> KeyClaim:
    return KeyClaim(digest="d", at_ms=at_ms, fate=Fate())


def test_keys_from_a_clock_that_was_ahead_keep_no_other_ones() -> None:
    book = LogBook("t")
    hour_ms = 3_600_000
    keys = {
        "old": dated(NOW_MS - KEY_MS - 1),
        "ahead": dated(NOW_MS + 100 * hour_ms),
        "older": dated(NOW_MS - KEY_MS - 2),
        "a little ahead": dated(NOW_MS + KEY_MS),
        "not yet": dated(NOW_MS - KEY_MS - 3),
    }
    book.apply(change(keys=keys))
    assert book.outdated(NOW_MS) == ["k/old", "k/older"]
    assert book.freed(NOW_MS)[0] == {"old", "older"}
    book.apply(change(forgotten=["k/old", "k/older"]))
    assert book.outdated(NOW_MS + KEY_MS) == []
    assert book.outdated(NOW_MS + 2 * KEY_MS + 1) == ["k/a little ahead", "k/not yet", "k/ahead"]


def test_keys_are_known_for_their_window_after_a_clock_was_set_back() -> None:
    """Two hours back: they are from the future, and no older than their window."""
    book, back_ms = LogBook("t"), NOW_MS - 7_200_000
    book.apply(change(keys={str(n): dated(NOW_MS - KEY_MS + n) for n in range(2 * FORGET_MAX)}))
    assert book.outdated(back_ms) == []
    book.apply(change(keys={"later": dated(back_ms + 1)}))
    assert book.outdated(back_ms + KEY_MS) == []
    assert len(book.keys) == 2 * FORGET_MAX + 1
    forgotten = 0
    while found := book.outdated(back_ms + KEY_MS + 1):
        book.apply(change(forgotten=found))
        forgotten += len(found)
        assert forgotten <= 2 * FORGET_MAX, "what was forgotten is outdated still"
    assert (forgotten, set(book.keys)) == (2 * FORGET_MAX, {"later"})


def test_the_marks_of_the_processes_that_wrote_last_are_kept_whatever_their_clocks_say() -> None:
    book, other = LogBook("t"), LogBook("t")
    order = [*range(MARKS_MAX), 0, MARKS_MAX]
    for number in order:
        written = change(mark=f"m{number}", writer=f"w{number}", at_ms=NOW_MS - number)
        book.apply(written)
        other.read(written.records())
    assert book.outdated(2 * NOW_MS) == other.outdated(0) == ["m/w1"]
    book.apply(change(mark="last", writer="w0", forgotten=["m/w1"]))
    assert [book.mark(f"w{number}") for number in (0, 1, 2)] == ["last", None, "m2"]
    assert book.outdated(2 * NOW_MS) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"x/1", b'{"v":1,"is":[]}'),
        (b"k/1", b"{"),
        (b"k/1", b'{"v":2,"is":["d",1,[]]}'),
        (b"p/1", b'{"v":1,"is":[1]}'),
        (b"k/1", b'{"v":1,"is":["d",1,[[],[1]]]}'),
        (b"u", None),
        (b"\xff", b"{}"),
    ],
)
def test_a_record_of_another_hand_is_named(key: bytes, value: bytes | None) -> None:
    with pytest.raises(CorruptStateError, match="topic t: the record with the key"):
        LogBook("t").read([(key, value)])


def test_no_pattern_of_a_spec_matches_topics_of_the_gateway() -> None:
    found = KafkaSource(topicPattern=".*")
    assert [found.matches(name) for name in ("tarn.log.x", "tarn.log.claims.x", "tarn.logs")] == [
        False,
        False,
        True,
    ]
