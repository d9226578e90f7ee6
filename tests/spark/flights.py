"""Three days of real flights for the tests of this tier, and the comparison with the oracle.

The days contain rare cases: a storm with half of the flights cancelled, diverted flights, the one flight from
EWR to LGA (cancelled, so that its groups have no mean), destinations and planes missing from the reference.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tarn_demo.flights import dataset
from tarn_demo.flights.events import Message, NoiseRates, Stream
from tarn_jobs import reference
from tarn_jobs.lake import Lake
from tests.support import bronze, oracle

DAYS = ("2013-01-01", "2013-02-08", "2013-07-27")
NOISE = NoiseRates(duplicates=0.02, late=0.05, broken=0.001)
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@cache
def some_flights() -> pa.Table:
    table = dataset.read_flights()
    columns = [table[c].cast(pa.string()) for c in ("year", "month", "day")]
    padded = [columns[0], *(pc.utf8_lpad(c, width=2, padding="0") for c in columns[1:])]
    return table.filter(pc.is_in(pc.binary_join_element_wise(*padded, "-"), pa.array(DAYS)))


def stream(noise: NoiseRates = NOISE, seed: int = 1) -> Stream:
    return Stream(some_flights(), dataset.read_reference("airports"), noise=noise, seed=seed)


def messages(of: Stream, parts: int = 1) -> Iterator[list[Message]]:
    """The stream split into parts."""
    size = -(-len(of) // parts)
    for start in range(0, len(of), size):
        yield list(of.messages(start, min(len(of), start + size), now=NOW))


def load_reference(lake: Lake) -> None:
    tables = {name: dataset.read_reference(name) for name in dataset.REFERENCE_NAMES}
    reference.ensure(lake, tables, version="test")


def fill(lake: Lake, log: bronze.Log, of: Stream, parts: int = 1) -> int:
    """Commit the whole stream to bronze, one commit per part; returns the number of rows."""
    return sum(bronze.append(lake, log, part) for part in messages(of, parts))


def wrong(lake: Lake) -> list[str]:
    """Every difference of silver and gold from the oracle."""
    expected = oracle.on_days(DAYS)
    silver = lake.table("silver.flights").toPandas()
    silver["time_hour"] = pd.to_datetime(silver["time_hour"], utc=True)
    told = oracle.differences(expected, silver, oracle.KEY)
    sums = oracle.sums_of(expected)
    for name, answers in oracle.answers_of(expected).items():
        found = lake.table(f"gold.{name}").toPandas()
        for rows in (answers, sums[name]):
            told += [f"{name}: {d}" for d in oracle.differences(rows, found, oracle.GOLD_KEYS[name])]
    return told


def contents(lake: Lake) -> dict[str, list[str]]:
    """All rows of silver and gold as text, sorted."""
    names = ("silver.flights", *(f"gold.{n}" for n in oracle.GOLD_KEYS))
    return {name: sorted(str(row) for row in lake.table(name).collect()) for name in names}
