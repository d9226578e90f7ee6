"""Who uses whom: the table of docs/reference.md is what settings and networks of the compose file say."""

from __future__ import annotations

import re
from typing import Any

from tests.support.compose import COMPOSE, SERVICES, addresses
from tests.support.needs import needs


def networks(service: str) -> dict[str, Any]:
    found = SERVICES[service].get("networks", {})
    return found if isinstance(found, dict) else {name: {} for name in found}


def test_the_table_is_what_the_settings_say() -> None:
    assert {name: set(row.uses) for name, row in needs().items()} == {s: addresses(s) for s in SERVICES}


def test_a_network_has_one_service_and_those_who_use_it() -> None:
    table = needs()
    assert {row.network for row in table.values()} - {""} == set(COMPOSE["networks"])
    for name, row in table.items():
        wanted = {table[server].network for server in row.servers} | ({row.network} - {""})
        assert set(networks(name)) == wanted, name


def test_who_is_used_and_uses_others_listens_by_an_alias_of_its_own_network() -> None:
    """Anybody else in its other networks finds no door."""
    for name, row in needs().items():
        aliases = {
            network: options["aliases"] for network, options in networks(name).items() if "aliases" in options
        }
        if row.network and row.uses:
            assert aliases == {row.network: [f"{name}.own"]}, name
            assert f"{name}.own" in SERVICES[name]["environment"].values(), name
        else:
            assert aliases == {}, name


def test_a_services_own_network_is_its_first_by_name() -> None:
    """By it the engine publishes ports and resolves names."""
    for name, row in needs().items():
        if row.network:
            assert row.network == min(networks(name)), name


def test_every_published_port_is_one_of_the_table() -> None:
    for name, row in needs().items():
        published = {int(re.findall(r"\d+$", port)[0]) for port in SERVICES[name].get("ports", [])}
        assert published <= row.ports, name
