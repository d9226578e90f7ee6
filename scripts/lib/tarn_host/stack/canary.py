"""Canary of scripts/up: a row sent while the engines still start, read back by each once it is healthy."""

from __future__ import annotations

import contextlib
import secrets
import subprocess
from collections.abc import Sequence
from types import TracebackType

from tarn_host import shell
from tarn_host.console import StopError, line
from tarn_host.stack import run_once
from tarn_host.stack.lifecycle import Service
from tarn_host.stack.project import ROOT, Project

TIMEOUT_S = 300
"""Timeout in seconds for the rest of the canary once everything is healthy."""
REMOVE_TIMEOUT_S = 30
LOADED_BESIDE = frozenset({"minio", "catalog"})
"""Services whose health starts the canary's container, which then loads while others start."""
WAITED_FOR = ("kafka", "ingest", "trino", "spark")
"""Services that the canary waits for: what the row passes through, then the engines that read it back."""
FIX = "the lines above say which step; `docker compose logs ingest catalog` shows the services' side"


class Canary:
    """One row through the lake; the end of the block also ends the canary's container.

    Its container starts beside the services. The row is sent as soon as those that it passes through are
    healthy, while the engines still start, and each engine is queried once its own health check has passed.
    If `look` never saw the first of them healthy, or the canary failed during the start, `finish` sends
    another row to the running lake, and its result is authoritative.

    Args:
        here: the project.
    """

    def __init__(self, here: Project) -> None:
        self._here = here
        self._name = f"{here.name}-canary-run-{secrets.token_hex(6)}"
        self._running: shell.Running | None = None
        self._ready: set[str] = set()

    def __enter__(self) -> Canary:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def look(self, found: Sequence[Service]) -> None:
        """Handle the services' states: start the canary, or pass on which services are ready."""
        healthy = {s.name for s in found if s.state == "running" and s.health == "healthy"}
        if self._running is None and healthy >= LOADED_BESIDE:
            self._running = self._start()
        if self._running is not None:
            self._tell([name for name in WAITED_FOR if name in healthy - self._ready])

    def finish(self) -> None:
        """Read the row back with every engine, now that all are healthy.

        Raises:
            StopError: the row was not read back; the exit code is the canary's own.
        """
        if self._running is not None:
            if self._wait(self._running) == 0:
                return
            line("    that one was sent while the services started; another one, now that all are healthy:")
            self._end()
        self._running = self._start()
        code = self._wait(self._running)
        if code == shell.TIMED_OUT:
            raise StopError(f"the canary was not done within {TIMEOUT_S} s", FIX, code)
        if code != 0:
            raise StopError(f"the canary failed with exit code {code}", FIX, code)

    def _start(self) -> shell.Running:
        # A session of its own: Ctrl-C in the terminal goes to scripts/up, which then ends the container.
        self._ready = set()
        return shell.Running(
            run_once.command(self._name, "cli", ["canary", "--ready-from-stdin"]),
            on_line=line,
            env=self._here.env(),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            new_session=True,
        )

    def _tell(self, names: Sequence[str]) -> None:
        """Write the names of services that are ready to the canary's stdin, one per line."""
        assert self._running is not None
        pipe = self._running.process.stdin
        assert pipe is not None
        with contextlib.suppress(OSError):  # it has ended: its exit code says why
            for name in names:
                self._ready.add(name)
                pipe.write(f"{name}\n".encode())
                pipe.flush()

    def _wait(self, running: shell.Running) -> int:
        """Its exit code. The end of its input means that every service is ready."""
        _close(running)
        return running.wait(TIMEOUT_S)

    def _end(self) -> None:
        """Remove its container, if there is one, and end Compose with it."""
        running, self._running = self._running, None
        if running is None:
            return
        if running.poll() is None:
            remove = ["docker", "rm", "--force", self._name]
            shell.capture(remove, timeout_s=REMOVE_TIMEOUT_S, env=self._here.env())
            running.stop()
        _close(running)


def _close(running: shell.Running) -> None:
    assert running.process.stdin is not None
    with contextlib.suppress(OSError):  # it has ended: its exit code says why
        running.process.stdin.close()
