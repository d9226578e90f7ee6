"""Rules that every write of a register value must keep; each case breaks one rule and no other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tarn.adapters.store import MemoryStore
from tarn.core.naming import WarehouseLayout
from tarn.core.outcome import Committed
from tarn_catalog.operations.identifiers import TableIdentifier, gone, placed
from tarn_catalog.state.access import (
    THE_WAREHOUSE,
    AccessState,
    Grant,
    Privilege,
    Securable,
    StoredPrincipal,
)
from tarn_catalog.state.claim import Claim
from tarn_catalog.state.context import CatalogContext
from tarn_catalog.state.namespace import Namespace, NamespaceState
from tarn_catalog.state.pointer import Pointer, PointerState
from tarn_catalog.state.record import Record, RecordState
from tarn_catalog.state.request_history import Page, RequestHistory
from tarn_catalog.state.value import Intent, RegisterValue, WriteStamp

FIRST = WriteStamp(nonce="n1", at_ms=1)
SECOND = WriteStamp(nonce="n2", at_ms=2, key="k", what="commit:1")
THIRD = WriteStamp(nonce="n3", at_ms=3)

BLANK = Pointer.blank(("ns",), "t")
LIVE = replace(BLANK, state=PointerState.LIVE, uuid="u", metadata="s3://m1").next(FIRST)
TOMBSTONE = replace(LIVE, state=PointerState.DROPPED, metadata=None).next(SECOND)
MOVE = Intent(record="r", nonce="tx", at_ms=2, then=gone("u", moved=TableIdentifier.of(("ns",), "other")))
SLOT, VIEW_SLOT = (TableIdentifier.of(("ns",), "t", kind) for kind in ("table", "view"))
MOVING = replace(LIVE, intent=MOVE).next(SECOND)

THERE = replace(Namespace.blank(("ns",)), state=NamespaceState.LIVE, uuid="u").next(FIRST)
DROPPING = replace(THERE, state=NamespaceState.DROPPING).next(SECOND)
DROPPED = replace(DROPPING, state=NamespaceState.DROPPED).next(THIRD)
NESTED = Namespace.blank(("ns", "below"))
MAKING = replace(NESTED, making=True).next(FIRST)

CLAIM = Claim.blank("u")
HELD = replace(CLAIM, holder="p").next(FIRST)
PURGED = replace(CLAIM, purge={"name": "t"}).next(FIRST)

OWNED = replace(LIVE, owner="ann-1")
BOB = StoredPrincipal(client_id="bob-1", name="bob", secret_sha256="0" * 64, at_ms=1, by="cli")
TABLE = Securable(kind="table", uuid="u", name=("ns", "t"))
READS = Grant(on=TABLE, to="bob", privileges=frozenset({Privilege.READ}))
NO_GRANTS = AccessState.blank()
GRANTS = replace(NO_GRANTS, uuid="g", principals=(BOB,), roles={"staff": ("bob",)}, grants=(READS,)).next(
    FIRST
)

PENDING = Record(uuid="x", keys=("a", "b"), at_ms=1, nonce="n1")
COMMITTED = replace(PENDING, state=RecordState.COMMITTED, nonce="n2")

# (the rule, the stored value or None, a value that must not replace it)
BROKEN: tuple[tuple[str, RegisterValue | None, RegisterValue], ...] = (
    ("an owner changes alone", OWNED, replace(OWNED, owner="bob-1", metadata="s3://m2").next(SECOND)),
    ("an owner changes alone", OWNED, replace(OWNED, owner=None).next(SECOND)),
    ("an owner changes alone", THERE, replace(THERE, owner="x", properties={"a": "b"}).next(SECOND)),
    ("an owner changes alone", THERE, replace(THERE, owner="x", state=NamespaceState.DROPPING).next(SECOND)),
    ("an owner changes alone", replace(THERE, owner="x"), THERE.next(SECOND)),
    ("its uuid never changes", GRANTS, replace(GRANTS, uuid="h").next(SECOND)),
    ("its uuid never changes", None, NO_GRANTS.next(FIRST)),
    (
        "a client id belongs to one name",
        replace(GRANTS, roles={}, grants=()),
        replace(GRANTS, principals=(replace(BOB, name="eve"),), roles={}, grants=()).next(SECOND),
    ),
    (
        "a name is that of one principal or role",
        GRANTS,
        replace(GRANTS, principals=(BOB, replace(BOB, client_id="bob-2"))).next(SECOND),
    ),
    (
        "a name is that of one principal or role",
        GRANTS,
        replace(GRANTS, roles={"bob": ()}).next(SECOND),
    ),
    ("members of roles are principals", GRANTS, replace(GRANTS, roles={"staff": ("eve",)}).next(SECOND)),
    (
        "grants go to principals and roles that exist",
        GRANTS,
        replace(GRANTS, grants=(replace(READS, to="eve"),)).next(SECOND),
    ),
    (
        "grants go to principals and roles that exist",
        GRANTS,
        replace(GRANTS, roles={"admin": ("bob",)}, grants=(replace(READS, to="admin"),)).next(SECOND),
    ),
    (
        "a grantee has one grant on a thing, of privileges that fit",
        GRANTS,
        replace(GRANTS, grants=(READS, replace(READS, privileges=frozenset({Privilege.WRITE})))).next(SECOND),
    ),
    (
        "a grantee has one grant on a thing, of privileges that fit",
        GRANTS,
        replace(GRANTS, grants=(replace(READS, privileges=frozenset()),)).next(SECOND),
    ),
    (
        "a grantee has one grant on a thing, of privileges that fit",
        GRANTS,
        replace(GRANTS, grants=(replace(READS, privileges=frozenset({Privilege.CREATE})),)).next(SECOND),
    ),
    ("the version grows by one", LIVE, replace(LIVE, version=2).next(SECOND)),
    ("the version grows by one", DROPPING, replace(DROPPING, version=1).next(SECOND)),
    ("the version grows by one", None, replace(CLAIM, version=1).next(FIRST)),
    ("the history ends with the write itself", LIVE, replace(LIVE.next(SECOND), nonce="n9")),
    ("the history only grows", LIVE, replace(LIVE, memory=RequestHistory()).next(SECOND)),
    (
        "the history only grows",
        HELD,
        replace(HELD, memory=replace(HELD.memory, pages=(Page(key="p", level=0, to_ms=1),))).next(SECOND),
    ),
    ("an intent changes nothing else", LIVE, replace(LIVE, intent=MOVE, metadata="s3://m2").next(SECOND)),
    ("an intent changes nothing else", None, replace(CLAIM, intent=MOVE, holder="p").next(FIRST)),
    (
        "an intent is applied or discarded, with no other change",
        MOVING,
        replace(MOVING.settled(committed=True), moved=None).next(THIRD),
    ),
    (
        "an intent is applied or discarded, with no other change",
        MOVING,
        replace(MOVING.settled(committed=False), metadata="s3://m2").next(THIRD),
    ),
    ("an intent is applied or discarded, with no other change", MOVING, MOVING.next(THIRD)),
    ("a live name changes its kind with its uuid only", LIVE, replace(LIVE, kind="view").next(SECOND)),
    ("namespace and name never change", LIVE, replace(LIVE, namespace=("other",)).next(SECOND)),
    ("namespace and name never change", LIVE, replace(LIVE, name="other").next(SECOND)),
    ("metadata is set exactly while live", LIVE, replace(LIVE, metadata=None).next(SECOND)),
    ("metadata is set exactly while live", LIVE, replace(LIVE, state=PointerState.DROPPED).next(SECOND)),
    (
        "a live pointer has a uuid",
        None,
        replace(BLANK, state=PointerState.LIVE, metadata="s3://m1").next(FIRST),
    ),
    ("a tombstone is that of a table", TOMBSTONE, replace(TOMBSTONE, kind="view").next(THIRD)),
    ("only a tombstone leads to a new name", LIVE, replace(LIVE, moved=("ns", "other")).next(SECOND)),
    ("a live name gets another table or view by an intent only", LIVE, replace(LIVE, uuid="v").next(SECOND)),
    ("its name never changes", THERE, replace(THERE, levels=("other",)).next(SECOND)),
    (
        "a drop goes from live by dropping to dropped",
        THERE,
        replace(THERE, state=NamespaceState.DROPPED).next(SECOND),
    ),
    (
        "a drop goes from live by dropping to dropped",
        DROPPED,
        replace(DROPPED, state=NamespaceState.DROPPING, uuid="v").next(FIRST),
    ),
    ("a create assigns a uuid, nothing else does", THERE, replace(THERE, uuid="v").next(SECOND)),
    (
        "a create assigns a uuid, nothing else does",
        DROPPED,
        replace(DROPPED, state=NamespaceState.LIVE).next(FIRST),
    ),
    ("only a dropped namespace is being created", THERE, replace(THERE, making=True).next(SECOND)),
    (
        "a nested create is announced first",
        None,
        replace(NESTED, state=NamespaceState.LIVE, uuid="u").next(FIRST),
    ),
    ("its uuid never changes", HELD, replace(HELD, uuid="v").next(SECOND)),
    ("a table has a holder or is purged", HELD, replace(HELD, purge={"name": "t"}).next(SECOND)),
    ("a purge is never taken back", PURGED, replace(PURGED, purge=None).next(SECOND)),
    ("a purge is never taken back", PURGED, replace(PURGED, purge={"name": "other"}).next(SECOND)),
    ("only its state changes", PENDING, replace(COMMITTED, keys=("a",))),
    ("only its state changes", PENDING, replace(COMMITTED, uuid="y")),
    ("it begins pending", None, COMMITTED),
    ("a decision is final", COMMITTED, replace(COMMITTED, state=RecordState.ABORTED, nonce="n3")),
)
KEPT: tuple[tuple[RegisterValue | None, RegisterValue], ...] = (
    (None, LIVE),
    (LIVE, replace(LIVE, metadata="s3://m2").next(SECOND)),
    (LIVE, TOMBSTONE),
    (LIVE, MOVING),
    (MOVING, MOVING.settled(committed=True).next(THIRD)),
    (MOVING, MOVING.settled(committed=False).next(THIRD)),
    (None, replace(BLANK, intent=replace(MOVE, then=placed(SLOT, "v", "s3://v"))).next(FIRST)),
    (TOMBSTONE, replace(TOMBSTONE, state=PointerState.LIVE, uuid="v", metadata="s3://v").next(THIRD)),
    (
        TOMBSTONE,
        replace(TOMBSTONE, state=PointerState.LIVE, kind="view", uuid="v", metadata="s3://v").next(THIRD),
    ),
    (None, THERE),
    (THERE, replace(THERE, properties={"owner": "ops"}).next(SECOND)),
    (THERE, DROPPING),
    (DROPPING, DROPPING.next(THIRD)),
    (DROPPING, replace(DROPPING, state=NamespaceState.LIVE).next(THIRD)),
    (DROPPING, DROPPED),
    (DROPPED, replace(DROPPED, state=NamespaceState.LIVE, uuid="v").next(FIRST)),
    (None, MAKING),
    (MAKING, replace(MAKING, making=False).next(SECOND)),
    (MAKING, replace(MAKING, making=False, state=NamespaceState.LIVE, uuid="v").next(SECOND)),
    (None, HELD),
    (HELD, replace(HELD, holder=None, purge={"name": "t"}).next(SECOND)),
    (OWNED, OWNED.dropped().next(SECOND)),
    (None, GRANTS),
    (GRANTS, GRANTS.with_grant(TABLE, "bob", frozenset({Privilege.MANAGE})).next(SECOND)),
    (GRANTS, GRANTS.with_grant(THE_WAREHOUSE, "staff", frozenset({Privilege.CREATE})).next(SECOND)),
    (GRANTS, GRANTS.with_grant(TABLE, "bob", frozenset()).next(SECOND)),
    (GRANTS, GRANTS.without("bob").next(SECOND)),
    (GRANTS, GRANTS.without("staff").next(SECOND)),
    (None, PENDING),
    (PENDING, COMMITTED),
    (PENDING, replace(PENDING, nonce="n2")),
    (PENDING, replace(COMMITTED, state=RecordState.ABORTED)),
)


def context_with(value: RegisterValue | None) -> tuple[CatalogContext, Any]:
    """A catalog's context on a store with this value, and the value as stored; None if there is none."""
    store = MemoryStore()
    context = CatalogContext(store, WarehouseLayout(base="s3://tarn"))
    if value is None:
        return context, None
    store.put("the-key", value.dump(), if_absent=True)
    return context, context.read("the-key", type(value).load)


@pytest.mark.parametrize(("rule", "before", "after"), BROKEN)
def test_a_value_that_breaks_one_rule_is_refused_with_it(
    rule: str, before: RegisterValue | None, after: RegisterValue
) -> None:
    with pytest.raises(AssertionError) as refused:
        after.check_follows(before, "the-key")
    assert str(refused.value).startswith("the-key must not change from ")
    assert str(refused.value).endswith(f": {rule}"), "this rule is broken and no other"


@pytest.mark.parametrize(("before", "after"), KEPT)
def test_what_the_operations_write_keeps_all_rules_and_is_stored(
    before: RegisterValue | None, after: RegisterValue
) -> None:
    context, held = context_with(before)
    written, outcome = context.write("the-key", after, over=held)
    assert isinstance(outcome, Committed)
    assert written is not None
    assert written.value == after
    assert context.read("the-key", type(after).load) == written


def test_every_rule_has_a_case() -> None:
    stated = {rule for cls in (Pointer, Namespace, Claim, Record, AccessState) for rule, _ in cls.RULES}
    assert stated == {rule for rule, _, _ in BROKEN}


@pytest.mark.parametrize(("before", "after"), [(case[1], case[2]) for case in BROKEN])
def test_the_one_write_stores_nothing_that_breaks_a_rule(
    before: RegisterValue | None, after: RegisterValue
) -> None:
    context, held = context_with(before)
    with pytest.raises(AssertionError, match="the-key must not change"):
        context.write("the-key", after, over=held)
    assert context.read("the-key", type(after).load) == held


def test_the_intent_of_a_view_names_its_kind_and_a_tables_does_not() -> None:
    """An intent of a version before there were views has no kind: it is a table's."""
    view = replace(TOMBSTONE, intent=replace(MOVE, then=placed(VIEW_SLOT, "v", "s3://v")))
    assert view.settled(committed=True).kind == "view"
    assert view.settled(committed=False).kind == "table"
    assert "kind" not in placed(SLOT, "v", "s3://v")
    assert replace(view.settled(committed=True), intent=MOVE).settled(committed=True).kind == "table"


def test_the_owner_follows_the_table_and_no_other() -> None:
    """A tombstone keeps it too: its owner may repeat the drop. An intent of a former release names none."""
    assert "owner" not in placed(SLOT, "u", "s3://m2")
    kept = replace(OWNED, intent=replace(MOVE, then=placed(SLOT, "u", "s3://m2"))).settled(committed=True)
    assert (kept.owner, kept.metadata) == ("ann-1", "s3://m2")
    moved = replace(OWNED, intent=MOVE).settled(committed=True)
    assert (moved.live, moved.owner) == (False, "ann-1")
    other = replace(moved, intent=replace(MOVE, then=placed(SLOT, "v", "s3://v")))
    assert other.settled(committed=True).owner is None
    mine = replace(SLOT, owner="bob-1")
    taken = replace(moved, intent=replace(MOVE, then=placed(mine, "v", "s3://v")))
    assert taken.settled(committed=True).owner == "bob-1"
