"""Orders on their way from the topic into the table: in seconds without an engine, the same on a stack."""

from __future__ import annotations

from decimal import Decimal

from tarn_testkit.lake import Ingested, Lake


def test_each_order_is_one_row(orders: Ingested, order) -> None:
    last = orders.produce([order(number, amount="19.90") for number in range(50)], key="customer")
    orders.wait_for(last)
    rows = orders.rows()
    assert sorted(row["order_id"] for row in rows) == list(range(50))
    assert {row["amount"] for row in rows} == {Decimal("19.90")}


def test_an_order_without_an_amount_stops_nobody(orders: Ingested, lake: Lake, order) -> None:
    broken = order(2) | {"amount": "for free"}
    orders.wait_for(orders.produce([order(1), broken, order(3)]))
    assert sorted(row["order_id"] for row in orders.rows()) == [1, 3]
    (letter,) = lake.eventually(lambda: lake.rows(orders.dead_letters), what="the dead letter")
    assert b"for free" in letter["value"]
    assert letter["reason"].startswith("amount")
