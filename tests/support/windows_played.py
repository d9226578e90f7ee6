"""The demo's stream for tests of the service stream: sent in pieces, at any date, and what became of it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pandas as pd

from tarn_demo.flights import dataset
from tarn_demo.flights.events import PARTITIONS, NoiseRates, Stream
from tarn_demo.flights.producer import partition_of
from tarn_demo.stream.topics import EVENTS
from tests.support import windows_oracle as oracle
from tests.support.kafka_logs import KafkaProducer

FIRST_DAY = datetime(2013, 1, 1, tzinfo=UTC)
_TIMES = re.compile(rb'("(?:event_id|event_time|time_hour)":\s*")(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)')


class Played:
    """The demo's stream, sent in pieces; what was sent is the log of each partition.

    Args:
        options: settings of a client of kafka-python.
        flights: how many of the year's flights, from its first day on.
        days: by how many days they happen later than they did.
    """

    def __init__(self, options: Mapping[str, Any], flights: int, *, days: int = 0) -> None:
        noise = NoiseRates(duplicates=0.05, late=0.05, broken=0.01)
        rows, airports = dataset.read_flights().slice(0, flights), dataset.read_reference("airports")
        stream = Stream(rows, airports, noise=noise, seed=3)
        self._messages = list(stream.messages(0, len(stream), now=datetime(2026, 1, 1, tzinfo=UTC)))
        self._producer = KafkaProducer(
            **options, acks="all", linger_ms=20, enable_idempotence=True, delivery_timeout_ms=300_000
        )
        self._later = timedelta(days=days)
        self.log: dict[int, list[bytes]] = {p: [] for p in range(PARTITIONS)}
        self._sent = 0

    def send(self, share: float) -> None:
        """Send the messages up to a share of all; returns when the broker has them."""
        end = round(len(self._messages) * share)
        sent = []
        for message in self._messages[self._sent : end]:
            partition = partition_of(message.key, PARTITIONS)
            value = later(message.value, self._later)
            self.log[partition].append(value)
            sent.append(self._producer.send(EVENTS, value, key=message.key, partition=partition))
        self._producer.flush(timeout=300)
        assert all(one.succeeded() for one in sent), "the broker has them all"
        self._sent = end

    def close(self) -> None:
        self._producer.close(timeout=5)


def later(value: bytes, by: timedelta) -> bytes:
    """A message whose event happens later; one that is broken stays so."""

    def moved(found: re.Match[bytes]) -> bytes:
        at = datetime.fromisoformat(found[2].decode()) + by
        return found[1] + at.strftime("%Y-%m-%dT%H:%M:%S").encode()

    return _TIMES.sub(moved, value) if by else value


def once(rows: Sequence[bytes], key: str) -> list[dict[str, Any]]:
    """The messages without those that were sent again, which must be the same in every byte."""
    found: dict[str, bytes] = {}
    for row in rows:
        assert found.setdefault(json.loads(row)[key], row) == row, "the same key, another value"
    return [json.loads(row) for row in found.values()]


def table(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Rows of windows, by the columns of the oracle."""
    found = pd.DataFrame(rows, columns=[*oracle.KEY, *oracle.MEASURES])
    found["window_start"] = pd.to_datetime(found["window_start"], utc=True)
    return found
