"""Completed requests are remembered by time, whatever their rate (invariant I4)."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tarn_catalog.state.request_history import (
    INLINE_MAX,
    PAGE_FAN_IN,
    REMEMBERED_MS,
    CompletedRequest,
    Page,
    PageEntries,
    RequestHistory,
    compact,
    page_of,
)


class Pages:
    def __init__(self) -> None:
        self.written: dict[str, tuple[CompletedRequest, ...]] = {}
        self.numbers = itertools.count()

    def new_key(self) -> str:
        return f"page-{next(self.numbers)}"

    def write(self, key: str, entries: tuple[CompletedRequest, ...]) -> None:
        assert key not in self.written
        self.written[key] = entries

    def read(self, page: str) -> PageEntries:
        return page_of(self.written[page])

    def may_have(self, page: str, key: str) -> bool:
        return any(done.key == key for done in self.written[page])


def remember(memory: RequestHistory, pages: Pages, done: CompletedRequest) -> RequestHistory:
    memory = memory.add(done)
    if memory.overflow():
        memory = compact(
            memory,
            now_ms=done.at_ms,
            new_key=pages.new_key,
            read_page=pages.read,
            write_page=pages.write,
        )
    return RequestHistory.from_json(memory.to_json())


@pytest.mark.long
def test_every_key_within_the_window_is_found_and_the_value_stays_small() -> None:
    memory, pages = RequestHistory(), Pages()
    for number in range(12_000):
        done = CompletedRequest(
            nonce=f"n{number}", version=number, at_ms=number, key=f"k{number}", what="commit:x"
        )
        memory = remember(memory, pages, done)
        assert len(memory.inline) <= INLINE_MAX
        assert len(memory.pages) < 4 * PAGE_FAN_IN
    for number in (0, 1, 47, 48, 5_000, 11_951, 11_999):
        assert memory.find(f"k{number}", pages).nonce == f"n{number}"
    assert memory.find("k12000", pages) is None
    written = sum(len(entries) for entries in pages.written.values())
    assert written < 5 * 12_000, "each key is written again a few times only"


def test_of_a_key_that_was_used_again_the_newest_entry_counts() -> None:
    old = CompletedRequest(nonce="n1", version=1, at_ms=1, key="k", what="commit:old")
    new = CompletedRequest(nonce="n2", version=2, at_ms=2, key="k", what="commit:new")
    memory = RequestHistory(pages=(Page(key="old", level=1, to_ms=1), Page(key="new", level=0, to_ms=2)))
    pages = Pages()
    pages.write("old", (old,))
    pages.write("new", (new,))
    assert memory.find("k", pages) is new
    assert page_of([old, new]) == {"k": new}, "of one page too, as merged ones are oldest first"
    unnamed = CompletedRequest(nonce="n3", version=3, at_ms=3)
    assert page_of([unnamed]) == {}


class Guess(Pages):
    """Thinks that every page may have every key."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def may_have(self, page: str, key: str) -> bool:
        return page != "never"

    def read(self, page: str) -> PageEntries:
        self.seen.append(page)
        return super().read(page)


def test_a_page_is_read_only_if_it_may_have_the_key_and_then_the_entry_counts() -> None:
    done = CompletedRequest(nonce="n", version=1, at_ms=1, key="k1", what="commit:x")
    other = CompletedRequest(nonce="m", version=2, at_ms=2, key="k2", what="commit:y")
    pages = Guess()
    pages.write("old", (done,))
    pages.write("never", (done,))
    pages.write("new", (other,))
    memory = RequestHistory(
        pages=tuple(Page(key=key, level=0, to_ms=at) for at, key in enumerate(("old", "never", "new")))
    )
    assert memory.find("k1", pages) is done
    assert pages.seen == ["new", "old"]
    assert memory.find("k3", pages) is None


@pytest.mark.long
def test_keys_are_forgotten_by_time_only() -> None:
    memory, pages = RequestHistory(), Pages()
    step_ms = REMEMBERED_MS // 1_000
    for number in range(3_000):
        memory = remember(
            memory,
            pages,
            CompletedRequest(
                nonce=f"n{number}", version=number, at_ms=number * step_ms, key=f"k{number}", what="x"
            ),
        )
    assert memory.find("k2001", pages) is not None
    assert all(page.to_ms >= 2_998 * step_ms - REMEMBERED_MS - 100 * step_ms for page in memory.pages)
    assert memory.find("k100", pages) is None


@pytest.mark.long
def test_entries_without_a_key_leave_no_page() -> None:
    memory, pages = RequestHistory(), Pages()
    for number in range(1_000):
        memory = remember(memory, pages, CompletedRequest(nonce=f"n{number}", version=number, at_ms=number))
    assert pages.written == {}
    assert len(memory.inline) <= INLINE_MAX


def test_wrote_tells_yes_no_and_too_long_ago() -> None:
    memory = RequestHistory(
        inline=tuple(CompletedRequest(nonce=f"n{v}", version=v, at_ms=v) for v in range(10, 20))
    )
    assert memory.wrote("n12", 12) is True
    assert memory.wrote("other", 12) is False
    assert memory.wrote("other", 10) is False
    assert memory.wrote("n9", 9) is None
    assert RequestHistory().wrote("n1", 1) is False


@pytest.mark.long
@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 400), st.booleans()), min_size=1, max_size=400),
    st.integers(0, 399),
)
def test_spilling_loses_nothing_at_any_rate(steps: list[tuple[int, bool]], probe: int) -> None:
    memory, pages = RequestHistory(), Pages()
    expected: dict[str, int] = {}
    now_ms = 0
    for number, (gap, keyed) in enumerate(steps * 3):
        now_ms += gap
        key = f"k{number}" if keyed else None
        if key is not None:
            expected[key] = now_ms
        memory = remember(
            memory,
            pages,
            CompletedRequest(nonce=f"n{number}", version=number, at_ms=now_ms, key=key, what="w"),
        )
    wanted = f"k{probe}"
    found = memory.find(wanted, pages)
    assert (found is not None) == (wanted in expected)
    assert found is None or found.at_ms == expected[wanted]


def test_pages_are_stored_with_level_and_time_and_merge_when_a_level_is_full() -> None:
    memory, pages, at_ms = RequestHistory(), Pages(), 1_000_000
    levels: list[list[int]] = []
    while not levels or 1 not in levels[-1]:
        at_ms += 1
        before = memory.pages
        memory = remember(
            memory, pages, CompletedRequest(nonce=f"n{at_ms}", version=at_ms, at_ms=at_ms, key=f"k{at_ms}")
        )
        if memory.pages != before:
            levels.append([page.level for page in memory.pages])
            assert RequestHistory.from_json(json.loads(json.dumps(memory.to_json()))) == memory
            newest = max(memory.pages, key=lambda page: page.to_ms)
            assert newest.to_ms == max(done.at_ms for done in pages.read(newest.key).values())
    assert levels == [[0] * count for count in range(1, PAGE_FAN_IN)] + [[1]]
