"""The compose file's settings for ports, rights and limits, in the file and on the running containers."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tarn_host.stack import project

from tarn.core.credentials import UIDS
from tests.support import reference
from tests.support.stack import LONG_RUNNING, Stack

EXTRA_CAPS = {"init": {"CHOWN", "FOWNER", "DAC_OVERRIDE"}}
PIDS_MAX = 1024
KERNELS_PIDS_MAX = 4096
"""Of JupyterLab, where each of many kernels has more than twenty threads."""


def pids_max(service: str) -> int:
    return KERNELS_PIDS_MAX if service == "jupyter" else PIDS_MAX


@pytest.fixture(scope="module")
def services(stack: Stack) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = stack.config()["services"]
    assert len(found) >= 9
    return found


def test_every_service_is_confined(services: dict[str, dict[str, Any]]) -> None:
    for name, service in services.items():
        assert service["cap_drop"] == ["ALL"], name
        assert set(service.get("cap_add", [])) == EXTRA_CAPS.get(name, set()), name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert 0 < int(service["pids_limit"]) <= pids_max(name), name
        assert 0 < int(service["mem_limit"]) <= 4 << 30, name
        assert service["read_only"] is True, name
        assert service["init"] is True, name
        assert not service.get("privileged"), name
        assert "container_name" not in service, name
        assert service.get("network_mode") in (None, "none"), name
        assert "pid" not in service, name
        assert "docker.sock" not in str(service.get("volumes")), name


def test_every_port_is_on_loopback_and_from_a_variable(
    stack: Stack, services: dict[str, dict[str, Any]]
) -> None:
    published = [port for service in services.values() for port in service.get("ports", [])]
    assert {port["published"] for port in published} == set(stack.ports.values())
    assert {port["host_ip"] for port in published} == {"127.0.0.1"}


def test_the_running_containers_are_as_the_file_says(stack: Stack) -> None:
    for service in LONG_RUNNING:
        found = stack.inspect(service)
        host = found["HostConfig"]
        assert host["CapDrop"] == ["ALL"], service
        assert not host["CapAdd"], service
        assert host["Privileged"] is False, service
        assert "no-new-privileges:true" in host["SecurityOpt"], service
        assert host["ReadonlyRootfs"] is True, service
        assert 0 < host["PidsLimit"] <= pids_max(service), service
        assert 0 < host["Memory"] <= 4 << 30, service
        user = stack.said_inside(service, "id", "-u").strip()
        assert user not in ("", "0"), f"{service} runs as root"
        for bindings in (found["NetworkSettings"]["Ports"] or {}).values():
            for binding in bindings or []:
                assert binding["HostIp"] == "127.0.0.1", service


def test_users_are_those_of_the_reference(stack: Stack) -> None:
    wanted = {name: uid for name, uid in reference.uids().items() if name in LONG_RUNNING}
    assert set(wanted) == set(LONG_RUNNING)
    assert {name: int(stack.said_inside(name, "id", "-u")) for name in wanted} == wanted


def test_ports_are_those_of_the_reference() -> None:
    text = project.COMPOSE_FILE.read_text(encoding="utf-8")
    documented = {name: number for number, name in re.findall(r"(\d+) `(TARN_PORT_\w+)`", reference.TEXT)}
    assert project.ports({}, text) == documented


def test_secrets_go_to_their_one_consumer_and_read_only(services: dict[str, dict[str, Any]]) -> None:
    for name, service in services.items():
        if name == "init":
            continue
        secrets = [f"secrets-{name}"] if name in UIDS else []
        mounted = [v for v in service.get("volumes", []) if str(v.get("source", "")).startswith("secrets-")]
        assert [v["source"] for v in mounted] == secrets, name
        wanted = [("/run/tarn/secrets", True)] * len(secrets)
        assert [(v["target"], v.get("read_only")) for v in mounted] == wanted, name
