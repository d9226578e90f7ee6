"""An ingest process of the simulation: its readers, its way to the catalog, and its end.

The readers of a process are threads: they share a bookkeeper per table, and die together. Each is an actor of
the schedule, and takes turns at every operation of the store, each request, poll and wait, and at the lock of
the bookkeeper.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from tarn.adapters.files import FileIO
from tarn.adapters.table_files import IcebergFormat
from tarn.core.errors import OutcomeUnknownError, UnavailableError
from tarn.core.outcome import Conflict, Unknown
from tarn.core.table_catalog import CommitOutcome, TableName
from tarn.core.table_state import CommitRequest, Json, TableState
from tarn.ingest.context import IngestContext, StoppedError
from tarn.ingest.ingestor import Ingestor
from tarn.ingest.replicas import Replica as Reader
from tarn.ingest.status import State, StatusRegistry
from tarn.testing.executors import SteppedExecutor
from tarn.testing.faulty_catalog import Faults, FaultyCatalog
from tarn.testing.memory_topic import MemoryTopicClient
from tarn_catalog.testing.faulty_store import Crash, Fault, FaultyStore, Op
from tests.campaign.wakes import Wakes
from tests.support.lake import BUCKET, LocalCatalog

if TYPE_CHECKING:
    from tests.campaign.world import Sim

TABLE = TableName(("bronze",), "orders")
FOR_GOOD = ("OffsetGap", "SourceChanged")
"""Reasons that only a person ends: an engine that stopped for them is not followed for long."""
LOCK_TURN_SHARE = 0.25
WAIT_STEP_S = 0.001
AT_ONCE_SHARE = 0.5
"""Share of the files that are written before whoever began them goes on."""

P = ParamSpec("P")
T = TypeVar("T")


class Turned(Wakes):
    """A condition, as `threading.Condition`, whose lock and waits are turns of the schedule.

    Args:
        sim: the run.
    """

    def __init__(self, sim: Sim) -> None:
        self._sim = sim
        self._owner: int | None = None
        self._depth = 0
        self._wakes = 0

    def __enter__(self) -> Turned:
        """Take the lock; others may go on before, as before any instruction of a thread."""
        me = threading.get_ident()
        if self._owner != me:
            if self._sim.replicas > 1 and self._sim.chance.random() < LOCK_TURN_SHARE:
                self._sim.pause()
            self._take()
        self._depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        """Release the lock; not if the process died over a wait."""
        if self._owner == threading.get_ident():
            self._depth -= 1
            if self._depth == 0:
                self._owner = None

    def _take(self) -> None:
        while self._owner is not None:
            self._sim.pause()
        self._owner = threading.get_ident()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for a notification; time passes only for a wait that may end by it."""
        sim, wakes, depth = self._sim, self._wakes, self._depth
        clock = sim.lake.clock
        until_s = None if timeout is None else clock.now_s + timeout
        if until_s is None and sim.acting() is None:
            raise AssertionError("a wait that nobody can end")
        self._owner, self._depth = None, 0
        while self._wakes == wakes and (until_s is None or clock.now_s < until_s):
            clock.now_s += 0.0 if until_s is None else WAIT_STEP_S
            sim.pause()
        self._take()
        self._depth = depth
        return self._wakes != wakes


class Writers(Executor):
    """Runs each write of a file at once, or when somebody waits for it, as the seed decides.

    Args:
        sim: the run.
    """

    def __init__(self, sim: Sim) -> None:
        self._sim = sim

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """See `Executor.submit`."""
        return SteppedExecutor(lambda: self._sim.chance.random() < AT_ONCE_SHARE).submit(fn, *args, **kwargs)


class GroupOffsets(dict[int, int]):
    """Offsets of the consumer group; they may lag behind the table, and never lead."""

    def __init__(self, sim: Sim, engine: Engine) -> None:
        super().__init__()
        self._sim = sim
        self._engine = engine

    def update(self, positions: Mapping[int, int]) -> None:  # type: ignore[override]
        """Commit offsets of the group, as a reader of the topic does."""
        self._engine.turn()
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
        self._sim.sendings[self._sim.acting()] = (table, request)
        return super().commit(table, request, key=key)


class Wire(LocalCatalog):
    """A client's way to the catalog: each request goes to one of the replicas, which may die over it.

    A request that is on its way arrives, also if the process that sent it died meanwhile.
    """

    def __init__(self, sim: Sim, engine: Engine) -> None:
        self._sim = sim
        self._engine = engine
        self.commits = 0

    def _ask(self, do: Callable[[LocalCatalog], T], *, write: bool) -> T:
        self._engine.turn()
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
    """An ingest process that is started again whenever it dies.

    Args:
        sim: the run.
        name: name of the process.

    Attributes:
        actors: names of its readers' threads.
        dead: whether the process died; its threads end at their next turn.
        frozen: the thread over which the process stands still; None if it does not.
        turns: turns of the loops of all readers.
        left: readers that have not ended.
    """

    def __init__(self, sim: Sim, name: str) -> None:
        self._sim = sim
        self.name = name
        count = sim.replicas
        self.actors = [name] if count == 1 else [f"{name}/{n}" for n in range(count)]
        self.dead = False
        self.frozen: str | None = None
        self.turns = 0
        self.left = len(self.actors)
        self.skew_ms = sim.scenario.skew_ms(sim.chance)
        self.store = FaultyStore(sim.store, self.plan, late_ops=sim.chance.randrange(1, 40))
        self.registry = StatusRegistry()
        self.over: Callable[[], bool] = sim.over
        self._crew: list[Ingestor] = []
        self._running: set[int] = set()

    # -- life and death

    def require_alive(self) -> None:
        """Raise Crash if this is a thread of a dead process: nothing of it may reach the outside any more."""
        if self.dead and self._sim.acting() in self.actors:
            raise Crash(self.name)

    def kill(self) -> None:
        """Let the process die here."""
        self.dead = True
        self.require_alive()

    def turn(self) -> None:
        """Let others go on; does not return to a thread whose process died, or stands still, meanwhile."""
        if self.dead:
            self.require_alive()
        self._sim.turn()
        if self.dead:
            self.require_alive()
        if self.frozen is None:
            return
        who = self._sim.acting()
        while self.frozen not in (None, who) and who in self.actors:
            self._sim.turn()
            self.require_alive()

    def plan(self, op: Op) -> Fault | None:
        """Fault plan of this process's store."""
        self.turn()
        fault = None if self._sim.healing else self._sim.scenario.op(self.name, op)
        if fault in (Fault.CRASH, Fault.CRASH_DONE):
            self.dead = True
        elif self.dead:
            return Fault.CRASH
        return fault

    def stopping(self, reader: str) -> bool:
        """Whether to stop; each turn of a reader's loop asks."""
        self.require_alive()
        self.turns += 1
        status = self.registry.update(reader)
        if status.state is State.STOPPED:
            self._sim.stops.add(status.reason)
            if status.reason in FOR_GOOD:
                self.turns += 20
            self._sim.why[status.reason] = status.message
        self.turn()
        return self.over()

    # -- the process

    def context(self) -> IngestContext:
        """Dependencies of this process."""
        sim, lake = self._sim, self._sim.lake

        def sleep(seconds: float) -> None:
            self.require_alive()
            lake.clock.now_s += seconds
            self.turn()
            if self.over():
                raise StoppedError

        sources = self._sources = MemoryTopicClient(*sim.topics.values())
        sources.topics = sim.topics
        sources.group_offsets = GroupOffsets(sim, self)
        sources.on_poll = lambda: sim.scenario.polled(self)
        objects = FileIO(self.store, bucket=BUCKET, sleep=sleep, workers=Writers(sim))
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
            executor=lambda: SteppedExecutor(lambda: sim.chance.random() < sim.at_once),
            new_id=sim.new_name,
        )

    def reading(self) -> dict[int, int]:
        """Next offset of each partition that a reader of this process was pointed at."""
        return {p: at for reader in self._sources.readers for p, at in reader.positions.items()}

    def readers(self) -> list[Ingestor]:
        """The readers of a new process, as the service makes them."""
        self.dead = False
        spec, shared = self._sim.spec, self.context()
        count = spec.spec.replicas
        return [
            Ingestor(
                spec,
                replace(
                    shared,
                    stopping=partial(self.stopping, Reader(index=n, count=count).name(spec.name)),
                ),
                replica=n,
            )
            for n in range(count)
        ]

    def live(self, number: int) -> None:
        """Run one reader until all is ingested, whatever its process meets.

        Args:
            number: number of the reader, from 0.
        """
        while not self.over():
            reader = self._joined(number)
            try:
                reader.run()
            except Crash:
                # The threads of a process end at once; what is left of the others ends at their next turn.
                self.dead = True
            finally:
                self._running.discard(number)

    def _joined(self, number: int) -> Ingestor:
        """The reader of this number in the current process, or in a new one once the dead one is gone."""
        while self.dead and self._running:
            self._sim.turn()
        if self.dead or not self._crew:
            self._sim.restarts += bool(self._crew)
            self._crew = self.readers()
        self._running.add(number)
        return self._crew[number]
