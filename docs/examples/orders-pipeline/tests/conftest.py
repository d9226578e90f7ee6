"""What the tests of the pipeline share: the ingestor of production, in a namespace of the test's own."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tarn_testkit.lake import Ingested, Namespace

SPEC = Path(__file__).parent.parent / "ingestors" / "orders.yaml"
MONDAY = datetime(2026, 11, 23, 8, tzinfo=UTC)


@pytest.fixture
def orders(namespace: Namespace) -> Ingested:
    """The running ingestor."""
    return namespace.ingest(SPEC)


@pytest.fixture
def order() -> Callable[..., dict[str, Any]]:
    """Makes an order: one a minute from Monday at eight."""

    def make(number: int, *, days: int = 0, amount: str = "10.00") -> dict[str, Any]:
        return {
            "order_id": number,
            "customer": f"customer-{number % 3}",
            "amount": Decimal(amount),
            "ordered_at": MONDAY + timedelta(days=days, minutes=number),
        }

    return make
