"""The containers of a running stack, by the engine's command line."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tarn_testkit.errors import KitError, NotAllowedError, NotInProfileError, SetupError
from tarn_testkit.waiting import eventually

ASK_S = 30.0
KILLED_TOO = 137
PROJECT = "com.docker.compose.project"
SERVICE = "com.docker.compose.service"
KILL = (
    "import os, signal, sys; sys.path.insert(0, '/opt/tarn/probe'); from runner import main_process; "
    "os.kill(int(main_process()), signal.SIGKILL)"
)
"""Ends the main process of a container, under its init, from inside: the engine then starts it again."""


def no_engine() -> str:
    """Why no container can be started here; empty if one can."""
    if shutil.which("docker") is None:
        return "there is no docker command"
    try:
        done = _docker("version", "--format", "{{.Server.Version}}", timeout_s=10)
    except SetupError as e:
        return str(e)
    return "" if done else "no engine answers (docker version)"


def _docker(*words: str, timeout_s: float = ASK_S) -> str:
    """What a command of the engine prints.

    Raises:
        SetupError: it failed.
    """
    try:
        done = subprocess.run(
            ["docker", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
            text=True,
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        raise SetupError(f"docker {words[0]} failed: {e}; is the engine running?") from e
    if done.returncode != 0:
        raise SetupError(f"docker {words[0]} failed: {done.stderr.strip()[-500:]}")
    return done.stdout.strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Containers:
    """The containers of one stack.

    Attributes:
        project: returns the name of the stack's Compose project.
        refused: why no fault may be provoked; empty: it may.
    """

    project: Callable[[], str]
    refused: str = ""

    def kill(self, service: str, *, timeout_s: float) -> None:
        """Kill the main process of a service, and wait until the service is healthy again.

        Raises:
            NotAllowedError: others may be using the stack.
            NotInProfileError: the stack has no such service.
            SetupError: the engine does not do it.
            WaitError: the service was not healthy in time.
        """
        container = self._find(service)
        before = _inspect(container)["State"]["StartedAt"]
        done = subprocess.run(
            ["docker", "exec", container, "python3", "-c", KILL],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ASK_S,
            check=False,
            text=True,
        )
        # The command may be killed with the container; whether that was started again is looked at.
        if done.returncode not in (0, KILLED_TOO):
            said = f"{done.stdout}{done.stderr}".strip()[-500:]
            raise SetupError(
                f"{service} could not be killed (docker exec, exit code {done.returncode}): {said}"
            )
        eventually(
            lambda: _inspect(container)["State"]["StartedAt"] != before,
            timeout_s=timeout_s,
            what=f"{service} was killed and the engine started it again; docker logs {container[:12]}",
        )
        self._await_healthy(service, container, timeout_s)

    @contextmanager
    def freeze(self, service: str, *, timeout_s: float) -> Iterator[None]:
        """Stop all processes of a service for the duration of the block, then wait until it is healthy again.

        Raises:
            KitError: as `kill`.
        """
        container = self._find(service)
        _docker("pause", container)
        try:
            yield
        finally:
            _docker("unpause", container)
        self._await_healthy(service, container, timeout_s)

    def _find(self, service: str) -> str:
        if self.refused:
            raise NotAllowedError(self.refused)
        found = self._services()
        if service not in found:
            raise NotInProfileError(
                f"there is no container of service {service!r}; this stack ({self.project()}) has "
                f"{', '.join(sorted(found))}. Trino, Spark and what needs them are in the full profile only: "
                "--tarn-profile full, or scripts/up --full"
            )
        return found[service]

    def _services(self) -> dict[str, str]:
        rows = _docker(
            *("ps", "--no-trunc", "--filter", f"label={PROJECT}={self.project()}"),
            *("--filter", "label=com.docker.compose.oneoff=False"),
            *("--format", f'{{{{.Label "{SERVICE}"}}}} {{{{.ID}}}}'),
        )
        pairs: Sequence[Sequence[str]] = [row.split() for row in rows.splitlines()]
        return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}

    def _await_healthy(self, service: str, container: str, timeout_s: float) -> None:
        def healthy() -> bool:
            state = _inspect(container)["State"]
            return bool(state["Running"]) and state.get("Health", {}).get("Status", "healthy") == "healthy"

        eventually(
            healthy, timeout_s=timeout_s, what=f"{service} healthy again; see docker logs {container[:12]}"
        )


def project_behind(port: int) -> str:
    """The Compose project whose container publishes a port of this machine.

    Raises:
        KitError: there is none on this machine's engine.
    """
    found = _docker("ps", "--filter", f"publish={port}", "--format", f'{{{{.Label "{PROJECT}"}}}}').split()
    if len(found) != 1:
        raise KitError(
            f"no container of this machine's engine publishes port {port}: faults are for a stack on this "
            "machine"
        )
    return found[0]


def _inspect(container: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_docker("inspect", container))[0]
    return found
