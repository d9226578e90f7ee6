"""A lake in memory behind the real status server, as the page is shown it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tarn.ingest.ingestor import Ingestor
from tarn.testing.memory_topic import Topic
from tests.support.lake import TABLE, Lake, order, spec
from tests.support.status_api import Client, LakeTables, into, look_of, served

LETTERS = "ops.dead_letters"
SERVICES = ("store", "catalog", "kafka")


def wall_s() -> float:
    """The clock of a lake in memory that is set by the wall, half a second late: work takes time."""
    return time.time() - 1_700_000_000 - 0.5


@dataclass
class Shown:
    """A lake whose page is served.

    Attributes:
        lake: the lake.
        tables: what the look at the lake asks.
        client: asks the server.
    """

    lake: Lake
    tables: LakeTables
    client: Client
    ingestor: Ingestor

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.client.port}/"

    def commit(self, rows: int = 2, *, bad: int = 0) -> None:
        """Send rows and bad records, and have them committed now, by the clock on the wall."""
        topic = self.lake.sources.topics["orders"]
        self.lake.clock.now_s = wall_s()
        first, sent_ms = len(topic.logs[0]), time.time_ns() // 1_000_000 - 500
        topic.times_ms |= dict.fromkeys(range(first, first + rows + bad), sent_ms)
        for number in range(rows):
            topic.send(0, order(number))
        for _ in range(bad):
            topic.send(0, b"junk")
        self.lake.work(self.ingestor, turns=40)
        self.check()

    def check(self, **faults: str) -> None:
        """Note that the services answer, but for those with a fault."""
        for name in SERVICES:
            message = faults.get(name, "answers")
            self.lake.registry.record_check(
                name, ok=name not in faults, message=message, looked_s=self.lake.clock.now_s
            )


@contextmanager
def shown(*, names: tuple[str, ...] = (TABLE, LETTERS), **options: Any) -> Iterator[Shown]:
    """A lake with one table of orders and its page, until the end of the block; nothing is committed yet."""
    lake = Lake(Topic("orders", 1))
    lake.clock.now_s = wall_s()
    ingestor = lake.ingestor(spec())
    tables = options.pop("tables", None) or LakeTables(lake, *names)
    look = look_of(lake, tables)
    options = {
        "clock": lambda: lake.clock.now_s,
        "now_ms": lambda: time.time_ns() // 1_000_000,
        "look": into(lake, tables),
        "lake": look.seen,
    } | options
    with served(lake.registry, **options) as client:
        made = Shown(lake=lake, tables=tables, client=client, ingestor=ingestor)
        made.check()
        lake.work(ingestor, turns=5)
        look.look()
        yield made
