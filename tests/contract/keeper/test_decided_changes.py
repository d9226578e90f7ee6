"""A change of several objects that is decided and that nobody applied: its writer was killed in between.

Readers see the new values by the transaction's record, so backup, fsck and the reaper go by them too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tarn.adapters.bulk import PlainBulk
from tarn.adapters.store import MemoryStore
from tarn.core.audit.model import Kind
from tarn.core.naming import WarehouseLayout
from tarn.core.object_store import Stored, StoreDeniedError
from tarn_catalog.operations.catalog import Catalog
from tarn_catalog.operations.multi_table_commit import Change
from tarn_catalog.operations.tables import TableIdentifier
from tests.contract.keeper.conftest import World, plain
from tests.contract.keeper.reaping import GRACES, Clocked
from tests.contract.keeper.test_backup import put, reaper_of, take
from tests.support.lake import BUCKET

MINUTE_MS = 60_000
Json = dict[str, Any]
ONE, TWO = (TableIdentifier.of(("gold",), name) for name in ("one", "two"))
NEW = TableIdentifier.of(("bronze",), "new")


class Killed(MemoryStore):
    """Takes no write any more, from the one after the decision on, or later."""

    decision = b'"committed"'
    more = 0
    dead = False

    def put(self, key: str, data: bytes, **how: Any) -> str:
        if self.dead:
            if self.more == 0:
                raise StoreDeniedError("the process is killed")
            self.more -= 1
        etag = super().put(key, data, **how)
        self.dead = self.dead or ("/transactions/" in key and self.decision in data)
        return etag

    def delete(self, key: str) -> None:
        if self.dead:
            raise StoreDeniedError("the process is killed")
        super().delete(key)


def together(catalog: Catalog) -> None:
    updates = [{"action": "set-properties", "updates": {"both": "yes"}}]
    catalog.together.commit([Change(slot=slot, requirements=[], updates=updates) for slot in (ONE, TWO)])


def rename(catalog: Catalog) -> None:
    catalog.names.rename(ONE, NEW)


def purge(catalog: Catalog) -> None:
    catalog.names.purge(ONE)


def register(catalog: Catalog) -> None:
    location = catalog.tables.load(TWO).location
    catalog.tables.drop(TWO)
    catalog.names.register(NEW, location)


CHANGES = pytest.mark.parametrize("change", [together, rename, purge, register])


def seen(catalog: Catalog) -> dict[str, Json | None]:
    """What readers of the lake see of each name."""
    tables = catalog.tables
    return {slot.text: tables.load(slot).parsed if tables.exists(slot) else None for slot in (ONE, TWO, NEW)}


def catalog_of(store: MemoryStore) -> Catalog:
    return Catalog(store, WarehouseLayout(base=f"s3://{BUCKET}"))


def killed(world: World, change: Callable[[Catalog], None], **how: Any) -> World:
    """The lake after a change whose writer was killed, and a store that takes writes again."""
    store = Killed()
    store._objects = world.store._objects
    for slot in (ONE, TWO):
        world.catalog.tables.create(slot, plain("x"))
    for name, value in how.items():
        setattr(store, name, value)
    try:
        change(catalog_of(store))
    except StoreDeniedError:
        assert how.get("decision")
    assert store.dead
    return World(world.store)


@CHANGES
@pytest.mark.parametrize("more", [0, 1])
def test_it_is_in_a_backup_and_no_finding(world: World, change: Callable[[Catalog], None], more: int) -> None:
    world = killed(world, change, more=more)
    before = seen(world.catalog)
    assert before != {ONE.text: None, TWO.text: None, NEW.text: None}
    assert world.fsck().findings == []
    data, done = take(world.bulk)
    assert done.whole
    assert done.end.tables == 3 + sum(value is not None for value in before.values())
    fresh = MemoryStore()
    put(data, fresh)
    assert seen(catalog_of(fresh)) == before
    assert World(fresh).fsck().findings == []
    # What readers see is what the next writer goes on with.
    for slot, value in ((ONE, before[ONE.text]), (TWO, before[TWO.text]), (NEW, before[NEW.text])):
        if value is not None:
            updates = [{"action": "set-properties", "updates": {"later": "yes"}}]
            catalog_of(fresh).tables.commit(slot, [], updates)
    assert World(fresh).fsck().damage == []
    assert {
        name: value and value["properties"].get("both") for name, value in seen(catalog_of(fresh)).items()
    } == {name: value and value["properties"].get("both") for name, value in before.items()}


@CHANGES
def test_one_that_is_not_decided_is_none_and_stays_a_note(
    world: World, change: Callable[[Catalog], None]
) -> None:
    world = killed(world, change, decision=b'"pending"', more=2)
    before = seen(world.catalog)
    report = world.fsck()
    assert report.damage == []
    assert {finding.kind for finding in report.notes} >= {Kind.PENDING}
    data, done = take(world.bulk)
    assert done.whole
    fresh = MemoryStore()
    put(data, fresh)
    assert seen(catalog_of(fresh)) == before
    assert World(fresh).fsck().damage == []


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("at", [ONE, TWO])
def test_one_that_is_decided_while_pointers_are_read_is_whole_or_not_there(
    world: World, at: TableIdentifier, more: int
) -> None:
    store = Killed()
    store._objects = world.store._objects
    store.more = more
    for slot in (ONE, TWO):
        world.catalog.tables.create(slot, plain("x"))

    class Between(PlainBulk):
        left = 1

        def get(self, key: str) -> Stored | None:
            found = super().get(key)
            if key == at.key and self.left:
                self.left = 0
                together(catalog_of(store))
            return found

    data, done = take(Between(world.store))
    assert done.whole
    fresh = MemoryStore()
    put(data, fresh)
    found = seen(catalog_of(fresh))
    both = [(found[slot.text] or {})["properties"].get("both") for slot in (ONE, TWO)]
    assert both in ([None, None], ["yes", "yes"])
    assert World(fresh).fsck().damage == []


@CHANGES
def test_the_reaper_goes_by_it(world: World, change: Callable[[Catalog], None]) -> None:
    world = killed(world, change)
    before = seen(world.catalog)
    for _ in range(3):
        assert reaper_of(world).run_once().failed == {}
    assert seen(world.catalog) == before
    assert world.fsck().findings == []
    assert take(world.bulk)[1].whole
    if change is purge:
        assert world.keys("/one-") == []
    else:
        assert world.keys("/one-") != []


def dying(lake: Clocked, before_decision: Callable[[], object] = lambda: None) -> Catalog:
    """The catalog of a process that is killed once a change is decided; the lake's own store goes on."""

    class Watched(Killed):
        def put(self, key: str, data: bytes, **how: Any) -> str:
            if "/transactions/" in key and self.decision in data and not self.dead:
                before_decision()
            return super().put(key, data, **how)

    store = Watched(now_ms=lambda: lake.now_ms)
    store._objects = lake.store._objects  # type: ignore[attr-defined]
    return Catalog(store, WarehouseLayout(base=f"s3://{BUCKET}"), now_ms=lambda: lake.now_ms)


def test_a_purge_is_made_a_grace_after_its_decision_not_after_its_intent() -> None:
    """The process may have been suspended between the two."""
    lake = Clocked()
    table = lake.table()
    table.append()
    dying(lake, lambda: lake.wait(60 * MINUTE_MS)).names.purge(table.slot)
    reaper = lake.reaper()
    assert reaper.run_once().purged == 0
    lake.wait(GRACES.files_ms - 1)
    assert reaper.run_once().purged == 0
    assert lake.keys(table.folder) != []
    lake.wait(2)
    assert reaper.run_once().purged > 0
    assert lake.keys(table.folder) == []
    assert reaper.run_once().purged == 0


def test_a_table_whose_change_nobody_applied_is_not_kept_from_the_reaper() -> None:
    lake = Clocked()
    table, other = lake.table(), lake.table("u")
    first = table.append()
    table.append()
    table.expire(first)
    updates = [{"action": "set-properties", "updates": {"both": "yes"}}]
    reaper = lake.reaper()
    dying(lake).together.commit(
        [Change(slot=slot, requirements=[], updates=updates) for slot in (table.slot, other.slot)]
    )
    reaper.run_once()
    lake.wait(60 * MINUTE_MS)
    done = reaper.run_once()
    assert done.failed == {}
    assert done.manifest_lists == 1, done
    assert table.meta()["properties"]["both"] == "yes"
    table.append()
    assert lake.missing() == []


def test_what_was_undecided_in_one_pass_is_looked_up_in_the_next() -> None:
    """The decision changes the record, and not the pointer that the reaper remembers."""
    lake = Clocked()
    table = lake.table()
    table.append()
    reaper = lake.reaper()
    passes: list[int] = []
    dying(lake, lambda: passes.append(reaper.run_once().purged)).names.purge(table.slot)
    lake.wait(GRACES.files_ms)
    assert passes == [0]
    assert reaper.run_once().purged > 0
    assert lake.keys(table.folder) == []


def test_a_claim_that_was_undecided_in_one_pass_is_read_again_in_the_next() -> None:
    """Until its transaction is decided, what it says is not remembered."""
    lake = Clocked()
    table = lake.table()
    table.append()
    reaper = lake.reaper()
    passes: list[int] = []

    def undecided() -> None:
        lake.wait(60 * MINUTE_MS)
        passes.append(reaper.run_once().purged)

    dying(lake, undecided).names.purge(table.slot)
    lake.wait(GRACES.files_ms)
    assert passes == [0]
    assert reaper.run_once().purged > 0
    assert lake.keys(table.folder) == []
