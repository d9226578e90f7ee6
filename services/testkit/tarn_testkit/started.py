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
import signal
import socket
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tarn_testkit.environment import parse_exports
from tarn_testkit.errors import SetupError

UP_S = 1_800.0
DOWN_S = 300.0
ASK_S = 120.0
END_S = 15.0
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


def planned(home: Path, *, project: str, profile: str) -> Started:
    """A stack that is not started yet, with free ports.

    Args:
        home: a clone of Tarn.
        project: name of the Compose project.
        profile: `small` or `full`.
    """
    names = dict.fromkeys(_PORT.findall((home / "docker-compose.yml").read_text(encoding="utf-8")))
    settings = {
        "COMPOSE_PROJECT_NAME": project,
        "TARN_PROFILE": profile,
        "TARN_DEMO": "off",
        **free_ports(names),
    }
    return Started(home=str(home), project=project, settings=settings, env={})


def start(stack: Started, *, log: Path) -> Started:
    """Start a stack, and wait until a row has gone through it; returns it with its values.

    Args:
        stack: what was planned.
        log: file for the output of scripts/up.

    Raises:
        SetupError: it did not start; there may be some of it.
    """
    _script(stack, "up", "--yes", "--no-demo", timeout_s=UP_S, log=log)
    return replace(stack, env=parse_exports(_script(stack, "tarn", "env", timeout_s=ASK_S, log=None)))


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
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if log is not None else subprocess.PIPE,
            cwd=stack.home,
            env={**os.environ, **stack.settings},
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            out, err = child.communicate(timeout=timeout_s)
        except BaseException:  # Ctrl-C too
            _end(child)
            raise
    except (OSError, subprocess.TimeoutExpired) as e:
        raise SetupError(f"scripts/{name} of {stack.home} did not end well: {e}") from e
    if log is not None:
        log.write_text(out, encoding="utf-8")
    if child.returncode != 0:
        said = "\n".join(f"{out}{err or ''}".splitlines()[-LINES_SHOWN:])
        raise SetupError(f"scripts/{name} of {stack.home} failed with exit code {child.returncode}:\n{said}")
    return out


def _end(child: subprocess.Popen[str]) -> None:
    """End a script with all that it started: what still starts containers would undo their removal."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.communicate(timeout=END_S)
            return


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
        self._begun = folder / "begun.json"
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
                # Whoever ends this process meanwhile: the end of the session knows what to remove.
                begun = planned(home, project=self._project, profile=profile)
                self._write(self._begun.name, json.dumps(asdict(begun)))
                try:
                    found = start(begun, log=self._folder / "up.log")
                except BaseException as e:
                    with contextlib.suppress(SetupError):  # the end of the session tries again
                        stop(begun)
                        self._begun.unlink()
                    if isinstance(e, SetupError):
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
        """Remove the stack, if one was begun, and the folder.

        Raises:
            SetupError: scripts/down failed; says how to remove the stack.
        """
        found = self.seen()
        if found is None and self._begun.exists():
            found = Started(**json.loads(self._begun.read_text(encoding="utf-8")))
        try:
            if found is not None:
                try:
                    stop(found)
                except SetupError as e:
                    raise SetupError(f"{e}\nThe stack is still there; to remove it: {found.removal}") from e
        finally:
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
