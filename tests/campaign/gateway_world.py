"""The world of the simulation with gateways in place of ingest engines: clients, catalogs, a reader.

The shipped code runs: application, inbox, memory of keys, bookkeeper, catalog, the writer of `tarn.client`.
What is simulated beside the store, the way to the catalog and time: sockets and the framing of HTTP, and the
catalog's answer to who may write.
"""

from __future__ import annotations

import random
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from tarn.adapters.gateway_client import Durability
from tarn.core.errors import NotFoundError, TarnError, UnavailableError
from tarn.core.producers import next_sequence
from tarn.core.table_files import TableWriter
from tarn.core.table_state import TableState
from tarn.gateway.key_memory import KeyMemory
from tarn.gateway.logs import Logs
from tarn.gateway.rows_commit import RowsCommit, book_in
from tarn.ingest.batch_commit import offsets_in
from tarn.ingest.bookkeeper import Seat
from tarn.ingest.changes import Change, CommitResult, Done
from tarn.ingest.context import IngestContext
from tarn_catalog.testing.faulty_store import Crash, FaultyStore
from tests.campaign.gateway_clients import Answered, Client, Entry
from tests.campaign.gateway_process import Exchange, Gateway
from tests.campaign.gateway_scenario import ThroughGateway
from tests.campaign.kept import kept
from tests.campaign.waits import Flag, Held, Thread, Waits
from tests.campaign.world import STUCK_S, TURNS_MAX, Replica, Sim, merging
from tests.contract.catalog.schedule import POOLS, Alone

STREAM = "gateway"
CHECKS_MAX = 4
"""Answers after which the rows are read at once, in one run."""


class GatewaySim(Sim):
    """One run of one fault through gateways.

    Args:
        scenario: the fault.
        seed: seed of everything that is drawn.
        gateways: number of gateways.

    Attributes:
        entries: all writes, in the order in which they began.
        clients_left: clients that have not ended.
        engines: the gateways, the current process of each.
    """

    durability: Durability = "lake"
    scenario: ThroughGateway
    engines: list[Gateway]  # type: ignore[assignment]

    def __init__(self, scenario: ThroughGateway, seed: int, *, gateways: int) -> None:
        super().__init__(scenario, seed)
        self.gateways = gateways
        self.chance = random.Random(f"gateway/{scenario.number}/{seed}/{gateways}")
        self.schedule: Waits = self._new_schedule()
        self.watch.stream = STREAM
        self.entries: list[Entry] = []
        self.clients_left = 0
        self.owner: dict[str, Gateway] = {}
        self.processes: list[Gateway] = []
        self.checks = 0
        self.sent_out: list[tuple[Exchange, int]] = []
        self.lives = Counter[int]()
        self._drawn: dict[str, Any] = {}
        with self.undisturbed():
            self.lake.work(self.lake.ingestor(self.spec), turns=3)
        self.engines = []
        scenario.begin(self)

    def _new_schedule(self) -> Waits:
        return Waits(self.chance.getrandbits(32), self.lake.clock, stuck_s=STUCK_S)

    def draw(self, name: str, values: tuple[Any, ...]) -> Any:
        """A value that is drawn once for the run."""
        if name not in self._drawn:
            self._drawn[name] = self.chance.choice(values)
        return self._drawn[name]

    def problem(self, text: str) -> None:
        """Remember a broken rule."""
        self.watch.problems.append(text)

    # -- turns

    def turn(self) -> None:
        """See `Sim.turn`."""
        self.wait(lambda: True, None)

    def wait(self, ready: Callable[[], bool], until_s: float | None) -> None:
        """Let others go on until something holds, or the time has come."""
        if self._still == 0 and self.acting() is None and threading.get_ident() != self._thread:
            text = f"thread {threading.current_thread().name} runs outside the schedule"
            self.problem(text)
            raise AssertionError(text)
        self.turns += 1
        if self.turns > TURNS_MAX:
            raise AssertionError(f"no end after {TURNS_MAX} turns")
        if self.acting() is not None:
            self.schedule.wait(ready, until_s)
        elif until_s is not None:
            self.lake.clock.now_s = max(self.lake.clock.now_s, until_s)

    def wait_for(self, ready: Callable[[], bool], wait_s: float) -> None:
        """Let others go on until something holds, for so many seconds at most."""
        self.wait(ready, self.lake.clock.now_s + wait_s)

    def rest(self, seconds: float) -> None:
        """Let others go on for a while."""
        self.wait_for(lambda: False, seconds)

    def sleep(self, seconds: float) -> None:
        """See `Sim.sleep`."""
        self.rest(seconds)

    def free_replica(self, *, write: bool) -> Replica:
        """See `Sim.free_replica`; a request that has to wait takes no turns."""
        replica = self.chance.choice(self.catalogs)
        while write and replica.busy:
            self.wait(lambda: not all(one.busy for one in self.catalogs), None)
            replica = self.chance.choice([one for one in self.catalogs if not one.busy])
        replica.busy = replica.busy or write
        return replica

    def process(self) -> Gateway | None:
        """The gateway whose thread acts; None for anybody else."""
        return self.owner.get(self.acting() or "")

    def pause(self) -> None:
        """See `Sim.pause`."""
        (self.process() or self).turn()

    def block(self, ready: Callable[[], bool], wait_s: float | None = None) -> None:
        """Let a thread wait until something holds, or the time is over."""
        process = self.process()
        if process is not None:
            process.block(ready, wait_s)
        else:
            self.wait(ready, None if wait_s is None else self.lake.clock.now_s + wait_s)

    def start(self, name: str, act: Callable[[], None]) -> None:
        """Start a thread of the process that acts."""
        process = self.process()
        assert process is not None, f"thread {name} of no process"
        whole = f"{process.name}.{process.life}/{name}-{len(process.actors)}"
        process.actors.append(whole)
        self.owner[whole] = process

        def live() -> None:
            try:
                act()
            except Crash:
                process.dead = True
                raise

        self.schedule.add(whole, live)

    # -- gateways and clients

    def connect(self, exchange: Exchange, number: int, *, first: bool = True) -> bool:
        """Open a connection to a gateway and send a request; False if nobody listens.

        Args:
            exchange: the request.
            number: number of the gateway.
            first: whether a client sends it, not somebody who repeats what clients send.
        """
        self.turn()
        process = self.engines[number] if number < len(self.engines) else None
        if process is None or process.dead or not process.serving:
            return False
        process.take(exchange)
        if first:
            self.sent_out.append((exchange, number))
        return True

    def serve(self, number: int) -> None:
        """A gateway, started again whenever it dies."""
        while True:
            self.lives[number] += 1
            process = Gateway(self, number, self.lives[number])
            self.processes.append(process)
            self.engines[number] = self.owner[process.name] = process
            try:
                process.main()
                return
            except Crash:
                process.died()
                self.restarts += 1
            del self.owner[process.name]
            self.rest(self.chance.choice((0.01, 0.2, 2.0)))
            if self.clients_left == 0:
                return

    def over(self) -> bool:
        """See `Sim.over`."""
        return self.clients_left == 0

    def caught_up(self) -> bool:
        """See `Sim.caught_up`: whether all writes are answered."""
        return all(entry.answered for entry in self.entries)

    def _moved(self, _: Any) -> None:
        self.scenario.moved(self.watch.versions[-1])

    def answered(self, entry: Entry, answer: Answered) -> None:
        """A client has an answer: what it says can be read from now on."""
        if answer.snapshot_id is not None:
            seen = {version.head for version in self.watch.versions[: answer.versions]}
            if answer.snapshot_id not in seen:
                self.problem(f"{entry}: answered with snapshot {answer.snapshot_id}, which is not there")
        if self.checks < CHECKS_MAX and self.chance.random() < 0.3:
            self.checks += 1
            replica = self.free_replica(write=False)
            try:
                state = TableState(replica.local.catalog.tables.load(self.watch.slot).parsed)
            except TarnError:
                return
            except Crash:
                replica.restart()
                return
            found = Counter(row["id"] for row in self.lake.rows(state=state))
            self.reads += 1
            wrong = {one: found[one] for one in entry.good.values() if found[one] != 1}
            if wrong:
                self.problem(f"{entry}: answered, and the table has {wrong}")

    def read(self) -> None:
        """See `Sim.read`; with pauses, as clients make them."""
        latest = -1
        while self.engines_left > 0:
            self.rest(self.chance.random() * 0.1)
            latest = self.look(latest)

    def keep(self) -> None:
        """See `Sim.keep`; it rests after each pass, also after one that failed."""
        store = FaultyStore(self.store, partial(self.plan, "reaper"))
        reaper = self.reaper(store)
        while self.engines_left > 0:
            try:
                self.reaped += reaper.run_once().deleted
                self.passes += 1
            except Crash:
                reaper = self.reaper(store)
            except TarnError:
                pass
            self.rest(0.2 + self.chance.random())

    def compare(self, state: TableState, ends: Mapping[int, int]) -> None:
        """Require of a version what a reader may rely on: each row once, each write whole."""
        try:
            rows = self.lake.rows(state=state)
        except (UnavailableError, NotFoundError):
            return
        self.problems_of(rows, ends)

    def problems_of(self, rows: list[dict[str, Any]], ends: Mapping[int, int]) -> None:
        """See `compare`."""
        found = Counter(row["id"] for row in rows)
        twice = sorted(one for one, count in found.items() if count > 1)
        if twice:
            self.problem(f"a reader saw rows {twice} more than once")
        for entry in self.entries:
            counts = {min(found[one], 1) for one in entry.good.values()}
            if len(counts) > 1:
                self.problem(f"a reader saw part of {entry}")
        places = Counter((row["_tarn"]["partition"], row["_tarn"]["offset"]) for row in rows)
        wrong = sorted(p for p, count in places.items() if count > 1 or p[1] >= ends.get(p[0], 0))
        if wrong:
            self.problem(f"rows at {wrong} are there twice, or beyond the table's offsets {dict(ends)}")

    def sequences(self, rows: list[dict[str, Any]]) -> None:
        """Each producer's rows are where it numbered them, and the table wants the next one."""
        state = self.lake.table()
        book, offsets = book_in(state), offsets_in(state, STREAM)
        places: dict[int, set[int]] = defaultdict(set)
        for row in rows:
            trace = row["_tarn"]
            assert isinstance(trace, dict)
            places[trace["partition"]].add(trace["offset"])
        known = offsets.next if offsets is not None else {}
        for client in sorted({entry.client for entry in self.entries if entry.kind == "numbered"}):
            own = [entry for entry in self.entries if entry.client == client]
            slot = book.slot_of(f"{client}/{client}", known)
            if slot is None:
                self.problem(f"the table does not know producer {client}")
                continue
            wanted = {entry.sequence + at for entry in own for at in entry.good}
            end = own[-1].sequence + len(own[-1].rows)
            there = {at - slot.first for at in places[slot.number] if at >= slot.first}
            following = next_sequence(book, offsets, f"{client}/{client}")
            if there != wanted or following != end:
                self.problem(
                    f"{client}: rows {sorted(there)}, next {following}; it sent {sorted(wanted)}, next {end}"
                )

    # -- the run

    def run(self) -> None:
        """Run all actors to their end, then let everything heal, and repeat what can be repeated."""
        merges = self.chance.random() < 0.6 or self.scenario.merges
        with self.alone(), merging(merges), self._small(merges):
            clients = [
                Client(self, f"client-{n}", self.scenario.kinds[n % len(self.scenario.kinds)])
                for n in range(self.chance.randrange(3, 6))
            ]
            actors: dict[str, Callable[[], None]] = {one.name: one.live for one in clients}
            actors["reader"] = self.read
            if self.scenario.reaper or self.chance.random() < 0.3:
                actors["reaper"] = self.keep
            actors |= self.scenario.actors() | self.more_actors()
            self._play(actors, len(clients))
            self._heal()
            self._play({"auditor": partial(self._repeat_all, clients)}, 1)
        self.landed()
        self.fed = True

    def more_actors(self) -> dict[str, Callable[[], None]]:
        """Further actors, whatever the fault is."""
        return {}

    def landed(self) -> None:
        """All clients have their answers: what these promise for later is done."""

    def logs_of(self, context: IngestContext) -> Logs | None:
        """The logs of a gateway; None: it has no Kafka."""
        return None

    def _play(self, actors: dict[str, Callable[[], None]], clients: int) -> None:
        self.clients_left = self.engines_left = clients
        self.engines = []
        self.engines += [None] * self.gateways  # type: ignore[list-item]
        actors = {f"gateway-{n}": partial(self.serve, n) for n in range(self.gateways)} | actors
        self.schedule.run({**actors, "end": self._end})

    def _end(self) -> None:
        """Stop the gateways once all clients have ended."""
        self.wait(lambda: self.clients_left == 0, None)
        for process in self.engines:
            if process is not None:
                process.stop()

    def _heal(self) -> None:
        self.healing = True
        self.scenario.ended()
        for replica in self.catalogs:
            replica.store.settle()
        for process in self.processes:
            process.store.settle()
        self.faults.land_all()
        for replica in self.catalogs:
            replica.restart()
        self.schedule = self._new_schedule()

    def _repeat_all(self, clients: list[Client]) -> None:
        """Repeat each write that can be repeated, through gateways that began after all faults."""
        by_name = {one.name: one for one in clients}
        try:
            for entry in self.entries:
                if entry.kind != "plain":
                    by_name[entry.client].patience_s = 60.0
                    by_name[entry.client].write(entry, repeats=False)
        finally:
            self.clients_left = self.engines_left = 0

    @contextmanager
    def alone(self) -> Iterator[None]:
        """See `Sim.alone`."""
        locks = SimpleNamespace(Condition=lambda: Held(self), Lock=threading.Lock)
        threads = SimpleNamespace(
            Thread=partial(Thread, self), Lock=lambda: Held(self), Event=lambda: Flag(self)
        )
        clock = SimpleNamespace(monotonic=lambda: self.lake.clock.now_s, time_ns=self._wall_ns)

        async def inline(act: Callable[..., Any], *arguments: Any) -> Any:
            self.pause()
            return act(*arguments)

        with ExitStack() as stack:
            for name in POOLS:
                stack.enter_context(patch(name, Alone))
            for module in ("tarn.ingest.bookkeeper", "tarn.gateway.inbox", "tarn.gateway.room"):
                stack.enter_context(patch(f"{module}.threading", locks))
            for module in ("tables", "inboxes"):
                stack.enter_context(patch(f"tarn.gateway.{module}.threading", threads))
            for module in ("app", "inbox", "tables"):
                stack.enter_context(patch(f"tarn.gateway.{module}.log.exception", self._broke))
            stack.enter_context(patch("tarn.gateway.app.time", clock))
            stack.enter_context(patch("anyio.to_thread.run_sync", inline))
            stack.enter_context(commits_watched(self))
            stack.enter_context(kept())
            yield

    def _broke(self, event: str, **values: Any) -> None:
        """The product logged a fault of its own code; nobody reads the log of a process that is dead.

        There its threads end one after the other, and clean up, and a request that was on its way is
        answered to one of them.
        """
        process = self.process()
        if process is not None and process.dead:
            return
        self.problem(f"logged as an error: {event} {values}: {sys.exc_info()[1]!r}")

    def _wall_ns(self) -> int:
        process = self.process()
        return (self.now_ms() + (process.skew_ms if process is not None else 0)) * 1_000_000

    @contextmanager
    def _small(self, merges: bool) -> Iterator[None]:
        """Within the block merges are looked for often, and keys become segments early, in some runs."""
        inline_max = self.chance.choice((500, 3))
        with ExitStack() as stack:
            if merges:
                stack.enter_context(patch("tarn.gateway.tables.MERGE_LOOK_S", 0.1))
            if self.chance.random() < 0.5:
                # The next file is made while a commit is under way, as with many bytes.
                stack.enter_context(patch("tarn.gateway.inbox.TOGETHER_BYTES", 1))
            stack.enter_context(patch.dict(KeyMemory.__init__.__kwdefaults__, {"inline_max": inline_max}))
            yield


@contextmanager
def commits_watched(sim: GatewaySim) -> Iterator[None]:
    """Within the block, each answer to a commit of rows is compared with what the table has."""
    commit = Seat.commit

    def watched(seat: Seat, change: Change, writer: TableWriter) -> CommitResult:
        result = commit(seat, change, writer)
        if isinstance(change, RowsCommit):
            done = change.commit_id in sim.watch.committed
            if isinstance(result, Done) and result.by_us and not done:
                sim.problem(f"commit {change.commit_id} is done, and not in the table")
            if not isinstance(result, Done):
                sim.watch.given_up.add(change.commit_id)
                if done:
                    sim.problem(f"commit {change.commit_id} was given up, and is in the table")
        return result

    with patch.object(Seat, "commit", watched):
        yield
