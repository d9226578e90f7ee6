"""Offsets as bitmaps: ranges, counts, and what an account concludes from them."""

from __future__ import annotations

from array import array
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from tarn.core.audit.accounts import (
    LEVELS_MAX,
    OFFSETS_MAX,
    Account,
    Tally,
    accounts_of,
    between,
    bitmap,
    judge_account,
    ranges,
    shown,
)
from tarn.core.audit.model import Kind
from tarn.core.errors import InvalidError
from tarn.core.offsets import OffsetMap, TopicIdentity

FAR = 2**62
OFFSETS = st.sets(st.integers(0, 40) | st.integers(FAR, FAR + 5))


def source(topic_id: str = "t") -> TopicIdentity:
    return TopicIdentity(cluster="c", topic="orders", topic_id=topic_id)


def tally(*groups: set[int]) -> Tally:
    found = Tally()
    for group in groups:
        found.add(BitMap64(group))
    return found


@given(OFFSETS)
def test_ranges_are_the_offsets_and_neighbours_do_not_touch(offsets: set[int]) -> None:
    found = list(ranges(BitMap64(offsets)))
    assert {offset for start, end in found for offset in range(start, end)} == offsets
    assert all(end < start for (_, end), (start, _) in pairwise(found))


@pytest.mark.long
@given(st.lists(OFFSETS, max_size=LEVELS_MAX))
def test_a_tally_counts_as_a_counter_does(groups: list[set[int]]) -> None:
    counted = Counter(offset for group in groups for offset in group)
    found = tally(*groups)
    assert found.rows == counted.total()
    for times in range(1, LEVELS_MAX + 2):
        assert set(found.at_least(times)) == {o for o, n in counted.items() if n >= times}
    twice = Tally()
    twice.merge(found)
    assert [set(level) for level in twice.levels] == [set(level) for level in found.levels]
    assert twice.rows == found.rows


def test_a_tally_keeps_its_own_copy_and_has_a_limit() -> None:
    offsets = BitMap64([1])
    found = Tally()
    for _ in range(LEVELS_MAX + 3):
        found.add(offsets)
    offsets.add(2)
    assert (len(found.levels), found.rows, set(found.at_least(1))) == (LEVELS_MAX, LEVELS_MAX + 3, {1})


def test_offsets_come_from_bytes_and_are_shown_by_ranges() -> None:
    assert set(bitmap(array("Q", [3, 2**63 - 1]).tobytes())) == {3, 2**63 - 1}
    assert shown(BitMap64([1, 2, 3, 7, 9])) == "1 to 3, 7, 9"
    assert shown(BitMap64(range(0, 20, 2))) == "0, 2, 4, 6, 8, and more up to 18"
    assert set(between(4, 2)) == set()


@pytest.mark.long
@given(
    rows=st.lists(st.sets(st.integers(0, 30)), max_size=3),
    letters=st.lists(st.sets(st.integers(0, 30)), max_size=2),
    end=st.integers(0, 30),
    log_start=st.none() | st.integers(0, 30),
    asked=st.sets(st.integers(0, 30)),
    held=st.sets(st.integers(0, 30)),
    removed=st.sets(st.integers(0, 30)),
)
def test_every_offset_is_exactly_one_of_present_without_record_missing_and_unknown(
    rows: list[set[int]],
    letters: list[set[int]],
    end: int,
    log_start: int | None,
    asked: set[int],
    held: set[int],
    removed: set[int],
) -> None:
    account = Account(
        topic="orders",
        partition=0,
        streams=("orders",),
        ends={source(): end},
        rows=tally(*rows),
        letters=tally(*letters),
        log_start=log_start,
        asked=BitMap64(asked),
        held=BitMap64(held & asked),
        removed=BitMap64(removed) & between(0, end),
    )
    parts = [account.present, account.without_record, account.missing, account.unknown]
    below = Counter(offset for part in parts for offset in part)
    assert set(below) == set(range(account.start, end)) | set(account.present)
    assert all(times == 1 for times in below.values())
    assert set(account.doubled) == {o for o in range(end) if sum(o in group for group in rows) > 1}
    assert set(account.beyond) == {o for group in rows for o in group if o >= end}
    damage = {found.kind for found in judge_account(account, table="a.b") if found.damage}
    wrong = {
        Kind.OFFSETS_MISSING: account.missing,
        Kind.OFFSETS_DOUBLED: account.doubled,
        Kind.OFFSETS_BEYOND: account.beyond,
    }
    assert damage == {kind for kind, offsets in wrong.items() if offsets}


@pytest.mark.parametrize("width", [1, 2, 3, 64, 100_000])
def test_a_range_ends_where_it_ends_however_far_the_next_one_is(width: int) -> None:
    offsets = between(7, 7 + width) | BitMap64([FAR])
    assert list(ranges(offsets)) == [(7, 7 + width), (FAR, FAR + 1)]
    assert shown(BitMap64([FAR])) == str(FAR)


def test_a_map_beyond_all_reason_is_refused() -> None:
    with pytest.raises(InvalidError, match="the offset map is damaged"):
        accounts_of({"a": OffsetMap(source=source(), next={0: OFFSETS_MAX + 1})})


@pytest.mark.parametrize(
    ("offset", "times", "doubled"), [(3, 2, False), (3, 3, True), (7, 1, False), (7, 2, True)]
)
def test_two_topics_of_one_name_may_each_have_an_offset(offset: int, times: int, doubled: bool) -> None:
    made = accounts_of(
        {
            "old": OffsetMap(source=source("t-1"), next={0: 10, 1: 4}),
            "new": OffsetMap(source=source("t-2"), next={0: 5}),
        }
    )
    assert list(made) == [("orders", 0), ("orders", 1)]
    account = made["orders", 0]
    assert (account.streams, account.next) == (("new", "old"), 10)
    account.rows = tally(*[{offset}] * times)
    assert bool(account.doubled) is doubled


def test_two_streams_of_one_topic_may_not() -> None:
    made = accounts_of(
        {"a": OffsetMap(source=source(), next={0: 10}), "b": OffsetMap(source=source(), next={0: 5})}
    )
    account = made["orders", 0]
    assert (account.streams, dict(account.ends)) == (("a", "b"), {source(): 10})
    account.rows = tally({3}, {3, 4})
    assert set(account.doubled) == {3}
