"""What a former catalog left behind when it was killed at any step is read, decided and built on today."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tarn.core.errors import NoSuchTableError
from tarn.core.naming import NAMESPACES_PREFIX, TRANSACTIONS_PREFIX
from tests.contract.catalog.test_commits import World, append
from tests.contract.catalog.test_transactions import NEW, A, B, check, place, set_on

FILE = Path(__file__).with_name("states") / "dc84420.json.gz"
STATES: list[dict[str, Any]] = json.loads(gzip.decompress(FILE.read_bytes()))
OPERATIONS = ("rename", "purge", "create", "register", "two tables")


def opened(state: dict[str, Any]) -> World:
    """A lake with exactly the objects of the state."""
    world = World()
    for one in list(world.memory.list("")):
        world.memory.delete(one.key)
    for key, text in state["objects"].items():
        world.memory.put(key, text.encode())
    return world


def test_the_states_are_those_that_are_hard() -> None:
    assert Counter(state["operation"] for state in STATES).keys() == set(OPERATIONS)
    assert {state["how"] for state in STATES} == {"CRASH", "CRASH_DONE"}
    held = [json.loads(text) for state in STATES for text in state["objects"].values()]
    intents = [one for one in held if one.get("intent")]
    records = [one["state"] for state in STATES for one in _records(state)]
    assert len(intents) > 50
    assert {"pending", "committed"} <= set(records)


def _records(state: dict[str, Any]) -> list[dict[str, Any]]:
    return [json.loads(text) for key, text in state["objects"].items() if key.startswith(TRANSACTIONS_PREFIX)]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_former_state_is_one_thing_or_the_other_and_hinders_nobody(operation: str) -> None:
    seen: Counter[tuple[str, ...]] = Counter()
    for state in (state for state in STATES if state["operation"] == operation):
        world = opened(state)
        names, catalog = check(world.memory), world.healthy()
        seen[tuple(names)] += 1
        for name, uuid in names.items():
            loaded = catalog.tables.load(place(name)).parsed
            assert loaded["table-uuid"] == uuid, state["at"]
            if operation == "two tables":
                assert ("both" in loaded["properties"]) == _both(catalog), state["at"]
        if operation == "two tables":
            catalog.together.commit([set_on(A, "later"), set_on(B, "later")])
        for name in names:
            catalog.tables.commit(place(name), *append(1, None, 1))
            assert world.pointer(place(name)).intent is None
        for slot in (A, B):
            if slot.text not in names:
                with pytest.raises(NoSuchTableError):
                    catalog.tables.load(slot)
                catalog.tables.create(slot, NEW)
        assert list(check(world.memory)) == ["ns.a", "two.b"]
        catalog.names.purge(A)
        catalog.names.rename(B, A)
        assert list(check(world.memory)) == ["ns.a"]
        catalog.tables.drop(A)
        for slot in (A, B):
            catalog.namespaces.drop(slot.namespace)
        assert all(
            json.loads(world.memory.get(one.key).data)["state"] == "dropped"
            for one in world.memory.list(NAMESPACES_PREFIX)
        )
    assert len(seen) == (1 if operation == "two tables" else 2), "killed early it did not happen, late it did"


def _both(catalog: Any) -> bool:
    return all("both" in catalog.tables.load(slot).parsed["properties"] for slot in (A, B))
