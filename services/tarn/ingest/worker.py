"""A writer as a process: one replica of one topic, started by `tarn.ingest.process_driver`, which see."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable
from typing import IO, Any

import orjson
import pyarrow as pa
import structlog

from tarn.adapters.freed_memory import give_back_until
from tarn.adapters.heap import freeze_heap
from tarn.adapters.lean_process import without_pandas
from tarn.adapters.logging import configure
from tarn.core import exit_codes
from tarn.core.errors import TarnError
from tarn.core.spec import spec_of
from tarn.ingest.commit_ring import COMMITS_MAX
from tarn.ingest.context import IngestContext
from tarn.ingest.ingestor import Ingestor
from tarn.ingest.lost_replies import Traps
from tarn.ingest.settings import Settings
from tarn.ingest.status import StatusRegistry
from tarn.ingest.wiring import make_world

LINE_BYTES_MAX = 1_000
STATUS_S = 1.0
SETTLE_S = 0.05
"""How soon after its start a change of state is reported."""
DATA_SHARE = 2
DATA_EXTRA_BYTES = 512 << 20

World = Callable[[StatusRegistry, threading.Event], IngestContext]


class _Status:
    """Writes to the controller what becomes of the reader.

    Args:
        out: the controller's pipe.
        registry: the registry of this process.
    """

    def __init__(self, out: IO[bytes], registry: StatusRegistry) -> None:
        self._out = out
        self._commits = registry.commits
        self._lock = threading.Lock()
        self._sent = 0

    def send(self, value: Any) -> None:
        """Write the commits that the controller does not know yet, and a line."""
        with self._lock:
            page = self._commits.after(self._sent, COMMITS_MAX)
            if page.commits:
                self._write({"seen": page.commits})
                self._sent = page.next
            self._write(value)

    def _write(self, value: Any) -> None:
        """Write a line; a controller that is gone does not matter, as the end of stdin says so too."""
        try:
            self._out.write(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS) + b"\n")
            self._out.flush()
        except (OSError, ValueError):
            return


def limit(memory_bytes: int | None, threads: int | None) -> None:
    """Limit this process: the hard stop of its memory, and the threads of Arrow.

    The limit of private memory is far above that of resident memory, which the driver watches: much of
    what is reserved is never touched.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory_bytes is not None:
        most = DATA_SHARE * memory_bytes + DATA_EXTRA_BYTES
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    if threads is not None:
        pa.set_cpu_count(threads)
        pa.set_io_thread_count(threads)


def own_world() -> World:
    """The dependencies of production."""
    settings = Settings.read()
    configure(settings.log_level, service="ingest")
    for name in ("kafka", "pyiceberg", "urllib3"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return lambda registry, stop: make_world(settings, registry, stop)


def main(arguments: list[str]) -> int:
    """Run one writer until it is asked to end; see the module."""
    parser = argparse.ArgumentParser(prog="tarn-ingest-worker", allow_abbrev=False)
    parser.add_argument("--world", help="module:function of the dependencies, for tests")
    options = parser.parse_args(arguments)
    registry = StatusRegistry(of_one=True)
    # stdout is the controller's: whatever prints, logs included, goes to stderr.
    status = _Status(os.fdopen(os.dup(1), "wb"), registry)
    os.dup2(2, 1)
    for number in (signal.SIGTERM, signal.SIGINT):
        # Of the whole group, as at Ctrl-C: the controller says when to end.
        signal.signal(number, signal.SIG_IGN)
    order = orjson.loads(sys.stdin.buffer.readline() or b"null")
    if order is None:
        return exit_codes.OK
    try:
        limit(order["memoryBytes"], order["threads"])
        stop = threading.Event()
        world: World = _named(options.world) if options.world else own_world()
        context = world(registry, stop)
        (spec,) = spec_of(order["spec"], file="the controller's spec").per_topic([order["topic"]])
        reader = Ingestor(spec, context, replica=order["replica"])
        if context.traps is not None:
            context.traps.on_lost(lambda lost: status.send({"lost": lost}))
        table = str(spec.spec.table)
        threading.Thread(
            target=_hear, args=(stop, context.traps, table), name="controller", daemon=True
        ).start()
        threading.Thread(target=_tell, args=(status, registry, reader.name, stop), daemon=True).start()
        threading.Thread(target=give_back_until, args=(stop,), daemon=True).start()
        freeze_heap()
        reader.run()
        status.send(registry.get(reader.name))
    except TarnError as e:
        status.send({"failure": type(e).__name__.removesuffix("Error"), "message": e.message})
        return exit_codes.exit_code(e)
    except Exception as e:  # noqa: BLE001 - reported and logged; the process ends
        status.send({"failure": type(e).__name__, "message": f"{e}; a defect of Tarn, please report it"})
        # Not raised: the interpreter would wait for threads, while the status said that the reader runs.
        structlog.get_logger().error("writer failed", exc_info=e)
        return exit_codes.FAILED
    return exit_codes.OK


def _hear(stop: threading.Event, traps: Traps | None, table: str) -> None:
    """Wait for the end of stdin, or a line, and end then; but for a line that has an answer lost."""
    while line := sys.stdin.buffer.readline(LINE_BYTES_MAX):
        try:
            within_s = float(orjson.loads(line)["dropNext"])
        except (ValueError, KeyError, TypeError):
            break
        if traps is not None:
            traps.drop_next(table, within_s=within_s)
    stop.set()


def _tell(status: _Status, registry: StatusRegistry, reader: str, stop: threading.Event) -> None:
    last, waited_s = None, STATUS_S
    while not stop.wait(SETTLE_S):
        found = registry.readers().get(reader)
        waited_s += SETTLE_S
        if found is not None and (found.state is not last or waited_s >= STATUS_S):
            last, waited_s = found.state, 0.0
            status.send(found)


def _named(name: str) -> World:
    module, _, function = name.partition(":")
    found: World = getattr(importlib.import_module(module), function)
    return found


if __name__ == "__main__":
    without_pandas()
    code = main(sys.argv[1:])
    logging.shutdown()
    sys.stderr.flush()
    # A thread that waits for an answer must not keep the process alive; every state that it can leave is
    # safe.
    os._exit(code)
