"""The container engine: detected, and installed or started only if there is none."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tarn_host import shell
from tarn_host.console import Problem, StopError, line
from tarn_host.stack import apt, engine_kind, project
from tarn_host.stack.engine_kind import Kind, version_tuple

COMPOSE_AT_LEAST = (2, 20)
COMPOSE_OF_OVERLAYS = (2, 24, 4)
"""The first that knows `!override`, by which a compose file on top takes away a port."""
CLIENTS = ("docker-cli",)
START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 60
INSTALL_TIMEOUT_S = 900
DEFAULT_DATA_ROOT = "/var/lib/docker"
PID_FILE = Path("/var/run/docker.pid")
RECORD = project.STATE_DIR / "engine.json"
LOG = project.LOG_DIR / "engine.log"

_CHILDREN: dict[int, subprocess.Popen[bytes]] = {}
"""Engines that this process started; each of them outlives it."""


@dataclass(frozen=True)
class Engine:
    """State of the engine.

    Attributes:
        server: the engine's version, or None if none answers.
        error: the client's error if none answers.
        compose: Compose's version, or None.
        data_root: where the engine keeps images and volumes, as the engine reports it.
        memory_bytes: the memory of the machine that the engine runs on.
        kind: the kind of engine.
        remote: the client's endpoint, if it is an address of another machine; else empty.
    """

    server: str | None
    error: str
    compose: str | None
    data_root: str
    memory_bytes: int | None
    kind: Kind = field(default_factory=Kind)
    remote: str = ""


@dataclass(frozen=True)
class Machine:
    """Properties of this machine that decide how an engine can be obtained."""

    linux: bool
    root: bool
    debian: bool
    has_dockerd: bool
    systemd: bool
    docker_host: str
    has_client: bool = True


@dataclass(frozen=True)
class Plan:
    """Steps needed before an engine answers; all False means none."""

    install_engine: bool = False
    install_client: bool = False
    install_compose: bool = False
    start: bool = False

    def words(self) -> str:
        """The plan in words."""
        steps = []
        if self.install_engine:
            steps.append("install docker.io, debootstrap and iptables from this machine's apt sources")
        if self.install_client:
            steps.append("install docker-cli from there")
        if self.install_compose:
            steps.append("unpack Debian's Compose and buildx into ~/.docker/cli-plugins")
        if self.start:
            steps.append(f"start the engine (data in {data_root_wanted()})")
        return "; ".join(steps)


def data_root_wanted() -> str:
    """Data folder of an engine that Tarn starts."""
    return project.setting("TARN_ENGINE_DATA_ROOT") or DEFAULT_DATA_ROOT


def look() -> Engine:
    """Query the client for the engine's state; changes nothing."""
    answer = shell.capture(["docker", "version", "--format", "{{.Server.Version}}"], timeout_s=20)
    server = answer.out.strip() if answer.ok and answer.out.strip() else None
    compose = shell.capture(["docker", "compose", "version", "--short"], timeout_s=20)
    info = _info() if server else {}
    memory = info.get("MemTotal")
    return Engine(
        server=server,
        error="" if server else answer.words(),
        compose=compose.out.strip() if compose.ok else None,
        data_root=str(info.get("DockerRootDir") or data_root_wanted()),
        memory_bytes=memory if isinstance(memory, int) and memory > 0 else None,
        kind=engine_kind.kind(info),
        remote=remote(_endpoint()) if server else "",
    )


def _endpoint() -> str:
    """The address at which the client reaches the engine (DOCKER_HOST, its context); empty if unknown."""
    form = ["docker", "context", "inspect", "--format", "{{.Endpoints.docker.Host}}"]
    answer = shell.capture(form, timeout_s=20)
    return answer.out.strip() if answer.ok else ""


def remote(endpoint: str) -> str:
    """The endpoint, if it leads to another machine; empty for sockets and for addresses of this machine."""
    try:
        parts = urlsplit(endpoint)
        host = (parts.hostname or "").removesuffix(".")
    except ValueError:
        return ""
    if parts.scheme not in ("tcp", "http", "https", "ssh") or not host or host == "localhost":
        return ""
    return "" if _is_own(host) else endpoint


def _is_own(host: str) -> bool:
    """Whether a name or address is one of this machine: only such an address can be bound."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    for family, kind, protocol, _, address in found:
        with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
            return True
    return False


def remote_problem(endpoint: str) -> Problem:
    """Why an engine on another machine does not do."""
    return Problem(
        f"the container engine is on another machine ({endpoint}): it cannot mount folders of this clone, "
        "and publishes its ports on its own 127.0.0.1",
        "run this on that machine, or point the client to an engine of this one: docker context use default, "
        "and unset DOCKER_HOST and DOCKER_CONTEXT",
    )


def kind() -> engine_kind.Kind:
    """The kind of engine, as it describes itself; the plain one if it does not answer."""
    return engine_kind.kind(_info())


def _info() -> dict[str, Any]:
    """The engine's `docker info` as JSON; empty if it is unreadable."""
    answer = shell.capture(["docker", "info", "--format", "{{json .}}"], timeout_s=30)
    try:
        found = json.loads(answer.out)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def machine(environ: Mapping[str, str] = os.environ) -> Machine:
    """The properties of this machine."""
    path = shell.environment()["PATH"]
    return Machine(
        linux=sys.platform.startswith("linux"),
        root=hasattr(os, "geteuid") and os.geteuid() == 0,
        debian=apt.is_debian() and shutil.which("apt-get", path=path) is not None,
        has_dockerd=shutil.which("dockerd", path=path) is not None,
        systemd=Path("/run/systemd/system").is_dir(),
        docker_host=environ.get("DOCKER_HOST", ""),
        has_client=shutil.which("docker", path=path) is not None,
    )


def plan(engine: Engine, here: Machine, offline: bool, *, overlay: str = "") -> tuple[Plan, list[Problem]]:
    """Steps to get a running engine and Compose, or why that is impossible. Pure.

    Args:
        engine: the engine as found.
        here: this machine.
        offline: whether nothing may be fetched.
        overlay: the compose file on top of the stack's own, if one was chosen.
    """
    at_least = COMPOSE_OF_OVERLAYS if overlay else COMPOSE_AT_LEAST
    problems: list[Problem] = []
    install_engine = install_client = start = install_compose = False
    if engine.server is not None:
        problems += engine_kind.hinders(engine.server, engine.kind)
        problems += [remote_problem(engine.remote)] if engine.remote else []
    elif not here.has_client and here.has_dockerd and not (here.linux and here.root and here.debian):
        problems.append(
            Problem(
                "an engine is installed (dockerd), and its client, the program `docker`, is not",
                "install it (package docker-cli or docker-ce-cli)"
                + (", or run this as root, which does that" if here.debian else ""),
            )
        )
    else:
        if "permission denied" in engine.error.lower():
            problems.append(
                Problem(
                    f"the container engine refuses this user: {engine.error}",
                    "add the user to the group `docker` and log in again, or run as root",
                )
            )
        elif here.docker_host and here.docker_host != "unix:///var/run/docker.sock":
            problems.append(
                Problem(
                    f"no container engine answers at DOCKER_HOST={here.docker_host}: {engine.error}",
                    "start the engine there, or unset DOCKER_HOST",
                )
            )
        elif here.linux and here.root and (here.has_dockerd or here.debian):
            install_engine, start = not here.has_dockerd, True
            install_client = here.has_dockerd and not here.has_client
        elif here.linux:
            problems.append(
                Problem(
                    f"no container engine answers: {engine.error}",
                    "install Docker Engine 20.10 or newer and start it, or on Debian run this as root once "
                    "(it then installs and starts one)",
                )
            )
        else:
            problems.append(
                Problem(
                    f"no container engine answers: {engine.error}",
                    "start Docker Desktop, or another Docker engine 20.10 or newer",
                )
            )
    compose_ok = engine.compose is not None and version_tuple(engine.compose) >= at_least
    if not compose_ok and not problems:
        wanted = ".".join(str(part) for part in at_least) + (f" for {overlay}," if overlay else "")
        if here.linux and here.debian:
            install_compose = True
        else:
            found = f"Docker Compose is {engine.compose}" if engine.compose else "Docker Compose is not there"
            problems.append(
                Problem(
                    f"{found}; needed is {wanted} or newer",
                    "install it: the package docker-compose-plugin (Docker's own packages), "
                    "docker-compose-v2 (Ubuntu) or docker-compose (Homebrew)",
                )
            )
    if engine.kind.no_builder and not problems and not install_compose:
        if here.linux and here.debian:
            install_compose = True
        else:
            problems.append(
                Problem(
                    "Docker's client has no buildx, without which it builds no images",
                    "install it: the package docker-buildx (Homebrew, Ubuntu, Fedora) or "
                    "docker-buildx-plugin (Docker's own packages)",
                )
            )
    if offline and (install_engine or install_client or install_compose):
        problems.append(
            Problem(
                "the container engine or Compose would have to be installed, which needs the network",
                "run once without --pull never",
            )
        )
    wanted_steps = Plan(
        install_engine=install_engine,
        install_client=install_client,
        install_compose=install_compose,
        start=start,
    )
    return wanted_steps, problems


def packages(offered: Collection[str]) -> list[str]:
    """Packages to install for an engine: from Debian 13 on its client is a separate package. Pure."""
    return ["docker.io", *(name for name in CLIENTS if name in offered), "debootstrap", "iptables"]


def carry_out(wanted: Plan, here: Machine) -> Engine:
    """Carry out the plan and return the resulting engine.

    Raises:
        StopError: a step failed.
    """
    if wanted.install_engine:
        apt.update(LOG, timeout_s=INSTALL_TIMEOUT_S)
        names = packages(apt.offered(CLIENTS))
        line(f"    installing {', '.join(names)}")
        apt.install(names, LOG, timeout_s=INSTALL_TIMEOUT_S)
    elif wanted.install_client:
        line("    installing docker-cli")
        apt.install(["docker-cli"], LOG, timeout_s=INSTALL_TIMEOUT_S)
    if wanted.install_compose:
        line("    unpacking Compose and buildx")
        apt.unpack_compose(LOG, timeout_s=INSTALL_TIMEOUT_S)
    if wanted.start and look().server is None:
        line(f"    starting the engine, data in {data_root_wanted()}")
        start(here)
    elif wanted.install_engine and here.systemd:
        _record({"kind": "systemd"})
    now = look()
    if now.server is None or now.compose is None:
        raise StopError(
            f"the engine or Compose still does not answer: {now.error or 'docker compose is not found'}",
            f"see {LOG}; then run this again",
        )
    return now


def start(here: Machine) -> None:
    """Start an engine that outlives this script, and record it so that no other one is ever stopped.

    Raises:
        StopError: a daemon is running already (a second one would take its network away), or this one fails.
    """
    if here.systemd and data_root_wanted() == DEFAULT_DATA_ROOT:
        shell.must(
            ["systemctl", "start", "docker"], timeout_s=START_TIMEOUT_S, fix="see `journalctl -u docker`"
        )
        _record({"kind": "systemd"})
        _wait_until_up(None)
        return
    other = _pid_in(PID_FILE)
    if other is not None:
        raise StopError(
            f"a dockerd lives (pid {other}) but does not answer",
            "wait a moment and run this again; if it stays so, stop that dockerd first",
        )
    if not here.has_client:
        raise StopError(
            "the program `docker` is not there, so nobody could ask the engine whether it is up",
            "install the engine's client (Debian 13 and newer: docker-cli)",
        )
    LOG.parent.mkdir(parents=True, exist_ok=True)
    with LOG.open("ab") as sink:
        begin = sink.tell()
        process = subprocess.Popen(
            ["dockerd", "--data-root", data_root_wanted()],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd="/",
            env=shell.environment(),
        )
    _CHILDREN[process.pid] = process
    _record(
        {"kind": "dockerd", "pid": process.pid, "data_root": data_root_wanted(), "born": _born(process.pid)}
    )
    _wait_until_up(process, begin)


def _wait_until_up(process: subprocess.Popen[bytes] | None, begin: int = 0) -> None:
    """Wait until the engine answers; `begin` is the offset in its log at which this start began.

    Raises:
        StopError: it gave up, or timed out; the message says which, with dockerd's own error.
    """
    until = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < until:
        if look().server is not None:
            return
        if process is not None and process.poll() is not None:
            break
        time.sleep(0.5)
    own = LOG.read_bytes()[begin:].decode(errors="replace").splitlines() if process and LOG.is_file() else []
    said, fix = engine_kind.why_not_up(own)
    code = process.poll() if process is not None else None
    how = f"does not answer after {START_TIMEOUT_S} s" if code is None else f"ended with exit code {code}"
    client = look().error
    raise StopError(
        f"the engine was started and {how}: {said or client}",
        f"{fix or 'its own words above say why'}. Its whole log: "
        + (str(LOG) if process is not None else "journalctl -u docker"),
    )


def _record(what: dict[str, object]) -> None:
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.write_text(json.dumps(what) + "\n", encoding="utf-8")


def record() -> dict[str, object] | None:
    """The engine that this clone's scripts started and have not stopped, or None."""
    try:
        found = json.loads(RECORD.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def stop() -> str:
    """Stop the engine that this clone's scripts started; return a sentence about what was done.

    Raises:
        StopError: it does not end.
    """
    mine = record()
    if mine is None:
        return "no engine was started from this clone: none is stopped"
    if mine.get("kind") == "systemd":
        shell.must(
            ["systemctl", "stop", "docker.socket", "docker"],
            timeout_s=STOP_TIMEOUT_S,
            fix="see `journalctl -u docker`",
        )
        RECORD.unlink()
        return "stopped the engine (systemd unit docker)"
    pid = mine.get("pid")
    if not isinstance(pid, int) or _born(pid) is None or _born(pid) != mine.get("born"):
        RECORD.unlink()
        return "the engine that was started from this clone has already ended"
    os.kill(pid, signal.SIGTERM)
    until = time.monotonic() + STOP_TIMEOUT_S
    while time.monotonic() < until:
        _reap(pid)
        if _born(pid) is None:
            RECORD.unlink()
            return f"stopped the engine (pid {pid}); its data stays in {mine.get('data_root')}"
        time.sleep(0.2)
    raise StopError(f"the engine (pid {pid}) has not ended {STOP_TIMEOUT_S} s after SIGTERM", f"see {LOG}")


def is_mine_alive() -> bool:
    """Whether an engine that this clone's scripts started is still running."""
    mine = record()
    if mine is None:
        return False
    if mine.get("kind") == "systemd":
        return look().server is not None
    pid = mine.get("pid")
    return isinstance(pid, int) and _born(pid) is not None and _born(pid) == mine.get("born")


def _reap(pid: int) -> None:
    """Reap the engine's process if it ended and this process had started it."""
    child = _CHILDREN.get(pid)
    if child is not None and child.poll() is not None:
        del _CHILDREN[pid]


def _pid_in(path: Path) -> int | None:
    """The process id in a pid file, if it belongs to a running dockerd."""
    try:
        pid = int(path.read_text().strip())
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return None
    return pid if b"dockerd" in os.path.basename(words[0]) else None


def _born(pid: int) -> str | None:
    """Start time of a process (clock ticks since boot), to detect a reused pid; None if it has ended."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if after_name[0] in ("Z", "X") else after_name[19]
