"""Commits under faults, repeats and races, on the catalog without transport (I2, I3, I4, I7)."""

from __future__ import annotations

import itertools
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson
import pytest

from tarn.adapters.store import MemoryStore
from tarn.core.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidError,
    InvalidLocationError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NotEmptyError,
    OutcomeUnknownError,
    TarnError,
    UnavailableError,
)
from tarn.core.naming import TRANSACTIONS_PREFIX, WarehouseLayout, claim_key, namespace_key
from tarn.core.outcome import Conflict, Outcome
from tarn_catalog.operations import lost_commit, namespaces
from tarn_catalog.operations.catalog import Catalog
from tarn_catalog.operations.identifiers import CreateTableRequest, TableIdentifier
from tarn_catalog.operations.multi_table_commit import Change
from tarn_catalog.operations.views import CreateViewRequest
from tarn_catalog.state.claim import Claim
from tarn_catalog.state.context import IdempotencyKey, KeyReusedError
from tarn_catalog.state.namespace import NamespaceState
from tarn_catalog.state.pointer import Pointer
from tarn_catalog.state.register import RetryPolicy
from tarn_catalog.state.request_history import INLINE_MAX, REMEMBERED_MS
from tarn_catalog.state.transactions import ParticipantChange
from tarn_catalog.testing.faulty_store import ANSWERS, Crash, Fault, FaultyStore, Op, no_faults
from tests.support.plays import seeds

ROOTS = WarehouseLayout(base="s3://tarn")
SLOT = TableIdentifier.of(("ns",), "t")
NOW_MS = 1_795_000_000_000
SCHEMA = {"type": "struct", "fields": [{"id": 1, "name": "x", "type": "long", "required": False}]}
NEW = CreateTableRequest(schema=SCHEMA, properties={})
SECOND = TableIdentifier.of(("ns",), "second")
FREE = TableIdentifier.of(("ns",), "free")
LOCATION = ["set by the test"]


class Time:
    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


def key_of(number: int, at_ms: int = NOW_MS) -> str:
    """A UUID version 7 minted at `at_ms`."""
    text = f"{at_ms:012x}7{number:03x}8{number:015x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def repeat(number: int, what: str = "commit:1", at_ms: int = NOW_MS) -> IdempotencyKey:
    return IdempotencyKey(key=key_of(number, at_ms), what=what)


def patience() -> RetryPolicy:
    """Retry policy whose waits pass immediately, on a clock of its own."""
    seconds = [0.0]

    def sleep(wait_s: float) -> None:
        seconds[0] += wait_s

    return RetryPolicy(attempts_max=3, clock=lambda: seconds[0], sleep=sleep)


def snapshot(number: int, parent: int | None, sequence: int) -> dict[str, Any]:
    return {
        "snapshot-id": number,
        **({"parent-snapshot-id": parent} if parent else {}),
        "sequence-number": sequence,
        "timestamp-ms": NOW_MS + number,
        "manifest-list": f"s3://tarn/warehouse/ns/t/metadata/snap-{number}.avro",
        "summary": {"operation": "append", "commit": str(number)},
        "schema-id": 0,
    }


def append(
    number: int, parent: int | None, sequence: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    requirements = [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": parent}]
    updates = [
        {"action": "add-snapshot", "snapshot": snapshot(number, parent, sequence)},
        {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": number},
    ]
    return requirements, updates


class World:
    """A lake in memory whose store can be made to fail."""

    def __init__(self) -> None:
        self.time = Time()
        self.memory = MemoryStore()
        self.store = FaultyStore(self.memory)
        self.catalog = self.another()
        self.catalog.namespaces.create(("ns",), {})

    def another(self) -> Catalog:
        """A second replica."""
        return Catalog(self.store, ROOTS, patience=patience(), now_ms=self.time)

    def healthy(self) -> Catalog:
        """A replica whose store has no faults."""
        return Catalog(self.memory, ROOTS, patience=patience(), now_ms=self.time)

    def table(self) -> None:
        self.catalog.tables.create(SLOT, NEW)
        self.versions_of_create = self.pointer().version

    def commits(self) -> int:
        """Number of pointer swaps since the table was created."""
        return self.pointer().version - self.versions_of_create

    def snapshots(self) -> list[int]:
        self.store.plan = no_faults
        return [s["snapshot-id"] for s in self.healthy().tables.load(SLOT).parsed["snapshots"]]

    def pointer(self, slot: TableIdentifier = SLOT) -> Pointer:
        return Pointer.load(self.memory.get(slot.key).data, slot.key)


@pytest.fixture
def world() -> World:
    return World()


def on_pointer(fault: Fault, times: int = 1, *, reads_too: bool = False) -> Callable[[Op], Fault | None]:
    left = itertools.count()

    def plan(op: Op) -> Fault | None:
        if op.key != SLOT.key or (op.kind != "put" and not reads_too):
            return None
        if op.kind == "get":
            return Fault.RESET
        return fault if next(left) < times else None

    return plan


def test_a_lost_reply_is_committed_once(world: World) -> None:
    world.table()
    world.store.plan = on_pointer(Fault.LOST_REPLY)
    world.catalog.tables.commit(SLOT, *append(1, None, 1))
    world.catalog.tables.commit(SLOT, *append(2, 1, 2))
    assert world.snapshots() == [1, 2]
    assert world.commits() == 2


def test_no_answer_and_no_reading_back_is_unknown_and_deletes_nothing(world: World) -> None:
    world.table()
    before = {listed.key for listed in world.memory.list("")}
    world.store.plan = on_pointer(Fault.LOST_REPLY, 9, reads_too=True)
    with pytest.raises(OutcomeUnknownError, match="delete nothing"):
        world.catalog.tables.commit(SLOT, *append(1, None, 1))
    assert before < {listed.key for listed in world.memory.list("")}
    assert [op for op in world.store.seen if op.kind == "delete"] == []
    assert world.snapshots() == [1], "it did happen: that is why it was unknown"
    world.catalog.tables.commit(SLOT, *append(1, None, 1))
    assert world.snapshots() == [1], "asking again without a key is recognised by the snapshot id"


def test_a_late_commit_lands_or_not_but_never_twice(world: World) -> None:
    world.table()
    world.store.plan = on_pointer(Fault.LATE, 9, reads_too=True)
    with pytest.raises(OutcomeUnknownError):
        world.catalog.tables.commit(SLOT, *append(1, None, 1))
    world.store.plan = no_faults
    world.healthy().tables.commit(SLOT, *append(7, None, 1))
    world.store.settle()
    assert world.snapshots() == [7]
    with pytest.raises(ConflictError, match="branch main was created concurrently"):
        world.catalog.tables.commit(SLOT, *append(1, None, 1))


@pytest.mark.parametrize("fault", [Fault.RESET, Fault.DENIED, Fault.BUSY])
def test_metadata_that_cannot_be_written_commits_nothing(world: World, fault: Fault) -> None:
    world.table()
    world.store.plan = lambda op: fault if op.kind == "put" and "/metadata/" in op.key else None
    with pytest.raises(TarnError) as caught:
        world.catalog.tables.commit(SLOT, *append(1, None, 1))
    assert not isinstance(caught.value, OutcomeUnknownError | ConflictError)
    assert world.snapshots() == []
    assert world.commits() == 0


def test_the_same_key_is_done_once_on_any_replica(world: World) -> None:
    world.table()
    first = world.catalog.tables.commit(SLOT, *append(1, None, 1), repeat=repeat(1))
    world.catalog.tables.commit(SLOT, *append(2, 1, 2), repeat=repeat(2))
    again = world.another().tables.commit(SLOT, *append(1, None, 1), repeat=repeat(1))
    assert again.parsed["current-snapshot-id"] == 2
    assert again.location != first.location
    assert world.commits() == 2
    change = [{"action": "set-properties", "updates": {"a": "1"}}]
    world.catalog.tables.commit(SLOT, [], change, repeat=repeat(3))
    world.catalog.tables.commit(SLOT, [], [{"action": "set-properties", "updates": {"a": "2"}}])
    done = world.catalog.tables.commit(SLOT, [], change, repeat=repeat(3))
    assert done.parsed["properties"]["a"] == "2", "not applied a second time"


def test_a_repeat_of_what_changed_nothing_stays_nothing(world: World) -> None:
    world.table()
    world.catalog.tables.commit(SLOT, [], [{"action": "set-properties", "updates": {"a": "1"}}])
    same = [{"action": "set-properties", "updates": {"a": "1"}}]
    world.catalog.tables.commit(SLOT, [], same, repeat=repeat(1))
    world.catalog.tables.commit(SLOT, [], [{"action": "set-properties", "updates": {"a": "2"}}])
    done = world.catalog.tables.commit(SLOT, [], same, repeat=repeat(1))
    assert done.parsed["properties"]["a"] == "2"


def test_a_key_for_another_payload_is_refused(world: World) -> None:
    world.table()
    world.catalog.tables.commit(SLOT, *append(1, None, 1), repeat=repeat(1))
    with pytest.raises(KeyReusedError, match="used for another request"):
        world.catalog.tables.commit(SLOT, *append(2, 1, 2), repeat=repeat(1, what="commit:2"))
    assert world.snapshots() == [1]


def test_keys_are_remembered_by_time_however_many_commits_follow(world: World) -> None:
    world.table()
    count = 3 * INLINE_MAX
    for number in range(1, count):
        change = [{"action": "set-properties", "updates": {"n": str(number)}}]
        world.catalog.tables.commit(SLOT, [], change, repeat=repeat(number))
    assert len(world.pointer().memory.pages) > 1
    for number in (1, 50, INLINE_MAX, count - 1):
        change = [{"action": "set-properties", "updates": {"n": str(number)}}]
        done = world.another().tables.commit(SLOT, [], change, repeat=repeat(number))
        assert done.parsed["properties"]["n"] == str(count - 1)
    assert len(world.memory.get(SLOT.key).data) < 16_000


def test_an_old_key_that_is_not_found_is_unknown_never_a_conflict(world: World) -> None:
    world.table()
    world.time.now_ms += REMEMBERED_MS + 1
    with pytest.raises(OutcomeUnknownError, match="cannot be told"):
        world.catalog.tables.commit(SLOT, *append(1, None, 1), repeat=repeat(1))
    world.catalog.tables.commit(SLOT, *append(1, None, 1), repeat=repeat(2, at_ms=world.time.now_ms))
    assert world.snapshots() == [1]


def test_a_rebased_repeat_of_a_landed_snapshot_is_done(world: World) -> None:
    """pyiceberg keeps the snapshot id when it rebases: parent and manifest list are new, the rows are not."""
    world.table()
    world.catalog.tables.commit(SLOT, *append(1, None, 1))
    world.catalog.tables.commit(SLOT, *append(2, 1, 2))
    world.catalog.tables.commit(SLOT, *append(1, 2, 3))
    assert world.snapshots() == [1, 2]


def grown(world: World, count: int) -> None:
    world.table()
    for number in range(1, count + 1):
        world.catalog.tables.commit(SLOT, *append(number, number - 1 or None, number))


def together(catalog: Catalog, number: int, parent: int, sequence: int) -> None:
    requirements, updates = append(number, parent, sequence)
    catalog.together.commit([Change(slot=SLOT, requirements=requirements, updates=updates)])


def test_a_repeat_of_what_was_thinned_since_is_done(world: World) -> None:
    """Without a key, long after the response was lost: a client that gets "refused" deletes its files."""
    grown(world, 200)
    assert 20 not in world.snapshots()
    assert len(world.snapshots()) == 80
    for catalog in (world.catalog, world.another()):
        done = catalog.tables.commit(SLOT, *append(20, 19, 20))
        assert done.parsed["current-snapshot-id"] == 200
        with pytest.raises(OutcomeUnknownError, match=r"ns.t was carried out before.* delete nothing"):
            together(catalog, 20, 19, 20)
        with pytest.raises(ConflictError, match="expected id 19 != 200"):
            catalog.tables.commit(SLOT, *append(20, 19, 20), repeat=repeat(1))
    assert world.commits() == 200


def test_a_writer_whose_base_was_thinned_hears_a_conflict(world: World) -> None:
    """Another snapshot was added at that sequence number, as a metadata file from that time shows."""
    grown(world, 200)
    for catalog in (world.catalog, world.another()):
        for base in (19, 100, 159, 198):
            with pytest.raises(ConflictError, match=f"expected id {base} != 200"):
                catalog.tables.commit(SLOT, *append(999, base, base + 1))
            with pytest.raises(ConflictError, match=f"expected id {base} != 200"):
                together(catalog, 999, base, base + 1)
    late = append(20, 19, 20)
    late[1][0]["snapshot"]["timestamp-ms"] += 3_600_000
    with pytest.raises(ConflictError, match="expected id 19 != 200"):
        world.catalog.tables.commit(SLOT, *late)
    assert world.commits() == 200


@pytest.mark.parametrize("taken", [range(200), range(20, 100)], ids=["all", "those of its time"])
def test_what_was_thinned_with_its_metadata_is_unknown_never_a_conflict(world: World, taken: range) -> None:
    grown(world, 200)
    for listed in list(world.memory.list("warehouse/")):
        name = listed.key.rpartition("/")[2]
        if name.endswith(".metadata.json") and int(name.split("-")[0]) in taken:
            world.memory.delete(listed.key)
    for number in (20, 999):
        with pytest.raises(OutcomeUnknownError, match=r"expected id 19 != 200.*thinned; look for your rows"):
            world.catalog.tables.commit(SLOT, *append(number, 19, 20))
        with pytest.raises(OutcomeUnknownError, match="history of that time was thinned"):
            together(world.catalog, number, 19, 20)


def test_a_log_that_leads_elsewhere_proves_nothing(world: World) -> None:
    """As in a file that was registered: another folder, no JSON, another table; never a plain refusal."""
    grown(world, 200)
    current = world.catalog.tables.load(SLOT)
    (oldest, *_) = current.parsed["metadata-log"]
    key = oldest["metadata-file"].removeprefix("s3://tarn/")
    stored = world.memory.get(key)
    assert stored is not None
    other = orjson.dumps({**orjson.loads(stored.data), "table-uuid": "0" * 8})
    for data in (b"\x1f\x8b gzip", b"[]", other):
        world.memory.put(key, data)
        with pytest.raises(OutcomeUnknownError, match="history of that time was thinned"):
            world.catalog.tables.commit(SLOT, *append(999, 19, 20))
    oldest["metadata-file"] = "s3://elsewhere/1.metadata.json"
    with pytest.raises(OutcomeUnknownError, match="history of that time was thinned"):
        lost_commit.check_not_lost(
            world.catalog.core, SLOT, append(999, 19, 20)[1], current, ConflictError("expected id 19 != 200")
        )


def test_how_far_back_a_lost_commit_is_looked_for_has_a_limit(world: World) -> None:
    grown(world, 20 * (lost_commit.READS_MAX + 6))
    world.store.seen.clear()
    with pytest.raises(OutcomeUnknownError, match="history of that time was thinned"):
        world.catalog.tables.commit(SLOT, *append(20, 19, 20))
    reads = [op for op in world.store.seen if op.kind == "get" and op.key.endswith(".metadata.json")]
    assert len(reads) == lost_commit.READS_MAX


def test_a_stale_replica_answers_from_the_store(world: World) -> None:
    world.table()
    other = world.another()
    other.tables.commit(SLOT, *append(1, None, 1))
    world.catalog.tables.commit(SLOT, *append(2, 1, 2))
    other.tables.commit(SLOT, *append(3, 2, 3))
    with pytest.raises(ConflictError, match=r"branch main has changed: expected id 1 != 3"):
        world.catalog.tables.commit(SLOT, *append(4, 1, 2))
    world.another().tables.drop(SLOT)
    for replica in (world.catalog, other, other):
        with pytest.raises(NoSuchTableError):
            replica.tables.commit(SLOT, *append(5, 3, 4))
        assert not replica.tables.exists(SLOT)


def test_a_late_write_does_not_bring_a_dropped_table_back(world: World) -> None:
    world.table()
    world.store.plan = on_pointer(Fault.LATE, 9, reads_too=True)
    with pytest.raises(OutcomeUnknownError):
        world.catalog.tables.commit(SLOT, *append(1, None, 1))
    world.store.plan = no_faults
    world.healthy().tables.drop(SLOT)
    world.store.settle()
    assert not world.healthy().tables.exists(SLOT)
    assert not world.pointer().live


def on_top(world: World, change: Callable[[Catalog], object]) -> Callable[[Op], Fault | None]:
    """The next pointer write loses its reply; before it is read back, another replica builds on it."""
    other = world.healthy()
    steps = iter(("lose", "build"))

    def plan(op: Op) -> Fault | None:
        if op.key != SLOT.key or (op.kind, next(steps, "")) not in {("put", "lose"), ("get", "build")}:
            return None
        if op.kind == "put":
            return Fault.LOST_REPLY
        change(other)
        return None

    return plan


def test_a_commit_that_others_built_on_is_never_a_base_unread(world: World) -> None:
    """Writing its own value with the later value's ETag would overwrite the commits in between."""
    world.table()
    world.catalog.tables.commit(SLOT, [], [{"action": "set-properties", "updates": {"a": "0"}}])
    theirs = [{"action": "set-properties", "updates": {"theirs": "1"}}]
    world.store.plan = on_top(world, lambda other: other.tables.commit(SLOT, [], theirs))
    world.catalog.tables.commit(SLOT, [], [{"action": "set-properties", "updates": {"mine": "1"}}])
    assert world.commits() == 3, "both are in"
    world.catalog.tables.commit(SLOT, [], [{"action": "set-properties", "updates": {"mine": "2"}}])
    properties = world.healthy().tables.load(SLOT).parsed["properties"]
    assert (properties["theirs"], properties["mine"]) == ("1", "2")


def test_nothing_to_do_is_judged_on_the_stored_table(world: World) -> None:
    world.table()
    one = [{"action": "set-properties", "updates": {"a": "1"}}]
    world.catalog.tables.commit(SLOT, [], one)
    world.another().tables.commit(SLOT, [], [{"action": "set-properties", "updates": {"a": "2"}}])
    done = world.catalog.tables.commit(SLOT, [], one)
    assert done.parsed["properties"]["a"] == "1"
    assert world.healthy().tables.load(SLOT).parsed["properties"]["a"] == "1"


def test_a_drop_of_a_namespace_that_was_made_live_again_looks_again(world: World) -> None:
    """Its swap to dropping lost the reply and was undone by a create: it must not go on with that ETag."""
    key = namespace_key(("ns",))
    other = world.healthy()
    puts = itertools.count(1)
    events: list[str] = []

    def plan(op: Op) -> Fault | None:
        if op.key != key:
            return None
        if op.kind == "get" and events == ["lost"]:
            events.append("live again")
            other.tables.create(TableIdentifier.of(("ns",), "passing"), NEW)
            other.tables.drop(TableIdentifier.of(("ns",), "passing"))
        elif op.kind == "put":
            number = next(puts)
            if number == 1:
                events.append("lost")
                return Fault.LOST_REPLY
            if number == 2:
                events.append("table")
                other.tables.create(SLOT, NEW)
        return None

    world.store.plan = plan
    with pytest.raises(NotEmptyError):
        world.catalog.namespaces.drop(("ns",))
    assert events == ["lost", "live again", "table"]
    assert other.namespaces.exists(("ns",))
    assert other.tables.exists(SLOT)


SET = [{"action": "set-properties", "updates": {"a": "1"}}]
# What is changed, how often it is tried, and the operation.
CONTENDED: dict[str, tuple[int, Callable[[Catalog], object]]] = {
    "create": (4, lambda catalog: catalog.tables.create(FREE, NEW)),
    "commit": (16, lambda catalog: catalog.tables.commit(SLOT, [], SET)),
    "drop": (16, lambda catalog: catalog.tables.drop(SLOT)),
    "rename": (16, lambda catalog: catalog.names.rename(SLOT, FREE)),
    "register": (16, lambda catalog: catalog.names.register(SLOT, LOCATION[0], overwrite=True)),
    "purge": (16, lambda catalog: catalog.names.purge(SLOT)),
    "several tables": (
        16,
        lambda catalog: catalog.together.commit(
            [Change(slot=slot, requirements=[], updates=SET) for slot in (SLOT, SECOND)]
        ),
    ),
    "create namespace": (10, lambda catalog: catalog.namespaces.create(("new",), {})),
    "create nested namespace": (10, lambda catalog: catalog.namespaces.create(("ns", "below"), {})),
    "change namespace": (
        10,
        lambda catalog: catalog.namespaces.update(("ns",), updates={"a": "1"}, removals=[]),
    ),
    "drop namespace": (10, lambda catalog: catalog.namespaces.drop(("empty",))),
}


@pytest.mark.parametrize("operation", CONTENDED)
def test_an_operation_that_others_always_outrun_pauses_between_its_attempts(
    world: World, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    world.table()
    world.catalog.tables.create(SECOND, NEW)
    world.catalog.namespaces.create(("empty",), {})
    monkeypatch.setattr(f"{__name__}.LOCATION", [world.catalog.tables.load(SLOT).location])
    events: list[str] = []
    waits_s: list[float] = []

    def sleep(wait_s: float) -> None:
        assert not slow.core.turns.held, "others of this process could not go on"
        events.append("pause")
        waits_s.append(wait_s)

    slow = Catalog(world.store, ROOTS, patience=RetryPolicy(sleep=sleep, clock=lambda: 0.0))
    register = slow.core.register
    create, swap = register.create, register.swap

    def outrun(write: Callable[..., Outcome]) -> Callable[..., Outcome]:
        def put(key: str, data: bytes, **how: Any) -> Outcome:
            if key.startswith(TRANSACTIONS_PREFIX):
                return write(key, data, **how)
            events.append("lost")
            return Conflict(reason="another writer was first")

        return put

    monkeypatch.setattr(register, "create", outrun(create))
    monkeypatch.setattr(register, "swap", outrun(swap))
    before = world.memory.get(SLOT.key)
    attempts, run = CONTENDED[operation]
    with pytest.raises(ConflictError, match=rf"Cannot finish .* {attempts} times meanwhile; refresh"):
        run(slow)
    assert events == ["lost", *["pause", "lost"] * (attempts - 1)], "no attempt but the first is without"
    longest_s = [min(1.0, 0.02 * 2**number) for number in range(attempts - 1)]
    assert all(longest / 2 <= wait <= longest for wait, longest in zip(waits_s, longest_s, strict=True))
    assert world.memory.get(SLOT.key) == before


def claimed(world: World, table_uuid: str, then: dict[str, Any]) -> None:
    part = ParticipantChange(key=claim_key(table_uuid), held=None, blank=Claim.blank(table_uuid), then=then)
    assert world.catalog.transactions.run([part]) is not None


def test_a_change_that_would_break_a_rule_is_not_begun(world: World) -> None:
    with pytest.raises(AssertionError, match="a table has a holder or is purged"):
        claimed(world, "u", {"holder": SLOT.key, "purge": {"name": "t"}})
    assert world.memory.get(claim_key("u")) is None, "an intent would wait for its end"


def test_a_change_of_several_that_would_break_a_rule_leaves_no_intent(world: World) -> None:
    parts = [
        ParticipantChange(key=claim_key(uuid), held=None, blank=Claim.blank(uuid), then=then)
        for uuid, then in (
            ("a", {"holder": SLOT.key, "purge": None}),
            ("b", {"holder": SLOT.key, "purge": {"name": "t"}}),
        )
    ]
    with pytest.raises(AssertionError, match="a table has a holder or is purged"):
        world.catalog.transactions.run(parts)
    stored = world.memory.get(claim_key("a"))
    assert stored is not None
    first = Claim.load(stored.data, "claim")
    assert (first.intent, first.holder) == (None, None)
    assert world.memory.get(claim_key("b")) is None


def test_a_live_name_whose_table_is_purged_can_be_dropped_and_not_renamed(world: World) -> None:
    """A damaged lake, as `fsck` reports it: whoever copied the table drops the name."""
    world.table()
    uuid = str(world.catalog.tables.load(SLOT).parsed["table-uuid"])
    first = {"namespace": ["ns"], "name": "gone", "location": "s3://x", "metadata-location": "m", "at-ms": 1}
    claimed(world, uuid, {"holder": None, "purge": first})
    with pytest.raises(ConflictError, match="dropped with purge"):
        world.catalog.names.rename(SLOT, FREE)
    world.catalog.names.purge(SLOT)
    assert not world.catalog.tables.exists(SLOT)
    stored = world.memory.get(claim_key(uuid))
    assert stored is not None
    assert Claim.load(stored.data, "claim").purge == first


def test_create_and_drop_repeat_by_key(world: World) -> None:
    first = world.catalog.tables.create(SLOT, NEW, repeat=repeat(1, "create"))
    again = world.another().tables.create(SLOT, NEW, repeat=repeat(1, "create"))
    assert again.parsed["table-uuid"] == first.parsed["table-uuid"]
    with pytest.raises(AlreadyExistsError):
        world.catalog.tables.create(SLOT, NEW, repeat=repeat(2, "create"))
    world.catalog.tables.drop(SLOT, repeat=repeat(3, "drop"))
    world.another().tables.drop(SLOT, repeat=repeat(3, "drop"))
    with pytest.raises(NoSuchTableError):
        world.catalog.tables.drop(SLOT)
    second = world.catalog.tables.create(SLOT, NEW)
    world.catalog.tables.drop(SLOT, repeat=repeat(3, "drop"))
    assert world.catalog.tables.load(SLOT).location == second.location, "the repeat did not drop the new one"


def staged(world: World) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    meta = world.catalog.tables.stage(SLOT, NEW)
    updates = [
        {"action": "assign-uuid", "uuid": meta["table-uuid"]},
        {"action": "upgrade-format-version", "format-version": 3},
        {"action": "add-schema", "schema": meta["schemas"][0]},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": meta["partition-specs"][0]},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": meta["sort-orders"][0]},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": meta["location"]},
        {"action": "set-properties", "updates": {"owner": "me"}},
    ]
    return [{"type": "assert-create"}], updates


def create_with_rows(world: World, number: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    requirements, updates = staged(world)
    add, move = append(number, None, 1)[1]
    add["snapshot"] |= {"first-row-id": 0, "added-rows": 1}
    return requirements, [*updates, add, move]


def test_the_end_of_a_staged_create_repeats_without_a_key(world: World) -> None:
    requirements, updates = staged(world)
    first = world.catalog.tables.commit(SLOT, requirements, updates)
    assert first.parsed["format-version"] == 3
    assert first.parsed["next-row-id"] == 0
    assert first.parsed["current-snapshot-id"] is None
    again = world.another().tables.commit(SLOT, requirements, updates)
    assert again.location == first.location
    with pytest.raises(AlreadyExistsError, match=r"Requirement failed: table already exists: ns\.t"):
        world.catalog.tables.commit(SLOT, *staged_elsewhere(updates))


@pytest.mark.parametrize("key", [repeat(1, "create"), None], ids=["with a key", "without a key"])
def test_a_repeat_of_a_create_with_rows_that_came_before_a_rename_is_done_not_refused(
    world: World, key: IdempotencyKey | None
) -> None:
    """A client whose response was lost would otherwise delete files that the table has."""
    requirements, updates = create_with_rows(world, 1)
    made = world.catalog.tables.commit(SLOT, requirements, updates, repeat=key)
    moved = TableIdentifier.of(("ns",), "moved")
    world.catalog.names.rename(SLOT, moved)
    again = world.another().tables.commit(SLOT, requirements, updates, repeat=key)
    assert again.location == made.location == world.catalog.tables.load(moved).location
    assert not world.catalog.tables.exists(SLOT)
    world.catalog.tables.create(SLOT, NEW)
    several = [Change(slot=SLOT, requirements=requirements, updates=updates)]
    for gone in (False, True):
        if gone:
            world.catalog.tables.drop(SLOT)
        with pytest.raises(OutcomeUnknownError, match="has another name now"):
            world.catalog.tables.commit(SLOT, requirements, updates)
        with pytest.raises(OutcomeUnknownError, match="has another name now"):
            world.catalog.together.commit(several)
    world.catalog.tables.create(SLOT, NEW)
    world.catalog.tables.drop(moved)
    with pytest.raises(AlreadyExistsError):
        world.catalog.tables.commit(SLOT, requirements, updates)


@pytest.mark.parametrize("key", [repeat(1, "create"), None], ids=["with a key", "without a key"])
def test_a_repeat_of_a_create_with_rows_is_done_though_its_namespace_is_gone(
    world: World, key: IdempotencyKey | None
) -> None:
    requirements, updates = create_with_rows(world, 1)
    made = world.catalog.tables.commit(SLOT, requirements, updates, repeat=key)
    world.catalog.namespaces.create(("two",), {})
    world.catalog.names.rename(SLOT, TableIdentifier.of(("two",), "t"))
    world.catalog.namespaces.drop(("ns",))
    again = world.another().tables.commit(SLOT, requirements, updates, repeat=key)
    assert again.location == made.location
    with pytest.raises(NoSuchNamespaceError):
        world.another().tables.commit(SECOND, requirements, updates, repeat=repeat(2, "create"))


@pytest.mark.parametrize("since", ["table", "dropped table", "view", "registered"])
def test_a_repeat_is_unknown_if_the_table_has_another_name_and_left_no_way_to_it(
    world: World, since: str
) -> None:
    """The table has the rows under its new name: a refusal would have the client delete their files."""
    made = world.catalog.tables.create(SLOT, NEW)
    same = {"type": "assert-table-uuid", "uuid": made.parsed["table-uuid"].upper()}

    def rows(number: int, parent: int | None) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        requirements, updates = append(number, parent, number)
        updates[0]["snapshot"]["manifest-list"] = f"{made.parsed['location']}/metadata/{number}.avro"
        return [same, *requirements], updates

    def together(commit: tuple[list[dict[str, Any]], list[dict[str, Any]]]) -> None:
        world.another().together.commit([Change(slot=SLOT, requirements=commit[0], updates=commit[1])])

    world.catalog.tables.commit(SLOT, *rows(1, None))
    if since == "registered":
        location = world.catalog.tables.load(SLOT).location
        world.catalog.tables.drop(SLOT)
        world.catalog.names.register(FREE, location)
    else:
        world.catalog.names.rename(SLOT, FREE)
    if since == "view":
        version = {
            **{
                "version-id": 1,
                "timestamp-ms": 1,
                "schema-id": 0,
                "summary": {},
                "default-namespace": ["ns"],
            },
            "representations": [{"type": "sql", "sql": "select 1", "dialect": "spark"}],
        }
        wanted = CreateViewRequest(schema=SCHEMA, version=version, properties={})
        world.catalog.views.create(TableIdentifier.of(("ns",), "t", "view"), wanted)
    elif since != "registered":
        world.catalog.tables.create(SLOT, NEW)
    if since == "dropped table":
        world.catalog.tables.drop(SLOT)
    for commit in (
        lambda: world.another().tables.commit(SLOT, *rows(1, None)),
        lambda: together(rows(1, None)),
    ):
        with pytest.raises(OutcomeUnknownError, match="was carried out, and the table has another name now"):
            commit()
    for commit in (lambda: world.another().tables.commit(SLOT, *rows(2, 1)), lambda: together(rows(2, 1))):
        with pytest.raises(ConflictError if since == "table" else NoSuchTableError):
            commit()
    same["uuid"] = "../../../grants"
    with pytest.raises(ConflictError if since == "table" else NoSuchTableError):
        world.another().tables.commit(SLOT, *rows(1, None))


@pytest.mark.parametrize("renamed", [False, True])
def test_a_repeat_by_key_of_what_was_dropped_since_is_unknown(world: World, renamed: bool) -> None:
    """A register brings the table back, with files that a client deletes when it is refused."""
    requirements, updates = create_with_rows(world, 1)
    world.catalog.tables.commit(SLOT, requirements, updates, repeat=repeat(1, "create"))
    second = append(2, 1, 2)
    second[1][0]["snapshot"].update({"first-row-id": 1, "added-rows": 1})
    change = [], [{"action": "set-properties", "updates": {"p": "1"}}]
    world.catalog.tables.commit(SLOT, *second, repeat=repeat(2))
    world.catalog.tables.commit(SLOT, *change, repeat=repeat(3))
    if renamed:
        world.catalog.names.rename(SLOT, FREE)
    world.catalog.tables.drop(FREE if renamed else SLOT)
    if renamed:
        world.catalog.tables.create(FREE, NEW)
    for commit, key in (((requirements, updates), repeat(1, "create")), (second, repeat(2))):
        with pytest.raises(OutcomeUnknownError, match="was carried out, and the table was dropped since"):
            world.another().tables.commit(SLOT, *commit, repeat=key)
    for commit, key in ((change, repeat(3)), (second, repeat(4)), (second, None)):
        with pytest.raises(NoSuchTableError):
            world.another().tables.commit(SLOT, *commit, repeat=key)


def staged_elsewhere(updates: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    other = "11111111-2222-4333-8444-555555555555"
    changed = [
        {**u, "uuid": other}
        if u["action"] == "assign-uuid"
        else {**u, "location": f"s3://tarn/warehouse/ns/t-{other}"}
        if u["action"] == "set-location"
        else u
        for u in updates
    ]
    return [{"type": "assert-create"}], changed


def test_a_location_is_used_once_in_all_eternity(world: World) -> None:
    requirements, updates = staged(world)
    world.catalog.tables.commit(SLOT, requirements, updates)
    world.catalog.tables.drop(SLOT)
    for slot in (SLOT, TableIdentifier.of(("ns",), "other")):
        later = [*updates, {"action": "set-properties", "updates": {"again": "yes"}}]
        with pytest.raises(ConflictError, match="never given twice"):
            world.catalog.tables.commit(slot, requirements, later)
    bad = [
        {**u, "location": "s3://tarn/warehouse/x"} if u["action"] == "set-location" else u for u in updates
    ]
    with pytest.raises(InvalidLocationError):
        world.catalog.tables.commit(TableIdentifier.of(("ns",), "other"), requirements, bad)


def test_a_table_stays_where_it_is(world: World) -> None:
    world.table()
    uuid = world.pointer().uuid
    move = [{"action": "set-location", "location": f"s3://tarn/warehouse/elsewhere/t-{uuid}"}]
    with pytest.raises(InvalidLocationError, match="stays there"):
        world.catalog.tables.commit(SLOT, [], move)


def statistics(path: str, snapshot_id: int = 1) -> list[list[dict[str, Any]]]:
    """The updates of one commit for each kind of statistics."""
    file = {"snapshot-id": snapshot_id, "statistics-path": path, "file-size-in-bytes": 9}
    more = {"file-footer-size-in-bytes": 1, "blob-metadata": []}
    return [
        [{"action": "set-statistics", "snapshot-id": snapshot_id, "statistics": {**file, **more}}],
        [{"action": "set-partition-statistics", "partition-statistics": file}],
    ]


def test_statistics_of_a_table_lie_under_its_location(world: World) -> None:
    """Where Trino and Iceberg's own library write them: in its metadata folder, or `write.metadata.path`."""
    requirements, created = staged(world)
    for updates in statistics("s3://elsewhere/x.stats"):
        with pytest.raises(InvalidLocationError, match="Invalid statistics-path"):
            world.catalog.tables.commit(SLOT, requirements, [*created, *updates])
    world.table()
    root = world.catalog.tables.load(SLOT).parsed["location"]
    inside = (f"{root}/metadata/a.stats", f"{root}/elsewhere/b", f"s3a{root.removeprefix('s3')}/metadata/c")
    for path in inside:
        for updates in statistics(path):
            done = world.catalog.tables.commit(SLOT, [], updates)
            (name,) = {"statistics", "partition-statistics"} & updates[0].keys()
            assert [file["statistics-path"] for file in done.parsed[name]] == [path]
    outside = (
        "s3://elsewhere/x.stats",
        "file:///etc/passwd",
        "x.stats",
        "s3://tarn/reaper/v1/x",
        f"{root}x/metadata/x.stats",
        f"{root.rpartition('/')[0]}/other/metadata/x.stats",
    )
    for path in outside:
        for updates in statistics(path):
            with pytest.raises(
                InvalidLocationError, match=f"Invalid statistics-path {re.escape(path)}: .*{root}"
            ):
                world.catalog.tables.commit(SLOT, [], updates)
            with pytest.raises(InvalidLocationError, match="Invalid statistics-path"):
                world.catalog.together.commit([Change(slot=SLOT, requirements=[], updates=updates)])


def test_statistics_that_a_table_has_elsewhere_keep_no_commit_from_it(world: World) -> None:
    """Former releases took any path, and `register` does: readers need none of these files."""
    world.table()
    before = world.catalog.tables.load(SLOT)
    world.catalog.tables.drop(SLOT)
    meta = orjson.loads(before.raw)
    for updates in statistics("s3://elsewhere/x.stats"):
        meta |= {name: [file] for name, file in updates[0].items() if name.endswith("statistics")}
    folder = before.location.rpartition("/")[0]
    world.memory.put(ROOTS.key(f"{folder}/00009-x.metadata.json"), orjson.dumps(meta))
    world.catalog.names.register(SLOT, f"{folder}/00009-x.metadata.json")
    done = world.catalog.tables.commit(SLOT, [], [{"action": "set-properties", "updates": {"a": "b"}}])
    assert [file["statistics-path"] for file in done.parsed["statistics"]] == ["s3://elsewhere/x.stats"]
    for updates in statistics(f"{meta['location']}/metadata/y.stats"):
        done = world.catalog.tables.commit(SLOT, [], updates)
    assert [file["statistics-path"] for file in done.parsed["statistics"]] == [
        f"{meta['location']}/metadata/y.stats"
    ]


# -- a namespace that is dropped while something is created in it


def test_every_interleaving_of_drop_namespace_and_create_table_is_whole() -> None:
    """Final state: either a namespace with its table, or neither."""
    results = {"table": 0, "dropped": 0}
    for stop_at in range(1, 12):
        for first in ("create", "drop"):
            world = World()
            other = world.another()
            numbers = itertools.count(1)
            running = threading.local()

            def race(
                op: Op, world=world, other=other, numbers=numbers, running=running, first=first, at=stop_at
            ):
                if getattr(running, "inner", False) or next(numbers) != at:
                    return
                running.inner = True
                try:
                    if first == "create":
                        other.namespaces.drop(("ns",))
                    else:
                        other.tables.create(SLOT, NEW)
                except TarnError:
                    pass
                finally:
                    running.inner = False
                return

            world.store.plan = race
            try:
                if first == "create":
                    world.catalog.tables.create(SLOT, NEW)
                else:
                    world.catalog.namespaces.drop(("ns",))
            except (NoSuchNamespaceError, NotEmptyError, ConflictError):
                pass
            world.store.plan = no_faults
            healthy = world.healthy()
            there = healthy.namespaces.exists(("ns",))
            stored = world.memory.get(SLOT.key)
            live = stored is not None and Pointer.load(stored.data, SLOT.key).live
            assert live <= there, f"{first} stopped at {stop_at}: a table without its namespace"
            results["table" if live else "dropped"] += 1
    assert min(results.values()) > 0, results


class Turns:
    """Interleaves the store operations of two threads in a given order; those beyond it run freely."""

    def __init__(self, order: tuple[int, ...]) -> None:
        self._order = list(order)
        self._done: set[int] = set()
        self._changed = threading.Condition()
        self.who = threading.local()

    def __call__(self, _: Op) -> Fault | None:
        actor = getattr(self.who, "actor", None)
        if actor is None:
            return None
        with self._changed:
            while self._order and self._order[0] != actor:
                if self._order[0] in self._done:
                    self._order.pop(0)
                    continue
                assert self._changed.wait(timeout=20), "stuck"
            if self._order:
                self._order.pop(0)
            self._changed.notify_all()
        return None

    def run(self, actor: int, operation: Callable[[], object]) -> str:
        self.who.actor = actor
        try:
            operation()
        except (NoSuchNamespaceError, NotEmptyError, ConflictError) as error:
            return type(error).__name__
        finally:
            with self._changed:
                self._done.add(actor)
                self._changed.notify_all()
        return "done"


def test_all_orders_of_the_steps_of_a_drop_and_a_create_are_whole(record_property) -> None:
    """In every order: no table is live in a dropped namespace, and every client got the right answer."""
    results: dict[tuple[str, str], int] = {}
    steps_of_create, steps_of_drop = 7, 6
    everything = range(steps_of_create + steps_of_drop)
    with ThreadPoolExecutor(2) as pool:
        for drops_at in itertools.combinations(everything, steps_of_drop):
            world = World()
            other = world.another()
            turns = Turns(tuple(int(step in drops_at) for step in everything))
            world.store.plan = turns
            create = pool.submit(turns.run, 0, lambda world=world: world.catalog.tables.create(SLOT, NEW))
            drop = pool.submit(turns.run, 1, lambda other=other: other.namespaces.drop(("ns",)))
            told = (create.result(timeout=30), drop.result(timeout=30))
            healthy = world.healthy()
            there = healthy.namespaces.exists(("ns",))
            stored = world.memory.get(SLOT.key)
            live = stored is not None and Pointer.load(stored.data, SLOT.key).live
            assert live <= there, (drops_at, told)
            assert live == (told[0] == "done"), (drops_at, told)
            assert told[1] != "done" or not there, (drops_at, told)
            results[told] = results.get(told, 0) + 1
    record_property("results", {" / ".join(told): count for told, count in results.items()})
    assert results[("done", "NotEmptyError")] > 50, results
    assert results[("NoSuchNamespaceError", "done")] > 50, results


CHILD = ("ns", "child")


def test_all_orders_of_the_steps_of_a_drop_and_the_making_of_a_namespace_below_are_whole(
    record_property,
) -> None:
    results: Counter[tuple[str, str]] = Counter()
    steps_of_create, steps_of_drop = 5, 6
    everything = range(steps_of_create + steps_of_drop)
    with ThreadPoolExecutor(2) as pool:
        for drops_at in itertools.combinations(everything, steps_of_drop):
            world = World()
            other = world.another()
            turns = Turns(tuple(int(step in drops_at) for step in everything))
            world.store.plan = turns
            create = pool.submit(turns.run, 0, lambda world=world: world.catalog.namespaces.create(CHILD, {}))
            drop = pool.submit(turns.run, 1, lambda other=other: other.namespaces.drop(("ns",)))
            told = (create.result(timeout=30), drop.result(timeout=30))
            healthy = world.healthy()
            there, below = healthy.namespaces.exists(("ns",)), healthy.namespaces.exists(CHILD)
            assert below <= there, (drops_at, told)
            assert below == (told[0] == "done"), (drops_at, told)
            assert told[1] != "done" or not there, (drops_at, told)
            results[told] += 1
    record_property("results", {" / ".join(told): count for told, count in results.items()})
    assert results[("done", "NotEmptyError")] > 10, results
    assert results[("NoSuchNamespaceError", "done")] > 10, results


@pytest.mark.parametrize("how", [Fault.CRASH, Fault.CRASH_DONE])
def test_a_namespace_whose_making_was_killed_never_outlives_the_one_above(how: Fault) -> None:
    outcomes: Counter[bool] = Counter()
    for at in itertools.count(1):
        world = World()
        steps = itertools.count(1)
        world.store.plan = lambda _, steps=steps, at=at: how if next(steps) == at else None
        killed = False
        try:
            world.another().namespaces.create(CHILD, {"x": "1"})
        except Crash:
            killed = True
        world.store.plan = no_faults
        healthy = world.healthy()
        made = healthy.namespaces.exists(CHILD)
        assert list(healthy.namespaces.children(("ns",)).names) == ([CHILD] if made else [])
        outcomes[made] += 1
        if made:
            with pytest.raises(NotEmptyError):
                healthy.namespaces.drop(("ns",))
            healthy.namespaces.drop(CHILD)
        healthy.namespaces.drop(("ns",))
        healthy.namespaces.create(("ns",), {})
        assert not world.another().namespaces.exists(CHILD)
        healthy.namespaces.create(CHILD, {"x": "2"})
        assert healthy.namespaces.load(CHILD) == {"x": "2"}
        if not killed:
            break
    assert (outcomes[True], outcomes[False]) == ((2, 4) if how is Fault.CRASH_DONE else (1, 5))


def test_a_drop_that_died_half_way_is_no_hindrance(world: World) -> None:
    world.store.plan = lambda op: Fault.RESET if op.kind == "list" else None
    with pytest.raises(UnavailableError):
        world.catalog.namespaces.drop(("ns",))
    world.store.plan = no_faults
    assert b'"dropping"' in world.memory.get(namespace_key(("ns",))).data
    assert world.catalog.namespaces.exists(("ns",))
    world.table()
    assert NamespaceState.LIVE.value.encode() in world.memory.get(namespace_key(("ns",))).data
    with pytest.raises(NotEmptyError):
        world.catalog.namespaces.drop(("ns",))
    world.catalog.tables.drop(SLOT)
    world.catalog.namespaces.drop(("ns",), repeat=repeat(1, "drop-ns"))
    world.another().namespaces.drop(("ns",), repeat=repeat(1, "drop-ns"))
    with pytest.raises(NoSuchNamespaceError):
        world.catalog.namespaces.load(("ns",))


def test_namespace_changes_repeat_by_key(world: World) -> None:
    made = world.catalog.namespaces.create(("b",), {"x": "1"}, repeat=repeat(1, "create-ns"))
    assert world.another().namespaces.create(("b",), {"x": "1"}, repeat=repeat(1, "create-ns")) == made
    world.catalog.namespaces.update(("b",), updates={"y": "1"}, removals=["x"], repeat=repeat(2, "up"))
    world.catalog.namespaces.update(("b",), updates={"y": "2"}, removals=[])
    world.catalog.namespaces.update(("b",), updates={"y": "1"}, removals=["x"], repeat=repeat(2, "up"))
    assert world.catalog.namespaces.load(("b",)) == {"y": "2"}
    world.catalog.namespaces.drop(("b",))
    with pytest.raises(NoSuchNamespaceError):
        world.another().namespaces.create(("b",), {"x": "1"}, repeat=repeat(1, "create-ns"))


def test_properties_of_a_namespace_are_bounded_since_listings_read_them(world: World) -> None:
    spaces, most = world.catalog.namespaces, 1024 * 1024
    with pytest.raises(InvalidError, match=r"properties of namespace big: \d+ bytes in all, at most 1048576"):
        spaces.create(("big",), {"x": "y" * most})
    spaces.create(("big",), {"x": "y" * (most - 100)})
    before = world.memory.get(namespace_key(("big",)))
    with pytest.raises(InvalidError, match="remove some, or make them shorter"):
        spaces.update(("big",), updates={"z": "y" * 100}, removals=[])
    assert world.memory.get(namespace_key(("big",))) == before
    spaces.update(("big",), updates={"z": "y" * 100}, removals=["x"])
    assert spaces.load(("big",)) == {"z": "y" * 100}


def test_properties_of_a_former_release_that_are_too_large_can_be_removed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    spaces = world.catalog.namespaces
    spaces.create(("big",), {"x": "1" * 100, "y": "2" * 100, "z": "3"})
    monkeypatch.setattr(namespaces, "PROPERTIES_BYTES_MAX", 50)
    spaces.update(("big",), updates={}, removals=["x"])
    assert spaces.load(("big",)).keys() == {"y", "z"}
    spaces.update(("big",), updates={"y": "2" * 90}, removals=[])
    spaces.update(("big",), updates={"z": "4"}, removals=[])
    assert spaces.load(("big",)) == {"y": "2" * 90, "z": "4"}, "it became no larger"
    with pytest.raises(InvalidError, match="at most 50 are allowed"):
        spaces.update(("big",), updates={"z": "44"}, removals=[])


def test_many_properties_are_removed_in_a_step_each(world: World) -> None:
    spaces = world.catalog.namespaces
    spaces.create(("many",), {f"p{number}": "" for number in range(30_000)})
    before = time.thread_time()
    gone = spaces.update(("many",), updates={}, removals=["p0"] * 30_000)
    assert time.thread_time() - before < 5, "a search through the list for every property takes far longer"
    assert len(spaces.load(("many",))) == 29_999
    assert (set(gone.removed), gone.missing) == ({"p0"}, [])


def test_listing_pages_skip_the_dropped(world: World) -> None:
    for number in range(25):
        world.catalog.tables.create(TableIdentifier.of(("ns",), f"t{number:02}"), NEW)
    for number in range(0, 25, 3):
        world.catalog.tables.drop(TableIdentifier.of(("ns",), f"t{number:02}"))
    wanted = [("ns", f"t{number:02}") for number in range(25) if number % 3]
    assert list(world.catalog.namespaces.list_tables(("ns",), kind="table").names) == wanted
    found, token, pages = [], None, 0
    while True:
        page = world.another().namespaces.list_tables(("ns",), kind="table", token=token, page_size=5)
        found += page.names
        token, pages = page.next_token, pages + 1
        if token is None:
            break
        assert pages < 4, f"there is a page after the last one: {found}"
    assert (found, pages) == (wanted, 4)


def test_a_listing_of_what_is_known_starts_no_thread(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting threads takes longer than a listing that asks the store nothing."""
    for number in range(5):
        world.catalog.tables.create(TableIdentifier.of(("ns",), f"t{number}"), NEW)
    first = world.catalog.namespaces.list_tables(("ns",), kind="table").names
    monkeypatch.delattr(namespaces, "ThreadPoolExecutor")
    assert world.catalog.namespaces.list_tables(("ns",), kind="table").names == first
    world.another().tables.drop(TableIdentifier.of(("ns",), "t3"))
    assert world.catalog.namespaces.list_tables(("ns",), kind="table").names == [
        name for name in first if name != ("ns", "t3")
    ]


@pytest.mark.plays
@pytest.mark.parametrize("seed", seeds(20))
def test_chaos_of_writers_under_faults_tells_the_truth(seed: int) -> None:
    """Eight writers on two replicas; a fifth of the pointer requests fail; every answer is correct."""
    chance = random.Random(seed)
    world = World()
    world.table()
    lock = threading.Lock()

    def plan(op: Op) -> Fault | None:
        with lock:
            if op.key == SLOT.key and chance.random() < 0.2:
                return chance.choice(ANSWERS)
            return None

    world.store.plan = plan
    replicas = [world.another(), world.another()]
    sure: list[int] = []
    maybe: list[int] = []

    def write(writer: int) -> None:
        for number in range(8):
            mine = writer * 100 + number + 1
            for _ in range(60):
                try:
                    replica = replicas[writer % 2]
                    meta = replica.tables.load(SLOT).parsed
                    head = meta.get("current-snapshot-id")
                    parent = None if head in (None, -1) else head
                    replica.tables.commit(SLOT, *append(mine, parent, meta["last-sequence-number"] + 1))
                except OutcomeUnknownError:
                    maybe.append(mine)
                    break
                except TarnError:
                    continue
                sure.append(mine)
                break

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    world.store.plan = no_faults
    world.store.settle()
    found = world.snapshots()
    assert len(found) == len(set(found))
    assert set(sure) <= set(found), "a commit that was acknowledged is lost"
    assert set(found) <= set(sure) | set(maybe), "a commit that was refused is there"
    meta = world.healthy().tables.load(SLOT).parsed
    parents = [s.get("parent-snapshot-id") for s in meta["snapshots"]]
    assert parents == [None, *found[:-1]], "one chain"
    assert len(sure) > 20
