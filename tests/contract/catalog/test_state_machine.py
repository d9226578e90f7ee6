"""The catalog against a plain model: any sequence of requests, with crashes and lost answers.

Requests go to two replicas. After each one a third replica reads the whole catalog, which must be what the
model says. A request that was broken off was carried out or not, nothing in between; one that was refused
changed nothing.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tarn.adapters.store import MemoryStore
from tarn.core.errors import (
    AlreadyExistsError,
    ConflictError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NoSuchViewError,
    NotEmptyError,
    TarnError,
    UnavailableError,
)
from tarn_catalog.operations.catalog import Catalog
from tarn_catalog.operations.identifiers import TableIdentifier
from tarn_catalog.operations.multi_table_commit import Change
from tarn_catalog.operations.views import parsed
from tarn_catalog.state.register import RetryPolicy
from tarn_catalog.testing.faulty_store import Crash, Fault, FaultyStore, Op, no_faults
from tests.contract.catalog.test_transactions import NEW, ROOTS, VIEW, alone
from tests.support.plays import TIMES

EXAMPLES, STEPS = 200 * TIMES, 75
LEVELS = (("a",), ("a", "inner"))
NAMES = ("t", "u", "v")
KINDS = ("table", "view")
BROKEN = (None, None, None, None, Fault.CRASH, Fault.CRASH_DONE, Fault.LOST_REPLY, Fault.BUSY_DONE)
FIRST_OPS = 10  # of an operation: later ones are hardly ever reached

Name = tuple[str, ...]


@dataclass
class Lake:
    """The model: what a reader of the catalog sees.

    Attributes:
        spaces: levels of each namespace -> its properties.
        names: full name of each table and view -> its kind, UUID and properties.
    """

    spaces: dict[Name, dict[str, str]] = field(default_factory=dict)
    names: dict[Name, tuple[str, str, dict[str, str]]] = field(default_factory=dict)


def own(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties that the test set."""
    return {name: value for name, value in properties.items() if name.startswith("p")}


def slot_of(name: Name, kind: str) -> TableIdentifier:
    return TableIdentifier.of(name[:-1], name[-1], kind)


def seen(catalog: Catalog) -> Lake:
    """Everything that a reader finds, by listing and loading."""
    lake = Lake()
    waiting: list[Name] = [()]
    while waiting:
        for levels in catalog.namespaces.children(waiting.pop()).names:
            waiting.append(tuple(levels))
            lake.spaces[tuple(levels)] = dict(catalog.namespaces.load(levels))
    for levels in lake.spaces:
        for kind in KINDS:
            for name in catalog.namespaces.list_tables(levels, kind=kind).names:
                stored = catalog.tables.load(slot_of(tuple(name), kind))
                meta: Any = stored.parsed
                uuid = meta["table-uuid"] if kind == "table" else parsed(stored)["view-uuid"]
                lake.names[tuple(name)] = (kind, uuid, own(meta["properties"]))
    return lake


COUNTS: Counter[str] = Counter()
NEW_UUID = "assigned by the catalog"


def like(wanted: Lake, found: Lake) -> bool:
    """Whether the lakes are equal; a UUID that the catalog assigned just now may be any."""
    if wanted.spaces != found.spaces or wanted.names.keys() != found.names.keys():
        return False
    return all(
        (kind, properties) == (found.names[name][0], found.names[name][2])
        and uuid in (NEW_UUID, found.names[name][1])
        for name, (kind, uuid, properties) in wanted.names.items()
    )


spaces = st.sampled_from(LEVELS)
names = st.builds(lambda levels, name: (*levels, name), spaces, st.sampled_from(NAMES))
kinds = st.sampled_from(KINDS)


class Machine(RuleBasedStateMachine):
    """Rules: requests. Each goes to one of two replicas, and may be broken off at one of its operations."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = MemoryStore()
        self.store = FaultyStore(self.memory)
        self.clock = 0.0
        self.replicas = [self.replica(self.store) for _ in range(2)]
        self.healthy = self.replica(self.memory)
        self.model = Lake()

    def replica(self, store: Any) -> Catalog:
        def sleep(seconds: float) -> None:
            self.clock += seconds

        patience = RetryPolicy(attempts_max=3, clock=lambda: self.clock, sleep=sleep, chance=lambda: 0.5)
        return Catalog(store, ROOTS, patience=patience)

    def ask(
        self,
        data: st.DataObject,
        wanted: Callable[[Lake], type[TarnError] | tuple[type[TarnError], ...] | None],
        request: Callable[[Catalog], object],
    ) -> None:
        """Send a request and compare.

        Args:
            data: draws the replica, and whether and where it is broken off.
            wanted: applies the request to a copy of the model; returns the error that it is refused with.
            request: sends it.
        """
        after = deepcopy(self.model)
        refused = wanted(after)
        if refused is not None:
            after = self.model
        number = data.draw(st.integers(0, 1), label="replica")
        fault = data.draw(st.sampled_from(BROKEN), label="fault")
        at = data.draw(st.integers(1, FIRST_OPS), label="at") if fault else 0
        count = 0

        def plan(_: Op) -> Fault | None:
            nonlocal count
            count += 1
            return fault if count == at else None

        self.store.plan = plan
        error: BaseException | None = None
        try:
            request(self.replicas[number])
        except (Crash, TarnError) as e:
            error = e
        self.store.plan = no_faults
        hit = count >= at > 0
        found = seen(self.healthy)
        if isinstance(error, Crash):
            self.replicas[number] = self.replica(self.store)
        if error is None:
            assert refused is None, f"not refused with {refused}"
            assert like(after, found), (after, found)
        elif refused is not None and isinstance(error, refused):
            assert like(self.model, found), (self.model, found)
        else:
            assert hit, repr(error)
            sure = isinstance(error, UnavailableError | ConflictError)
            assert like(self.model, found) or (not sure and like(after, found)), (repr(error), after, found)
        COUNTS["broken off" if hit else "refused" if error else "done"] += 1
        if hit:
            COUNTS["broken off and done" if found != self.model else "broken off and not done"] += 1
        self.model = found

    def there(self, data: st.DataObject, name: Name, kind: str) -> Name:
        """A name of the kind, three times of four; else the given one, which hardly ever is there."""
        known = sorted(one for one, (its, _, _) in self.model.names.items() if its == kind)
        return data.draw(st.sampled_from(known)) if known and data.draw(st.integers(0, 3)) else name

    @initialize()
    def begin(self) -> None:
        self.healthy.namespaces.create(("a",), {})
        self.model = seen(self.healthy)

    # -- namespaces

    @rule(data=st.data(), levels=spaces)
    def create_namespace(self, data: st.DataObject, levels: Name) -> None:
        def wanted(lake: Lake) -> type[TarnError] | None:
            if len(levels) > 1 and levels[:-1] not in lake.spaces:
                return NoSuchNamespaceError
            if levels in lake.spaces:
                return AlreadyExistsError
            lake.spaces[levels] = {"p": "1"}
            return None

        self.ask(data, wanted, lambda catalog: catalog.namespaces.create(levels, {"p": "1"}))

    @rule(data=st.data(), levels=spaces)
    def drop_namespace(self, data: st.DataObject, levels: Name) -> None:
        def wanted(lake: Lake) -> type[TarnError] | None:
            if levels not in lake.spaces:
                return NoSuchNamespaceError
            if any(name[:-1] == levels for name in (*lake.names, *lake.spaces)):
                return NotEmptyError
            del lake.spaces[levels]
            return None

        self.ask(data, wanted, lambda catalog: catalog.namespaces.drop(levels))

    @rule(data=st.data(), levels=spaces, value=st.sampled_from("xyz"))
    def change_namespace(self, data: st.DataObject, levels: Name, value: str) -> None:
        def wanted(lake: Lake) -> type[TarnError] | None:
            if levels not in lake.spaces:
                return NoSuchNamespaceError
            lake.spaces[levels]["p"] = value
            return None

        self.ask(data, wanted, lambda c: c.namespaces.update(levels, updates={"p": value}, removals=[]))

    # -- tables and views

    @rule(data=st.data(), name=names, kind=kinds)
    def create(self, data: st.DataObject, name: Name, kind: str) -> None:
        def wanted(lake: Lake) -> type[TarnError] | None:
            if name[:-1] not in lake.spaces:
                return NoSuchNamespaceError
            if name in lake.names:
                return AlreadyExistsError
            lake.names[name] = (kind, NEW_UUID, {})
            return None

        def request(catalog: Catalog) -> object:
            slot = slot_of(name, kind)
            return catalog.tables.create(slot, NEW) if kind == "table" else catalog.views.create(slot, VIEW)

        self.ask(data, wanted, request)

    @rule(data=st.data(), name=names, kind=kinds, purge=st.booleans())
    def drop(self, data: st.DataObject, name: Name, kind: str, purge: bool) -> None:
        name = self.there(data, name, kind)

        def wanted(lake: Lake) -> type[TarnError] | None:
            if lake.names.get(name, ("",))[0] != kind:
                return MISSING[kind]
            del lake.names[name]
            return None

        def request(catalog: Catalog) -> object:
            drop = catalog.names.purge if purge and kind == "table" else catalog.tables.drop
            return drop(slot_of(name, kind))

        self.ask(data, wanted, request)

    @rule(data=st.data(), name=names, kind=kinds, value=st.sampled_from("xyz"))
    def commit(self, data: st.DataObject, name: Name, kind: str, value: str) -> None:
        name = self.there(data, name, kind)
        updates: list[Any] = [{"action": "set-properties", "updates": {"p": value}}]

        def wanted(lake: Lake) -> type[TarnError] | None:
            if lake.names.get(name, ("",))[0] != kind:
                return MISSING[kind]
            lake.names[name][2]["p"] = value
            return None

        def request(catalog: Catalog) -> object:
            change = catalog.tables.commit if kind == "table" else catalog.views.commit
            return change(slot_of(name, kind), [], updates)

        self.ask(data, wanted, request)

    @rule(data=st.data(), one=names, other=names, kind=kinds)
    def rename(self, data: st.DataObject, one: Name, other: Name, kind: str) -> None:
        one = self.there(data, one, kind)

        def wanted(lake: Lake) -> type[TarnError] | None:
            if lake.names.get(one, ("",))[0] != kind:
                return MISSING[kind]
            if other[:-1] not in lake.spaces:
                return NoSuchNamespaceError
            if other in lake.names:
                return AlreadyExistsError
            lake.names[other] = lake.names.pop(one)
            return None

        self.ask(data, wanted, lambda c: c.names.rename(slot_of(one, kind), slot_of(other, kind)))

    @rule(data=st.data(), one=names, other=names, value=st.sampled_from("xyz"))
    def commit_both(self, data: st.DataObject, one: Name, other: Name, value: str) -> None:
        one, other = self.there(data, one, "table"), self.there(data, other, "table")
        if one == other:
            return
        updates: list[Any] = [{"action": "set-properties", "updates": {"p": value}}]

        def wanted(lake: Lake) -> type[TarnError] | None:
            if any(lake.names.get(name, ("",))[0] != "table" for name in (one, other)):
                return NoSuchTableError
            for name in (one, other):
                lake.names[name][2]["p"] = value
            return None

        def request(catalog: Catalog) -> object:
            slots = [slot_of(name, "table") for name in (one, other)]
            changes = [Change(slot=slot, requirements=[], updates=updates) for slot in slots]
            return catalog.together.commit(changes)

        self.ask(data, wanted, request)

    @rule(number=st.integers(0, 1))
    def restart(self, number: int) -> None:
        self.replicas[number] = self.replica(self.store)

    @invariant()
    def both_replicas_see_it(self) -> None:
        for catalog in self.replicas:
            assert seen(catalog) == self.model


MISSING = {"table": NoSuchTableError, "view": NoSuchViewError}


@pytest.mark.plays
@pytest.mark.timeout(3_600 if TIMES > 1 else 300)
def test_any_sequence_of_requests_does_what_the_model_does(
    record_property, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TARN_TEST_STEPS asks for longer sequences."""
    alone(monkeypatch)
    COUNTS.clear()
    steps = int(os.environ.get("TARN_TEST_STEPS", "0")) or STEPS
    run_state_machine_as_test(
        Machine, settings=settings(max_examples=EXAMPLES, stateful_step_count=steps, deadline=None)
    )
    record_property("counts", dict(COUNTS))
    # Of some 5,700 requests at one time: a machine whose requests never do anything would pass all else.
    assert min(COUNTS["done"], COUNTS["refused"], COUNTS["broken off"]) > 100 * TIMES, COUNTS
    assert min(COUNTS["broken off and done"], COUNTS["broken off and not done"]) > 5 * TIMES, COUNTS
