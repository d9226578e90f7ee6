"""The service: a thread per ingestor, dependency checks and a status server; ends soon after SIGTERM."""

from __future__ import annotations

import signal
import threading
import time

import structlog

from tarn.adapters.catalog_client import TableName
from tarn.core.errors import CorruptStateError, InvalidSpecError, NotFoundError, TarnError
from tarn.core.spec import Clash, IngestorSpec, settle
from tarn.ingest.batch_commit import offsets_in
from tarn.ingest.context import IngestContext, StoppedError
from tarn.ingest.dependencies import (
    DependencyMonitor,
    check_catalog,
    check_kafka,
    check_store,
    write_to_store,
)
from tarn.ingest.http import StatusServer
from tarn.ingest.ingestor import Ingestor
from tarn.ingest.settings import Settings
from tarn.ingest.specs import Loaded
from tarn.ingest.status import State, StatusRegistry
from tarn.ingest.wiring import LOOK_TIMEOUT_MS, make_catalog, make_store, make_world

log = structlog.get_logger()

DRAIN_S_MAX = 8.0


class Service:
    """Runs the ingestors of a spec folder.

    Args:
        loaded: valid specs, and errors by file name.
        context: dependencies of the ingestors.
        registry: status registry.
        stop: ends the service when set.
    """

    def __init__(
        self, loaded: Loaded, context: IngestContext, registry: StatusRegistry, stop: threading.Event
    ) -> None:
        self._context = context
        self._registry = registry
        self._stop = stop
        self._loaded = loaded
        self._threads = [
            threading.Thread(target=Ingestor(spec, context).run, name=spec.name, daemon=True)
            for file, spec in loaded.specs.items()
            if file not in loaded.contested
        ]
        self._threads += [
            threading.Thread(target=self._settle, args=(clash,), name=clash.files[0], daemon=True)
            for clash in loaded.clashes
        ]
        for file, error in loaded.errors.items():
            self._refuse(file, error)

    def start(self) -> None:
        """Start every ingestor."""
        for thread in self._threads:
            thread.start()

    def _refuse(self, file: str, error: InvalidSpecError) -> None:
        log.error("spec refused", file=file, message=error.message)
        self._registry.update(
            file,
            state=State.INVALID,
            reason="InvalidSpec",
            message=error.message,
            since_ms=self._context.ports.now_ms(),
        )

    def _settle(self, clash: Clash) -> None:
        """Find the file of a clash whose stream its table already has, reject the others and run that one."""
        for file in clash.files:
            self._registry.update(file, message=f"{clash.about}: the tables are asked whose stream they hold")
        waits = 0
        holders: frozenset[str] | None = None
        while holders is None:
            try:
                holders = frozenset(f for f in clash.files if self._holds(self._loaded.specs[f]))
            except TarnError as e:
                # Unavailable or damaged: the clash can only be settled once every table is readable.
                waits += 1
                for file in clash.files:
                    self._registry.update(file, state=State.WAITING, message=f"{clash.about}: {e.message}")
                try:
                    limits = self._context.limits
                    self._context.ports.sleep(min(limits.retry_s_max, limits.retry_s * 2 ** min(waits, 8)))
                except StoppedError:
                    return
        winner, errors = settle(clash, self._distinct(clash, holders))
        for file, error in errors.items():
            self._refuse(file, error)
        if winner is not None:
            self._registry.remove(winner)
            Ingestor(self._loaded.specs[winner], self._context).run()

    def _holds(self, spec: IngestorSpec) -> bool:
        """Whether the spec's table already has its stream."""
        table = spec.spec.table
        try:
            state = self._context.catalog.load(TableName(table.levels, table.name))
        except NotFoundError:
            return False
        try:
            return offsets_in(state, spec.stream) is not None
        except CorruptStateError:
            return True

    def _distinct(self, clash: Clash, holders: frozenset[str]) -> frozenset[str]:
        """The holders, or only one of them if all have the same content, as copies of a file do."""
        files = sorted(holders or clash.files)
        same = all(self._loaded.specs[f] == self._loaded.specs[files[0]] for f in files)
        return frozenset(files[:1]) if same else holders

    def drain(self) -> bool:
        """Wait until all ingestors have ended; False if some have not in time, which is safe."""
        until = time.monotonic() + DRAIN_S_MAX
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, until - time.monotonic()))
        return not any(t.is_alive() for t in self._threads)


def serve(settings: Settings, loaded: Loaded) -> int:
    """Run until a signal asks to stop; returns 0 after a clean end.

    Raises:
        InvalidSettingError: a secret file cannot be read.
    """
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    registry = StatusRegistry()
    context = make_world(settings, registry, stop)
    service = Service(loaded, context, registry, stop)
    looked_at = make_store(settings, request_timeout_ms=LOOK_TIMEOUT_MS)
    page = StatusServer(
        registry,
        listen=settings.ingest_listen,
        port=settings.ingest_port,
        clock=time.monotonic,
        deep=lambda: write_to_store(looked_at),
        hosts=settings.own_hosts,
    )
    page.start()
    DependencyMonitor(
        {
            "store": check_store(looked_at),
            "catalog": check_catalog(make_catalog(settings, read_timeout_s=LOOK_TIMEOUT_MS / 1_000)),
            "kafka": check_kafka(settings.kafka_bootstrap, settings.kafka_login),
        },
        registry,
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
