"""Random requests of several principals, broken off anywhere, against a plain model of who may do what.

Requests go to two replicas. After each one a third replica says what every principal may do with every
name, which must be what the model says before or after the request: one that was broken off was carried out
or not, nothing in between.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import pytest

from tarn.adapters.store import MemoryStore
from tarn.core.errors import (
    AlreadyExistsError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotEmptyError,
    NotFoundError,
    OutcomeUnknownError,
    TarnError,
    UnavailableError,
)
from tarn_catalog.operations.access import MAX_AGE_S, Caller
from tarn_catalog.operations.catalog import Catalog
from tarn_catalog.operations.identifiers import CreateTableRequest, TableIdentifier
from tarn_catalog.operations.rights import Operation, Place
from tarn_catalog.operations.session import Session
from tarn_catalog.state.access import Privilege
from tarn_catalog.state.register import RetryPolicy
from tarn_catalog.testing.faulty_store import Crash, Fault, FaultyStore, Op, no_faults
from tests.contract.catalog.access_world import ROOTS, SCHEMA
from tests.support.plays import seeds

READ, WRITE, CREATE, MANAGE = Privilege
WITH = {READ: {READ}, WRITE: {READ, WRITE}, CREATE: {CREATE}, MANAGE: {READ, WRITE, CREATE, MANAGE}}
SPACES, NAMES = ("n", "m"), ("t", "u")
PEOPLE, ROLE, BOSS = ("ann", "bob"), "staff", "boss"
BROKEN = (None, None, None, Fault.CRASH, Fault.CRASH_DONE, Fault.LOST_REPLY, Fault.BUSY_DONE)
STEPS = 50
WANTED = CreateTableRequest(schema=SCHEMA, properties={})
COUNTS: Counter[str] = Counter()
ASKED = {Operation.LOAD: READ, Operation.COMMIT: WRITE, Operation.DROP: MANAGE}

Name = tuple[str, str]


@dataclass
class Model:
    """Everything that decides about access.

    Attributes:
        people: principals, each with a number that no other ever has.
        members: principals with the role.
        spaces: namespaces -> (number, number of the owner).
        tables: names -> (number, number of the owner).
        gone: names -> what had the name last, dropped or renamed.
        grants: (number of the thing, 0 for the warehouse; grantee) -> privileges.
        secrets: principals -> the numbers of the secrets that are accepted, the newest first.
    """

    people: dict[str, int] = field(default_factory=dict)
    members: set[str] = field(default_factory=set)
    spaces: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    tables: dict[Name, tuple[int, int | None]] = field(default_factory=dict)
    gone: dict[Name, tuple[int, int | None]] = field(default_factory=dict)
    grants: dict[tuple[int, str], set[Privilege]] = field(default_factory=dict)
    secrets: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def on(self, who: str, number: int, owner: int | None) -> set[Privilege]:
        if owner is not None and owner == self.people[who]:
            return set(WITH[MANAGE])
        granted: set[Privilege] = set()
        for name in (who, *([ROLE] if who in self.members else [])):
            for privilege in self.grants.get((number, name), set()):
                granted |= WITH[privilege]
        return granted

    def held(self, who: str, space: str) -> set[Privilege]:
        found = self.on(who, 0, None)
        return found | self.on(who, *self.spaces[space]) if space in self.spaces else found

    def answer(self, who: str, name: Name, need: Privilege) -> str:
        held = self.held(who, name[0])
        if name in self.tables:
            return "yes" if need in held | self.on(who, *self.tables[name]) else "403"
        # Who could do it to what had the name may know that it is gone: it may be repeating its request.
        known = name in self.gone and need in self.on(who, *self.gone[name])
        return "404" if held or known else "403"

    def seen(self) -> dict[tuple[str, ...], str]:
        found: dict[tuple[str, ...], str] = {
            (
                BOSS,
            ): f"{sorted(self.people)} {sorted(self.members)} {sorted(self.spaces)} {sorted(self.tables)}",
            ("grants",): str(sorted((to, sorted(all_)) for (_, to), all_ in self.grants.items() if all_)),
        }
        for who in self.people:
            found[who, "secrets"] = str(self.secrets[who])
            for space in SPACES:
                held = self.held(who, space)
                there = space in self.spaces
                found[who, space] = "yes" if CREATE in held else "404" if held and not there else "403"
                for name in NAMES:
                    for operation, need in ASKED.items():
                        found[who, space, name, operation] = self.answer(who, (space, name), need)
        return found


class World:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.memory = MemoryStore()
        self.store = FaultyStore(self.memory)
        self.clock = 0.0
        self.replicas = [self.replica(self.store) for _ in range(2)]
        self.healthy = self.replica(self.memory)
        self.model = Model()
        self.number = 0
        self.secrets: dict[str, int] = {}
        self.boss = Caller(name=BOSS, client_id=None, admin=True)
        self.run("role", lambda s: s.create_role(ROLE))

    def replica(self, store: Any) -> Catalog:
        def sleep(seconds: float) -> None:
            self.clock += seconds

        patience = RetryPolicy(attempts_max=3, clock=lambda: self.clock, sleep=sleep, chance=lambda: 0.5)
        return Catalog(store, ROOTS, patience=patience)

    def run(self, _: str, request: Callable[[Session], object]) -> object:
        return request(Session(self.healthy, self.boss, audited=False))

    def new(self) -> int:
        self.number += 1
        return self.number

    def seen(self) -> dict[tuple[str, ...], str]:
        """What every principal may do, as a replica says that reads everything from the store."""
        self.clock += MAX_AGE_S
        state = self.healthy.access.grants().state
        spaces = [space for space in SPACES if self.healthy.namespaces.exists((space,))]
        tables = sorted(
            (space, name)
            for space in SPACES
            for name in NAMES
            if self.healthy.tables.exists(TableIdentifier.of((space,), name))
        )
        people = sorted(one.name for one in state.principals)
        found: dict[tuple[str, ...], str] = {
            (BOSS,): f"{people} {sorted(state.roles[ROLE])} {sorted(spaces)} {tables}",
            ("grants",): str(sorted((grant.to, sorted(grant.privileges)) for grant in state.grants)),
        }
        for who in self.model.people:
            try:
                caller = self.healthy.access.named(who)
            except NotFoundError:
                continue
            session = Session(self.healthy, caller, audited=False)
            stored = caller.grants.principals[caller.client_id or ""]
            # One that was not seen before is the newest of the model's.
            for one in stored.secrets(self.healthy.core.now_ms()):
                newest = self.model.secrets[who][0]
                if one not in self.secrets and newest not in self.secrets.values():
                    self.secrets[one] = newest
            numbers = tuple(self.secrets.get(one, 0) for one in stored.secrets(self.healthy.core.now_ms()))
            found[who, "secrets"] = str(numbers)
            for space in SPACES:
                found[who, space] = judged(
                    lambda s=session, n=space: s._allow(Operation.CREATE, {Place.NAMESPACE: (n,)})
                )
                for name in NAMES:
                    slot = TableIdentifier.of((space,), name)
                    for operation in ASKED:
                        ask = (
                            (lambda s=session, t=slot: s.load(t))
                            if operation is Operation.LOAD
                            else lambda s=session, o=operation, t=slot: s._catalog.tables.pointer(
                                s._allowed(o, t)
                            )
                        )
                        found[who, space, name, operation] = judged(ask)
        return found


def judged(ask: Callable[[], object]) -> str:
    try:
        ask()
    except ForbiddenError:
        return "403"
    except NotFoundError:
        return "404"
    return "yes"


def play(seed: int) -> World:
    """Send random requests, each compared with the model; returns the lake after them."""
    world = World(seed)
    chance = world.chance
    for who in PEOPLE:
        apply(world, "create principal", who, None, broken=None)
    apply(world, "create namespace", None, "n", broken=None)
    for _ in range(STEPS):
        what = chance.choice(REQUESTS)
        who = chance.choice((None, *PEOPLE))
        thing = chance.choice(SPACES)
        apply(world, what, who, thing, broken=chance.choice(BROKEN))
    return world


REQUESTS = (
    *("create table", "create table", "create table", "drop", "rename", "rename", "grant", "grant", "grant"),
    *(
        "grant",
        "revoke",
        "member",
        "create principal",
        "drop principal",
        "create namespace",
        "drop namespace",
    ),
    *("owner", "owner", "owner", "rotate"),
)


def apply(world: World, what: str, who: str | None, space: str | None, *, broken: Fault | None) -> None:
    """Send a request and compare; `who` None is an admin."""
    chance, before = world.chance, world.model
    after = deepcopy(before)
    name = (space or "n", chance.choice(NAMES))
    to = (chance.choice(SPACES), chance.choice(NAMES))
    if before.tables and what != "create table" and chance.random() < 0.7:
        name = chance.choice(sorted(before.tables))
    if who is not None and who not in before.people and what != "create principal":
        who = None
    by = None if who is None else before.people[who] if what != "create principal" else None
    slot = TableIdentifier.of((name[0],), name[1])
    may = True
    if what == "create principal":
        subject = who or chance.choice(PEOPLE)
        may, who = subject not in before.people, None
        after.people[subject] = world.new()
        after.secrets[subject] = (world.new(),)
        request = lambda s: s.create_principal(subject)  # noqa: E731
    elif what == "drop principal":
        subject = chance.choice(PEOPLE)
        may, who = subject in before.people, None
        after.people.pop(subject, None)
        after.secrets.pop(subject, None)
        after.members.discard(subject)
        after.grants = {key: found for key, found in after.grants.items() if key[1] != subject}
        request = lambda s: s.drop_principal(subject)  # noqa: E731
    elif what == "member":
        subject, there = chance.choice(PEOPLE), chance.random() < 0.7
        may, who = subject in before.people, None
        (after.members.add if there else after.members.discard)(subject)
        request = lambda s: s.set_member(ROLE, subject, there=there)  # noqa: E731
    elif what == "rotate":
        subject, grace_s = chance.choice(PEOPLE), chance.choice((0, 3600))
        may, who = subject in before.people, None
        if may:
            kept = before.secrets[subject][:1] if grace_s else ()
            after.secrets[subject] = (world.new(), *kept)
        request = lambda s: s.rotate_secret(subject, grace_s=grace_s)  # noqa: E731
    elif what == "owner":
        subject = chance.choice(PEOPLE)
        given: Any = chance.choice(((name[0],), slot, slot))
        things: Any = after.tables if given is slot else after.spaces
        at_ = name if given is slot else name[0]
        may = at_ in things and subject in before.people
        if may and who is not None:
            may = MANAGE in before.held(who, name[0]) | before.on(who, *things[at_])
        if may:
            things[at_] = (things[at_][0], before.people[subject])
        request = lambda s: s.change_owner(given, subject)  # noqa: E731
    elif what == "create namespace":
        may = space not in before.spaces and (who is None or CREATE in before.on(who, 0, None))
        after.spaces[space or ""] = (world.new(), by)
        request = lambda s: s.create_namespace((space,), {})  # noqa: E731
    elif what == "drop namespace":
        may = space in before.spaces and not any(found[0] == space for found in before.tables)
        may = may and (who is None or MANAGE in before.held(who, space or ""))
        after.spaces.pop(space or "", None)
        request = lambda s: s.drop_namespace((space,))  # noqa: E731
    elif what == "create table":
        may = name[0] in before.spaces and name not in before.tables
        may = may and (who is None or CREATE in before.held(who, name[0]))
        after.tables[name] = (world.new(), by)
        request = lambda s: s.create_table(slot, WANTED)  # noqa: E731
    elif what == "drop":
        may = name in before.tables and (who is None or before.answer(who, name, MANAGE) == "yes")
        if may:
            after.gone[name] = after.tables.pop(name)
        request = lambda s: s.drop(slot)  # noqa: E731
    elif what == "rename":
        target = TableIdentifier.of((to[0],), to[1])
        may = name in before.tables and to not in before.tables and to[0] in before.spaces
        if who is not None:
            may = may and before.answer(who, name, MANAGE) == "yes" and CREATE in before.held(who, to[0])
        if may:
            after.gone[name] = after.tables[to] = after.tables.pop(name)
        request = lambda s: s.rename(slot, target)  # noqa: E731
    else:
        grantee = chance.choice((*PEOPLE, ROLE))
        on: Any = chance.choice(((), (name[0],), slot, slot))
        privilege = chance.choice([READ, WRITE, MANAGE] if on is slot else list(Privilege))
        number, owner = 0, None
        may = grantee in (*before.people, ROLE)
        if on is slot:
            may = may and name in before.tables
            number, owner = before.tables.get(name, (0, None))
        elif on:
            may = may and name[0] in before.spaces
            number, owner = before.spaces.get(name[0], (0, None))
        if may and who is not None:
            held = before.on(who, number, owner) | before.on(who, 0, None)
            may = MANAGE in (held | before.held(who, name[0]) if on else held)
        granted = after.grants.setdefault((number, grantee), set())
        (granted.add if what == "grant" else granted.discard)(privilege)
        verb = Session.grant if what == "grant" else Session.revoke
        request = lambda s: verb(s, on, grantee, frozenset({privilege}))  # noqa: E731
    possible = [after] if may else [before]
    at, count = chance.randrange(8), 0

    def plan(_: Op) -> Fault | None:
        nonlocal count
        count += 1
        return broken if count - 1 == at else None

    catalog = chance.choice(world.replicas)
    world.clock += MAX_AGE_S
    caller = world.boss if who is None else catalog.access.named(who)
    world.store.plan = plan if broken else no_faults
    try:
        request(Session(catalog, caller, audited=False))
        assert may, (what, who, name)
        outcome = "done"
    except (Crash, OutcomeUnknownError) as e:
        possible = [before, after] if may else [before]
        outcome = type(e).__name__
        if isinstance(e, Crash):
            world.replicas[world.replicas.index(catalog)] = world.replica(world.store)
    except UnavailableError:
        possible, outcome = [before], "unavailable"
    except (
        ForbiddenError,
        NotFoundError,
        AlreadyExistsError,
        ConflictError,
        InvalidError,
        NotEmptyError,
    ) as e:
        # A repeated attempt of the same request may meet its own first one.
        own = broken is not None and isinstance(e, AlreadyExistsError | ConflictError)
        if may and not own:
            raise AssertionError((what, who, name, repr(e))) from e
        possible = [before, after] if may else [before]
        outcome = type(e).__name__
    except TarnError as e:
        raise AssertionError((what, who, name, repr(e))) from e
    finally:
        world.store.plan = no_faults
    COUNTS[f"{what}: {outcome}"] += 1
    tried = []
    for model in possible:
        world.model = model
        wanted, found = model.seen(), world.seen()
        if wanted == found:
            return
        tried.append(
            {
                key: (wanted.get(key), found.get(key))
                for key in wanted.keys() | found.keys()
                if wanted.get(key) != found.get(key)
            }
        )
    raise AssertionError((what, who, name, to, outcome, may, tried))


@pytest.mark.plays
@pytest.mark.parametrize("seed", seeds(40))
def test_random_requests_are_allowed_as_the_model_says(seed: int) -> None:
    world = play(seed)
    assert world.seen() == world.model.seen()


def test_the_plays_reach_what_they_are_for() -> None:
    COUNTS.clear()
    for seed in range(1_000, 1_025):
        play(seed)
    for what in set(REQUESTS):
        assert COUNTS[f"{what}: done"] >= 3, (what, COUNTS)
    for rare in (
        "create table: ForbiddenError",
        "rename: ForbiddenError",
        "grant: ForbiddenError",
        "owner: ForbiddenError",
        "grant: Crash",
    ):
        assert COUNTS[rare] >= 3, (rare, COUNTS)
