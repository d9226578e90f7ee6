"""Run other programs: always with a timeout, never through a shell."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tarn_host.console import StopError, is_full

TIMED_OUT = 124
NOT_FOUND = 127
TERMINATE_GRACE_S = 20


@dataclass(frozen=True)
class Result:
    """Exit code and output of a program."""

    code: int
    out: str
    err: str

    @property
    def ok(self) -> bool:
        """Whether the exit code is 0."""
        return self.code == 0

    def words(self) -> str:
        """The last line of its output, for error messages."""
        text = (self.err.strip() or self.out.strip()).splitlines()
        return text[-1] if text else f"exit code {self.code}"


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment with the system folders on PATH, plus `extra`."""
    env = dict(os.environ)
    folders = env.get("PATH", "").split(os.pathsep)
    env["PATH"] = os.pathsep.join([*folders, *(f for f in ("/usr/sbin", "/sbin") if f not in folders)])
    env.update(extra or {})
    return env


def hear_interrupts() -> None:
    """Restore Python's default SIGINT handler, for this process and the programs that it starts.

    A shell starts background jobs with SIGINT ignored; child processes inherit that and could not be
    interrupted.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def capture(
    command: Sequence[str],
    *,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    text: str = "",
) -> Result:
    """Run a program and capture its output; the exit code is 127 if it is missing and 124 on timeout.

    Args:
        command: the program and its arguments.
        timeout_s: the timeout, in seconds.
        env: variables added to this process's environment.
        cwd: the working directory.
        text: the standard input.
    """
    try:
        done = subprocess.run(
            list(command),
            input=text.encode(),
            capture_output=True,
            env=environment(env),
            cwd=cwd,
            timeout=timeout_s,
            check=False,
        )
    except (FileNotFoundError, PermissionError):  # WSL: the latter where PATH has a folder of Windows
        return Result(NOT_FOUND, "", f"{command[0]}: not found")
    except subprocess.TimeoutExpired:
        return Result(TIMED_OUT, "", f"{' '.join(command)}: no answer within {timeout_s:g} s")
    return Result(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))


def must(
    command: Sequence[str],
    *,
    timeout_s: float,
    fix: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> str:
    """Run a program that must succeed and return its output.

    Args:
        command: the program and its arguments.
        timeout_s: the timeout, in seconds.
        fix: what to do if it fails.
        env: variables added to this process's environment.
        cwd: the working directory.

    Raises:
        StopError: it failed or timed out.
    """
    result = capture(command, timeout_s=timeout_s, env=env, cwd=cwd)
    if not result.ok:
        raise StopError(f"`{' '.join(command)}` failed: {result.words()}", fix)
    return result.out


class Running:
    """A running program: each line of output is passed to a function, and the last lines are kept."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        on_line: Callable[[str], None],
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        tail_lines: int = 40,
        stdin: int = subprocess.DEVNULL,
        new_session: bool = False,
    ) -> None:
        self.tail: deque[str] = deque(maxlen=tail_lines)
        self._on_line = on_line
        self.process = subprocess.Popen(
            list(command),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment(env),
            cwd=cwd,
            start_new_session=new_session,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for raw in lines:
                text = raw.decode(errors="replace").rstrip("\n")
                self.tail.append(text)
                with contextlib.suppress(OSError):  # full disk: keep reading, or the pipe fills up
                    self._on_line(text)

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        code = self.process.poll()
        if code is not None:
            self._reader.join(timeout=5)
        return code

    def hear_out(self, timeout_s: float) -> None:
        """After its end, wait until every line was passed on; `poll` and `wait` do so for 5 s at most."""
        self._reader.join(timeout=timeout_s)

    def pause(self, seconds: float) -> None:
        """Wait until it ends, for at most `seconds`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=seconds)

    def wait(self, timeout_s: float) -> int:
        """Wait for the exit code; after the timeout it is stopped and the code is 124."""
        try:
            self.process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.stop()
            return TIMED_OUT
        self._reader.join(timeout=5)
        return self.process.returncode

    def stop(self) -> None:
        """Stop it: SIGTERM first, SIGKILL after the grace period."""
        if self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(timeout=TERMINATE_GRACE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def logged(
    command: Sequence[str],
    log: Path,
    *,
    timeout_s: float,
    what: str,
    fix: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> None:
    """Run a program with its output appended to a log file; on a full disk it runs without.

    Args:
        command: the program and its arguments.
        log: the log file.
        timeout_s: the timeout, in seconds.
        what: name of the step, for the error message.
        fix: what to do if it fails.
        env: variables added to this process's environment.
        cwd: the working directory.

    Raises:
        StopError: it failed or timed out; the message carries the last lines of the output.
    """
    with _appending(log) as write:
        write(f"$ {' '.join(command)}")
        try:
            running = Running(command, on_line=write, env=env, cwd=cwd)
        except (FileNotFoundError, PermissionError):
            raise StopError(f"{what} failed: {command[0]} is not there", fix) from None
        try:
            code = running.wait(timeout_s)
        finally:
            running.stop()
    if code != 0:
        why = f"not done within {timeout_s:g} s" if code == TIMED_OUT else f"exit code {code}"
        tail = "\n".join(f"    {text}" for text in list(running.tail)[-15:])
        raise StopError(f"{what} failed ({why}); the last lines of {log}:\n{tail}", fix)


@contextlib.contextmanager
def _appending(log: Path) -> Iterator[Callable[[str], None]]:
    """A function that appends a line to a log file; a full disk drops it, now and when the file is closed."""
    sink = None
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        sink = log.open("ab", buffering=0)
    except OSError as error:
        if not is_full(error):
            raise

    def write(text: str) -> None:
        try:
            if sink is not None:
                sink.write(f"{text}\n".encode(errors="replace"))
        except OSError as error:
            if not is_full(error):
                raise

    with sink or contextlib.nullcontext():
        yield write
