"""The service: the specs of a folder, a thread per ingestor, health checks; ends soon after SIGTERM.

An invalid spec file stops only itself. Files that claim the same name, stream or table are not resolved by
file order: the one whose table already has its stream wins, which only the tables can show.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import structlog

from tarn.adapters.logging import configure
from tarn.core import exit_codes
from tarn.core.errors import (
    CorruptStateError,
    InvalidSettingError,
    InvalidSpecError,
    NotFoundError,
    TarnError,
)
from tarn.core.source import NoSuchTopicError
from tarn.core.spec import Clash, IngestorSpec, clashes, parse_spec, settle
from tarn.core.table_catalog import TableName
from tarn.core.trail import LOGS, spec_text
from tarn.ingest.batch_commit import offsets_in, streams_named
from tarn.ingest.context import IngestContext, StoppedError
from tarn.ingest.health import (
    DependencyMonitor,
    StatusServer,
    check_catalog,
    check_store,
    write_to_store,
)
from tarn.ingest.ingestor import Ingestor
from tarn.ingest.settings import Settings
from tarn.ingest.status import State, StatusRegistry, StatusReporter
from tarn.ingest.wiring import (
    LOOK_TIMEOUT_MS,
    check_kafka,
    make_audits,
    make_catalog,
    make_store,
    make_world,
)

log = structlog.get_logger()

DRAIN_S_MAX = 8.0
TOPICS_LOOK_S = 30.0
"""How often a pattern is compared with the names of the topics, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Content of a spec folder, by file name.

    Attributes:
        specs: valid specs, including those of a clash.
        errors: errors of the other files.
        clashes: groups of valid specs that exclude each other.
    """

    specs: dict[str, IngestorSpec]
    errors: dict[str, InvalidSpecError]
    clashes: tuple[Clash, ...] = ()

    @property
    def contested(self) -> frozenset[str]:
        """File names of all clashes."""
        return frozenset(file for clash in self.clashes for file in clash.files)


def load_specs(folder: Path, *, trail: bool = False) -> Loaded:
    """Load all `*.yaml` and `*.yml` files of the folder.

    Args:
        folder: the folder.
        trail: whether to add the specs of the catalog's trail (`tarn.core.trail`).

    Raises:
        InvalidSettingError: the folder cannot be read.
    """
    try:
        files = sorted(p for p in folder.iterdir() if p.suffix in (".yaml", ".yml") and p.is_file())
    except OSError as e:
        raise InvalidSettingError(
            f"spec folder {folder} cannot be read: {e.strerror}; set TARN_SPECS_DIR", folder=str(folder)
        ) from e
    specs: dict[str, IngestorSpec] = {}
    errors: dict[str, InvalidSpecError] = {}
    for path in files:
        try:
            specs[path.name] = parse_spec(path.read_text(encoding="utf-8"), file=path.name)
        except InvalidSpecError as e:
            errors[path.name] = e
        except (OSError, UnicodeDecodeError) as e:
            errors[path.name] = InvalidSpecError(f"{path.name}: cannot be read: {e}", file=path.name)
    for one in LOGS if trail else ():
        specs[f"built-in {one.name}"] = parse_spec(spec_text(one), file=f"built-in {one.name}")
    return Loaded(specs=specs, errors=errors, clashes=tuple(clashes(specs)))


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
            threading.Thread(target=self._run, args=(spec,), name=spec.name, daemon=True)
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

    def _run(self, spec: IngestorSpec) -> None:
        """Run the ingestor of each topic of a spec, until the process stops."""
        kafka = spec.spec.source.kafka
        running: dict[str, list[threading.Thread]] = {}
        if kafka.topic is not None:
            running[kafka.topic] = self._begin(spec)
        reporter = StatusReporter(
            spec.name, self._registry, clock=self._context.clock, now_ms=self._context.ports.now_ms
        )
        while kafka.topic is None:
            topics = kafka.names or self._matching(spec, reporter, begun=bool(running))
            for one in spec.per_topic(topics):
                if one.topic not in running:
                    running[one.topic] = self._begin(one)
            if kafka.names or not self._sleep(TOPICS_LOOK_S):
                break
        for threads in running.values():
            for thread in threads:
                thread.join()

    def _begin(self, spec: IngestorSpec) -> list[threading.Thread]:
        """Start the readers of one topic, each in a thread of its own."""
        readers = [Ingestor(spec, self._context, replica=n) for n in range(spec.spec.replicas)]
        threads = [threading.Thread(target=one.run, name=one.name, daemon=True) for one in readers]
        for thread in threads:
            thread.start()
        return threads

    def _matching(self, spec: IngestorSpec, reporter: StatusReporter, *, begun: bool) -> list[str]:
        """Names of the topics that the pattern matches; if there are none yet, the status page says why."""
        kafka = spec.spec.source.kafka
        try:
            found = [topic for topic in self._context.sources.list_topics() if kafka.matches(topic)]
            if not found and not begun:
                again = f"looking again every {TOPICS_LOOK_S:.0f} s"
                raise NoSuchTopicError(f"no topic matches {kafka.topic_pattern!r}; {again}")
        except TarnError as e:
            reporter.tell(State.WAITING, e)
            return []
        except Exception as e:  # noqa: BLE001 - a defect here must not end the search for topics
            reporter.tell_defect(e)
            return []
        self._registry.remove(spec.name)
        return found

    def _sleep(self, seconds: float) -> bool:
        """Wait; False if the process stops meanwhile."""
        try:
            self._context.ports.sleep(seconds)
        except StoppedError:
            return False
        return not self._context.stopping()

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
                limits = self._context.limits
                if not self._sleep(min(limits.retry_s_max, limits.retry_s * 2 ** min(waits, 8))):
                    return
        winner, errors = settle(clash, self._distinct(clash, holders))
        for file, error in errors.items():
            self._refuse(file, error)
        if winner is not None:
            self._registry.remove(winner)
            self._run(self._loaded.specs[winner])

    def _holds(self, spec: IngestorSpec) -> bool:
        """Whether the spec's table already has its stream, or one of its streams."""
        table = spec.spec.table
        try:
            state = self._context.catalog.load(TableName(table.levels, table.name))
        except NotFoundError:
            return False
        streams = [spec.stream]
        if spec.spec.source.kafka.topic is None:
            streams = [one for one in streams_named(state) if one.startswith(f"{spec.stream}.")]
        try:
            return any(offsets_in(state, stream) is not None for stream in streams)
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
            "kafka": check_kafka(settings),
        },
        registry,
        stop,
    ).start()
    # What stands now stays: a full garbage collection, which a busy stream causes often, need not visit it.
    gc.collect()
    gc.freeze()
    service.start()
    audits = make_audits(settings, registry, stop)
    if audits is not None:
        threading.Thread(target=audits.run, name="audits", daemon=True).start()
    log.info("ingest started", ingestors=sorted(s.name for s in loaded.specs.values()), port=page.port)
    stop.wait()
    log.info("ingest stops")
    drained = service.drain()
    page.stop()
    log.info("ingest stopped", drained=drained)
    return 0


def main(arguments: list[str]) -> int:
    """Run the command line.

    Returns:
        The exit code: 0 on success, 2 for invalid input; see `tarn.core.exit_codes`.
    """
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="tarn-ingest",
        description="Streams topics into tables, each row exactly once, as the specs say.",
    )
    parser.add_argument("--check", action="store_true", help="read the specs, tell what is wrong, and end")
    parser.add_argument("--specs", type=Path, help="the folder of specs (default: TARN_SPECS_DIR)")
    options = parser.parse_args(arguments)
    try:
        settings = Settings.read()
        folder = options.specs or settings.specs_dir
        loaded = load_specs(folder, trail=settings.trail == "on" and not options.check)
        if options.check:
            errors = list(loaded.errors.values())
            for clash in loaded.clashes:
                why = "where one of them works already it goes on, else none begins; change or remove one"
                errors += [clash.refusal(file, why=why) for file in clash.files]
            for file, spec in sorted(loaded.specs.items()):
                if file in loaded.contested:
                    continue
                print(f"{file}: ok: {spec.spec.source.kafka} -> {spec.spec.table}")  # noqa: T201
            for error in errors:
                print(error.message, file=sys.stderr)  # noqa: T201
            if not loaded.specs and not errors:
                print(f"{folder}: holds no spec (*.yaml)", file=sys.stderr)  # noqa: T201
                return exit_codes.INVALID
            return exit_codes.INVALID if errors else exit_codes.OK
        configure(settings.log_level, service="ingest")
        # The client libraries' own errors reach this code as exceptions and are logged where handled.
        for name in ("kafka", "pyiceberg", "urllib3"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        code = serve(settings, loaded)
    except TarnError as e:
        if options.check:
            print(e.message, file=sys.stderr)  # noqa: T201
        else:
            configure(service="ingest")
            structlog.get_logger().error("ingest cannot start", error=type(e).__name__, message=e.message)
        return exit_codes.exit_code(e)
    logging.shutdown()
    sys.stdout.flush()
    # Threads blocked on a response must not keep the process alive; every state they can leave is safe.
    os._exit(code)
