"""A lake in one process: two catalog replicas over one store, engines, a reader and the reaper, step by step.

All actors are threads of one `Schedule`: one of them runs at a time, and a seed decides who is next at each
operation of the store, each request, each poll and each wait. Time passes only in here. The code that runs is
the shipped one; what stands for the outside is the store in memory, the topics in memory, and HTTP.
"""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from tarn.adapters import manifest_audit
from tarn.core import small_files
from tarn.core.errors import NoSuchTableError, NotFoundError, TarnError, UnavailableError
from tarn.core.history import Retention
from tarn.core.naming import WarehouseLayout
from tarn.core.spec import IngestorSpec
from tarn.core.table_catalog import TableName
from tarn.core.table_state import CommitRequest, TableState
from tarn.keeper.reaper import Graces, Reaper
from tarn.testing.memory_topic import HOLE, Topic
from tarn_catalog.operations.catalog import Catalog
from tarn_catalog.operations.identifiers import TableIdentifier
from tarn_catalog.state.register import RetryPolicy
from tarn_catalog.testing.faulty_store import Crash, Fault, FaultyStore, Op
from tests.campaign.answers_watched import answers_watched
from tests.campaign.engine import TABLE, Chosen, Engine, Turned
from tests.campaign.kept import kept
from tests.campaign.scenario import Scenario
from tests.campaign.watch import Version, Watch
from tests.contract.catalog.schedule import POOLS, Alone, Schedule
from tests.support.lake import BUCKET, Lake, LocalCatalog, foreign_snapshot, order, spec

SLOT = TableIdentifier.of(("bronze",), "orders")
STREAM = "orders"
CATALOGS = 2
TURNS_MAX = 60_000
ENGINE_TURNS_MAX = 260
READS_MAX = 400
ROW_READS_MAX = 6
STUCK_S = 300.0
HEAL_ROUNDS_MAX = 5
PARTITIONS = {1: (1, 2, 3), 3: (1, 2, 3, 3, 4, 5)}
"""Numbers of partitions to draw from, by number of readers; a reader without one stands by."""
DIRECT_SHARE = 0.125
"""Share of the runs of several readers in which each commits for itself (`commit: direct`)."""
GRACES = Graces(metadata_ms=1_000, files_ms=2_000)


class Replica:
    """One process of the catalog; a crash ends it, and another one takes its place with empty caches."""

    def __init__(self, sim: Sim, number: int) -> None:
        self._sim = sim
        self.name = f"catalog-{number}"
        self.store = FaultyStore(
            sim.store, partial(sim.plan, self.name), late_ops=sim.chance.randrange(1, 60)
        )
        self.skew_ms = sim.scenario.skew_ms(sim.chance)
        self.busy = False
        self.crashes = 0
        self.restart()

    def restart(self) -> None:
        """Start it again."""
        self.local = self._sim.local_on(self.store, self.skew_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One record of the producer's ledger: its id, or None if it is to become a dead letter."""

    id: int | None


class Sim:
    """One run of one scenario.

    Args:
        scenario: the fault.
        seed: seed of everything that is drawn.
        replicas: readers (threads) of each engine, which share the topic's partitions.
    """

    def __init__(self, scenario: Scenario, seed: int, *, replicas: int = 1) -> None:
        self.replicas = replicas
        self._thread = threading.get_ident()
        self._still = 0
        self.scenario = scenario
        self.seed = seed
        self.chance = random.Random(f"{scenario.number}/{seed}{f'/{replicas}' * (replicas > 1)}")
        self.schedule = Schedule(self.chance.getrandbits(32), fault_share=0.0, stuck_s=STUCK_S)
        self.topic = Topic("orders", self.chance.choice(PARTITIONS[replicas]))
        self.topics = {"orders": self.topic}
        thin = scenario.thin if scenario.thin is not None else self.chance.random() < 0.5
        self.lake = Lake(self.topic, retention=Retention(newest=3, steps=(), total_min=0) if thin else None)
        self.lake.numbers = random.Random(self.chance.getrandbits(64))
        self.lake.decode_records = self.chance.choice((8_192, 1, 4))
        self.store = self.lake.store
        self.store._now_ms = self.now_ms
        self.spec: IngestorSpec = spec(
            format_version=scenario.format_version(self.chance),
            replicas=replicas,
            direct=replicas > 1 and self.chance.random() < DIRECT_SHARE,
        )
        self.at_once = self.chance.choice((1.0, 0.3))
        self.watch = Watch(self.store, SLOT, STREAM)
        self.watch.moved = self._moved
        self.healing = False
        self.turns = self.restarts = self.reads = self.row_reads = self.reaped = 0
        self.stops: set[str] = set()
        self.why: dict[str, str] = {}
        self.passes = 0
        self.sendings: dict[str | None, tuple[TableName, CommitRequest]] = {}
        self.sent: dict[str, tuple[TableName, CommitRequest]] = {}
        self.ledger: dict[int, dict[int, Sent]] = {p: {} for p in self.topic.logs}
        self.numbers = 0
        self.fed = False
        self.engines_left = 0
        self.fault_s: float | None = None
        self.caught_up_s = 0.0
        self.group: dict[int, int] = {}
        self.faults = Chosen(self)
        scenario.begin(self)
        self.lake.local.catalog = self.catalog_on(self.store, 0)
        self.catalogs = [Replica(self, number) for number in range(CATALOGS)]
        self.engines = [Engine(self, f"engine-{number}") for number in range(scenario.engines(self.chance))]

    # -- time, ids, turns

    def now_ms(self) -> int:
        """Wall-clock time of the simulation, in milliseconds since the epoch."""
        return int(self.lake.clock.now_s * 1_000) + 1_700_000_000_000

    def new_name(self) -> str:
        """A name that no other call of this run returns."""
        return self.lake.new_id()

    def new_key(self, skew_ms: int = 0) -> str:
        """A UUID version 7."""
        value = (self.now_ms() + skew_ms) << 80 | self.lake.numbers.getrandbits(80)
        value = value & ~(0xF << 76) | 0x7 << 76
        value = value & ~(0x3 << 62) | 0x2 << 62
        return str(uuid.UUID(int=value))

    def acting(self) -> str | None:
        """Name of the actor whose turn it is, in its own thread; None outside the schedule."""
        found: str | None = getattr(self.schedule._who, "name", None)
        return found

    def pause(self) -> None:
        """A turn of whoever acts; a thread of a dead process ends here."""
        who = self.acting()
        engine = next((engine for engine in self.engines if who in engine.actors), None)
        (engine or self).turn()

    @property
    def sending(self) -> tuple[TableName, CommitRequest] | None:
        """The commit that whoever acts sent last."""
        return self.sendings.get(self.acting())

    def turn(self) -> None:
        """Let the schedule decide who goes on.

        Raises:
            AssertionError: the run does not end, or this thread is none of the schedule's.
        """
        who = getattr(self.schedule._who, "name", None)
        if who is None and self._still == 0 and threading.get_ident() != self._thread:
            text = f"thread {threading.current_thread().name} runs outside the schedule"
            self.watch.problems.append(text)
            raise AssertionError(text)
        self.turns += 1
        if self.turns > TURNS_MAX:
            raise AssertionError(f"no end after {TURNS_MAX} turns")
        self.schedule.sleep(0.0)

    def sleep(self, seconds: float) -> None:
        """Let time pass, and others run."""
        self.lake.clock.now_s += seconds
        self.turn()

    def plan(self, who: str, op: Op) -> Fault | None:
        """Fault plan of a process's store: its turn first, then what the scenario says."""
        self.turn()
        return None if self.healing else self.scenario.op(who, op)

    def _moved(self, _: Version) -> None:
        if self.caught_up():
            self.caught_up_s = self.lake.clock.now_s
        self.scenario.moved(self.watch.versions[-1])

    # -- the catalog

    def catalog_on(self, store: Any, skew_ms: int) -> Catalog:
        """A catalog process over this store, whose clock is off by `skew_ms`."""
        policy = RetryPolicy(
            attempts_max=3,
            clock=lambda: self.lake.clock.now_s,
            sleep=self.sleep,
            chance=self.chance.random,
        )
        made = Catalog(
            store,
            WarehouseLayout(base=f"s3://{BUCKET}"),
            patience=policy,
            now_ms=lambda: self.now_ms() + skew_ms,
            intent_wait_ms=60,
        )
        made.core.new_uuid = lambda: str(uuid.UUID(int=self.lake.numbers.getrandbits(128), version=4))
        return made

    def local_on(self, store: Any, skew_ms: int) -> LocalCatalog:
        """A catalog process, as one that is called without HTTP."""
        made = LocalCatalog(store)
        made.catalog = self.catalog_on(store, skew_ms)
        return made

    def free_replica(self, *, write: bool) -> Replica:
        """The replica that takes the next request; writes of one process take turns, as in the catalog."""
        replica = self.chance.choice(self.catalogs)
        while write and replica.busy:
            self.turn()
            replica = self.chance.choice(self.catalogs)
        replica.busy = replica.busy or write
        return replica

    def foreign(self) -> bool:
        """Another engine commits, between two steps of everybody else."""
        with self.undisturbed():
            return foreign_snapshot(self.lake.local, TABLE, self.chance.getrandbits(62))

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Within the block nobody else runs."""
        who, self.schedule._who.name = self.acting(), None
        self._still += 1
        try:
            yield
        finally:
            self._still -= 1
            self.schedule._who.name = who

    # -- actors

    def over(self) -> bool:
        """Whether engines end: all is ingested, or they had their turns."""
        turns_max = ENGINE_TURNS_MAX * self.replicas
        spent = all(engine.left == 0 or engine.turns > turns_max for engine in self.engines)
        return spent or (self.fed and self.caught_up() and self.scenario.content())

    def caught_up(self) -> bool:
        """Whether the table's offsets are the log's ends."""
        known = self.watch.next
        return all(known.get(p, 0) == len(log) for p, log in self.topic.logs.items())

    def hit(self) -> None:
        """Remember that a fault was injected now."""
        self.scenario.happened += 1
        self.fault_s = self.lake.clock.now_s

    def send(self, number: int) -> None:
        """Send records, and write them to the ledger."""
        for _ in range(number):
            partition = self.chance.randrange(len(self.topic.logs))
            self.numbers += 1
            value = self.scenario.record(self.chance, self.numbers)
            log = self.topic.logs[partition]
            if value is HOLE:
                log.append(HOLE)
                continue
            good = value == order(self.numbers)
            self.ledger[partition][len(log)] = Sent(id=self.numbers if good else None)
            log.append(value)

    def produce(self) -> None:
        """The producer: some records at once, the others while they are ingested."""
        self.send(self.chance.randrange(4, 14))
        for _ in range(self.chance.randrange(2, 6)):
            for _ in range(self.chance.randrange(1, 25)):
                self.turn()
            self.send(self.chance.randrange(1, 10))
        self.fed = True

    def ingest(self, engine: Engine, reader: int) -> None:
        """One reader of an engine, until its end."""
        try:
            engine.live(reader)
        finally:
            engine.left -= 1
            self.engines_left -= 1

    def read(self) -> None:
        """A reader that polls as long as engines run, and compares all it sees with what was."""
        latest = -1
        while self.engines_left > 0 and self.reads < READS_MAX:
            self.turn()
            latest = self.look(latest)

    def look(self, latest: int) -> int:
        """Read the table once; returns the number of the version that was seen.

        Args:
            latest: number of the version that this reader saw last.
        """
        watch = self.watch
        began = max(latest, len(watch.versions) - 1)
        replica = self.free_replica(write=False)
        try:
            found = replica.local.catalog.tables.load(SLOT)
        except NotFoundError:
            if began >= 0:
                watch.problems.append("a reader did not find the table, which is there")
            return latest
        except TarnError:
            return latest
        except Crash:
            replica.restart()
            replica.crashes += 1
            return latest
        self.reads += 1
        places = [
            n
            for n in range(max(0, began), len(watch.versions))
            if watch.versions[n].location == found.location
        ]
        if not places:
            watch.problems.append(f"a reader saw {found.location}, which was not current while it read")
            return latest
        if self.row_reads < ROW_READS_MAX and self.chance.random() < 0.1:
            self.row_reads += 1
            self.compare(TableState(found.parsed), watch.versions[places[0]].next)
        return places[0]

    def compare(self, state: TableState, ends: Mapping[int, int]) -> None:
        """Require that the rows of a version are exactly those that its offsets say: a prefix."""
        try:
            rows = self.lake.rows(state=state)
        except (UnavailableError, NotFoundError, NoSuchTableError):
            # Its snapshot expired meanwhile, and the reaper took its files: a clean error.
            return
        found = sorted((r["_tarn"]["partition"], r["_tarn"]["offset"]) for r in rows)
        wanted = sorted(
            (p, o)
            for p, records in self.ledger.items()
            for o, sent in records.items()
            if sent.id is not None and o < ends.get(p, 0) and (p, o) not in self.scenario.deleted
        )
        if not self.scenario.other_rows and [x for x in found if x not in self.scenario.deleted] != wanted:
            self.watch.problems.append(
                f"a reader saw rows {found}, and offsets {dict(ends)} promise {wanted}"
            )

    def keep(self) -> None:
        """The reaper, over and over."""
        store = FaultyStore(self.store, partial(self.plan, "reaper"))
        while self.engines_left > 0:
            reaper = self.reaper(store)
            try:
                while self.engines_left > 0:
                    self.reaped += reaper.run_once().deleted
                    self.passes += 1
                    self.sleep(0.7)
                    for _ in range(self.chance.randrange(20)):
                        self.turn()
            except Crash:
                continue
            except TarnError:
                self.turn()

    def reaper(self, store: Any) -> Reaper:
        """A reaper over this store."""
        return Reaper(
            store,
            manifest_audit,
            bucket=BUCKET,
            graces=GRACES,
            mono_ms=lambda: int(self.lake.clock.now_s * 1_000),
            wall_ms=self.now_ms,
            new_id=self.new_name,
        )

    # -- the run

    def run(self) -> None:
        """Run all actors to their end, then let everything heal."""
        with self.alone(), merging(self.chance.random() < 0.6 or self.scenario.merges):
            actors: dict[str, Callable[[], None]] = {"producer": self.produce, "reader": self.read}
            for engine in self.engines:
                actors |= {name: partial(self.ingest, engine, n) for n, name in enumerate(engine.actors)}
            if self.scenario.reaper or self.chance.random() < 0.3:
                actors["reaper"] = self.keep
            actors |= self.scenario.actors()
            self.engines_left = sum(len(engine.actors) for engine in self.engines)
            self.schedule.run(actors, crash_at={})
            self.heal()

    def heal(self) -> None:
        """End all faults, let late requests arrive, and ingest what is left as a new process."""
        self.healing = True
        self.scenario.ended()
        for replica in self.catalogs:
            replica.store.settle()
        for engine in self.engines:
            engine.store.settle()
        self.faults.land_all()
        for replica in self.catalogs:
            replica.restart()
        healer = Engine(self, "healer")
        healer.over = lambda: False
        for number in range(HEAL_ROUNDS_MAX):
            for reader in healer.readers():
                # Offsets without records are committed after some seconds only.
                self.lake.work(reader, turns=15 if number < 3 else 600)
            if self.caught_up():
                break
        for reader in healer.readers():
            self.lake.work(reader, turns=12)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Within the block all threads of the shipped code take turns, and its answers are checked."""
        waits = SimpleNamespace(Condition=lambda: Turned(self), Lock=threading.Lock)
        with ExitStack() as stack:
            for name in POOLS:
                stack.enter_context(patch(name, Alone))
            stack.enter_context(patch("tarn.ingest.bookkeeper.threading", waits))
            stack.enter_context(answers_watched(self))
            stack.enter_context(kept())
            yield


@contextmanager
def merging(on: bool) -> Iterator[None]:
    """Small files are merged after two of them within the block, or as rarely as usual."""
    names = ("EVERY_S", "FIRST_LEVEL_MIN", "NEXT_LEVEL_MIN")
    former = {name: getattr(small_files, name) for name in names}
    values = (0.2, 2, 3)
    try:
        for name, value in zip(names, values, strict=True):
            if on:
                setattr(small_files, name, value)
        yield
    finally:
        for name, number in former.items():
            setattr(small_files, name, number)
