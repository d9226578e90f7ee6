"""Keeping neighbours out: when it is needed, the rules, and the message if they cannot be set."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tarn_host.doctor.judge import judge
from tarn_host.shell import NOT_FOUND, Result
from tarn_host.stack import firewall
from tarn_host.stack.engine import Machine
from tarn_host.stack.firewall import Edge, bridges_of, chain_of, is_needed, is_published_beyond, rules
from tarn_host.stack.project import Project

from tests.unit.host.test_doctor import WELL

LINUX = Machine(linux=True, root=True, debian=True, has_dockerd=True, systemd=False, docker_host="")
HERE = Project(name="tarn-1", base="b", own_base=False, settings={})
CONFIG: dict[str, Any] = {
    "services": {
        "init": {"network_mode": "none"},
        "minio": {
            "networks": {"store": None},
            "ports": [{"host_ip": "127.0.0.1", "target": 9000, "published": "9000"}],
            "depends_on": {"init": {"condition": "service_completed_successfully"}},
        },
    }
}
STORE = {"Id": "0123456789abcdef", "Driver": "bridge", "Options": {}, "Containers": {"c": {}}}


@pytest.mark.parametrize(
    ("server", "changes", "needed"),
    [
        ("20.10.24+dfsg1", {}, True),
        ("27.5.1", {}, True),
        ("28.0.0", {}, False),
        ("29.1.0-rc.1", {}, False),
        ("20.10.24", {"linux": False}, False),
        ("20.10.24", {"docker_host": "tcp://10.0.0.7:2375"}, False),
        ("20.10.24", {"docker_host": "unix:///var/run/docker.sock"}, True),
    ],
)
def test_rules_are_needed_for_engines_before_28_on_this_machine(
    server: str, changes: dict[str, Any], needed: bool
) -> None:
    assert is_needed(server, dataclasses.replace(LINUX, **changes)) is needed


def test_the_chain_lets_answers_pass_and_drops_what_comes_from_elsewhere() -> None:
    chain = chain_of("tarn-1")
    assert len(chain) <= 28
    assert chain != chain_of("tarn-2")
    assert rules(chain, ["br-b", "br-a"], published=False) == [
        f"-A {chain} -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN",
        f"-A {chain} ! -i br-a -o br-a -j DROP",
        f"-A {chain} ! -i br-b -o br-b -j DROP",
    ]


def test_what_the_user_publishes_to_others_stays_open() -> None:
    assert not is_published_beyond(CONFIG)
    minio = {**CONFIG["services"]["minio"], "ports": [{"target": 9000, "published": "9000"}]}
    assert is_published_beyond({"services": {**CONFIG["services"], "minio": minio}})
    assert "-A C -m conntrack --ctstate DNAT -j RETURN" in rules("C", ["br-a"], published=True)[:-1]


def test_bridges_are_named_as_the_engine_names_them() -> None:
    own = {**STORE, "Id": "f" * 20, "Options": {"com.docker.network.bridge.name": "own0"}, "Containers": {}}
    other = {**STORE, "Driver": "macvlan"}
    assert bridges_of([STORE, own, other], in_use=False) == ["br-0123456789ab", "own0"]
    assert bridges_of([STORE, own, other], in_use=True) == ["br-0123456789ab"]


class Host:
    """A fake engine and iptables; `DOCKER-USER` exists unless a test removes it."""

    def __init__(self, server: str = "20.10.24", programs: Sequence[str] = ("iptables",)) -> None:
        self.server = server
        self.programs = programs
        self.chains: dict[str, list[str]] = {"DOCKER-USER": ["-A DOCKER-USER -j RETURN"]}
        self.networks = [STORE]
        self.info: dict[str, Any] = {"SecurityOptions": ["name=seccomp,profile=default"]}
        self.ran: list[list[str]] = []

    def capture(self, command: Sequence[str], *, text: str = "", **_: Any) -> Result:
        words = [word for word in command if not word.startswith("--wait")]
        self.ran.append(words)
        if words[0] == "docker":
            return Result(0, self.docker(words[1:]), "")
        if words[0].removesuffix("-restore") not in self.programs:
            return Result(NOT_FOUND, "", "not found")
        if words[0].endswith("-restore"):
            chain = text.split()[1].lstrip(":")
            self.chains[chain] = [row for row in text.splitlines() if row.startswith("-A ")]
            return Result(0, "", "")
        return self.iptables(*words[1:])

    def docker(self, words: list[str]) -> str:
        if words[0] == "version":
            return self.server + "\n"
        if words[0] == "info":
            return json.dumps(self.info)
        if words[:2] == ["network", "inspect"]:
            return json.dumps(self.networks)
        if words[:2] == ["network", "ls"]:
            return "\n".join("store" if "--format" in words else n["Id"] for n in self.networks)
        assert words[:2] == ["compose", "create"], words
        self.networks = [STORE]
        return ""

    def iptables(self, action: str, chain: str, *words: str) -> Result:
        if chain not in self.chains:
            return Result(1, "", "No chain/target/match by that name.")
        if action == "-S":
            return Result(0, "\n".join([f"-N {chain}", *self.chains[chain]]), "")
        if action == "-I":
            self.chains[chain].insert(0, f"-A {chain} {' '.join(words[1:])}")
        elif action == "-D":
            row = f"-A {chain} {' '.join(words)}"
            if row not in self.chains[chain]:
                return Result(1, "", "Bad rule")
            self.chains[chain].remove(row)
        elif action == "-F":
            self.chains[chain] = []
        elif action == "-X":
            del self.chains[chain]
        return Result(0, "", "")


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    found = Host()
    monkeypatch.setattr(firewall.shell, "capture", found.capture)
    monkeypatch.setattr(firewall.engine, "machine", lambda: LINUX)
    return found


def changes(host: Host) -> list[list[str]]:
    return [words for words in host.ran if words[0] != "docker" and words[1] != "-S"]


def test_rules_are_set_once_and_again_when_they_are_gone(host: Host) -> None:
    assert firewall.look(HERE).is_set is False
    assert firewall.close(HERE, CONFIG) == Edge(server="20.10.24", needed=True, is_set=True)
    chain = chain_of("tarn-1")
    assert host.chains["DOCKER-USER"] == [f"-A DOCKER-USER -j {chain}", "-A DOCKER-USER -j RETURN"]
    assert host.chains[chain] == rules(chain, ["br-0123456789ab"], published=False)
    host.ran.clear()
    assert firewall.close(HERE, CONFIG).problem is None
    assert changes(host) == [], "nothing is changed where all is set"
    host.chains["DOCKER-USER"] = ["-A DOCKER-USER -j RETURN"]
    assert firewall.look(HERE).problem is not None
    assert firewall.close(HERE, CONFIG).problem is None
    host.networks = [{**STORE, "Id": "fedcba9876543210"}]
    assert firewall.look(HERE).is_set is False, "networks that were made again have other bridges"
    assert firewall.close(HERE, CONFIG).is_set


def test_a_jump_behind_the_engines_return_counts_for_nothing(host: Host) -> None:
    firewall.close(HERE, CONFIG)
    host.chains["DOCKER-USER"].reverse()
    assert firewall.look(HERE).is_set is False
    firewall.close(HERE, CONFIG)
    assert host.chains["DOCKER-USER"][0].endswith(chain_of("tarn-1"))
    assert len(host.chains["DOCKER-USER"]) == 2


def test_networks_are_made_before_anything_starts(host: Host) -> None:
    host.networks = []
    firewall.close(HERE, CONFIG)
    assert ["docker", "compose", "create", "--no-build", "--pull", "never", "minio"] in host.ran
    assert firewall.look(HERE).is_set


def test_they_are_taken_away_without_a_trace(host: Host) -> None:
    firewall.close(HERE, CONFIG)
    assert firewall.remove("tarn-1")
    assert host.chains == {"DOCKER-USER": ["-A DOCKER-USER -j RETURN"]}
    assert not firewall.remove("tarn-1")
    assert {words[0] for words in host.ran} - {"docker"} == {"iptables", "iptables-restore"}


def test_an_engine_that_closes_the_way_itself_is_left_alone(host: Host) -> None:
    host.server = "28.2.2"
    assert firewall.close(HERE, CONFIG).problem is None
    assert changes(host) == []
    assert [words for words in host.ran if words[1] == "info"] == []


@pytest.mark.parametrize(
    "info", [{"SecurityOptions": ["name=rootless"]}, {"OperatingSystem": "Docker Desktop"}]
)
def test_an_engine_whose_bridges_are_elsewhere_is_left_alone(host: Host, info: dict[str, Any]) -> None:
    host.info = info
    assert firewall.close(HERE, CONFIG).problem is None
    assert changes(host) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"root": False}, "only root may"),
        ({"programs": ()}, "iptables is not there"),
        ({"chains": {}}, "iptables knows no chain DOCKER-USER"),
    ],
)
def test_where_they_cannot_be_set_it_is_said_loudly(
    host: Host, monkeypatch: pytest.MonkeyPatch, change: Mapping[str, Any], said: str
) -> None:
    for name, value in change.items():
        setattr(host, name, value)
    if "root" in change:
        monkeypatch.setattr(firewall.engine, "machine", lambda: dataclasses.replace(LINUX, root=False))
    edge = firewall.close(HERE, CONFIG)
    assert changes(host) == []
    assert edge.problem is not None
    assert "NEIGHBOURS MAY COME IN: engine 20.10.24" in edge.problem.what
    assert said in edge.problem.what
    assert "28 or newer" in edge.problem.fix


def test_the_doctor_names_what_is_open() -> None:
    is_open = dataclasses.replace(WELL, edge=Edge(server="20.10.24", needed=True, is_set=False))
    found, _ = judge(is_open)
    assert [one.code for one in found] == ["neighbours"]
    assert "20.10.24" in found[0].what
    unseen = Edge(server="20.10.24", needed=True, hindrance="only root may set or see them")
    found, notes = judge(dataclasses.replace(WELL, edge=unseen))
    assert found == []
    assert "only root may" in notes[0]
    for closed in (None, Edge(server="28.0", needed=False), Edge(server="20.10", needed=True, is_set=True)):
        assert judge(dataclasses.replace(WELL, edge=closed)) == ([], [])
    assert judge(dataclasses.replace(is_open, containers=()))[0] == [], "nothing runs, nothing is open"
