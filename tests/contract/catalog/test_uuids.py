"""A uuid is that of one table, view or namespace for good, whatever a client sends for a new one (I7)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import pytest

from tarn.core.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidError,
    NoSuchTableError,
    OutcomeUnknownError,
    TarnError,
)
from tarn.core.naming import NAMESPACES_PREFIX, POINTERS_PREFIX
from tarn.core.outcome import Unknown
from tarn.keeper.reaper import Graces, Reaper
from tarn_catalog.operations.identifiers import TableIdentifier
from tarn_catalog.operations.multi_table_commit import Change
from tarn_catalog.operations.namespaces import LIST_READERS
from tarn_catalog.operations.views import CreateViewRequest
from tarn_catalog.state import transactions
from tarn_catalog.state.pointer import VIEW, Pointer
from tarn_catalog.testing.faulty_store import Op
from tests.contract.catalog.access_world import World as People
from tests.contract.catalog.access_world import world as people
from tests.contract.catalog.test_commits import (
    FREE,
    NEW,
    SECOND,
    SET,
    SLOT,
    World,
    append,
    create_with_rows,
    repeat,
    staged,
)
from tests.contract.keeper.reaping import Clocked

Json = dict[str, Any]
Commit = tuple[list[Json], list[Json]]
ELSEWHERE = "s3://tarn/warehouse/sandbox"


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[People]:
    with people(tmp_path) as lake:
        lake.principal("bob")
        yield lake


def chosen(made: Commit, uuid: str, *, folder: str = ELSEWHERE, location: str | None = None) -> Commit:
    """The end of a staged create with a uuid and a location of the client's own choice."""
    requirements, updates = made
    wanted = {"assign-uuid": {"uuid": uuid}, "set-location": {"location": location or f"{folder}/x-{uuid}"}}
    return requirements, [{**update, **wanted.get(update["action"], {})} for update in updates]


def uuid_of(world: World, slot: TableIdentifier) -> str:
    return world.catalog.tables.load(slot).parsed["table-uuid"]


def refused(world: World, commit: Commit, slot: TableIdentifier = FREE) -> str:
    """The message of the refusal, by another replica; nothing was written, at the location or elsewhere."""
    before = {entry.key: entry.etag for entry in world.memory.list("")}
    with pytest.raises(ConflictError) as caught:
        world.another().tables.commit(slot, *commit)
    assert {entry.key: entry.etag for entry in world.memory.list("")} == before
    with pytest.raises(ConflictError):
        world.another().together.commit([Change(slot=slot, requirements=commit[0], updates=commit[1])])
    assert {entry.key: entry.etag for entry in world.memory.list("")} == before
    return caught.value.message


def test_the_uuid_of_a_live_table_is_refused(world: World) -> None:
    made = staged(world)
    world.catalog.tables.create(SECOND, NEW)
    uuid = uuid_of(world, SECOND)
    message = refused(world, chosen(made, uuid))
    assert message == (
        f"Cannot create ns.free: the uuid {uuid} was used before, and is never given twice; begin the create "
        "again"
    )
    refused(world, chosen(made, uuid.upper(), location=f"{ELSEWHERE}/x-{uuid}"))


def test_the_uuid_of_a_view_is_refused(world: World) -> None:
    made = staged(world)
    view = TableIdentifier.of(("ns",), "seen", VIEW)
    version = {
        **{
            "version-id": 1,
            "timestamp-ms": 1_000,
            "schema-id": 0,
            "summary": {},
            "default-namespace": ["ns"],
        },
        "representations": [{"type": "sql", "sql": "select 1", "dialect": "spark"}],
    }
    wanted = CreateViewRequest(schema=NEW.schema, version=version, properties={})
    world.catalog.views.create(view, wanted)
    refused(world, chosen(made, world.pointer(view).uuid))


def test_the_uuid_of_a_namespace_is_refused(world: World) -> None:
    found = world.catalog.namespaces.find(("ns",))
    assert found is not None
    refused(world, chosen(staged(world), found.uuid))


def test_the_uuid_of_a_dropped_or_renamed_table_is_refused(world: World) -> None:
    made = staged(world)
    world.catalog.tables.create(SECOND, NEW)
    uuid = uuid_of(world, SECOND)
    world.catalog.names.rename(SECOND, SLOT)
    refused(world, chosen(made, uuid))
    world.catalog.tables.drop(SLOT)
    refused(world, chosen(made, uuid))
    refused(world, chosen(made, uuid), slot=SLOT)


def test_the_name_of_a_dropped_table_takes_no_second_table_of_its_uuid(world: World) -> None:
    made = staged(world)
    world.catalog.tables.create(SLOT, NEW)
    uuid = uuid_of(world, SLOT)
    world.catalog.tables.drop(SLOT)
    refused(world, chosen(made, uuid), slot=SLOT)
    world.catalog.tables.commit(SLOT, *staged(world))


def test_a_location_whose_first_file_is_gone_is_refused(world: World) -> None:
    """The reaper deletes the first metadata file, and the name of a dropped table may have another since."""
    made = staged(world)
    world.catalog.tables.create(SECOND, NEW)
    first = world.catalog.tables.load(SECOND)
    uuid, location = first.parsed["table-uuid"], first.parsed["location"]
    world.catalog.tables.commit(SECOND, [], SET)
    world.memory.delete(first.location.removeprefix("s3://tarn/"))
    world.catalog.tables.drop(SECOND)
    world.catalog.tables.create(SECOND, NEW)
    assert f"the location {location} was used before" in refused(world, chosen(made, uuid, location=location))


def test_the_same_staged_create_under_two_names_makes_one_table(world: World) -> None:
    requirements, updates = staged(world)
    snapshot = {
        **{"snapshot-id": 7, "sequence-number": 1, "timestamp-ms": 1_795_000_000_000, "schema-id": 0},
        **{"manifest-list": "s3://tarn/warehouse/ns/l.avro", "summary": {"operation": "append"}},
        **{"first-row-id": 0, "added-rows": 1},
    }
    updates = [*updates, {"action": "add-snapshot", "snapshot": snapshot}]
    world.catalog.tables.commit(SLOT, requirements, updates)
    refused(world, (requirements, updates))
    assert world.another().tables.commit(SLOT, requirements, updates).parsed["table-uuid"] == uuid_of(
        world, SLOT
    )


def test_of_two_creates_of_one_uuid_at_once_one_is_made_at_most(world: World) -> None:
    """Each has its intent on its own name before it looks at those of others."""
    uuid = "11111111-2222-4333-8444-555555555555"
    made = staged(world)
    commits = {
        slot: chosen(made, uuid, location=f"{ELSEWHERE}/{slot.name}-{uuid}") for slot in (SLOT, SECOND)
    }
    met = threading.Barrier(2, timeout=30)
    waited: set[str] = set()

    def meet(op: Op) -> None:
        # The intents: the first write of each pointer.
        if op.kind == "put" and op.key in (SLOT.key, SECOND.key) and op.key not in waited:
            waited.add(op.key)
            met.wait()

    world.store.plan = meet

    def create(slot: TableIdentifier) -> bool:
        try:
            world.another().tables.commit(slot, *commits[slot])
        except TarnError:
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(create, commits))
    live = [
        pointer.name
        for entry in world.memory.list(POINTERS_PREFIX)
        if (pointer := Pointer.load(world.memory.get(entry.key).data, entry.key)).live
    ]
    assert len(live) == sum(done) <= 1


def test_creates_of_other_tables_at_once_do_not_wait_for_each_other(world: World) -> None:
    made = {slot: staged(world) for slot in (SLOT, SECOND)}
    made[SECOND] = chosen(made[SECOND], "11111111-2222-4333-8444-555555555555")
    other = world.another()
    inside: list[bool] = []

    def during(op: Op) -> None:
        # The first one has its intent, and looks at the names of the others.
        if op.kind == "list" and op.key == POINTERS_PREFIX and not inside and SLOT.key in written():
            inside.append(True)
            other.tables.commit(SECOND, *made[SECOND])

    def written() -> set[str]:
        return {entry.key for entry in world.memory.list(POINTERS_PREFIX)}

    world.store.plan = during
    world.catalog.tables.commit(SLOT, *made[SLOT])
    assert inside
    assert uuid_of(world, SLOT) != uuid_of(world, SECOND)


def test_two_new_tables_of_one_uuid_in_one_transaction_are_refused(world: World) -> None:
    made = staged(world)
    uuid = "11111111-2222-4333-8444-555555555555"
    changes = [
        Change(
            slot=slot, requirements=made[0], updates=chosen(made, uuid, folder=f"{ELSEWHERE}/{slot.name}")[1]
        )
        for slot in (SLOT, SECOND)
    ]
    with pytest.raises(InvalidError, match=f"new tables have one uuid, {uuid}"):
        world.catalog.together.commit(changes)


def test_tables_whose_dotted_names_are_equal_are_two(world: World) -> None:
    world.catalog.namespaces.create(("ns", "a"), {})
    world.catalog.namespaces.create(("ns.a",), {})
    slots = [TableIdentifier.of(("ns", "a"), "t"), TableIdentifier.of(("ns.a",), "t")]
    assert len({slot.text for slot in slots}) == 1
    for slot in slots:
        world.catalog.tables.create(slot, NEW)
    world.catalog.together.commit([Change(slot=slot, requirements=[], updates=SET) for slot in slots])
    assert all(world.catalog.tables.load(slot).parsed["properties"]["a"] == "1" for slot in slots)
    with pytest.raises(InvalidError, match="named twice"):
        world.catalog.together.commit([Change(slot=slots[0], requirements=[], updates=SET)] * 2)


# -- what follows from a uuid


def test_nobody_gets_rights_on_a_table_by_a_table_of_its_uuid(lake: People) -> None:
    for namespace in ("gold", "sandbox"):
        lake.must("admin", "POST", "/v1/namespaces", {"namespace": [namespace]})
    orders = {"name": "orders", "schema": NEW.schema}
    lake.must("admin", "POST", "/v1/namespaces/gold/tables", orders)
    lake.grant("bob", "table:gold.orders", "READ")
    lake.grant("bob", "namespace:sandbox", "CREATE")
    lake.clock_s += 10
    path = "/v1/namespaces/gold/tables/orders"
    uuid = lake.must("bob", "GET", path)["metadata"]["table-uuid"]
    wanted = {"name": "x", "schema": NEW.schema, "stage-create": True}
    meta = lake.must("bob", "POST", "/v1/namespaces/sandbox/tables", wanted)["metadata"]
    updates = [
        {"action": "assign-uuid", "uuid": uuid},
        {"action": "add-schema", "schema": meta["schemas"][0]},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": meta["partition-specs"][0]},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": meta["sort-orders"][0]},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": f"{ELSEWHERE}/x-{uuid}"},
    ]
    body = {"requirements": [{"type": "assert-create"}], "updates": updates}
    answer = lake.ask("bob", "POST", "/v1/namespaces/sandbox/tables/x", body)
    assert answer.status_code == 409
    assert "gold" not in answer.text
    change = {"requirements": [], "updates": SET}
    assert lake.ask("bob", "POST", path, change).status_code == 403


def test_a_table_registered_in_another_namespace_is_listed_there_for_those_who_may_read_it(
    lake: People,
) -> None:
    for namespace in ("gold", "other"):
        lake.must("admin", "POST", "/v1/namespaces", {"namespace": [namespace]})
    made = lake.must("admin", "POST", "/v1/namespaces/gold/tables", {"name": "t", "schema": NEW.schema})
    lake.grant("bob", "table:gold.t", "READ")
    lake.must("admin", "DELETE", "/v1/namespaces/gold/tables/t")
    body = {"name": "t2", "metadata-location": made["metadata-location"]}
    lake.must("admin", "POST", "/v1/namespaces/other/register", body)
    lake.clock_s += 10
    found = lake.must("bob", "GET", "/v1/namespaces/other/tables")
    assert found["identifiers"] == [{"namespace": ["other"], "name": "t2"}]


def test_an_old_key_says_nothing_about_whether_there_is_a_table(world: World) -> None:
    world.table()
    old = repeat(1, at_ms=1_000)
    for slot in (SLOT, FREE):
        with pytest.raises(OutcomeUnknownError, match="it cannot be told whether it was used"):
            world.catalog.tables.carried_out(slot, [], SET, old)


def test_the_reaper_leaves_a_uuid_alone_that_two_names_have() -> None:
    lake = Clocked()
    table = lake.table()
    for _ in range(3):
        table.append()
    held = lake.json("catalog/v1/pointers/ns/t.json")
    copy = {**held, "name": "u", "metadata-location": table.lake.catalog.tables.load(table.slot).location}
    lake.store.put("catalog/v1/pointers/ns/u.json", orjson.dumps(copy))
    table.expire(*(s["snapshot-id"] for s in table.meta()["snapshots"][:-1]))
    reaper: Reaper = lake.reaper(graces=Graces(metadata_ms=1, files_ms=1))
    before = len(lake.keys("warehouse/"))
    for _ in range(4):
        lake.wait(10_000)
        done = reaper.run_once()
    assert list(done.failed) == ["ns.t"]
    assert len(lake.keys("warehouse/")) == before


def test_the_reaper_goes_on_with_a_table_whose_rename_was_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the commit point the former name is still live, with the intent to go."""
    lake = Clocked()
    table = lake.table()
    for _ in range(3):
        table.append()
    table.expire(*(s["snapshot-id"] for s in table.meta()["snapshots"][:-1]))
    settle = transactions.Transactions._settle

    def cut_off(self: Any, key: str, held: Any, *, committed: bool) -> Any:
        if key == table.slot.key and committed:
            return None, Unknown(reason="killed")
        return settle(self, key, held, committed=committed)

    monkeypatch.setattr(transactions.Transactions, "_settle", cut_off)
    lake.catalog.names.rename(table.slot, TableIdentifier.of(("ns",), "renamed"))
    assert lake.json(table.slot.key)["intent"]
    reaper = lake.reaper(graces=Graces(metadata_ms=1, files_ms=1))
    deleted = 0
    for _ in range(4):
        lake.wait(10_000)
        done = reaper.run_once()
        assert done.failed == {}
        deleted += done.deleted
    assert deleted
    assert lake.missing() == []


def test_a_value_that_cannot_be_read_stops_no_create_of_another_table(world: World) -> None:
    made = staged(world)
    world.catalog.tables.create(SECOND, NEW)
    world.memory.put(SECOND.key, b"{")
    world.memory.put(f"{POINTERS_PREFIX}other/readme.txt", b"notes")
    world.memory.put(f"{NAMESPACES_PREFIX}other.json", b"[]")
    world.another().tables.commit(SLOT, *made)
    refused(world, chosen(made, uuid_of(world, SLOT)))


def test_scans_at_one_time_take_few_threads(world: World) -> None:
    made = staged(world)
    world.catalog.tables.create(SLOT, NEW)
    for number in range(30):
        held = orjson.loads(world.memory.get(SLOT.key).data)
        copy = {**held, "name": f"t{number}", "table-uuid": f"{number:08}-2222-4333-8444-555555555555"}
        world.memory.put(f"{POINTERS_PREFIX}ns/t{number}.json", orjson.dumps(copy))
    most = 0
    before = set(threading.enumerate())

    def slow(op: Op) -> None:
        nonlocal most
        if op.kind == "get":
            time.sleep(0.001)
        most = max(most, len(set(threading.enumerate()) - before))

    world.store.plan = slow
    catalog = world.another()

    def create(number: int) -> None:
        uuid = f"{number:08}-3333-4333-8444-555555555555"
        catalog.tables.commit(TableIdentifier.of(("ns",), f"n{number}"), *chosen(made, uuid))

    with ThreadPoolExecutor(24) as pool:
        list(pool.map(create, range(24)))
    assert most <= 24 + 4 * LIST_READERS


# -- a transaction that was carried out, and a rename since


def several(world: World) -> list[Change]:
    for slot in (SLOT, SECOND):
        world.catalog.tables.create(slot, NEW)

    def snapshot(number: int) -> list[Json]:
        meta = {
            **{"snapshot-id": number, "sequence-number": 1, "timestamp-ms": 1_795_000_000_000},
            **{
                "schema-id": 0,
                "manifest-list": f"s3://tarn/l{number}.avro",
                "summary": {"operation": "append"},
            },
        }
        return [
            {"action": "add-snapshot", "snapshot": meta},
            {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": number},
        ]

    none = [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None}]
    return [
        Change(slot=slot, requirements=none, updates=snapshot(number))
        for number, slot in enumerate((SLOT, SECOND), 1)
    ]


def test_a_repeated_transaction_follows_a_table_that_was_renamed_since(world: World) -> None:
    changes = several(world)
    world.catalog.together.commit(changes)
    world.catalog.names.rename(SLOT, FREE)
    world.another().together.commit(changes)
    for slot in (FREE, SECOND):
        assert len(world.healthy().tables.load(slot).parsed["snapshots"]) == 1


def test_a_repeated_transaction_of_which_a_part_is_found_under_another_name_is_unknown(world: World) -> None:
    changes = several(world)
    world.catalog.tables.commit(SLOT, [], changes[0].updates)
    world.catalog.names.rename(SLOT, FREE)
    with pytest.raises(OutcomeUnknownError, match=r"The change of ns\.t, which has another name now"):
        world.catalog.together.commit(changes)
    assert world.healthy().tables.load(SECOND).parsed["snapshots"] == []


def thin(world: World, slot: TableIdentifier, *, commits: int = 6) -> None:
    """Commit until the first snapshot of a table has left its history.

    After 6 commits the oldest file of the metadata log is older than that snapshot, after 22 it has it.
    """
    world.catalog.tables.commit(
        slot, [], [{"action": "set-properties", "updates": {"tarn.snapshots-kept": "1"}}]
    )
    head = world.catalog.tables.load(slot).parsed["current-snapshot-id"]
    for sequence in range(2, 2 + commits):
        rows = append(100 + sequence, head, sequence)
        first = world.catalog.tables.load(slot).parsed.get("next-row-id")
        if first is not None:
            rows[1][0]["snapshot"] |= {"first-row-id": first, "added-rows": 1}
        world.catalog.tables.commit(slot, *rows)
        head = 100 + sequence


@pytest.mark.parametrize("commits", [6, 22])
@pytest.mark.parametrize("again", [False, True], ids=["renamed", "and another table got the name"])
def test_a_repeat_whose_rows_were_thinned_before_a_rename_is_no_404(
    world: World, again: bool, commits: int
) -> None:
    rows = several(world)[0]
    same = {"type": "assert-table-uuid", "uuid": uuid_of(world, SLOT)}
    requirements = [same, *rows.requirements]
    world.catalog.tables.commit(SLOT, requirements, rows.updates)
    thin(world, SLOT, commits=commits)
    world.catalog.names.rename(SLOT, FREE)
    if again:
        world.catalog.tables.create(SLOT, NEW)
    if commits == 22 and not again:
        found = world.another().tables.commit(SLOT, requirements, rows.updates)
        assert found.location == world.catalog.tables.load(FREE).location
    else:
        with pytest.raises(OutcomeUnknownError, match="delete nothing"):
            world.another().tables.commit(SLOT, requirements, rows.updates)
    never = append(300, 107, 100)
    with pytest.raises(ConflictError if again else NoSuchTableError):
        world.another().tables.commit(SLOT, [same, *never[0]], never[1])


@pytest.mark.parametrize("turned", [False, True], ids=["rows first", "rows last"])
def test_a_repeated_transaction_is_known_by_the_rows_of_one_table(world: World, turned: bool) -> None:
    """A refusal would have the client delete files that the table has."""
    changes = [several(world)[0], Change(slot=SECOND, requirements=[], updates=SET)]
    changes = changes[::-1] if turned else changes
    world.catalog.together.commit(changes)
    version = world.pointer(SECOND).version
    world.another().together.commit(changes)
    assert world.pointer(SECOND).version == version, "not done a second time"
    world.catalog.tables.drop(SECOND)
    world.another().together.commit(changes)


@pytest.mark.parametrize("turned", [False, True], ids=["found first", "found last"])
@pytest.mark.parametrize("since", ["thinned", "dropped"])
def test_a_repeated_transaction_of_which_rows_are_gone_since_is_unknown(
    world: World, since: str, turned: bool
) -> None:
    changes = several(world)
    world.catalog.together.commit(changes)
    if since == "thinned":
        thin(world, SECOND)
    else:
        world.catalog.tables.drop(SECOND)
    with pytest.raises(OutcomeUnknownError, match=r"The change of ns\.t was carried out before, and not all"):
        world.another().together.commit(changes[::-1] if turned else changes)


@pytest.mark.parametrize("turned", [False, True], ids=["thinned first", "thinned last"])
@pytest.mark.parametrize("since", ["changed", "dropped", "created"])
def test_a_repeated_transaction_that_another_table_refuses_is_unknown_if_its_rows_were_thinned(
    world: World, since: str, turned: bool
) -> None:
    requirements, updates = staged(world)
    rows = several(world)[0]
    if since == "created":
        other = Change(slot=FREE, requirements=requirements, updates=updates)
    else:
        same = {"type": "assert-table-uuid", "uuid": uuid_of(world, SECOND)}
        other = Change(slot=SECOND, requirements=[same], updates=SET)
    changes = [other, rows] if turned else [rows, other]
    world.catalog.together.commit(changes)
    thin(world, SLOT, commits=22 if since == "dropped" else 6)
    if since != "created":
        world.catalog.tables.drop(SECOND)
    if since == "changed":
        world.catalog.tables.create(SECOND, NEW)
    said = (
        r"The change of ns\.t was" if since == "dropped" else r"Cannot tell whether the commit to ns\.t was"
    )
    with pytest.raises(
        OutcomeUnknownError, match=f"{said} carried out before.*history of that time was thinned"
    ):
        world.another().together.commit(changes)


def send(world: World, requirements: list[Any], updates: list[Any], *, several: bool) -> None:
    if several:
        world.another().together.commit([Change(slot=SLOT, requirements=requirements, updates=updates)])
    else:
        world.another().tables.commit(SLOT, requirements, updates)


@pytest.mark.parametrize("commits", [6, 22])
@pytest.mark.parametrize("several", [False, True], ids=["alone", "as one of several"])
def test_a_repeated_create_whose_first_rows_were_thinned_since_is_no_409(commits: int, several: bool) -> None:
    world = World()
    requirements, updates = create_with_rows(world, 1)
    world.catalog.tables.commit(SLOT, requirements, updates)
    thin(world, SLOT, commits=commits)
    if not several:
        again = world.another().tables.commit(SLOT, requirements, updates)
        assert again.location == world.catalog.tables.load(SLOT).location
        return
    with pytest.raises(OutcomeUnknownError, match="delete nothing"):
        send(world, requirements, updates, several=several)


@pytest.mark.parametrize("several", [False, True], ids=["alone", "as one of several"])
def test_the_thinned_history_of_another_table_says_nothing_of_a_new_one(several: bool) -> None:
    world = World()
    requirements, updates = create_with_rows(world, 120)
    world.catalog.tables.create(SLOT, NEW)
    world.catalog.tables.commit(SLOT, *append(1, None, 1))
    thin(world, SLOT)
    with pytest.raises(AlreadyExistsError):
        send(world, requirements, updates, several=several)
    world.catalog.names.rename(SLOT, FREE)
    send(world, requirements, updates, several=several)
    assert world.catalog.tables.load(SLOT).parsed["current-snapshot-id"] == 120


@pytest.mark.parametrize("again", [False, True], ids=["renamed", "and another table got the name"])
def test_a_commit_whose_key_is_not_known_after_a_rename_was_not_carried_out(
    world: World, again: bool
) -> None:
    same = {"type": "assert-table-uuid", "uuid": world.catalog.tables.create(SLOT, NEW).parsed["table-uuid"]}
    world.catalog.tables.commit(SLOT, *append(1, None, 1))
    thin(world, SLOT, commits=8)
    world.catalog.names.rename(SLOT, FREE)
    if again:
        world.catalog.tables.create(SLOT, NEW)
    requirements, updates = append(300, 1, 3)
    with pytest.raises(ConflictError if again else NoSuchTableError):
        world.another().tables.commit(SLOT, [same, *requirements], updates, repeat=repeat(9))


def test_who_may_not_commit_learns_nothing_of_a_table_by_its_uuid(world: World) -> None:
    """Whether its history was thinned would say that it is there."""
    for name in (SLOT, SECOND):
        world.catalog.tables.create(name, NEW)
    known, made_up = uuid_of(world, SLOT), "11111111-2222-4333-8444-555555555555"
    world.catalog.tables.commit(SLOT, *append(1, None, 1))
    thin(world, SLOT, commits=8)
    world.catalog.names.rename(SLOT, FREE)
    for asserted in (known, made_up):
        same = [{"type": "assert-table-uuid", "uuid": asserted}]
        for name in (SLOT, SECOND):
            assert not world.another().tables.carried_out(name, same, append(300, None, 2)[1], None)
