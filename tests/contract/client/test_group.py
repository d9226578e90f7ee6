"""The stored position of a group: one conditional PUT, three outcomes, one owner."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tarn.adapters.store import FileStore, MemoryStore
from tarn.client.group import ATTEMPTS_MAX, Group, GroupValue, group_key
from tarn.core.errors import (
    CorruptStateError,
    ForbiddenError,
    InvalidError,
    OutcomeUnknownError,
    ReaderPlaceError,
    ReaderTakenError,
)
from tarn.core.object_store import ObjectStore
from tarn.core.offsets import OffsetMap, TopicIdentity
from tarn.core.reading import ReaderPosition
from tarn_catalog.testing.faulty_store import Fault, FaultyStore, Op

KEY = "warehouse/ns/t-1/readers/g.json"
SOURCE = TopicIdentity(cluster="c", topic="t", topic_id="id")
SURVIVED = [Fault.LOST_REPLY, Fault.RESET, Fault.LATE, Fault.CONFLICT, Fault.BUSY, Fault.BUSY_DONE]


def at(offset: int) -> ReaderPosition:
    return ReaderPosition(table="u", topics={"t": OffsetMap(source=SOURCE, next={0: offset})})


def group(store: ObjectStore, reader: str = "r") -> Group:
    nonces = itertools.count()
    waits: list[float] = []
    return Group(
        name="g",
        store=store,
        key=KEY,
        reader=reader,
        new_nonce=lambda: f"{reader}-{next(nonces)}",
        sleep=waits.append,
    )


def claim(found: Group, *, restart: bool = False) -> ReaderPosition:
    return found.claim(lambda: at(0), restart=restart, check=lambda _: None)


@pytest.fixture(params=["memory", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Any) -> ObjectStore:
    return MemoryStore() if request.param == "memory" else FileStore(tmp_path)


def test_a_position_is_stored_and_found_again(store: ObjectStore) -> None:
    one = group(store)
    assert one.position() is None
    assert claim(one) == at(0)
    one.store_position(at(5))
    assert group(store).position() == at(5)
    assert claim(group(store, "s")) == at(5)
    assert claim(group(store, "s"), restart=True) == at(0)


def test_only_the_last_reader_may_store(store: ObjectStore) -> None:
    old, new = group(store, "old"), group(store, "new")
    claim(old)
    claim(new)
    with pytest.raises(ReaderTakenError, match=r"taken over by another reader \(new, this one is old\)"):
        old.store_position(at(3))
    new.store_position(at(2))
    assert new.position() == at(2)
    with pytest.raises(ReaderTakenError):
        old.store_position(at(9))
    assert new.position() == at(2)


@pytest.mark.parametrize("first", [True, False])
def test_a_claim_that_arrives_late_takes_nothing_over(first: bool) -> None:
    inner = MemoryStore()
    if not first:
        claim(group(inner, "before"))
    store = FaultyStore(inner, lambda op: Fault.LATE if op.kind == "put" else None)
    with pytest.raises(OutcomeUnknownError):
        claim(group(store, "late"))
    one = group(inner, "one")
    claim(one)
    one.store_position(at(5))
    store.settle()
    assert one.position() == at(5)
    one.store_position(at(6))


def test_a_write_that_was_left_by_ctrl_c_is_the_readers_own(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It passed for that of another reader, which had taken the group over."""
    one = group(store)
    claim(one)
    put = store.put

    def stopped(*what: Any, **how: Any) -> str:
        put(*what, **how)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(store, "put", stopped)
        with pytest.raises(KeyboardInterrupt):
            one.store_position(at(3))
    one.store_position(at(5))
    assert one.position() == at(5)


def test_a_position_that_is_of_no_use_is_not_taken_over(store: ObjectStore) -> None:
    one = group(store, "one")
    claim(one)

    def check(_: ReaderPosition) -> None:
        raise ReaderPlaceError("rolled back")

    with pytest.raises(ReaderPlaceError):
        group(store, "two").claim(lambda: at(0), restart=False, check=check)
    one.store_position(at(1))


@pytest.mark.parametrize("fault", SURVIVED)
@pytest.mark.parametrize("times", [1, 3])
def test_an_answer_that_is_lost_or_late_is_resolved(fault: Fault, times: int) -> None:
    """The first writes fail, of the claim and of each position; late ones arrive at any later moment."""
    for late_ops in (1, 2, 5, None):
        inner = MemoryStore()
        failed = [0]

        def plan(op: Op, failed: list[int] = failed) -> Fault | None:
            failed[0] += op.kind == "put"
            return fault if op.kind == "put" and failed[0] <= times else None

        store = FaultyStore(inner, plan, late_ops=late_ops)
        one = group(store)
        assert claim(one) == at(0)
        for offset in (1, 2, 3):
            failed[0] = 0
            one.store_position(at(offset))
            assert group(inner).position() == at(offset)
        store.settle()
        assert group(inner).position() == at(3), "a late write has the entity tag of its base, which is gone"


def test_a_store_whose_answers_are_all_lost_is_read_back() -> None:
    inner = MemoryStore()
    store = FaultyStore(inner, lambda op: Fault.LOST_REPLY if op.kind == "put" else None)
    one = group(store)
    assert claim(one) == at(0)
    one.store_position(at(4))
    assert group(inner).position() == at(4)


def test_a_write_that_is_never_settled_is_resolved_by_the_next_one() -> None:
    for done in (Fault.LOST_REPLY, Fault.RESET, Fault.LATE):
        inner = MemoryStore()
        faults: list[Fault] = []
        reads: list[Fault] = []

        def plan(op: Op, faults: list[Fault] = faults, reads: list[Fault] = reads) -> Fault | None:
            source = faults if op.kind == "put" else reads
            return source.pop() if source else None

        store = FaultyStore(inner, plan)
        one = group(store)
        claim(one)
        faults += [done]
        reads += [Fault.RESET]
        with pytest.raises(Exception, match="a fault on purpose"):
            one.store_position(at(1))
        one.store_position(at(2))
        store.settle()
        assert group(inner).position() == at(2)


def test_a_store_that_never_answers_is_not_asked_for_ever() -> None:
    store = FaultyStore(MemoryStore())
    one = group(store)
    claim(one)
    store.plan = lambda op: Fault.BUSY if op.kind == "put" else None
    puts = len([op for op in store.seen if op.kind == "put"])
    with pytest.raises(OutcomeUnknownError, match="commit again"):
        one.store_position(at(1))
    assert len([op for op in store.seen if op.kind == "put"]) - puts == ATTEMPTS_MAX
    with pytest.raises(OutcomeUnknownError):
        claim(group(store, "another"))
    store.plan = lambda op: Fault.DENIED if op.kind == "put" else None
    with pytest.raises(ForbiddenError):
        one.store_position(at(1))


def test_a_group_that_was_deleted_is_not_recreated_by_a_commit(store: ObjectStore) -> None:
    one = group(store)
    claim(one)
    store.delete(KEY)
    with pytest.raises(ReaderPlaceError, match="was deleted while this reader read on"):
        one.store_position(at(1))
    assert store.get(KEY) is None


@pytest.mark.parametrize("data", [b"", b"{}", b'{"v":2}', b'{"v":1,"reader":"r","nonce":"n","position":{}}'])
def test_an_object_that_is_no_position_is_named(store: ObjectStore, data: bytes) -> None:
    store.put(KEY, data)
    with pytest.raises(CorruptStateError, match=r"readers/g\.json is not the position of a group"):
        claim(group(store))
    assert store.get(KEY).data == data


def test_the_object_says_whose_it_is() -> None:
    store = MemoryStore()
    claim(group(store, "me"))
    found = GroupValue.from_bytes(store.get(KEY).data, key=KEY)
    assert (found.reader, found.position) == ("me", at(0))


def test_keys() -> None:
    assert group_key("warehouse/ns/t-1", "g") == KEY
    assert group_key("", "g") == "readers/g.json"
    with pytest.raises(InvalidError):
        group_key("", "../g")
