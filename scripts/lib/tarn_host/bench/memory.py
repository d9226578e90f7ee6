"""scripts/bench memory: memory of every container, idle, during the replay and while a year is loaded."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tarn_host import shell
from tarn_host.console import StopError, line
from tarn_host.stack import checks, lifecycle, project
from tarn_host.stack.project import ROOT

SETTLE_S = 60
WATCH_S = 45
SCRIPT_TIMEOUT_S = 1800
LOG = project.LOG_DIR / "bench-memory.log"
FIX = f"see {LOG.name} in .tarn/logs"
MIB = 1024 * 1024
STAGES = ("small", "idle", "replay", "load")
TITLES = {
    "small": "small, idle",
    "idle": "idle",
    "replay": "replay",
    "load": "peak in a load",
}
AIM_MIB = {"small": 1331, "idle": 4608}
_SIZE = re.compile(r"^([\d.]+)([KMG]i?B|B)$")
_UNITS = {"B": 1, "KiB": 1024, "MiB": MIB, "GiB": 1024 * MIB, "KB": 1000, "MB": 10**6, "GB": 10**9}


def bytes_of(text: str) -> int:
    """Bytes in a size as `docker stats` prints it, such as `12.5MiB`. Pure.

    Raises:
        ValueError: the text is not a size.
    """
    match = _SIZE.match(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no size such as 12.5MiB")
    return int(float(match.group(1)) * _UNITS[match.group(2)])


def sample(text: str) -> dict[str, tuple[int, int]]:
    """Container -> bytes in use and limit, from lines `name<tab>12.5MiB / 1GiB`. Pure.

    A stopped container, `0B / 0B`, is omitted.
    """
    found = {}
    for row in text.splitlines():
        name, _, sizes = row.partition("\t")
        used, slash, limit = sizes.partition(" / ")
        if slash and bytes_of(limit):
            found[name] = (bytes_of(used), bytes_of(limit))
    return found


@dataclass
class Watch:
    """Samples of one stage: container -> bytes in use, in order, and its limit."""

    seen: dict[str, list[int]] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)
    totals: list[int] = field(default_factory=list)

    def add(self, found: Mapping[str, tuple[int, int]]) -> None:
        """Add one sample of all containers."""
        for name, (used, limit) in found.items():
            self.seen.setdefault(name, []).append(used)
            self.limits[name] = limit
        if found:
            self.totals.append(sum(used for used, _ in found.values()))

    def summary(self) -> dict[str, Any]:
        """Median, maximum and limit per service in MiB, and the median and maximum of the sum."""
        services = {
            name: {
                "median_mib": sorted(values)[len(values) // 2] // MIB,
                "max_mib": max(values) // MIB,
                "limit_mib": self.limits[name] // MIB,
            }
            for name, values in sorted(self.seen.items())
        }
        totals = sorted(self.totals)
        all_ = {"median_mib": totals[len(totals) // 2] // MIB, "max_mib": totals[-1] // MIB} if totals else {}
        return {"samples": len(totals), "services": services, "all": all_}


@dataclass(frozen=True)
class Own:
    """The stack under measurement.

    Attributes:
        name: its Compose project.
        env: environment of every command about it.
        log: log file of its scripts.
    """

    name: str
    env: dict[str, str]
    log: Path = LOG

    def script(self, *words: str) -> None:
        """Run a script of scripts/ on the stack.

        Raises:
            StopError: it failed.
        """
        command = [str(ROOT / "scripts" / words[0]), *words[1:]]
        what = f"scripts/{' '.join(words)}"
        fix = f"see {self.log.name} in .tarn/logs"
        shell.logged(
            command, self.log, timeout_s=SCRIPT_TIMEOUT_S, what=what, fix=fix, env=self.env, cwd=ROOT
        )

    def containers(self) -> dict[str, str]:
        """Service -> id of its running container, without those of `docker compose run`."""
        form = '{{.ID}}\t{{.Label "com.docker.compose.service"}}'
        command = ["docker", "ps", "--format", form]
        for condition in (f"project={self.name}", "oneoff=False"):
            command += ["--filter", f"label=com.docker.compose.{condition}"]
        listed = shell.capture(command, timeout_s=30).out
        return {name: ident for ident, name in (row.split("\t") for row in listed.splitlines())}

    def look(self, watch: Watch) -> None:
        """Add one sample of all its running containers; takes about two seconds."""
        names = {ident: name for name, ident in self.containers().items()}
        form = "{{.ID}}\t{{.MemUsage}}"
        said = shell.capture(["docker", "stats", "--no-stream", "--format", form, *names], timeout_s=60).out
        watch.add({names[ident[:12]]: sizes for ident, sizes in sample(said).items() if ident[:12] in names})

    def watched(self, seconds: float) -> dict[str, Any]:
        """The summary of samples taken for `seconds`."""
        watch = Watch()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.look(watch)
        return watch.summary()


def measure() -> list[dict[str, Any]]:
    """Measure every stage once.

    Raises:
        StopError: a script failed.
    """
    found: dict[str, Any] = {}
    with own_stack() as own:
        for profile, stage in (("small", "small"), ("full", "idle")):
            own.env["TARN_PROFILE"] = profile
            own.script("up", "--yes", "--no-demo")
            found[stage] = _settled(own, stage)
        shell.must(
            ["docker", "compose", "--profile", "demo", "up", "--detach", "--no-build", "--no-deps", "replay"],
            timeout_s=120,
            fix=FIX,
            env=own.env,
            cwd=ROOT,
        )
        found["replay"] = _settled(own, "replay")
        line("load: a year of flights")
        found["load"] = _while(own, lambda: own.script("tarn", "demo", "load"))
    return [{"stages": found}]


def _settled(own: Own, stage: str) -> dict[str, Any]:
    time.sleep(SETTLE_S)
    found = own.watched(WATCH_S)
    line(f"{stage}: {found['all'].get('median_mib')} MiB")
    return found


def _while(own: Own, work: Any) -> dict[str, Any]:
    """The summary of samples taken while `work` runs.

    Raises:
        StopError: the work failed.
    """
    faults: list[StopError] = []

    def run() -> None:
        try:
            work()
        except StopError as error:
            faults.append(error)

    thread = threading.Thread(target=run)
    watch = Watch()
    thread.start()
    while thread.is_alive():
        own.look(watch)
    thread.join()
    if faults:
        raise faults[0]
    return watch.summary()


@contextmanager
def own_stack(kind: str = "memory", log: Path = LOG) -> Iterator[Own]:
    """A stack of the full profile under a project name of its own, removed at the end.

    Args:
        kind: suffix of its name.
        log: log file of its scripts.

    Raises:
        StopError: no block of ports is free.
    """
    here = project.load()
    name = f"{here.name}-{kind}"
    ports = checks.free_block(project.ports({}, project.COMPOSE_FILE.read_text(encoding="utf-8")))
    if not ports:
        raise StopError("no block of free ports was found", "stop another copy of Tarn first")
    env = {**here.env(), **ports, "COMPOSE_PROJECT_NAME": name, "TARN_PROFILE": "full"}
    own = Own(name=name, env=env, log=log)
    try:
        yield own
    finally:
        down = [str(ROOT / "scripts/down"), "--purge", "--yes"]
        shell.capture(down, timeout_s=300, env=env, cwd=ROOT)
        listed = shell.capture(
            ["docker", "image", "ls", "--format", "{{.Repository}}:{{.Tag}}"], timeout_s=30
        )
        ours = [
            image for image in listed.out.split() if image.startswith("tarn/") and image.endswith(f":{name}")
        ]
        if ours:
            shell.capture(["docker", "image", "rm", *ours], timeout_s=60)
        line(f"the stack {name} is removed")


def section(runs: Sequence[Mapping[str, Any]]) -> str:
    """The tables about one run. Pure."""
    stages = {name: runs[0]["stages"][name] for name in STAGES if name in runs[0]["stages"]}
    services = sorted({service for stage in stages.values() for service in stage["services"]})
    limits = {
        service: max(stage["services"].get(service, {}).get("limit_mib", 0) for stage in stages.values())
        for service in services
    }
    rows = [
        "| MiB | limit | " + " | ".join(TITLES[name] for name in stages) + " |",
        "|---|---" + "|---" * len(stages) + "|",
    ]
    for service in services:
        cells = [_cell(name, stage["services"].get(service)) for name, stage in stages.items()]
        rows.append(f"| {service} | {limits[service]} | " + " | ".join(cells) + " |")
    total = [f"**{_cell(name, stage['all'])}**" for name, stage in stages.items()]
    rows.append("| **all at once** | | " + " | ".join(total) + " |")
    aims = [
        f"{TITLES[name]}: {stages[name]['all']['median_mib']} of {aim} MiB aimed at"
        for name, aim in AIM_MIB.items()
        if name in stages
    ]
    small = stages.get("small", {}).get("services", {})
    left_out = ", ".join(f"`{name}`" for name in services if name not in (*small, lifecycle.REPLAY))
    return (
        "\n".join(rows)
        + "\n\nMedians, and in the last column the largest sample; a dash is a service that does not run "
        f"(the small profile leaves out {left_out}). " + "; ".join(aims) + ".\n"
    )


def _cell(stage: str, entry: Mapping[str, int] | None) -> str:
    if not entry or entry.get("limit_mib") == 0:
        return "\u2013"
    return str(entry["max_mib"] if stage == "load" else entry["median_mib"])
