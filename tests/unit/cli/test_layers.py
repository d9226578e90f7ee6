"""How far a layer is, and what its age means."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tarn.cli.layers import Place, Progress, judged, lag, places, topic_of
from tarn.cli.ports import TableFacts
from tarn.core.offsets import OffsetMap, TopicIdentity

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
SOURCE = TopicIdentity(cluster="c", topic="flights.events", topic_id="t")
BOUNDS = {0: (0, 100), 1: (10, 50)}


def facts(name: str, **values) -> TableFacts:
    plain = {"format_version": 2, "data_files": 1, "delete_files": 0, "snapshots": 1, "last_commit": AT}
    return TableFacts(name=name, **{**plain, "rows": 5, **values})


def bronze(**next_) -> TableFacts:
    offsets = {int(p): o for p, o in next_.items()} or {0: 100, 1: 50}
    return facts("bronze.flight_events", streams={"flights": OffsetMap(source=SOURCE, next=offsets)})


def test_lag_counts_what_the_topic_still_holds_of_a_partition_never_seen():
    assert lag({0: 90, 1: 50}, BOUNDS) == 10
    assert lag({0: 100}, BOUNDS) == 40
    assert lag({}, BOUNDS) == 140
    assert lag({0: 200, 1: 60}, BOUNDS) == 0


def test_layers_are_made_of_their_tables_and_gold_is_as_far_as_its_last_table():
    tables = [
        facts("ops.canary", streams={"canary": OffsetMap(source=SOURCE, next={0: 3})}),
        bronze(),
        facts("silver.flights", rows=7, position={0: 80, 1: 50}),
        facts("gold.a", rows=2, position={0: 80, 1: 50}),
        facts("gold.b", rows=3, position={0: 20, 1: 50}),
        facts("goldfish.c", rows=9),
    ]
    assert places(tables) == (
        Place(layer="bronze", rows=5, next={0: 100, 1: 50}),
        Place(layer="silver", rows=7, next={0: 80, 1: 50}),
        Place(layer="gold", rows=5, next={0: 20, 1: 50}),
    )
    assert topic_of(tables) == "flights.events"


def test_a_gold_table_without_a_position_holds_nothing_up_to_now_and_unknown_rows_are_unknown():
    (gold,) = places([facts("gold.a", rows=None, position={0: 80}), facts("gold.b", position=None)])
    assert (gold.rows, gold.next, gold.offsets) == (None, {}, 0)


def test_no_layers_no_topic():
    assert places([facts("ops.canary")]) == ()
    assert topic_of([facts("ops.canary")]) is None
    assert topic_of([facts("bronze.flight_events")]) is None


def state(next_, newest=AT - timedelta(seconds=5), bounds=BOUNDS):
    place = Place(layer="silver", rows=7, next=next_)
    return judged(place, {0: 100, 1: 50}, bounds, newest, at=AT)


@pytest.mark.parametrize(
    ("next_", "age_s", "progress", "behind"),
    [
        ({0: 100, 1: 50}, 5, Progress.CURRENT, 0),
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
