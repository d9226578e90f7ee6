"""Flights flow: a paced replay becomes rows of silver and gold through the pipeline service alone."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

from tarn_demo.flights import dataset
from tarn_demo.flights.events import NoiseRates, Stream
from tests.support.stack import Stack, eventually

MESSAGES, RATE = 3_000, 500
FLOWED_S = 240


def scheduled(messages: int) -> set[str]:
    """Keys of the flights whose schedule is among the first `messages` messages of the stream."""
    noise = NoiseRates(duplicates=0.02, late=0.05, broken=0.001)
    stream = Stream(dataset.read_flights(), dataset.read_reference("airports"), noise=noise, seed=1)
    found = stream.messages(0, messages, now=datetime.now(UTC))
    return {m.key.decode() for m in found if b'"event":"scheduled"' in m.value}


def in_silver(stack: Stack) -> set[str]:
    rows = stack.query(
        "SELECT date_format(time_hour, '%Y-%m-%dT%H:%i:%sZ') || '/' || carrier || '/' || "
        "cast(flight AS varchar) FROM silver.flights WHERE scheduled_at IS NOT NULL",
    )
    assert len({key for (key,) in rows}) == len(rows), "one row per flight"
    return {key for (key,) in rows}


def test_a_paced_replay_becomes_flights_and_answers(stack: Stack) -> None:
    begun = time.monotonic()
    words = ("--again", "--rate", str(RATE), "--messages", str(MESSAGES))
    answer = stack.script("tarn", "demo", "replay", *words, timeout_s=120)
    assert answer.code == 0, answer.text
    assert re.search(r"Sent (2,9\d\d|3,000) messages", answer.text), (
        "what the topic holds already is not sent again"
    )
    assert time.monotonic() - begun >= MESSAGES / RATE
    wanted = scheduled(MESSAGES)
    assert len(wanted) > 800
    eventually(
        lambda: wanted <= in_silver(stack),
        timeout_s=FLOWED_S,
        what=lambda: f"{len(wanted)} flights in silver; {len(wanted - in_silver(stack))} are not there",
    )
    tables = ("gold.delays_by_carrier", "gold.delays_by_hour")
    grouped = " UNION ALL ".join(f"SELECT sum(flights) FROM {name}" for name in tables)
    eventually(
        lambda: all(n == len(in_silver(stack)) for (n,) in stack.query(grouped) or [(None,)]),
        timeout_s=FLOWED_S,
        what=lambda: (
            f"the {len(in_silver(stack))} flights of silver in gold once; it has {stack.query(grouped)}"
        ),
    )
    assert stack.health()["pipeline"] == "healthy"
