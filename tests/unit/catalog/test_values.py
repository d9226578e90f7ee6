"""Register values survive a round trip, and anything else is reported as damage."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest

from tarn.core.errors import CorruptStateError, UnavailableError
from tarn_catalog.operations.identifiers import TableIdentifier, gone, placed
from tarn_catalog.state.access import AccessState
from tarn_catalog.state.claim import Claim
from tarn_catalog.state.namespace import Namespace, NamespaceState
from tarn_catalog.state.pointer import Pointer, PointerState
from tarn_catalog.state.record import Record, RecordState
from tarn_catalog.state.value import Intent, WriteStamp

INTENT = Intent(
    record="catalog/v1/transactions/x.json",
    nonce="tx",
    then=gone("u", moved=TableIdentifier.of(("two", "x"), "b")),
    at_ms=7,
    key="k",
    what="rename:1",
)
STAMP = WriteStamp(nonce="n2", at_ms=8)
LIVE = Pointer(namespace=("ns",), name="a", uuid="u", version=3, metadata="s3://m", nonce="n")
HELD = Claim(uuid="u", holder="catalog/v1/pointers/ns/a.json", version=2, nonce="n")
PENDING = Record(uuid="x", keys=("a", "b"), at_ms=7, nonce="n")
MAKING = Namespace(
    levels=("a", "b"), uuid="u", state=NamespaceState.DROPPED, version=1, nonce="n", making=True
)
GRANTS = AccessState(uuid="g", version=1, nonce="n")
VALUES = (
    LIVE,
    replace(LIVE, intent=INTENT).next(STAMP),
    HELD,
    replace(HELD, intent=INTENT).next(STAMP),
    PENDING,
    replace(PENDING, state=RecordState.COMMITTED, nonce="n2"),
    MAKING,
)


@pytest.mark.parametrize("value", VALUES)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    assert type(value).load(value.dump(), "k") == value


def test_an_intent_changes_nothing_until_it_is_committed() -> None:
    carrying = replace(LIVE, intent=INTENT).next(STAMP)
    assert (carrying.live, carrying.metadata, carrying.version) == (True, "s3://m", 4)
    back = carrying.settled(committed=False)
    assert (back.live, back.metadata, back.intent, back.moved) == (True, "s3://m", None, None)
    assert back.memory.find("k", lambda _: ()) is None
    done = carrying.settled(committed=True)
    assert (done.state, done.metadata, done.moved) == (PointerState.DROPPED, None, ("two", "x", "b"))
    assert done.memory.find("k", lambda _: ()).what == "rename:1"
    assert done.memory.wrote("n2", 4)
    again = done.next(WriteStamp(nonce="n3", at_ms=9, key="k3", what="commit:1"))
    assert (again.version, again.nonce, again.moved) == (5, "n3", ("two", "x", "b"))
    assert again.memory.find("k3", lambda _: ()).what == "commit:1"


@pytest.mark.parametrize("value", [LIVE, HELD])
def test_the_history_has_the_version_of_each_value(value: Pointer | Claim) -> None:
    first = value.next(WriteStamp(nonce="n2", at_ms=8))
    second = first.next(WriteStamp(nonce="n3", at_ms=9))
    assert (first.version, second.version) == (value.version + 1, value.version + 2)
    found = [(done.nonce, done.version, done.at_ms) for done in second.memory.inline]
    assert found == [("n2", value.version + 1, 8), ("n3", value.version + 2, 9)]
    # Of versions before the history nothing can be said; of later ones it is certain.
    assert second.memory.wrote("another", value.version) is None
    assert second.memory.wrote("another", value.version + 1) is False


def test_a_name_that_was_free_gets_a_table() -> None:
    intent = Intent(
        record=None, nonce="tx", then=placed(TableIdentifier.of(("ns",), "t"), "u", "s3://m"), at_ms=7
    )
    carrying = replace(Pointer.blank(("ns",), "a"), intent=intent).next(STAMP)
    assert not carrying.live
    assert carrying.settled(committed=True).metadata == "s3://m"


@pytest.mark.parametrize(
    ("value", "field", "odd"),
    [
        (VALUES[1], "intent", {"record": None}),
        (VALUES[1], "intent", "x"),
        (VALUES[1], "intent", {**INTENT.to_json(), "then": 7}),
        (LIVE, "moved", 7),
        (LIVE, "state", "odd"),
        (HELD, "recent", None),
        (PENDING, "state", "odd"),
        (PENDING, "keys", None),
        (MAKING, "state", None),
        (GRANTS, "principals", {"bob-1": {"name": "bob", "secret-sha256": "ab", "at-ms": 1, "by": "x"}}),
        (GRANTS, "roles", 7),
        (GRANTS, "grants", [{"on": {"kind": "odd"}, "to": "bob", "privileges": ["READ"]}]),
        (GRANTS, "grants", [{"on": {"kind": "warehouse"}, "to": "bob", "privileges": ["OWN"]}]),
        (GRANTS, "grants", [{"on": {"kind": "table", "uuid": "u"}, "to": "bob", "privileges": ["READ"]}]),
    ],
)
def test_damage_is_told_with_the_key(value: Any, field: str, odd: object) -> None:
    stored = {**orjson.loads(value.dump()), field: odd}
    with pytest.raises(CorruptStateError, match=r"the-key is not a valid .*restore it from a backup"):
        type(value).load(orjson.dumps(stored), "the-key")


@pytest.mark.parametrize("value", [LIVE, HELD, PENDING, MAKING, GRANTS])
def test_another_format_asks_for_an_upgrade(value: Any) -> None:
    stored = {**orjson.loads(value.dump()), "format": 2}
    with pytest.raises(UnavailableError, match="upgrade the catalog"):
        type(value).load(orjson.dumps(stored), "k")
