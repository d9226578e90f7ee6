"""The revenue, over the orders that ingestion wrote."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

from orders_pipeline.revenue import refresh
from tarn_testkit.lake import Ingested, Lake, Namespace


def revenue_of(lake: Lake, table: str) -> dict[date, tuple[int, Decimal]]:
    """Day to number of orders and revenue."""
    return {row["day"]: (row["orders"], row["revenue"]) for row in lake.rows(table)}


def test_revenue_adds_up_and_follows_the_orders(
    lake: Lake, namespace: Namespace, orders: Ingested, order
) -> None:
    revenue = namespace.table("revenue")
    refresh(lake.catalog, orders.table, revenue)
    assert revenue_of(lake, revenue) == {}, "there are no orders yet"
    orders.wait_for(orders.produce([order(1), order(2, amount="2.50"), order(3, days=1)]))
    assert refresh(lake.catalog, orders.table, revenue) is True
    monday, tuesday = date(2026, 11, 23), date(2026, 11, 24)
    assert revenue_of(lake, revenue) == {monday: (2, Decimal("12.50")), tuesday: (1, Decimal("10.00"))}
    assert refresh(lake.catalog, orders.table, revenue) is False, "nothing has changed"
    orders.wait_for(orders.produce([order(4, days=1)]))
    assert refresh(lake.catalog, orders.table, revenue) is True
    assert revenue_of(lake, revenue)[tuesday] == (2, Decimal("20.00"))


def test_a_commit_whose_answer_is_lost_is_made_once(
    lake: Lake, namespace: Namespace, orders: Ingested, order
) -> None:
    revenue = namespace.table("revenue")
    orders.wait_for(orders.produce([order(1)]))
    refresh(lake.catalog, orders.table, revenue)
    before = len(lake.catalog.load_table(revenue).history())
    orders.wait_for(orders.produce([order(2)]))
    with lake.faults.drop_next_reply() as proxy:
        assert refresh(proxy.catalog, orders.table, revenue) is True
        assert proxy.broken == ["reply"]
    assert len(lake.catalog.load_table(revenue).history()) == before + 1
    assert revenue_of(lake, revenue) == {date(2026, 11, 23): (2, Decimal("20.00"))}


def test_a_commit_that_does_not_arrive_is_repeated(
    lake: Lake, namespace: Namespace, orders: Ingested, order
) -> None:
    revenue = namespace.table("revenue")
    orders.wait_for(orders.produce([order(1)]))
    refresh(lake.catalog, orders.table, revenue)
    orders.wait_for(orders.produce([order(2)]))
    with lake.faults.proxy() as proxy:
        proxy.fail_next("cut", count=2)
        assert refresh(proxy.catalog, orders.table, revenue) is True
        assert proxy.broken == ["cut", "cut"]
    assert revenue_of(lake, revenue) == {date(2026, 11, 23): (2, Decimal("20.00"))}
