"""One-off service runs: whatever ends the command also ends its container.

Compose (2.26) exits on Ctrl-C without ending its container, which would go on sending or writing unseen. So
the container has a name, Compose receives no signals, and this process forwards its own to the container.
Compose also leaves it running where the reader of its output left (`| head`) or its user detached from the
terminal (Ctrl-P Ctrl-Q): such a container is stopped.
"""

from __future__ import annotations

import queue
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any, Union

from tarn_host import shell
from tarn_host.stack.project import ROOT, Project

SENT_AS = {signal.SIGINT: "INT", signal.SIGTERM: "TERM", signal.SIGHUP: "TERM"}
GRACE_S = 30.0
START_S = 15.0
ENGINE_TIMEOUT_S = 30.0

Stream = Union[int, IO[Any], None]


def command(
    name: str, service: str, words: Sequence[str], *, options: Sequence[str] = (), terminal: bool = False
) -> list[str]:
    """The command that runs one service once in a container of this name. Pure.

    Args:
        name: name of the container.
        service: name in the compose file.
        words: the service's command.
        options: options of `docker compose run`.
        terminal: whether the container gets a terminal.
    """
    flags = [*([] if terminal else ["-T"]), "--name", name, *options]
    return ["docker", "compose", "run", "--rm", "--no-deps", *flags, service, *words]


def run(
    here: Project,
    service: str,
    words: Sequence[str],
    *,
    options: Sequence[str] = (),
    terminal: bool = False,
    stdin: Stream = None,
) -> int:
    """Run a service once with this process's own streams; returns its exit code.

    The arguments are those of `started`.
    """
    with started(here, service, words, options=options, terminal=terminal, stdin=stdin) as process:
        return process.wait()


@contextmanager
def started(
    here: Project,
    service: str,
    words: Sequence[str],
    *,
    options: Sequence[str] = (),
    terminal: bool = False,
    stdin: Stream = None,
    stdout: Stream = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """A one-off run of a service; signals are forwarded to its container, which ends with the block.

    Args:
        here: the project.
        service: name in the compose file.
        words: its command.
        options: options of `docker compose run`.
        terminal: whether the container gets a terminal; it then reads Ctrl-C itself.
        stdin: as for subprocess.
        stdout: as for subprocess.
    """
    name = f"{here.name}-{service}-run-{secrets.token_hex(6)}"
    env = shell.environment(here.env())
    heard: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    with _hearing(heard):
        process = subprocess.Popen(
            command(name, service, words, options=options, terminal=terminal),
            stdin=stdin,
            stdout=stdout,
            env=env,
            cwd=ROOT,
            start_new_session=not terminal,
        )
        passing = threading.Thread(target=_pass_on, args=(heard, process, name, env, terminal), daemon=True)
        passing.start()
        try:
            yield process
        except BaseException:
            heard.put(signal.SIGTERM)
            raise
        finally:
            process.wait()
            heard.put(None)
            passing.join()


@contextmanager
def _hearing(heard: queue.SimpleQueue[int | None]) -> Iterator[None]:
    """Queue the signals that would end this process; those that it ignores stay ignored."""
    before = {}
    for number in SENT_AS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, lambda got, _: heard.put(got))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _pass_on(
    heard: queue.SimpleQueue[int | None],
    process: subprocess.Popen[bytes],
    name: str,
    env: Mapping[str, str],
    terminal: bool,
) -> None:
    """Forward each signal to the container; one that does not end within GRACE_S is killed.

    After the end of Compose, a container that it may have left is ended; if there is none, that only fails.
    """
    asked = False
    while True:
        try:
            number = heard.get(timeout=GRACE_S if asked else None)
        except queue.Empty:
            shell.capture(["docker", "rm", "--force", name], timeout_s=ENGINE_TIMEOUT_S, env=env)
            process.terminate()
            return
        if number is None:
            break
        asked = True
        _send(SENT_AS[signal.Signals(number)], process, name, env)
    left = not asked and (process.returncode != 0 or terminal)
    if left and not shell.capture(["docker", "stop", name], timeout_s=ENGINE_TIMEOUT_S, env=env).ok:
        return
    if asked or left:  # Compose removes it, unless Compose itself was interrupted
        shell.capture(["docker", "rm", "--force", name], timeout_s=ENGINE_TIMEOUT_S, env=env)


def _send(word: str, process: subprocess.Popen[bytes], name: str, env: Mapping[str, str]) -> None:
    """Send a signal to the container, retrying while it does not exist yet."""
    deadline = time.monotonic() + START_S
    kill = ["docker", "kill", "--signal", word, name]
    while not shell.capture(kill, timeout_s=ENGINE_TIMEOUT_S, env=env).ok:
        if process.poll() is not None or time.monotonic() > deadline:
            return
        time.sleep(0.1)
