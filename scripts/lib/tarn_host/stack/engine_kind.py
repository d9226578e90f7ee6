"""The kind of engine, from `docker info`, and what prevents Tarn from running in it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tarn_host.console import Problem

ENGINE_AT_LEAST = (20, 10)


@dataclass(frozen=True)
class Kind:
    """Kind of engine.

    Attributes:
        podman: Podman, by its own client or behind Docker's.
        rootless: it runs without root.
        desktop: it runs in a virtual machine of Docker Desktop.
        windows: it runs Windows containers.
        containerd_store: images are kept by containerd (the default of new installations from 29 on).
        limits_missing: memory or process limits that it does not enforce, in its own words.
        context: the client's context; the builder of that name has the engine's images.
        architecture: architecture of the machine that the engine runs on.
        no_builder: its client needs the plugin buildx to build images, and has none.
    """

    podman: bool = False
    rootless: bool = False
    desktop: bool = False
    windows: bool = False
    containerd_store: bool = False
    limits_missing: tuple[str, ...] = ()
    context: str = "default"
    architecture: str = ""
    no_builder: bool = False

    @property
    def is_apart(self) -> bool:
        """Whether no route from outside leads to its bridges.

        Docker Desktop runs in a virtual machine of its own, and a rootless engine's bridges are in a network
        namespace of its own.
        """
        return self.desktop or self.rootless

    def words(self) -> str:
        """Its special properties on one line; empty if there are none."""
        said = ["rootless"] if self.rootless else []
        said += ["Docker Desktop"] if self.desktop else []
        said += ["containerd's image store"] if self.containerd_store else []
        return ", ".join(said)


def kind(info: Mapping[str, Any]) -> Kind:
    """The kind of engine, from the JSON of `docker info` (Docker's, or Podman's own form)."""
    host = info.get("host")
    if isinstance(host, Mapping):  # `podman info`, where `docker` is Podman's client
        security = host.get("security") or {}
        return Kind(
            podman=True, rootless=bool(security.get("rootless")), architecture=str(host.get("arch", ""))
        )
    client = info.get("ClientInfo") or {}
    status = [" ".join(str(word) for word in row) for row in info.get("DriverStatus") or ()]
    warnings = [str(one) for one in info.get("Warnings") or ()]
    return Kind(
        podman="BuildahVersion" in info or "podman" in str(info.get("InitBinary", "")).lower(),
        rootless=any("name=rootless" in str(one) for one in info.get("SecurityOptions") or ()),
        desktop=str(info.get("OperatingSystem", "")).startswith("Docker Desktop"),
        windows=info.get("OSType") == "windows",
        containerd_store=any("io.containerd.snapshotter" in one for one in status),
        limits_missing=tuple(
            one.removeprefix("WARNING: ") if hasattr(one, "removeprefix") else one
            for one in warnings
            if re.search(r"no (memory|pids|swap) limit support", one, re.IGNORECASE)
            and "swap" not in one.lower()
        ),
        context=str(client.get("Context") or "default"),
        architecture=str(info.get("Architecture", "")),
        no_builder=_has_no_builder(client),
    )


def _has_no_builder(client: Mapping[str, Any]) -> bool:
    """Whether a client's description names its plugins, and not the one that it builds by (23 and later)."""
    plugins = client.get("Plugins") or ()
    usable = {one.get("Name") for one in plugins if isinstance(one, Mapping) and not one.get("Err")}
    return bool(usable) and "buildx" not in usable and version_tuple(str(client.get("Version", ""))) >= (23,)


def version_tuple(text: str) -> tuple[int, ...]:
    """The leading numbers of a version, for example (2, 26, 1) for `v2.26.1-4`."""
    match = re.match(r"\s*v?(\d+(?:\.\d+)*)", text)
    return tuple(int(part) for part in match.group(1).split(".")) if match else ()


def hinders(server: str, what: Kind) -> list[Problem]:
    """Why Tarn cannot run in this engine; empty if it can."""
    if what.podman:
        return [
            Problem(
                f"the container engine is Podman ({server}), which Tarn was not made for: its images are "
                "built by BuildKit, and services that end are started again by Docker's engine",
                "install Docker Engine 20.10 or newer beside it and point the client there: docker context "
                "use default, and unset DOCKER_HOST",
            )
        ]
    if what.windows:
        return [
            Problem(
                f"the container engine {server} runs Windows containers",
                "switch Docker Desktop to Linux containers (the menu of its icon)",
            )
        ]
    if version_tuple(server)[:2] < ENGINE_AT_LEAST and version_tuple(server):
        wanted = ".".join(str(part) for part in ENGINE_AT_LEAST)
        return [
            Problem(
                f"the container engine is {server}; needed is {wanted} or newer",
                "upgrade Docker Engine (https://docs.docker.com/engine/install)",
            )
        ]
    return []


def warnings(what: Kind) -> list[str]:
    """Limitations of this engine to report before anything starts, a sentence each."""
    said = []
    if what.limits_missing:
        listed = "; ".join(what.limits_missing)
        how = (
            "delegate the controllers to this user (systemd, cgroup v2)" if what.rootless else "use cgroup v2"
        )
        said.append(
            f"the engine enforces no such limits, so one service can take all memory: {listed}. Cure: {how}"
        )
    if what.rootless:
        said.append("the engine runs rootless, which no test of this version covers")
    if what.architecture and what.architecture not in ("x86_64", "amd64"):
        said.append(
            f"this is {what.architecture}: everything is built for it, which no test of this version covers"
        )
    return said


FAULTS: Sequence[tuple[str, str]] = (
    (
        r"cgroup.*(isn't mounted|not mounted|does not exist|not found|no such file|cannot find)",
        "this machine has no control groups mounted (a container without the rights for them?): mount "
        "/sys/fs/cgroup, or run Tarn where they are",
    ),
    (
        r"iptables|nf_tables|nftables|ip_tables|firewall backend",
        "the engine cannot set its network rules: install iptables, load the kernel's modules for it "
        "(modprobe ip_tables, or nf_tables), or run as a root that may",
    ),
    (
        r"no space left on device|disk quota exceeded",
        "the disk is full: free some space, or name a folder on another disk in TARN_ENGINE_DATA_ROOT",
    ),
    (
        r"(storage|graph) ?driver|overlay|snapshotter|failed to mount",
        "the file system under the data root does not carry the engine's layers: name a folder on ext4 or "
        "xfs in TARN_ENGINE_DATA_ROOT",
    ),
    (
        r"containerd",
        "containerd does not start: look for another one that runs, and whether its package is whole",
    ),
    (
        r"pid file found|is still running|address already in use|docker\.sock.*in use",
        "another dockerd is there, or its socket: stop that one first",
    ),
    (
        r"operation not permitted|permission denied",
        "this machine withholds rights that an engine needs (inside a container: run it with --privileged, "
        "or use the outer engine)",
    ),
)
"""dockerd's error when it gives up -> the fix; the first match wins."""


def why_not_up(log: Sequence[str]) -> tuple[str, str]:
    """The line in which dockerd says why it gave up, and the fix; empty strings if there is none."""
    last = [text for text in log if text.strip()]
    found = [
        text for text in last if re.search(r"failed to start daemon|level=fatal|^Error ", text, re.IGNORECASE)
    ]
    said = (found or [text for text in last if "level=error" in text] or last[-1:])[-1:]
    if not said:
        return "", ""
    for pattern, fix in FAULTS:
        if re.search(pattern, said[0], re.IGNORECASE):
            return said[0], fix
    return said[0], ""
