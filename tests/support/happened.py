"""Events of a stack's containers: the engine's own, recorded from one moment on."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from tempfile import TemporaryFile

from tests.support.stack import Stack

OOM, DIE, KILL, HEALTHY = "oom", "die", "kill", "health_status: healthy"
KINDS = (OOM, DIE, KILL, "health_status")
STOP_TIMEOUT_S = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """One event of a container.

    Attributes:
        service: the Compose service.
        what: `oom` (the kernel's OOM killer ended a process of it), `die`, `kill` (a signal was requested
            through the engine) or `health_status: …`.
        at_s: Unix time by the engine's clock, in seconds.
        exit_code: with `die`, the exit code of its first process.
    """

    service: str
    what: str
    at_s: float
    exit_code: int | None = None


@contextlib.contextmanager
def listening(stack: Stack) -> Iterator[Callable[[], list[Happened]]]:
    """All events of the stack's containers from now on; each call returns those so far, oldest first.

    The engine repeats only its last 256 events, of all containers, so they are recorded as they arrive.
    """
    command = ["docker", "events", "--since", f"{time.time():.3f}", "--format", "{{json .}}"]
    command += ["--filter", f"label=com.docker.compose.project={stack.name}", "--filter", "type=container"]
    for kind in KINDS:
        command += ["--filter", f"event={kind}"]
    with TemporaryFile() as kept:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=kept, stderr=kept)

        def so_far() -> list[Happened]:
            assert process.poll() is None, f"docker events ended with {process.returncode}"
            # pread instead of seek, because the writing process shares the file position.
            text = os.pread(kept.fileno(), os.fstat(kept.fileno()).st_size, 0)
            # A line that is still being written is returned by the next call.
            whole, _, _ = text.rpartition(b"\n")
            return [_event(line) for line in whole.splitlines()]

        try:
            yield so_far
        finally:
            process.terminate()
            process.wait(STOP_TIMEOUT_S)


def _event(line: bytes) -> Happened:
    found = json.loads(line)
    attributes = found["Actor"]["Attributes"]
    code = attributes.get("exitCode")
    return Happened(
        service=attributes["com.docker.compose.service"],
        what=found["Action"],
        at_s=found["timeNano"] / 1e9,
        exit_code=None if code is None else int(code),
    )
