"""A gateway of the simulation: the shipped application on an event loop that takes turns, and its threads.

Requests arrive as a server hands them to the application; sockets and the framing of HTTP are left out. The
process dies as a whole: each of its threads ends at its next turn, and no answer leaves it any more.
"""

from __future__ import annotations

import asyncio
import inspect
import random
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from inspect import CORO_CREATED
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from tarn.adapters.files import FileIO
from tarn.adapters.table_files import IcebergFormat
from tarn.core.errors import ForbiddenError, UnauthenticatedError
from tarn.core.hosts import Hosts
from tarn.core.table_catalog import TableName
from tarn.gateway.access import Gate
from tarn.gateway.app import App, AppLimits
from tarn.gateway.memory import Memory
from tarn.gateway.tables import Tables
from tarn.gateway.takes import InboxLimits
from tarn.ingest.context import IngestContext, StoppedError
from tarn_catalog.testing.faulty_store import FaultyStore
from tests.campaign.engine import Engine, Sender, Wire, Writers
from tests.support.lake import BUCKET, LocalCatalog

if TYPE_CHECKING:
    from tests.campaign.gateway_clients import Entry
    from tests.campaign.gateway_world import GatewaySim

DRAIN_S = 10.0

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Exchange:
    """A request to a gateway, and its answer once there is one.

    Attributes:
        entry: the write that it carries.
        headers: its headers, by lower-case name.
        body: its body.
        path: its path.
        status: HTTP status of the answer; None while there is none.
        answer: body of the answer.
        fields: headers of the answer.
        cut: whether the connection broke.
    """

    entry: Entry
    path: str
    headers: Mapping[str, str]
    body: bytes
    status: int | None = None
    answer: bytes = b""
    fields: dict[str, str] = field(default_factory=dict)
    cut: bool = False

    @property
    def over(self) -> bool:
        """Whether the client has an answer, or none to wait for."""
        return self.status is not None or self.cut


class Loop(asyncio.BaseEventLoop):
    """An event loop without sockets, whose waits are turns and whose time is the simulation's.

    Args:
        process: the process whose main thread runs it.
    """

    def __init__(self, process: Gateway) -> None:
        super().__init__()
        self._process = process
        self._woken = False
        self._selector = self

    def time(self) -> float:
        """The simulation's clock."""
        return self._process.now_s

    def select(self, timeout: float | None) -> list[object]:
        """Let others go on until a timer is due, a thread calls, or a request arrives."""
        process = self._process
        if timeout is None or timeout > 0:
            process.block(lambda: self._woken or process.wanted(), timeout)
        else:
            process.turn()
        self._woken = False
        process.take_arrived(self)
        return []

    def _process_events(self, events: list[object]) -> None:
        pass

    def _write_to_self(self) -> None:
        self._woken = True


class Committing(Executor):
    """Runs each commit on a thread of its own, one after the other."""

    def __init__(self, sim: GatewaySim) -> None:
        self._sim = sim
        self._last: Awaited[Any] | None = None

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """See `Executor.submit`."""
        assert self._last is None or self._last.done()
        made = self._last = Awaited[T](self._sim)

        def work() -> None:
            try:
                made.set_result(fn(*args, **kwargs))
            except BaseException as e:
                made.set_exception(e)
                raise

        self._sim.start("commit", work)
        return made

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See `Executor.shutdown`."""
        if self._last is not None:
            self._sim.block(self._last.done)


class Awaited(Future[T]):
    """A future whose wait is a turn."""

    def __init__(self, sim: GatewaySim) -> None:
        super().__init__()
        self._sim = sim

    def result(self, timeout: float | None = None) -> T:
        """See `Future.result`."""
        if not self.done():
            self._sim.block(self.done)
        return super().result(0)


class GatewayWire(Wire):
    """A gateway's way to the catalog, which may deny it."""

    def _ask(self, do: Callable[[LocalCatalog], T], *, write: bool) -> T:
        if not self._sim.healing and self._sim.scenario.denies(self._engine):
            raise ForbiddenError("the catalog does not let the gateway in: a fault on purpose")
        return super()._ask(do, write=write)


class GatewaySender(Sender):
    """The way of a gateway's requests, where the scenario's faults of requests happen."""

    def __init__(self, sim: GatewaySim, process: Gateway) -> None:
        super().__init__(sim, process)
        self._inner = GatewayWire(sim, process)


class Rights:
    """The catalog's answer to who may write: whoever has a token that has not ended.

    Args:
        sim: the run.
    """

    def __init__(self, sim: GatewaySim) -> None:
        self._sim = sim

    def writer(self, token: str, table: TableName) -> str:
        """See `tarn.gateway.access.Rights`."""
        client, _, until_s = token.partition("/")
        if float(until_s) < self._sim.lake.clock.now_s:
            raise UnauthenticatedError(f"the token of {client} has ended")
        return client


class Gateway(Engine):
    """One gateway process, from its start to its death.

    Args:
        sim: the run.
        number: number of the gateway.
        life: how many processes it had before.

    Attributes:
        open: requests that were handed to the application and not answered.
        serving: whether it takes requests.
        doom: turns until it dies; None if it does not.
        ended: whether its time to end is over: commits that wait give up.
    """

    def __init__(self, sim: GatewaySim, number: int, life: int) -> None:
        self._sim: GatewaySim = sim  # type: ignore[assignment]
        self.number = number
        self.life = life
        self.name = f"gateway-{number}"
        self.actors = [self.name]
        self.dead = False
        self.frozen: str | None = None
        self.turns = 0
        self.left = 0
        self.skew_ms = sim.scenario.gateway_skew_ms(sim.chance)
        self.store = FaultyStore(sim.store, self.plan, late_ops=sim.chance.randrange(1, 40))
        self.over: Callable[[], bool] = lambda: False
        self.open: list[Exchange] = []
        self.serving = False
        self._stop = self.ended = False
        self.doom: int | None = None
        self._arrived: deque[Exchange] = deque()

    # -- life and death

    @property
    def now_s(self) -> float:
        """The simulation's clock."""
        return self._sim.lake.clock.now_s

    def turn(self) -> None:
        """Let others go on; does not return to a thread whose process died, or stands still, meanwhile."""
        self.require_alive()
        self._sim.turn()
        self._awake()

    def block(self, ready: Callable[[], bool], wait_s: float | None = None) -> None:
        """Let others go on until something holds, or the time is over; likewise."""
        self.require_alive()
        until_s = None if wait_s is None else self.now_s + wait_s
        self._sim.wait(lambda: self.dead or ready(), until_s)
        self._awake()

    def _awake(self) -> None:
        self.require_alive()
        who = self._sim.acting()
        if who not in self.actors:
            return
        if self.frozen not in (None, who):
            self._sim.wait(lambda: self.dead or self.frozen in (None, who), None)
            self.require_alive()
        if self.doom is not None:
            self.doom -= 1
            if self.doom < 0:
                self.doom = None
                self._sim.scenario.doomed(self)
                self.kill()

    def died(self) -> None:
        """Break all connections: nobody gets an answer any more."""
        self.dead, self.serving = True, False
        for exchange in (*self.open, *self._arrived):
            exchange.cut = True

    # -- requests

    def take(self, exchange: Exchange) -> None:
        """A request arrives; it is handed to the application when the process has its turn."""
        self._arrived.append(exchange)

    def wanted(self) -> bool:
        """Whether the main thread has something to do beside its timers."""
        return bool(self._arrived) or self._stop

    def take_arrived(self, loop: Loop) -> None:
        """Hand what arrived to the application."""
        while self._arrived:
            exchange = self._arrived.popleft()
            self.open.append(exchange)
            loop.create_task(self._handle(exchange))
        if self._stop:
            loop.stop()

    async def _handle(self, exchange: Exchange) -> None:
        path = exchange.path.encode()
        scope = {
            "type": "http",
            "method": "POST",
            "path": exchange.path.partition("?")[0],
            "raw_path": path.partition(b"?")[0],
            "query_string": path.partition(b"?")[2],
            "headers": [
                (b"host", b"gateway"),
                (b"content-length", b"%d" % len(exchange.body)),
                *((name.encode(), value.encode()) for name, value in exchange.headers.items()),
            ],
            "state": {},
        }
        begun: dict[str, Any] = {}

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": exchange.body, "more_body": False}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                begun.update(message)
                return
            self._sim.scenario.answering(self, exchange, begun["status"])
            self.turn()
            self.open.remove(exchange)
            exchange.answer = message["body"]
            exchange.fields = {name.decode(): value.decode() for name, value in begun["headers"]}
            exchange.status = begun["status"]

        await self._app(scope, receive, send)

    # -- the process

    def main(self) -> None:
        """Serve until it dies, or is to stop."""
        sim = self._sim
        context, files = self._context()
        limits = InboxLimits(
            rows_max=sim.draw("rows_max", (100_000, 100_000, 3)),
            waiting_writes_max=sim.draw("waiting_writes_max", (10_000, 10_000, 1)),
        )
        self.tables = Tables(context, files, limits=limits, clock=sim.lake.clock)
        logs = sim.logs_of(context)
        self._app = App(
            Gate(Rights(sim), clock=sim.lake.clock),
            self.tables,
            Memory(64 << 20, wait_s_max=5),
            logs=logs,
            hosts=Hosts.of("gateway"),
            limits=AppLimits(answer_s_max=sim.draw("answer_s_max", (30.0, 3.0))),
        ).asgi()
        loop = Loop(self)
        loop.set_exception_handler(lambda _loop, _context: None)  # deaths, which end the tasks too
        try:
            self.serving = True
            loop.run_forever()
            self.serving = False
            self.tables.close(wait_s=DRAIN_S)
            if logs is not None:
                logs.close(wait_s=DRAIN_S)
            self.ended = True
        finally:
            self.died()
            for task in asyncio.all_tasks(loop):
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                coroutine = task.get_coro()
                if inspect.iscoroutine(coroutine) and inspect.getcoroutinestate(coroutine) == CORO_CREATED:
                    coroutine.close()
            loop.close()

    def stop(self) -> None:
        """Ask it to stop, as SIGTERM does."""
        self._stop = True

    def _context(self) -> tuple[IngestContext, FileIO]:
        sim, lake = self._sim, self._sim.lake

        def sleep(seconds: float) -> None:
            self.block(lambda: False, seconds)
            if self.ended:
                raise StoppedError

        files = FileIO(self.store, bucket=BUCKET, sleep=sleep, workers=Writers(sim))
        base = lake.context()
        return replace(
            base,
            catalog=GatewaySender(sim, self),
            tables=IcebergFormat(files, new_name=sim.new_name),
            ports=replace(
                base.ports,
                sleep=sleep,
                now_ms=lambda: sim.now_ms() + self.skew_ms,
                new_key=lambda: sim.new_key(self.skew_ms),
                chance=random.Random(sim.chance.getrandbits(32)),
            ),
            executor=lambda: Committing(sim),
            new_id=sim.new_name,
        ), files
