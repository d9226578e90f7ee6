"""Ingestors with a backlog share the memory of their batches: at no moment more is read than the total."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import orjson
import pytest

from tarn.core.spec import IngestorSpec, parse_spec
from tarn.core.table_catalog import CommitOutcome, TableName
from tarn.core.table_state import CommitRequest
from tarn.ingest.batch_memory import BatchMemory
from tarn.ingest.context import IngestContext, one_thread
from tarn.ingest.ingestor import Ingestor
from tarn.ingest.status import State
from tarn.testing.memory_topic import Topic
from tests.support.lake import SPEC, Lake

RECORD_BYTES = 4_000
RECORDS = 300
TOTAL_BYTES = 1 << 20
WAIT_S = 60.0


def message(number: int) -> bytes:
    value = {"id": number, "at": "2026-11-21T08:00:00Z", "text": ""}
    value["text"] = "x" * (RECORD_BYTES - len(orjson.dumps(value)))
    return orjson.dumps(value)


def spec(name: str) -> IngestorSpec:
    text = SPEC.replace("FORMAT", "2").replace("PARTITIONING", "[]").replace("maxRecords: 10, ", "")
    text = text.replace("      - {name: at,", "      - {name: text, type: string}\n      - {name: at,")
    return parse_spec(text.replace("orders", name), file=f"{name}.yaml")


class World:
    """Some busy topics and some idle ones, each with its ingestor, and commits that can be held up."""

    def __init__(self, *, busy: int, idle: int, total_bytes: int = TOTAL_BYTES) -> None:
        self.names = [f"busy{n}" for n in range(busy)]
        self.all = [*self.names, *(f"idle{n}" for n in range(idle))]
        self.lake = Lake(*(Topic(name, 2) for name in self.all))
        self.memory = BatchMemory(total_bytes)
        self.commits_go = threading.Event()
        self.stop = threading.Event()
        self.read_most = 0
        self.sent: set[str] = set()
        self._inner, self.lake.local.commit = self.lake.local.commit, self._commit  # type: ignore[method-assign]
        self._polling = threading.Lock()
        self.lake.sources.on_poll = self._look

    def send(self) -> None:
        self.sent = set(self.names)
        for name in self.names:
            for partition in range(2):
                values = (message(n) for n in range(RECORDS // 2))
                self.lake.sources.topics[name].send(partition, *values)

    def read(self) -> int:
        """Bytes that were read and are not in a table."""
        registry = self.lake.registry.readers()
        return RECORD_BYTES * sum(
            max(0, at - registry[reader._name].committed.get(p, 0))
            for reader in self.lake.sources.readers
            for p, at in list(reader.positions.items())
        )

    @contextmanager
    def running(self) -> Iterator[None]:
        context: IngestContext = replace(
            self.lake.context(),
            clock=time.monotonic,
            stopping=self.stop.is_set,
            executor=one_thread,
            memory=self.memory,
        )
        made = [Ingestor(spec(name), context) for name in self.all]
        with ThreadPoolExecutor(len(made)) as pool:
            running = [pool.submit(one.run) for one in made]
            try:
                self.until(
                    lambda: all(self.lake.registry.get(name).state is State.RUNNING for name in self.all)
                )
                yield
            finally:
                self.commits_go.set()
                self.stop.set()
            for one in running:
                one.result()

    def until(self, done: Callable[[], bool]) -> None:
        late_s = time.monotonic() + WAIT_S
        while not done():
            assert time.monotonic() < late_s, self.lake.registry.readers()
            time.sleep(0.005)

    def _commit(self, table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
        if table.name in self.sent:
            assert self.commits_go.wait(WAIT_S)
        return self._inner(table, request, key=key)

    def _look(self) -> None:
        with self._polling:
            self.read_most = max(self.read_most, self.read())
        time.sleep(0.001)


@pytest.mark.parametrize(("busy", "least"), [(1, TOTAL_BYTES // 2), (8, TOTAL_BYTES * 3 // 4)])
def test_readers_that_become_busy_at_once_stay_within_the_total(busy: int, least: int) -> None:
    """No commit ends until nothing more is read; then all of them do."""
    world = World(busy=busy, idle=3)
    with world.running():
        world.send()
        seen = [-1]

        def still() -> bool:
            time.sleep(0.2)
            before, seen[0] = seen[0], world.read()
            return seen[0] == before > least

        # Readers that get no processor for a while are not at the end of what they may read.
        world.until(still)
        assert seen[0] <= TOTAL_BYTES
        world.commits_go.set()
        world.until(lambda: all(world.lake.registry.get(name).rows == RECORDS for name in world.names))
    for name in world.names:
        assert world.lake.offsets(f"bronze.{name}") == [(p, n) for p in range(2) for n in range(RECORDS // 2)]
    # A poll may be late in the books by the record of each partition that it reads in any case.
    assert world.read_most <= TOTAL_BYTES + busy * 2 * RECORD_BYTES
    assert world.memory.held == 0
