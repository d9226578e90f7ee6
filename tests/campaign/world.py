"""A lake in one process: two catalog replicas over one store, engines, a reader and the reaper, step by step.

All actors are threads of one `Schedule`: one of them runs at a time, and a seed decides who is next at each
operation of the store, each request, each poll and each wait. Time passes only in here. The code that runs is
the shipped one; what stands for the outside is the store in memory, the topics in memory, and HTTP.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from tarn.adapters import manifest_audit
from tarn.adapters.files import FileIO
from tarn.adapters.table_files import IcebergFormat
from tarn.core import small_files
from tarn.core.errors import (
    NoSuchTableError,
    NotFoundError,
    OutcomeUnknownError,
    TarnError,
    UnavailableError,
)
from tarn.core.history import Retention
from tarn.core.naming import WarehouseLayout
from tarn.core.outcome import Conflict, Unknown
from tarn.core.spec import IngestorSpec
from tarn.core.table_catalog import CommitOutcome, TableName
from tarn.core.table_state import CommitRequest, Json, TableState
from tarn.ingest.context import IngestContext, StoppedError
from tarn.ingest.ingestor import Ingestor
from tarn.ingest.status import State, StatusRegistry
from tarn.keeper.reaper import Graces, Reaper
from tarn.testing.executors import SteppedExecutor
from tarn.testing.faulty_catalog import Faults, FaultyCatalog
from tarn.testing.memory_topic import HOLE, MemoryTopicClient, Topic
from tarn_catalog.operations.catalog import Catalog
from tarn_catalog.operations.identifiers import TableIdentifier
from tarn_catalog.state.register import RetryPolicy
from tarn_catalog.testing.faulty_store import Crash, Fault, FaultyStore, Op
from tests.campaign.scenario import Scenario
from tests.campaign.watch import Version, Watch
from tests.contract.catalog.schedule import Schedule
from tests.support.lake import BUCKET, Lake, LocalCatalog, foreign_snapshot, order, spec

TABLE = TableName(("bronze",), "orders")
SLOT = TableIdentifier.of(("bronze",), "orders")
STREAM = "orders"
CATALOGS = 2
TURNS_MAX = 60_000
ENGINE_TURNS_MAX = 260
READS_MAX = 400
ROW_READS_MAX = 6
STUCK_S = 300.0
HEAL_ROUNDS_MAX = 5
FOR_GOOD = ("OffsetGap", "SourceChanged")
"""Reasons that only a person ends: an engine that stopped for them is not followed for long."""
GRACES = Graces(metadata_ms=1_000, files_ms=2_000)

T = TypeVar("T")


class GroupOffsets(dict[int, int]):
    """Offsets of the consumer group; they may lag behind the table, and never lead."""

    def __init__(self, sim: Sim, engine: Engine) -> None:
        super().__init__()
        self._sim = sim
        self._engine = engine

    def update(self, positions: Mapping[int, int]) -> None:  # type: ignore[override]
        """Commit offsets of the group, as a reader of the topic does."""
        self._engine.require_alive()
        self._sim.turn()
        if not self._sim.healing:
            self._sim.scenario.grouped(self._engine)
        known = self._sim.watch.next
        lead = {p: o for p, o in positions.items() if o > known.get(p, 0)}
        if lead and not self._sim.watch.rewritten and self._sim.topic.topic_id == "id-1":
            self._sim.watch.problems.append(f"group offsets {lead} are ahead of the table's {known}")
        self._sim.group.update(positions)


class Chosen(Faults):
    """Faults of requests that the scenario chooses."""

    def __init__(self, sim: Sim) -> None:
        super().__init__(sim.chance, 0.0)
        self._sim = sim

    def pick(self) -> str:
        """See `Faults.pick`."""
        kind = "fine" if self._sim.healing else self._sim.scenario.request()
        self.counts[kind] = self.counts.get(kind, 0) + 1
        return kind


class Sender(FaultyCatalog):
    """The way of an engine's requests, where the scenario's faults of requests happen."""

    def __init__(self, sim: Sim, engine: Engine) -> None:
        super().__init__(Wire(sim, engine), sim.faults, foreign=lambda _: sim.scenario.foreign())
        self._sim = sim

    def commit(self, table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
        """See `TableCatalog.commit`."""
        self._sim.sending = (table, request)
        return super().commit(table, request, key=key)


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
        """Start it anew."""
        self.local = self._sim.local_on(self.store, self.skew_ms)


class Wire(LocalCatalog):
    """A client's way to the catalog: each request goes to one of the replicas, which may die over it."""

    def __init__(self, sim: Sim, engine: Engine) -> None:
        self._sim = sim
        self._engine = engine
        self.commits = 0

    def _ask(self, do: Callable[[LocalCatalog], T], *, write: bool) -> T:
        self._engine.require_alive()
        self._sim.turn()
        replica = self._sim.free_replica(write=write)
        try:
            return do(replica.local)
        except Crash as e:
            replica.restart()
            replica.crashes += 1
            text = f"{replica.name} ended before it answered"
            raise (OutcomeUnknownError(text) if write else UnavailableError(text)) from e
        finally:
            replica.busy = replica.busy and not write

    def load(self, table: TableName) -> TableState:
        """See `TableCatalog.load`."""
        return self._ask(lambda local: local.load(table), write=False)

    def create_namespace(self, namespace: tuple[str, ...]) -> None:
        """See `TableCatalog.create_namespace`."""
        self._setup(lambda local: local.create_namespace(namespace))

    def create(self, table: TableName, request: Json) -> TableState:
        """See `TableCatalog.create`."""
        return self._setup(lambda local: local.create(table, request))

    def _setup(self, do: Callable[[LocalCatalog], T]) -> T:
        try:
            return self._ask(do, write=True)
        except OutcomeUnknownError as e:
            # As the HTTP client does: the caller looks, and tries again.
            raise UnavailableError(e.message) from e

    def commit(self, table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
        """See `TableCatalog.commit`; what the catalog answers is compared with what happened."""
        self.commits += 1
        sim = self._sim
        listed = [u["snapshot"]["manifest-list"] for u in request.updates if u["action"] == "add-snapshot"]
        sim.watch.denied.difference_update(listed)
        sent = sim.sent.setdefault(key, (table, request))
        if sent[1].body() != request.body():
            sim.watch.problems.append(f"the idempotency key {key} was used for two requests")
        try:
            outcome = self._ask(lambda local: local.commit(table, request, key=key), write=True)
        except UnavailableError:
            self._denied(table, listed)
            raise
        except OutcomeUnknownError as e:
            outcome = Unknown(reason=e.message)
        if isinstance(outcome, Conflict):
            self._denied(table, listed)
        sim.scenario.replied(self._engine, table, request, outcome)
        return outcome

    def _denied(self, table: TableName, listed: list[str]) -> None:
        watch = self._sim.watch
        if table != TABLE:
            return
        watch.denied.update(listed)
        if watch.lists & set(listed):
            watch.problems.append(f"the catalog said that {listed} was not committed, and it was")


class Engine:
    """An ingest process that is started again whenever it dies."""

    def __init__(self, sim: Sim, name: str) -> None:
        self._sim = sim
        self.name = name
        self.dead = False
        self.turns = 0
        self.skew_ms = sim.scenario.skew_ms(sim.chance)
        self.store = FaultyStore(sim.store, self.plan, late_ops=sim.chance.randrange(1, 40))
        self.registry = StatusRegistry()
        self.over: Callable[[], bool] = sim.over

    def require_alive(self) -> None:
        """Raise Crash if the process is dead: nothing that is left of it may reach the outside."""
        if self.dead:
            raise Crash(self.name)

    def kill(self) -> None:
        """Let the process die here."""
        self.dead = True
        raise Crash(self.name)

    def plan(self, op: Op) -> Fault | None:
        """Fault plan of this process's store."""
        if self.dead:
            return Fault.CRASH
        fault = self._sim.plan(self.name, op)
        if fault in (Fault.CRASH, Fault.CRASH_DONE):
            self.dead = True
        return fault

    def stopping(self) -> bool:
        """Whether to stop; each turn of the loop asks."""
        self.require_alive()
        self.turns += 1
        status = self.registry.update(self._sim.spec.name)
        if status.state is State.STOPPED:
            self._sim.stops.add(status.reason)
            if status.reason in FOR_GOOD:
                self.turns += 20
            self._sim.why[status.reason] = status.message
        self._sim.turn()
        return self.over()

    def context(self) -> IngestContext:
        """Dependencies of this process."""
        sim, lake = self._sim, self._sim.lake

        def sleep(seconds: float) -> None:
            self.require_alive()
            lake.clock.now_s += seconds
            sim.turn()
            if self.over():
                raise StoppedError

        sources = MemoryTopicClient(*sim.topics.values())
        sources.topics = sim.topics
        sources.group_offsets = GroupOffsets(sim, self)
        sources.on_poll = lambda: sim.scenario.polled(self)
        objects = FileIO(self.store, bucket=BUCKET, sleep=sleep)
        base = lake.context(registry=self.registry)
        return replace(
            base,
            sources=sources,
            catalog=Sender(sim, self),
            tables=IcebergFormat(objects, new_name=sim.new_name),
            ports=replace(
                base.ports,
                sleep=sleep,
                now_ms=lambda: sim.now_ms() + self.skew_ms,
                new_key=lambda: sim.new_key(self.skew_ms),
                chance=random.Random(sim.chance.getrandbits(32)),
            ),
            stopping=self.stopping,
            executor=lambda: SteppedExecutor(lambda: sim.chance.random() < sim.at_once),
            new_id=sim.new_name,
        )

    def ingestor(self) -> Ingestor:
        """A new process's ingestor."""
        self.dead = False
        return Ingestor(self._sim.spec, self.context())

    def live(self) -> None:
        """Run until all is ingested, whatever it meets."""
        while not self.over():
            try:
                self.ingestor().run()
            except Crash:
                self._sim.restarts += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One record of the producer's ledger: its id, or None if it is to become a dead letter."""

    id: int | None


class Sim:
    """One run of one scenario.

    Args:
        scenario: the fault.
        seed: seed of everything that is drawn.
        replicas: processes that share the partitions of one ingest engine; only 1 until they are built.
    """

    def __init__(self, scenario: Scenario, seed: int, *, replicas: int = 1) -> None:
        if replicas != 1:
            raise ValueError("this version of ingest has one process per engine: replicas must be 1")
        self.scenario = scenario
        self.seed = seed
        self.chance = random.Random(f"{scenario.number}/{seed}")
        self.schedule = Schedule(self.chance.getrandbits(32), fault_share=0.0, stuck_s=STUCK_S)
        self.topic = Topic("orders", self.chance.choice((1, 2, 3)))
        self.topics = {"orders": self.topic}
        thin = scenario.thin if scenario.thin is not None else self.chance.random() < 0.5
        self.lake = Lake(self.topic, retention=Retention(newest=3, steps=(), total_min=0) if thin else None)
        self.lake.numbers = random.Random(self.chance.getrandbits(64))
        self.lake.decode_records = self.chance.choice((8_192, 1, 4))
        self.store = self.lake.store
        self.store._now_ms = self.now_ms
        self.spec: IngestorSpec = spec(format_version=scenario.format_version(self.chance))
        self.at_once = self.chance.choice((1.0, 0.3))
        self.watch = Watch(self.store, SLOT, STREAM)
        self.watch.moved = self._moved
        self.healing = False
        self.turns = self.restarts = self.reads = self.row_reads = self.reaped = 0
        self.stops: set[str] = set()
        self.why: dict[str, str] = {}
        self.passes = 0
        self.sending: tuple[TableName, CommitRequest] | None = None
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

    def turn(self) -> None:
        """Let the schedule decide who goes on."""
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
        who, self.schedule._who.name = getattr(self.schedule._who, "name", None), None
        try:
            yield
        finally:
            self.schedule._who.name = who

    # -- actors

    def over(self) -> bool:
        """Whether engines end: all is ingested, or they had their turns."""
        spent = all(engine.turns > ENGINE_TURNS_MAX for engine in self.engines)
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

    def ingest(self, engine: Engine) -> None:
        """One engine, until its end."""
        try:
            engine.live()
        finally:
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
        with merging(self.chance.random() < 0.6 or self.scenario.merges):
            actors: dict[str, Callable[[], None]] = {"producer": self.produce, "reader": self.read}
            for engine in self.engines:
                actors[engine.name] = partial(self.ingest, engine)
            if self.scenario.reaper or self.chance.random() < 0.3:
                actors["reaper"] = self.keep
            actors |= self.scenario.actors()
            self.engines_left = len(self.engines)
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
            # Offsets without records are committed after some seconds only.
            self.lake.work(healer.ingestor(), turns=15 if number < 3 else 600)
            if self.caught_up():
                break
        self.lake.work(healer.ingestor(), turns=12)


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
