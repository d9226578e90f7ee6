"""Specs that are moved into a namespace of the tests."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import yaml

from tarn.core.spec import spec_of
from tarn_testkit.errors import KitError
from tarn_testkit.isolation import ingestor_name, moved_into, slug, topic_name

NAMESPACE = "kit_3f9a2c_test_orders_1"
SPEC = """
apiVersion: tarn/v1
kind: Ingestor
metadata: {name: orders, stream: old-orders}
spec:
  source: {kafka: {topic: shop.orders, partitions: 3}}
  table: {namespace: bronze.shop, name: orders}
  schema: {fields: [{name: id, type: long}, {name: at, type: timestamptz}]}
  eventTime: {column: at, completeTopic: tarn.complete.orders}
  batching: {maxRecords: 7}
"""


def document(**source: Any) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(SPEC)
    if source:
        found["spec"]["source"]["kafka"] = source
    return found


def test_all_names_are_moved_and_nothing_else() -> None:
    before = document()
    kept = copy.deepcopy(before)
    spec = spec_of(moved_into(before, NAMESPACE), file="x")
    assert before == kept, "what was given is not changed"
    assert (spec.name, spec.stream) == (f"{DASHED}-orders", f"{DASHED}-old-orders")
    assert spec.topic == f"{NAMESPACE}.shop.orders"
    assert str(spec.spec.table) == f"{NAMESPACE}.orders"
    assert str(spec.spec.dead_letters.table) == f"{NAMESPACE}.dead_letters"
    assert spec.spec.event_time is not None
    assert spec.spec.event_time.complete_topic == f"tarn.complete.{NAMESPACE}.orders"
    assert (spec.spec.source.kafka.partitions, spec.spec.batching.max_records) == (3, 7)


DASHED = NAMESPACE.replace("_", "-")


def test_several_topics_and_a_pattern_are_moved() -> None:
    several = spec_of(moved_into(document(topics=["a", "b"]), NAMESPACE), file="x")
    assert several.spec.source.kafka.names == (f"{NAMESPACE}.a", f"{NAMESPACE}.b")
    like = spec_of(moved_into(document(topicPattern="a|b.*"), NAMESPACE), file="x").spec.source.kafka
    found = [
        topic for topic in ("a", "b1", "c") for name in (topic, f"{NAMESPACE}.{topic}") if like.matches(name)
    ]
    assert found == ["a", "b1"], "only with the prefix of the namespace"
    assert not like.matches("a")


@pytest.mark.parametrize(
    ("pattern", "topic", "other"),
    [
        ("^orders-.*$", "orders-eu", "an-orders-eu"),
        ("^a|b$", "b", "c"),
        ("a$|b", "a", "ab"),
        ("(?i)orders-.*", "Orders-EU", "order"),
        ("(?i)^orders$", "ORDERS", "orders-eu"),
        (r"orders\$", "orders$", "orders"),
        ("[^a]b$", "xb", "ab"),
    ],
)
def test_a_pattern_means_the_same_in_a_namespace(pattern: str, topic: str, other: str) -> None:
    moved = spec_of(moved_into(document(topicPattern=pattern), NAMESPACE), file="x").spec.source.kafka
    plain = spec_of(document(topicPattern=pattern), file="x").spec.source.kafka
    for name, matches in ((topic, True), (other, False)):
        assert plain.matches(name) is matches
        assert moved.matches(f"{NAMESPACE}.{name}") is matches
        assert not moved.matches(name)


@pytest.mark.parametrize("pattern", ["a|^b", r"\Aa", "(^a)"])
def test_a_pattern_that_cannot_be_moved_is_refused(pattern: str) -> None:
    spec_of(document(topicPattern=pattern), file="x")
    with pytest.raises(KitError, match=r"has a \^ or \\A within"):
        moved_into(document(topicPattern=pattern), NAMESPACE)


def test_a_dead_letter_table_of_its_own_keeps_its_name() -> None:
    given = document()
    given["spec"]["deadLetters"] = {"table": {"namespace": "ops", "name": "bad_orders"}}
    assert (
        str(spec_of(moved_into(given, NAMESPACE), file="x").spec.dead_letters.table)
        == f"{NAMESPACE}.bad_orders"
    )


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"metadata": None, "spec": []},
        {"metadata": {"name": 7}, "spec": {"source": "shop.orders", "table": "bronze.orders"}},
        {"spec": {"source": {"kafka": {"topic": 1, "topics": "a", "topicPattern": 2}}, "deadLetters": 5}},
        {"spec": {"eventTime": "at", "deadLetters": {"table": "t"}}},
    ],
)
def test_what_is_no_spec_is_left_to_the_check_of_specs(broken: dict[str, Any]) -> None:
    from tarn.core.errors import InvalidSpecError

    with pytest.raises(InvalidSpecError, match="missing"):
        spec_of(moved_into(broken, NAMESPACE), file="x")


def test_names_that_are_too_long_are_cut_and_stay_different() -> None:
    names = {ingestor_name(NAMESPACE, f"{'o' * 60}-{number}") for number in range(20)}
    assert len(names) == 20
    assert all(re.fullmatch(r"[a-z][a-z0-9-]{0,62}", name) for name in names)
    assert ingestor_name("kit_1_x", "orders") == "kit-1-x-orders"


def test_a_topic_is_moved_once() -> None:
    assert topic_name("ns", topic_name("ns", "orders")) == "ns.orders"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("test_late[rows-3]", "test_late_rows_3"),
        ("Über/Größe", "ber_gr_e"),
        ("…", "test"),
        ("test_" + "x" * 80, "test_" + "x" * 25),
    ],
)
def test_any_text_makes_a_name(text: str, found: str) -> None:
    assert slug(text) == found
