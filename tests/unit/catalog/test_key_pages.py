"""Pages of idempotency keys: little memory for each key, no page read for a new one, none left for good."""

from __future__ import annotations

import itertools
import threading
import time
import tracemalloc
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import orjson
import pytest

from tarn.adapters.store import MemoryStore
from tarn.core.errors import CorruptStateError
from tarn.core.naming import KEY_PAGES_PREFIX, WarehouseLayout
from tarn_catalog.operations.catalog import Catalog
from tarn_catalog.operations.identifiers import CreateTableRequest
from tarn_catalog.state.context import Cache, IdempotencyKey
from tarn_catalog.state.key_pages import KEPT_MS, LISTED_MAX, REMOVED_TOGETHER_MAX, KeyPages
from tarn_catalog.state.pointer import Pointer
from tarn_catalog.state.register import RetryPolicy
from tarn_catalog.state.request_history import INLINE_KEPT, PAGE_FAN_IN, CompletedRequest
from tarn_catalog.testing.faulty_store import Fault, FaultyStore, Op, no_faults
from tests.unit.catalog.test_cache import SCHEMA, SLOT

HOUR_MS = 3_600_000


class Clock:
    def __init__(self) -> None:
        self.ms = 1_900_000_000_000

    def __call__(self) -> int:
        return self.ms


class World:
    """A store whose time is that of the pages' users."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.memory = MemoryStore(now_ms=self.clock)
        self.store = FaultyStore(self.memory)

    def process(self) -> KeyPages:
        numbers = itertools.count()
        name = uuid.uuid4().hex
        return KeyPages(
            self.store,
            Cache(),
            patience=RetryPolicy(),
            now_ms=self.clock,
            new_uuid=lambda: f"{name}-{next(numbers):06}",
        )

    def written(self, pages: KeyPages, register_key: str = "r", first: int = 0, count: int = 48) -> str:
        page = pages.new_key(register_key)
        pages.write(page, entries(first, count))
        return page

    def kept(self) -> set[str]:
        return {found.key for found in self.memory.list(KEY_PAGES_PREFIX)}

    def reads(self) -> list[str]:
        return [op.key for op in self.store.seen if op.kind == "get"]


@pytest.fixture
def world() -> World:
    return World()


def key_of(number: int, at_ms: int = 0) -> str:
    return str(uuid.UUID(int=at_ms << 80 | 7 << 76 | 2 << 62 | number))


def entries(first: int, count: int) -> tuple[CompletedRequest, ...]:
    return tuple(
        CompletedRequest(
            nonce=f"n{number}", version=number, at_ms=number, key=key_of(number), what="commit:x"
        )
        for number in range(first, first + count)
    )


def test_a_new_key_reads_no_page_and_a_used_one_its_own(world: World) -> None:
    pages = world.process()
    names = [world.written(pages, first=1_000 * number) for number in range(5)]
    assert [pages.may_have(name, key_of(3_007)) for name in names] == [False, False, False, True, False]
    assert world.reads() == []
    assert pages.read(names[3])[key_of(3_007)].version == 3_007
    assert not any(pages.may_have(name, key_of(3_048)) for name in names)


def test_another_process_reads_each_page_once(world: World) -> None:
    first, other = world.process(), world.process()
    names = [world.written(first, first=1_000 * number) for number in range(3)]
    for _ in range(3):
        assert [other.may_have(name, key_of(2_000)) for name in names] == [False, False, True]
    assert world.reads() == names


@pytest.mark.long
def test_a_key_takes_eight_bytes_and_as_much_is_counted(world: World) -> None:
    cache, count = Cache(), 20_000
    pages = KeyPages(
        world.memory, cache, patience=RetryPolicy(), now_ms=world.clock, new_uuid=lambda: uuid.uuid4().hex
    )
    page = pages.new_key("r")
    world.memory.put(page, orjson.dumps([done.to_json() for done in entries(0, count)]))
    pages.may_have(page, key_of(1))
    cache.drop(page)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    pages.may_have(page, key_of(1))
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 10 * count
    assert 8 * count <= cache.held_bytes < 9 * count


def test_a_page_that_is_referenced_and_missing_is_corrupt(world: World) -> None:
    pages, other = world.process(), world.process()
    page = world.written(pages)
    world.memory.delete(page)
    with pytest.raises(CorruptStateError, match="is missing; restore it from a backup"):
        other.may_have(page, key_of(1))


def test_a_page_goes_a_while_after_it_is_no_longer_referenced(world: World) -> None:
    pages = world.process()
    old, new = world.written(pages), world.written(pages, first=100)
    pages.leave("r", {old}, {new})
    world.clock.ms += KEPT_MS - 1
    pages.leave("r", {new}, {new})
    assert world.kept() == {old, new}
    world.clock.ms += 1
    pages.leave("r", {new}, {new})
    assert world.kept() == {new}


def test_what_earlier_processes_left_goes_and_nothing_else(world: World) -> None:
    first = world.process()
    world.written(first)
    used = world.written(first, first=100)
    of_another = world.written(first, "another value")
    world.clock.ms += KEPT_MS
    on_its_way = world.written(first, first=200)
    second = world.process()
    new = world.written(second, first=300)
    second.leave("r", {used}, {used, new})
    world.clock.ms += KEPT_MS
    second.leave("r", {used, new}, {used, new})
    assert world.kept() == {used, of_another, on_its_way, new}


@pytest.mark.long
def test_many_that_were_left_are_found_a_part_at_a_time_and_all_go(world: World) -> None:
    first, count = world.process(), 2 * LISTED_MAX + 10
    for _ in range(count):
        world.memory.put(first.new_key("r"), b"[]")
    world.clock.ms += KEPT_MS
    second = world.process()
    page = ""
    for number in range(count // REMOVED_TOGETHER_MAX + 10):
        before, listed = len(world.kept()), len(world.store.seen)
        world.clock.ms += KEPT_MS
        last, page = page, world.written(second, first=100 * number)
        second.leave("r", {last}, {page})
        assert len(world.kept()) >= before - REMOVED_TOGETHER_MAX
        assert sum(op.kind == "list" for op in world.store.seen[listed:]) <= 1
    assert world.kept() == {last, page}
    assert sum(op.kind == "list" for op in world.store.seen) == 3


def on_delete(fault: Fault) -> Callable[[Op], Fault | None]:
    return lambda op: fault if op.kind == "delete" else None


@pytest.mark.parametrize("fault", [Fault.DENIED, Fault.RESET, Fault.BUSY, Fault.LOST_REPLY])
def test_a_page_that_cannot_be_removed_is_removed_later(world: World, fault: Fault) -> None:
    pages = world.process()
    old, new = world.written(pages), world.written(pages, first=100)
    pages.leave("r", {old}, {new})
    world.clock.ms += KEPT_MS
    world.store.plan = on_delete(fault)
    pages.leave("r", {new}, {new})
    world.store.plan = no_faults
    pages.leave("r", {new}, {new})
    assert world.kept() == {new}


def test_pages_that_several_threads_remove_all_go(world: World) -> None:
    pages, count = world.process(), 400
    left = [world.written(pages, first=100 * number, count=1) for number in range(count)]
    pages.leave("r", left, set())
    world.clock.ms += KEPT_MS
    together = threading.Barrier(8, timeout=30)

    def slow(op: Op) -> Fault | None:
        if op.kind == "delete":
            time.sleep(0.001)
        return None

    def remove() -> None:
        together.wait()
        for _ in range(count // REMOVED_TOGETHER_MAX):
            pages.leave("r", set(), set())

    world.store.plan = slow
    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(remove) for _ in range(8)]:
            done.result()
    assert world.kept() == set()


@pytest.mark.long
def test_a_table_of_many_commits_reads_no_page_and_leaves_none_for_good(world: World) -> None:
    """Five hours of commits: pages in the store are those in use and those of the last quarter of an hour."""
    catalog = Catalog(world.store, WarehouseLayout(base="s3://tarn"), now_ms=world.clock)
    catalog.namespaces.create(("ns",), {})
    new = CreateTableRequest(schema=SCHEMA, spec=None, order=None, properties={}, location=None)
    catalog.tables.create(SLOT, new)
    hours, count = 5, 5 * PAGE_FAN_IN**2 * INLINE_KEPT // 4
    a_while = count * KEPT_MS // (hours * HOUR_MS) // INLINE_KEPT
    for number in range(count):
        world.clock.ms += hours * HOUR_MS // count
        repeat = IdempotencyKey(key=key_of(number, world.clock.ms), what="commit:x")
        change = [{"action": "set-properties", "updates": {"n": str(number)}}]
        catalog.tables.commit(SLOT, [], change, repeat=repeat)
        if number % 500 == 499:
            value = Pointer.load(world.memory.get(SLOT.key).data, SLOT.key)
            used = {page.key for page in value.memory.pages}
            assert used <= world.kept()
            assert len(world.kept() - used) <= PAGE_FAN_IN * 2 + a_while
    pages = [key for key in world.reads() if key.startswith(KEY_PAGES_PREFIX)]
    merged = len(pages) / (count / INLINE_KEPT)
    assert merged < 2.5, (
        "a page is read when it is merged into one of the next level, and not for each new key"
    )
    assert catalog.core.cache.held_bytes < 100_000 + 10 * count
