"""`runAs`: an ingestor asks the catalog as a principal that may do less; each message is one row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tarn.adapters.lent_credentials import LentCredentials
from tarn.adapters.store import MemoryStore
from tarn.core.control.lent import credential_key
from tarn.core.errors import CorruptStateError, ForbiddenError, UnauthenticatedError
from tarn.core.table_catalog import CommitOutcome, TableName
from tarn.core.table_state import CommitRequest, Json, TableState
from tarn.ingest.principals import Principals
from tarn.ingest.thread_driver import ThreadDriver
from tarn.testing.memory_topic import Topic
from tests.support.lake import Lake, LocalCatalog, order
from tests.support.plant import Plant

OWN_LETTERS = {"deadLetters": {"table": {"namespace": "bob", "name": "letters"}}}


@dataclass
class Asked:
    """The catalog as asked by a principal, which may do things in some namespaces.

    Attributes:
        inner: the catalog.
        namespaces: those in which it may do everything; it may create none.
        lent: whether ingest has its credential.
        asked: what it did, with the table.
    """

    inner: LocalCatalog
    namespaces: set[str] = field(default_factory=set)
    lent: bool = True
    asked: list[str] = field(default_factory=list)

    def _may(self, what: str, table: TableName) -> None:
        if not self.lent:
            raise UnauthenticatedError("no credential of bob is lent")
        if ".".join(table.namespace) not in self.namespaces:
            raise ForbiddenError(f"may not {what} {table}")
        self.asked.append(f"{what} {table}")

    def load(self, table: TableName) -> TableState:
        self._may("load", table)
        return self.inner.load(table)

    def create_namespace(self, namespace: tuple[str, ...]) -> None:
        raise ForbiddenError(f"may not create namespace {'.'.join(namespace)}")

    def create(self, table: TableName, request: Json) -> TableState:
        self._may("create", table)
        return self.inner.create(table, request)

    def commit(self, table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
        self._may("commit", table)
        return self.inner.commit(table, request, key=key)


@dataclass
class World:
    """A plant whose ingestors may act as bob."""

    plant: Plant
    bob: Asked
    own: Asked

    def state(self, name: str = "orders") -> tuple[str, str]:
        """State and reason of the reader."""
        status = self.plant.lake.registry.get(name)
        return status.state.value, status.reason


def topics() -> Sequence[Topic]:
    made = []
    for name in ("orders", "sales"):
        topic = Topic(name, 2, topic_id=f"id-{name}")
        for p in topic.logs:
            topic.send(p, *(order(100 * p + n) for n in range(10)), b"no json")
        made.append(topic)
    return made


@pytest.fixture
def world() -> Iterator[World]:
    lake = Lake(*topics())
    for name in ("bronze", "bob", "ops"):
        lake.local.create_namespace((name,))
    bob = Asked(lake.local, {"bronze", "bob"})
    own = Asked(lake.local, {"bronze", "ops"})
    principals = Principals({"bob": bob}.__getitem__)
    context = replace(lake.context(), catalog=own, principals=principals)
    plant = Plant(lake, ThreadDriver(context))
    yield World(plant=plant, bob=bob, own=own)
    plant.close()


def rows_of(plant: Plant, name: str) -> int:
    return sum(len(log) - 1 for log in plant.lake.sources.topics[name].logs.values())


def all_in(plant: Plant, name: str = "orders") -> bool:
    found = plant.lake.registry.ingestors().get(name)
    return found is not None and (found.rows, found.bad_records, found.lag) == (rows_of(plant, name), 2, 0)


def stopped(logged: list[Any]) -> None:
    """Require the only errors in the log to be that an ingestor stopped, and forget them."""
    found = {(line["event"], line["ingestor"]) for line in logged if line["log_level"] == "error"}
    assert found == {("ingestor stopped", "orders")}
    logged.clear()


def test_rows_and_dead_letters_are_asked_for_as_the_principal_alone(world: World) -> None:
    world.plant.apply(runAs="bob", **OWN_LETTERS)
    world.plant.until(lambda: all_in(world.plant) and "commit bob.letters" in world.bob.asked)
    assert world.own.asked == []
    assert {"create bronze.orders", "commit bronze.orders", "create bob.letters"} <= set(world.bob.asked)
    held = world.plant.lake.offsets()
    assert len(held) == len(set(held)) == rows_of(world.plant, "orders")


def test_without_it_ingest_asks_as_itself(world: World) -> None:
    world.plant.apply()
    world.plant.until(lambda: all_in(world.plant))
    assert world.bob.asked == []


def test_what_the_principal_may_not_do_stops_it_alone_and_a_grant_lets_it_go_on(
    world: World, logged: list[Any]
) -> None:
    """Both write one dead-letter table: what one of them may do there, the other may not for that reason."""
    world.plant.apply("sales")
    world.plant.apply(runAs="bob")
    world.plant.until(lambda: all_in(world.plant, "sales") and world.state() == ("Stopped", "Forbidden"))
    assert "may not load ops.dead_letters" in world.plant.lake.registry.get("orders").message
    assert world.plant.ready()["reason"] == "Forbidden"
    world.bob.namespaces.add("ops")
    world.plant.until(lambda: all_in(world.plant) and "commit ops.dead_letters" in world.bob.asked)
    held = world.plant.lake.offsets()
    assert len(held) == len(set(held)) == rows_of(world.plant, "orders")
    stopped(logged)


def test_a_right_that_is_taken_away_stops_it_and_nothing_is_doubled(world: World, logged: list[Any]) -> None:
    world.plant.apply(runAs="bob", **OWN_LETTERS)
    world.plant.until(lambda: all_in(world.plant))
    world.bob.namespaces.discard("bronze")
    for p in range(2):
        world.plant.lake.sources.topics["orders"].send(p, order(7))
    world.plant.until(lambda: world.state() == ("Stopped", "Forbidden"))
    before = world.plant.lake.offsets()
    assert len(before) == rows_of(world.plant, "orders") - 2
    world.bob.namespaces.add("bronze")
    world.plant.until(lambda: len(world.plant.lake.offsets()) == rows_of(world.plant, "orders"))
    held = world.plant.lake.offsets()
    assert len(held) == len(set(held))
    stopped(logged)


def test_a_principal_that_has_lent_nothing_stops_it_until_it_does(world: World, logged: list[Any]) -> None:
    world.bob.lent = False
    world.plant.apply(runAs="bob", **OWN_LETTERS)
    world.plant.until(lambda: world.state() == ("Stopped", "Unauthenticated"))
    assert "no credential of bob is lent" in world.plant.lake.registry.get("orders").message
    assert (world.bob.asked, world.own.asked) == ([], []), "ingest does not act for it"
    world.bob.lent = True
    world.plant.until(lambda: all_in(world.plant))
    held = world.plant.lake.offsets()
    assert len(held) == len(set(held)) == rows_of(world.plant, "orders")
    assert world.own.asked == []
    stopped(logged)


def test_it_is_a_change_of_the_spec_like_any_other(world: World) -> None:
    world.plant.apply(**OWN_LETTERS)
    world.own.namespaces.add("bob")
    world.plant.until(lambda: all_in(world.plant) and "commit bob.letters" in world.own.asked)
    world.plant.apply(runAs="bob", **OWN_LETTERS)
    world.plant.until(lambda: world.plant.running(1, generation=2))
    asked = len(world.own.asked)
    world.plant.lake.sources.topics["orders"].send(0, order(8))
    world.plant.until(lambda: len(world.plant.lake.offsets()) == rows_of(world.plant, "orders"))
    assert world.own.asked[asked:] == [], "nobody asks as ingest any more"


def test_a_process_that_can_act_as_itself_only_says_so() -> None:
    plant = Plant(Lake(*topics()))
    try:
        plant.apply(runAs="bob", **OWN_LETTERS)
        plant.until(
            lambda: plant.specs.status("orders") is not None and plant.ready()["reason"] == "CrashLoop"
        )
        assert (
            "InvalidSpec: runAs is 'bob', and this process can act as itself only" in plant.ready()["message"]
        )
        assert plant.lake.sources.readers == []
    finally:
        plant.close()


class TestLentCredentials:
    def test_one_is_read_again_at_each_use_and_can_be_taken_back(self) -> None:
        lent = LentCredentials(MemoryStore())
        for credential in ("id:secret-one", "id:secret-two"):
            lent.put("bob", credential)
            assert lent.get("bob") == credential
        lent.take_back("bob")
        with pytest.raises(UnauthenticatedError, match="scripts/tarn principal lend bob"):
            lent.get("bob")

    def test_none_and_a_damaged_one_say_what_to_do(self) -> None:
        store = MemoryStore()
        with pytest.raises(UnauthenticatedError, match="runAs is 'bob', and ingest has no credential"):
            LentCredentials(store).get("bob")
        for data in (b"{", b'{"v": 2}', b'{"v": 1, "credential": 7}', b"[]"):
            store.put(credential_key("bob"), data)
            with pytest.raises(CorruptStateError, match="lend it again") as e:
                LentCredentials(store).get("bob")
            assert "7" not in e.value.message.replace("credentials/v1", "")
