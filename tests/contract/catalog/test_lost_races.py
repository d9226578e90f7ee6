"""Requests that lose every race or get no answer: the right error, nothing half done, nobody hindered."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from tarn.core.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidError,
    OutcomeUnknownError,
    UnavailableError,
)
from tarn.core.naming import namespace_key
from tarn_catalog.operations import multi_table_commit
from tarn_catalog.operations.catalog import Catalog
from tarn_catalog.operations.multi_table_commit import Change
from tarn_catalog.state.context import IdempotencyKey
from tarn_catalog.testing.faulty_store import Fault, Op, no_faults
from tests.contract.catalog.test_commits import (
    FREE,
    NEW,
    ROOTS,
    SET,
    SLOT,
    World,
    append,
    create_with_rows,
    repeat,
    staged,
)
from tests.contract.catalog.test_transactions import OPERATIONS, A, B, check, set_on, small_world

ATTEMPTS_MAX = 100


@pytest.fixture
def world() -> World:
    return World()


def before_each_put(
    world: World, key: str, change: Callable[[Catalog], object], *, times: int
) -> Callable[[Op], Fault | None]:
    """Another replica changes the key just before each of so many puts of it."""
    left, other = itertools.count(), world.healthy()

    def plan(op: Op) -> Fault | None:
        if op.kind == "put" and op.key == key and next(left) < times:
            change(other)
        return None

    return plan


@pytest.mark.parametrize("fault", [Fault.RESET, Fault.LATE])
@pytest.mark.parametrize("operation", ["rename", "create"])
def test_an_intent_without_an_answer_changes_nothing_even_if_it_arrives_late(
    operation: str, fault: Fault
) -> None:
    world = small_world()
    first = world.catalog.tables.create(A, NEW)
    before = check(world.memory)
    world.store.plan = lambda op: fault if (op.kind, op.key) == ("put", B.key) else None
    with pytest.raises(UnavailableError, match=r"could not change .*nothing was changed, try again"):
        OPERATIONS[operation](world.another(), first.location)
    world.store.plan = no_faults
    assert check(world.memory) == before
    world.store.settle()
    assert check(world.memory) == before
    world.healthy().tables.create(B, NEW)
    assert set(check(world.memory)) == {"ns.a", "two.b"}


def test_a_create_that_another_replica_finished_with_the_same_key_is_done(world: World) -> None:
    mine = repeat(1, "create")
    world.store.plan = before_each_put(
        world, SLOT.key, lambda other: other.tables.create(SLOT, NEW, repeat=mine), times=1
    )
    done = world.catalog.tables.create(SLOT, NEW, repeat=mine)
    assert done.parsed["table-uuid"] == world.healthy().tables.load(SLOT).parsed["table-uuid"]


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("key", [repeat(1, "create"), None], ids=["with a key", "without a key"])
def test_a_create_with_rows_that_is_sent_again_while_it_goes_on_is_done_by_both(
    world: World, key: IdempotencyKey | None, together: bool
) -> None:
    """A client whose connection ended repeats it; the one that comes second must not have files deleted."""
    requirements, updates = create_with_rows(world, 1)

    def create(catalog: Catalog) -> None:
        if together:
            changes = [Change(slot=SLOT, requirements=requirements, updates=updates)]
            catalog.together.commit(changes, repeat=key)
        else:
            done = catalog.tables.commit(SLOT, requirements, updates, repeat=key)
            assert done.location == world.healthy().tables.load(SLOT).location

    world.store.plan = before_each_put(world, SLOT.key, create, times=1)
    create(world.catalog)
    found = world.healthy().tables.load(SLOT).parsed
    assert (found["table-uuid"], len(found["snapshots"])) == (updates[0]["uuid"], 1)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("key", [repeat(1, "create"), None], ids=["with a key", "without a key"])
@pytest.mark.parametrize("since", ["renamed", "and another table got the name", "changed"])
def test_a_create_with_rows_that_went_on_meanwhile_is_not_refused_whatever_followed(
    world: World, since: str, key: IdempotencyKey | None, together: bool
) -> None:
    requirements, updates = create_with_rows(world, 1)

    def meanwhile(other: Catalog) -> None:
        other.tables.commit(SLOT, requirements, updates, repeat=key)
        if since == "changed":
            other.tables.commit(SLOT, [], SET)
            return
        other.names.rename(SLOT, FREE)
        if since != "renamed":
            other.tables.create(SLOT, NEW)

    files = f"{ROOTS.key(updates[8]['location'])}/metadata/"
    step = ("list", files) if since == "changed" else ("put", SLOT.key)
    other, left = world.healthy(), [meanwhile]

    def plan(op: Op) -> Fault | None:
        if (op.kind, op.key) == step and left:
            left.pop()(other)
        return None

    world.store.plan = plan
    try:
        if together:
            changes = [Change(slot=SLOT, requirements=requirements, updates=updates)]
            world.catalog.together.commit(changes, repeat=key)
        else:
            world.catalog.tables.commit(SLOT, requirements, updates, repeat=key)
    except OutcomeUnknownError:
        assert since == "and another table got the name"
        assert key is None
    found = world.healthy().tables.load(SLOT if since == "changed" else FREE).parsed
    assert (found["table-uuid"], len(found["snapshots"])) == (updates[0]["uuid"], 1)


@pytest.mark.parametrize("renamed", [0, 1])
def test_a_commit_to_two_tables_that_went_on_and_one_was_renamed_meanwhile_is_done(renamed: int) -> None:
    world = small_world()
    slots = [A, B]
    for slot in slots:
        world.catalog.tables.create(slot, NEW)
    changes = [
        Change(slot=slot, requirements=r, updates=u) for slot in slots for r, u in [append(1, None, 1)]
    ]

    def meanwhile(other: Catalog) -> None:
        other.together.commit(changes)
        other.names.rename(slots[renamed], FREE)

    world.store.plan = before_each_put(world, slots[renamed].key, meanwhile, times=1)
    world.catalog.together.commit(changes)
    slots[renamed] = FREE
    assert [len(world.healthy().tables.load(slot).parsed["snapshots"]) for slot in slots] == [1, 1]


def test_a_create_that_loses_to_another_request_is_refused(world: World) -> None:
    world.store.plan = before_each_put(
        world, SLOT.key, lambda other: other.tables.create(SLOT, NEW, repeat=repeat(2, "create")), times=1
    )
    with pytest.raises(AlreadyExistsError):
        world.catalog.tables.create(SLOT, NEW, repeat=repeat(1, "create"))


def test_the_end_of_a_staged_create_repeats_by_key_whatever_was_committed_since(world: World) -> None:
    requirements, updates = staged(world)
    first = world.catalog.tables.commit(SLOT, requirements, updates, repeat=repeat(1))
    later = [{"action": "set-properties", "updates": {"owner": "another"}}]
    second = world.catalog.tables.commit(SLOT, [], later)
    again = world.another().tables.commit(SLOT, requirements, updates, repeat=repeat(1))
    assert again.location == second.location != first.location
    assert again.parsed["properties"]["owner"] == "another"


def test_a_namespace_that_others_change_each_time_is_a_conflict(world: World) -> None:
    changed = 0

    def change(other: Catalog) -> None:
        nonlocal changed
        changed += 1
        other.namespaces.update(("ns",), updates={"n": str(changed)}, removals=[])

    world.store.plan = before_each_put(world, namespace_key(("ns",)), change, times=ATTEMPTS_MAX)
    with pytest.raises(ConflictError, match=r"namespace ns: others .* \d+ times meanwhile") as caught:
        world.catalog.namespaces.update(("ns",), updates={"mine": "1"}, removals=[])
    assert 1 < changed < ATTEMPTS_MAX, "a limited number of attempts"
    assert f" {changed} times" in caught.value.message
    world.store.plan = no_faults
    assert "mine" not in world.healthy().namespaces.load(("ns",))
    world.catalog.namespaces.update(("ns",), updates={"mine": "1"}, removals=[])
    assert world.healthy().namespaces.load(("ns",))["mine"] == "1"


def test_as_many_tables_as_allowed_are_committed_at_once_and_one_more_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(multi_table_commit, "TABLES_MAX", 2)
    world = small_world()
    for slot in (A, B, SLOT):
        world.catalog.tables.create(slot, NEW)
    world.catalog.together.commit([set_on(A, "x"), set_on(B, "x")])
    assert all(world.healthy().tables.load(slot).parsed["properties"].get("x") for slot in (A, B))
    with pytest.raises(InvalidError, match="Cannot commit 3 tables at once: give at least 1 and at most 2"):
        world.catalog.together.commit([set_on(slot, "y") for slot in (A, B, SLOT)])
    assert "y" not in world.healthy().tables.load(A).parsed["properties"]
