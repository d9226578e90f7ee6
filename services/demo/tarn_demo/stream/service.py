"""The process: settings, wiring, run, stop."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any, NoReturn

import structlog
from faust.exceptions import ProducerSendError
from faust.types import TP

from tarn.adapters.connections import Visitors, door
from tarn.adapters.http_server import bound, listener
from tarn.adapters.logging import configure
from tarn.core import exit_codes
from tarn.core.errors import ForbiddenError, TarnError, UnauthenticatedError, UnavailableError
from tarn_demo.flights.data_files import folder
from tarn_demo.stream import partials
from tarn_demo.stream.faust_app import make_app
from tarn_demo.stream.kafka_reads import KafkaError, Reader
from tarn_demo.stream.kafka_topics import Source, prepare
from tarn_demo.stream.merge import Merge
from tarn_demo.stream.names import read_names
from tarn_demo.stream.progress import SILENT_S_MAX, Progress
from tarn_demo.stream.rows import Rows
from tarn_demo.stream.settings import Settings
from tarn_demo.stream.steps import MergeStep, Outgoing, Step, WindowsStep
from tarn_demo.stream.tasks import Place, Tasks
from tarn_demo.stream.topics import ALERTS, EVENTS, PARTIALS
from tarn_demo.stream.view import ALERTS_MAX, View
from tarn_demo.stream.web import Pages
from tarn_demo.stream.windows import PartitionWindows

PREPARE_WAIT_S_MAX = 10.0
LOOK_EVERY_S = 5.0
STANDING_TIMES_MAX = 3
"""After so many times as long as makes it unhealthy, the process ends and begins again."""
STOP_WAIT_S = 8.0
HEAD_BYTES_MAX = 16 << 10
REQUEST_WAIT_S = 5.0
CONNECTIONS_MAX = 128
PARTS_BACK = 512
"""Messages of partials that are read again for the view."""
FAUST_DIR = "/tmp/tarn-stream"  # noqa: S108 - the container's own tmpfs; nothing is kept there
NOT_YET = (UnavailableError, UnauthenticatedError, ForbiddenError)
"""What keeps the topics from being looked at, until somebody mends it."""
LIBRARIES = (
    "aiokafka",
    "faust",
    "mode",
    "kafka",
    "tarn_demo.stream.faust_app",
)  # the last is Faust's consumer

log = structlog.get_logger()


class Service:
    """What runs in the process.

    Args:
        settings: the settings.
        names: airport code to name.
    """

    def __init__(self, settings: Settings, names: Mapping[str, str]) -> None:
        self._settings = settings
        self._rules, self._limits = settings.rules(), settings.limits()
        self._names = names
        self._view = View(self._rules, 1, names)
        self._waits_for: str | None = "the service starts"
        self._progress = Progress(time.monotonic())
        self._tasks: Tasks | None = None
        self._failure: asyncio.Future[BaseException] | None = None
        self._told: dict[int, int] = {}

    def view(self) -> View:
        """What is shown."""
        return self._view

    def faults(self) -> list[str]:
        """What keeps the service from working, one sentence each."""
        if self._waits_for is not None:
            return [self._waits_for]
        return self._progress.faults(time.monotonic())

    async def run(self, stop: asyncio.Event) -> int:
        """Work until asked to stop; returns the exit code."""
        login = self._settings.kafka_login()
        source = await self._prepared(stop)
        if source is None:
            return exit_codes.OK
        self._failure = asyncio.get_running_loop().create_future()
        bootstrap = self._settings.kafka_bootstrap
        states, follower = (Reader(bootstrap, login, f"tarn-stream-{use}") for use in ("states", "view"))
        try:
            await states.start()
            await follower.start()
        except KafkaError as e:
            log.warning("stream cannot go on", error=type(e).__name__, reason=str(e)[:500])
            return exit_codes.UNAVAILABLE
        self._view = View(self._rules, source.partitions, self._names)
        kafka = _Kafka(states)
        tasks = self._tasks = Tasks(
            source.identity,
            lambda place, state: self._step(source, place, state),
            kafka,
            monotonic=time.monotonic,
        )
        app = make_app(
            bootstrap,
            login,
            lambda: tasks,
            failed=self._failed,
            tell=lambda: self._tell(source, kafka),
            data_dir=FAUST_DIR,
        )
        kafka.app = app
        beside = [
            asyncio.create_task(self._follow(follower, source)),
            asyncio.create_task(self._look(follower, source)),
        ]
        for one in beside:
            one.add_done_callback(self._ended)
        self._waits_for, self._progress = None, Progress(time.monotonic())
        log.info("stream starts", identity=source.identity, partitions=source.partitions)
        try:
            return await self._until_stopped(app, tasks, stop)
        finally:
            for one in beside:
                one.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            for reader in (states, follower):
                with contextlib.suppress(TimeoutError, KafkaError):
                    await asyncio.wait_for(reader.stop(), STOP_WAIT_S / 4)

    async def _until_stopped(self, app: Any, tasks: Tasks, stop: asyncio.Event) -> int:
        assert self._failure is not None
        try:
            await app.start()
            asked, crashed = asyncio.create_task(stop.wait()), asyncio.create_task(app.wait_until_stopped())
            await asyncio.wait({asked, crashed, self._failure}, return_when=asyncio.FIRST_COMPLETED)
        except Exception as e:  # noqa: BLE001 - of Faust: of any kind
            self._failed(e)
        if not self._failure.done() and not stop.is_set():
            self._failed(app.crash_reason or UnavailableError("Faust stopped"))
        if self._failure.done():
            reason = self._failure.result()
            # While Kafka is unavailable the container starts again until it is there; all else is a fault.
            away = isinstance(reason, (KafkaError, UnavailableError, TimeoutError))
            say = log.warning if away else log.error
            say("stream cannot go on", error=type(reason).__name__, reason=str(reason)[:500])
            return exit_codes.exit_code(reason) if isinstance(reason, TarnError) else exit_codes.UNAVAILABLE
        log.info("stream stops")
        with contextlib.suppress(TimeoutError, KafkaError, UnavailableError):
            await asyncio.wait_for(tasks.revoked(), STOP_WAIT_S / 2)
            await asyncio.wait_for(app.stop(), STOP_WAIT_S / 2)
        return exit_codes.OK

    async def _prepared(self, stop: asyncio.Event) -> Source | None:
        """The topics; waits for Kafka and for flight-events. None if asked to stop meanwhile."""
        wait_s = 0.5
        while not stop.is_set():
            try:
                return await self._found()
            except NOT_YET as e:
                if self._waits_for != e.message:
                    log.warning("stream waits", reason=e.message)
                self._waits_for = e.message
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), wait_s)
            wait_s = min(PREPARE_WAIT_S_MAX, wait_s * 2)
        return None

    async def _found(self) -> Source:
        return await asyncio.to_thread(
            prepare,
            self._settings.kafka_bootstrap,
            self._settings.kafka_login(),
            self._rules,
            self._limits,
        )

    def _step(self, source: Source, place: Place, state: Mapping[str, Any] | None) -> Step:
        if place.topic == EVENTS:
            windows = (
                PartitionWindows(self._rules)
                if state is None
                else PartitionWindows.from_data(self._rules, state)
            )
            return WindowsStep(source.identity, place.partition, windows)
        merge = (
            Merge(self._rules, self._limits, source.partitions)
            if state is None
            else Merge.from_data(self._rules, self._limits, source.partitions, state)
        )
        return MergeStep(source.identity, merge, Rows(rules=self._rules, names=self._names))

    def _failed(self, reason: BaseException) -> None:
        """Note what the process cannot go on from: it ends, and begins again from its states."""
        if self._failure is not None and not self._failure.done():
            self._failure.set_result(reason)

    def _ended(self, beside: asyncio.Task[None]) -> None:
        """Without its view, or without a look at its health, the service must not go on."""
        if not beside.cancelled() and (reason := beside.exception()) is not None:
            self._failed(reason)

    async def _tell(self, source: Source, kafka: _Kafka) -> None:
        """Publish what runs in the partitions of this process, unless nothing changed."""
        if self._tasks is None or (self._failure is not None and self._failure.done()):
            return
        await self._tasks.look()
        for step in list(self._tasks.steps().values()):
            if not isinstance(step, WindowsStep) or self._told.get(step.partition) == step.next_offset:
                continue
            message = partials.running_message(source.identity, step.partition, self._rules, step.windows)
            if message is not None:
                self._told[step.partition] = step.next_offset
                key = f"{source.identity}/{step.partition}/running".encode()
                sent = await kafka.send(Outgoing(PARTIALS, key, message))
                sent.add_done_callback(_unwatched)

    async def _follow(self, reader: Reader, source: Source) -> None:
        """Show what the workers say, this one and others."""
        fault, placed = "", False
        while True:
            try:
                if not placed:
                    await reader.follow({PARTIALS: PARTS_BACK, ALERTS: ALERTS_MAX})
                    placed = True
                for record in await reader.poll():
                    if record.topic == ALERTS:
                        self._view.alerted(record.value)
                        continue
                    said = partials.read(record.value, source.identity)
                    if said is not None:
                        self._view.heard(said)
                fault = ""
            except (KafkaError, TimeoutError) as e:
                if (now := f"{type(e).__name__}: {e}") != fault:
                    fault = now
                    log.warning("the view waits", reason=fault[:300])
                await asyncio.sleep(1.0)

    async def _look(self, reader: Reader, source: Source) -> None:
        """Ask Kafka for the ends of the topics, every few seconds: health depends on true answers.

        Whoever stands still while it answers ends: a reader that hangs is in threads of libraries. So does
        who is ahead of a log: what comes would pass for what was taken already. And once places were assigned
        the topic may be another one, whose windows those of the former one must not hold up.
        """
        assignments = 0
        places = [Place(PARTIALS, 0), *(Place(EVENTS, partition) for partition in range(source.partitions))]
        while True:
            assert self._tasks is not None
            if (looked := self._tasks.assignments) != assignments:
                # Before the ends: there are none of partitions that another topic lacks.
                with contextlib.suppress(KafkaError, TimeoutError, *NOT_YET):
                    if (await self._found()).identity != source.identity:
                        self._failed(
                            UnavailableError(
                                f"topic {EVENTS} was made again, or has other partitions; the service starts "
                                "again"
                            )
                        )
                    assignments = looked
            with contextlib.suppress(KafkaError, TimeoutError):
                positions = self._tasks.positions()
                found = await asyncio.wait_for(reader.ends(places), SILENT_S_MAX)
                ends = {Place(*at): end for at, end in found.items()}
                now_s, assigned = time.monotonic(), self._tasks.assignments > 0
                self._progress.saw(now_s, positions, ends, assigned=assigned)
                standing = self._progress.standing(now_s, times=STANDING_TIMES_MAX)
                for one in (*self._progress.lost(), *standing):
                    self._failed(UnavailableError(f"{one}; the service starts again"))
            await asyncio.sleep(LOOK_EVERY_S)


class _Kafka:
    """Kafka for the tasks: Faust's producer and consumer, and a reader without a group."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.app: Any = None

    async def send(self, message: Outgoing, partition: int = 0) -> asyncio.Future[Any]:
        try:
            sent: asyncio.Future[Any] = await self.app.producer.send(
                message.topic, message.key, message.value, partition, None, None
            )
        except ProducerSendError as e:
            raise UnavailableError(f"could not send to topic {message.topic}: {e}; is Kafka running?") from e
        return sent

    async def seek(self, place: Place, offset: int) -> None:
        await self.app.consumer.seek_wait({TP(*place): offset})

    async def last(self, topic: str, partition: int) -> bytes | None:
        return await self._reader.last(topic, partition)

    async def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        return await self._reader.bounds(topic, partition)

    async def first_from(self, topic: str, partition: int, offset: int) -> int:
        return await self._reader.first_from(topic, partition, offset)


def _unwatched(sent: asyncio.Future[Any]) -> None:
    """What runs is for people: a message of it that is lost is followed by the next, a second later."""
    if not sent.cancelled():
        sent.exception()


async def serve(settings: Settings) -> int:
    """Run until SIGTERM or SIGINT; returns the exit code."""
    service = Service(settings, read_names(folder() / "airports.csv"))
    pages = Pages(service.view, service.faults, settings.own_hosts, settings.origins)
    protocol = door(
        Visitors(CONNECTIONS_MAX),
        head_bytes_max=HEAD_BYTES_MAX,
        head_wait_s=REQUEST_WAIT_S,
        answer_wait_s=REQUEST_WAIT_S,
    )
    at = bound(
        settings.stream_listen, settings.stream_port, variables=("TARN_STREAM_LISTEN", "TARN_STREAM_PORT")
    )
    server = listener(pages.asgi(), protocol, stop_wait_s=1)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    serving = asyncio.create_task(server.serve(sockets=[at]))
    try:
        return await service.run(stop)
    finally:
        server.should_exit = True
        await serving


def main(arguments: list[str]) -> int:
    """Run the command line.

    Returns:
        The exit code; see `tarn.core.exit_codes`.
    """
    argparse.ArgumentParser(
        allow_abbrev=False,
        prog="python -m tarn_demo.stream",
        description="Live windows over the demo's flights. All settings are environment variables that begin "
        "with TARN_; docs/reference.md lists them.",
    ).parse_args(arguments)
    try:
        settings = Settings.read()
        configure(settings.log_level, service="stream")
        settings.rules()
        # The libraries' own errors reach this code as exceptions and are logged where handled.
        for name in LIBRARIES:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
        asyncio.run(_until_it_ends(settings))
    except TarnError as e:
        configure("info", service="stream")
        log.error("stream cannot start", error=type(e).__name__, message=e.message)
        return exit_codes.exit_code(e)


async def _until_it_ends(settings: Settings) -> NoReturn:
    """Serve, and end the process from within the loop: what Faust left in it could keep it open."""
    code = await serve(settings)
    logging.shutdown()
    sys.stdout.flush()
    # Threads of libraries must not keep the process alive either; every state they can leave is safe.
    os._exit(code)
