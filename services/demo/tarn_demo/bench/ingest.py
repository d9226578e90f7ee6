"""The network side of `scripts/bench ingest`: `python -m tarn_demo.bench.ingest VERB`, JSON on stdout.

It uses what users use: the player of `tarn demo load`, ingest's own Kafka client, the REST catalog.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from tarn.adapters.catalog_client import RestCatalog
from tarn.adapters.kafka import Client, KafkaSources
from tarn.cli.settings import Settings, load_secrets
from tarn.core.errors import InvalidError, NoSuchTableError, TarnError, UnavailableError
from tarn.core.offsets import SUMMARY_PREFIX, TAG_PREFIX, OffsetMap
from tarn.core.source import TopicReader
from tarn.core.table_catalog import TableName
from tarn.core.table_state import TableState
from tarn_demo.bench.figures import at_share
from tarn_demo.bench.lines import printed
from tarn_demo.flights import dataset
from tarn_demo.flights.events import NoiseRates, Stream
from tarn_demo.flights.pace import AllAtOnce, Pace, Rate
from tarn_demo.flights.producer import Topic
from tarn_demo.flights.resume import ReplayPass

STREAM = "flights"
BRONZE = TableName(("bronze",), "flight_events")
DEAD_LETTERS = TableName(("ops",), "dead_letters")
NOISE = NoiseRates(duplicates=0.02, late=0.05, broken=0.001)
SEED = 1
POLL_RECORDS = 100_000
LOOK_S = 0.05
STALL_S_MAX = 60.0
REGISTER_S_MAX = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchContext:
    """Dependencies of a verb."""

    topic: Topic
    catalog: RestCatalog

    def open(self, client: Client = "librdkafka") -> TopicReader:
        """Open the topic as ingest reads it."""
        sources = KafkaSources(self.topic.bootstrap, lambda: self.topic.login, client=client)
        return sources.open(self.topic.name, stream="bench")


def make_context(settings: Settings) -> BenchContext:
    """Dependencies from the settings, as the cli's own user."""
    secrets, login = load_secrets(settings.secrets_dir), settings.kafka_login()
    return BenchContext(
        topic=Topic(bootstrap=settings.kafka_bootstrap, login=login),
        catalog=RestCatalog(
            settings.catalog_uri, warehouse=settings.warehouse, credential=lambda: secrets.credential
        ),
    )


def produce(context: BenchContext, *, events: int, pace: Pace | None = None) -> dict[str, Any]:
    """Produce the first messages of the demo's stream; returns how long it took until all were acknowledged.

    Args:
        context: dependencies.
        events: number of messages.
        pace: rate of sending; by default as fast as possible.

    Raises:
        InvalidError: the stream has fewer messages.
        TarnError: Kafka does not accept them.
    """
    stream = Stream(dataset.read_flights(), dataset.read_reference("airports"), noise=NOISE, seed=SEED)
    if events > len(stream):
        raise InvalidError(f"--events {events}: the stream has {len(stream)} messages; give at most that")
    partitions = context.topic.ensure()
    began, cpu = time.time(), time.process_time()
    play = ReplayPass(fingerprint="bench", round=int(began), next=(0,) * partitions)
    sent = context.topic.play(stream, pace or AllAtOnce(), play, end=events)
    return {
        "messages": sent,
        "begun_unix": began,
        "seconds": time.time() - began,
        "cpu_s": time.process_time() - cpu,
        "ends": {str(p): end for p, end in context.topic.end_offsets().items()},
    }


def read(context: BenchContext, *, events: int, client: Client) -> dict[str, Any]:
    """Consume the last messages of the topic and discard them: the throughput of the client alone.

    Args:
        context: dependencies.
        events: number of messages.
        client: the library that reads them.

    Raises:
        UnavailableError: Kafka stops responding.
    """
    source = context.open(client)
    try:
        bounds = source.bounds()
        share = -(-events // max(1, len(bounds)))
        positions = {p: max(b.start, b.end - share) for p, b in bounds.items()}
        goal = sum(bounds[p].end - at for p, at in positions.items())
        source.seek(positions)
        began, cpu, records = time.monotonic(), time.process_time(), 0
        for polled in polls_until(source, goal):
            records += len(polled.offsets)
        return {
            "messages": records,
            "seconds": time.monotonic() - began,
            "cpu_s": time.process_time() - cpu,
        }
    finally:
        source.close()


def count(context: BenchContext) -> dict[str, Any]:
    """Count offsets, rows and dead letters; waits for dead letters, which are registered after the rows."""
    offsets = sum(context.topic.end_offsets().values())
    until = time.monotonic() + REGISTER_S_MAX
    while True:
        rows, letters = _total(context.catalog, BRONZE), _total(context.catalog, DEAD_LETTERS)
        if rows + letters >= offsets or time.monotonic() > until:
            return {"offsets": offsets, "rows": rows, "dead_letters": letters}
        time.sleep(LOOK_S)


@dataclass(slots=True)
class VisibilityLog:
    """When a reader could first read up to which offset, as ascending lists per partition.

    Attributes:
        ends: partition to the table's next offset at each check that found progress.
        times_ms: partition to the times of the same checks, in milliseconds since the epoch.
    """

    ends: dict[int, list[int]] = field(default_factory=dict)
    times_ms: dict[int, list[int]] = field(default_factory=dict)

    def record(self, held: Mapping[int, int], *, at_ms: int) -> None:
        """Record a check; partitions that did not move are left unchanged."""
        for partition, end in held.items():
            ends = self.ends.setdefault(partition, [])
            if not ends or end > ends[-1]:
                ends.append(end)
                self.times_ms.setdefault(partition, []).append(at_ms)

    def covers(self, ends: Mapping[int, int]) -> bool:
        """Whether everything before these offsets was readable."""
        return all(end == 0 or self.ends.get(p, [0])[-1] >= end for p, end in ends.items())

    def age_ms(self, partition: int, offset: int, *, sent_ms: int) -> int:
        """Milliseconds from the time a record was sent until it was readable.

        Args:
            partition: partition of the record.
            offset: offset of the record.
            sent_ms: time of sending, in milliseconds since the epoch.
        """
        place = bisect_right(self.ends[partition], offset)
        return self.times_ms[partition][place] - sent_ms


def fresh(context: BenchContext, *, rate: float, seconds: float) -> dict[str, Any]:
    """Send at a steady rate while checking the table; returns how old records were when readable.

    Args:
        context: dependencies.
        rate: messages per second.
        seconds: duration.

    Raises:
        UnavailableError: the table does not catch up.
        TarnError: Kafka does not accept the messages.
    """
    source = context.open()
    try:
        before = {p: b.end for p, b in source.bounds().items()}
        seen, stop = VisibilityLog(), threading.Event()
        watcher = threading.Thread(target=_watch, args=(context.catalog, seen, stop), daemon=True)
        watcher.start()
        try:
            sent = produce(context, events=int(rate * seconds), pace=Rate(rate))
            ends = {int(p): end for p, end in sent["ends"].items()}
            await_bronze(lambda: seen.covers(ends))
        finally:
            stop.set()
            watcher.join(timeout=30)
        source.seek(before)
        ages: list[int] = []
        for polled in polls_until(source, sum(ends.values()) - sum(before.values())):
            ages += [
                seen.age_ms(polled.partition, offset, sent_ms=sent_ms)
                for offset, sent_ms in zip(polled.offsets, polled.times_ms, strict=True)
            ]
    finally:
        source.close()
    ages.sort()
    return {
        "messages": len(ages),
        "rate": rate,
        "seconds": sent["seconds"],
        "p50_ms": at_share(ages, 0.5),
        "p95_ms": at_share(ages, 0.95),
        "max_ms": ages[-1],
        "look_ms": LOOK_S * 1_000,
    }


def _watch(catalog: RestCatalog, seen: VisibilityLog, stop: threading.Event) -> None:
    while not stop.wait(LOOK_S):
        try:
            state = catalog.load(BRONZE)
        except TarnError:
            continue  # a failed check counts as not readable
        seen.record(held_by(state, STREAM), at_ms=time.time_ns() // 1_000_000)


def held_by(state: TableState, stream: str) -> Mapping[int, int]:
    """Partition to next offset of a stream, as a version of its table says; empty before its first commit."""
    text = state.newest(SUMMARY_PREFIX + stream, tag=TAG_PREFIX + stream)
    return {} if text is None else OffsetMap.from_json(text).next


def polls_until(source: TopicReader, goal: int) -> Any:
    """Yield polls until `goal` offsets are read.

    Raises:
        UnavailableError: the topic gives nothing for `STALL_S_MAX`.
    """
    moved_s, done = time.monotonic(), 0
    while done < goal:
        for polled in source.poll(records_max=POLL_RECORDS, timeout_s=0.25):
            moved_s, done = time.monotonic(), done + polled.end - polled.start
            yield polled
        if time.monotonic() - moved_s > STALL_S_MAX:
            raise UnavailableError(f"the topic gave nothing for {STALL_S_MAX:.0f} s; see the logs of kafka")


def await_bronze(holds: Callable[[], bool], *, clock: Callable[[], float] = time.monotonic) -> None:
    """Wait until bronze holds what was sent.

    Args:
        holds: whether it does.
        clock: monotonic time in seconds.

    Raises:
        UnavailableError: it does not within `STALL_S_MAX`.
    """
    until = clock() + STALL_S_MAX
    while not holds():
        if clock() > until:
            raise UnavailableError(
                f"bronze did not take everything within {STALL_S_MAX:.0f} s; see the logs of ingest"
            )
        time.sleep(LOOK_S)


def _total(catalog: RestCatalog, table: TableName) -> int:
    try:
        head = catalog.load(table).head
    except NoSuchTableError:
        return 0
    return int(head["summary"]["total-records"]) if head is not None else 0


def main(arguments: Sequence[str]) -> int:
    """Run one verb and return the exit code."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="tarn_demo.bench.ingest")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("produce", allow_abbrev=False).add_argument("--events", type=int, required=True)
    reading = verbs.add_parser("read", allow_abbrev=False)
    reading.add_argument("--events", type=int, required=True)
    reading.add_argument("--client", choices=get_args(Client), required=True)
    verbs.add_parser("count", allow_abbrev=False)
    paced = verbs.add_parser("fresh", allow_abbrev=False)
    paced.add_argument("--rate", type=float, required=True)
    paced.add_argument("--seconds", type=float, required=True)
    options = vars(parser.parse_args(arguments))
    named: dict[str, Callable[..., dict[str, Any]]] = {
        "produce": produce,
        "read": read,
        "count": count,
        "fresh": fresh,
    }
    verb = named[options.pop("verb")]
    return printed(lambda: [verb(make_context(Settings.read()), **options)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
