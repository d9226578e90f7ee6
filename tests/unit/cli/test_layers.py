"""How far a layer is, and what its age means."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tarn.cli.layers import Layer, Progress, judged, lag, layers_of
from tarn.cli.ports import TableFacts
from tarn.core.offsets import OffsetMap, TopicIdentity
from tarn.core.position import Position

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
TOPIC = "flights.events"
BOUNDS = {0: (0, 100), 1: (10, 50)}


def facts(name: str, **values) -> TableFacts:
    plain = {"format_version": 2, "data_files": 1, "delete_files": 0, "snapshots": 1, "last_commit": AT}
    return TableFacts(name=name, **{**plain, "rows": 5, **values})


def ingested(name: str, next_: dict[int, int], topic: str = TOPIC, **values) -> TableFacts:
    source = TopicIdentity(cluster="c", topic=topic, topic_id="t")
    return facts(name, streams={"any": OffsetMap(source=source, next=next_)}, **values)


def derived(name: str, next_: dict[int, int], topic: str = TOPIC, table: str = "", **values) -> TableFacts:
    return facts(name, position=Position(topic=topic, table=table, next=next_), **values)


def unwritten(name: str) -> TableFacts:
    return facts(name, rows=0, last_commit=None)


def seen(*tables: TableFacts) -> list[tuple[str | None, str, int | None, dict[int, int]]]:
    return [(found.topic, found.layer, found.rows, dict(found.next)) for found in layers_of(tables)]


def test_lag_counts_what_the_topic_still_holds_of_a_partition_never_seen():
    assert lag({0: 90, 1: 50}, BOUNDS) == 10
    assert lag({0: 100}, BOUNDS) == 40
    assert lag({}, BOUNDS) == 140
    assert lag({0: 200, 1: 60}, BOUNDS) == 0


def test_layers_are_made_of_their_tables_and_gold_is_as_far_as_its_last_table():
    tables = [
        derived("gold.b", {0: 20, 1: 50}, rows=3),
        derived("gold.a", {0: 80, 1: 50}, rows=2),
        derived("silver.any_name", {0: 80, 1: 50}, rows=7),
        ingested("ops.canary", {0: 3}, topic="tarn.canary"),
        ingested("bronze.of_any_name", {0: 100, 1: 50}),
        facts("goldfish.c", rows=9),
    ]
    assert seen(*tables) == [
        (TOPIC, "bronze", 5, {0: 100, 1: 50}),
        (TOPIC, "silver", 7, {0: 80, 1: 50}),
        (TOPIC, "gold", 5, {0: 20, 1: 50}),
    ]


def test_a_table_belongs_to_a_layer_by_what_it_carries_not_by_its_namespace():
    tables = [
        ingested("raw.orders", {0: 9}, topic="orders", location="s3://b/raw/orders"),
        ingested("raw.other", {0: 4}, topic="others", location="s3://b/raw/other"),
        derived("mart.orders", {0: 8}, topic="orders", table="s3://b/raw/orders"),
        ingested("bronze.events", {0: 5}),
        derived("silver.events", {0: 5}),
        facts("silver.written_by_hand", rows=1_000),
    ]
    assert seen(*tables) == [
        (TOPIC, "bronze", 5, {0: 5}),
        (TOPIC, "silver", 5, {0: 5}),
        ("orders", "raw", 5, {0: 9}),
        ("orders", "mart", 5, {0: 8}),
    ]


def test_a_table_that_was_never_written_to_holds_nothing_and_unknown_rows_are_unknown():
    tables = [derived("gold.a", {0: 80}, rows=None), unwritten("gold.b")]
    assert seen(*tables) == [(TOPIC, "gold", None, {})]
    assert seen(unwritten("bronze.events"), unwritten("other.t")) == [(None, "bronze", 0, {})]
    (bronze,) = layers_of([unwritten("bronze.events")])
    assert judged(bronze, {}, None, None, at=AT).progress is Progress.EMPTY


def test_an_unwritten_table_of_one_of_two_topics_is_counted_to_neither():
    tables = [ingested("bronze.a", {0: 1}, topic="a"), ingested("bronze.b", {0: 2}, topic="b")]
    assert seen(*tables, unwritten("silver.c")) == [
        ("a", "bronze", 5, {0: 1}),
        ("b", "bronze", 5, {0: 2}),
        (None, "silver", 0, {}),
    ]


def test_no_layers():
    assert layers_of([facts("ops.canary")]) == ()


def state(next_, newest=AT - timedelta(seconds=5), bounds=BOUNDS):
    layer = Layer(layer="silver", topic=TOPIC, ingested=False, rows=7, next=next_)
    return judged(layer, {0: 100, 1: 50}, bounds, newest, at=AT)


@pytest.mark.parametrize(
    ("next_", "age_s", "progress", "behind"),
    [
        ({0: 100, 1: 50}, 5, Progress.CURRENT, 0),
        ({0: 100, 1: 50}, 60, Progress.CURRENT, 0),
        ({0: 100, 1: 50}, 61, Progress.IDLE, 0),
        ({0: 100, 1: 50}, 3600, Progress.IDLE, 0),
        ({0: 99, 1: 50}, 3600, Progress.BEHIND, 1),
        ({}, 5, Progress.EMPTY, 140),
    ],
)
def test_an_old_newest_event_is_idle_only_if_nothing_newer_was_produced(next_, age_s, progress, behind):
    found = state(next_, AT - timedelta(seconds=age_s))
    assert (found.progress, found.behind, found.freshness_s) == (progress, behind, age_s)


def test_without_the_topic_a_layer_is_still_compared_with_bronze():
    found = state({0: 60, 1: 50}, None, None)
    assert (found.progress, found.behind, found.behind_bronze) == (Progress.UNKNOWN, None, 40)
    assert found.freshness_s is None


def test_a_clock_that_is_behind_makes_no_age_below_zero():
    assert state({0: 100, 1: 50}, AT + timedelta(seconds=9)).freshness_s == 0
