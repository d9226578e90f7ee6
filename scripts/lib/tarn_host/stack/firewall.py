"""Firewall rules against neighbours that route packets to a container's own address.

A port published on 127.0.0.1 is still open to a packet whose destination is the container's address itself:
engines before 28 forward it through the bridge. Any host on the same network only needs a route.

If allowed, this script adds a chain for this project to DOCKER-USER that drops packets that do not come from
the same bridge. The host's own packets do not pass through it; replies to the containers' own connections are
accepted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tarn_host import shell
from tarn_host.console import Problem
from tarn_host.stack import engine, engine_kind, lifecycle
from tarn_host.stack.engine import Machine
from tarn_host.stack.project import ROOT, Project

CLOSED_SINCE = (28,)
"""Engine version from which the engine itself drops such packets."""
PROGRAMS = ("iptables", "iptables-nft", "iptables-legacy")
PARENT = "DOCKER-USER"
TIMEOUT_S = 20
CREATE_TIMEOUT_S = 120
LOCK_WAIT = "--wait=10"
_ANSWERS = "-m conntrack --ctstate RELATED,ESTABLISHED -j RETURN"
_PUBLISHED = "-m conntrack --ctstate DNAT -j RETURN"


@dataclass(frozen=True)
class Edge:
    """Whether packets from outside can reach this project's containers by their own addresses.

    Attributes:
        server: the engine's version.
        needed: whether the engine lets such packets in.
        is_set: whether rules keep them out; None if that cannot be read.
        hindrance: why rules cannot be set or read from here; empty if they can.
    """

    server: str
    needed: bool
    is_set: bool | None = None
    hindrance: str = ""

    @property
    def problem(self) -> Problem | None:
        """The problem to report; None if nothing is open."""
        if not self.needed or self.is_set:
            return None
        what = (
            f"NEIGHBOURS MAY COME IN: engine {self.server} lets packets through that are routed to a "
            "container's own address, past 127.0.0.1 (engines before 28 do), and no rules of this copy keep "
            "them out"
        )
        if self.hindrance:
            what += f": {self.hindrance}"
        elif self.is_set is None:
            what += ", as far as can be seen"
        what += ". From the same network, Trino and Spark's UI answer without a password"
        fix = (
            "run scripts/up as root on a machine with iptables, upgrade the engine to 28 or newer, or use "
            "this machine only in networks where you trust everybody"
        )
        return Problem(what, fix)


def is_needed(server: str, here: Machine) -> bool:
    """Whether an engine of this version lets such packets in, if its bridges are this machine's. Pure."""
    local = here.docker_host in ("", "unix:///var/run/docker.sock")
    return here.linux and local and engine_kind.version_tuple(server) < CLOSED_SINCE


def chain_of(name: str) -> str:
    """Name of a project's chain: at most 28 characters. Pure."""
    return f"TARN-{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def rules(chain: str, bridges: Sequence[str], *, published: bool) -> list[str]:
    """The chain's rules, as iptables prints them. Pure.

    Args:
        chain: its name.
        bridges: devices of the project's networks.
        published: whether the user published a port beyond the loopback: such ports stay open.
    """
    found = [f"-A {chain} {_ANSWERS}"]
    if published:
        found.append(f"-A {chain} {_PUBLISHED}")
    return found + [f"-A {chain} ! -i {bridge} -o {bridge} -j DROP" for bridge in sorted(bridges)]


def is_published_beyond(config: Mapping[str, Any]) -> bool:
    """Whether a port of Compose's configuration is published on more than the loopback. Pure."""
    ports = [port for service in config["services"].values() for port in service.get("ports") or ()]
    return any(not str(port.get("host_ip", "")).startswith(("127.", "::1")) for port in ports)


def close(here: Project, config: Mapping[str, Any]) -> Edge:
    """Keep neighbours out of this project's networks, if needed and allowed. Idempotent.

    Called before and after the services start: the networks are created first, so that no service is ever
    reachable.
    """
    edge = look(here)
    if not edge.needed or edge.hindrance:
        return edge
    _make_networks(here, config)
    program, chain = _program()[0], chain_of(here.name)
    wanted = rules(chain, _bridges(here.name), published=is_published_beyond(config))
    if program is None or (_listed(program, chain) == wanted and _is_entered(program, chain)):
        return look(here)
    # Declaring a chain flushes it, and iptables-restore applies everything atomically.
    text = "\n".join(["*filter", f":{chain} - [0:0]", *wanted, "COMMIT", ""])
    done = shell.capture([f"{program}-restore", "--noflush", LOCK_WAIT], timeout_s=TIMEOUT_S, text=text)
    if done.ok and not _is_entered(program, chain):
        _run(program, "-D", PARENT, "-j", chain)
        done = _run(program, "-I", PARENT, "1", "-j", chain)
    if not done.ok:
        return Edge(server=edge.server, needed=True, is_set=False, hindrance=f"{program}: {done.words()}")
    return look(here)


def look(here: Project) -> Edge:
    """The current state; changes nothing."""
    answer = shell.capture(["docker", "version", "--format", "{{.Server.Version}}"], timeout_s=TIMEOUT_S)
    server, machine = answer.out.strip(), engine.machine()
    if not answer.ok or not is_needed(server, machine) or engine.kind().is_apart:
        return Edge(server=server, needed=False)
    if not machine.root:
        return Edge(server=server, needed=True, hindrance="only root may set or see them")
    program, why = _program()
    if program is None:
        return Edge(server=server, needed=True, hindrance=why)
    chain = chain_of(here.name)
    listed = _listed(program, chain)
    drops = set(rules(chain, _bridges(here.name, in_use=True), published=False))
    return Edge(server=server, needed=True, is_set=drops <= set(listed) and _is_entered(program, chain))


def remove(name: str) -> bool:
    """Remove a project's rules; returns whether there were any. A no-op where there can be none."""
    if not (engine.machine().root and engine.machine().linux):
        return False
    program, chain = _program()[0], chain_of(name)
    if program is None or not _listed(program, chain):
        return False
    for words in (("-D", PARENT, "-j", chain), ("-F", chain), ("-X", chain)):
        _run(program, *words)
    return True


def _program() -> tuple[str | None, str]:
    """The iptables variant that the engine uses (the one that has its chain), or why there is none.

    The others are queried only if necessary: querying a variant makes the kernel create its tables.
    """
    said = []
    for program in PROGRAMS:
        listed = _run(program, "-S", PARENT)
        if listed.ok:
            return program, ""
        if listed.code != shell.NOT_FOUND:
            said.append(f"{program} knows no chain {PARENT}")
    return None, "; ".join(said) or "the program iptables is not there"


def _listed(program: str, chain: str) -> list[str]:
    """A chain's rules as iptables prints them; empty if it does not exist."""
    listed = _run(program, "-S", chain)
    return [text.strip() for text in listed.out.splitlines() if text.startswith("-A ")] if listed.ok else []


def _is_entered(program: str, chain: str) -> bool:
    """Whether packets reach the chain before the engine's own chain accepts them."""
    rows = [text.split() for text in _listed(program, PARENT)]
    plain = [row[2:] for row in rows if len(row) == 4 and row[2] == "-j"]
    return ["-j", chain] in plain and ["-j", "RETURN"] not in plain[: plain.index(["-j", chain])]


def _run(program: str, *words: str) -> shell.Result:
    return shell.capture([program, LOCK_WAIT, *words], timeout_s=TIMEOUT_S)


def _bridges(name: str, *, in_use: bool = False) -> list[str]:
    """Devices of a project's networks; with `in_use` only of those with running containers."""
    label = f"label=com.docker.compose.project={name}"
    listed = shell.capture(["docker", "network", "ls", "--quiet", "--filter", label], timeout_s=TIMEOUT_S)
    identities = listed.out.split() if listed.ok else []
    if not identities:
        return []
    inspected = shell.capture(["docker", "network", "inspect", *identities], timeout_s=TIMEOUT_S)
    return bridges_of(json.loads(inspected.out or "[]"), in_use=in_use)


def bridges_of(networks: Sequence[Mapping[str, Any]], *, in_use: bool) -> list[str]:
    """Devices of networks as the engine describes them. Pure."""
    kept = [n for n in networks if n["Driver"] == "bridge" and (n.get("Containers") or not in_use)]
    named = "com.docker.network.bridge.name"
    return sorted((n.get("Options") or {}).get(named) or f"br-{n['Id'][:12]}" for n in kept)


def _make_networks(here: Project, config: Mapping[str, Any]) -> None:
    """Let Compose create containers and networks without starting them, if a network is missing.

    A failure is not reported here: the following start fails for the same reason and reports it.
    """
    services = lifecycle.of_profile(config, here.profile)
    names = lifecycle.to_start(services)
    wanted = {network for name in names for network in services["services"][name].get("networks") or ()}
    label = f"label=com.docker.compose.project={here.name}"
    form = ["--filter", label, "--format", '{{.Label "com.docker.compose.network"}}']
    listed = shell.capture(["docker", "network", "ls", *form], timeout_s=TIMEOUT_S)
    if wanted <= set(listed.out.split()):
        return
    command = ["docker", "compose", "create", "--no-build", "--pull", "never", *names]
    shell.capture(command, timeout_s=CREATE_TIMEOUT_S, env=here.env(), cwd=ROOT)
