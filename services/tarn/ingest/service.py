"""The service: a thread per ingestor, a watch on dependencies, a status page; ends soon after SIGTERM."""

from __future__ import annotations

import signal
import threading
import time

import structlog

from tarn.ingest.http import StatusServer
from tarn.ingest.settings import Settings
from tarn.ingest.specs import Loaded
from tarn.ingest.status import Board, State
from tarn.ingest.stream import Ingestor
from tarn.ingest.watch import Watch, look_at_catalog, look_at_kafka, look_at_store, write_to_store
from tarn.ingest.wiring import LOOK_TIMEOUT_MS, make_catalog, make_login, make_store, make_world
from tarn.ingest.world import World

log = structlog.get_logger()

DRAIN_S_MAX = 8.0


class Service:
    """Runs the ingestors of a folder of specs.

    Args:
        loaded: good specs, and errors by file.
        world: what ingestors work with.
        board: where they tell.
        stop: set to end.
    """

    def __init__(self, loaded: Loaded, world: World, board: Board, stop: threading.Event) -> None:
        self._board = board
        self._stop = stop
        self._threads = [
            threading.Thread(target=Ingestor(spec, world).run, name=spec.name, daemon=True)
            for spec in loaded.specs.values()
        ]
        for file, error in loaded.errors.items():
            log.error("spec refused", file=file, message=error.message)
            board.update(
                file,
                state=State.INVALID,
                reason="InvalidSpec",
                message=error.message,
                since_ms=world.ports.now_ms(),
            )

    def start(self) -> None:
        """Starts every ingestor."""
        for thread in self._threads:
            thread.start()

    def drain(self) -> bool:
        """Waits until all ingestors ended; False if some did not in time, which is safe."""
        until = time.monotonic() + DRAIN_S_MAX
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, until - time.monotonic()))
        return not any(t.is_alive() for t in self._threads)


def serve(settings: Settings, loaded: Loaded) -> int:
    """Runs until a signal asks to stop; 0 after a clean end.

    Raises:
        InvalidSettingError: a secret file cannot be read.
    """
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    board = Board()
    world = make_world(settings, board, stop)
    service = Service(loaded, world, board, stop)
    looked_at = make_store(settings, request_timeout_ms=LOOK_TIMEOUT_MS)
    page = StatusServer(
        board,
        listen=settings.ingest_listen,
        port=settings.ingest_port,
        clock=time.monotonic,
        deep=lambda: write_to_store(looked_at),
        hosts=settings.own_hosts,
    )
    page.start()
    Watch(
        {
            "store": look_at_store(looked_at),
            "catalog": look_at_catalog(make_catalog(settings, read_timeout_s=LOOK_TIMEOUT_MS / 1_000)),
            "kafka": look_at_kafka(settings.kafka_bootstrap, lambda: make_login(settings)),
        },
        board,
        stop,
    ).start()
    service.start()
    log.info("ingest started", ingestors=sorted(s.name for s in loaded.specs.values()), port=page.port)
    stop.wait()
    log.info("ingest stops")
    drained = service.drain()
    page.stop()
    log.info("ingest stopped", drained=drained)
    return 0
