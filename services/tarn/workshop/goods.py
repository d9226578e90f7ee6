"""Made-up rows of notebook 06: a grocer's price lists, and readings of the cold store's sensors."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pandas as pd

DAIRY = ("butter", "cheese", "milk", "yoghurt")
PRICES = {
    "apples": 2.80,
    "bread": 3.90,
    "butter": 2.70,
    "cheese": 6.40,
    "coffee": 9.90,
    "milk": 1.30,
    "rice": 2.20,
    "tea": 4.50,
    "tomatoes": 3.60,
    "yoghurt": 0.90,
}
"""Product to its first price in euros."""
DEAREST = 50.0
"""No product of this shop costs more."""
CENTS = 100
CHANGE_MAX = 0.06
"""The most that a price changes in a night, as a share."""

SENSORS = ("shelf-1", "shelf-2", "door", "test")
COLD_C = 4.0
FIRST_AT = datetime(2026, 1, 5, 6, tzinfo=UTC)


def price_lists(nights: int, seed: str) -> list[pd.DataFrame]:
    """The price list of each night; from one of the nights on, dairy products are in cents.

    Args:
        nights: how many, 4 at least.
        seed: decides prices and night: each student has another one.
    """
    dice = random.Random(seed)  # noqa: S311 - prices, not secrets
    wrong_from = dice.randrange(2, nights - 1)
    prices = dict(PRICES)
    lists = []
    for night in range(nights):
        if night:
            prices = {
                name: price * (1 + dice.uniform(-CHANGE_MAX, CHANGE_MAX)) for name, price in prices.items()
            }
        listed = {
            name: price * (CENTS if night >= wrong_from and name in DAIRY else 1)
            for name, price in prices.items()
        }
        lists.append(pd.DataFrame({"product": list(listed), "price": [round(p, 2) for p in listed.values()]}))
    return lists


def readings(first: int, count: int) -> list[dict[str, Any]]:
    """Readings of the sensors in turn, one a second.

    Args:
        first: id of the first one.
        count: how many.
    """
    dice = random.Random(first)  # noqa: S311 - temperatures, not secrets
    return [
        {
            "id": number,
            "sensor": SENSORS[number % len(SENSORS)],
            "celsius": round(dice.gauss(COLD_C, 0.4), 2),
            "at": (FIRST_AT + timedelta(seconds=number)).isoformat(),
        }
        for number in range(first, first + count)
    ]
