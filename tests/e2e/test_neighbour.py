"""A neighbour that routes packets to the containers' own addresses is kept out, and nothing else is."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator

import pytest
from tarn_host.stack import firewall
from tarn_host.stack.project import Project

from tests.support import neighbour
from tests.support.compose import COMPOSE
from tests.support.needs import needs
from tests.support.neighbour import OURS, THEIRS, Neighbour
from tests.support.stack import ENGINE_S, LONG_RUNNING, Stack, run

CONNECT = """
import socket, sys
socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5).close()
print("connected")
"""


def here(stack: Stack) -> Project:
    """The project as the scripts see it."""
    return Project(name=stack.name, base="unused", own_base=False, settings={}, choices=stack.ports)


@pytest.fixture
def doors(stack: Stack) -> list[tuple[str, int]]:
    """Every address and port at which a service is reached in the stack's networks."""
    table, found = needs(), []
    for service in LONG_RUNNING:
        for network in stack.inspect(service)["NetworkSettings"]["Networks"].values():
            found += [(network["IPAddress"], port) for port in table[service].ports]
    return found


@pytest.fixture
def outsider(stack: Stack) -> Iterator[Neighbour]:
    """A neighbour with a route to every network of the stack."""
    if not neighbour.can_be_made():
        pytest.skip("only root on Linux can make a network namespace")
    listed = run(
        ["docker", "network", "ls", "-q", "--filter", f"label=com.docker.compose.project={stack.name}"],
        timeout_s=ENGINE_S,
    )
    inspected = run(["docker", "network", "inspect", *listed.text.split()], timeout_s=ENGINE_S)
    subnets = [one["Subnet"] for network in json.loads(inspected.text) for one in network["IPAM"]["Config"]]
    assert len(subnets) == len(COMPOSE["networks"])
    with neighbour.neighbour(subnets) as found:
        yield found


@pytest.mark.may_skip("only root on Linux can make a network namespace")
def test_a_neighbour_reaches_nothing_and_everybody_else_all_that_they_need(
    stack: Stack, outsider: Neighbour, doors: list[tuple[str, int]]
) -> None:
    edge = firewall.look(here(stack))
    assert edge.problem is None, "scripts/up has set the rules, or the engine needs none"
    published = [(OURS, int(port)) for port in stack.ports.values()]
    assert outsider.reaches([*doors, *published]) == []
    # Connections of the host, between services, and from the services to the outside.
    info = f"http://127.0.0.1:{stack.ports['TARN_PORT_TRINO']}/v1/info"
    with urllib.request.urlopen(info, timeout=60) as answer:
        assert answer.status == 200
    inside = stack.inside("trino", "python3", "-c", CONNECT, "catalog", "8181")
    assert "connected" in inside.text, inside.text
    with outsider.listening() as port:
        outwards = stack.inside("spark", "python3", "-c", CONNECT, THEIRS, str(port))
    assert "connected" in outwards.text, outwards.text


@pytest.mark.in_turn(6, "the neighbour test passes without firewall rules too")
@pytest.mark.may_skip("only root on Linux can make a network namespace")
def test_without_the_rules_the_neighbour_comes_in(
    stack: Stack, outsider: Neighbour, doors: list[tuple[str, int]]
) -> None:
    """Control, without which the test above proves nothing; the doctor reports the missing rules."""
    if not firewall.look(here(stack)).needed:
        pytest.skip("this engine closes the way itself")
    trino = [door for door in doors if door[1] == 8080]
    try:
        assert firewall.remove(stack.name)
        reached = outsider.reaches(doors)
        assert [door for door in reached if door in trino], f"Trino is closed without rules: {reached}"
        report = json.loads(stack.script("doctor", "--json", timeout_s=180).text)
        assert "neighbours" in [finding["code"] for finding in report["findings"]]
    finally:
        edge = firewall.close(here(stack), stack.config())
    assert edge.is_set
    assert firewall.close(here(stack), stack.config()).is_set, "a second time changes nothing"
    assert outsider.reaches(doors) == []
