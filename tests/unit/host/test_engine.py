"""How an engine is obtained, or why not: state in, plan out."""

from __future__ import annotations

import dataclasses
import socket

import pytest
from tarn_host import shell
from tarn_host.stack import apt, engine
from tarn_host.stack.engine import Engine, Machine, Plan, packages, plan
from tarn_host.stack.engine_kind import Kind, version_tuple

UP = Engine(
    server="20.10.24", error="", compose="2.26.1-4", data_root="/var/lib/docker", memory_bytes=8 << 30
)
DEAD = dataclasses.replace(UP, server=None, error="Cannot connect to the Docker daemon", memory_bytes=None)
DEBIAN_ROOT = Machine(linux=True, root=True, debian=True, has_dockerd=False, systemd=False, docker_host="")


def test_nothing_is_done_where_engine_and_compose_answer() -> None:
    assert plan(UP, DEBIAN_ROOT, offline=True) == (Plan(), [])


def test_a_client_without_an_engine_on_debian_gets_one() -> None:
    wanted, problems = plan(DEAD, DEBIAN_ROOT, offline=False)
    assert wanted == Plan(install_engine=True, install_compose=False, start=True)
    assert problems == []


def test_an_installed_but_sleeping_engine_is_only_started_even_offline() -> None:
    here = dataclasses.replace(DEBIAN_ROOT, has_dockerd=True)
    assert plan(DEAD, here, offline=True) == (Plan(start=True), [])


def test_everything_missing_on_debian() -> None:
    wanted, problems = plan(dataclasses.replace(DEAD, compose=None), DEBIAN_ROOT, offline=False)
    assert wanted == Plan(install_engine=True, install_compose=True, start=True)
    assert problems == []


@pytest.mark.parametrize(
    ("here", "words", "fix"),
    [
        (dataclasses.replace(DEBIAN_ROOT, root=False), "no container engine answers", "as root"),
        (
            dataclasses.replace(DEBIAN_ROOT, debian=False),
            "no container engine answers",
            "Docker Engine 20.10",
        ),
        (dataclasses.replace(DEBIAN_ROOT, linux=False), "no container engine answers", "Docker Desktop"),
        (
            dataclasses.replace(DEBIAN_ROOT, docker_host="tcp://127.0.0.1:1"),
            "tcp://127.0.0.1:1",
            "unset DOCKER_HOST",
        ),
    ],
)
def test_no_engine_and_no_way_to_one_names_the_fix(here: Machine, words: str, fix: str) -> None:
    wanted, problems = plan(DEAD, here, offline=False)
    assert wanted == Plan()
    assert len(problems) == 1
    assert words in problems[0].what
    assert fix in problems[0].fix


def test_a_refused_user_is_told_about_the_group() -> None:
    refused = dataclasses.replace(
        DEAD, error="permission denied while trying to connect to the Docker daemon socket"
    )
    wanted, problems = plan(refused, DEBIAN_ROOT, offline=False)
    assert wanted == Plan()
    assert "group `docker`" in problems[0].fix


@pytest.mark.parametrize("compose", [None, "2.19.9", "1.29.2"])
def test_old_or_missing_compose(compose: str | None) -> None:
    found = dataclasses.replace(UP, compose=compose)
    assert plan(found, DEBIAN_ROOT, offline=False) == (Plan(install_compose=True), [])
    wanted, problems = plan(found, dataclasses.replace(DEBIAN_ROOT, debian=False), offline=False)
    assert wanted == Plan()
    assert "2.20" in problems[0].what
    assert compose is None or compose in problems[0].what


@pytest.mark.parametrize(("compose", "taken"), [("2.23.3", False), ("2.24.3", False), ("2.24.4", True)])
def test_a_compose_file_on_top_needs_a_newer_compose(compose: str, taken: bool) -> None:
    found = dataclasses.replace(UP, compose=compose)
    other = dataclasses.replace(DEBIAN_ROOT, debian=False)
    assert plan(found, other, offline=False) == (Plan(), [])
    _, problems = plan(found, other, offline=False, overlay="catalog/replicas/compose.yml")
    assert (problems == []) == taken
    if not taken:
        assert problems[0].what == (
            f"Docker Compose is {compose}; needed is 2.24.4 for catalog/replicas/compose.yml, or newer"
        )


def test_offline_refuses_what_would_need_the_network() -> None:
    _, problems = plan(DEAD, DEBIAN_ROOT, offline=True)
    assert len(problems) == 1
    assert "--pull never" in problems[0].fix


@pytest.mark.parametrize(
    ("text", "wanted"), [("2.26.1-4", (2, 26, 1)), ("v2.20.0", (2, 20, 0)), ("dev", ()), (" 5.1 ", (5, 1))]
)
def test_version_tuple(text: str, wanted: tuple[int, ...]) -> None:
    assert version_tuple(text) == wanted


@pytest.mark.parametrize("server", ["19.03.15", "18.09.1", "1.13.1"])
def test_an_engine_that_is_too_old_is_named_before_anything_is_built(server: str) -> None:
    _, problems = plan(dataclasses.replace(UP, server=server), DEBIAN_ROOT, offline=False)
    (found,) = problems
    assert server in found.what
    assert "20.10" in found.what
    assert "upgrade" in found.fix


def test_an_engine_of_another_kind_is_named() -> None:
    podman = dataclasses.replace(UP, server="5.4.2", kind=Kind(podman=True))
    _, problems = plan(podman, DEBIAN_ROOT, offline=False)
    assert "Podman (5.4.2)" in problems[0].what
    assert "install Docker Engine" in problems[0].fix


def test_a_daemon_without_its_client_gets_the_client() -> None:
    """Debian 13 without the packages that docker.io only recommends."""
    here = dataclasses.replace(DEBIAN_ROOT, has_dockerd=True, has_client=False)
    wanted, problems = plan(dataclasses.replace(DEAD, error="docker: not found"), here, offline=False)
    assert wanted == Plan(install_client=True, start=True)
    assert "docker-cli" in wanted.words()
    assert problems == []
    _, problems = plan(DEAD, here, offline=True)
    assert "needs the network" in problems[0].what


def test_a_daemon_without_its_client_is_named_where_it_cannot_be_installed() -> None:
    here = dataclasses.replace(DEBIAN_ROOT, has_dockerd=True, has_client=False, root=False)
    wanted, problems = plan(DEAD, here, offline=False)
    assert wanted == Plan()
    assert "program `docker`" in problems[0].what
    assert "docker-cli" in problems[0].fix


BOOKWORM = """docker-cli:
  Installed: (none)
  Candidate: (none)
  Version table:
docker.io:
  Installed: (none)
  Candidate: 20.10.24+dfsg1-1+deb12u1
  Version table:
     20.10.24+dfsg1-1+deb12u1 500
        500 http://deb.example/debian bookworm/main amd64 Packages
"""
TRIXIE = """docker.io:
  Installed: (none)
  Candidate: 26.1.5+dfsg1-9+deb13u1
  Version table:
     26.1.5+dfsg1-9+deb13u1 500
        500 http://deb.example/debian trixie/main amd64 Packages
docker-cli:
  Installed: (none)
  Candidate: 26.1.5+dfsg1-9+deb13u1
  Version table:
"""


@pytest.mark.parametrize(
    ("policy", "wanted"),
    [
        ("", ["docker.io", "debootstrap", "iptables"]),
        (BOOKWORM, ["docker.io", "debootstrap", "iptables"]),
        (TRIXIE, ["docker.io", "docker-cli", "debootstrap", "iptables"]),
    ],
)
def test_the_client_is_installed_where_it_is_a_package_of_its_own(policy: str, wanted: list[str]) -> None:
    assert packages(apt.candidates(policy)) == wanted


def test_an_engine_of_another_machine_is_refused() -> None:
    wanted, [problem] = plan(dataclasses.replace(UP, remote="ssh://me@far"), DEBIAN_ROOT, offline=False)
    assert wanted == Plan()
    assert "ssh://me@far" in problem.what
    assert "docker context use default" in problem.fix


@pytest.mark.parametrize(
    ("endpoint", "is_remote"),
    [
        ("", False),
        ("unix:///var/run/docker.sock", False),
        ("unix:///Users/me/.colima/default/docker.sock", False),
        ("npipe:////./pipe/docker_engine", False),
        ("fd://", False),
        ("ssh://me@localhost", False),
        ("ssh://127.0.0.1:2222", False),
        ("tcp://localhost:2375", False),
        ("tcp://127.0.0.1:2375", False),
        ("tcp://:2375", False),
        ("tcp://own:2375", False),
        ("ssh://me@far", True),
        ("tcp://192.0.2.7:2376", True),
        ("https://192.0.2.7:2376", True),
        ("ssh://alias-of-ssh-only", True),
        ("tcp://[bad", False),
    ],
)
def test_only_an_address_of_another_machine_is_remote(
    endpoint: str, is_remote: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"own": "127.0.0.1", "127.0.0.1": "127.0.0.1", "far": "192.0.2.7", "192.0.2.7": "192.0.2.7"}

    def look_up(host: str, port: int, **_: object) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        if host not in known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (known[host], port))]

    monkeypatch.setattr(engine.socket, "getaddrinfo", look_up)
    assert engine.remote(endpoint) == (endpoint if is_remote else "")


@pytest.mark.parametrize(("server", "found"), [("29.0.0", "tcp://192.0.2.7:1"), ("", "")])
def test_the_endpoint_is_that_of_the_client(server: str, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"version": server, "context": "tcp://192.0.2.7:1\n", "info": "{}"}
    monkeypatch.setattr(
        engine.shell, "capture", lambda command, **_: shell.Result(0, said.get(command[1], ""), "")
    )
    assert engine.look().remote == found
