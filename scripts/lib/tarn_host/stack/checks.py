"""Requirements checked before anything is created: disk, memory, ports. All failures are listed at once."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tarn_host import shell
from tarn_host.console import Problem
from tarn_host.stack import needs, project
from tarn_host.stack.project import port_block

DISK_MIB_COLD = 18_000
"""Free disk for the first build, MiB: `scripts/bench up --cold` left 14,451 MiB of images and build cache."""
DISK_MIB_WARM = 2_000
"""Free disk once the images exist, MiB: logs and the lake's first data."""
BLOCKS = range(20_000, 30_000, 100)
"""First ports of the blocks that a second copy chooses from."""


@dataclass(frozen=True)
class Published:
    """Host ports of running containers.

    Attributes:
        own: this project's ports.
        holders: ports of other containers -> the container, in words.
        tarns: ports of other copies of Tarn -> the copy's folder.
    """

    own: frozenset[int] = frozenset()
    holders: Mapping[int, str] = field(default_factory=dict)
    tarns: Mapping[int, str] = field(default_factory=dict)


def _wanted_mib(variable: str, default: int) -> int:
    """A required amount in MiB; a setting overrides the default."""
    text = project.setting(variable)
    return int(text) if text.isdecimal() else default


def disk(data_root: str, images_there: bool, free_mib: int | None) -> list[Problem]:
    """Whether the engine's disk has enough space; unknown (an engine on another machine) passes."""
    wanted = _wanted_mib("TARN_NEED_DISK_MIB", DISK_MIB_WARM if images_there else DISK_MIB_COLD)
    if free_mib is None or free_mib >= wanted:
        return []
    return [
        Problem(
            f"{free_mib} MiB are free where the engine keeps its data ({data_root}); needed are {wanted} MiB",
            "free some space (`docker system df` shows what the engine holds; `docker builder prune` drops "
            "old build steps), or set TARN_NEED_DISK_MIB if you know better",
        )
    ]


def memory(available_mib: int | None, running: bool, *, small: bool = False) -> list[Problem]:
    """Whether memory suffices; a stack that is running already has what it needs."""
    wanted = _wanted_mib("TARN_NEED_MEMORY_MIB", needs.memory_mib(small=small))
    if available_mib is None or running or available_mib >= wanted:
        return []
    less = needs.memory_mib(small=True)
    smaller = "" if small else f"start without Spark and Trino (scripts/up --small needs {less}), "
    return [
        Problem(
            f"{available_mib} MiB of memory are available; needed are {wanted} MiB",
            "end other programs, give the engine's machine more memory (Docker Desktop: Settings), "
            f"{smaller}or set TARN_NEED_MEMORY_MIB if you know better",
        )
    ]


def ports(wanted: Mapping[str, str], own: frozenset[int], holders: Mapping[int, str]) -> list[Problem]:
    """Ports that are not numbers, are used twice, or are held by anything but this project's containers."""
    return judge_ports(wanted, taken(wanted, own, holders), holders)


def taken(wanted: Mapping[str, str], own: frozenset[int], holders: Mapping[int, str]) -> dict[int, str]:
    """The wanted ports in use by others -> the process, empty if it is not known."""
    numbers = {int(text) for text in wanted.values() if text.isdecimal() and 1 <= int(text) <= 65535}
    return {
        number: "" if number in holders else process_on(number) or ""
        for number in sorted(numbers - own)
        if is_taken(number)
    }


def free_block(names: Iterable[str]) -> dict[str, str]:
    """The first block of ports that is entirely free, or an empty dict."""
    for first in BLOCKS:
        found = port_block(first, names)
        if not any(is_taken(int(port)) for port in found.values()):
            return found
    return {}


def judge_ports(
    wanted: Mapping[str, str], taken_by: Mapping[int, str], holders: Mapping[int, str]
) -> list[Problem]:
    """Ports that are not numbers, are used twice, or are held by others. Pure."""
    problems: list[Problem] = []
    seen: dict[int, str] = {}
    for variable, text in sorted(wanted.items()):
        if not text.isdecimal() or not 1 <= int(text) <= 65535:
            problems.append(
                Problem(
                    f"{variable}={text} is no port", f"set {variable} to a number from 1 to 65535 in .env"
                )
            )
            continue
        number = int(text)
        if number in seen:
            problems.append(
                Problem(
                    f"{variable} and {seen[number]} are both {number}",
                    f"give {variable} another number in .env",
                )
            )
        seen.setdefault(number, variable)
        if number in taken_by:
            holder = holders.get(number) or taken_by[number]
            by = f" by {holder}" if holder else ""
            problems.append(
                Problem(
                    f"port {number} on 127.0.0.1 is taken{by}",
                    f"end that program, or choose another port: echo {variable}={_another(number)} >> .env; "
                    f"scripts/up --ports {BLOCKS[0]} moves all ports of this copy",
                )
            )
    return problems


def _another(port: int) -> int:
    """A port to propose instead of a taken one."""
    return port + 10_000 if port < 50_000 else port - 10_000


def is_taken(port: int) -> bool:
    """Whether something answers on 127.0.0.1:port, or the port cannot be bound."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            return True
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except PermissionError:
            return False
        except OSError:
            return True
    return False


def process_on(port: int) -> str | None:
    """The process listening on a port as `name (pid n)`; None if that needs more privileges."""
    if sys.platform.startswith("linux"):
        return _process_on_linux(port)
    found = shell.capture(["lsof", "-nP", f"-iTCP:{port}", "-sTCP:LISTEN", "-Fpc"], timeout_s=10)
    pid = re.search(r"^p(\d+)$", found.out, re.MULTILINE)
    name = re.search(r"^c(.+)$", found.out, re.MULTILINE)
    return f"{name.group(1)} (pid {pid.group(1)})" if found.ok and pid and name else None


def _process_on_linux(port: int) -> str | None:
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for row in Path(table).read_text().splitlines()[1:]:
                fields = row.split()
                if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
    if not inodes:
        return None
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for handle in (process / "fd").iterdir():
                if os.readlink(handle) in inodes:
                    name = (process / "comm").read_text(errors="replace").strip()
                    return f"{name} (pid {process.name})"
    return None


def published(project_name: str) -> Published:
    """Host ports of this project's containers, and who holds the others."""
    form = ("project", "project.working_dir")
    labels = "\t".join(f'{{{{.Label "com.docker.compose.{name}"}}}}' for name in form)
    command = ["docker", "ps", "--format", labels + "\t{{.Names}}\t{{.Image}}\t{{.Ports}}"]
    listed = shell.capture(command, timeout_s=20)
    own: set[int] = set()
    holders: dict[int, str] = {}
    tarns: dict[int, str] = {}
    for row in listed.out.splitlines() if listed.ok else []:
        owner, folder, name, image, ports_text = (row.split("\t") + [""] * 5)[:5]
        for first, last in re.findall(r":(\d+)(?:-(\d+))?->", ports_text):
            for number in range(int(first), int(last or first) + 1):
                if owner == project_name:
                    own.add(number)
                elif owner and image.startswith("tarn/"):
                    tarns[number] = folder
                    holders[number] = f"container {name} of the copy of Tarn in {folder}"
                else:
                    holders[number] = f"container {name}"
    return Published(own=frozenset(own), holders=holders, tarns=tarns)


def free_mib(path: str) -> int | None:
    """Free MiB on the file system of a path or its nearest parent; None if it is on another machine."""
    if not sys.platform.startswith("linux"):
        return None
    here = Path(path)
    while not os.path.exists(here):  # nor if this user may not look there: userns-remap
        if here == here.parent:
            return None
        here = here.parent
    found = os.statvfs(here)
    return found.f_bavail * found.f_frsize // (1024 * 1024)


def available_mib(engine_bytes: int | None) -> int | None:
    """Memory for containers, MiB: the minimum of what this machine has available and the engine's total."""
    limits = [] if engine_bytes is None else [engine_bytes // (1024 * 1024)]
    with contextlib.suppress(OSError):
        match = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
        if match:
            limits.append(int(match.group(1)) // 1024)
    return min(limits) if limits else None
