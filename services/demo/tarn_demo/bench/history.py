"""The network side of `scripts/bench history`: `python -m tarn_demo.bench.history`, JSON lines on stdout.

One table takes commit after commit from a topic, and is looked at meanwhile: by the catalog as a reader does,
by Trino as a person does. A line for each tenth of the run, and one with the ages of the messages at its end.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pyiceberg.catalog import Catalog

from tarn.adapters.catalog_client import RestCatalog
from tarn.adapters.kafka import KafkaSources
from tarn.cli.clients.lake import rest_catalog
from tarn.cli.ports import Engine
from tarn.cli.settings import Settings, load_secrets
from tarn.cli.wiring import engine
from tarn.core.errors import NoSuchTableError, TarnError, UnavailableError
from tarn.core.table_catalog import TableName
from tarn.core.table_state import TableState
from tarn_demo.bench.figures import at_share
from tarn_demo.bench.ingest import LOOK_S, VisibilityLog, held_by, polls_until
from tarn_demo.bench.lines import printed
from tarn_demo.bench.peers import PARTITIONS, messages
from tarn_demo.bench.peers import Bench as Client

TENTHS = 10
TABLE = TableName(("bench",), "history")
MESSAGE_BYTES = 200
MESSAGES_MAX = 100_000_000
ROWS_MAX = 100
LOOK_EVERY_S = 0.25
LOOKS_PER_LIST = 10
"""Looks at the table for one at its manifests, which takes a manifest list from the store."""
TICK_S = 0.02
ASK_EVERY_S = 3.0
CATCH_UP_S_MAX = 60.0
FLUSH_S_MAX = 60.0


@dataclass(frozen=True, slots=True)
class Goal:
    """When the run ends: after some seconds, or after some commits.

    Attributes:
        seconds: duration; the limit if `commits` are given.
        commits: commits of the table; None for a run by time alone.
    """

    seconds: float
    commits: int | None = None

    def share(self, elapsed_s: float, commits: int) -> float:
        """How much of the run is done, from 0 to 1."""
        done = elapsed_s / self.seconds if self.commits is None else commits / self.commits
        return min(1.0, done)

    def tenth(self, elapsed_s: float, commits: int) -> int:
        """Which tenth runs, from 0; `TENTHS` after the last."""
        return int(self.share(elapsed_s, commits) * TENTHS + 1e-9)


class Producer(Protocol):
    """What `Feed` needs of a Kafka producer."""

    def produce(self, topic: str, value: bytes, *, partition: int) -> None:
        """Send a message, some time; `BufferError` if too many wait."""

    def poll(self, timeout: float) -> int:
        """Go on with what waits."""

    def flush(self, timeout: float) -> int:
        """Wait until everything is delivered; returns how many messages are not."""


@dataclass(slots=True)
class Feed:
    """Messages sent at a steady rate until it is stopped. Others may read `sent`."""

    producer: Producer
    topic: str
    rate: float
    stop: threading.Event
    sent: int = 0
    error: str = ""

    def run(self) -> None:
        """Send until `stop`; what was sent is delivered when it returns, or `error` says why not."""
        began = time.monotonic()
        made = messages(MESSAGES_MAX, MESSAGE_BYTES)
        _, value = next(made)
        while not self.stop.wait(TICK_S):
            due = int((time.monotonic() - began) * self.rate)
            while self.sent < due:
                try:
                    self.producer.produce(self.topic, value, partition=self.sent % PARTITIONS)
                except BufferError:
                    break  # the same message is next: its id says its place in the topic
                self.sent += 1
                _, value = next(made)
            self.producer.poll(0)
        if left := self.producer.flush(FLUSH_S_MAX):
            self.error = f"{left} of {self.sent} messages were not delivered within {FLUSH_S_MAX:.0f} s"


@dataclass(slots=True)
class Looks:
    """What was seen since the last `empty`: times of Trino in milliseconds, and failed questions."""

    planning_ms: list[float] = field(default_factory=list)
    count_ms: list[float] = field(default_factory=list)
    failed: int = 0

    def empty(self) -> dict[str, Any]:
        """Medians since the last call; None for what was never answered."""
        found = {
            "planning_ms": _median(self.planning_ms),
            "count_ms": _median(self.count_ms),
            "questions": len(self.count_ms),
            "failed": self.failed,
        }
        self.planning_ms, self.count_ms, self.failed = [], [], 0
        return found


def _median(values: Sequence[float]) -> float | None:
    return round(statistics.median(values), 1) if values else None


def ask(trino: Engine, looks: Looks, *, clock: Callable[[], float] = time.monotonic) -> None:
    """Plan a count of the table and count it, each by a query of its own."""
    count = f"SELECT count(*) FROM tarn.{TABLE}"  # noqa: S608  a constant
    try:
        at = clock()
        trino.query(f"EXPLAIN {count}", rows_max=ROWS_MAX)
        planned = clock()
        trino.query(count, rows_max=ROWS_MAX)
        looks.planning_ms.append((planned - at) * 1_000)
        looks.count_ms.append((clock() - planned) * 1_000)
    except TarnError:
        looks.failed += 1


@dataclass(slots=True)
class Most:
    """The most data files and manifests that were seen since the last `empty`."""

    files: int = 0
    manifests: int = 0

    def saw(self, *, files: int | None = None, manifests: int | None = None) -> None:
        """Take in a look; None where it did not look."""
        self.files = max(self.files, files or 0)
        self.manifests = max(self.manifests, manifests or 0)

    def empty(self) -> dict[str, int]:
        """What was seen since the last call."""
        found = {"files_most": self.files, "manifests_most": self.manifests}
        self.files = self.manifests = 0
        return found


def facts(state: TableState, manifests: int) -> dict[str, Any]:
    """The length of the table's history and its size, from its current version."""
    return {
        "commits": state.last_sequence,
        "snapshots": len(state.metadata.get("snapshots") or []),
        "metadata_bytes": len(json.dumps(state.metadata, separators=(",", ":"))),
        "manifests": manifests,
        "files": state.total("data-files"),
        "live_bytes": state.total("files-size"),
        "rows": state.total("records"),
    }


def ages_by_tenth(
    seen: VisibilityLog, records: Iterator[tuple[int, int, int]], ends_ms: Sequence[int]
) -> list[dict[str, Any]]:
    """How old messages were when they could be read, by the tenth in which they were sent.

    Args:
        seen: when which offset could be read.
        records: partition, offset and time of sending (milliseconds since the epoch) of each message.
        ends_ms: end of each tenth, in milliseconds since the epoch.
    """
    ages: list[list[int]] = [[] for _ in ends_ms]
    for partition, offset, sent_ms in records:
        place = next((n for n, end in enumerate(ends_ms) if sent_ms < end), len(ends_ms) - 1)
        ages[place].append(seen.age_ms(partition, offset, sent_ms=sent_ms))
    return [
        {
            "n": len(one),
            "p50_ms": at_share(one, 0.5),
            "p95_ms": at_share(one, 0.95),
            "p99_ms": at_share(one, 0.99),
        }
        if (one := sorted(each))
        else {"n": 0}
        for each in ages
    ]


def await_table(catalog: RestCatalog, table: TableName, *, seconds: float) -> None:
    """Wait until ingest has created the table.

    Raises:
        UnavailableError: it has not after so many seconds.
    """
    until = time.monotonic() + seconds
    while True:
        try:
            catalog.load(table)
        except NoSuchTableError as e:
            if time.monotonic() > until:
                raise UnavailableError(f"ingest did not create {table}; see its log") from e
            time.sleep(LOOK_S)
        else:
            return


class Bench:
    """One run, as the cli's own user."""

    def __init__(self, settings: Settings, *, topic: str, stream: str) -> None:
        secrets = load_secrets(settings.secrets_dir)
        login = settings.kafka_login()
        self._topic, self._stream = topic, stream
        self._catalog = RestCatalog(
            settings.catalog_uri, warehouse=settings.warehouse, credential=lambda: secrets.credential
        )
        self._files: Catalog = rest_catalog(settings, secrets)
        self._trino = engine(settings, "trino")
        self._sources = KafkaSources(settings.kafka_bootstrap, lambda: login, client="librdkafka")
        self._producer: Producer = Client(settings).producer(linger_ms=5)

    def run(self, goal: Goal, rate: float) -> Iterator[dict[str, Any]]:
        """Yield a line per tenth, then the ages.

        Raises:
            UnavailableError: messages were not delivered or committed, or the goal was not reached in time.
        """
        stop, looks, most, seen = threading.Event(), Looks(), Most(), VisibilityLog()
        feed = Feed(self._producer, self._topic, rate, stop)
        threads = [
            threading.Thread(target=work, daemon=True)
            for work in (feed.run, lambda: self._watch(seen, stop), lambda: self._ask(looks, stop))
        ]
        await_table(self._catalog, TABLE, seconds=CATCH_UP_S_MAX)
        began, at, turn = time.monotonic(), 0, 0
        ends_ms: list[int] = []
        for thread in threads:
            thread.start()
        try:
            while at < TENTHS:
                time.sleep(LOOK_EVERY_S)
                elapsed = time.monotonic() - began
                state, turn = self._catalog.load(TABLE), turn + 1
                most.saw(files=state.total("data-files"))
                if turn % LOOKS_PER_LIST == 0:
                    most.saw(manifests=self._manifests())
                reached = goal.tenth(elapsed, state.last_sequence)
                if elapsed > goal.seconds + CATCH_UP_S_MAX:
                    raise UnavailableError(
                        f"{state.last_sequence} of {goal.commits} commits in {elapsed:.0f} s; "
                        "see the log of ingest"
                    )
                if reached > at:
                    at = reached
                    ends_ms.append(time.time_ns() // 1_000_000)
                    row = facts(state, self._manifests())
                    most.saw(manifests=row["manifests"])
                    yield (
                        {"tenth": at, "at_s": round(elapsed, 1), "unix_s": ends_ms[-1] / 1_000}
                        | looks.empty()
                        | most.empty()
                        | row
                    )
        finally:
            stop.set()
            for thread in threads[:2]:
                thread.join(timeout=FLUSH_S_MAX + 5)
        if feed.error:
            raise UnavailableError(feed.error)
        yield {"sent": feed.sent, "ages": self._ages(seen, ends_ms, feed.sent)}

    def _ages(self, seen: VisibilityLog, ends_ms: Sequence[int], sent: int) -> list[dict[str, Any]]:
        source = self._sources.open(self._topic, stream="bench")
        try:
            ends = {p: bounds.end for p, bounds in source.bounds().items()}
            until = time.monotonic() + CATCH_UP_S_MAX
            while not seen.covers(ends):
                if time.monotonic() > until:
                    raise UnavailableError(f"{TABLE} has not all of {sent} messages; see the log of ingest")
                seen.record(
                    held_by(self._catalog.load(TABLE), self._stream), at_ms=time.time_ns() // 1_000_000
                )
                time.sleep(LOOK_S)
            source.seek(dict.fromkeys(ends, 0))
            records = (
                (polled.partition, offset, sent_ms)
                for polled in polls_until(source, sum(ends.values()))
                for offset, sent_ms in zip(polled.offsets, polled.times_ms, strict=True)
            )
            return ages_by_tenth(seen, records, ends_ms)
        finally:
            source.close()

    def _watch(self, seen: VisibilityLog, stop: threading.Event) -> None:
        while not stop.wait(LOOK_S):
            try:
                held: Mapping[int, int] = held_by(self._catalog.load(TABLE), self._stream)
            except TarnError:
                continue  # a failed look counts as not readable
            seen.record(held, at_ms=time.time_ns() // 1_000_000)

    def _ask(self, looks: Looks, stop: threading.Event) -> None:
        while not stop.wait(ASK_EVERY_S):
            ask(self._trino, looks)

    def _manifests(self) -> int:
        table = self._files.load_table((*TABLE.namespace, TABLE.name))
        head = table.current_snapshot()
        return len(head.manifests(table.io)) if head is not None else 0


def main(arguments: Sequence[str]) -> int:
    """Run and return the exit code."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="tarn_demo.bench.history")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--stream", required=True)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--commits", type=int)
    options = parser.parse_args(arguments)

    def rows() -> Iterator[dict[str, Any]]:
        bench = Bench(Settings.read(), topic=options.topic, stream=options.stream)
        return bench.run(Goal(options.seconds, options.commits), options.rate)

    return printed(rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
