"""A stack of the tests' own: started by the clone's own scripts/up, removed with its data by scripts/down."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import re
import shlex
import shutil
import socket
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from tarn_testkit.environment import parse_exports
from tarn_testkit.errors import SetupError

UP_S = 1_800.0
DOWN_S = 300.0
ASK_S = 120.0
LINES_SHOWN = 30
PORTS = range(10_000, 20_000)
TAGS = "{{.Repository}}:{{.Tag}}"
_PORT = re.compile(r"\$\{(TARN_PORT_[A-Z0-9_]+):-\d+\}")


def free_ports(names: Iterable[str]) -> dict[str, str]:
    """A free port of 127.0.0.1 for each name, all different.

    None of those that systems give to connections: a stack that stops and starts finds its ports free again.
    """
    with contextlib.ExitStack() as held:
        numbers = iter(random.sample(PORTS, len(PORTS)))
        return {name: str(_held_port(held, numbers)) for name in names}


def _held_port(held: contextlib.ExitStack, numbers: Iterator[int]) -> int:
    """The next port that is free, held for the block."""
    for number in numbers:
        probe = socket.socket()
        try:
            probe.bind(("127.0.0.1", number))
        except OSError:
            probe.close()
            continue
        held.enter_context(probe)
        return number
    raise SetupError(f"every port of 127.0.0.1 from {PORTS.start} to {PORTS.stop - 1} is taken")


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A stack that was started.

    Attributes:
        home: the clone whose scripts started it.
        project: name of its Compose project.
        settings: variables that point the clone's scripts to it.
        env: the values of `scripts/tarn env`.
    """

    home: str
    project: str
    settings: Mapping[str, str]
    env: Mapping[str, str]

    @property
    def removal(self) -> str:
        """The command that removes it."""
        return f"COMPOSE_PROJECT_NAME={self.project} {self.home}/scripts/down --purge --yes"


def start(home: Path, *, project: str, profile: str, log: Path) -> Started:
    """Start a stack with free ports, and wait until a row has gone through it.

    Args:
        home: a clone of Tarn.
        project: name of the Compose project.
        profile: `small` or `full`.
        log: file for the output of scripts/up.

    Raises:
        SetupError: it did not start; what there is of it is removed.
    """
    names = dict.fromkeys(_PORT.findall((home / "docker-compose.yml").read_text(encoding="utf-8")))
    settings = {
        "COMPOSE_PROJECT_NAME": project,
        "TARN_PROFILE": profile,
        "TARN_DEMO": "off",
        **free_ports(names),
    }
    made = Started(home=str(home), project=project, settings=settings, env={})
    try:
        _script(made, "up", "--yes", "--no-demo", timeout_s=UP_S, log=log)
        printed = _script(made, "tarn", "env", timeout_s=ASK_S, log=None)
    except BaseException:
        with contextlib.suppress(SetupError):
            stop(made)
        raise
    return Started(home=made.home, project=project, settings=settings, env=parse_exports(printed))


def stop(stack: Started) -> None:
    """Remove a stack with its data, and the names of its images; layers stay for the next one.

    Raises:
        SetupError: scripts/down failed.
    """
    _script(stack, "down", "--purge", "--yes", timeout_s=DOWN_S, log=None)
    listed = subprocess.run(
        ["docker", "image", "ls", "--filter", f"reference=tarn/*:{stack.project}", "--format", TAGS],
        capture_output=True,
        text=True,
        timeout=ASK_S,
        check=False,
    ).stdout.split()
    if listed:
        subprocess.run(
            ["docker", "image", "rm", "--no-prune", *listed], capture_output=True, timeout=ASK_S, check=False
        )


def _script(stack: Started, name: str, *words: str, timeout_s: float, log: Path | None) -> str:
    command = [str(Path(stack.home) / "scripts" / name), *words]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if log is not None else subprocess.PIPE,
            timeout=timeout_s,
            cwd=stack.home,
            env={**os.environ, **stack.settings},
            check=False,
            text=True,
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        raise SetupError(f"scripts/{name} of {stack.home} did not end well: {e}") from e
    if log is not None:
        log.write_text(done.stdout, encoding="utf-8")
    if done.returncode != 0:
        said = "\n".join(f"{done.stdout}{done.stderr or ''}".splitlines()[-LINES_SHOWN:])
        raise SetupError(f"scripts/{name} of {stack.home} failed with exit code {done.returncode}:\n{said}")
    return done.stdout


class SharedStack:
    """One stack for all processes of a test session: the first that needs it starts it.

    Args:
        folder: folder of the session, the same for all its processes.
        project: name of the Compose project.
    """

    def __init__(self, folder: Path, project: str) -> None:
        self._folder = folder
        self._project = project
        self._file = folder / "stack.json"
        self._failure = folder / "failed"

    def get(self, home: Path, profile: str) -> Started:
        """The stack, started now if it was not.

        Raises:
            SetupError: it did not start, now or for another process of the session.
        """
        with self._locked():
            if self._failure.exists():
                raise SetupError(self._failure.read_text(encoding="utf-8"))
            found = self.seen()
            if found is None:
                try:
                    found = start(home, project=self._project, profile=profile, log=self._folder / "up.log")
                except SetupError as e:
                    self._failure.write_text(str(e), encoding="utf-8")
                    raise
                exports = "".join(
                    f"export {name}={shlex.quote(value)}\n" for name, value in found.env.items()
                )
                self._write("env.sh", exports)
                self._write(self._file.name, json.dumps(asdict(found)))
            return found

    def seen(self) -> Started | None:
        """The stack, if a process of the session started it."""
        if not self._file.exists():
            return None
        return Started(**json.loads(self._file.read_text(encoding="utf-8")))

    def remove(self) -> None:
        """Remove the stack, if there is one, and the folder.

        Raises:
            SetupError: scripts/down failed.
        """
        found = self.seen()
        if found is not None:
            stop(found)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _write(self, name: str, text: str) -> None:
        part = self._folder / f"{name}.part"
        part.touch(mode=0o600)
        part.write_text(text, encoding="utf-8")
        part.replace(self._folder / name)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with (self._folder / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
