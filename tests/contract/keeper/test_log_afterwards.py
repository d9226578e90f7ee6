"""Ingestion after a restore: with the log still there, and with a new one."""

from __future__ import annotations

import random

import pytest

from tarn.adapters.bulk import PlainBulk
from tarn.core.errors import SourceChangedError
from tarn.testing.memory_topic import Topic
from tarn_catalog.operations.tables import TableIdentifier
from tests.contract.keeper.test_backup import check, put, take
from tests.support.lake import Lake, order

ORDERS, KEPT = TableIdentifier.of(("bronze",), "orders"), TableIdentifier.of(("bronze",), "orders_restored")


def another(topic: Topic) -> Lake:
    """A lake whose ingest generates other file names than the backed-up one: names are never reused."""
    lake = Lake(topic)
    lake.numbers = random.Random(8)
    return lake


def lake_with(topic: Topic) -> Lake:
    lake = Lake(topic)
    lake.work(lake.ingestor(), turns=150)
    return lake


def sent(name_id: str = "id-1") -> Topic:
    topic = Topic("orders", 2, topic_id=name_id)
    topic.send(0, *[order(n) for n in range(20)])
    topic.send(1, *[order(n) for n in range(100, 107)], b"bad")
    return topic


def test_with_the_old_log_everything_after_the_backup_comes_in_again_once():
    topic = sent()
    lake = lake_with(topic)
    data, _ = take(PlainBulk(lake.store))
    topic.send(0, *[order(n) for n in range(200, 230)])
    lake.work(lake.ingestor(), turns=150)
    whole = lake.offsets()
    assert len(whole) == 57

    again = another(topic)
    put(data, again.store)
    assert len(again.offsets()) == 27
    again.work(again.ingestor(), turns=150)
    assert again.offsets() == whole
    assert check(again.store).findings == []


def test_with_a_new_log_nothing_moves_until_the_old_rows_have_another_name():
    data, _ = take(PlainBulk(lake_with(sent()).store))
    fresh = Topic("orders", 2, topic_id="id-2")
    fresh.send(0, *[order(n) for n in range(500, 504)])
    lake = another(fresh)
    put(data, lake.store)
    before = lake.offsets()

    with pytest.raises(SourceChangedError, match="topic_id was 'id-1', is 'id-2'"):
        lake.work(lake.ingestor(), turns=150)
    assert lake.offsets() == before

    lake.local.catalog.names.rename(ORDERS, KEPT)
    lake.work(lake.ingestor(), turns=150)
    assert lake.offsets("bronze.orders_restored") == before
    assert lake.offsets() == [(0, n) for n in range(4)]
    report = check(lake.store)
    assert report.damage == []
    assert sorted(stand.table for stand in report.streams) == ["bronze.orders", "bronze.orders_restored"]
