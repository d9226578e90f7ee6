"""The service: the controller and its writers, health checks, audits; ends soon after SIGTERM.

An invalid spec file stops only itself. Specs that claim the same name, stream or table are not resolved by
their order: the one whose table already has its stream wins, which only the tables can show.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any

import structlog

from tarn.adapters.freed_memory import give_back_until
from tarn.adapters.heap import freeze_heap
from tarn.adapters.logging import configure
from tarn.controller.files import SpecFile, SpecFiles
from tarn.controller.loop import POLL_S, Controller, Refused, Surroundings
from tarn.core import exit_codes
from tarn.core.control.registry import SpecRegistry
from tarn.core.errors import (
    CorruptStateError,
    InvalidSettingError,
    InvalidSpecError,
    NotFoundError,
    TarnError,
)
from tarn.core.spec import Clash, IngestorSpec, clashes, parse_document, parse_spec, spec_of
from tarn.core.table_catalog import TableName
from tarn.core.trail import LOGS, spec_text
from tarn.ingest.batch_commit import offsets_in, streams_named
from tarn.ingest.context import IngestContext
from tarn.ingest.drivers import WriterDriver
from tarn.ingest.facts import facts_of
from tarn.ingest.health import (
    CONTROLLER,
    DependencyMonitor,
    check_catalog,
    check_store,
    write_to_store,
)
from tarn.ingest.server import StatusServer
from tarn.ingest.settings import Settings
from tarn.ingest.status import State, StatusRegistry
from tarn.ingest.thread_driver import ThreadDriver
from tarn.ingest.topic_watch import TopicWatch
from tarn.ingest.wiring import (
    LOOK_TIMEOUT_MS,
    check_kafka,
    make_audits,
    make_catalog,
    make_driver,
    make_fsck_look,
    make_lake_look,
    make_specs,
    make_store,
    make_strikes,
    make_table_look,
    make_world,
)

log = structlog.get_logger()

DRAIN_S_MAX = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Content of a spec folder, by file name.

    Attributes:
        specs: valid specs, including those of a clash.
        errors: errors of the other files.
        clashes: groups of valid specs that exclude each other.
        documents: the valid specs as their authors wrote them.
        built_in: specs that are part of Tarn, by label.
    """

    specs: dict[str, IngestorSpec]
    errors: dict[str, InvalidSpecError]
    clashes: tuple[Clash, ...] = ()
    documents: dict[str, dict[str, Any]] = field(default_factory=dict)
    built_in: dict[str, IngestorSpec] = field(default_factory=dict)

    @property
    def contested(self) -> frozenset[str]:
        """File names of all clashes."""
        return frozenset(file for clash in self.clashes for file in clash.files)

    @property
    def files(self) -> SpecFiles:
        """The files, to be applied."""
        return SpecFiles(
            files={
                file: SpecFile(spec=spec, document=self.documents.get(file) or _document(spec))
                for file, spec in self.specs.items()
            },
            invalid=frozenset(self.errors),
        )


def _document(spec: IngestorSpec) -> dict[str, Any]:
    """A spec as its author could have written it."""
    return spec.model_dump(mode="json", by_alias=True, exclude_unset=True)


def load_specs(folder: Path, *, trail: bool = False) -> Loaded:
    """Load all `*.yaml` and `*.yml` files of the folder.

    Args:
        folder: the folder.
        trail: whether to add the specs of the catalog's trail (`tarn.core.trail`) as built-in ones.

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
    documents: dict[str, dict[str, Any]] = {}
    for path in files:
        name = _shown(path.name)
        try:
            if name != path.name:
                raise InvalidSpecError(f"{name}: its name is not UTF-8; rename it", file=name)
            document = parse_document(path.read_text(encoding="utf-8"), file=name)
            specs[name] = spec_of(document, file=name)
            documents[name] = document
        except InvalidSpecError as e:
            errors[name] = e
        except (OSError, UnicodeDecodeError) as e:
            errors[name] = InvalidSpecError(f"{name}: cannot be read: {e}", file=name)
    built_in = {
        label: parse_spec(spec_text(one), file=label)
        for one in (LOGS if trail else ())
        for label in (f"built-in {one.name}",)
    }
    return Loaded(
        specs=specs,
        errors=errors,
        clashes=tuple(clashes(specs)),
        documents=documents,
        built_in=built_in,
    )


def _shown(name: str) -> str:
    """The name of a file as text: what of it is not UTF-8 is escaped."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


class Service:
    """Runs the controller over the files of a spec folder and what was applied by hand.

    Args:
        loaded: valid specs, and errors by file name.
        context: dependencies of the ingestors.
        registry: status registry.
        stop: ends the service when set.
        specs: registry of declared ingestors.
        driver: runs the writers; by default threads of this process.
        poll_s: how often the registry is asked what changed, in seconds.
    """

    def __init__(
        self,
        loaded: Loaded,
        context: IngestContext,
        registry: StatusRegistry,
        stop: threading.Event,
        *,
        specs: SpecRegistry,
        driver: WriterDriver | None = None,
        poll_s: float = POLL_S,
    ) -> None:
        self._context = context
        self._registry = registry
        self._stop = stop
        self._ending = threading.Event()
        self._said: dict[str, Refused] = {}
        self._driver: WriterDriver = driver or ThreadDriver(context)
        self._asking = ThreadPoolExecutor(max_workers=1, thread_name_prefix="settle")
        watch = TopicWatch(context)
        self.controller = Controller(
            Surroundings(
                registry=specs,
                driver=self._driver,
                topics=watch.topics,
                holds=self._holds,
                facts=lambda name: facts_of(registry, name),
                on_refused=self._refused,
                on_names=watch.keep,
                executor=self._asking,
                clock=time.monotonic,
                now_ms=lambda: time.time_ns() // 1_000_000,
                version=package_version("tarn"),
                on_pass=self._looked,
            ),
            files=loaded.files,
            built_in=loaded.built_in,
            poll_s=poll_s,
        )
        watch.on_change(self.controller.wake)
        self._thread = threading.Thread(
            target=self.controller.run, args=(self._stopping,), name="controller", daemon=True
        )
        for file, error in loaded.errors.items():
            self._refused(file, Refused(reason="InvalidSpec", message=error.message))

    def start(self) -> None:
        """Start the controller, which starts every writer."""
        self._thread.start()

    def _stopping(self) -> bool:
        return self._ending.is_set() or self._stop.is_set() or self._context.stopping()

    def _looked(self, failed: str) -> None:
        """Show on the status page that the controller made a pass, or why it could not."""
        message = failed or "looks at what is declared"
        self._registry.record_check(CONTROLLER, ok=not failed, message=message, looked_s=time.monotonic())

    def _refused(self, label: str, why: Refused | None) -> None:
        """Show on the status page, and once in the log, why an ingestor is not run; None: it is again."""
        if why is None:
            self._said.pop(label, None)
            self._registry.remove(label)
            return
        if self._said.get(label) == why:
            return
        self._said[label] = why
        if not why.waiting:
            log.error("spec refused", file=label, message=why.message)
        self._registry.update(
            label,
            state=State.WAITING if why.waiting else State.INVALID,
            reason=why.reason,
            message=why.message,
            since_ms=self._context.ports.now_ms(),
        )

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

    def drain(self) -> bool:
        """Wait until all writers have ended; False if some have not in time, which is safe."""
        until = time.monotonic() + DRAIN_S_MAX
        self._ending.set()
        self.controller.end()
        self._driver.drain_all()
        if self._thread.ident is not None:
            self._thread.join(max(0.0, until - time.monotonic()))
        # The controller may have started one before it saw that it was to end.
        self._driver.drain_all()
        drained = self._driver.join(max(0.0, until - time.monotonic()))
        self._asking.shutdown(wait=False, cancel_futures=True)
        return drained and not self._thread.is_alive()


def serve(settings: Settings, loaded: Loaded) -> int:
    """Run until a signal asks to stop; returns 0 after a clean end.

    Raises:
        InvalidSettingError: a secret file cannot be read.
    """
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    registry = StatusRegistry(since_ms=time.time_ns() // 1_000_000)
    context = make_world(settings, registry, stop)
    driver = make_driver(settings, context, registry)
    service = Service(loaded, context, registry, stop, specs=make_specs(settings), driver=driver)
    looked_at = make_store(settings, request_timeout_ms=LOOK_TIMEOUT_MS)
    look = make_lake_look(settings, stop)
    fsck = make_fsck_look(settings, stop)
    page = StatusServer(
        registry,
        listen=settings.ingest_listen,
        port=settings.ingest_port,
        clock=time.monotonic,
        deep=lambda: write_to_store(looked_at),
        hosts=settings.own_hosts,
        wake=service.controller.wake,
        lake=look.seen,
        version=package_version("tarn"),
        look=make_table_look(settings),
        stream_url=settings.stream_url,
        strikes=make_strikes(settings, context, driver, stop),
        fsck=fsck.seen,
    )
    freeze_heap()
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
    service.start()
    threading.Thread(target=look.run, name="lake-look", daemon=True).start()
    threading.Thread(target=fsck.run, name="fsck-look", daemon=True).start()
    audits = make_audits(settings, registry, stop)
    if audits is not None:
        threading.Thread(target=audits.run, name="audits", daemon=True).start()
    log.info("ingest started", ingestors=sorted(s.name for s in loaded.specs.values()), port=page.port)
    give_back_until(stop)
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
