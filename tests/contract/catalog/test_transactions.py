"""Changes of several objects are atomic at every moment, whatever fails, crashes or is late (I2, I3, I7)."""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson
import pytest

from tarn.adapters.store import MemoryStore
from tarn.core.errors import (
    ConflictError,
    InvalidError,
    NoSuchTableError,
    OutcomeUnknownError,
    TarnError,
    UnavailableError,
)
from tarn.core.naming import (
    CLAIMS_PREFIX,
    NAMESPACES_PREFIX,
    POINTERS_PREFIX,
    TRANSACTIONS_PREFIX,
    WarehouseLayout,
)
from tarn_catalog.operations import multi_table_commit
from tarn_catalog.operations.catalog import Catalog
from tarn_catalog.operations.identifiers import CreateTableRequest, TableIdentifier
from tarn_catalog.operations.multi_table_commit import Change
from tarn_catalog.operations.views import CreateViewRequest, parsed
from tarn_catalog.state.register import RetryPolicy
from tarn_catalog.testing.faulty_store import Crash, Fault, FaultyStore, Op, no_faults
from tests.contract.catalog.schedule import POOLS, Alone, Schedule
from tests.contract.catalog.test_commits import SLOT, World, append, repeat, staged
from tests.support.plays import seeds

ROOTS = WarehouseLayout(base="s3://tarn")
SCHEMA = {"type": "struct", "fields": [{"id": 1, "name": "x", "type": "long", "required": False}]}
NEW = CreateTableRequest(schema=SCHEMA, properties={})
A, B = TableIdentifier.of(("ns",), "a"), TableIdentifier.of(("two",), "b")
SEEDS = int(os.environ.get("TARN_TEST_SEEDS", "0")) or len(seeds(300))
INTENT_WAIT_MS = 60


def seen(store: MemoryStore) -> dict[str, str]:
    """What a reader sees now, name -> table UUID; resolved without the code under test."""
    names: dict[str, str] = {}
    for listed in store.list(POINTERS_PREFIX):
        value = orjson.loads(store.get(listed.key).data)
        fields = {**value, **value["intent"]["then"]} if committed(store, value) else value
        if fields["state"] == "live":
            names[".".join((*value["namespace"], value["name"]))] = fields["table-uuid"]
    return names


def committed(store: MemoryStore, value: dict[str, Any]) -> bool:
    record = (value.get("intent") or {}).get("record")
    stored = store.get(record) if record else None
    return stored is not None and orjson.loads(stored.data)["state"] == "committed"


def purged(store: MemoryStore) -> set[str]:
    found = set()
    for listed in store.list(CLAIMS_PREFIX):
        value = orjson.loads(store.get(listed.key).data)
        fields = {**value, **value["intent"]["then"]} if committed(store, value) else value
        if fields["purge"] is not None:
            found.add(value["table-uuid"])
    return found


def namespaces(store: MemoryStore) -> set[str]:
    values = [orjson.loads(store.get(listed.key).data) for listed in store.list(NAMESPACES_PREFIX)]
    return {".".join(value["namespace"]) for value in values if value["state"] != "dropped"}


def check(store: MemoryStore) -> dict[str, str]:
    """Check the invariants that hold at every moment of every run; returns the names."""
    names = seen(store)
    doubles = [uuid for uuid, count in Counter(names.values()).items() if count > 1]
    assert not doubles, f"a table has two names: {names}"
    gone = purged(store).intersection(names.values())
    assert not gone, f"a table whose files are to go has a name: {gone}"
    there = namespaces(store)
    lost = [name for name in names if name.rsplit(".", 1)[0] not in there]
    assert not lost, f"a table in a namespace that is gone: {lost}"
    return names


# -- a crash at every step


def small_world() -> World:
    world = World()
    world.catalog.namespaces.create(("two",), {})
    return world


OPERATIONS: dict[str, Callable[[Catalog, str], object]] = {
    "rename": lambda catalog, _: catalog.names.rename(A, B),
    "purge": lambda catalog, _: catalog.names.purge(A),
    "create": lambda catalog, _: catalog.tables.create(B, NEW),
    "register": lambda catalog, location: catalog.names.register(B, location),
}


def place(name: str) -> TableIdentifier:
    *levels, last = name.split(".")
    return TableIdentifier.of(tuple(levels), last)


def view(name: str) -> TableIdentifier:
    *levels, last = name.split(".")
    return TableIdentifier.of(tuple(levels), last, "view")


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("how", [Fault.CRASH, Fault.CRASH_DONE])
def test_killed_at_any_step_it_is_done_or_not_and_hinders_nobody(
    operation: str, how: Fault, record_property
) -> None:
    outcomes: Counter[str] = Counter()
    for at in itertools.count(1):
        world = small_world()
        first = world.catalog.tables.create(A, NEW)
        uuid = first.parsed["table-uuid"]
        if operation == "register":
            world.catalog.tables.drop(A)
        steps = itertools.count(1)
        world.store.plan = lambda _, steps=steps, at=at: how if next(steps) == at else None
        killed = False
        try:
            OPERATIONS[operation](world.another(), first.location)
        except Crash:
            killed = True
        world.store.plan = no_faults
        after = check(world.memory)
        new = [found for found in after.values() if found != uuid]
        allowed = {
            "rename": [{"ns.a": uuid}, {"two.b": uuid}],
            "purge": [{"ns.a": uuid}, {}],
            "register": [{}, {"two.b": uuid}],
            "create": [{"ns.a": uuid}, {"ns.a": uuid, "two.b": new[0] if new else None}],
        }[operation]
        assert after in allowed, f"{operation} killed at {at}"
        assert killed or after == allowed[1]
        outcomes["done" if after == allowed[1] else "not done"] += 1
        healthy = world.healthy()
        for name, found in after.items():
            assert healthy.tables.load(place(name)).parsed["table-uuid"] == found
            healthy.tables.commit(place(name), *append(1, None, 1))
            assert world.pointer(place(name)).intent is None
        for slot in (A, B):
            if slot.text not in after:
                with pytest.raises(NoSuchTableError):
                    healthy.tables.load(slot)
                healthy.tables.create(slot, NEW)
        assert list(check(world.memory)) == ["ns.a", "two.b"]
        for slot in (A, B):
            assert list(healthy.namespaces.list_tables(slot.namespace, kind="table").names) == [
                (*slot.namespace, slot.name)
            ]
            healthy.tables.drop(slot)
            healthy.namespaces.drop(slot.namespace)
        if not killed:
            break
    record_property("outcomes", dict(outcomes))
    assert min(outcomes["done"], outcomes["not done"]) >= (1 if operation == "create" else 4), outcomes


def effective(store: MemoryStore, slot: TableIdentifier) -> str:
    value = orjson.loads(store.get(slot.key).data)
    fields = {**value, **value["intent"]["then"]} if committed(store, value) else value
    return str(fields["metadata-location"])


def set_on(slot: TableIdentifier, name: str, *, uuid: str | None = None) -> Change:
    requirements = [{"type": "assert-table-uuid", "uuid": uuid}] if uuid else []
    return Change(
        slot=slot,
        requirements=requirements,
        updates=[{"action": "set-properties", "updates": {name: "1"}}],
    )


@pytest.mark.parametrize("how", [Fault.CRASH, Fault.CRASH_DONE])
def test_a_commit_to_two_tables_killed_at_any_step_is_in_both_or_in_none(how: Fault, record_property) -> None:
    outcomes: Counter[bool] = Counter()
    for at in itertools.count(1):
        world = small_world()
        uuids = {slot: world.catalog.tables.create(slot, NEW).parsed["table-uuid"] for slot in (A, B)}
        before = [effective(world.memory, slot) for slot in (A, B)]
        steps = itertools.count(1)

        def plan(_: Op, world=world, before=before, steps=steps, at=at) -> Fault | None:
            now = [effective(world.memory, slot) for slot in (A, B)]
            moved = [old != new for old, new in zip(before, now, strict=True)]
            assert moved[0] == moved[1], "a reader sees half of it"
            return how if next(steps) == at else None

        world.store.plan = plan
        killed = False
        try:
            world.another().together.commit([set_on(slot, "both", uuid=uuids[slot]) for slot in (B, A)])
        except Crash:
            killed = True
        world.store.plan = no_faults
        healthy = world.healthy()
        found = ["both" in healthy.tables.load(slot).parsed["properties"] for slot in (A, B)]
        assert found[0] == found[1], f"killed at {at}"
        outcomes[found[0]] += 1
        healthy.together.commit([set_on(A, "later"), set_on(B, "later")])
        for slot in (A, B):
            properties = healthy.tables.load(slot).parsed["properties"]
            assert ("both" in properties, properties["later"]) == (found[0], "1")
            assert world.pointer(slot).intent is None
        if not killed:
            assert found[0]
            break
    record_property("outcomes", {str(done): count for done, count in outcomes.items()})
    assert min(outcomes.values()) > 3, outcomes


def test_an_intent_whose_record_is_gone_never_happened() -> None:
    """A record is deleted only once nothing needs it; a lost one must not turn into a commit."""
    for at in itertools.count(1):
        world = small_world()
        uuids = {slot: world.catalog.tables.create(slot, NEW).parsed["table-uuid"] for slot in (A, B)}
        steps = itertools.count(1)
        world.store.plan = lambda _, steps=steps, at=at: Fault.CRASH if next(steps) == at else None
        with pytest.raises(Crash):
            world.another().together.commit([set_on(slot, "both", uuid=uuids[slot]) for slot in (A, B)])
        world.store.plan = no_faults
        intents = [world.pointer(slot).intent for slot in (A, B)]
        if all(intent is not None and intent.record is not None for intent in intents):
            break
    (record,) = world.memory.list(TRANSACTIONS_PREFIX)
    world.memory.delete(record.key)
    healthy = world.healthy()
    for slot in (A, B):
        assert "both" not in healthy.tables.load(slot).parsed["properties"]
    healthy.together.commit([set_on(A, "later"), set_on(B, "later")])
    for slot in (A, B):
        assert "both" not in healthy.tables.load(slot).parsed["properties"]
        assert world.pointer(slot).intent is None


def test_a_commit_to_several_tables_holds_all_requirements_or_changes_nothing() -> None:
    world = small_world()
    catalog = world.catalog
    uuids = {slot: catalog.tables.create(slot, NEW).parsed["table-uuid"] for slot in (A, B)}
    stale = Change(slot=B, requirements=append(1, 7, 1)[0], updates=[])
    with pytest.raises(ConflictError, match="branch or tag main is missing, expected 7"):
        catalog.together.commit([set_on(A, "x"), stale])
    with pytest.raises(NoSuchTableError, match=re.escape("Table does not exist: ns.t")):
        catalog.together.commit([set_on(A, "x"), set_on(TableIdentifier.of(("ns",), "t"), "x")])
    with pytest.raises(InvalidError, match=r"ns\.a named twice"):
        catalog.together.commit([set_on(A, "x"), set_on(A, "y")])
    with pytest.raises(InvalidError, match="give at least 1"):
        catalog.together.commit([])
    assert "x" not in catalog.tables.load(A).parsed["properties"]
    changes = [set_on(A, "x", uuid=uuids[A]), set_on(B, "x", uuid=uuids[B])]
    catalog.together.commit(changes, repeat=repeat(1, "commit-tables:1"))
    gone = [{"action": "remove-properties", "removals": ["x"]}]
    catalog.tables.commit(A, [], gone)
    world.another().together.commit(changes, repeat=repeat(1, "commit-tables:1"))
    assert "x" not in world.healthy().tables.load(A).parsed["properties"], "not done a second time"
    assert "x" in world.healthy().tables.load(B).parsed["properties"]
    snapshots = [
        Change(slot=slot, requirements=r, updates=u) for slot in (A, B) for r, u in [append(1, None, 1)]
    ]
    catalog.together.commit(snapshots)
    world.another().together.commit(snapshots)
    assert [len(catalog.tables.load(slot).parsed["snapshots"]) for slot in (A, B)] == [1, 1]


def test_the_updates_of_all_tables_count_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes long for one table takes no less time when it is a hundred tables."""
    world = small_world()
    catalog = world.catalog
    for slot in (A, B):
        catalog.tables.create(slot, NEW)

    def specs(slot: TableIdentifier, count: int) -> Change:
        spec = [{"source-id": 1, "transform": "bucket[8]", "name": "b"}]
        update = {"action": "add-spec", "spec": {"spec-id": -1, "fields": spec}}
        return Change(slot=slot, requirements=[], updates=[update] * count)

    with pytest.raises(InvalidError, match="Cannot apply 101 updates add-spec in one commit: at most 100"):
        catalog.together.commit([specs(A, 50), specs(B, 51)])
    catalog.together.commit([specs(A, 50), specs(B, 50)])
    monkeypatch.setattr(multi_table_commit, "UPDATES_MAX", 3)
    many = [replace(set_on(slot, "x"), updates=[*set_on(slot, "x").updates] * 2) for slot in (A, B)]
    with pytest.raises(InvalidError, match="Cannot apply 4 updates to 2 tables at once: at most 3"):
        catalog.together.commit(many)
    assert all("x" not in catalog.tables.load(slot).parsed["properties"] for slot in (A, B))
    alone = replace(many[0], updates=[*many[0].updates] * 2)
    catalog.together.commit([alone])
    assert "x" in catalog.tables.load(A).parsed["properties"]


def test_a_staged_create_and_a_commit_elsewhere_are_one() -> None:
    world = small_world()
    requirements, updates = staged(world)
    world.catalog.tables.create(B, NEW)
    new = TableIdentifier.of(("ns",), "t")
    bad = Change(slot=B, requirements=append(1, 7, 1)[0], updates=[])
    create = Change(slot=new, requirements=requirements, updates=updates)
    with pytest.raises(ConflictError, match="main is missing"):
        world.catalog.together.commit([create, bad])
    assert not world.catalog.tables.exists(new)
    requirements, updates = staged(world)
    create = Change(slot=new, requirements=requirements, updates=updates)
    world.catalog.together.commit([create, set_on(B, "beside")])
    assert world.another().tables.load(new).parsed["properties"]["owner"] == "me"
    assert world.another().tables.load(B).parsed["properties"]["beside"] == "1"


# -- one table, one name


def test_a_register_behind_the_back_of_a_create_ends_the_create() -> None:
    """The first metadata file exists before the create has its name."""
    world = small_world()
    requirements, updates = staged(world)
    table_uuid = updates[0]["uuid"]
    location = f"{updates[8]['location']}/metadata/00000-{table_uuid}.metadata.json"
    other = world.healthy()
    registered: list[str] = []

    def plan(op: Op) -> Fault | None:
        if op.key == SLOT.key and op.kind == "put" and not registered:
            registered.append(other.names.register(B, location).location)
        return None

    world.store.plan = plan
    with pytest.raises(ConflictError, match="was registered meanwhile"):
        world.catalog.tables.commit(SLOT, requirements, updates)
    assert registered == [location]
    assert check(world.memory) == {"two.b": table_uuid}


def test_a_repeat_of_a_commit_that_came_before_a_rename_is_done_not_refused() -> None:
    """A client whose response was lost would otherwise get "no such table" and delete files in use."""
    world = small_world()
    catalog = world.catalog
    catalog.tables.create(A, NEW)
    catalog.tables.commit(A, *append(1, None, 1), repeat=repeat(1))
    catalog.names.rename(A, B)
    catalog.names.rename(B, TableIdentifier.of(("ns",), "c"))
    for key in (repeat(1), None):
        again = world.another().tables.commit(A, *append(1, None, 1), repeat=key)
        assert [s["snapshot-id"] for s in again.parsed["snapshots"]] == [1]
    for slot, number, key in ((A, 2, repeat(2)), (B, 2, None)):
        with pytest.raises(NoSuchTableError, match=re.escape(f"Table does not exist: {slot.text}")):
            world.another().tables.commit(slot, *append(number, 1, 2), repeat=key)
    catalog.tables.create(A, NEW)
    with pytest.raises(ConflictError):
        catalog.tables.commit(A, *append(2, 1, 2))


def killed_in_a_rename() -> World:
    """A lake whose replica was killed when its rename of A to B had intents on both names."""
    world = small_world()
    world.catalog.tables.create(A, NEW)
    steps = itertools.count(1)
    world.store.plan = lambda _: Fault.CRASH if next(steps) == 9 else None
    with pytest.raises(Crash):
        world.another().names.rename(A, B)
    return world


def test_an_intent_is_waited_for_and_then_aborted_by_a_writer_never_by_a_reader() -> None:
    world = killed_in_a_rename()
    world.store.plan = no_faults
    assert world.pointer(A).intent is not None
    before = {listed.key: listed.etag for listed in world.memory.list("")}
    healthy = world.healthy()
    assert healthy.tables.exists(A)
    assert not healthy.tables.exists(B)
    assert list(healthy.namespaces.list_tables(("ns",), kind="table").names) == [("ns", "a")]
    assert {listed.key: listed.etag for listed in world.memory.list("")} == before
    waited: list[float] = []
    seconds = [0.0]

    def sleep(wait_s: float) -> None:
        waited.append(wait_s)
        seconds[0] += wait_s

    patient = Catalog(
        world.memory, ROOTS, patience=RetryPolicy(clock=lambda: seconds[0], sleep=sleep), now_ms=world.time
    )
    patient.tables.commit(A, *append(1, None, 1))
    assert 2.0 <= sum(waited) < 2.2
    (record,) = [orjson.loads(world.memory.get(f.key).data) for f in world.memory.list(TRANSACTIONS_PREFIX)]
    assert record["state"] == "aborted"
    assert world.pointer(B).intent is not None, "nobody has come by there yet"
    healthy.tables.create(B, NEW)
    assert check(world.memory).keys() == {"ns.a", "two.b"}


def test_an_object_that_changes_at_every_look_is_read_again_after_a_pause() -> None:
    """Its record was deleted and it is replaced before each second read, so that nothing is decided."""
    world = killed_in_a_rename()
    (record,) = world.memory.list(TRANSACTIONS_PREFIX)
    world.memory.delete(record.key)
    looks: list[str] = []

    def plan(op: Op) -> Fault | None:
        if op.key == record.key:
            looks.append(op.key)
            stored = world.memory.get(A.key)
            value = {**orjson.loads(stored.data), "nonce": f"n{len(looks)}"}
            world.memory.put(A.key, orjson.dumps(value), if_match=stored.etag)
        return None

    world.store.plan = plan
    seconds: list[float] = []
    patient = Catalog(
        world.store, ROOTS, patience=RetryPolicy(clock=lambda: sum(seconds), sleep=seconds.append)
    )
    with pytest.raises(UnavailableError, match="do not finish; try again"):
        patient.tables.load(A)
    assert (len(looks), len(seconds)) == (20, 19)
    looks.clear()
    seconds.clear()
    with pytest.raises(UnavailableError, match="do not finish; try again"):
        patient.tables.commit(A, *append(1, None, 1))
    assert len(looks) == len(seconds) == pytest.approx(1500, abs=2), "30 s at one look every 20 ms"


# -- many actors under faults


class Watched(MemoryStore):
    """Calls a function after every change."""

    def __init__(self) -> None:
        super().__init__()
        self.changed: Callable[[], None] = lambda: None

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None) -> str:
        etag = super().put(key, data, if_absent=if_absent, if_match=if_match)
        self.changed()
        return etag

    def delete(self, key: str) -> None:
        super().delete(key)
        self.changed()


class Outcomes:
    """Number of operations confirmed as done, and number with an unknown outcome."""

    def __init__(self) -> None:
        self.sure: Counter[str] = Counter()
        self.open: Counter[str] = Counter()

    def run(self, what: str, operation: Callable[[], object]) -> None:
        """Record the outcome of an operation. Rejected, conflicting or unavailable means: not done."""
        self.open[what] += 1
        try:
            operation()
        except (Crash, OutcomeUnknownError):
            raise
        except TarnError:
            self.open[what] -= 1
            raise
        self.open[what] -= 1
        self.sure[what] += 1

    def fits(self, seen: Counter[str]) -> None:
        for what in {*self.sure, *self.open, *seen}:
            least, most = self.sure[what], self.sure[what] + self.open[what]
            assert least <= seen[what] <= most, f"{what}: at least {least}, at most {most}, seen {seen[what]}"


def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every operation of the catalog run in the thread that calls it."""
    for name in POOLS:
        monkeypatch.setattr(name, Alone)


NAMES = ("ns.a", "ns.c", "two.b", "two.d")
# Kinds of play: all actions; a namespace created and dropped; one table with many contenders for its name;
# tables and views in turn under the same names.
KINDS = (
    {
        **{"rename": 6, "commit": 4, "both": 4, "read": 4, "create": 3},
        **{"drop": 1, "purge": 1, "register": 2, "ns": 1},
    },
    {"rename": 3, "create": 4, "drop": 3, "register": 1, "ns": 6},
    {"rename": 5, "register": 6, "drop": 2, "purge": 1, "commit": 1},
    {
        **{"create_view": 5, "rename_view": 3, "drop_view": 3, "commit_view": 4},
        **{"create": 4, "rename": 2, "drop": 2, "commit": 2, "read": 2, "ns": 1},
    },
)
VIEWS = 3
VIEW = CreateViewRequest(
    schema=SCHEMA,
    version={
        **{"version-id": 1, "timestamp-ms": 1, "schema-id": 0, "summary": {}, "default-namespace": ["ns"]},
        "representations": [{"type": "sql", "sql": "select 1", "dialect": "spark"}],
    },
    properties={},
)


class Play:
    """Actors on replicas of their own, under one schedule."""

    def __init__(self, seed: int) -> None:
        self.store = Watched()
        self.schedule = Schedule(seed, fault_share=(0.0, 0.05, 0.15)[seed % 3])
        self.chance = self.schedule.chance
        self.faulty = FaultyStore(self.store, late_ops=self.chance.randrange(1, 60))
        self.outcomes = Outcomes()
        self.seen: Counter[str] = Counter()
        self.history: list[dict[str, str]] = [{}]
        self.reads = 0
        self.rolled: set[str] = set()
        self.properties: dict[str, tuple[set[str], set[str]]] = {}
        self.pairs: list[tuple[str, tuple[str, ...]]] = []
        self.numbers = itertools.count(1)
        self.kind = seed // 3 % len(KINDS)
        healthy = self.healthy()
        for ns in ("ns", "two"):
            healthy.namespaces.create((ns,), {})
        tables = ("ns.a", "two.b") if self.kind == 0 else ("ns.a",)
        self.locations = [healthy.tables.create(place(name), NEW).location for name in tables]
        self.history = [check(self.store)]
        self.store.changed = self.look
        self.faulty.plan = self.schedule.plan

    def healthy(self) -> Catalog:
        return Catalog(self.store, ROOTS, patience=self.patience(), intent_wait_ms=INTENT_WAIT_MS)

    def patience(self) -> RetryPolicy:
        return RetryPolicy(
            attempts_max=3, clock=self.schedule.clock, sleep=self.schedule.sleep, chance=lambda: 0.5
        )

    def look(self) -> None:
        """After every change of the store: check the invariants and record what a reader sees as done."""
        before, after = self.history[-1], check(self.store)
        if after == before:
            return
        self.history.append(after)
        was, now = ({uuid: name for name, uuid in names.items()} for names in (before, after))
        for uuid in {*was, *now}:
            if was.get(uuid) == now.get(uuid):
                continue
            if uuid in was and uuid in now:
                self.seen[f"rename {was[uuid]} {now[uuid]}"] += 1
            else:
                self.seen[f"drop {was[uuid]}" if uuid in was else f"create {now[uuid]}"] += 1

    def actor(self) -> Callable[[], None]:
        catalog = Catalog(self.faulty, ROOTS, patience=self.patience(), intent_wait_ms=INTENT_WAIT_MS)
        kind = KINDS[self.kind]
        actions = self.chance.choices(
            list(kind), weights=list(kind.values()), k=self.chance.choice((1, 2, 3, 4))
        )
        steps = [(action, *self.chance.sample(NAMES, 2)) for action in actions]

        def act() -> None:
            for action, one, other in steps:
                there = sorted(self.history[-1])
                if (
                    action not in ("create", "create_view", "register")
                    and there
                    and self.chance.random() < 0.8
                ):
                    one = self.chance.choice(there)
                try:
                    getattr(self, f"_{action}")(catalog, one, other)
                except TarnError:
                    continue

        return act

    def _rename(self, catalog: Catalog, one: str, other: str) -> None:
        self.outcomes.run(f"rename {one} {other}", lambda: catalog.names.rename(place(one), place(other)))

    def _rename_view(self, catalog: Catalog, one: str, other: str) -> None:
        self.outcomes.run(f"rename {one} {other}", lambda: catalog.names.rename(view(one), view(other)))

    def _create_view(self, catalog: Catalog, one: str, _: str) -> None:
        self.outcomes.run(f"create {one}", lambda: catalog.views.create(view(one), VIEW))

    def _drop_view(self, catalog: Catalog, one: str, _: str) -> None:
        self.outcomes.run(f"drop {one}", lambda: catalog.tables.drop(view(one)))

    def _create(self, catalog: Catalog, one: str, _: str) -> None:
        self.outcomes.run(f"create {one}", lambda: catalog.tables.create(place(one), NEW))

    def _drop(self, catalog: Catalog, one: str, _: str) -> None:
        self.outcomes.run(f"drop {one}", lambda: catalog.tables.drop(place(one)))

    def _purge(self, catalog: Catalog, one: str, _: str) -> None:
        self.outcomes.run(f"drop {one}", lambda: catalog.names.purge(place(one)))

    def _register(self, catalog: Catalog, one: str, _: str) -> None:
        location = self.chance.choice(self.locations)
        self.rolled.add(location.split("/00000-")[1].removesuffix(".metadata.json"))
        self.outcomes.run(f"create {one}", lambda: catalog.names.register(place(one), location))

    def _ns(self, catalog: Catalog, one: str, _: str) -> None:
        ns = place(one).namespace if self.kind == 0 else ("two",)
        try:
            catalog.namespaces.drop(ns)
        finally:
            catalog.namespaces.create(ns, {})

    def _commit(self, catalog: Catalog, one: str, _: str) -> None:
        base = catalog.tables.load(place(one)).parsed
        sure, maybe = self.properties.setdefault(base["table-uuid"], (set(), set()))
        name = f"k{next(self.numbers)}"
        maybe.add(name)
        require = {"type": "assert-table-uuid", "uuid": base["table-uuid"]}
        self._change(lambda updates: catalog.tables.commit(place(one), [require], updates), name, sure, maybe)

    def _commit_view(self, catalog: Catalog, one: str, _: str) -> None:
        base = parsed(catalog.tables.load(view(one)))
        sure, maybe = self.properties.setdefault(base["view-uuid"], (set(), set()))
        name = f"k{next(self.numbers)}"
        maybe.add(name)
        require = {"type": "assert-view-uuid", "uuid": base["view-uuid"]}
        self._change(lambda updates: catalog.views.commit(view(one), [require], updates), name, sure, maybe)

    @staticmethod
    def _change(
        commit: Callable[[list[dict[str, Any]]], object], name: str, sure: set[str], maybe: set[str]
    ) -> None:
        try:
            commit([{"action": "set-properties", "updates": {name: "1"}}])
        except OutcomeUnknownError:
            raise
        except TarnError:
            maybe.remove(name)
            raise
        sure.add(name)

    def _both(self, catalog: Catalog, one: str, other: str) -> None:
        slots = {place(one), place(other)}
        uuids = {slot: catalog.tables.load(slot).parsed["table-uuid"] for slot in sorted(slots, key=str)}
        name = f"k{next(self.numbers)}"
        known = [self.properties.setdefault(uuid, (set(), set())) for uuid in uuids.values()]
        for _, maybe in known:
            maybe.add(name)
        self.pairs.append((name, tuple(uuids.values())))
        try:
            catalog.together.commit([set_on(slot, name, uuid=uuid) for slot, uuid in uuids.items()])
        except OutcomeUnknownError:
            raise
        except TarnError:
            for _, maybe in known:
                maybe.discard(name)
            raise
        for sure, _ in known:
            sure.add(name)

    def _read(self, catalog: Catalog, one: str, _: str) -> None:
        began = len(self.history) - 1
        try:
            found = catalog.tables.load(place(one)).parsed["table-uuid"]
        except NoSuchTableError:
            if self.kind == VIEWS:
                return  # a view may have the name, which is another request to find out
            found = None
        held = {names.get(one) for names in self.history[began:]}
        assert found in held, f"a reader of {one} saw {found}, it held {held}"
        self.reads += 1

    def run(self, actors: int) -> None:
        plays = {f"actor {number}": self.actor() for number in range(actors)}
        crash_at = {
            name: (self.chance.randrange(1, 30), self.chance.choice((Fault.CRASH, Fault.CRASH_DONE)))
            for name in plays
            if self.chance.random() < 0.4
        }
        self.schedule.run(plays, crash_at=crash_at)
        self.faulty.settle()
        self.outcomes.fits(self.seen)

    def end(self) -> None:
        """Require that nothing is stuck: every table accepts commits and contains every confirmed commit."""
        healthy = self.healthy()
        found_of: dict[str, set[str]] = {}
        for name, uuid in self.history[-1].items():
            last = [{"action": "set-properties", "updates": {"last": "1"}}]
            if healthy.tables.exists(view(name)):
                assert self.kind == VIEWS
                meta = healthy.views.commit(
                    view(name), [{"type": "assert-view-uuid", "uuid": uuid}], last
                ).parsed
            else:
                meta = healthy.tables.commit(
                    place(name), [{"type": "assert-table-uuid", "uuid": uuid}], last
                ).parsed
            found = found_of[uuid] = set(meta["properties"])
            sure, maybe = self.properties.get(uuid, (set(), set()))
            if uuid not in self.rolled:
                assert sure <= found, f"commits to {name} are lost: {sure - found}"
            assert {one for one in found if one[0] == "k"} <= sure | maybe, "a refused commit is there"
            assert orjson.loads(self.store.get(place(name).key).data)["intent"] is None
        for key, uuids in self.pairs:
            held = {key in found_of[uuid] for uuid in uuids if uuid in found_of and uuid not in self.rolled}
            assert len(held) < 2, f"{key} is in one of two tables"
        free = [name for name in NAMES if name not in self.history[-1]]
        for name in free:
            if not healthy.namespaces.exists(place(name).namespace):
                healthy.namespaces.create(place(name).namespace, {})
            healthy.tables.create(place(name), NEW)
        assert set(self.history[-1]) == set(NAMES)


@pytest.mark.plays
def test_actors_under_faults_and_kills_leave_everything_whole(
    record_property, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each seed is a separate play; TARN_TEST_SEEDS asks for more of them."""
    alone(monkeypatch)
    counts: Counter[str] = Counter()
    for seed in range(SEEDS):
        play = Play(seed)
        try:
            play.run(actors=2 + seed % 3)
            play.end()
        except BaseException as error:
            error.add_note(
                f"seed {seed}: done {play.outcomes.sure} open {play.outcomes.open} seen {play.seen}"
            )
            raise
        counts.update({what.split()[0]: count for what, count in Counter(play.seen).items()})
        counts.update(
            {
                "pairs": len(play.pairs),
                "steps": play.schedule.steps,
                "faults": play.schedule.faults,
                "kills": play.schedule.crashes,
                "reads": play.reads,
                "open": sum(play.outcomes.open.values()),
            }
        )
    record_property("counts", {"seeds": SEEDS, **counts})
    with capsys.disabled():
        sys.stdout.write(f" {SEEDS} seeds: {dict(counts)} ")
    assert (
        min(counts[what] for what in ("rename", "drop", "create", "kills", "faults", "reads")) > SEEDS // 20
    )
