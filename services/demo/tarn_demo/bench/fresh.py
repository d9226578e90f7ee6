"""The network side of `scripts/bench fresh`: `python -m tarn_demo.bench.fresh VERB`, JSON lines on stdout.

How old a message is when a reader sees its row: for messages at a steady rate, and for writers that send a
round of messages at once.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

from tarn.adapters.catalog_client import RestCatalog
from tarn.adapters.kafka import KafkaSources
from tarn.cli.ports import Engine
from tarn.cli.settings import Settings, load_secrets
from tarn.cli.wiring import engine
from tarn.core.errors import DataError, TarnError, UnavailableError
from tarn.core.table_catalog import TableName
from tarn_demo.bench.figures import at_share
from tarn_demo.bench.history import FLUSH_S_MAX, Feed, await_table
from tarn_demo.bench.ingest import LOOK_S, VisibilityLog, held_by, polls_until
from tarn_demo.bench.lines import printed, say
from tarn_demo.bench.peers import BAD_EVERY, PARTITIONS, messages
from tarn_demo.bench.peers import Bench as Client

CATCH_UP_S_MAX = 120.0
WARM_UP_S = 5.0
"""Messages of the first seconds are sent and not counted: Trino compiles, ingest opens its files."""
READY_S_MAX = 120.0
"""The messages of a round are made before it begins, which waits for all writers."""
WRITER_QUEUE_MIB = 16
"""What each of them holds that the broker has not; librdkafka would hold a GiB, as the container may."""


def good_ends(sent: int) -> dict[int, int]:
    """Partition to the end of its good rows after the first `sent` messages of a topic that was empty.

    Every `BAD_EVERY`th message is bad and never becomes a row; message n has partition n % `PARTITIONS`.
    """
    ends: dict[int, int] = {}
    for number in range(sent - 1, -1, -1):
        partition = number % PARTITIONS
        if number % BAD_EVERY and partition not in ends:
            ends[partition] = number // PARTITIONS + 1
        if len(ends) == PARTITIONS:
            break
    return ends


def is_good(partition: int, offset: int) -> bool:
    """Whether a message of such a topic becomes a row."""
    return (offset * PARTITIONS + partition) % BAD_EVERY != 0


def good_rows(sent: int) -> tuple[int, int]:
    """How many rows such messages become, and the sum of their ids."""
    bad = -(-sent // BAD_EVERY)
    return sent - bad, sent * (sent - 1) // 2 - BAD_EVERY * bad * (bad - 1) // 2


def require_rows(found: int, wanted: int, table: TableName) -> None:
    """Require that a table has as many rows as messages of it are good.

    Raises:
        DataError: it has not; a time does not count then.
    """
    if found != wanted:
        raise DataError(
            f"{table} has {found:,} rows, of {wanted:,} good messages: something was lost or doubled; keep "
            "the logs and report it"
        )


def ages(seen: VisibilityLog, records: Sequence[tuple[int, int, int]], *, since_ms: int) -> dict[str, int]:
    """Shares of the ages, in milliseconds, of the good messages sent since a time.

    Args:
        seen: when which offset could be read.
        records: partition, offset and time of sending (milliseconds since the epoch).
        since_ms: messages sent before are left out.

    Raises:
        UnavailableError: none is left.
    """
    found = sorted(
        seen.age_ms(partition, offset, sent_ms=sent_ms)
        for partition, offset, sent_ms in records
        if sent_ms >= since_ms and is_good(partition, offset)
    )
    if not found:
        raise UnavailableError("no good message was sent in the time that counts; give more seconds")
    return {
        "n": len(found),
        "p50_ms": at_share(found, 0.5),
        "p95_ms": at_share(found, 0.95),
        "p99_ms": at_share(found, 0.99),
        "max_ms": found[-1],
    }


def look_by_sql(trino: Engine, table: TableName, held: Mapping[int, int]) -> dict[int, int]:
    """Partition to the end of the rows that a query reads from the table, from the known ends on.

    A message's id is its number, which says its partition and offset. The lower bound lets Trino leave out
    the files of rows that were seen before.

    Raises:
        TarnError: the query failed.
    """
    known = min((held.get(p, 0) for p in range(PARTITIONS)), default=0) * PARTITIONS
    sql = (
        f"SELECT id % {PARTITIONS}, max(id) FROM tarn.{table} "  # noqa: S608  no user's text
        f"WHERE id >= {known} GROUP BY 1"
    )
    found = trino.query(sql, rows_max=100).rows
    return {int(str(p)): int(str(newest)) // PARTITIONS + 1 for p, newest in found}


def watch(look: Callable[[], Mapping[int, int]], seen: VisibilityLog, stop: threading.Event) -> None:
    """Look again and again; an answer counts at its arrival, a failed look as not readable."""
    while not stop.wait(LOOK_S):
        try:
            held = look()
        except TarnError:
            continue
        seen.record(held, at_ms=time.time_ns() // 1_000_000)


def good_messages(count: int, size: int) -> list[bytes]:
    """So many messages of a size, none of them bad."""
    made = messages(count * BAD_EVERY // (BAD_EVERY - 1) + BAD_EVERY, size)
    return list(islice((value for good, value in made if good is not None), count))


class Bench:
    """The verbs, as the cli's own user."""

    def __init__(self, settings: Settings, *, topic: str, stream: str, table: str) -> None:
        secrets, login = load_secrets(settings.secrets_dir), settings.kafka_login()
        self._settings = settings
        namespace, _, name = table.rpartition(".")
        self._topic, self._stream = topic, stream
        self._table = TableName(tuple(namespace.split(".")), name)
        self._catalog = RestCatalog(
            settings.catalog_uri, warehouse=settings.warehouse, credential=lambda: secrets.credential
        )
        self._trino = engine(settings, "trino")
        self._sources = KafkaSources(settings.kafka_bootstrap, lambda: login, client="librdkafka")

    def rate(self, *, rate: float, seconds: float) -> Iterator[dict[str, Any]]:
        """Send at a steady rate into a new topic; yield how old messages were for two readers.

        Raises:
            UnavailableError: messages were not delivered, or a reader did not see them in time.
            DataError: rows were lost or doubled.
        """
        await_table(self._catalog, self._table, seconds=CATCH_UP_S_MAX)
        by_catalog, by_sql, stop = VisibilityLog(), VisibilityLog(), threading.Event()
        seen_all = threading.Event()
        feed = Feed(Client(self._settings).producer(linger_ms=5), self._topic, rate, stop)

        def held_in_catalog() -> Mapping[int, int]:
            return held_by(self._catalog.load(self._table), self._stream)

        def held_in_rows() -> Mapping[int, int]:
            ends = {p: each[-1] for p, each in by_sql.ends.items()}
            return look_by_sql(self._trino, self._table, ends)

        threads = [
            threading.Thread(target=work, daemon=True)
            for work in (
                feed.run,
                lambda: watch(held_in_catalog, by_catalog, seen_all),
                lambda: watch(held_in_rows, by_sql, seen_all),
            )
        ]
        began_ms = time.time_ns() // 1_000_000
        for thread in threads:
            thread.start()
        try:
            time.sleep(WARM_UP_S + seconds)
            stop.set()
            threads[0].join(timeout=FLUSH_S_MAX + 5)
            wanted = good_ends(feed.sent)
            until = time.monotonic() + CATCH_UP_S_MAX
            while not (by_catalog.covers(wanted) and by_sql.covers(wanted)):
                if feed.error or time.monotonic() > until:
                    raise UnavailableError(
                        feed.error or f"{self._table} has not all of {feed.sent} messages; see ingest's log"
                    )
                time.sleep(LOOK_S)
            looks = len({at for times in by_sql.times_ms.values() for at in times})
        finally:
            stop.set()
            seen_all.set()
            for thread in threads[1:]:
                thread.join(timeout=30)
        self._require_all(feed.sent)
        records = list(self._records())
        since_ms = began_ms + round(WARM_UP_S * 1_000)
        yield {
            "rate": rate,
            "sent": feed.sent,
            "sent_per_s": sum(at >= since_ms for _, _, at in records) / seconds,
            "trino_progress": looks,
            "catalog": ages(by_catalog, records, since_ms=since_ms),
            "trino": ages(by_sql, records, since_ms=since_ms),
        }

    def rounds(self, *, writers: int, records: int, size: int, rounds: int) -> Iterator[dict[str, Any]]:
        """Let writers send rounds of messages at once; yield when Trino counts the last of each.

        Raises:
            UnavailableError: a writer failed, or the rows did not come in time.
            DataError: rows were doubled.
        """
        await_table(self._catalog, self._table, seconds=CATCH_UP_S_MAX)
        wanted = 0
        for number in range(rounds):
            self._await_all()
            before, snapshots = self._count()[0], self._catalog.load(self._table).last_sequence
            if number:  # a row that came twice may come after the round
                require_rows(before, wanted, self._table)
            began, sent_s = self._sent_by(writers, records, size)
            until, wanted = time.monotonic() + CATCH_UP_S_MAX, before + writers * records
            while True:
                rows, count_ms = self._count()
                if rows >= wanted:
                    break
                if time.monotonic() > until:
                    raise UnavailableError(f"{rows} of {wanted} rows in {self._table}; see ingest's log")
            visible_s = time.time() - began
            require_rows(rows, wanted, self._table)
            plans = sorted(self._planned() for _ in range(5))
            state = self._catalog.load(self._table)
            yield {
                "round": number,
                "messages": writers * records,
                "sent_s": round(sent_s, 3),
                "visible_s": round(visible_s, 3),
                "planning_ms": round(plans[2], 1),
                "count_ms": round(count_ms, 1),
                "commits": state.last_sequence - snapshots,
                "commits_before": snapshots,
                "rows_before": before,
                "files": state.total("data-files"),
            }
        require_rows(self._count()[0], wanted, self._table)

    def age(self, *, commits: int, rate: float, seconds_max: float) -> Iterator[dict[str, Any]]:
        """Send small messages until the table has seen so many commits; yield how it stands.

        Raises:
            UnavailableError: messages were not delivered, or the commits did not come in time.
        """
        await_table(self._catalog, self._table, seconds=CATCH_UP_S_MAX)
        stop = threading.Event()
        feed = Feed(Client(self._settings).producer(linger_ms=5), self._topic, rate, stop)
        thread = threading.Thread(target=feed.run, daemon=True)
        thread.start()
        began, shown = time.monotonic(), 0.0
        try:
            while (done := self._catalog.load(self._table).last_sequence) < commits:
                elapsed = time.monotonic() - began
                if feed.error or elapsed > seconds_max:
                    raise UnavailableError(feed.error or f"{done} of {commits} commits in {elapsed:.0f} s")
                if elapsed > shown + 30:
                    shown = elapsed
                    say(f"{done:,} of {commits:,} commits")
                time.sleep(0.5)
        finally:
            stop.set()
            thread.join(timeout=FLUSH_S_MAX + 5)
        yield {"commits": done, "seconds": round(time.monotonic() - began), "sent": feed.sent}

    def _sent_by(self, writers: int, records: int, size: int) -> tuple[float, float]:
        """When a round began (Unix time), and how many seconds it took until the last acknowledgement."""
        ready = threading.Barrier(writers + 1)
        client, made = Client(self._settings), good_messages(records, size)

        def write(writer: int) -> int:
            producer = client.producer(linger_ms=5, queue_mib=WRITER_QUEUE_MIB)
            producer.list_topics(self._topic, timeout=READY_S_MAX)
            ready.wait(READY_S_MAX)
            for number, value in enumerate(made):
                while True:
                    try:
                        producer.produce(self._topic, value, partition=(number + writer) % PARTITIONS)
                        break
                    except BufferError:
                        producer.poll(0.05)
            return producer.flush(FLUSH_S_MAX)

        with ThreadPoolExecutor(max_workers=writers) as pool:
            sent = [pool.submit(write, writer) for writer in range(writers)]
            ready.wait(READY_S_MAX)
            began, at = time.time(), time.monotonic()
            if left := sum(each.result() for each in sent):
                raise UnavailableError(f"{left} messages were not delivered within {FLUSH_S_MAX:.0f} s")
            return began, time.monotonic() - at

    def _require_all(self, sent: int) -> None:
        """Require that the table has every good one of the messages once."""
        sql = f"SELECT count(*), sum(id) FROM tarn.{self._table}"  # noqa: S608  no user's text
        count, total = (int(str(value or 0)) for value in self._trino.query(sql, rows_max=1).rows[0])
        rows, ids = good_rows(sent)
        require_rows(count, rows, self._table)
        if total != ids:
            raise DataError(f"{self._table}: the ids add up to {total:,}, not {ids:,}: a row is there twice")

    def _count(self) -> tuple[int, float]:
        began = time.monotonic()
        sql = f"SELECT count(*) FROM tarn.{self._table}"  # noqa: S608  no user's text
        found = self._trino.query(sql, rows_max=1)
        return int(str(found.rows[0][0])), (time.monotonic() - began) * 1_000

    def _planned(self) -> float:
        began = time.monotonic()
        sql = f"EXPLAIN SELECT count(*) FROM tarn.{self._table}"  # noqa: S608  no user's text
        self._trino.query(sql, rows_max=100)
        return (time.monotonic() - began) * 1_000

    def _records(self) -> Iterator[tuple[int, int, int]]:
        source = self._sources.open(self._topic, stream="bench")
        try:
            ends = {p: bounds.end for p, bounds in source.bounds().items()}
            source.seek(dict.fromkeys(ends, 0))
            for polled in polls_until(source, sum(ends.values())):
                for offset, sent_ms in zip(polled.offsets, polled.times_ms, strict=True):
                    yield polled.partition, offset, sent_ms
        finally:
            source.close()

    def _await_all(self) -> None:
        """Wait until the table holds the topic."""
        source = self._sources.open(self._topic, stream="bench")
        try:
            ends = {p: bounds.end for p, bounds in source.bounds().items()}
        finally:
            source.close()
        until = time.monotonic() + CATCH_UP_S_MAX
        while True:
            held = held_by(self._catalog.load(self._table), self._stream)
            if all(held.get(p, 0) >= end for p, end in ends.items()):
                return
            if time.monotonic() > until:
                raise UnavailableError(f"{self._table} stands at {dict(held)} of {ends}; see ingest's log")
            time.sleep(LOOK_S)


def main(arguments: Sequence[str]) -> int:
    """Run one verb and return the exit code."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="tarn_demo.bench.fresh")
    verbs = parser.add_subparsers(dest="verb", required=True)
    options: Mapping[str, Mapping[str, type]] = {
        "rate": {"rate": float, "seconds": float},
        "rounds": {"writers": int, "records": int, "size": int, "rounds": int},
        "age": {"commits": int, "rate": float, "seconds-max": float},
    }
    for verb, numbers in options.items():
        words = verbs.add_parser(verb, allow_abbrev=False)
        for name in ("topic", "stream", "table"):
            words.add_argument(f"--{name}", required=True)
        for name, kind in numbers.items():
            words.add_argument(f"--{name}", type=kind, required=True)
    found = vars(parser.parse_args(arguments))

    def rows() -> Iterator[dict[str, Any]]:
        bench = Bench(Settings.read(), **{name: found.pop(name) for name in ("topic", "stream", "table")})
        named: Mapping[str, Callable[..., Iterator[dict[str, Any]]]] = {
            "rate": bench.rate,
            "rounds": bench.rounds,
            "age": bench.age,
        }
        return named[found.pop("verb")](**found)

    return printed(rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
