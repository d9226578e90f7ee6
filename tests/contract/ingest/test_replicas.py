"""Several readers share the partitions of a topic: one stream, one map, each row once, whoever commits."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from tarn.adapters import manifest_audit
from tarn.adapters.bulk import PlainBulk
from tarn.core import small_files
from tarn.core.spec import IngestorSpec, parse_spec
from tarn.core.table_catalog import CommitOutcome, TableName
from tarn.core.table_state import CommitRequest, TableState, commit_ids
from tarn.ingest.batch_commit import watermark_in
from tarn.ingest.bookkeeper import Seat
from tarn.ingest.context import IngestContext
from tarn.ingest.ingestor import Ingestor
from tarn.ingest.service import Loaded, Service
from tarn.ingest.status import State, StatusRegistry
from tarn.keeper.fsck import fsck
from tarn.testing.memory_topic import Topic
from tests.contract.ingest.test_faults import audit, faulty_lake, feed
from tests.support.lake import BUCKET, SPEC, Lake, order
from tests.support.plays import seeds
from tests.support.stack import eventually

WITHIN_S = 60.0


def spec(
    replicas: int = 3, *, commit: str = "bookkeeper", latency_s: float = 0.05, more: str = ""
) -> IngestorSpec:
    text = SPEC.replace("FORMAT", "2").replace("PARTITIONING", "[]")
    text = text.replace("maxLatencySeconds: 0.05", f"maxLatencySeconds: {latency_s}")
    return parse_spec(f"{text}  replicas: {replicas}\n  commit: {commit}\n{more}", file="orders.yaml")


def readers(made: IngestorSpec, context: IngestContext) -> list[Ingestor]:
    return [Ingestor(made, context, replica=n) for n in range(made.spec.replicas)]


def together(lake: Lake, crew: list[Ingestor], *, turns: int = 60) -> None:
    """Run readers at the same time, each for so many turns; what one raises is raised here."""
    with ThreadPoolExecutor(len(crew)) as pool:
        for one in [pool.submit(lake.work, reader, turns=turns) for reader in crew]:
            one.result(WITHIN_S)


def clean(lake: Lake) -> list[Any]:
    report = fsck(
        PlainBulk(lake.store), manifest_audit, bucket=BUCKET, tell=lambda _: None, sleep=lambda _: None
    )
    return [finding for finding in report.findings if finding.damage]


def serve(lake: Lake, made: IngestorSpec, done: Callable[[StatusRegistry], bool]) -> StatusRegistry:
    """Run a service of one spec until the condition holds."""
    registry = StatusRegistry()
    service = Service(
        Loaded(specs={"orders.yaml": made}, errors={}),
        lake.context(registry=registry),
        registry,
        threading.Event(),
        specs=lake.specs(),
    )
    service.start()
    late_s = time.monotonic() + WITHIN_S
    while not done(registry):
        assert time.monotonic() < late_s, registry.ingestors()
        time.sleep(0.01)
    seen = StatusRegistry()
    for name, status in registry.readers().items():
        seen.update(name, **{key: getattr(status, key) for key in status.__slots__})
    lake.stop = True
    assert service.drain()
    return seen


@pytest.fixture
def topic() -> Topic:
    made = Topic("orders", 7)
    for p in made.logs:
        made.send(p, *(order(100 * p + n) for n in range(20)), b"junk")
    return made


EVERYTHING = [(p, n) for p in range(7) for n in range(20)]


@pytest.mark.parametrize("commit", ["bookkeeper", "direct"])
def test_three_readers_bring_in_each_row_once(topic: Topic, commit: str) -> None:
    lake = Lake(topic)

    def done(seen: StatusRegistry) -> bool:
        status = seen.get("orders")
        # Dead letters are registered after their commit; a stop in between leaves that to the next run.
        counted = (status.rows, status.bad_records, status.lag) == (140, 7, 0)
        return counted and lake.table("ops.dead_letters").total("records") == 7

    registry = serve(lake, spec(commit=commit), done)
    assert lake.offsets() == EVERYTHING
    assert sorted(r["partition"] for r in lake.rows("ops.dead_letters")) == list(range(7))
    (status,) = registry.ingestors().values()
    assert (status.replicas, status.ready, status.state) == (3, 3, State.RUNNING)
    assert status.to_json()["readyReplicas"] == 3
    assert status.committed == dict.fromkeys(range(7), 21)
    assert status.snapshots <= status.commits
    found = [sorted(reader.positions) for reader in lake.sources.readers if reader.positions]
    assert {tuple(one) for one in found} == {(0, 3, 6), (1, 4), (2, 5)}
    assert clean(lake) == []


def test_readers_of_one_process_share_snapshots(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = Lake(topic)
    slow, hand_over = lake.local.commit, Seat.commit
    handed_over: list[Seat] = []

    def noted(seat: Seat, *what: Any) -> Any:
        handed_over.append(seat)
        return hand_over(seat, *what)

    def commit(table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
        # The first one is under way until all three have something to commit.
        if table.name == "orders":
            eventually(lambda: len(handed_over) >= 3, timeout_s=WITHIN_S, what="three batches", pause_s=0.01)
        return slow(table, request, key=key)

    monkeypatch.setattr(Seat, "commit", noted)
    lake.local.commit = commit  # type: ignore[method-assign]
    together(lake, readers(spec(), lake.context()))
    assert lake.offsets() == EVERYTHING
    assert max(len(commit_ids(s["summary"])) for s in lake.table().ancestors()) > 1
    status = lake.registry.get("orders")
    assert status.conflicts == 0, "one bookkeeper has no rival"
    assert status.snapshots < status.commits


def test_readers_that_commit_themselves_meet_conflicts_and_are_right(topic: Topic) -> None:
    lake = Lake(topic)
    crew = readers(spec(commit="direct"), lake.context())
    barrier = threading.Barrier(3)
    inner, entered = lake.local.commit, [0]

    def commit(table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
        entered[0] += 1
        if entered[0] <= 3:
            barrier.wait(WITHIN_S)
        return inner(table, request, key=key)

    lake.local.commit = commit  # type: ignore[method-assign]
    together(lake, crew)
    assert lake.offsets() == EVERYTHING
    assert lake.registry.get("orders").conflicts >= 2
    assert all(len(commit_ids(s["summary"])) == 1 for s in lake.table().ancestors())


def test_a_neighbour_s_commits_are_no_reason_to_plan_again(topic: Topic) -> None:
    lake = Lake(topic)
    one, other, last = readers(spec(), lake.context())
    for reader in (one, other, last):
        lake.work(reader)
    busy = [0]

    def until() -> bool:
        busy[0] += 1
        if busy[0] % 20 == 0:
            topic.send(1, order(1))
            lake.work(other, turns=30)
        return busy[0] > 200

    with capture_logs() as lines:
        one.cycle(until)
    plans = [line for line in lines if line["event"] == "ingestor planned" and line["ingestor"] == one.name]
    assert len(plans) == 1
    assert not [
        line
        for line in lines
        if line["event"] == "the table moved under this ingestor; planning again"
        and line.get("ingestor") == one.name
    ]
    assert len(lake.offsets()) == 150


def test_a_rollback_makes_each_reader_plan_again_for_its_own(topic: Topic) -> None:
    lake = Lake(topic)
    together(lake, readers(spec(), lake.context()))
    oldest = list(lake.table().ancestors())[-1]["snapshot-id"]
    lake.local.catalog.tables.commit(
        lake.local._slot(TableName(("bronze",), "orders")),
        [],
        [
            {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": oldest},
            {
                "action": "set-snapshot-ref",
                "ref-name": "tarn-offsets-orders",
                "type": "tag",
                "snapshot-id": oldest,
            },
        ],
    )
    assert len(lake.offsets()) < 140
    together(lake, readers(spec(), lake.context()), turns=120)
    assert lake.offsets() == EVERYTHING


def test_a_reader_without_partitions_stands_by_until_the_topic_has_more() -> None:
    topic = Topic("orders", 1)
    topic.send(0, *(order(n) for n in range(5)))
    lake = Lake(topic)
    context = lake.context()
    together(lake, readers(spec(), context))
    status = lake.registry.get("orders")
    assert (status.lag, status.ready) == (0, 3)
    topic.logs[1], topic.starts[1] = [], 0
    topic.send(1, *(order(n) for n in range(7)))
    together(lake, readers(spec(), context), turns=200)
    assert lake.offsets() == [*((0, n) for n in range(5)), *((1, n) for n in range(7))]


def test_a_new_partition_is_found_by_the_reader_whose_it_is() -> None:
    topic = Topic("orders", 3)
    lake = Lake(topic)
    crew = readers(spec(), lake.context())
    for p in range(3):
        topic.send(p, order(p))
    grown = [False]

    def until(reader: Ingestor, left: list[int]) -> Callable[[], bool]:
        def ask() -> bool:
            left[0] -= 1
            if left[0] == 100 and not grown[0]:
                grown[0] = True
                topic.logs[4], topic.starts[4] = [order(9)], 0
            return left[0] < 0

        return ask

    for reader in crew:
        left = [200]
        while left[0] > 0:
            reader.cycle(until(reader, left))
    assert (4, 0) in lake.offsets()
    status = lake.registry.readers()["orders/1"]
    assert set(status.committed) == {1, 4}


def test_the_watermark_is_that_of_all_partitions() -> None:
    topic = Topic("orders", 3)
    lake = Lake(topic)
    made = spec(more="  eventTime: {column: at}\n")
    for p, hour in enumerate((8, 9, 10)):
        topic.send(p, b'{"id": 1, "at": "2023-11-14T%02d:00:00Z"}' % hour)
    context = lake.context()
    one, other, last = readers(made, context)
    lake.work(one)
    mark = watermark_in(lake.table(), "orders")
    assert mark is not None
    assert mark.at_us is None, "two partitions have not had a time yet"
    assert set(mark.partitions) == {0, 1, 2}
    lake.work(other)
    lake.work(last)
    mark = watermark_in(lake.table(), "orders")
    assert mark is not None
    shown = lake.registry.get("orders").to_json()["eventTime"]["watermark"]
    assert shown == "2023-11-14T08:00:00Z"


def test_each_reader_merges_the_small_files_of_its_own_batches() -> None:
    topic = Topic("orders", 2)
    lake = Lake(topic)

    def until(partition: int) -> Callable[[], bool]:
        turn = [0]

        def ask() -> bool:
            turn[0] += 1
            if turn[0] % 12 == 1 and turn[0] < 300:
                topic.send(partition, order(turn[0]))
            if turn[0] == 200:
                lake.clock.now_s += small_files.EVERY_S + 1
            return turn[0] > 360

        return ask

    crew = readers(spec(2), lake.context())
    for _ in range(2):
        for partition, reader in enumerate(crew):
            reader.cycle(until(partition))
    assert min(lake.registry.readers()[f"orders/{n}"].merges for n in range(2)) >= 2
    assert len(lake.files()) < lake.registry.get("orders").commits
    assert lake.offsets() == [(p, n) for p in (0, 1) for n in range(len(topic.logs[0]))]
    assert clean(lake) == []
    lake.history_is_a_chain()


def test_snapshots_follow_the_freshness_target_and_not_the_number_of_readers() -> None:
    """Six readers with a target of 0.4 s; those who commit for themselves make six snapshots in that time."""
    target_s, seconds = 0.4, 3.0

    def run(commit: str) -> tuple[int, int]:
        topic = Topic("orders", 6)
        lake = Lake(topic)
        stop = threading.Event()
        registry = StatusRegistry()
        made = spec(6, commit=commit, latency_s=target_s)
        made = made.model_copy(
            update={
                "spec": made.spec.model_copy(
                    update={"batching": made.spec.batching.model_copy(update={"max_records": 10_000})}
                )
            }
        )
        context = replace(lake.context(registry=registry), clock=time.monotonic, stopping=stop.is_set)
        crew = readers(made, context)
        lake.sources.on_poll = lambda: time.sleep(0.005)
        with ThreadPoolExecutor(6) as pool:
            running = [pool.submit(reader.run) for reader in crew]
            began_s, number = time.monotonic(), 0
            try:
                while (now_s := time.monotonic()) < began_s + seconds:
                    # Each reader gets its records at another time of the target's span, and as many of
                    # them on a machine that stands still for a while.
                    while began_s + number * target_s / 6 <= now_s:
                        topic.send(number % 6, order(number))
                        number += 1
                    time.sleep(target_s / 12)
            finally:
                stop.set()
            for one in running:
                one.result(WITHIN_S)
        return registry.get("orders").snapshots, registry.get("orders").commits

    paced, batches = run("bookkeeper")
    unpaced, _ = run("direct")
    assert batches > 2 * paced
    assert paced <= 2 * seconds / target_s
    assert unpaced > 2 * paced


class Crash(BaseException):
    """The end of the process at this point."""


@dataclass
class Crashing:
    """A catalog client of one process, which ends at a random request, before it is sent or after."""

    inner: Any
    chance: random.Random
    rate: float
    lock: threading.RLock

    def __post_init__(self) -> None:
        self.create_namespace = self.inner.create_namespace
        self.create = self.inner.create

    def load(self, table: TableName) -> TableState:
        with self.lock:
            self._maybe()
            found: TableState = self.inner.load(table)
            return found

    def commit(self, table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
        time.sleep(0.001)
        with self.lock:
            self._maybe()
            outcome: CommitOutcome = self.inner.commit(table, request, key=key)
            self._maybe()
            return outcome

    def _maybe(self) -> None:
        if self.chance.random() < self.rate:
            raise Crash


@pytest.mark.plays
@pytest.mark.parametrize("commit", ["bookkeeper", "direct"])
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("seed", seeds(3))
def test_plays_lose_and_double_nothing(seed: int, replicas: int, processes: int, commit: str) -> None:
    """One or two processes with all replicas each: replies lost, late and denied, and ends at any request."""
    topic = Topic("orders", 4)
    lake, faults = faulty_lake(topic, seed, rate=0.3)
    lake.commits_now = lambda: True
    chance = random.Random(seed)
    expected = feed(topic, chance, 150)
    made = spec(replicas, commit=commit)
    faulty, lock = lake.catalog, threading.RLock()
    crashes = 0

    def process(rate: float, turns: int) -> int:
        """A process: its readers share a bookkeeper, and end together when one of them ends."""
        catalog = Crashing(faulty, random.Random(chance.random()), rate, lock)
        context = replace(lake.context(registry=StatusRegistry()), catalog=catalog)
        crew = readers(made, context)
        with ThreadPoolExecutor(len(crew)) as pool:
            ended = [pool.submit(lake.work, reader, turns=turns) for reader in crew]
        errors = [error for one in ended if (error := one.exception()) is not None]
        assert all(isinstance(error, Crash) for error in errors), errors
        return len(errors)

    for _ in range(8):
        with ThreadPoolExecutor(processes) as pool:
            crashes += sum(pool.map(lambda _n: process(0.05, 40), range(processes)))
        faults.land_some()
    faults.land_all()
    faults.rate = 0.0
    lake.catalog = faulty
    for _ in range(2):
        process(0.0, 300)
    audit(lake, expected)
    assert clean(lake) == []
    assert crashes + sum(n for kind, n in faults.counts.items() if kind != "fine") >= 3
