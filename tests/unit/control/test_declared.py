"""The stored spec: generations, owners, deletion, and what an unreadable object is."""

from __future__ import annotations

from typing import Any

import pytest

from tarn.core.control.admission import require_columns_of_log, require_room
from tarn.core.control.declared import (
    HAND,
    Declared,
    Stamp,
    applied,
    deleted,
    finalized,
    name_of,
    owner_of_file,
    revision_of,
    scaled,
    spec_key,
)
from tarn.core.errors import AlreadyExistsError, CorruptStateError, InvalidSpecError, NotFoundError
from tarn.core.spec import IngestorSpec, clashes, parse_document, spec_of
from tests.support.lake import SPEC

TEXT = SPEC.replace("FORMAT", "2").replace("PARTITIONING", "[]")
FILE = owner_of_file("orders.yaml")


def stamp(n: int) -> Stamp:
    return Stamp(now_ms=1_000 + n, uid=f"uid-{n}", nonce=f"nonce-{n}")


def document(**body: Any) -> dict[str, Any]:
    found = parse_document(TEXT, file="x")
    return {**found, "spec": {**found["spec"], **body}}


def first(owner: str = HAND) -> Declared:
    return applied(None, document(), file="x", owner=owner, stamp=stamp(1))


def test_what_is_stored_is_read_back() -> None:
    made = first()
    assert Declared.from_bytes(made.to_bytes(), name="orders") == made
    assert made.spec == spec_of(document(), file="x")
    assert (made.generation, made.uid, made.owner) == (1, "uid-1", HAND)


def test_any_change_is_a_generation_and_the_same_meaning_is_none() -> None:
    made = first()
    assert applied(made, document(), file="x", owner=HAND, stamp=stamp(2)) is made
    assert applied(made, document(replicas=1), file="x", owner=HAND, stamp=stamp(2)) is made
    for body in ({"replicas": 2}, {"batching": {"maxRecords": 11}}, {"mapping": {"drop": ["x"]}}):
        changed = applied(made, document(**body), file="x", owner=HAND, stamp=stamp(2))
        assert (changed.generation, changed.uid, changed.changed_ms) == (2, "uid-1", 1_002), body


def test_the_revision_is_of_everything_that_a_writer_runs() -> None:
    spec = first().spec
    other = applied(first(), document(replicas=2), file="x", owner=HAND, stamp=stamp(2)).spec
    found = {
        revision_of("u", spec, "1"),
        revision_of("v", spec, "1"),
        revision_of("u", spec, "2"),
        revision_of("u", other, "1"),
    }
    assert len(found) == 4
    assert revision_of("u", spec_of(document(replicas=1), file="y"), "1") in found


def test_scale_changes_the_replicas_and_nothing_else() -> None:
    made = scaled(first(), 3, stamp=stamp(2))
    assert made.spec.spec.replicas == 3
    assert made.spec == spec_of(document(replicas=3), file="x")
    assert scaled(made, 3, stamp=stamp(3)) is made
    with pytest.raises(InvalidSpecError, match=r"spec.replicas: 65 is not allowed"):
        scaled(made, 65, stamp=stamp(3))


def test_a_file_changes_only_what_it_owns() -> None:
    by_hand = first()
    with pytest.raises(AlreadyExistsError, match="was applied by hand, which a file does not change"):
        applied(by_hand, document(replicas=2), file="x", owner=FILE, stamp=stamp(2))
    of_file = first(FILE)
    assert applied(of_file, document(replicas=2), file="x", owner=FILE, stamp=stamp(2)).generation == 2
    with pytest.raises(AlreadyExistsError, match=r"belongs to orders\.yaml, another file"):
        applied(of_file, document(), file="x", owner=owner_of_file("b.yaml"), stamp=stamp(2))


def test_what_a_file_owns_is_changed_by_hand_only_on_request() -> None:
    of_file = first(FILE)
    with pytest.raises(AlreadyExistsError, match=r"belongs to orders.yaml of the spec folder.*--take-over"):
        applied(of_file, document(replicas=2), file="x", owner=HAND, stamp=stamp(2))
    with pytest.raises(AlreadyExistsError, match="--take-over"):
        scaled(of_file, 2, stamp=stamp(2))
    taken = scaled(of_file, 2, stamp=stamp(2), take_over=True)
    assert (taken.owner, taken.generation) == (HAND, 2)
    same = applied(of_file, document(), file="x", owner=HAND, stamp=stamp(2), take_over=True)
    assert (same.owner, same.generation) == (HAND, 1), "another owner is no change of the spec"


def test_a_deleted_ingestor_is_a_tombstone_and_its_name_counts_on() -> None:
    made = first(FILE)
    going = deleted(made, stamp=stamp(2))
    assert (going.deleting, going.gone) == (True, False)
    assert deleted(going, stamp=stamp(3)) is going
    with pytest.raises(AlreadyExistsError, match="is being deleted"):
        applied(going, document(), file="x", owner=FILE, stamp=stamp(3))
    gone = finalized(going, stamp=stamp(3))
    assert (gone.gone, gone.generation, gone.uid) == (True, 1, "uid-1")
    assert finalized(gone, stamp=stamp(4)) is gone
    for change in (lambda: deleted(gone, stamp=stamp(4)), lambda: scaled(gone, 2, stamp=stamp(4))):
        with pytest.raises(NotFoundError, match="there is no ingestor orders"):
            change()
    again = applied(gone, document(), file="x", owner=HAND, stamp=stamp(4))
    assert (again.generation, again.uid, again.gone, again.deleting) == (2, "uid-4", False, False)


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b'{"v": 2}', first().to_bytes().replace(b'"orders"', b'"other"'), b'{"v": 1}'],
    ids=["empty", "cut", "list", "later format", "another's", "lacks fields"],
)
def test_an_unreadable_object_names_its_key(data: bytes) -> None:
    with pytest.raises(CorruptStateError, match=r"specs/v1/ingestors/orders.json is not the spec"):
        Declared.from_bytes(data, name="orders")


def test_a_spec_below_another_name_is_refused() -> None:
    moved = Declared.from_bytes(
        first().to_bytes().replace(b'"name": "orders",\n  "uid"', b'"name": "b",\n  "uid"'), name="b"
    )
    with pytest.raises(InvalidSpecError, match="the object belongs to 'b'"):
        _ = moved.spec


def test_keys_and_names() -> None:
    assert name_of(spec_key("orders")) == "orders"
    assert name_of("specs/v1/ingestors/orders.yaml") is None
    assert name_of("specs/v1/status/orders.json") is None


def test_values_that_json_does_not_have_are_refused() -> None:
    bad = document(mapping={"drop": ["x"]})
    bad["spec"]["mapping"]["drop"] = [2**70]
    with pytest.raises(InvalidSpecError, match="x: a value cannot be stored as JSON"):
        applied(None, bad, file="x", owner=HAND, stamp=stamp(1))


def test_two_specs_for_one_table_and_topic_and_a_renamed_one() -> None:
    there = {"ingestor orders": first().spec}
    renamed = document()
    renamed["metadata"] = {"name": "sales"}
    with pytest.raises(InvalidSpecError) as e:
        require_room(spec_of(renamed, file="x"), there, file="sales.yaml")
    for part in (
        "sales.yaml",
        "metadata.name is 'sales'",
        "'bronze.orders'",
        "metadata.stream: orders",
        "delete",
    ):
        assert part in e.value.message
    other = document(source={"kafka": {"topic": "sales"}})
    other["metadata"] = {"name": "sales"}
    with pytest.raises(InvalidSpecError, match=r"spec.table is 'bronze.orders', which ingestor orders"):
        require_room(spec_of(other, file="x"), there, file="x")
    other = document(table={"namespace": "bronze", "name": "sales"})
    other["metadata"] = {"name": "sales", "stream": "orders"}
    with pytest.raises(InvalidSpecError, match=r"metadata\.stream is 'orders'"):
        require_room(spec_of(other, file="x"), there, file="x")
    require_room(first().spec, there, file="x")
    other["metadata"] = {"name": "sales"}
    require_room(spec_of(other, file="x"), there, file="x")


LOG = "tarn.log.0b9c6b0e-0000-4000-8000-000000000000"


def of(name: str, **kafka: Any) -> IngestorSpec:
    """An ingestor of bronze.orders; that of a log has the table's own columns."""
    made = document(source={"kafka": kafka})
    made["metadata"] = {"name": name}
    if kafka.get("topic") == LOG:
        del made["spec"]["schema"]
        made["spec"]["table"] = {"namespace": "bronze", "name": "orders"}
    return spec_of(made, file="x")


@pytest.mark.parametrize(
    ("kafka", "together"),
    [
        ({"topic": "orders"}, True),
        ({"topics": ["orders", "returns"]}, True),
        ({"topicPattern": "orders.*"}, True),
        ({"topics": ["orders", LOG]}, False),
        ({"topics": [LOG]}, False),
    ],
)
def test_a_table_has_one_ingestor_of_topics_and_one_of_its_log(kafka: dict[str, Any], together: bool) -> None:
    one, log = of("orders", **kafka), of("log-orders", topic=LOG)
    for spec, there in ((one, log), (log, one)):
        if together:
            require_room(spec, {"ingestor there": there}, file="x")
        else:
            with pytest.raises(InvalidSpecError, match=r"spec\.table is 'bronze\.orders'"):
                require_room(spec, {"ingestor there": there}, file="x")
    assert [found.files for found in clashes({"a": one, "b": log})] == ([] if together else [("a", "b")])


def test_no_ingestor_of_one_topic_is_advised_to_take_several() -> None:
    """It cannot become one of several: the offsets of its topic are its own."""
    for kafka, advised in (
        ({"topic": "a"}, False),
        ({"topics": ["a"]}, True),
        ({"topicPattern": "a"}, False),
    ):
        with pytest.raises(InvalidSpecError, match="choose another table") as e:
            require_room(of("sales", topic="b"), {"ingestor orders": of("orders", **kafka)}, file="x")
        assert ("add the topic to spec.source.kafka.topics of orders" in e.value.message) is advised


def test_one_that_is_being_deleted_is_in_the_way_until_its_writers_have_ended() -> None:
    there = {"ingestor orders": first().spec}
    other = of("sales", topic="returns")
    with pytest.raises(AlreadyExistsError, match=r"delete orders --wait 60"):
        require_room(other, there, file="x", ending={"orders"})
    with pytest.raises(InvalidSpecError, match="choose another table"):
        require_room(other, there, file="x", ending={"returns"})
    elsewhere = document(table={"namespace": "bronze", "name": "sales"})
    elsewhere["metadata"] = {"name": "sales"}
    require_room(spec_of(elsewhere, file="x"), there, file="x", ending={"orders"})
    elsewhere["metadata"]["stream"] = "orders"
    with pytest.raises(AlreadyExistsError, match="being deleted"):
        require_room(spec_of(elsewhere, file="x"), there, file="x", ending={"orders"})


@pytest.mark.parametrize(
    ("field", "body"),
    [
        ("spec.schema", {}),
        ("spec.mapping", {"schema": None, "mapping": {"drop": ["x"]}}),
        ("spec.source.format", {"schema": None, "source": {"kafka": {"topics": [LOG]}, "format": "arrow"}}),
    ],
)
def test_an_ingestor_of_a_log_alone_says_nothing_of_columns(field: str, body: dict[str, Any]) -> None:
    made = document(**{"source": {"kafka": {"topics": [LOG]}}, **body})
    if made["spec"]["schema"] is None:
        del made["spec"]["schema"]
        made["spec"]["table"] = {"namespace": "bronze", "name": "orders"}
    with pytest.raises(InvalidSpecError) as e:
        require_columns_of_log(spec_of(made, file="x"), file="x")
    assert e.value.message.startswith(f"x: {field} is for other messages")
    made["spec"]["source"]["kafka"] = {"topics": [LOG, "orders"]}
    require_columns_of_log(spec_of(made, file="x"), file="x")
    require_columns_of_log(of("log", topic=LOG), file="x")
