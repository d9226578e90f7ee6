"""What needs a running stack: engines, the gateway, services that die."""

from __future__ import annotations

import pytest

from orders_pipeline.revenue import refresh
from tarn.client import writer
from tarn_testkit.lake import Ingested, Lake, Namespace

pytestmark = pytest.mark.tarn_stack


@pytest.mark.tarn_stack(profile="full")
def test_trino_reads_what_the_pipeline_wrote(
    lake: Lake, namespace: Namespace, orders: Ingested, order
) -> None:
    revenue = namespace.table("revenue")
    orders.wait_for(orders.produce([order(number, days=number % 2) for number in range(10)]))
    refresh(lake.catalog, orders.table, revenue)
    found = lake.trino.query(f"SELECT day_of_week(day), orders FROM {revenue} ORDER BY day")
    assert found == [[1, 5], [2, 5]]


def test_an_order_through_the_gateway_is_one_row_though_the_answer_is_lost(
    lake: Lake, namespace: Namespace, orders: Ingested
) -> None:
    order = {"order_id": 1, "customer": "a", "amount": "5.00", "ordered_at": "2026-11-23T08:00:00Z"}
    with lake.faults.drop_next_reply("gateway") as proxy:
        own = {"catalog": lake.env["TARN_CATALOG_URI"], "credential": lake.env["TARN_CATALOG_CREDENTIAL"]}
        with writer(orders.table, gateway=proxy.uri, **own) as rows:
            rows.write(order)
        assert proxy.broken == ["reply"]
    assert [row["order_id"] for row in orders.rows()] == [1]


@pytest.mark.tarn_faults
def test_orders_survive_a_writer_that_is_killed(lake: Lake, orders: Ingested, order) -> None:
    orders.produce([order(number) for number in range(100)])
    lake.faults.kill("ingest")
    orders.wait_for(orders.produce([order(number) for number in range(100, 200)]), timeout_s=120)
    assert sorted(row["order_id"] for row in orders.rows()) == list(range(200))


@pytest.mark.tarn_faults
def test_orders_wait_for_a_catalog_that_hangs(lake: Lake, orders: Ingested, order) -> None:
    with lake.faults.freeze("catalog"):
        last = orders.produce([order(number) for number in range(20)])
    orders.wait_for(last, timeout_s=120)
    assert sorted(row["order_id"] for row in orders.rows()) == list(range(20))
