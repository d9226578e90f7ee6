"""Reading what Compose says."""

from __future__ import annotations

import json

import pytest
from tarn_host.stack import Service, addresses, parse_ps

ROWS = [
    {"Service": "trino", "ID": "b2", "State": "running", "Health": "starting", "ExitCode": 0},
    {"Service": "init", "ID": "a1", "State": "exited", "Health": "", "ExitCode": 3},
]


@pytest.mark.parametrize("text", ["\n".join(json.dumps(r) for r in ROWS), json.dumps(ROWS)])
def test_parse_ps_reads_both_shapes(text: str) -> None:
    assert parse_ps(text) == [
        Service(name="init", container="a1", state="exited", health="", exit_code=3),
        Service(name="trino", container="b2", state="running", health="starting", exit_code=0),
    ]


def test_parse_ps_of_nothing() -> None:
    assert parse_ps("") == []


@pytest.mark.parametrize(
    ("state", "health", "code", "good", "words"),
    [
        ("running", "healthy", 0, True, "healthy"),
        ("running", "", 0, True, "running"),
        ("running", "unhealthy", 0, False, "unhealthy"),
        ("running", "starting", 0, False, "starting"),
        ("exited", "", 0, True, "done"),
        ("exited", "", 137, False, "ended with exit code 137"),
        ("restarting", "", 1, False, "restarting"),
        ("created", "", 0, False, "created"),
    ],
)
def test_what_is_good(state: str, health: str, code: int, good: bool, words: str) -> None:
    service = Service(name="x", container="1", state=state, health=health, exit_code=code)
    assert service.good is good
    assert service.words() == words


def test_addresses_name_the_protocol() -> None:
    config = {
        "services": {
            "kafka": {"ports": [{"target": 9094, "published": "9092", "host_ip": "127.0.0.1"}]},
            "spark": {
                "ports": [{"target": 15002, "published": "15002"}, {"target": 4040, "published": "4040"}]
            },
            "init": {},
        }
    }
    assert [" ".join(row.split()) for row in addresses(config)] == [
        "kafka 127.0.0.1:9092",
        "spark sc://127.0.0.1:15002",
        "spark http://127.0.0.1:4040",
    ]
