"""Registering a table: pointers are read once, and the next metadata file has a number."""

from __future__ import annotations

import orjson
import pytest

from tarn.core.naming import POINTERS_PREFIX
from tarn_catalog.operations.identifiers import TableIdentifier
from tests.contract.catalog.test_commits import NEW, ROOTS, SLOT, World


@pytest.fixture
def world() -> World:
    return World()


def test_a_pointer_that_did_not_change_is_read_once_for_all_registrations(world: World) -> None:
    others = [TableIdentifier.of(("ns",), f"other{number}") for number in range(3)]
    for slot in others:
        world.healthy().tables.create(slot, NEW)
    reads: list[int] = []
    for _ in range(3):
        location = world.healthy().tables.create(SLOT, NEW).location
        world.healthy().tables.drop(SLOT)
        del world.store.seen[:]
        world.catalog.names.register(SLOT, location)
        keys = {slot.key for slot in others}
        reads.append(sum(1 for op in world.store.seen if op.kind == "get" and op.key in keys))
        world.healthy().tables.drop(SLOT)
    assert reads == [len(others), 0, 0]


@pytest.mark.parametrize(
    ("name", "number"), [("v2.metadata.json", "00001"), ("00007-x.metadata.json", "00008")]
)
def test_the_number_of_the_next_metadata_file_follows_the_last_one(
    world: World, name: str, number: str
) -> None:
    first = world.catalog.tables.create(SLOT, NEW)
    world.catalog.tables.drop(SLOT)
    folder = first.location.rpartition("/")[0]
    world.memory.put(ROOTS.key(f"{folder}/{name}"), orjson.dumps(first.parsed))
    registered = world.catalog.names.register(SLOT, f"{folder}/{name}")
    assert registered.location == f"{folder}/{name}"
    done = world.catalog.tables.commit(SLOT, [], [{"action": "set-properties", "updates": {"a": "b"}}])
    assert done.location.startswith(f"{folder}/{number}-")
    assert world.memory.get(f"{POINTERS_PREFIX}ns/t.json") is not None
