"""The registry of specs over every store: conditional writes, lost answers, late writes, races."""

from __future__ import annotations

import itertools
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from tarn.adapters import spec_store
from tarn.adapters.spec_store import SpecStore
from tarn.adapters.store import FileStore, MemoryStore
from tarn.core.control.declared import HAND, Declared, Stamp, applied, deleted, scaled, spec_key
from tarn.core.control.registry import SpecEntry
from tarn.core.errors import CorruptStateError, InvalidSpecError, NotFoundError, OutcomeUnknownError
from tarn.core.object_store import ObjectStore, StoreOutcomeUnknownError
from tarn.core.spec import parse_document
from tarn_catalog.testing.faulty_store import ANSWERS, Fault, FaultyStore, Op
from tests.support.lake import SPEC
from tests.support.plays import seeds

TRIES_MAX = 100
DOCUMENT = parse_document(SPEC.replace("FORMAT", "2").replace("PARTITIONING", "[]"), file="x")


def registry(store: ObjectStore) -> SpecStore:
    numbers = itertools.count(1)
    return SpecStore(
        store, now_ms=lambda: 7, new_id=lambda: f"{id(store)}-{next(numbers)}", sleep=lambda _s: None
    )


@pytest.fixture(params=["memory", "file"])
def store(request: Any, tmp_path: Any) -> ObjectStore:
    return MemoryStore() if request.param == "memory" else FileStore(tmp_path)


def create(found: Declared | None, stamp: Stamp) -> Declared:
    return applied(found, DOCUMENT, file="x", owner=HAND, stamp=stamp)


def more(found: Declared | None, stamp: Stamp) -> Declared:
    there = _there(found)
    return scaled(there, there.spec.spec.replicas + 1, stamp=stamp)


def delete(found: Declared | None, stamp: Stamp) -> Declared:
    if found is None:
        raise NotFoundError("there is none")
    return deleted(found, stamp=stamp)


def test_an_object_is_created_changed_deleted_and_created_again(store: ObjectStore) -> None:
    specs = registry(store)
    assert (specs.list(), specs.get("orders")) == ({}, None)
    made = specs.change("orders", create)
    assert specs.get("orders") == made
    assert specs.change("orders", create) == made, "the same spec again changes nothing"
    specs.finalize("orders", made.uid)
    assert specs.get("orders") == made, "only what is being deleted is finalized"
    going = specs.change("orders", delete)
    specs.finalize("orders", "another")
    assert specs.get("orders") == going
    specs.finalize("orders", made.uid)
    gone = specs.get("orders")
    assert gone is not None
    assert gone.gone
    again = specs.change("orders", create)
    assert (again.generation, again.uid == made.uid) == (2, False)
    specs.finalize("orders", made.uid)
    assert specs.get("orders") == again, "a late finalization of the former one"
    specs.finalize("never", "x")
    assert specs.get("never") is None


def test_only_what_changed_is_read_again(store: ObjectStore) -> None:
    specs = registry(store)
    specs.change("orders", create)
    first = specs.list()
    assert set(first) == {"orders"}
    assert specs.list(first)["orders"] is first["orders"]
    specs.change("orders", delete)
    assert specs.list(first)["orders"] != first["orders"]
    store.put("specs/v1/ingestors/other.txt", b"x")
    store.put("specs/v1/status/orders.json", b"x")
    assert set(specs.list(first)) == {"orders"}


def test_an_unreadable_object_hinders_no_other_and_is_replaced_on_request(store: ObjectStore) -> None:
    specs = registry(store)
    specs.change("orders", create)
    store.put(spec_key("broken"), b"{")
    store.put(spec_key("orders"), b"{")
    found = specs.list()
    assert isinstance(found["broken"].error, CorruptStateError)
    with pytest.raises(CorruptStateError, match="--replace"):
        specs.change("orders", create)
    assert specs.change("orders", create, replace=True).generation == 1


def test_an_object_of_any_size_is_not_read_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Notebooks may write objects named ws-…, of gigabytes too, and the controller lists all of them."""
    store = MemoryStore()
    specs = registry(store)
    specs.change("orders", create)
    store.put(spec_key("ws-large"), b"x" * (spec_store.OBJECT_BYTES_MAX + 1))
    read: list[str] = []
    get = store.get
    monkeypatch.setattr(store, "get", lambda key: read.append(key) or get(key))
    found = specs.list()
    assert read == [spec_key("orders")]
    error = found["ws-large"].error
    assert error is not None
    assert f"has {spec_store.OBJECT_BYTES_MAX + 1} bytes" in error.message
    assert specs.list(found)["ws-large"] is found["ws-large"]
    large = {**DOCUMENT, "note": "x" * spec_store.OBJECT_BYTES_MAX}
    with pytest.raises(InvalidSpecError, match=r"takes \d+ bytes as it is stored"):
        specs.change("orders", lambda found, stamp: replace(_there(found), document=large))


def test_a_status_is_written_and_read(store: ObjectStore) -> None:
    specs = registry(store)
    assert specs.status("orders") is None
    specs.put_status("orders", b"one")
    specs.put_status("orders", b"two")
    assert specs.status("orders") == b"two"


@pytest.mark.parametrize("fault", [f for f in ANSWERS if f is not Fault.DENIED], ids=lambda f: f.name)
def test_each_fault_of_a_write_is_found_out(fault: Fault) -> None:
    for number in (1, 2):

        def at(op: Op, number: int = number) -> Fault | None:
            return fault if op.kind == "put" and op.number == number else None

        faulty = FaultyStore(MemoryStore(), at)
        specs = registry(faulty)
        specs.change("orders", create)
        made = specs.change("orders", more)
        faulty.settle()
        assert specs.get("orders") == made
        assert (made.generation, made.spec.spec.replicas) == (2, 2), "made once, however it was answered"


def test_a_store_that_never_answers_is_an_unknown_outcome() -> None:
    specs = registry(FaultyStore(MemoryStore(), lambda op: Fault.RESET if op.kind == "put" else None))
    with pytest.raises(OutcomeUnknownError, match="repeat the command"):
        specs.change("orders", create)


def test_why_a_store_takes_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk, what helps is to free some space, not to look and repeat."""
    store = MemoryStore()

    def full(_self: object, key: str, *_: object, **_options: object) -> str:
        raise StoreOutcomeUnknownError(f"could not write {key}: the disk of the store is full")

    monkeypatch.setattr(MemoryStore, "put", full)
    with pytest.raises(
        OutcomeUnknownError, match=r"8 attempts.*; the last time: .*the disk of the store is full"
    ):
        registry(store).change("orders", create)


def test_changes_of_many_at_once_are_all_there(store: ObjectStore) -> None:
    registry(store).change("orders", create)

    def work(_: int) -> None:
        specs = registry(store)
        specs.new_id = lambda: f"{random.getrandbits(64)}"
        for _ in range(3):
            for _ in range(TRIES_MAX):
                try:
                    specs.change("orders", more)
                    break
                except OutcomeUnknownError:
                    continue
            else:
                pytest.fail(f"a change lost against the others {TRIES_MAX} times in a row")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    found = registry(store).get("orders")
    assert found is not None
    assert (found.generation, found.spec.spec.replicas) == (13, 13)


@pytest.mark.plays
@pytest.mark.parametrize("seed", seeds(5))
def test_a_late_write_never_brings_a_deleted_ingestor_back(seed: int) -> None:
    chance = random.Random(seed)

    def at(op: Op) -> Fault | None:
        return chance.choice([Fault.LATE, Fault.LOST_REPLY, None, None]) if op.kind == "put" else None

    faulty = FaultyStore(MemoryStore(), at)
    specs = registry(faulty)
    for round_ in range(5):
        made = specs.change("orders", create)
        specs.change("orders", delete)
        specs.finalize("orders", made.uid)
        gone = specs.get("orders")
        faulty.settle()
        assert specs.get("orders") == gone
        assert gone is not None
        assert (gone.gone, gone.generation) == (True, round_ + 1)


def _there(found: Declared | None) -> Declared:
    assert found is not None
    return found


def test_entries_say_what_they_are() -> None:
    assert SpecEntry(name="a", etag="e").declared is None
