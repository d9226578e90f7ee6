"""Programs in parallel: each lane runs its jobs one after the other, all with timeouts."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tarn_host import shell
from tarn_host.console import line
from tarn_host.stack.project import ROOT

POLL_S = 0.1
INTERRUPT_GRACE_S = 60


@dataclass(frozen=True)
class Job:
    """One program to run.

    Attributes:
        name: prefix of its output lines if several jobs run at once.
        command: the program and its arguments.
        timeout_s: it is interrupted after this time, in seconds.
        env: variables added to the environment.
        first: called just before it is started.
    """

    name: str
    command: Sequence[str]
    timeout_s: float
    env: Mapping[str, str] = field(default_factory=dict)
    first: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Ended:
    """Exit code of a job, or `shell.TIMED_OUT`, and its duration in seconds."""

    name: str
    code: int
    seconds: float


def run(lanes: Sequence[Sequence[Job]], on_end: Callable[[Ended], None]) -> None:
    """Run all jobs; their output is shown as it arrives, prefixed with the job's name if there are two lanes.

    If this is interrupted, the programs are stopped too.
    """
    shell.hear_interrupts()
    waiting = [deque(lane) for lane in lanes]
    marked = sum(1 for lane in waiting if lane) > 1
    running: dict[int, _Running] = {}
    try:
        while running or any(waiting):
            for number, lane in enumerate(waiting):
                if number in running:
                    ended = running[number].look()
                    if ended is None:
                        continue
                    del running[number]
                    on_end(ended)
                if lane:
                    running[number] = _Running(lane.popleft(), marked)
            time.sleep(POLL_S)
    finally:
        for one in running.values():
            one.stop()


class _Running:
    """A job that was started."""

    def __init__(self, job: Job, marked: bool) -> None:
        job.first()
        self._job, self._begin = job, time.monotonic()
        self._process = subprocess.Popen(
            list(job.command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if marked else None,
            stderr=subprocess.STDOUT if marked else None,
            env=shell.environment(job.env),
            cwd=ROOT,
        )
        self._shower = threading.Thread(target=self._show, daemon=True) if marked else None
        if self._shower is not None:
            self._shower.start()

    def _show(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for raw in lines:
                line(f"{self._job.name:<11}| {raw.decode(errors='replace').rstrip()}")

    def look(self) -> Ended | None:
        """Its result if it has ended, else None; a job past its timeout is stopped."""
        code = self._process.poll()
        seconds = time.monotonic() - self._begin
        if code is None and seconds > self._job.timeout_s:
            line(
                f"error: {' '.join(self._job.command)} was not done within {self._job.timeout_s:g} s; "
                "it is stopped"
            )
            self.stop()
            code = shell.TIMED_OUT
        if code is None:
            return None
        if self._shower is not None:
            self._shower.join(timeout=INTERRUPT_GRACE_S)
        return Ended(self._job.name, code, round(time.monotonic() - self._begin, 1))

    def stop(self) -> None:
        """Interrupt it so that it can clean up; kill it if that takes too long."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(timeout=INTERRUPT_GRACE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
