"""docker-compose.yml as data, without Compose: which services there are, and where their images come from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
LONG_RUNNING = tuple(name for name, service in SERVICES.items() if service.get("restart") == "unless-stopped")
"""Services that run until they are stopped, and are then healthy or not."""

_ADDRESS = re.compile(r"(?:^|[/,])([a-z][a-z0-9-]*):(\d{2,5})\b")


def addresses(service: str) -> set[str]:
    """`service:port` of every other service that the settings of one name."""
    values = " ".join(f",{value}" for value in SERVICES[service].get("environment", {}).values())
    found = _ADDRESS.findall(values)
    return {f"{host}:{port}" for host, port in found if host in SERVICES and host != service}


def image_of(service: str) -> str:
    """The short name of a service's image, for example `services` for `tarn/services:<tag>`."""
    return str(SERVICES[service]["image"]).partition(":")[0].removeprefix("tarn/")


def dockerfile_of(service: str) -> str:
    """The text of the Dockerfile of a service's image, each instruction on one line."""
    path = ROOT / SERVICES[service]["build"]["dockerfile"]
    return path.read_text(encoding="utf-8").replace("\\\n", " ")


def user_of(service: str) -> int:
    """The uid, and gid, that a service runs as: what Compose says, else the last USER of its image.

    Raises:
        AssertionError: uid and gid are not the same number.
    """
    last = re.findall(r"^USER (\S+)", dockerfile_of(service), re.MULTILINE)[-1]
    user = SERVICES[service].get("user", last)
    uid, _, gid = str(user).partition(":")
    assert uid == gid, f"{service}: uid and gid are the same number, {user}"
    return int(uid)


def probe_of(service: str) -> Path:
    """The probe of a service: what its image has at the place where its health check looks.

    Raises:
        AssertionError: the image has no such file; the message says what to add where.
    """
    runner = "/opt/tarn/probe/runner.py"
    command = (SERVICES[service].get("healthcheck") or {}).get("test") or [runner]
    assert runner in command, f"docker-compose.yml: the health check of {service} does not run {runner}"
    name = "".join(command[command.index(runner) + 1 :]) or "service"
    target = f"/opt/tarn/probe/{name}.py"
    found = re.findall(rf"^COPY --chmod=0644 (\S+) {target}$", dockerfile_of(service), re.MULTILINE)
    dockerfile = SERVICES[service]["build"]["dockerfile"]
    assert len(found) == 1, f"{dockerfile}: copy the probe of {service} to {target} (COPY --chmod=0644)"
    return ROOT / found[0]
