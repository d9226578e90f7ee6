"""`docker info` as different engines print it, and the consequences for Tarn."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
from tarn_host.stack import engine, images
from tarn_host.stack.engine_kind import Kind, hinders, kind, warnings, why_not_up
from tarn_host.stack.project import ROOT

PLAIN: dict[str, Any] = {
    "Driver": "overlay2",
    "DriverStatus": [["Backing Filesystem", "extfs"], ["userxattr", "false"]],
    "SecurityOptions": ["name=seccomp,profile=default"],
    "OperatingSystem": "Debian GNU/Linux 12 (bookworm)",
    "OSType": "linux",
    "Architecture": "x86_64",
    "ServerVersion": "20.10.24+dfsg1",
    "Warnings": None,
    "ClientInfo": {"Context": "default"},
}
ROOTLESS = {
    **PLAIN,
    "SecurityOptions": ["name=seccomp,profile=builtin", "name=rootless", "name=cgroupns"],
    "Warnings": ["WARNING: No memory limit support", "WARNING: No swap limit support", "WARNING: bridge-nf"],
    "ClientInfo": {"Context": "rootless"},
}
CONTAINERD = {
    **PLAIN,
    "Driver": "overlayfs",
    "DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]],
    "ServerVersion": "29.0.2",
}
DESKTOP = {
    **CONTAINERD,
    "OperatingSystem": "Docker Desktop",
    "Architecture": "aarch64",
    "ClientInfo": {"Context": "desktop-linux"},
}
PODMAN_BEHIND_DOCKER = {**PLAIN, "BuildahVersion": "1.39.3", "ServerVersion": "5.4.2", "ClientInfo": {}}
PODMAN_CLIENT = {"host": {"arch": "amd64", "security": {"rootless": True}}, "store": {}, "version": {}}
WINDOWS = {**PLAIN, "OSType": "windows", "OperatingSystem": "Microsoft Windows Server 2022"}


@pytest.mark.parametrize(
    ("info", "wanted"),
    [
        (PLAIN, Kind(architecture="x86_64")),
        (CONTAINERD, Kind(containerd_store=True, architecture="x86_64")),
        (
            DESKTOP,
            Kind(desktop=True, containerd_store=True, context="desktop-linux", architecture="aarch64"),
        ),
        (
            ROOTLESS,
            Kind(
                rootless=True,
                context="rootless",
                limits_missing=("No memory limit support",),
                architecture="x86_64",
            ),
        ),
        (PODMAN_BEHIND_DOCKER, Kind(podman=True, architecture="x86_64")),
        (PODMAN_CLIENT, Kind(podman=True, rootless=True, architecture="amd64")),
        (WINDOWS, Kind(windows=True, architecture="x86_64")),
        ({}, Kind()),
    ],
)
def test_an_engine_is_known_by_what_it_says(info: dict[str, Any], wanted: Kind) -> None:
    assert kind(info) == wanted


def test_what_cannot_work_is_refused_and_the_rest_is_not() -> None:
    for info in (PLAIN, CONTAINERD, DESKTOP, ROOTLESS):
        assert hinders(str(info["ServerVersion"]), kind(info)) == []
    assert "Podman (5.4.2)" in hinders("5.4.2", kind(PODMAN_BEHIND_DOCKER))[0].what
    assert "Podman" in hinders("5.4.2", kind(PODMAN_CLIENT))[0].what
    assert "Linux containers" in hinders("27.0", kind(WINDOWS))[0].fix
    assert "20.10" in hinders("19.03.1", kind(PLAIN))[0].what


@pytest.mark.parametrize(
    ("version", "plugins", "missing"),
    [
        ("29.1.0", [{"Name": "compose"}], True),
        ("29.1.0", [{"Name": "compose"}, {"Name": "buildx", "Err": "cannot be run"}], True),
        ("29.1.0", [{"Name": "compose"}, {"Name": "buildx"}], False),
        ("20.10.24+dfsg1", [{"Name": "compose"}], False),
        ("29.1.0", None, False),
    ],
)
def test_a_client_that_cannot_build_is_known(version: str, plugins: Any, missing: bool) -> None:
    """From 23 on it builds by the plugin only."""
    found = kind({**PLAIN, "ClientInfo": {"Version": version, "Plugins": plugins}})
    assert found.no_builder is missing
    ready = engine.Engine("29.1", "", "2.40", "/", None, found)
    for debian in (False, True):
        here = engine.Machine(
            **{"linux": True, "root": True, "debian": debian, "has_dockerd": True, "systemd": True},
            **{"docker_host": "", "has_client": True},
        )
        wanted, problems = engine.plan(ready, here, offline=False)
        assert wanted.install_compose is (missing and debian), "unpacked with Compose"
        assert [one.what for one in problems if "buildx" in one.what] == [
            "Docker's client has no buildx, without which it builds no images"
        ] * (missing and not debian)


def test_what_no_test_covers_is_said() -> None:
    assert warnings(kind(PLAIN)) == []
    assert warnings(kind(CONTAINERD)) == []
    assert "aarch64" in warnings(kind(DESKTOP))[0]
    limits, rootless = warnings(kind(ROOTLESS))
    assert "No memory limit support" in limits
    assert "delegate" in limits
    assert "rootless" in rootless


def test_images_are_built_by_the_builder_that_has_the_base(monkeypatch: pytest.MonkeyPatch) -> None:
    """A docker-container builder selected by the user looks for `FROM tarn/base` in a registry."""
    found = engine.Engine("27.0", "", "2.30", "/", None, kind(DESKTOP))
    monkeypatch.setattr(engine, "look", lambda: found)
    assert images.own_builder() == {"BUILDX_BUILDER": "desktop-linux"}


@pytest.mark.parametrize(
    ("log", "said", "fix"),
    [
        (
            ["time=x level=info msg=up", "failed to start daemon: Devices cgroup isn't mounted"],
            "cgroup",
            "control",
        ),
        (
            [
                'level=error msg="failed to mount overlay: operation not permitted" storage-driver=overlay2',
                "failed to start daemon: error initializing graphdriver: driver not supported",
            ],
            "graphdriver",
            "TARN_ENGINE_DATA_ROOT",
        ),
        (
            [
                "failed to start daemon: Error initializing network controller: error creating default "
                '"bridge" network: Failed to Setup IP tables: iptables not found'
            ],
            "network controller",
            "install iptables",
        ),
        (
            ["failed to start daemon: pid file found, ensure docker is not running"],
            "pid file",
            "stop that one",
        ),
        (["failed to start daemon: mkdir /x: no space left on device"], "no space", "disk is full"),
        (["failed to start daemon: something new"], "something new", ""),
        ([], "", ""),
    ],
)
def test_why_an_engine_did_not_come_up_is_read_from_its_own_log(log: list[str], said: str, fix: str) -> None:
    found = why_not_up(log)
    assert said in found[0]
    assert fix in found[1]
    assert bool(found[1]) is bool(fix)


FROM_SOURCE = {"faust-streaming"}
"""Built from source on arm64; without a compiler their C parts are left out (docs/upgrading.md)."""


@pytest.mark.long
def test_every_compiled_package_of_the_lock_is_there_for_both_architectures() -> None:
    """Every package with a wheel for Linux on x86-64 has one for arm64, so that nothing must be compiled."""
    packages = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))["package"]
    compiled = {
        p["name"]: [wheel["url"] for wheel in p["wheels"]]
        for p in packages
        if any(re.search(r"manylinux.*x86_64", wheel["url"]) for wheel in p.get("wheels", ()))
    }
    assert len(compiled) > 20
    assert {
        n
        for n, urls in compiled.items()
        if not any(re.search(r"manylinux.*aarch64|-none-any", u) for u in urls)
    } == FROM_SOURCE
    assert all("sdist" in p for p in packages if p["name"] in FROM_SOURCE)
